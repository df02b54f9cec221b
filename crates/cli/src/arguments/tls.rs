//! TLS between a proxy and its clients.

use std::path::PathBuf;

use clap::Args;
use nectary_config::ListenAddress;
use nectary_proxy::CertificateFiles;

use super::parse_listen;
use crate::exit::{CommandFailure, USAGE};

/// TLS of `proxy`.
#[derive(Debug, Args)]
#[command(next_help_heading = "TLS for clients")]
pub struct ClientTlsArguments {
    /// Serve HTTP/1.1 and HTTP/2 over TLS at every --listen, with the certificate (and its chain) in this PEM file; may be
    /// given again, for other names: the one for the name that a client asks for counts, else the first. SIGUSR1 and
    /// SIGHUP read the files again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Vec<PathBuf>,
    /// The private key of the certificate, one for each --tls-cert in the same order
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Vec<PathBuf>,
    /// Address without TLS at which clients are sent to the first --listen, for example :80; may be given again
    #[arg(long, value_name = "ADDR", requires = "tls_cert", value_parser = parse_listen)]
    pub redirect_listen: Vec<ListenAddress>,
}

impl ClientTlsArguments {
    /// The files of each certificate. *Errors*: there are more certificates than keys, or fewer.
    pub fn certificates(&self) -> Result<Vec<CertificateFiles>, CommandFailure> {
        let (certificates, keys) = (self.tls_cert.len(), self.tls_key.len());
        if certificates != keys {
            let message = format!("{certificates} --tls-cert and {keys} --tls-key are given");
            return Err(CommandFailure::new(USAGE, message, "give each --tls-cert its --tls-key, in the same order"));
        }
        let pairs = self.tls_cert.iter().cloned().zip(self.tls_key.iter().cloned());
        Ok(pairs.map(|(certificate, key)| CertificateFiles { certificate, key }).collect())
    }
}
