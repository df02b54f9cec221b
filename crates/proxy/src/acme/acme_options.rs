//! What is ordered, from whom, and how.
//!
//! Owns: the options with their defaults.

use std::path::PathBuf;

use nectary_config::AcmeChallenge;

use super::renewal_plan::RetryRule;

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// What is ordered, from whom, and how. The authority's terms are accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcmeOptions {
    /// The URL of the authority's directory.
    pub directory: String,
    /// The mail addresses that the authority is told.
    pub contact: Vec<String>,
    /// The names, in lower case; each gets a certificate.
    pub names: Vec<String>,
    /// The directory of the account and the certificates.
    pub state: PathBuf,
    /// How the authority checks a name.
    pub challenge: AcmeChallenge,
    /// A PEM file of certificates that are trusted for the authority's server; those of the system if it is `None`.
    pub ca: Option<PathBuf>,
    /// The pauses after failures.
    pub retry: RetryRule,
}

impl Default for AcmeOptions {
    fn default() -> AcmeOptions {
        AcmeOptions {
            directory: LETS_ENCRYPT.to_owned(),
            contact: Vec::new(),
            names: Vec::new(),
            state: "/var/lib/nectary/acme".into(),
            challenge: AcmeChallenge::Http01,
            ca: None,
            retry: RetryRule::default(),
        }
    }
}
