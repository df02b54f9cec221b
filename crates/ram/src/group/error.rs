//! Errors of operations, and reasons why a device cannot be attached.
//!
//! Owns: the kinds of errors, which differ in their remedies.

use thiserror::Error;

/// The reason why a user's request failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The donors that are needed did not answer within `patience`. A write may still take effect.
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
    /// More requests are in progress than [`OPERATIONS_MAX`](super::OPERATIONS_MAX).
    #[error("too many requests at a time: wait for one to complete")]
    Busy,
    /// The range is empty, too long, not of whole blocks, or beyond the end of the device.
    #[error("offset {offset}, {bytes} bytes: not whole blocks of the device, or too many")]
    Range {
        /// The first byte of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
    },
    /// The device is not attached, or is being detached.
    #[error("the device is not attached")]
    NotAttached,
}

/// The reason why a device cannot be attached or created.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AttachRefusal {
    /// No donor answered.
    #[error("no donor answered: check their addresses and that they run")]
    Unreachable,
    /// Every donor is empty.
    #[error("no donor has data of this device: it was never created, or all its donors were restarted")]
    Empty,
    /// Too few donors have the device's data.
    #[error("{needed} donors with data of the device are needed and {found} are there; missing: {missing:?}")]
    TooFew {
        /// The number of donors that are needed.
        needed: usize,
        /// The number of donors that can be used.
        found: usize,
        /// The positions of the other donors.
        missing: Vec<usize>,
    },
    /// One of two donors is missing, and the present one has not stored that the other was left.
    #[error(
        "donor {missing} is missing, and two donors alone cannot settle which has the newest data: bring it back, \
         or confirm that the device was not used without donor {present}"
    )]
    CannotSettle {
        /// The position of the present donor.
        present: usize,
        /// The position of the missing donor.
        missing: usize,
    },
    /// A donor belongs to another device, or to the same device with other donors or another geometry.
    #[error("donor {donor} has another device, or this one in another shape or order: check the donors and the id")]
    OtherDevice {
        /// The position of the donor.
        donor: usize,
    },
    /// Enough donors are present, but they did not store in time that this client has the device.
    #[error(
        "enough donors are there, but they have not stored within {} ms (`patience=`) that this client has the device: \
         attach it again, with a larger patience",
        patience_us / 1000
    )]
    Slow {
        /// The time limit. *Units*: microseconds.
        patience_us: u64,
    },
    /// Another client has attached the device.
    #[error("the device is attached by client {client:#018x}: detach it there, or take it over")]
    AttachedElsewhere {
        /// The random number of that client.
        client: u64,
    },
    /// The creation of the device was not completed on every donor.
    #[error("the device was not created on every donor: create it again with the same id")]
    Incomplete,
    /// A donor on which the device would be created is not empty.
    #[error("donor {donor} is in use already: give the device another donor")]
    InUse {
        /// The position of the donor.
        donor: usize,
    },
    /// Other clients repeatedly attach the device at the same time.
    #[error("other clients are attaching the device at the same time: stop them and attach it again")]
    Contended,
    /// The geometry of the device is not possible.
    #[error("{0}")]
    Geometry(#[from] crate::format::FormatError),
    /// Two donors that would have the same blocks have the same label.
    #[error(
        "donors {first} and {second} have the label {label:?} and would hold the same blocks: order them otherwise"
    )]
    SameLabel {
        /// The position of one donor.
        first: usize,
        /// The position of the other donor.
        second: usize,
        /// The label of both.
        label: String,
    },
}
