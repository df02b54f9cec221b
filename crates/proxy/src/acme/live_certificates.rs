//! The ordered certificates that clients are shown.
//!
//! Owns: which certificate a name has now. *Cost*: a handshake takes a lock for reading, which nobody holds for long.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::sign::CertifiedKey;

/// The ordered certificates that clients are shown.
#[derive(Debug, Default)]
pub(crate) struct LiveCertificates {
    names: RwLock<LiveNames>,
}

/// The names, and what they have.
#[derive(Debug, Default)]
pub(crate) struct LiveNames {
    /// Each name with its certificate, or without one as long as there is none.
    pub by_name: HashMap<String, Option<Arc<CertifiedKey>>>,
    /// The name whose certificate is shown to clients that ask for no name, or for one that is not known.
    pub first: Option<String>,
    /// What a name without a certificate has.
    pub placeholder: Option<Arc<CertifiedKey>>,
}

impl LiveCertificates {
    /// Replaces all names and certificates.
    pub fn replace(&self, names: LiveNames) {
        *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Gives a name its certificate; new handshakes get it.
    pub fn install(&self, name: &str, certificate: Arc<CertifiedKey>) {
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = names.by_name.get_mut(name) {
            *entry = Some(certificate);
        }
    }

    /// The certificate of a name in lower case; if it has none yet, the placeholder if `has_placeholder`. *Returns*:
    /// `None` also for a name that is not ordered.
    pub fn find(&self, name: &str, has_placeholder: bool) -> Option<Arc<CertifiedKey>> {
        let names = self.names.read().unwrap_or_else(PoisonError::into_inner);
        match names.by_name.get(name)? {
            Some(certificate) => Some(certificate.clone()),
            None => names.placeholder.clone().filter(|_| has_placeholder),
        }
    }

    /// The certificate of the first name, or the placeholder if it has none yet.
    pub fn first(&self) -> Option<Arc<CertifiedKey>> {
        let first = self.names.read().unwrap_or_else(PoisonError::into_inner).first.clone();
        self.find(&first?, true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::issued_certificate::placeholder;
    use super::*;

    fn certificate() -> Arc<CertifiedKey> {
        placeholder(&rustls::crypto::ring::default_provider()).expect("a certificate")
    }

    #[test]
    fn names_without_certificate_have_a_placeholder() {
        let live = LiveCertificates::default();
        assert!(live.find("a", true).is_none() && live.first().is_none());
        let (placeholder, own) = (certificate(), certificate());
        let by_name = ["a", "b"].map(|name| (name.to_owned(), None)).into();
        live.replace(LiveNames { by_name, first: Some("a".to_owned()), placeholder: Some(placeholder.clone()) });
        let is =
            |found: Option<Arc<CertifiedKey>>, it: &Arc<CertifiedKey>| found.is_some_and(|it2| Arc::ptr_eq(&it2, it));
        assert!(is(live.find("a", true), &placeholder) && live.find("a", false).is_none());
        assert!(is(live.first(), &placeholder));
        live.install("a", own.clone());
        live.install("c", own.clone());
        assert!(is(live.find("a", false), &own) && is(live.first(), &own));
        assert!(is(live.find("b", true), &placeholder) && live.find("c", true).is_none());
    }
}
