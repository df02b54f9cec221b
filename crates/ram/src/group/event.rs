//! The machine's interface: its events, and the actions that follow.
//!
//! Owns: the events, actions, requests and replies between the machine and the program that drives it. Leaves to
//! others: the transport of requests.
//!
//! The events of one donor must be passed in the order in which they happened. After [`MachineAction::Disconnect`] the driver
//! passes no further event of that connection and connects again; it keeps trying whenever a donor is not connected.

use bytes::Bytes;

use super::error::{AttachRefusal, DeviceError};
use crate::format::RecordStamp;

/// A point in time. *Units*: microseconds since any fixed start, on a clock that also runs while the process is
/// stopped.
pub type Moment = u64;
/// A donor by its position in the configuration, counted from 0.
pub type Donor = usize;
/// The number of a request to a donor; no number is used twice.
pub type RequestId = u64;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineEvent {
    /// A connection to a donor was made.
    Connected {
        /// The donor.
        donor: Donor,
        /// The donor's incarnation: a random number, drawn when its process started with empty memory.
        incarnation: u64,
    },
    /// The connection to a donor ended. Its requests may have been executed, or may be executed later.
    Disconnected {
        /// The donor.
        donor: Donor,
    },
    /// A donor answered.
    Replied {
        /// The donor.
        donor: Donor,
        /// The number of the request.
        request: RequestId,
        /// The answer.
        reply: DonorReply,
    },
    /// The user submitted a request.
    Submitted {
        /// The user's number for the request; no request in progress may have it.
        id: u64,
        /// The request.
        request: UserRequest,
    },
    /// Another donor takes the place of one: its memory has everything that the former one has, and its record says
    /// that this client is the owner. The connection to the former one is gone; the next one is to the other donor.
    /// [`GroupMachine::may_replace`](super::GroupMachine::may_replace) says whether this may happen now. The former one must be kept
    /// until the other one serves and all were told, as [`MachineAction::Restore`] may give it the place back.
    Replaced {
        /// Which place.
        donor: Donor,
        /// What the other donor calls itself.
        incarnation: u64,
    },
    /// The user wants all copies to be compared now; see [`crate::scrub`].
    Scrub,
    /// The user wants to detach. Operations under way are finished first.
    Detach,
    /// Time has passed: [`GroupMachine::wake_at`](super::GroupMachine::wake_at) is reached.
    Time,
}

/// A request of the device's user. *Units*: bytes, multiples of the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRequest {
    /// Read.
    Read {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
    },
    /// Write.
    Write {
        /// The first byte.
        offset: u64,
        /// The data to write.
        data: Bytes,
        /// Whether the write must be flushed before it is answered (FUA).
        force: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
        /// The same as for a write.
        force: bool,
    },
    /// Give memory back; the range reads as zeroes afterwards.
    Trim {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
    },
    /// Flush: everything acknowledged before it was submitted must be on all donors that have to store it.
    Flush,
}

/// An action that the driver has to do; actions are listed in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineAction {
    /// Send a request on the present connection of a donor.
    Send {
        /// The donor.
        donor: Donor,
        /// The number of the request, which the reply repeats.
        request: RequestId,
        /// The request.
        body: DonorRequest,
    },
    /// Close the connection to a donor, and connect again.
    Disconnect {
        /// The donor.
        donor: Donor,
    },
    /// Another donor that took a place gives it back: close the connection to it, and connect to the former one, whose
    /// memory was left as it was. See [`MachineEvent::Replaced`].
    Restore {
        /// The place.
        donor: Donor,
    },
    /// A request of the user is finished.
    Complete {
        /// The user's number for the request.
        id: u64,
        /// The bytes that were read; empty for other requests.
        result: Result<Bytes, DeviceError>,
    },
    /// The device is attached and can be used.
    Attached,
    /// The device cannot be attached. The machine has ended.
    Refused(AttachRefusal),
    /// Another client has attached the device. The machine has ended.
    Superseded,
    /// The device is detached. The machine has ended.
    Detached,
}

/// A request to a donor. *Units*: bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DonorRequest {
    /// Read.
    Read {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
    },
    /// Write.
    Write {
        /// The first byte.
        offset: u64,
        /// The data to write.
        data: Bytes,
        /// Whether the answer must wait until the data has left the donor's cache.
        force: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
        /// The same as for a write.
        force: bool,
    },
    /// Give memory back; the range reads as zeroes afterwards.
    Trim {
        /// The first byte.
        offset: u64,
        /// The length.
        bytes: u64,
    },
    /// Read the metadata area. It is allowed on any connection.
    ReadMetadata,
    /// Store `record` if the metadata area has the stamp `expected`.
    ///
    /// The donor first finishes or drops every request of other connections, and closes them; then this connection is
    /// the owner, and data requests on any other are refused.
    SwapMetadata {
        /// The stamp that the metadata area must have.
        expected: RecordStamp,
        /// The new contents.
        record: Bytes,
    },
}

/// A donor's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DonorReply {
    /// The request is done: a write, zeroes, a trim, a flush, or a record that was stored.
    Done,
    /// The bytes that were read.
    Data(Bytes),
    /// The metadata area.
    Metadata {
        /// The bytes of the area; empty if nothing was ever stored.
        area: Bytes,
        /// Whether another connection is the owner, and is alive.
        is_owned: bool,
    },
    /// The area had another stamp than `expected`; nothing is stored.
    SwapRefused,
    /// This connection is not the owner.
    NotOwner,
    /// The donor could not do the request.
    Failed,
}
