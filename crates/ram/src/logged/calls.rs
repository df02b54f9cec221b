//! The operations of the user in progress.
//!
//! Owns: them, and their order. Leaves to others: what each does (`operations`).

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::group::locks::OperationLocks;
use crate::group::{DeviceError, Moment};

/// The kind of an operation.
#[derive(Debug, Clone)]
pub(super) enum ParityLogWork {
    Read,
    Write { data: Bytes },
    Zeroes,
    Flush,
}

/// The data of a slot that was read.
#[derive(Debug, Clone)]
pub(super) struct SlotData {
    pub data: Bytes,
    pub is_from_memory: bool,
}

/// The state of one block of a read.
#[derive(Debug, Clone)]
pub(super) enum BlockReadState {
    Unasked,
    Asked,
    Got(SlotData),
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct ParityLogOperation {
    /// The number that the user gave the operation; `None`: the flush that the machine does before it detaches.
    pub user: Option<u64>,
    pub work: ParityLogWork,
    pub is_forced: bool,
    pub blocks: Range<u32>,
    pub began_us: Moment,
    pub pieces: Vec<BlockReadState>,
    /// The number of pieces for which no read has begun yet.
    pub unasked: usize,
    /// The number of pieces that have not arrived yet.
    pub missing: usize,
    /// Whether a write, zeroes or flush was handed to the placement.
    pub is_taken: bool,
    /// The operation is answered only when all steps with lower numbers than this are done.
    pub until: Option<u64>,
    pub failed: Option<DeviceError>,
    pub is_held: bool,
}

/// The operations in progress.
#[derive(Debug, Default)]
pub(super) struct UserCalls {
    pub list: BTreeMap<u64, ParityLogOperation>,
    pub locks: OperationLocks,
    /// The number of the last one.
    pub last: u64,
}
