//! A client: its machine, its connections, and the threads of its user.
//!
//! Owns: the operations that the user waits for, and what a run sees of a machine. Leaves to others: the next operation
//! (`user`), the allowed answers (the layouts).

use std::collections::BTreeMap;
use std::ops::Range;

use nectary_ram::device::owner::DeviceMachine;
use nectary_ram::group::{DonorStanding, GroupPhase, MachineTimes};
use nectary_ram::in_place::{InPlaceMachine, InPlacePhase};
use nectary_ram::logged::{ParityLogMachine, RecoveryStage};

use super::donor::ConnectionId;
use super::network::MILLISECOND;

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

/// A machine that a run can kill in any phase.
pub trait SimulatedMachine: DeviceMachine {
    /// How far the machine is after its group has attached, and before the device is in use.
    fn recovery(&self) -> Option<KillAt>;
}

impl SimulatedMachine for InPlaceMachine {
    fn recovery(&self) -> Option<KillAt> {
        (self.phase() == InPlacePhase::Resync).then_some(KillAt::Resync)
    }
}

impl SimulatedMachine for ParityLogMachine {
    fn recovery(&self) -> Option<KillAt> {
        self.recovery_stage().map(KillAt::Recovery)
    }
}

/// An operation for which a user waits.
#[derive(Debug, Clone)]
pub enum RamUserOperation {
    Read { blocks: Range<u64>, began: u64 },
    Change { place: u64, blocks: Range<u64>, is_forced: bool, is_write: bool },
    Flush { began: u64 },
}

/// What users do.
#[derive(Debug, Clone, Copy)]
pub struct UserMix {
    /// Of a hundred operations, those below these numbers are writes, zeroes, trims and reads; the others are flushes.
    pub below: [u64; 4],
    /// How many of a hundred changes are forced.
    pub forced_percent: u64,
    /// Whether all blocks are used equally often; otherwise half of the operations are on the same few blocks.
    pub is_even: bool,
}

/// The phases in which a client can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillAt {
    Group(GroupPhase),
    Resync,
    Recovery(RecoveryStage),
}

/// A client.
#[derive(Debug)]
pub struct RamClientModel<M> {
    pub machine: M,
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
    pub kill_at: Option<(KillAt, u64)>,
    /// A donor from which the client is cut off while it recovers, and the duration of the cut in microseconds.
    pub cut_in_recovery: Option<(usize, u64)>,
}

impl<M: SimulatedMachine> RamClientModel<M> {
    /// A client that begins to create or attach the device.
    pub fn new(machine: M, id: u64, donors: usize) -> RamClientModel<M> {
        RamClientModel {
            machine,
            id,
            is_alive: true,
            paused_until_us: 0,
            connections: vec![None; donors],
            incarnations: vec![0; donors],
            is_attached: false,
            pending: BTreeMap::new(),
            next_id: 1,
            kill_at: None,
            cut_in_recovery: None,
        }
    }

    /// Whether a change of any block is in progress.
    pub fn is_changing(&self) -> bool {
        self.pending.values().any(|pending| matches!(pending, RamUserOperation::Change { .. }))
    }

    /// Whether a change of one of the blocks is in progress.
    pub fn changes(&self, blocks: &Range<u64>) -> bool {
        self.pending.values().any(|pending| match pending {
            RamUserOperation::Change { blocks: other, .. } => other.start < blocks.end && blocks.start < other.end,
            _ => false,
        })
    }

    /// Whether every donor is trusted.
    pub fn is_whole(&self) -> bool {
        self.machine.group().standing().iter().all(|standing| *standing == DonorStanding::Trusted)
    }

    /// Whether each donor is left.
    pub fn left(&self) -> Vec<bool> {
        let is_left =
            |at: &DonorStanding| matches!(at, DonorStanding::Out | DonorStanding::Leaving | DonorStanding::Rebuilding);
        self.machine.group().standing().iter().map(is_left).collect()
    }
}
