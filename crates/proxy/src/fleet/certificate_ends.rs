//! When the certificates end that `[fleet]` names.
//!
//! Owns: reading the ends of those in files. Leaves to others: what is done with certificates (`peers`, `nectary-fleet`).

use std::path::{Path, PathBuf};

use nectary_config::{FleetConfig, Setting};
use nectary_host::fleet::FleetCertificate;
use nectary_host::tls::read_certificates;
use rustls::pki_types::CertificateDer;
use x509_parser::parse_x509_certificate;

/// The files of certificates with which etcd is reached. The proxy reads them by itself when they have changed.
#[derive(Debug, Clone, Default)]
pub(super) struct EtcdFiles {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
}

impl EtcdFiles {
    pub fn of(config: &FleetConfig) -> EtcdFiles {
        let path = |file: &Setting<PathBuf>| file.as_ref().map(|file| file.value.clone());
        EtcdFiles { ca: path(&config.etcd_tls.ca), cert: path(&config.etcd_tls.cert) }
    }

    /// What the files have now; one that cannot be read is left out. *Cost*: reads the files.
    pub fn shown(&self) -> Vec<FleetCertificate> {
        let ca = self.ca.as_ref().and_then(|path| Some(certificate_of("etcd-ca", path, last_end(path)?)));
        let cert = self.cert.as_ref().and_then(|path| Some(certificate_of("etcd-cert", path, first_end(path)?)));
        ca.into_iter().chain(cert).collect()
    }
}

/// The certificate of a key of `[fleet]`.
pub(super) fn certificate_of(key: &str, path: &Path, not_after_s: i64) -> FleetCertificate {
    FleetCertificate { key: key.to_owned(), path: path.display().to_string(), not_after_s }
}

/// The end of the first certificate of a file: the others are those that have signed it.
fn first_end(path: &Path) -> Option<i64> {
    ends(path).first().copied()
}

/// The last end of the certificates in a file of authorities: while they are exchanged, an old one is there, too.
pub(super) fn last_end(path: &Path) -> Option<i64> {
    ends(path).into_iter().max()
}

/// The ends of the certificates in a file, in Unix seconds; none if it cannot be read.
fn ends(path: &Path) -> Vec<i64> {
    let found = read_certificates(path).unwrap_or_default();
    let end = |der: &CertificateDer<'_>| {
        let (_, certificate) = parse_x509_certificate(der).ok()?;
        Some(certificate.validity().not_after.timestamp())
    };
    found.iter().filter_map(end).collect()
}
