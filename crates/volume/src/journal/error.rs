//! Why the journal cannot be read or written, and what to do about it.

use crate::format::FormatError;

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] nectary_block::Error),
    /// Something is beyond a bound of the format. Nothing was written.
    #[error("{0}")]
    Bounds(FormatError),
    /// The contents of the disk contradict each other.
    #[error("block {block}: {what}; the volume is damaged: run `nectary volume check`")]
    Damaged {
        /// Where.
        block: u64,
        /// What is wrong.
        what: String,
    },
    /// The device or volume is not fit for this; the text says why and what to do.
    #[error("{0}")]
    Refused(String),
    /// Another server leads, and is alive.
    #[error("server {server} on {host} serves the volume; stop it first")]
    Led {
        /// Its number.
        server: u32,
        /// Its host.
        host: String,
    },
    /// Leadership is lost, or the lease ended and cannot be renewed: nothing more is acknowledged.
    #[error("leadership of epoch {epoch} is lost: {why}; start the server again")]
    Lost {
        /// The epoch that was led.
        epoch: u64,
        /// How it was noticed.
        why: String,
    },
    /// There is no next segment. Nothing was written.
    #[error("the journal has no segment to go on in; give it one")]
    NoSegment,
    /// After an earlier failure it is unknown what is stored.
    #[error("the journal stopped after an earlier failure ({0}); start the server again")]
    Stopped(String),
}

impl Error {
    pub(super) fn damaged(block: u64, what: impl Into<String>) -> Error {
        Error::Damaged { block, what: what.into() }
    }
}
