//! The certificates that are trusted for origins.
//!
//! Owns: reading them (the system's and the operator's), and the TLS configuration, which all workers share. The
//! operator's file is read when the proxy starts and when it is reloaded, the system's certificates when an `https`
//! origin is first used after that.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use nectary_host::tls::{read_certificates, read_key};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::error::Error;

/// The maximum number of certificates that the operator's file may have.
const CERTIFICATES_MAX: usize = 4096;

/// The files of TLS with the servers of an origin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrustFiles {
    /// Certificates that may sign the servers', in addition to the system's.
    pub authorities: Option<PathBuf>,
    /// The certificate that is shown to servers.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// Whether the system's certificates sign none.
    pub is_exclusive: bool,
}

/// The certificates that are trusted for origins, and the one that is shown to them.
pub(crate) struct OriginTrust {
    files: TrustFiles,
    state: RwLock<TrustState>,
}

/// A certificate with its chain and its key.
type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

struct TrustState {
    /// The certificates of the operator's file.
    own: RootCertStore,
    shown: Option<Shown>,
    /// The configurations with these and the system's certificates, once they are needed: without HTTP/2 and with it.
    configs: [Option<Arc<ClientConfig>>; 2],
}

impl OriginTrust {
    /// Reads the operator's file, if there is one. *Errors*: [`Error::OriginCa`].
    pub fn new(path: Option<&Path>) -> Result<OriginTrust, Error> {
        OriginTrust::with_files(TrustFiles { authorities: path.map(Path::to_owned), ..TrustFiles::default() })
    }

    /// Reads the operator's files. *Errors*: [`Error::OriginCa`], [`Error::TlsService`], [`Error::Certificate`].
    pub fn with_files(files: TrustFiles) -> Result<OriginTrust, Error> {
        let state = RwLock::new(TrustState::read(&files)?);
        Ok(OriginTrust { files, state })
    }

    /// Reads all certificates again. New connections use them. *Errors*: [`Error::OriginCa`]; what was trusted before
    /// then stays trusted.
    pub fn reload(&self) -> Result<(), Error> {
        let state = TrustState::read(&self.files)?;
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(())
    }

    /// What the operator can do about a certificate that was refused; `None` if the error has another reason.
    pub fn remedy(&self, error: &std::io::Error) -> Option<&'static str> {
        // Nodes of a fleet alone are trusted so.
        remedy_of(error, self.files.is_exclusive)
    }

    /// The connector for new connections to origins. It offers HTTP/1.1, and HTTP/2 before that if `offers_http2`.
    /// *Errors*: a text about the system's certificates, if none at all are trusted.
    pub fn connector(&self, offers_http2: bool) -> Result<TlsConnector, String> {
        let index = usize::from(offers_http2);
        if let Some(config) = &self.state.read().unwrap_or_else(PoisonError::into_inner).configs[index] {
            return Ok(TlsConnector::from(config.clone()));
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let config = match &state.configs[index] {
            Some(config) => config.clone(),
            None => {
                let mut config = configure(state.own.clone(), state.shown.as_ref(), self.files.is_exclusive)?;
                if offers_http2 {
                    config.alpn_protocols.insert(0, b"h2".to_vec());
                }
                Arc::new(config)
            }
        };
        state.configs[index] = Some(config.clone());
        Ok(TlsConnector::from(config))
    }
}

impl fmt::Debug for OriginTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OriginTrust").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TrustState {
    fn read(files: &TrustFiles) -> Result<TrustState, Error> {
        let own = read(files.authorities.as_deref())?;
        let shown = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => {
                let shown = (read_certificates(certificate).map_err(Error::Tls)?, read_key(key).map_err(Error::Tls)?);
                let wrong = |what: String| Error::Certificate { path: certificate.clone(), what };
                // What does not fit together is found now and not at the first connection.
                configure(own.clone(), Some(&shown), files.is_exclusive).map_err(wrong)?;
                Some(shown)
            }
            _ => None,
        };
        Ok(TrustState { own, shown, configs: [None, None] })
    }
}

/// Reads a file of certificates in PEM; without a file there are none.
fn read(path: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else { return Ok(roots) };
    let failed = |what: String| Error::OriginCa { path: path.to_owned(), what };
    let found = CertificateDer::pem_file_iter(path)
        .and_then(|list| list.take(CERTIFICATES_MAX).collect::<Result<Vec<_>, _>>())
        .map_err(|error| match error {
            PemError::Io(error) => failed(error.to_string()),
            error => failed(error.to_string()),
        })?;
    if found.is_empty() {
        return Err(failed("there is no certificate in it".to_owned()));
    }
    for (index, certificate) in found.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| failed(format!("certificate {} in it: {error}", index + 1)))?;
    }
    Ok(roots)
}

/// Makes the configuration that trusts `roots`, and the system's certificates unless it `is_exclusive`.
fn configure(mut roots: RootCertStore, shown: Option<&Shown>, is_exclusive: bool) -> Result<ClientConfig, String> {
    if !is_exclusive {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            let why = found.errors.first().map_or("none are installed".to_owned(), ToString::to_string);
            return Err(format!("no certificates to trust: {why}; install ca-certificates"));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?
        .with_root_certificates(roots);
    let mut config = match shown {
        Some((chain, key)) => config
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| format!("the certificate for origins: {error}"))?,
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// What the operator can do about a refused certificate of an origin, or of another node if it `is_of_node`; `None` if the
/// error has another reason.
fn remedy_of(error: &std::io::Error, is_of_node: bool) -> Option<&'static str> {
    let rustls::Error::InvalidCertificate(problem) = error.get_ref()?.downcast_ref::<rustls::Error>()? else {
        return None;
    };
    Some(match problem {
        CertificateError::UnknownIssuer if is_of_node => "`ca` of [fleet] must have signed the certificates of nodes",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } if is_of_node => {
            "use a name of the certificate in `address` of that node, or make one with this name"
        }
        CertificateError::UnknownIssuer => "if a private authority signed it, give the authority's with --origin-ca",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "renew it, or see this machine's clock",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "see the clocks of both machines"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "use a name of the certificate in --origin, or make one with this name"
        }
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "a server cannot show the certificate of an authority: sign one for it, or make it with CA:FALSE"
        }
        _ => return None,
    })
}
