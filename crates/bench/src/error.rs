//! The errors of an experiment.
//!
//! Owns: the error type of the crate. Kinds differ because their remedies differ.

use std::fmt::Display;

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The experiment cannot do the requested thing.
    Usage,
    /// Something that it needs is missing: a program, a right, a feature of the kernel.
    Missing,
    /// A device is in use elsewhere: mounted, or open in another process.
    Busy,
    /// The bytes read differ from the bytes written: the run is void.
    Void,
    /// A step failed.
    Failed,
}

/// A failed experiment: what failed, where, expected and found.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: ErrorKind,
    /// What went wrong.
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// A failed step: the attempt, and its failure.
    pub fn failed(what: impl Display, how: impl Display) -> Error {
        Error::new(ErrorKind::Failed, format!("{what}: {how}"))
    }

    /// A failed system call, with the last error of the operating system.
    pub(crate) fn os(what: impl Display) -> Error {
        Error::failed(what, std::io::Error::last_os_error())
    }
}

impl From<nectary_store::Error> for Error {
    fn from(error: nectary_store::Error) -> Error {
        Error::failed("the store", error)
    }
}

impl From<nectary_block::Error> for Error {
    fn from(error: nectary_block::Error) -> Error {
        Error::failed("the device", error)
    }
}

impl From<nectary_attach::Error> for Error {
    fn from(error: nectary_attach::Error) -> Error {
        let kind = match &error {
            nectary_attach::Error::NoFuse { .. }
            | nectary_attach::Error::NoLoop { .. }
            | nectary_attach::Error::NotPermitted { .. } => ErrorKind::Missing,
            _ => ErrorKind::Failed,
        };
        Error::new(kind, format!("a disk cannot be attached: {error}"))
    }
}
