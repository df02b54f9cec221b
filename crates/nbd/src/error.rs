//! The errors of a client and a server, except the errors of requests to an open device.
//!
//! Owns: the one error type of the crate. A failed request returns an error of the device instead
//! (`nectary_block::Error`). Each kind has its own remedy.

use std::fmt;
use std::io;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NbdErrorKind {
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
    pub kind: NbdErrorKind,
    /// The URL, address or file.
    pub place: String,
    /// The expected and the found result.
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: NbdErrorKind, place: impl Into<String>, message: impl Into<String>) -> Error {
        Error { kind, place: place.into(), message: message.into() }
    }

    /// Converts an error of the operating system. Its kind follows from the system's error.
    pub(crate) fn from_io(error: &io::Error, place: &str, doing: &str) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => NbdErrorKind::Absent,
            io::ErrorKind::AddrInUse => NbdErrorKind::Busy,
            io::ErrorKind::TimedOut => NbdErrorKind::TimedOut,
            io::ErrorKind::InvalidData => NbdErrorKind::Protocol,
            _ => NbdErrorKind::Io,
        };
        Error::new(kind, place, format!("{doing}: {error}"))
    }

    /// The kind of device error that corresponds to this error.
    pub fn device_kind(&self) -> nectary_block::DeviceErrorKind {
        match self.kind {
            NbdErrorKind::Absent => nectary_block::DeviceErrorKind::Absent,
            NbdErrorKind::Busy => nectary_block::DeviceErrorKind::Busy,
            NbdErrorKind::Invalid => nectary_block::DeviceErrorKind::Invalid,
            NbdErrorKind::Unsupported => nectary_block::DeviceErrorKind::Unsupported,
            NbdErrorKind::TimedOut => nectary_block::DeviceErrorKind::TimedOut,
            NbdErrorKind::Refused | NbdErrorKind::Protocol | NbdErrorKind::Tls | NbdErrorKind::Io => {
                nectary_block::DeviceErrorKind::Io
            }
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
