//! The contents of a recording: events in the order in which they happened.

use bytes::Bytes;

/// Something that happened on a recorded device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A write was handed to the device.
    WriteBegun {
        /// The operation's number.
        id: u64,
        /// The offset of its first byte.
        offset: u64,
        /// What it writes.
        data: Bytes,
        /// Whether it is durable when it completes.
        fua: bool,
    },
    /// A write of zeroes was handed to the device.
    ZeroesBegun {
        /// The operation's number.
        id: u64,
        /// The offset of the first byte.
        offset: u64,
        /// How much it zeroes, in bytes.
        length: u64,
    },
    /// A discard was handed to the device.
    DiscardBegun {
        /// The operation's number.
        id: u64,
        /// Its start, in bytes.
        offset: u64,
        /// How much it discards, in bytes.
        length: u64,
    },
    /// A flush was handed to the device; it covers the writes that had ended before.
    FlushBegun {
        /// The operation's number.
        id: u64,
    },
    /// A growth was handed to the device.
    GrowBegun {
        /// The operation's number.
        id: u64,
        /// The new size in bytes.
        size_bytes: u64,
    },
    /// An operation ended, and its user is told next.
    Completed {
        /// The operation's number.
        id: u64,
        /// Whether it succeeded; the bytes of a failed write are unknown.
        succeeded: bool,
    },
    /// The user set a mark.
    Mark(u64),
}

impl Event {
    /// The data of a write.
    pub fn data(&self) -> Option<&Bytes> {
        match self {
            Event::WriteBegun { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// A sequence of events on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// The device's size when the recording began, in bytes.
    pub size_bytes: u64,
    /// The device's block size, in bytes.
    pub block_bytes: u32,
    /// What happened, in order.
    pub events: Vec<Event>,
}
