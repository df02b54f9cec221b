//! Certificates for servers under test, made by `nectary cert`.

use super::binary;
use crate::guard;
use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The files of an authority and of a server's certificate.
#[derive(Clone, Debug)]
pub struct ServerCertificates {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl ServerCertificates {
    /// Makes an authority in a directory, and a certificate for these names, separated by commas.
    pub fn make(folder: &Path, names: &str) -> Result<Self> {
        let (pki, out) = (folder.join("pki"), folder.join("server"));
        cert(folder, &["init".as_ref(), pki.as_ref()])?;
        cert(folder, &["server".as_ref(), pki.as_ref(), names.as_ref(), "--out".as_ref(), out.as_ref()])?;
        let file = |name: &str| out.join(name);
        Ok(Self { ca: file("ca-cert.pem"), certificate: file("server-cert.pem"), key: file("server-key.pem") })
    }

    /// Makes an authority in a directory, and a certificate for a host that it shows on both sides of connections.
    pub fn make_for_host(folder: &Path, host: &str) -> Result<Self> {
        let (pki, out) = (folder.join("pki"), folder.join("host"));
        cert(folder, &["init".as_ref(), pki.as_ref()])?;
        cert(folder, &["host".as_ref(), pki.as_ref(), host.as_ref(), "--out".as_ref(), out.as_ref()])?;
        let file = |end: &str| out.join(format!("{host}{end}"));
        Ok(Self { ca: out.join("ca.pem"), certificate: file(".pem"), key: file(".key") })
    }

    /// The options with which a proxy shows the certificate.
    pub fn options(&self) -> Vec<String> {
        let (certificate, key) = (self.certificate.display().to_string(), self.key.display().to_string());
        vec!["--tls-cert".to_owned(), certificate, "--tls-key".to_owned(), key]
    }
}

fn cert(folder: &Path, arguments: &[&std::ffi::OsStr]) -> Result<()> {
    let mut command = Command::new(binary()?);
    command.arg("cert").args(arguments);
    let (status, text) = guard::run("nectary cert", command, &folder.join("cert.log"), Duration::from_secs(20))?;
    if !status.success() {
        bail!("nectary cert {arguments:?}: {}: {text}", guard::describe(status));
    }
    Ok(())
}
