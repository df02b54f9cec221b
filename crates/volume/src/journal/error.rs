//! Errors of reading or writing the journal, and their remedies.

use crate::format::FormatError;

/// A failure of the journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device returned an error.
    #[error(transparent)]
    Device(#[from] nectary_block::Error),
    /// A value exceeds a bound of the format. Nothing was written.
    #[error("{0}")]
    Bounds(FormatError),
    /// The contents of the disk contradict each other.
    #[error("block {block}: {what}; the volume is damaged: run `nectary volume check`")]
    Damaged {
        /// The position of the damage. *Units*: blocks.
        block: u64,
        /// The contradiction.
        what: String,
    },
    /// The device or volume is not suitable; the text says why, and what to do.
    #[error("{0}")]
    Refused(String),
    /// Another server leads, and is alive.
    #[error("server {server} on {host} serves the volume; stop it first")]
    Led {
        /// The number of that server.
        server: u32,
        /// The host of that server.
        host: String,
    },
    /// Leadership is lost, or the lease ended and cannot be renewed: nothing more is acknowledged.
    #[error("leadership of epoch {epoch} is lost: {why}; start the server again")]
    Lost {
        /// The epoch that this process led.
        epoch: u64,
        /// The event by which the loss was noticed.
        why: String,
    },
    /// The journal has no next segment. Nothing was written.
    #[error("the journal has no segment to go on in; give it one")]
    NoSegment,
    /// An earlier failure left it unknown what is stored, so nothing more is accepted.
    #[error("the journal stopped after an earlier failure ({0}); start the server again")]
    Stopped(String),
}

impl Error {
    pub(super) fn damaged(block: u64, what: impl Into<String>) -> Error {
        Error::Damaged { block, what: what.into() }
    }
}
