//! The reasons why an exchange with an origin gives no response, and which of them allow a stale response.

use super::BodyFault;
use crate::rules::serve::OriginFailure;
use crate::wire::http1::framing::FramingViolation;

/// The step that took too long if no address accepted a connection.
pub(super) const CONNECTING: &str = "connecting";

/// The step that took too long if a name was not looked up, for which its origin is not to blame.
pub(super) const LOOKUP: &str = "looking up its name";

/// The reason why there is no response.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FetchError {
    /// The connection could not be opened.
    #[error("cannot connect to the origin: {0}")]
    Connect(String),
    /// The client must not reach the origin's addresses through this proxy.
    #[error("cannot connect to the origin: the proxy's own machine is not for its clients")]
    OutOfReach,
    /// The proxy has too many connections to origins.
    #[error("the proxy has too many connections to origins at present")]
    Crowded,
    /// The server has as many connections as it may have.
    #[error("the origin has as many connections as it may have: {0}")]
    Busy(String),
    /// The origin took too long.
    #[error("the origin took too long: {0}")]
    TimedOut(&'static str),
    /// The body of the client's request is bad, so the origin could not answer the request.
    #[error("{0}")]
    Client(BodyFault),
    /// The origin's response is ambiguous or not HTTP.
    #[error("the origin's response is refused: {0}")]
    Refused(FramingViolation),
    /// The connection broke, or the received bytes are not an HTTP response.
    #[error("the origin broke the exchange: {0}")]
    Broken(String),
}

impl FetchError {
    /// The error of an exchange that hyper could not finish, with its cause.
    pub fn of_hyper(error: &hyper::Error) -> FetchError {
        let mut text = error.to_string();
        if let Some(source) = std::error::Error::source(error) {
            text = format!("{text}: {source}");
        }
        FetchError::Broken(text)
    }

    /// Whether no connection could be made, so that nothing of the request was sent.
    pub fn is_of_connecting(&self) -> bool {
        matches!(self, FetchError::Connect(_) | FetchError::TimedOut(CONNECTING))
    }

    /// Whether the origin is not to blame.
    pub fn is_blameless(&self) -> bool {
        matches!(self, FetchError::Client(_) | FetchError::Crowded | FetchError::Busy(_) | FetchError::OutOfReach)
    }

    /// The kind of failure, for the rules about stale responses.
    pub fn failure(&self) -> OriginFailure {
        match self {
            FetchError::Connect(_)
            | FetchError::OutOfReach
            | FetchError::Crowded
            | FetchError::Busy(_)
            | FetchError::TimedOut(_)
            | FetchError::Broken(_) => OriginFailure::Unreachable,
            FetchError::Client(_) | FetchError::Refused(_) => OriginFailure::Error,
        }
    }
}
