//! The move of a device, and the requests on their way to its donors.
//!
//! Owns: which bytes count as changed while a donor is copied, which requests are kept, and which answers belong to the
//! present move. Promises: while a donor is copied, each part in which the other one may differ from it will be copied,
//! or a request that changes the part is on its way. Leaves to others: when what is done (`MovePlan`), connections and
//! copying, which the caller has: a live device, or the simulator.
//!
//! | a request of the machine to the donor that is copied | then |
//! |---|---|
//! | is to be sent in a pause | it is kept |
//! | is sent | its range has changed |
//! | is answered | its range has changed: a copy that was read meanwhile may be older |
//! | is lost with its connection | its range has changed: it may be done already, or until the donor is claimed again. What was kept is dropped, as the machine sends it again |

use std::collections::BTreeMap;

use super::filling::FillingObservation;
use super::{MoveMachine, MovePlan, MoveStage, MoveStep, MoveStop, SpareNeed};
use crate::group::{Donor, DonorRequest, DonorStanding, LinkState, Moment, RequestId};
use crate::planted::{MirrorBug, planted};

/// A request that is kept.
pub type Kept = (RequestId, DonorRequest);

/// Why a move cannot begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotNow {
    /// This donor is being moved.
    Moving(Donor),
    /// This other donor is not trusted.
    NotWhole(Donor),
    /// The donor has no connection.
    Silent,
    /// The donor is being left or filled.
    Unsettled,
}

/// What follows when the other donor is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreparationResult {
    /// The former donor is copied.
    Copies,
    /// The other donor takes the place of the left one now, and is filled.
    TakesPlace,
    /// The left donor is back: the move has to end.
    IsBack,
}

/// A move under way. `S` is what the caller has of the other donor and of the former one.
#[derive(Debug)]
pub struct ActiveMove<S> {
    plan: MovePlan,
    kept: Vec<Kept>,
    is_left: bool,
    /// What the caller has.
    pub session: S,
}

impl<S> ActiveMove<S> {
    /// The plan.
    pub fn plan(&self) -> &MovePlan {
        &self.plan
    }

    /// The place.
    pub fn donor(&self) -> Donor {
        self.plan.donor
    }

    /// Whether the donor was left when the move began, so that there is nothing to copy.
    pub fn is_left(&self) -> bool {
        self.is_left
    }
}

/// What is left of a move that has ended.
#[derive(Debug)]
pub struct EndedMove<S> {
    /// The place.
    pub donor: Donor,
    /// The stage in which it ended.
    pub stage: MoveStage,
    /// Requests that have to be sent now.
    pub kept: Vec<Kept>,
    /// What the caller had.
    pub session: S,
}

/// The move of a device, if one is under way, and the requests without an answer.
#[derive(Debug)]
pub struct Mover<S> {
    moving: Option<ActiveMove<S>>,
    number: u64,
    /// By position: the range that each request changes, as its offset and its length in bytes.
    under_way: Vec<BTreeMap<RequestId, (u64, u64)>>,
    /// Which donor needs a spare.
    pub need: SpareNeed,
}

impl<S> Mover<S> {
    /// Makes one for a device with so many donors.
    pub fn new(donors: usize) -> Mover<S> {
        Mover { moving: None, number: 0, under_way: vec![BTreeMap::new(); donors], need: SpareNeed::default() }
    }

    /// The move under way.
    pub fn moving(&self) -> Option<&ActiveMove<S>> {
        self.moving.as_ref()
    }

    /// The move under way.
    pub fn moving_mut(&mut self) -> Option<&mut ActiveMove<S>> {
        self.moving.as_mut()
    }

    /// The number of the present move, or of the next one.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the move of this number is under way; what belongs to another one is too late.
    pub fn is_present(&self, number: u64) -> bool {
        self.moving.is_some() && (self.number == number || planted(MirrorBug::EarlierMoveAnswered))
    }

    /// Checks whether a move of a donor may begin; `is_connected`: it has a connection. *Returns* whether the donor is
    /// left, so that there is nothing to copy.
    ///
    /// *Errors*: why it may not.
    pub fn check(&self, donor: Donor, members: &dyn MoveMachine, is_connected: bool) -> Result<bool, NotNow> {
        if let Some(moving) = &self.moving {
            return Err(NotNow::Moving(moving.donor()));
        }
        let standing = members.standing();
        let is_not_whole = |other: &usize| *other != donor && standing[*other] != DonorStanding::Trusted;
        if let Some(other) = (0..standing.len()).find(is_not_whole) {
            return Err(NotNow::NotWhole(other));
        }
        match standing[donor] {
            DonorStanding::Trusted if is_connected => Ok(false),
            DonorStanding::Trusted => Err(NotNow::Silent),
            DonorStanding::Out => Ok(true),
            _ => Err(NotNow::Unsettled),
        }
    }

    /// Begins a move that [`Self::check`] allows; returns its number.
    pub fn begin(&mut self, plan: MovePlan, is_left: bool, session: S) -> u64 {
        self.number += 1;
        self.moving = Some(ActiveMove { plan, kept: Vec::new(), is_left, session });
        self.number
    }

    /// The other donor is owned by this client, and has the record of the former one unless that is left. *Returns* what
    /// follows; `None`: there is no move.
    pub fn prepared(&mut self, members: &dyn MoveMachine) -> Option<PreparationResult> {
        let moving = self.moving.as_mut()?;
        Some(match moving.is_left {
            false => {
                moving.plan.prepared();
                PreparationResult::Copies
            }
            true if members.standing()[moving.plan.donor] == DonorStanding::Out => {
                moving.plan.placed();
                PreparationResult::TakesPlace
            }
            true => PreparationResult::IsBack,
        })
    }

    fn of(&mut self, donor: Donor) -> Option<&mut ActiveMove<S>> {
        self.moving.as_mut().filter(|moving| moving.plan.donor == donor)
    }

    /// Notes a request of the machine. *Returns* it if it has to be sent now: if the donor has a connection
    /// (`is_connected`), and the request is not kept.
    pub fn send(
        &mut self,
        donor: Donor,
        request: RequestId,
        body: DonorRequest,
        is_connected: bool,
    ) -> Option<DonorRequest> {
        let (offset, bytes) = changed(&body);
        if let Some(moving) = self.of(donor) {
            if moving.plan.is_paused() {
                if !planted(MirrorBug::KeptForgotten) {
                    moving.kept.push((request, body));
                }
                return None;
            }
            moving.plan.touch(offset, bytes);
        }
        if !is_connected {
            return None;
        }
        self.under_way[donor].insert(request, (offset, bytes));
        Some(body)
    }

    /// A request is answered.
    pub fn answered(&mut self, donor: Donor, request: RequestId) {
        let range = self.under_way[donor].remove(&request);
        if let (Some(moving), Some((offset, bytes))) = (self.of(donor), range)
            && !planted(MirrorBug::AnswerForgotten)
        {
            moving.plan.touch(offset, bytes);
        }
    }

    /// The connection to a donor is lost.
    pub fn lost(&mut self, donor: Donor) {
        let ranges = std::mem::take(&mut self.under_way[donor]);
        let Some(moving) = self.of(donor) else { return };
        if !planted(MirrorBug::LossForgotten) {
            ranges.into_values().for_each(|(offset, bytes)| moving.plan.touch(offset, bytes));
        }
        moving.kept.clear();
    }

    /// What to do next. Call it after each step of the machine, until it says [`MoveStep::Wait`]. The requests of
    /// [`MoveStep::GoOn`] are those of [`Self::take_kept`].
    pub fn next(&mut self, now_us: Moment, members: &dyn MoveMachine) -> MoveStep {
        let Some(moving) = &mut self.moving else { return MoveStep::Wait };
        let is_idle = self.under_way[moving.plan.donor].is_empty() || planted(MirrorBug::SwitchBeforeAnswer);
        let next = moving.plan.next(now_us, members, is_idle);
        if matches!(next, MoveStep::Stop(MoveStop::OtherLost(_))) {
            // A spare that was meant for this donor is free for the lost one.
            self.need.try_again();
        }
        next
    }

    /// Takes the requests that were kept.
    pub fn take_kept(&mut self) -> Vec<Kept> {
        self.moving.as_mut().map(|moving| std::mem::take(&mut moving.kept)).unwrap_or_default()
    }

    /// A part was copied by the move of this number, or not.
    pub fn copied(&mut self, number: u64, part: u64, is_done: bool) {
        if self.is_present(number)
            && let Some(moving) = &mut self.moving
        {
            moving.plan.copied(part, is_done);
        }
    }

    /// The other donor takes the place: what was kept comes again on the next connection.
    pub fn switched(&mut self) {
        if let Some(moving) = &mut self.moving {
            moving.plan.switched();
            moving.kept.clear();
            self.under_way[moving.plan.donor].clear();
        }
    }

    /// Returns why the other donor has to be given up, if it is being filled. `lost_after_us`: how long a lost donor is
    /// waited for; `filled`: what the other donor has got, in any unit.
    pub fn hopeless(
        &mut self,
        now_us: Moment,
        lost_after_us: Moment,
        members: &dyn MoveMachine,
        filled: u64,
    ) -> Option<String> {
        let moving = self.moving.as_mut()?;
        let (donor, standing) = (moving.plan.donor, members.standing());
        let is_well = |other: Donor| {
            standing[other] == DonorStanding::Trusted && members.link_state(other) == Some(LinkState::Claimed)
        };
        let are_well = (0..standing.len()).all(|other| other == donor || is_well(other));
        let is_away = members.link_state(donor) == Some(LinkState::Down);
        let seen = FillingObservation { standing: standing[donor], is_away, are_well, filled };
        moving.plan.hopeless(now_us, lost_after_us, seen)
    }

    /// Ends the move; `is_done`: the other donor has the place for good.
    pub fn end(&mut self, is_done: bool) -> Option<EndedMove<S>> {
        let ActiveMove { plan, kept, session, .. } = self.moving.take()?;
        self.number += 1;
        if is_done {
            self.need.filled();
        }
        Some(EndedMove { donor: plan.donor, stage: plan.stage(), kept, session })
    }

    /// Whether the other donor may differ from the one that is copied, in a part. A simulator, which sees both, checks
    /// that all other parts are equal.
    pub fn may_differ(&self, part: u64) -> bool {
        let Some(ActiveMove { plan, .. }) = &self.moving else { return true };
        let (first, length) = plan.part(part);
        let is_there = |(offset, bytes): &(u64, u64)| *offset < first + length && first < offset.saturating_add(*bytes);
        plan.lacks(part) || self.under_way[plan.donor].values().any(is_there)
    }
}

/// The bytes that a request changes: offset and length.
fn changed(body: &DonorRequest) -> (u64, u64) {
    match body {
        DonorRequest::Write { offset, data, .. } => (*offset, data.len() as u64),
        DonorRequest::WriteZeroes { offset, bytes, .. } | DonorRequest::Trim { offset, bytes } => (*offset, *bytes),
        DonorRequest::Read { .. } | DonorRequest::ReadMetadata | DonorRequest::SwapMetadata { .. } => (0, 0),
    }
}
