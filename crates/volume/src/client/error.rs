//! Why a call of a client failed.

use nectary_block::ErrorKind;

use crate::protocol::{Code, Failure};

/// A failed call. Nothing was changed, except where a device failed in the middle of a write.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server refused.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The disk failed.
    #[error(transparent)]
    Device(#[from] nectary_block::Error),
    /// There is no server, or not the right one.
    #[error("{server}: {problem}")]
    Server {
        /// Its address.
        server: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The session ended: what was written and not committed is lost, and every open file fails.
    #[error("the session has ended: {reason}")]
    Ended {
        /// Who ended it, and why.
        reason: String,
        /// The server may have had the call, and done it.
        may_be_done: bool,
    },
}

impl Error {
    /// A refusal of the client itself.
    pub(crate) fn posix(errno: i32) -> Error {
        Error::Refused(Failure::posix(errno))
    }

    /// Whether the server wants an operation in parts.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Error::Refused(failure) if failure.code == Code::Limit && failure.errno == libc::EFBIG)
    }

    /// Whether the session had ended.
    pub fn is_end(&self) -> bool {
        match self {
            Error::Ended { .. } => true,
            Error::Refused(failure) => failure.code == Code::Ended,
            _ => false,
        }
    }

    /// Whether the session had ended before the call was done: another session may do it.
    pub fn is_end_before(&self) -> bool {
        self.is_end() && !matches!(self, Error::Ended { may_be_done: true, .. })
    }

    /// The number for the caller of a system call.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Refused(failure) => match (failure.code, failure.errno) {
                (_, errno) if errno > 0 => errno,
                (Code::Full, _) => libc::ENOSPC,
                (Code::Stale, _) => libc::ESTALE,
                (Code::Conflict, _) => libc::EAGAIN,
                (Code::Limit, _) => libc::EAGAIN,
                _ => libc::EIO,
            },
            Error::Device(error) if error.kind == ErrorKind::Full => libc::ENOSPC,
            Error::Device(_) | Error::Server { .. } | Error::Ended { .. } => libc::EIO,
        }
    }
}
