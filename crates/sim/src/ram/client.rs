//! A client: its machine, its connections, and the threads of its user.
//!
//! Owns: the next operation of a user, and the operations that the user waits for. Leaves to others: the allowed
//! answers (`check`).

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use nectary_ram::format::RecordGeometry;
use nectary_ram::mirror::{
    MachineIntent, MachineTimes, MirrorConfiguration, MirrorMachine, MirrorPhase, MirrorRequest,
};

use super::blocks::{BLOCK_BYTES, contents};
use super::donor::ConnectionId;
use super::network::MILLISECOND;
use crate::random::SimulationRandom;

/// The largest number of blocks of an operation.
const OPERATION_BLOCKS_MAX: u64 = 6;

/// An operation for which a user waits.
#[derive(Debug, Clone)]
pub enum RamUserOperation {
    Read {
        blocks: Range<u64>,
        began: u64,
    },
    /// A change; `place` is its position in the history.
    Change {
        place: usize,
        blocks: Range<u64>,
        is_write: bool,
    },
    Flush,
}

/// A client.
#[derive(Debug)]
pub struct RamClientModel {
    pub machine: MirrorMachine,
    pub id: u64,
    pub is_alive: bool,
    pub paused_until_us: u64,
    pub connections: Vec<Option<ConnectionId>>,
    /// The incarnations of donors that it has seen.
    pub incarnations: Vec<u64>,
    pub is_attached: bool,
    pub pending: BTreeMap<u64, RamUserOperation>,
    pub next_id: u64,
    /// The phase in which the client is killed, and the number of steps in that phase before the kill.
    pub kill_at: Option<(MirrorPhase, u64)>,
}

/// The next operation of a user.
pub struct NextOperation {
    pub request: MirrorRequest,
    pub blocks: Range<u64>,
    pub kind: WishKind,
}

/// The kinds of operations of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WishKind {
    Read,
    Write,
    Zero,
    Flush,
}

/// The times of simulated machines: about a quarter of the defaults.
pub const TIMES: MachineTimes = MachineTimes {
    suspect_us: 60 * MILLISECOND,
    leave_us: 200 * MILLISECOND,
    patience_us: 3000 * MILLISECOND,
    survey_us: 150 * MILLISECOND,
    lease_us: 700 * MILLISECOND,
    ping_us: 80 * MILLISECOND,
    clean_us: 120 * MILLISECOND,
    rejoin_us: 80 * MILLISECOND,
    tick_us: 15 * MILLISECOND,
    scrub_us: 0,
    scrub_rest_us: 60 * MILLISECOND,
};

impl RamClientModel {
    /// A client that begins to create or attach the device.
    pub fn new(
        geometry: RecordGeometry,
        id: u64,
        intent: MachineIntent,
        times: MachineTimes,
        now_us: u64,
    ) -> RamClientModel {
        let donors = usize::from(geometry.members);
        let labels = (0..donors).map(|donor| format!("host-{donor}")).collect();
        let configuration = MirrorConfiguration { geometry, labels, client: id, intent, times };
        RamClientModel {
            machine: MirrorMachine::new(configuration, now_us).expect("the geometry is possible"),
            id,
            is_alive: true,
            paused_until_us: 0,
            connections: vec![None; donors],
            incarnations: vec![0; donors],
            is_attached: false,
            pending: BTreeMap::new(),
            next_id: 1,
            kill_at: None,
        }
    }

    /// Whether a change of one of the blocks is in progress.
    pub fn changes(&self, blocks: &Range<u64>) -> bool {
        self.pending.values().any(|pending| match pending {
            RamUserOperation::Change { blocks: other, .. } => other.start < blocks.end && blocks.start < other.end,
            _ => false,
        })
    }
}

/// Draws the next operation of a user; a write writes `number`.
pub fn wish(random: &mut SimulationRandom, blocks: u64, number: u64) -> NextOperation {
    // Half of the operations are on the same few blocks.
    let first = if random.chance(50) { random.below(blocks.min(6)) } else { random.below(blocks) };
    let count = 1 + random.below(OPERATION_BLOCKS_MAX).min(random.below(OPERATION_BLOCKS_MAX));
    let range = first..(first + count).min(blocks);
    let (offset, bytes) = (first * BLOCK_BYTES as u64, (range.end - first) * BLOCK_BYTES as u64);
    let force = random.chance(20);
    let (kind, request) = match random.below(100) {
        0..45 => {
            let data: Vec<u8> = range.clone().flat_map(|block| contents(number, block)).collect();
            (WishKind::Write, MirrorRequest::Write { offset, data: Bytes::from(data), force })
        }
        45..51 => (WishKind::Zero, MirrorRequest::WriteZeroes { offset, bytes, force }),
        51..59 => (WishKind::Zero, MirrorRequest::Trim { offset, bytes }),
        59..93 => (WishKind::Read, MirrorRequest::Read { offset, bytes }),
        _ => (WishKind::Flush, MirrorRequest::Flush),
    };
    NextOperation { request, blocks: range, kind }
}
