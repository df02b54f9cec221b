//! Errors between a device and the kernel.
//!
//! Owns: the one error type of the crate. Each kind has a different remedy, and most messages say what to do.

use std::io;
use std::path::PathBuf;

use nectary_block::DeviceErrorKind;
use nectary_fuse::Errno;

/// A failure to attach or to detach.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or this container has no FUSE.
    #[error("/dev/fuse: {source}; load the kernel's module (`modprobe fuse`), or give the container /dev/fuse")]
    NoFuse {
        /// WaitReason `/dev/fuse` cannot be opened.
        source: io::Error,
    },
    /// The kernel or this container has no loop devices.
    #[error("{path}: {source}; load the kernel's module (`modprobe loop`), or give the container {path}")]
    NoLoop {
        /// The file that cannot be opened.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The process may not mount or make loop devices.
    #[error("{what}: {source}; run it as root (it needs CAP_SYS_ADMIN)")]
    NotPermitted {
        /// The operation that was refused.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The device itself failed.
    #[error(transparent)]
    Device(#[from] nectary_block::Error),
    /// The session of a volume failed.
    #[error(transparent)]
    Volume(nectary_volume::client::Error),
    /// Another user, such as a mount or a volume manager, has the block device open exclusively.
    #[error("{path} is in use: {users}; unmount or close it first")]
    InUse {
        /// The block device.
        path: PathBuf,
        /// A description of its users, as far as they can be found.
        users: String,
    },
    /// Programs use a volume that has no connection to its server; they may wait for it.
    #[error("{path} is in use, and programs may wait for its server, to which there is no connection: {problem}")]
    InUseUnserved {
        /// The directory.
        path: PathBuf,
        /// Why there is no connection.
        problem: String,
    },
    /// The kernel ended the connection while the block device was attached.
    #[error("the kernel ended the FUSE connection of {path}: {problem}; attach it again, which releases what is left")]
    Ended {
        /// The block device.
        path: PathBuf,
        /// The observed problem.
        problem: String,
    },
    /// Data that the kernel has cached for the block device cannot be written.
    #[error("{path}: what the kernel holds for it cannot be written: {source}")]
    WriteBack {
        /// The block device.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Os {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Error {
    /// Whether something uses what was to be detached or unmounted.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Error::InUse { .. } | Error::InUseUnserved { .. })
    }

    /// Makes the error of opening a file that may be missing or may need root.
    pub(crate) fn opening(what: &'static str, source: io::Error, missing: fn(io::Error) -> Error) -> Error {
        match source.kind() {
            io::ErrorKind::PermissionDenied => Error::NotPermitted { what, source },
            _ => missing(source),
        }
    }

    /// Makes the error of a system call; the error number decides its kind.
    pub(crate) fn os(what: &'static str, source: io::Error) -> Error {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Error::NotPermitted { what, source },
            _ => Error::Os { what: what.to_owned(), source },
        }
    }
}

/// The kernel's error number for a device's kind of error.
pub(crate) fn errno(kind: DeviceErrorKind) -> Errno {
    Errno::new(match kind {
        DeviceErrorKind::Absent => libc::ENXIO,
        DeviceErrorKind::Busy => libc::EBUSY,
        DeviceErrorKind::Invalid => libc::EINVAL,
        DeviceErrorKind::Unsupported => libc::EOPNOTSUPP,
        DeviceErrorKind::Full => libc::ENOSPC,
        DeviceErrorKind::TimedOut => libc::ETIMEDOUT,
        DeviceErrorKind::Io | DeviceErrorKind::Latched => libc::EIO,
    })
}

impl From<nectary_fuse::Error> for Error {
    fn from(error: nectary_fuse::Error) -> Error {
        match error {
            nectary_fuse::Error::NoFuse { source } => Error::NoFuse { source },
            nectary_fuse::Error::NotPermitted { what, source } => Error::NotPermitted { what, source },
            nectary_fuse::Error::Os { what, source } => Error::Os { what: what.to_owned(), source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_forbidden_have_remedies() {
        let missing = |source| Error::NoFuse { source };
        let text = |number| Error::opening("/dev/fuse", io::Error::from_raw_os_error(number), missing).to_string();
        assert!(text(libc::ENOENT).contains("modprobe fuse"), "{}", text(libc::ENOENT));
        assert!(text(libc::EACCES).contains("run it as root"), "{}", text(libc::EACCES));
    }
}
