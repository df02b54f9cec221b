//! The contents of a recording: events in the order in which they happened.

use bytes::Bytes;

/// An event on a recorded device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordedEvent {
    /// A write was passed to the device.
    WriteBegun {
        /// The operation's number.
        id: u64,
        /// The offset of the first byte. *Units*: bytes.
        offset: u64,
        /// The bytes that the operation writes.
        data: Bytes,
        /// Whether the write is durable when it completes.
        fua: bool,
    },
    /// A write of zeroes was passed to the device.
    ZeroesBegun {
        /// The operation's number.
        id: u64,
        /// The offset of the first byte. *Units*: bytes.
        offset: u64,
        /// The length of the zeroed range. *Units*: bytes.
        length: u64,
    },
    /// A discard was passed to the device.
    DiscardBegun {
        /// The operation's number.
        id: u64,
        /// The offset of the first byte. *Units*: bytes.
        offset: u64,
        /// The length of the discarded range. *Units*: bytes.
        length: u64,
    },
    /// A flush was passed to the device. The flush covers the writes that had ended before.
    FlushBegun {
        /// The operation's number.
        id: u64,
    },
    /// A growth was passed to the device.
    GrowBegun {
        /// The operation's number.
        id: u64,
        /// The new size. *Units*: bytes.
        size_bytes: u64,
    },
    /// An operation ended; its user sees the result after this event.
    Completed {
        /// The operation's number.
        id: u64,
        /// Whether the operation succeeded; the bytes of a failed write are unknown.
        succeeded: bool,
    },
    /// The user of the recorder set a mark.
    Mark(u64),
}

impl RecordedEvent {
    /// The data of a write.
    pub fn data(&self) -> Option<&Bytes> {
        match self {
            RecordedEvent::WriteBegun { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// A sequence of events on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// The size of the device when the recording began. *Units*: bytes.
    pub size_bytes: u64,
    /// The block size of the device. *Units*: bytes.
    pub block_bytes: u32,
    /// The events, in the order in which they happened.
    pub events: Vec<RecordedEvent>,
}
