//! Why a call of a client failed.

use nectary_block::DeviceErrorKind;

use crate::protocol::{RefusalCode, ServerRefusal};

/// A failed call. Nothing was changed, unless a device failed in the middle of a write.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server refused the call.
    #[error(transparent)]
    Refused(#[from] ServerRefusal),
    /// The disk failed.
    #[error(transparent)]
    Device(#[from] nectary_block::Error),
    /// The server cannot be reached, or is not the right one.
    #[error("{server}: {problem}")]
    Server {
        /// The address of the server.
        server: String,
        /// The problem, and its remedy.
        problem: String,
    },
    /// The session has ended: uncommitted data is lost, and every open file fails.
    #[error("the session has ended: {reason}")]
    Ended {
        /// Who ended the session, and why.
        reason: String,
        /// Whether the server may have received the call and done it.
        may_be_done: bool,
    },
}

impl Error {
    /// Makes a refusal by the client itself.
    pub(crate) fn posix(errno: i32) -> Error {
        Error::Refused(ServerRefusal::posix(errno))
    }

    /// Whether the server requires the operation to be split.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Error::Refused(failure) if failure.code == RefusalCode::Limit && failure.errno == libc::EFBIG)
    }

    /// Whether the call failed because the session had ended.
    pub fn is_end(&self) -> bool {
        match self {
            Error::Ended { .. } => true,
            Error::Refused(failure) => failure.code == RefusalCode::Ended,
            _ => false,
        }
    }

    /// Whether the session had ended before the call was done, so that the call can be repeated in another session.
    pub fn is_end_before(&self) -> bool {
        self.is_end() && !matches!(self, Error::Ended { may_be_done: true, .. })
    }

    /// Makes the error of a call that has changed something before it failed: it must not be repeated in another session.
    pub(crate) fn after_change(self) -> Error {
        match self {
            Error::Ended { reason, .. } => Error::Ended { reason, may_be_done: true },
            Error::Refused(failure) if failure.code == RefusalCode::Ended => {
                Error::Ended { reason: failure.to_string(), may_be_done: true }
            }
            other => other,
        }
    }

    /// Returns the error number for the caller of the system call.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Refused(failure) => match (failure.code, failure.errno) {
                (_, errno) if errno > 0 => errno,
                (RefusalCode::Full, _) => libc::ENOSPC,
                (RefusalCode::Stale, _) => libc::ESTALE,
                (RefusalCode::Conflict, _) => libc::EAGAIN,
                (RefusalCode::Limit, _) => libc::EAGAIN,
                _ => libc::EIO,
            },
            Error::Device(error) if error.kind == DeviceErrorKind::Full => libc::ENOSPC,
            Error::Device(_) | Error::Server { .. } | Error::Ended { .. } => libc::EIO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call that has cut a file, and then finds its session ended, must not be made again in the next one.
    #[test]
    fn partly_done_call_is_not_repeated() {
        let ended = Error::Ended { reason: "the lease was over".to_owned(), may_be_done: false };
        let refused = Error::Refused(ServerRefusal { code: RefusalCode::Ended, ..ServerRefusal::posix(libc::EIO) });
        for error in [ended, refused] {
            assert!(error.is_end() && error.is_end_before());
            let error = error.after_change();
            assert!(error.is_end() && !error.is_end_before(), "{error}");
        }
        let other = Error::posix(libc::ENOSPC).after_change();
        assert!(!other.is_end() && other.errno() == libc::ENOSPC);
    }
}
