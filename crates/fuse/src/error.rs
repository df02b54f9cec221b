//! The errors between a file system and the kernel.
//!
//! Owns: the error of making a mount, and the kernel's error number of a failed request.

use std::io;

/// A mount that could not be made, or a connection that broke.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or this container has no FUSE.
    #[error("/dev/fuse: {source}; load the kernel's module (`modprobe fuse`), or give the container /dev/fuse")]
    NoFuse {
        /// Why it cannot be opened.
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
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
}

impl Error {
    /// An error of the operating system, distinguished by its number.
    pub(crate) fn os(what: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { what, source },
            _ => Error::Os { what, source },
        }
    }
}

/// An error number, as the kernel returns it to the calling program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(i32);

impl Errno {
    /// An error by its number in `errno.h`; any other number becomes `EIO`.
    pub fn new(number: i32) -> Errno {
        // The kernel accepts no other numbers.
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
