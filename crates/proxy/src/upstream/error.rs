//! Why an exchange with an origin gave no response, and what that means for what is stored.

use super::BodyFault;
use crate::rules::serve::Failure;
use crate::wire::framing::Violation;

/// Why there is no response.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum FetchError {
    /// No connection.
    #[error("cannot connect to the origin: {0}")]
    Connect(String),
    /// It took too long.
    #[error("the origin took too long: {0}")]
    TimedOut(&'static str),
    /// The client's request has no good body, so the origin could not answer it.
    #[error("{0}")]
    Client(BodyFault),
    /// What the origin sent is ambiguous or none of HTTP.
    #[error("the origin's response is refused: {0}")]
    Refused(Violation),
    /// The connection broke, or what came is no response.
    #[error("the origin broke the exchange: {0}")]
    Broken(String),
}

impl FetchError {
    /// What it means for what is stored.
    pub fn failure(&self) -> Failure {
        match self {
            FetchError::Connect(_) | FetchError::TimedOut(_) | FetchError::Broken(_) => Failure::Unreachable,
            FetchError::Client(_) | FetchError::Refused(_) => Failure::Error,
        }
    }
}
