//! The errors of a store.
//!
//! Owns: the crate's one error type. A damaged object is not an error: the object becomes a miss, and a counter counts
//! it.

use std::sync::Arc;

use nectary_block as block;

/// The kind of failure; each kind has its own remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreErrorKind {
    /// There is no store where one was expected.
    Absent,
    /// The device has no store, a store of another version, or a store whose damage cannot be tolerated.
    Corrupt,
    /// The operation is not possible now: a budget is used up, or another process owns the store.
    Busy,
    /// The request is outside the bounds of a store.
    Invalid,
    /// The device failed.
    Io,
    /// The store takes no more writes after an earlier failure, or is closed.
    Stopped,
}

/// A failed operation on a store: its kind, and a message that says what failed, where, and what to do.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: StoreErrorKind,
    /// The message for the user: what failed and where, what was expected and what was found, and what the user can do.
    pub message: String,
    /// The error of the device, if the device failed.
    #[source]
    device: Option<Arc<block::Error>>,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), device: None }
    }

    /// The kind of the device's error, if the device failed. A device distinguishes more kinds of errors than
    /// [`ErrorKind`] does.
    pub fn device_kind(&self) -> Option<block::DeviceErrorKind> {
        self.device.as_ref().map(|error| error.kind)
    }

    /// The same error, with `place` before its message.
    pub(crate) fn at(self, place: &str) -> Error {
        Error { message: format!("{place}: {}", self.message), ..self }
    }

    /// The same error, with the message of another one behind its own.
    pub(crate) fn and(self, other: &Error) -> Error {
        Error { message: format!("{}; {}", self.message, other.message), ..self }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(StoreErrorKind::Invalid, message)
    }

    pub(crate) fn stopped(message: impl Into<String>) -> Error {
        Error::new(StoreErrorKind::Stopped, message)
    }
}

impl From<block::Error> for Error {
    fn from(error: block::Error) -> Error {
        let kind = match error.kind {
            block::DeviceErrorKind::Absent => StoreErrorKind::Absent,
            block::DeviceErrorKind::Busy => StoreErrorKind::Busy,
            block::DeviceErrorKind::Invalid | block::DeviceErrorKind::Unsupported => StoreErrorKind::Invalid,
            block::DeviceErrorKind::Latched => StoreErrorKind::Stopped,
            block::DeviceErrorKind::Full | block::DeviceErrorKind::TimedOut | block::DeviceErrorKind::Io => {
                StoreErrorKind::Io
            }
        };
        Error { kind, message: error.to_string(), device: Some(Arc::new(error)) }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    /// A device's error stays the source with its kind, also where a place is added.
    #[test]
    fn device_error_stays_as_source() {
        let failed =
            block::Error::new(block::DeviceErrorKind::TimedOut, "ram:", block::DeviceOperation::Read, "no answer");
        let error = Error::from(failed.clone()).at("span 1");
        assert_eq!((error.kind, error.device_kind()), (StoreErrorKind::Io, Some(block::DeviceErrorKind::TimedOut)));
        assert!(error.message.starts_with("span 1: ") && error.message.contains("no answer"), "{error}");
        assert_eq!(error.source().map(ToString::to_string), Some(failed.to_string()));
        assert!(Error::invalid("of the caller").source().is_none());
    }
}
