//! The faults that a run has planned: how many, until when, and which wait for their moment.
//!
//! Owns: the kinds of faults, and the state of a run's faults. Leaves to others: making them happen (`faults`).

use super::FAULTS;
use super::client::KillAt;
use crate::random::SimulationRandom;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RamFaultKind {
    /// The client is cut off from a donor.
    Cut,
    /// A connection breaks.
    Break,
    /// A donor is paused.
    PauseDonor,
    /// A donor is slow.
    SlowDonor,
    /// A donor loses its memory.
    LoseMemory,
    /// The client is killed.
    Kill,
    /// The client is paused.
    PauseClient,
    /// Another client takes the device over.
    TakeOver,
    /// The client is cut off from all donors.
    CutAll,
    /// The client is cut off from all donors but one, for longer than its lease.
    CutOthers,
    /// A donor damages some bytes.
    Damage,
    /// The client leaves a donor and is killed; the donor returns to the next client.
    LeaveAndKill,
    /// The next client is cut off from a donor while it recovers.
    CutInRecovery,
    /// The client is cut off from all donors for longer than its patience.
    Outage,
}

/// Of a hundred faults, those below each number, and not below an earlier one, are of this kind.
pub type FaultShares = &'static [(u64, RamFaultKind)];

/// A fault that waits until a donor is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillingFault {
    /// Another donor loses its memory.
    SecondLoss,
    /// The client is killed.
    Kill,
}

/// The faults of a run.
#[derive(Debug)]
pub struct RamFaultPlan {
    pub wanted: u64,
    /// The number of faults so far.
    pub done: u64,
    /// The time at which a lossy run ends.
    pub ends_us: u64,
    /// The time at which the last fault ends.
    pub until_us: u64,
    pub hunt: Option<FillingFault>,
    pub may_lose: bool,
    /// The phase and step in which the next client is killed.
    pub kill_at: Option<(KillAt, u64)>,
    /// A donor from which the next client is cut off while it recovers, and the duration of the cut in microseconds.
    pub cut_in_recovery: Option<(usize, u64)>,
    pub kills_left: u64,
}

impl RamFaultPlan {
    /// Draws a plan; so many of a hundred runs lose more than the policy survives.
    pub fn new(random: &mut SimulationRandom, lossy_percent: u64) -> RamFaultPlan {
        RamFaultPlan {
            wanted: FAULTS + random.below(5),
            done: 0,
            ends_us: u64::MAX,
            until_us: 0,
            hunt: None,
            may_lose: random.chance(lossy_percent),
            kill_at: None,
            cut_in_recovery: None,
            kills_left: 0,
        }
    }

    /// Whether the last fault has ended.
    pub fn are_over(&self, now_us: u64) -> bool {
        self.done >= self.wanted && now_us >= self.until_us
    }
}
