//! A client: its machine, its connections, and the threads of its user.
//!
//! Owns: the operations that the user waits for, and what a run sees of a machine. Leaves to others: the next operation
//! (`user`), the allowed answers (the layouts).

use std::collections::BTreeMap;
use std::ops::Range;

use nectary_ram::format::MembershipView;
use nectary_ram::log::{ParityLogMachine, ParityLogPhase, RecoveryStage};
use nectary_ram::mirror::{
    DonorStanding, LinkState, MachineTimes, MirrorAction, MirrorEvent, MirrorMachine, MirrorPhase,
};
use nectary_ram::scrub::ScrubProgress;

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

/// What a run sees of a machine; each method calls the machine's method of the same name.
pub trait SimulatedMachine {
    fn step(&mut self, now_us: u64, event: MirrorEvent);
    fn take_actions(&mut self) -> Vec<MirrorAction>;
    fn wake_at(&self) -> Option<u64>;
    fn base_phase(&self) -> MirrorPhase;
    fn recovery_stage(&self) -> Option<RecoveryStage>;
    fn is_open(&self) -> bool;
    fn has_ended(&self) -> bool;
    fn is_quiet(&self) -> bool;
    fn standing(&self) -> &[DonorStanding];
    fn link_state(&self, donor: usize) -> Option<LinkState>;
    fn view(&self) -> &MembershipView;
    fn scrub_progress(&self) -> ScrubProgress;
}

macro_rules! simulated_machine {
    ($machine:ty, $phase:ty, $base_phase:expr, $recovery_stage:expr) => {
        impl SimulatedMachine for $machine {
            fn step(&mut self, now_us: u64, event: MirrorEvent) {
                <$machine>::step(self, now_us, event);
            }

            fn take_actions(&mut self) -> Vec<MirrorAction> {
                self.actions().collect()
            }

            fn wake_at(&self) -> Option<u64> {
                <$machine>::wake_at(self)
            }

            fn base_phase(&self) -> MirrorPhase {
                $base_phase(self)
            }

            fn recovery_stage(&self) -> Option<RecoveryStage> {
                $recovery_stage(self)
            }

            fn is_open(&self) -> bool {
                self.phase() == <$phase>::Open
            }

            fn has_ended(&self) -> bool {
                self.phase() == <$phase>::Ended
            }

            fn is_quiet(&self) -> bool {
                <$machine>::is_quiet(self)
            }

            fn standing(&self) -> &[DonorStanding] {
                <$machine>::standing(self)
            }

            fn link_state(&self, donor: usize) -> Option<LinkState> {
                <$machine>::link_state(self, donor)
            }

            fn view(&self) -> &MembershipView {
                <$machine>::view(self)
            }

            fn scrub_progress(&self) -> ScrubProgress {
                <$machine>::scrub_progress(self)
            }
        }
    };
}

simulated_machine!(MirrorMachine, MirrorPhase, MirrorMachine::phase, |_| None);
simulated_machine!(ParityLogMachine, ParityLogPhase, ParityLogMachine::base_phase, ParityLogMachine::recovery_stage);

/// An operation for which a user waits.
#[derive(Debug, Clone)]
pub enum RamUserOperation {
    Read { blocks: Range<u64>, began: u64 },
    Change { place: u64, blocks: Range<u64>, is_forced: bool, is_write: bool },
    Flush { began: u64 },
}

/// The phases in which a client can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillAt {
    Base(MirrorPhase),
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
        self.machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted)
    }

    /// Whether each donor is left.
    pub fn left(&self) -> Vec<bool> {
        let is_left =
            |at: &DonorStanding| matches!(at, DonorStanding::Out | DonorStanding::Leaving | DonorStanding::Rebuilding);
        self.machine.standing().iter().map(is_left).collect()
    }
}
