//! Putting another donor in the place of one while the device is used: what is copied when, when the other one takes the
//! place, and what a second failure changes.
//!
//! Owns: the plan of a move, for every device, and which donor needs a
//! spare. Promises: the former donor is trusted, and gets every write, until the other one has everything and every
//! donor is well; so the device is never less safe than before. A lost donor is filled before a living one is moved.
//! Leaves to others: connections and copying (`device::owner`), the decision that all are told (`group`, at `MachineEvent::Replaced`).
//! No I/O and no clock: a live device and the simulator (`nectary_sim::ram_moves`) drive the same code, a [`Mover`].
//!
//! | stage | it goes on when | a second failure meanwhile |
//! |---|---|---|
//! | connecting | this client owns the other donor, whose record is that of the former one | as below |
//! | copying | few parts are left; then no request is sent for a moment, and the rest is copied | ends it: the former donor stays, the other one is emptied, and is free for the lost one |
//! | settling | the other donor is trusted, and all donors were told | `MachineAction::Restore`: the former donor has its place again |
//! | filling | the other donor is trusted, and all donors were told | the other one is given up (`filling`), or the blocks of two donors are lost |
//! | emptying | the former donor was emptied, or emptying it failed | none: the move is over for the device |
//!
//! A donor that is left already has nothing to copy: the other one takes its place at once, and is filled like any
//! donor that is back.
//!
//! | file | what is in it |
//! |---|---|
//! | `filling` | when a donor that is filled is given up |
//! | `mover` | the move under way, and what requests change meanwhile |
//! | `need` | which donor needs a spare, and when |
//! | `unfinished` | a switch that the end of the client has cut short |

mod filling;
mod mover;
mod need;
#[cfg(test)]
mod tests;
mod unfinished;

use std::collections::BTreeSet;

use crate::group::{Donor, DonorStanding, GroupMachine, LinkState, Moment};
use crate::planted::{MirrorBug, planted};

use filling::{FillingObservation, FillingWatch};
pub use mover::{ActiveMove, EndedMove, Kept, Mover, NotNow, PreparationResult};
pub use need::SpareNeed;
pub use unfinished::{RecordHolder, unfinished};

/// What is copied at a time. *Units*: bytes.
pub const PART_BYTES: u64 = 512 << 10;
/// Parts that are copied at a time.
const COPIES_MAX: usize = 2;
/// No request is sent while at most so many parts are copied.
const LAST_PARTS: usize = 8;
/// If the whole was copied so many times and still more parts are left, they are copied in pauses.
const ROUNDS_MAX: u64 = 4;
/// How long requests to the donor may be kept at a time; it would count as late soon after.
const PAUSE_MAX_US: Moment = 150_000;
/// How long they are sent at least before the next pause.
const PAUSE_EVERY_US: Moment = 100_000;

/// What a move sees of the donors of a device; each method calls the method of the same name of [`GroupMachine`].
pub trait MoveMachine {
    /// The standing of each donor.
    fn standing(&self) -> &[DonorStanding];
    /// The state of the connection to a donor.
    fn link_state(&self, donor: Donor) -> Option<LinkState>;
    /// Whether every trusted donor was told of the view.
    fn is_view_stored(&self) -> bool;
    /// Whether another donor may take the place of this one now.
    fn may_replace(&self, donor: Donor) -> bool;
}

impl MoveMachine for GroupMachine {
    fn standing(&self) -> &[DonorStanding] {
        GroupMachine::standing(self)
    }

    fn link_state(&self, donor: Donor) -> Option<LinkState> {
        GroupMachine::link_state(self, donor)
    }

    fn is_view_stored(&self) -> bool {
        GroupMachine::is_view_stored(self)
    }

    fn may_replace(&self, donor: Donor) -> bool {
        GroupMachine::may_replace(self, donor)
    }
}

/// How far a move is; the table above describes each stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStage {
    /// The other donor is being prepared.
    Connecting,
    /// What the former donor has is being copied.
    Copying,
    /// The other donor has the place, and the others are being told.
    Settling,
    /// The other donor has the place of a left one, and is being filled.
    Filling,
    /// The former donor is being emptied.
    Emptying,
}

/// Why a move ends before the other donor has the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStop {
    /// The donor was left meanwhile.
    Left,
    /// Another donor was lost meanwhile, and goes before.
    OtherLost(Donor),
    /// The other donor was lost right after it had taken the place.
    TakerLost,
    /// Another donor was lost before the place was filled.
    BothLost,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoveStep {
    /// Nothing.
    Wait,
    /// Copy a part.
    Copy {
        /// The number of the part.
        part: u64,
        /// Its first byte.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// Send what was kept.
    GoOn,
    /// Everything is on the other donor, and nothing is on its way: it takes the place.
    Switch,
    /// Empty the former donor.
    Empty,
    /// The move is done.
    Done,
    /// The move has to end.
    Stop(MoveStop),
}

/// The plan of a move.
#[derive(Debug)]
pub struct MovePlan {
    /// The place.
    pub donor: Donor,
    stage: MoveStage,
    part_bytes: u64,
    bytes: u64,
    /// Parts that the other donor lacks.
    lacking: BTreeSet<u64>,
    copying: BTreeSet<u64>,
    copied: u64,
    paused_us: Option<Moment>,
    went_on_us: Moment,
    began_us: Moment,
    filling: FillingWatch,
}

impl MovePlan {
    /// Plans the move of a donor that has `bytes` of the device, in parts of `part_bytes` ([`PART_BYTES`]).
    pub fn new(donor: Donor, bytes: u64, part_bytes: u64, now_us: Moment) -> MovePlan {
        MovePlan {
            donor,
            stage: MoveStage::Connecting,
            part_bytes,
            bytes,
            lacking: (0..bytes.div_ceil(part_bytes)).collect(),
            copying: BTreeSet::new(),
            copied: 0,
            paused_us: None,
            went_on_us: now_us,
            began_us: now_us,
            filling: FillingWatch::default(),
        }
    }

    /// The present stage.
    pub fn stage(&self) -> MoveStage {
        self.stage
    }

    /// When the move began.
    pub fn began_us(&self) -> Moment {
        self.began_us
    }

    /// Bytes that the other donor has, and all bytes.
    pub fn progress(&self) -> (u64, u64) {
        let lacking = (self.lacking.len() + self.copying.len()) as u64 * self.part_bytes;
        (self.bytes.saturating_sub(lacking), self.bytes)
    }

    /// The other donor is owned by this client and has the record of the former one, which is copied now.
    fn prepared(&mut self) {
        self.stage = MoveStage::Copying;
    }

    /// The other donor has the place of a left one.
    fn placed(&mut self) {
        self.stage = MoveStage::Filling;
    }

    /// Bytes of the donor change, or may have been changed.
    fn touch(&mut self, offset: u64, bytes: u64) {
        if bytes > 0
            && matches!(self.stage, MoveStage::Connecting | MoveStage::Copying)
            && !planted(MirrorBug::MoveForgets)
        {
            let end = offset.saturating_add(bytes).min(self.bytes);
            self.lacking.extend(offset / self.part_bytes..end.div_ceil(self.part_bytes));
        }
    }

    /// Whether requests to the donor are kept.
    pub fn is_paused(&self) -> bool {
        self.paused_us.is_some()
    }

    /// The other donor has taken the place: what was kept comes again on the next connection.
    fn switched(&mut self) {
        (self.paused_us, self.stage) = (None, MoveStage::Settling);
    }

    /// Returns why the other donor has to be given up, if it is being filled. `lost_after_us`: how long a lost donor is
    /// waited for.
    fn hopeless(&mut self, now_us: Moment, lost_after_us: Moment, seen: FillingObservation) -> Option<String> {
        let is_placed = self.stage == MoveStage::Filling;
        is_placed.then(|| self.filling.hopeless(now_us, lost_after_us, seen))?
    }

    /// What to do next. `is_idle`: no request is on its way to the donor. Call it after each step of the machine, until
    /// it says [`MoveStep::Wait`].
    fn next(&mut self, now_us: Moment, members: &dyn MoveMachine, is_idle: bool) -> MoveStep {
        let (donor, standing) = (self.donor, members.standing());
        let is_claimed = members.link_state(donor) == Some(LinkState::Claimed);
        let is_told = members.is_view_stored() || planted(MirrorBug::DoneUntold);
        let is_settled = standing[donor] == DonorStanding::Trusted && is_claimed && is_told;
        match self.stage {
            MoveStage::Connecting | MoveStage::Emptying => MoveStep::Wait,
            MoveStage::Copying if standing[donor] != DonorStanding::Trusted => MoveStep::Stop(MoveStop::Left),
            MoveStage::Copying => {
                let is_well = |other: usize| matches!(standing[other], DonorStanding::Trusted | DonorStanding::Leaving);
                if let Some(other) = (0..standing.len()).find(|other| !is_well(*other))
                    && !planted(MirrorBug::MoveHoldsSpare)
                {
                    return MoveStep::Stop(MoveStop::OtherLost(other));
                }
                self.next_copy(now_us, is_claimed, members.may_replace(donor), is_idle)
            }
            MoveStage::Settling | MoveStage::Filling if standing[donor] == DonorStanding::Lost => {
                MoveStep::Stop(MoveStop::BothLost)
            }
            MoveStage::Settling if standing[donor] == DonorStanding::Out && planted(MirrorBug::TakerLossIgnored) => {
                MoveStep::Done
            }
            MoveStage::Settling if standing[donor] == DonorStanding::Out => MoveStep::Stop(MoveStop::TakerLost),
            MoveStage::Settling if is_settled => {
                self.stage = MoveStage::Emptying;
                MoveStep::Empty
            }
            MoveStage::Filling if is_settled => MoveStep::Done,
            MoveStage::Settling | MoveStage::Filling => MoveStep::Wait,
        }
    }

    fn next_copy(&mut self, now_us: Moment, is_claimed: bool, may_switch: bool, is_idle: bool) -> MoveStep {
        let is_little = self.lacking.len() <= LAST_PARTS;
        let has_tried = self.copied > ROUNDS_MAX * self.parts();
        let may_pause = may_switch && now_us >= self.went_on_us + PAUSE_EVERY_US;
        match self.paused_us {
            Some(since_us) if now_us >= since_us + PAUSE_MAX_US || !may_switch => {
                (self.paused_us, self.went_on_us) = (None, now_us);
                return MoveStep::GoOn;
            }
            Some(_) if !is_idle => return MoveStep::Wait,
            Some(_) if self.lacking.is_empty() && self.copying.is_empty() => return MoveStep::Switch,
            None if may_pause && (is_little || has_tried) => {
                self.paused_us = Some(now_us);
                return if is_idle { self.next_copy(now_us, is_claimed, may_switch, is_idle) } else { MoveStep::Wait };
            }
            _ => {}
        }
        if self.copying.len() >= COPIES_MAX || !is_claimed {
            return MoveStep::Wait;
        }
        // A part that is being copied and was changed meanwhile comes again after that.
        let Some(part) = self.lacking.iter().copied().find(|part| !self.copying.contains(part)) else {
            return MoveStep::Wait;
        };
        self.lacking.remove(&part);
        self.copying.insert(part);
        let (offset, bytes) = self.part(part);
        MoveStep::Copy { part, offset, bytes }
    }

    /// The first byte of a part, and its length.
    pub fn part(&self, part: u64) -> (u64, u64) {
        let offset = part * self.part_bytes;
        (offset, self.part_bytes.min(self.bytes.saturating_sub(offset)))
    }

    /// A part was copied, or not.
    fn copied(&mut self, part: u64, is_done: bool) {
        self.copying.remove(&part);
        match is_done {
            true => self.copied += 1,
            false if planted(MirrorBug::FailureForgotten) => {}
            false => _ = self.lacking.insert(part),
        }
        if is_done && planted(MirrorBug::ChangedWhileCopied) {
            self.lacking.remove(&part);
        }
    }

    /// The number of parts.
    pub fn parts(&self) -> u64 {
        self.bytes.div_ceil(self.part_bytes)
    }

    /// Whether the other donor lacks a part, or may lack it.
    fn lacks(&self, part: u64) -> bool {
        self.lacking.contains(&part) || self.copying.contains(&part)
    }
}
