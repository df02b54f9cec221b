//! Making and reading certificates, and the authority that signs them, as texts.
//!
//! Owns: the contents of certificates, and the time for which they are valid. Promises: the certificate of a host is
//! valid no longer than its authority's, and is accepted only for the sides that it was made for. Leaves to others: files
//! (`cert`), and handshakes (`nectary_host::tls`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;
use x509_parser::time::ASN1Time;
use x509_parser::x509::X509Name;

/// The length of a day. *Units*: seconds.
pub const DAY: i64 = 86_400;
/// The time for which an authority is valid. *Units*: days.
const AUTHORITY_DAYS: i64 = 3652;
/// A certificate is valid from this much before the present time, because the clocks of hosts differ. *Units*: seconds.
const BEGINS_BEFORE: i64 = DAY;
/// The longest name of an authority. *Units*: bytes.
const NAME_BYTES_MAX: usize = 64;
/// The longest name of a host. *Units*: bytes.
const HOST_BYTES_MAX: usize = 253;
/// The maximum number of certificates that one file may contain.
const CERTIFICATES_MAX: usize = 4096;

/// A certificate and its key, both as PEM.
pub struct CertificateWithKey {
    pub certificate: String,
    pub key: String,
}

/// The sides of a connection on which a certificate is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateUsage {
    Server,
    Client,
    Both,
}

impl CertificateUsage {
    fn purposes(self) -> Vec<ExtendedKeyUsagePurpose> {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        match self {
            CertificateUsage::Server => vec![ServerAuth],
            CertificateUsage::Client => vec![ClientAuth],
            CertificateUsage::Both => vec![ServerAuth, ClientAuth],
        }
    }
}

/// The contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateContents {
    /// The name of its owner.
    pub name: String,
    /// The name of the authority that signed it.
    pub issuer: String,
    /// The names and addresses of the host.
    pub hosts: Vec<String>,
    /// Whether it may sign other certificates.
    pub is_authority: bool,
    /// The start of its validity. *Units*: seconds since 1970.
    pub begins_s: i64,
    /// The end of its validity. *Units*: seconds since 1970.
    pub ends_s: i64,
}

/// An authority, which can sign certificates.
pub struct SigningAuthority {
    issuer: Issuer<'static, KeyPair>,
    /// The contents of its certificate.
    pub shown: CertificateContents,
}

/// Formats the day of a time, for example 2036-11-24. *Units*: seconds since 1970.
pub fn day(seconds: i64) -> String {
    ASN1Time::from_timestamp(seconds).map_or_else(|_| "?".to_owned(), |time| time.to_datetime().date().to_string())
}

fn of(name: &str, (begins_s, ends_s): (i64, i64)) -> Result<CertificateParams, String> {
    let time = |seconds| ASN1Time::from_timestamp(seconds).map(|time| time.to_datetime());
    let mut of = CertificateParams::default();
    of.not_before = time(begins_s).map_err(|error| error.to_string())?;
    of.not_after = time(ends_s).map_err(|error| error.to_string())?;
    of.distinguished_name = rcgen::DistinguishedName::new();
    of.distinguished_name.push(DnType::CommonName, name);
    Ok(of)
}

/// Makes an authority, which signs its own certificate. *Errors*: the name is not valid.
pub fn new(name: &str, now_s: i64) -> Result<CertificateWithKey, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("\"{name}\" is no name of an authority: it has 1 to {NAME_BYTES_MAX} bytes"));
    }
    let made = || {
        let key = KeyPair::generate()?;
        let mut of = of(name, (now_s - BEGINS_BEFORE, now_s + AUTHORITY_DAYS * DAY)).unwrap_or_default();
        // It may sign certificates of hosts, but no further authorities.
        of.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        of.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Ok(CertificateWithKey { certificate: of.self_signed(&key)?.pem(), key: key.serialize_pem() })
    };
    made().map_err(|error: rcgen::Error| error.to_string())
}

/// Checks a name or an address of a host.
pub fn check_host(host: &str) -> Result<(), String> {
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.len() <= 63 && !label.starts_with('-') && label.bytes().all(is_inner)
    };
    let is_name = host.len() <= HOST_BYTES_MAX && host.split('.').all(is_label);
    match host.parse::<IpAddr>().is_ok() || is_name {
        true => Ok(()),
        false => Err(format!("\"{host}\" is neither a name of a host nor an IP address")),
    }
}

impl SigningAuthority {
    /// Reads an authority from its certificate and its key, both as PEM.
    ///
    /// *Errors*: the texts are not PEM, do not belong together, or belong to a host.
    pub fn read(certificate: &str, key: &str) -> Result<SigningAuthority, String> {
        let key = KeyPair::from_pem(key).map_err(|error| format!("its key cannot be read: {error}"))?;
        let pem = pems(certificate)?.swap_remove(0);
        let parsed = parse(&pem)?;
        let shown = show(&parsed);
        if !shown.is_authority {
            return Err(format!("the certificate of {} is not one of an authority", shown.name));
        }
        if *parsed.public_key().subject_public_key.data != *key.public_key_raw() {
            return Err("its certificate and its key do not belong together".to_owned());
        }
        let issuer = Issuer::from_ca_cert_der(&pem.contents.as_slice().into(), key);
        Ok(SigningAuthority { issuer: issuer.map_err(|error| error.to_string())?, shown })
    }

    /// Makes a certificate for a host, with all names and addresses by which clients reach it; the first one is the
    /// certificate's name.
    ///
    /// *Errors*: the authority is not valid any more; a name is not valid.
    pub fn certify(
        &self,
        hosts: &[String],
        usage: CertificateUsage,
        now_s: i64,
        days: u32,
    ) -> Result<CertificateWithKey, String> {
        let ends_s = (now_s + i64::from(days) * DAY).min(self.shown.ends_s);
        if ends_s <= now_s {
            return Err(format!("the authority {} ended on {}", self.shown.name, day(self.shown.ends_s)));
        }
        hosts.iter().try_for_each(|host| check_host(host))?;
        let first = hosts.first().ok_or("there is no name of a host")?;
        let begins_s = (now_s - BEGINS_BEFORE).max(self.shown.begins_s);
        let named = CertificateParams::new(hosts.to_vec()).map_err(|error| error.to_string())?;
        // The certificate's name is cut to the longest allowed length; the list of names has the whole name.
        let name: String = first.chars().take(NAME_BYTES_MAX).collect();
        let mut of = of(&name, (begins_s, ends_s))?;
        of.subject_alt_names = named.subject_alt_names;
        of.is_ca = IsCa::ExplicitNoCa;
        of.use_authority_key_identifier_extension = true;
        of.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        of.extended_key_usages = usage.purposes();
        let made = || {
            let key = KeyPair::generate()?;
            Ok(CertificateWithKey { certificate: of.signed_by(&key, &self.issuer)?.pem(), key: key.serialize_pem() })
        };
        made().map_err(|error: rcgen::Error| error.to_string())
    }
}

/// Returns the contents of the certificates in a PEM file, in their order; there is at least one. *Errors*: the file
/// has no certificate, or one that cannot be read.
pub fn read(text: &str) -> Result<Vec<CertificateContents>, String> {
    pems(text)?.iter().map(|pem| Ok(show(&parse(pem)?))).collect()
}

fn pems(text: &str) -> Result<Vec<Pem>, String> {
    let mut found = Vec::new();
    for pem in Pem::iter_from_buffer(text.as_bytes()).take(CERTIFICATES_MAX) {
        let pem = pem.map_err(|error| format!("it is damaged: {error}"))?;
        if pem.label == "CERTIFICATE" {
            found.push(pem);
        }
    }
    match found.is_empty() {
        true => Err("there is no certificate in it (PEM)".to_owned()),
        false => Ok(found),
    }
}

fn parse(pem: &Pem) -> Result<X509Certificate<'_>, String> {
    pem.parse_x509().map_err(|error| format!("a certificate in it is damaged: {error}"))
}

fn common_name(name: &X509Name<'_>) -> String {
    let common = name.iter_common_name().next().and_then(|found| found.as_str().ok());
    common.map_or_else(|| name.to_string(), str::to_owned)
}

fn show(certificate: &X509Certificate<'_>) -> CertificateContents {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
    CertificateContents {
        name: common_name(certificate.subject()),
        issuer: common_name(certificate.issuer()),
        hosts: names.iter().filter_map(host).collect(),
        is_authority: certificate.is_ca(),
        begins_s: certificate.validity().not_before.timestamp(),
        ends_s: certificate.validity().not_after.timestamp(),
    }
}

fn host(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(|bytes| Ipv4Addr::from(bytes).to_string());
            v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(|bytes| Ipv6Addr::from(bytes).to_string())).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn authority(name: &str) -> (SigningAuthority, CertificateWithKey) {
        let made = new(name, NOW).unwrap();
        (SigningAuthority::read(&made.certificate, &made.key).unwrap(), made)
    }

    /// A certificate of a host has the host's names, and is valid no longer than its authority.
    #[test]
    fn host_certificate_ends_with_authority() {
        let (authority, _) = authority("builds");
        let hosts = ["h1.example", "h1", "10.0.0.1", "fd00::1"].map(str::to_owned);
        let made = authority.certify(&hosts, CertificateUsage::Both, NOW, 730).unwrap();
        let expected = CertificateContents {
            name: "h1.example".to_owned(),
            issuer: "builds".to_owned(),
            hosts: hosts.to_vec(),
            is_authority: false,
            begins_s: NOW - DAY,
            ends_s: NOW + 730 * DAY,
        };
        assert_eq!(read(&made.certificate), Ok(vec![expected]));
        assert!(made.key.contains("PRIVATE KEY"));
        let late = NOW + (AUTHORITY_DAYS - 10) * DAY;
        let short = authority.certify(&hosts, CertificateUsage::Both, late, 730).unwrap();
        assert_eq!(read(&short.certificate).unwrap()[0].ends_s, authority.shown.ends_s);
        let error = authority.certify(&hosts, CertificateUsage::Both, NOW + AUTHORITY_DAYS * DAY, 730).err().unwrap();
        assert!(error.contains("ended on 2037-01-1"), "{error}");
    }

    #[test]
    fn what_is_no_authority_signs_nothing() {
        let (first, made) = authority("builds");
        assert_eq!((first.shown.name.as_str(), first.shown.is_authority), ("builds", true));
        let (_, other) = authority("builds");
        let error = |certificate: &str, key: &str| SigningAuthority::read(certificate, key).err().unwrap_or_default();
        assert!(error(&made.certificate, &other.key).contains("do not belong together"));
        let host = first.certify(&["h1".to_owned()], CertificateUsage::Both, NOW, 1).unwrap();
        assert!(error(&host.certificate, &host.key).contains("is not one of an authority"));
        assert!(error(&made.certificate, "no key").contains("its key cannot be read"));
        assert!(error("nothing", &made.key).contains("there is no certificate"));
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for host in ["h1", "h-1.example", "10.0.0.1", "::1", "a_b"] {
            assert_eq!(check_host(host), Ok(()));
        }
        for host in ["", ".", "a/b", "../h1", "h 1", "-h", "h..1", "10.0.0.1:7200", &"x".repeat(64)] {
            assert!(check_host(host).is_err(), "{host}");
        }
        assert!(new("", NOW).is_err() && new(&"x".repeat(65), NOW).is_err());
    }
}
