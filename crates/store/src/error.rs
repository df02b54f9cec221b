//! What can go wrong in a store.
//!
//! Owns: the crate's one error type. Damage to single objects is not an error: it is a counted miss.

use nectary_block as block;

/// What kind of failure it was; each kind has a remedy of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no store where one was expected.
    Absent,
    /// What is there is not a store, is of another version, or is damaged where a store cannot do without it.
    Corrupt,
    /// It cannot be done now: budgets are used up or another process owns the store.
    Busy,
    /// The request is outside the bounds of what a store takes.
    Invalid,
    /// The device failed.
    Io,
    /// The store takes no more writes after an earlier failure, or is closed.
    Stopped,
}

/// A failed operation on a store: what, where, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: ErrorKind,
    /// What went wrong, where, what was expected and found, and what to do.
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn stopped(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Stopped, message)
    }
}

impl From<block::Error> for Error {
    fn from(error: block::Error) -> Error {
        let kind = match error.kind {
            block::ErrorKind::Absent => ErrorKind::Absent,
            block::ErrorKind::Busy => ErrorKind::Busy,
            block::ErrorKind::Invalid | block::ErrorKind::Unsupported => ErrorKind::Invalid,
            block::ErrorKind::Latched => ErrorKind::Stopped,
            block::ErrorKind::Full | block::ErrorKind::TimedOut | block::ErrorKind::Io => ErrorKind::Io,
        };
        Error::new(kind, error.to_string())
    }
}
