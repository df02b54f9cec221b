//! The errors of a client and a server, except the errors of requests to an open device.
//!
//! Owns: the one error type of the crate. A failed request returns an error of the device instead
//! (`nectary_block::Error`). Each kind has its own remedy.

use std::fmt;
use std::io;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Nothing listens at the address, or the server has no such export.
    Absent,
    /// Another process listens at the address.
    Busy,
    /// The URL, a name or an option is not valid.
    Invalid,
    /// The server refuses the client by its policy, or because it requires TLS.
    Refused,
    /// The other side breaks the rules of the protocol document.
    Protocol,
    /// The server lacks a needed feature.
    Unsupported,
    /// The other side did not answer in time.
    TimedOut,
    /// A certificate, a key or the TLS handshake failed.
    Tls,
    /// A call of the operating system failed.
    Io,
}

/// A failure: what failed, where, and the remedy if it is known.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: ErrorKind,
    /// The URL, address or file.
    pub place: String,
    /// The expected and the found result.
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: ErrorKind, place: impl Into<String>, message: impl Into<String>) -> Error {
        Error { kind, place: place.into(), message: message.into() }
    }

    /// Converts an error of the operating system. Its kind follows from the system's error.
    pub(crate) fn from_io(error: &io::Error, place: &str, doing: &str) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ErrorKind::Absent,
            io::ErrorKind::AddrInUse => ErrorKind::Busy,
            io::ErrorKind::TimedOut => ErrorKind::TimedOut,
            io::ErrorKind::InvalidData => ErrorKind::Protocol,
            _ => ErrorKind::Io,
        };
        Error::new(kind, place, format!("{doing}: {error}"))
    }

    /// The kind of device error that corresponds to this error.
    pub fn device_kind(&self) -> nectary_block::ErrorKind {
        match self.kind {
            ErrorKind::Absent => nectary_block::ErrorKind::Absent,
            ErrorKind::Busy => nectary_block::ErrorKind::Busy,
            ErrorKind::Invalid => nectary_block::ErrorKind::Invalid,
            ErrorKind::Unsupported => nectary_block::ErrorKind::Unsupported,
            ErrorKind::TimedOut => nectary_block::ErrorKind::TimedOut,
            ErrorKind::Refused | ErrorKind::Protocol | ErrorKind::Tls | ErrorKind::Io => nectary_block::ErrorKind::Io,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
