//! The errors that prevent a recording or end it early.
//!
//! Owns: the error type of the recorder. Kinds differ because their remedies differ; [`Error::remedy`] returns the
//! remedy.

use std::io;
use std::path::PathBuf;

/// A failure of a recording.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The options contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The file of the trace exists already.
    #[error("{}: there is such a file already", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The trace cannot be written. Either the command was not started, or it ran to its end without further recording.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The command cannot be started.
    #[error("{}: {source}", program.display())]
    Command {
        /// The program.
        program: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The kernel refuses something that the recorder needs.
    #[error("{what}: {source}")]
    Refused {
        /// The refused request.
        what: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// Another program already watches the system calls of this process and its children.
    #[error("another program watches the system calls of this one already (seccomp allows one at a time)")]
    Watched,
    /// The recorder does not support this architecture.
    #[error("recording works on Linux on x86-64 and on 64-bit ARM alone")]
    Machine,
    /// An operation of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The result type of the recorder's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The remedy for the user.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Error::Usage(_) | Error::Io { .. } | Error::Machine => None,
            Error::Exists { .. } => Some("remove it, give another one with -o, or overwrite it with --force"),
            Error::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free space there, or write elsewhere with -o")
            }
            Error::Write { .. } => Some("see whether this user may write there, or write elsewhere with -o"),
            Error::Command { .. } => Some("check its name and its permissions"),
            Error::Refused { .. } => Some(
                "recording needs Linux 5.9 or later with seccomp and its user notification; in a container, allow the \
                 calls seccomp, pidfd_open and pidfd_getfd (with Docker: --security-opt seccomp=unconfined)",
            ),
            Error::Watched => Some(
                "record outside of it: this happens inside `nectary trace record` and in some containers; it cannot be nested",
            ),
        }
    }
}
