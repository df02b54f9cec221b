//! A certificate of one name with its key, and certificates that the proxy signs itself.
//!
//! Owns: what makes a certificate one for a name: the key belongs to it, and the name is in it. Promises: no bytes make
//! it panic.

use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;

use super::renewal_plan::CertificateValidity;

/// The most certificates of a chain.
const CHAIN_MAX: usize = 32;

/// The name in the certificate that is shown while there is no other.
const PLACEHOLDER: &str = "placeholder.invalid";

/// A certificate of one name with its key.
#[derive(Debug, Clone)]
pub(crate) struct IssuedCertificate {
    pub certified: Arc<CertifiedKey>,
    pub validity: CertificateValidity,
}

impl IssuedCertificate {
    /// Reads a private key and a chain of certificates in PEM. *Errors*: what is wrong, as a part of a sentence.
    pub fn read(name: &str, pem: &[u8], provider: &CryptoProvider) -> Result<IssuedCertificate, String> {
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| format!("it has no private key: {error}"))?;
        let chain = CertificateDer::pem_slice_iter(pem).take(CHAIN_MAX).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|error| format!("its certificates cannot be read: {error}"))?;
        let leaf = chain.first().ok_or("it has no certificate")?;
        let validity = describe(name, leaf)?;
        let certified = CertifiedKey::from_der(chain, key, provider)
            .map_err(|error| format!("its key and its certificate do not fit: {error}"))?;
        Ok(IssuedCertificate { certified: Arc::new(certified), validity })
    }

    /// The certificate alone, without its chain.
    pub fn leaf(&self) -> Option<&CertificateDer<'static>> {
        self.certified.cert.first()
    }
}

/// Reads when a certificate is valid. *Errors*: it is not for this name.
fn describe(name: &str, der: &[u8]) -> Result<CertificateValidity, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("its certificate cannot be read: {error}");
    let (_, parsed) = x509_parser::parse_x509_certificate(der).map_err(|error| unreadable(&error))?;
    let alternatives = parsed.subject_alternative_name().map_err(|error| unreadable(&error))?;
    let is_for_name = alternatives
        .iter()
        .flat_map(|names| &names.value.general_names)
        .any(|found| matches!(found, GeneralName::DNSName(found) if covers(&found.to_ascii_lowercase(), name)));
    if !is_for_name {
        return Err(format!("its certificate is not for {name}"));
    }
    let validity = parsed.validity();
    Ok(CertificateValidity {
        not_before_s: validity.not_before.timestamp(),
        not_after_s: validity.not_after.timestamp(),
    })
}

/// Whether a certificate with this name, which may begin with `*.`, is for a name in lower case.
pub(crate) fn covers(of_certificate: &str, name: &str) -> bool {
    match of_certificate.strip_prefix("*.") {
        Some(suffix) => name.split_once('.').is_some_and(|(_, rest)| rest == suffix),
        None => of_certificate == name,
    }
}

/// A certificate that no client trusts, for the time until there is another one.
pub(crate) fn placeholder(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, String> {
    self_signed(PLACEHOLDER, Vec::new(), provider)
}

/// The certificate that answers the check TLS-ALPN-01 of a name (RFC 8737).
pub(crate) fn validation(
    name: &str,
    digest: &[u8; 32],
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, String> {
    self_signed(name, vec![CustomExtension::new_acme_identifier(digest)], provider)
}

fn self_signed(
    name: &str,
    extensions: Vec<CustomExtension>,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, String> {
    let made = || {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.custom_extensions = extensions;
        Ok((params.self_signed(&key)?.der().clone(), key.serialize_der()))
    };
    let (certificate, key) = made().map_err(|error: rcgen::Error| error.to_string())?;
    let key = PrivateKeyDer::try_from(key)?;
    // They fit together, and the extension of a check is one that rustls refuses to read.
    let key = provider.key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    Ok(Arc::new(CertifiedKey::new(vec![certificate], key)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn provider() -> CryptoProvider {
        rustls::crypto::ring::default_provider()
    }

    /// A key and a certificate for these names.
    fn pem(names: &[&str]) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).expect("names").self_signed(&key).expect("a certificate");
        (key.serialize_pem(), certificate.pem())
    }

    #[test]
    fn certificate_is_for_its_name() {
        let (key, certificate) = pem(&["A.test", "*.wild.test"]);
        let both = format!("{key}{certificate}");
        for name in ["a.test", "b.wild.test"] {
            let read = IssuedCertificate::read(name, both.as_bytes(), &provider()).expect(name);
            assert!(read.validity.not_after_s > 4_000_000_000 && read.leaf().is_some());
        }
        for name in ["b.test", "wild.test", "a.b.wild.test", ""] {
            let error = IssuedCertificate::read(name, both.as_bytes(), &provider()).expect_err(name);
            assert!(error.contains("not for"), "{error}");
        }
    }

    #[test]
    fn broken_files_are_told() {
        let ((key, certificate), (_, other)) = (pem(&["a.test"]), pem(&["a.test"]));
        for (text, expected) in [
            (String::new(), "no private key"),
            (certificate, "no private key"),
            (key.clone(), "no certificate"),
            (format!("{key}{other}"), "do not fit"),
            (format!("{key}-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), "cannot be read"),
        ] {
            let error = IssuedCertificate::read("a.test", text.as_bytes(), &provider()).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn own_certificates_can_be_shown() {
        assert_eq!(placeholder(&provider()).expect("a certificate").cert.len(), 1);
        let shown = validation("a.test", &[7; 32], &provider()).expect("a certificate");
        let (_, parsed) = x509_parser::parse_x509_certificate(&shown.cert[0]).expect("a certificate");
        let found = parsed.extensions().iter().find(|found| found.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let found = found.expect("the extension");
        assert!(found.critical);
        assert_eq!(found.value, [&[4_u8, 32][..], &[7_u8; 32][..]].concat());
    }

    proptest! {
        #[test]
        fn garbage_is_no_certificate(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0_usize..2000) {
            prop_assert!(IssuedCertificate::read("a.test", &bytes, &provider()).is_err());
            let (key, certificate) = pem(&["a.test"]);
            let mut whole = format!("{key}{certificate}").into_bytes();
            let at = cut % whole.len();
            whole[at] = whole[at].wrapping_add(1 + bytes.first().copied().unwrap_or(0) % 250);
            // Whatever it is now, it is read or refused.
            let _ = IssuedCertificate::read("a.test", &whole, &provider());
        }
    }
}
