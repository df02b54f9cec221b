//! Why there is no certificate, and what helps.
//!
//! Owns: the kinds of failures, told from the errors of the client and of the authority, and their remedies.

use std::time::Duration;

use instant_acme::Error;

/// The longest text of an authority that is shown. *Units*: characters.
const TEXT_MAX: usize = 400;

/// What kind of failure it is. The remedy depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// The authority does not answer, or not as one.
    Unreachable,
    /// The account cannot be made, read or used.
    Account,
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

    /// Whether it is no matter of one name: every other order would fail as well.
    pub fn is_of_all(&self) -> bool {
        matches!(self.kind, FailureKind::Unreachable | FailureKind::Account)
    }

    /// Whether also a reload does not hasten the next order: the authority has asked for a pause, or another
    /// certificate would be of no use either.
    pub fn is_to_wait(&self) -> bool {
        self.pause.is_some() || matches!(self.kind, FailureKind::RateLimited | FailureKind::Clock)
    }

    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self.kind {
            FailureKind::Unreachable => {
                "see whether this machine reaches the authority and has the right time; it is tried again by itself"
            }
            FailureKind::Account => {
                "see account.json in `state` and the authority's terms; without that file an account is made"
            }
            FailureKind::Check => {
                "let the name lead to this machine, and port 80 (for tls-alpn-01: 443) to a listener; it is tried again \
                 by itself, and at once after a reload"
            }
            FailureKind::RateLimited => "wait; the authority allows only so many certificates and failures in a time",
            FailureKind::Refused => "leave the name out of `names`, or name a file for it in [[tls.certificate]]",
            FailureKind::Clock => "set the clock of this machine",
            FailureKind::File => "mend or remove the file; a certificate is ordered in its place",
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
        "accountDoesNotExist"
        | "externalAccountRequired"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_have_kinds() {
        let kind = |name: &str| kind_of(&format!("urn:ietf:params:acme:error:{name}"));
        assert_eq!(kind("rateLimited"), FailureKind::RateLimited);
        assert_eq!(kind("accountDoesNotExist"), FailureKind::Account);
        assert_eq!((kind("dns"), kind("rejectedIdentifier")), (FailureKind::Check, FailureKind::Refused));
        assert_eq!((kind_of(""), kind_of("about:blank")), (FailureKind::Unreachable, FailureKind::Unreachable));
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
