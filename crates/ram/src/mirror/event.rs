//! What goes into the machine and what comes out of it.
//!
//! Owns: the events, actions, requests and replies between the machine and the program that drives it. Leaves to
//! others: how a request travels.
//!
//! The events of one donor arrive in the order in which they happened. After [`Action::Disconnect`] a connection
//! yields no further event; the driver connects again, and keeps trying whenever a donor is not connected.

use bytes::Bytes;

use super::error::{MirrorError, Refusal};
use crate::format::Stamp;

/// A moment. *Units*: microseconds since any fixed start, on a clock that also runs while the process is stopped.
pub type Moment = u64;
/// A donor by its position in the configuration, counted from 0.
pub type Donor = usize;
/// The number of a request to a donor; none is used twice.
pub type RequestId = u64;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A connection to a donor was made.
    Connected {
        /// Which.
        donor: Donor,
        /// The donor's incarnation: a random number, drawn when its memory was last empty.
        incarnation: u64,
    },
    /// The connection to a donor ended. Its requests may have been executed, or may still be.
    Disconnected {
        /// Which.
        donor: Donor,
    },
    /// A donor answered.
    Replied {
        /// Which.
        donor: Donor,
        /// The number of the request.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// The user wants something.
    Submitted {
        /// The user's number for it; must not be under way already.
        id: u64,
        /// What.
        request: Request,
    },
    /// Another donor takes the place of one: its memory has everything that the former one has, and its record says
    /// that this client is the owner. The connection to the former one is gone; the next one is to the other donor.
    Replaced {
        /// Which place.
        donor: Donor,
        /// What the other donor calls itself.
        incarnation: u64,
    },
    /// The user wants to detach. Operations under way are finished first.
    Detach,
    /// Time passed: [`Machine::wake_at`](super::Machine::wake_at) was reached.
    Time,
}

/// What the user of the device wants. *Units*: bytes, multiples of the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Read.
    Read {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
    },
    /// Write.
    Write {
        /// From here.
        offset: u64,
        /// These.
        data: Bytes,
        /// As if a flush of them came with it (FUA).
        force: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
        /// As with a write.
        force: bool,
    },
    /// Give memory back; the range reads as zeroes afterwards.
    Trim {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
    },
    /// A flush: everything acknowledged before it was submitted is on the donors that must have it.
    Flush,
}

/// What the driver has to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a request on the present connection of a donor.
    Send {
        /// To this one.
        donor: Donor,
        /// The number that the reply names.
        request: RequestId,
        /// What to send.
        body: DonorRequest,
    },
    /// Close the connection to a donor, and make another.
    Disconnect {
        /// Which.
        donor: Donor,
    },
    /// A user's request is finished.
    Complete {
        /// The user's number.
        id: u64,
        /// The bytes that were read, or none.
        result: Result<Bytes, MirrorError>,
    },
    /// The device can be used.
    Attached,
    /// The device cannot be attached. The machine has ended.
    Refused(Refusal),
    /// Another client has attached the device. The machine has ended.
    Superseded,
    /// The device is detached. The machine has ended.
    Detached,
}

/// What a donor can do. *Units*: bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DonorRequest {
    /// Read.
    Read {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
    },
    /// Write.
    Write {
        /// From here.
        offset: u64,
        /// These.
        data: Bytes,
        /// It is answered only when it is not merely in a cache of the donor.
        force: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
        /// As with a write.
        force: bool,
    },
    /// Give memory back; the range reads as zeroes afterwards.
    Trim {
        /// From here.
        offset: u64,
        /// This many.
        bytes: u64,
    },
    /// Flush: writes that were answered leave the donor's cache.
    Flush,
    /// Read the metadata area. Allowed on any connection.
    ReadMetadata,
    /// Store `record` if the stamp of the metadata area is `expected`.
    ///
    /// The donor first finishes or drops every request that other connections sent, and ends those connections; then
    /// this connection is the owner, and data requests of any other are refused.
    SwapMetadata {
        /// The stamp that has to be there.
        expected: Stamp,
        /// The new contents.
        record: Bytes,
    },
}

/// A donor's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done: writes, zeroes, trims, flushes, and a record that was stored.
    Done,
    /// The bytes that were read.
    Data(Bytes),
    /// The metadata area.
    Metadata {
        /// Its bytes; empty if nothing was ever stored.
        area: Bytes,
        /// Whether the owning connection is another one, and alive.
        is_owned: bool,
    },
    /// The stamp was not the expected one; nothing is stored.
    SwapRefused,
    /// This connection is not the owner.
    NotOwner,
    /// The donor could not do it.
    Failed,
}
