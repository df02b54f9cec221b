//! The errors of an experiment.
//!
//! Owns: the error type of the crate. Each kind of error has a different remedy.

use std::fmt::Display;

/// The kind of failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExperimentErrorKind {
    /// The options request something that the experiment cannot do.
    Usage,
    /// The experiment needs a program, a privilege or a kernel feature that is missing.
    Missing,
    /// A device is in use elsewhere: mounted, or open in another process.
    Busy,
    /// The bytes read differ from the bytes written: the run is void.
    Void,
    /// A step failed.
    Failed,
}

/// The error that ends an experiment: what failed, where, and why.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: ExperimentErrorKind,
    /// A description of the failure.
    pub message: String,
}

impl Error {
    /// Makes an error.
    pub fn new(kind: ExperimentErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// Makes the error of a failed step: `what` is the step, `how` the failure.
    pub fn failed(what: impl Display, how: impl Display) -> Error {
        Error::new(ExperimentErrorKind::Failed, format!("{what}: {how}"))
    }

    /// Makes the error of a failed system call, with the text for `errno`.
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
            | nectary_attach::Error::NotPermitted { .. } => ExperimentErrorKind::Missing,
            _ => ExperimentErrorKind::Failed,
        };
        Error::new(kind, format!("a disk cannot be attached: {error}"))
    }
}
