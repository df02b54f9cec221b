//! Why an operation failed and why a device cannot be attached.
//!
//! Owns: the kinds, told apart by what helps.

use thiserror::Error;

/// Why a user's request failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MirrorError {
    /// The donors that are needed did not answer for the time of `patience`. A write may still be done.
    #[error("the donors of block {block} have not answered: see which are reachable with nectary status")]
    Patience {
        /// The first block of the request.
        block: u64,
    },
    /// Every copy of a block is lost.
    #[error("block {block}: every copy is lost; the other blocks can still be read")]
    Lost {
        /// The block.
        block: u64,
    },
    /// No copy of a block has the bytes that were written.
    #[error("block {block}: no donor has the bytes that were written; replace the donors that nectary status names")]
    Corrupt {
        /// The block.
        block: u64,
    },
    /// Another client has attached the device.
    #[error("another client has taken the device over: nothing more can be done with it here")]
    Superseded,
    /// More requests at a time than [`OPERATIONS_MAX`](super::OPERATIONS_MAX).
    #[error("too many requests at a time: wait for one to complete")]
    Busy,
    /// A range that is empty, too long, not of whole blocks, or past the end of the device.
    #[error("offset {offset}, {bytes} bytes: not whole blocks of the device, or too many")]
    Range {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
    },
    /// The device is not attached, or is being detached.
    #[error("the device is not attached")]
    NotAttached,
}

/// Why a device cannot be attached or created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// No donor answered.
    #[error("no donor answered: check their addresses and that they run")]
    Unreachable,
    /// Every donor is empty.
    #[error("no donor has data of this device: it was never created, or all its donors were restarted")]
    Empty,
    /// Too few donors have the device's data.
    #[error("{needed} donors with data of the device are needed and {found} are there; missing: {missing:?}")]
    TooFew {
        /// Donors that are needed.
        needed: usize,
        /// Donors that can be used.
        found: usize,
        /// The positions of the others.
        missing: Vec<usize>,
    },
    /// One of two donors is missing, and the one that is there was not told that the other was left.
    #[error(
        "donor {missing} is missing, and two donors alone cannot settle which has the newest data: bring it back, \
         or confirm that the device was not used without donor {present}"
    )]
    CannotSettle {
        /// The one that is there.
        present: usize,
        /// The other.
        missing: usize,
    },
    /// A donor has another device, or the same with other donors or another shape.
    #[error("donor {donor} has another device, or this one in another shape or order: check the donors and the id")]
    OtherDevice {
        /// Which.
        donor: usize,
    },
    /// Enough donors are there, and they did not store in time that this client has the device.
    #[error(
        "enough donors are there, but they have not stored within {} ms (`patience=`) that this client has the device: \
         attach it again, with a larger patience",
        patience_us / 1000
    )]
    Slow {
        /// The patience. *Units*: microseconds.
        patience_us: u64,
    },
    /// The device is attached elsewhere.
    #[error("the device is attached by client {client:#018x}: detach it there, or take it over")]
    AttachedElsewhere {
        /// The random number of that client.
        client: u64,
    },
    /// The creation of the device did not reach every donor.
    #[error("the device was not created on every donor: create it again with the same id")]
    Incomplete,
    /// There is something on a donor on which the device would be created.
    #[error("donor {donor} is in use already: give the device another donor")]
    InUse {
        /// Which.
        donor: usize,
    },
    /// Other clients keep attaching the device at the same time.
    #[error("other clients are attaching the device at the same time: stop them and attach it again")]
    Contended,
    /// The shape of the device is not possible.
    #[error("{0}")]
    Geometry(#[from] crate::format::FormatError),
    /// Two donors that would hold the same blocks have the same label.
    #[error(
        "donors {first} and {second} have the label {label:?} and would hold the same blocks: order them otherwise"
    )]
    SameLabel {
        /// One.
        first: usize,
        /// The other.
        second: usize,
        /// The label of both.
        label: String,
    },
}
