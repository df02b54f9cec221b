//! Why there is no certificate, and what helps.
//!
//! Owns: the kinds of failures, told from the errors of the client and of the authority, and their remedies.

use std::time::Duration;

use instant_acme::Error;
use serde::{Deserialize, Serialize};

/// The longest text of an authority that is shown. *Units*: characters.
const TEXT_MAX: usize = 400;

/// What kind of failure it is. The remedy depends on it. Its name is in the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FailureKind {
    /// The authority does not answer, or not as one.
    Unreachable,
    /// The account cannot be made, read or used.
    Account,
    /// The authority has forgotten the account.
    AccountGone,
    /// The authority allows this account no more orders for a while, whatever the name is.
    AccountLimited,
    /// The authority did not get the right answer when it checked the name.
    Check,
    /// The authority has given too many certificates, or has seen too many failures.
    RateLimited,
    /// The authority gives no certificate for this name.
    Refused,
    /// The certificate's time does not suit the clock of this machine.
    Clock,
    /// A file in the state directory cannot be used.
    File,
    /// A file in the state directory cannot be read now. What is in it is not known, so nothing is ordered.
    Unreadable,
    /// Nothing can be written in the state directory, and the process has just started.
    Unwritable,
    /// The process ended while it ordered.
    Interrupted,
}

/// Why there is no certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderFailure {
    pub kind: FailureKind,
    /// What is wrong, as a part of a sentence.
    pub what: String,
    /// The pause that the authority asks for.
    pub pause: Option<Duration>,
}

impl OrderFailure {
    pub fn new(kind: FailureKind, what: impl Into<String>) -> OrderFailure {
        let what: String = what.into();
        let shown = what.chars().map(|c| if c.is_control() { ' ' } else { c });
        OrderFailure { kind, what: shown.take(TEXT_MAX).collect(), pause: None }
    }

    /// The failure of a new order. A refusal for too many requests that does not name the name is one of the account.
    pub fn of_new_order(error: Error, name: &str) -> OrderFailure {
        let is_of_name = matches!(&error, Error::Api(problem) if is_about(&problem.to_string(), name));
        OrderFailure::from(error).of_account(!is_of_name)
    }

    /// The failure of a new account.
    pub fn of_new_account(error: Error) -> OrderFailure {
        OrderFailure::from(error).of_account(true)
    }

    fn of_account(mut self, is_of_account: bool) -> OrderFailure {
        if is_of_account && self.kind == FailureKind::RateLimited {
            self.kind = FailureKind::AccountLimited;
        }
        self
    }

    /// Whether it is no matter of one name: every other order would fail as well.
    pub fn is_of_all(&self) -> bool {
        matches!(self.kind, FailureKind::Unreachable | FailureKind::Account | FailureKind::AccountGone)
    }

    /// Whether also a reload does not hasten the next order: the authority has asked for a pause, or another
    /// certificate would be of no use either.
    pub fn is_to_wait(&self) -> bool {
        self.pause.is_some() || self.is_limited() || matches!(self.kind, FailureKind::Clock | FailureKind::Unwritable)
    }

    /// Whether the authority has refused for too many requests.
    pub fn is_limited(&self) -> bool {
        matches!(self.kind, FailureKind::RateLimited | FailureKind::AccountLimited)
    }

    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self.kind {
            FailureKind::Unreachable => {
                "see whether this machine reaches the authority and has the right time; it is tried again by itself"
            }
            FailureKind::Account | FailureKind::AccountGone => {
                "see account.json in `state` and the authority's terms; without that file an account is made"
            }
            FailureKind::Check => {
                "let the name lead to this machine, and port 80 (for tls-alpn-01: 443) to a listener; it is tried again \
                 by itself, and at once after a reload, which helps once in 15 minutes"
            }
            FailureKind::RateLimited | FailureKind::AccountLimited => {
                "wait; the authority allows only so many certificates and failures in a time"
            }
            FailureKind::Refused => "leave the name out of `names`, or name a file for it in [[tls.certificate]]",
            FailureKind::Clock => "set the clock of this machine",
            FailureKind::File => "mend or remove the file; a certificate is ordered in its place",
            FailureKind::Unreadable => {
                "let the user that the proxy runs as read the file, or remove it: then another one is ordered or made; \
                 it is read again by itself"
            }
            FailureKind::Unwritable => {
                "free space there, let the user that the proxy runs as write there, or remove a file of another \
                 version; it is tried again by itself"
            }
            FailureKind::Interrupted => {
                "see in the log why the process ended; it is tried again by itself, and at once after a reload"
            }
        }
    }
}

/// An error of the connection to the authority.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConnectionError(pub String);

impl From<Error> for OrderFailure {
    fn from(error: Error) -> OrderFailure {
        let kind = match &error {
            Error::Api(problem) => kind_of(problem.r#type.as_deref().unwrap_or_default()),
            Error::Other(inner) if inner.is::<ConnectionError>() => FailureKind::Unreachable,
            Error::KeyRejected => FailureKind::Account,
            Error::Timeout(_) => FailureKind::Check,
            Error::Str(_) | Error::Unsupported(_) => FailureKind::Refused,
            _ => FailureKind::Unreachable,
        };
        let what = match &error {
            Error::Api(problem) => problem.to_string().trim_start_matches("API error: ").to_owned(),
            Error::Json(error) => format!("the authority's answer is not one of ACME: {error}"),
            other => other.to_string(),
        };
        OrderFailure::new(kind, what)
    }
}

/// The kind of a problem that an authority names (RFC 8555, section 6.7).
fn kind_of(problem_type: &str) -> FailureKind {
    match problem_type.strip_prefix("urn:ietf:params:acme:error:").unwrap_or_default() {
        "rateLimited" => FailureKind::RateLimited,
        "accountDoesNotExist" => FailureKind::AccountGone,
        "externalAccountRequired"
        | "invalidContact"
        | "unsupportedContact"
        | "userActionRequired"
        | "badPublicKey"
        | "badSignatureAlgorithm" => FailureKind::Account,
        "connection" | "dns" | "incorrectResponse" | "tls" | "unauthorized" => FailureKind::Check,
        "badNonce" | "serverInternal" | "" => FailureKind::Unreachable,
        _ => FailureKind::Refused,
    }
}

/// Whether a refusal for too many requests is about this name: it names the name or a domain that it is in, or the set
/// of names of the order.
fn is_about(text: &str, name: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut domains = std::iter::successors(Some(name), |&domain| parent_of(domain));
    text.contains("exact set") || domains.any(|domain| text.contains(domain))
}

/// The domain that a name is in; `None` if that is a top-level domain.
fn parent_of(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, parent)| parent).filter(|parent| parent.contains('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(detail: &str) -> Error {
        let kind = "urn:ietf:params:acme:error:rateLimited";
        let problem = serde_json::json!({ "type": kind, "detail": detail, "status": 429 });
        Error::Api(serde_json::from_value(problem).expect("a problem"))
    }

    #[test]
    fn problems_have_kinds() {
        let kind = |name: &str| kind_of(&format!("urn:ietf:params:acme:error:{name}"));
        assert_eq!(kind("rateLimited"), FailureKind::RateLimited);
        assert_eq!(kind("accountDoesNotExist"), FailureKind::AccountGone);
        assert_eq!(kind("invalidContact"), FailureKind::Account);
        assert_eq!((kind("dns"), kind("rejectedIdentifier")), (FailureKind::Check, FailureKind::Refused));
        assert_eq!((kind_of(""), kind_of("about:blank")), (FailureKind::Unreachable, FailureKind::Unreachable));
    }

    #[test]
    fn limits_are_of_name_or_account() {
        for (detail, kind) in [
            ("too many certificates (50) already issued for \"A.test\" in the last 168h0m0s", FailureKind::RateLimited),
            ("too many failed authorizations (5) for \"www.a.test\" in the last 1h0m0s", FailureKind::RateLimited),
            ("too many certificates (5) already issued for this exact set of identifiers", FailureKind::RateLimited),
            ("too many new orders (300) from this account in the last 3h0m0s", FailureKind::AccountLimited),
            ("too many failed authorizations (5) for \"b.test\"", FailureKind::AccountLimited),
            ("", FailureKind::AccountLimited),
        ] {
            assert_eq!(OrderFailure::of_new_order(limited(detail), "www.a.test").kind, kind, "{detail}");
            assert_eq!(OrderFailure::of_new_account(limited(detail)).kind, FailureKind::AccountLimited);
            assert_eq!(OrderFailure::from(limited(detail)).kind, FailureKind::RateLimited);
        }
        let other = OrderFailure::of_new_order(Error::Str("x"), "www.a.test");
        assert_eq!(other.kind, FailureKind::Refused);
    }

    #[test]
    fn asked_pause_outlasts_a_reload() {
        let failure = |kind, pause| OrderFailure { pause, ..OrderFailure::new(kind, "x") };
        let pause = Some(Duration::from_secs(5));
        assert!(failure(FailureKind::RateLimited, None).is_to_wait() && failure(FailureKind::Clock, None).is_to_wait());
        for kind in [FailureKind::Unreachable, FailureKind::Account, FailureKind::Check, FailureKind::Refused] {
            assert!(failure(kind, pause).is_to_wait() && !failure(kind, None).is_to_wait(), "{kind:?}");
        }
    }

    #[test]
    fn texts_of_authorities_are_bounded() {
        let failure = OrderFailure::new(FailureKind::Refused, "a\u{1b}[2J\n".repeat(1000));
        assert!(failure.what.len() <= TEXT_MAX && !failure.what.chars().any(char::is_control));
        let error = Error::Other(Box::new(ConnectionError("refused".to_owned())));
        assert_eq!(OrderFailure::from(error), OrderFailure::new(FailureKind::Unreachable, "refused"));
    }
}
