//! The errors of mounts and of requests.
//!
//! Owns: the error of a mount that could not be made, and the error number with which a request fails.

use std::io;

/// The error of a mount that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel has no FUSE, or this container has no `/dev/fuse`.
    #[error("/dev/fuse: {source}; load the kernel's module (`modprobe fuse`), or give the container /dev/fuse")]
    NoFuse {
        /// The reason why `/dev/fuse` cannot be opened.
        source: io::Error,
    },
    /// The process may not mount.
    #[error("{what}: {source}; run it as root (it needs CAP_SYS_ADMIN)")]
    NotPermitted {
        /// What was refused.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The operating system refused a call.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Makes the error for a failed call. The variant depends on the system's error number.
    pub(crate) fn os(what: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { what, source },
            _ => Error::Os { what, source },
        }
    }
}

/// An error number that the kernel returns to the calling program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// Makes an error from a number of `errno.h`. A number outside 1 to 511 becomes `EIO`.
    pub fn new(number: i32) -> Errno {
        // The kernel refuses answers with other numbers.
        Errno(if (1..512).contains(&number) { number } else { libc::EIO })
    }

    /// The number.
    pub fn number(self) -> i32 {
        self.0
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno::new(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
