//! The answers to the checks by which an authority sees that a name leads to this proxy.
//!
//! Owns: which checks are under way. Promises: an answer is there from the moment at which the authority is asked to
//! check until the order has ended, and only then; requests for other tokens go their usual way.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;

use super::issued_certificate::validation;

/// The path before the token of HTTP-01.
const HTTP_PREFIX: &str = "/.well-known/acme-challenge/";

/// The protocol of TLS-ALPN-01.
pub(crate) const ACME_PROTOCOL: &[u8] = b"acme-tls/1";

/// The longest token. *Units*: bytes.
const TOKEN_MAX: usize = 512;

/// The answers to the checks that are under way.
#[derive(Debug, Default)]
pub(crate) struct ChallengeAnswers {
    /// By token.
    http: RwLock<HashMap<String, Arc<str>>>,
    /// By name.
    tls: RwLock<HashMap<String, Arc<CertifiedKey>>>,
}

/// An answer that is given until this value is dropped.
#[derive(Debug)]
pub(crate) struct OfferedAnswer<'a> {
    answers: &'a ChallengeAnswers,
    is_http: bool,
    /// The token or the name.
    key: String,
}

impl Drop for OfferedAnswer<'_> {
    fn drop(&mut self) {
        match self.is_http {
            true => drop(self.answers.http.write().unwrap_or_else(PoisonError::into_inner).remove(&self.key)),
            false => drop(self.answers.tls.write().unwrap_or_else(PoisonError::into_inner).remove(&self.key)),
        }
    }
}

impl ChallengeAnswers {
    /// Answers HTTP-01 for a token. *Errors*: it is no token.
    pub fn offer_http(&self, token: &str, answer: &str) -> Result<OfferedAnswer<'_>, String> {
        let is_plain = token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if token.is_empty() || token.len() > TOKEN_MAX || !is_plain {
            return Err("the authority's token is not one".to_owned());
        }
        self.http.write().unwrap_or_else(PoisonError::into_inner).insert(token.to_owned(), answer.into());
        Ok(OfferedAnswer { answers: self, is_http: true, key: token.to_owned() })
    }

    /// Answers TLS-ALPN-01 for a name. *Errors*: the certificate cannot be made.
    pub fn offer_tls(&self, name: &str, digest: &[u8], provider: &CryptoProvider) -> Result<OfferedAnswer<'_>, String> {
        let digest: &[u8; 32] = digest.try_into().map_err(|_| "a digest of another length".to_owned())?;
        let certificate = validation(name, digest, provider)?;
        self.tls.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), certificate);
        Ok(OfferedAnswer { answers: self, is_http: false, key: name.to_owned() })
    }

    /// The answer to a request for this path; `None` if it is not one of a check that is under way.
    pub fn of_path(&self, path: &str) -> Option<Arc<str>> {
        let token = path.strip_prefix(HTTP_PREFIX)?;
        self.http.read().unwrap_or_else(PoisonError::into_inner).get(token).cloned()
    }

    /// The certificate for a handshake that checks a name.
    pub fn of_name(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let name = name?.to_ascii_lowercase();
        self.tls.read().unwrap_or_else(PoisonError::into_inner).get(&name).cloned()
    }
}

/// Whether a client offers the protocol of TLS-ALPN-01 and no other, as a check does.
pub(crate) fn is_only_acme<'a>(offered: Option<impl Iterator<Item = &'a [u8]>>) -> bool {
    offered.is_some_and(|mut offered| offered.next() == Some(ACME_PROTOCOL) && offered.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tokens_under_way_are_answered() {
        let answers = ChallengeAnswers::default();
        let path = |token: &str| format!("{HTTP_PREFIX}{token}");
        let offered = answers.offer_http("abc_-1", "abc_-1.thumb").expect("a token");
        assert_eq!(answers.of_path(&path("abc_-1")).as_deref(), Some("abc_-1.thumb"));
        for other in [path("abc_-2"), path(""), path("abc_-1/"), "/abc_-1".to_owned(), "/".to_owned()] {
            assert_eq!(answers.of_path(&other), None, "{other}");
        }
        drop(offered);
        assert_eq!(answers.of_path(&path("abc_-1")), None);
        for wrong in ["", "a/b", "..", "a.b", "a%20", &"x".repeat(513)] {
            assert!(answers.offer_http(wrong, "x").is_err(), "{wrong}");
        }
    }

    #[test]
    fn challenge_answers_end_with_order() {
        let (answers, provider) = (ChallengeAnswers::default(), rustls::crypto::ring::default_provider());
        assert!(answers.offer_tls("a.test", &[1; 31], &provider).is_err());
        let offered = answers.offer_tls("a.test", &[1; 32], &provider).expect("a certificate");
        assert!(answers.of_name(Some("A.test")).is_some());
        assert!(answers.of_name(Some("b.test")).is_none() && answers.of_name(None).is_none());
        drop(offered);
        assert!(answers.of_name(Some("a.test")).is_none());
    }

    #[test]
    fn check_offers_one_protocol() {
        let is_check = |protocols: &[&'static [u8]]| is_only_acme(Some(protocols.iter().copied()));
        assert!(is_check(&[ACME_PROTOCOL]));
        assert!(!is_check(&[]) && !is_check(&[b"h2"]) && !is_check(&[ACME_PROTOCOL, b"h2"]));
        assert!(!is_only_acme(None::<std::iter::Empty<&[u8]>>));
    }
}
