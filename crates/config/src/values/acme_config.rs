//! Certificates that the proxy orders itself.
//!
//! Owns: the values of `[tls.acme]`, and for which names of the sites they are.

use std::net::IpAddr;
use std::path::PathBuf;

use super::{ProxyConfig, SiteName};
use crate::place::{LocatedValue, Setting};

/// `[tls.acme]`: certificates from an authority that speaks ACME (RFC 8555), one for each name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AcmeConfig {
    /// `directory`: the `https` URL of the authority's directory. Default: that of Let's Encrypt.
    pub directory: Setting<String>,
    /// `contact`: mail addresses that the authority is told. Default: none.
    pub contact: Vec<LocatedValue<String>>,
    /// `accept-terms`: whether the operator accepts the authority's terms. Always true in a configuration that was read.
    pub accept_terms: Setting<bool>,
    /// `names`: the names that get a certificate, in lower case. Default: all names of sites that are neither wildcards
    /// nor addresses.
    pub names: Vec<LocatedValue<String>>,
    /// `state`: the directory of the account and the certificates. Default: `/var/lib/nectary/acme`.
    pub state: Setting<PathBuf>,
    /// `challenge`: how the authority checks a name. Default: [`AcmeChallenge::Http01`].
    pub challenge: Setting<AcmeChallenge>,
    /// `ca`: a PEM file of certificates that are trusted for the authority's server. Default: those of the system.
    pub ca: Setting<PathBuf>,
}

/// How an authority checks that a name leads to this proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// `"http-01"`: by a request to port 80.
    Http01,
    /// `"tls-alpn-01"`: by a handshake at port 443.
    TlsAlpn01,
}

impl ProxyConfig {
    /// The names for which `[tls.acme]` orders certificates, each once; none without that table. Which of them have a
    /// certificate in a file is not known here.
    pub fn acme_names(&self) -> Vec<String> {
        let Some(acme) = &self.tls.acme else { return Vec::new() };
        if !acme.names.is_empty() {
            return acme.names.iter().map(|name| name.value.clone()).collect();
        }
        let names = self.sites.iter().flat_map(|site| &site.names).filter_map(|name| match &name.value {
            SiteName::Exact(name) if name.parse::<IpAddr>().is_err() => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }
}
