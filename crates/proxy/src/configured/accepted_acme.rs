//! The certificates that a configuration asks to order.

use nectary_config::{AcmeChallenge, ProxyConfig};

use super::refused::ProblemCollector;
use super::value_or;
use crate::acme::{AcmeOptions, RetryRule, check_ca};

/// What `[tls.acme]` says; `None` without that table. Which names have a certificate in a file is not known here.
pub(super) fn acme(config: &ProxyConfig) -> Option<AcmeOptions> {
    let acme = config.tls.acme.as_ref()?;
    let default = AcmeOptions::default();
    Some(AcmeOptions {
        directory: value_or(&acme.directory, default.directory),
        contact: acme.contact.iter().map(|address| address.value.clone()).collect(),
        names: config.acme_names(),
        state: value_or(&acme.state, default.state),
        challenge: value_or(&acme.challenge, AcmeChallenge::Http01),
        ca: acme.ca.as_ref().map(|path| path.value.clone()),
        retry: RetryRule::default(),
    })
}

/// Refuses a file of certificates for the authority's server that cannot be read.
pub(super) fn check(config: &ProxyConfig, refused: &mut ProblemCollector) {
    let ca = config.tls.acme.as_ref().and_then(|acme| acme.ca.as_ref());
    if let Some(path) = ca
        && let Err(error) = check_ca(&path.value)
    {
        refused.refuse(path.place, "ca", error.to_string());
    }
}
