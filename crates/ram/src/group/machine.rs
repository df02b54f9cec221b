//! The machine: events in, actions and news out.
//!
//! Owns: the connections' events, requests and replies, deadlines, and the order in which the parts of the machine act.
//! Promises: after each event, all actions that follow from it are listed; each request of the machine above is
//! reported once: as done, with its data, or as dropped with its connection. A dropped request may have been executed,
//! but takes no effect after the donor is claimed again.

use std::collections::VecDeque;

use bytes::Bytes;

use super::configuration::{GroupConfiguration, MachineTimes};
use super::error::AttachRefusal;
use super::event::{Donor, DonorReply, DonorRequest, MachineAction, MachineEvent, Moment, RequestId};
use super::figures::GroupFigures;
use super::link::{GroupLink, LinkState, MetadataContent, OutstandingPurpose, OutstandingRequest};
use super::standing::{DonorMembership, DonorStanding};
use crate::format::{MembershipView, RecordGeometry, RecordStamp, StripeSet};

/// After this many ticks' time without an event, the process must have been stopped.
const STANDSTILL_TICKS: u64 = 3;
/// The length of the read that asks a donor whether this client still has the device. *Units*: bytes.
const PING_BYTES: u64 = 16;

/// The phase of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupPhase {
    /// Reads the donors' records.
    Survey,
    /// Makes this client the owner of each donor.
    Claim,
    /// Stores the view, and waits for the end of an old client's lease.
    Opening,
    /// The donors can be used.
    Open,
    /// The last records are stored.
    Detaching,
    /// The machine has ended.
    Ended,
}

/// What the machine above has to know.
#[derive(Debug)]
pub(crate) enum GroupNews {
    /// A request is done.
    Done { tag: u64 },
    /// A request read this data.
    Data { tag: u64, data: Bytes },
    /// The connection ended before the answer to a request.
    Dropped { tag: u64 },
    /// The others have stored that a donor is left, or it is lost: nothing waits for it any more.
    Out { donor: Donor },
}

/// The donors of a device, as its client sees them.
#[derive(Debug)]
pub struct GroupMachine {
    pub(super) configuration: GroupConfiguration,
    pub(super) now_us: Moment,
    pub(super) began_us: Moment,
    pub(super) phase: GroupPhase,
    pub(super) phase_until_us: Moment,
    pub(super) claim_rounds: u32,
    pub(super) generation: u64,
    pub(super) links: Vec<GroupLink>,
    pub(super) membership: DonorMembership,
    /// The stripes whose marks the donors have to store.
    pub(super) marked: StripeSet,
    pub(super) has_changed: bool,
    pub(super) is_final: bool,
    pub(super) figures: GroupFigures,
    actions: VecDeque<MachineAction>,
    pub(super) news: Vec<GroupNews>,
    next_request: RequestId,
    ticked_us: Moment,
    /// Until this time no donor counts as late: the process was stopped, and answers may not have been read yet.
    pub(super) lenient_until_us: Moment,
    /// Whether each donor is waited for in vain; see `absence`.
    pub(super) absent: Vec<bool>,
    /// Whether something has changed that may let requests of the machine above continue.
    pub(super) has_more: bool,
}

impl GroupMachine {
    /// Makes a machine that begins to attach or create its device.
    ///
    /// *Errors*: a geometry that is not possible.
    pub(crate) fn new(configuration: GroupConfiguration, now_us: Moment) -> Result<GroupMachine, AttachRefusal> {
        let geometry = configuration.geometry;
        geometry.check()?;
        Ok(GroupMachine {
            now_us,
            began_us: now_us,
            phase: GroupPhase::Survey,
            phase_until_us: now_us + configuration.times.survey_us,
            claim_rounds: 0,
            generation: 0,
            links: (0..geometry.members).map(|_| GroupLink::new(now_us)).collect(),
            membership: DonorMembership::new(&geometry),
            marked: StripeSet::none(geometry.marks()),
            has_changed: false,
            is_final: false,
            figures: GroupFigures::default(),
            actions: VecDeque::new(),
            news: Vec::new(),
            next_request: 1,
            ticked_us: now_us,
            lenient_until_us: now_us,
            absent: vec![false; usize::from(geometry.members)],
            has_more: false,
            configuration,
        })
    }

    /// Handles an event that happened at `now_us`. Returns whether deadlines were checked. The actions and the news that
    /// follow are then in `actions` and `take_news`.
    pub(crate) fn step(&mut self, now_us: Moment, event: MachineEvent) -> bool {
        let times = self.configuration.times;
        if now_us >= self.now_us + STANDSTILL_TICKS * times.tick_us {
            self.lenient_until_us = now_us + times.suspect_us;
        }
        self.now_us = self.now_us.max(now_us);
        if self.phase == GroupPhase::Ended {
            return false;
        }
        match event {
            MachineEvent::Connected { donor, incarnation } if donor < self.links.len() => {
                self.connected(donor, incarnation)
            }
            MachineEvent::Disconnected { donor } if donor < self.links.len() => self.drop_link(donor),
            MachineEvent::Replied { donor, request, reply } if donor < self.links.len() => {
                self.replied(donor, request, reply)
            }
            MachineEvent::Replaced { donor, incarnation } if donor < self.links.len() => {
                self.replaced(donor, incarnation)
            }
            MachineEvent::Detach if self.phase == GroupPhase::Open => {
                (self.phase, self.phase_until_us) = (GroupPhase::Detaching, self.now_us + self.patience_us());
            }
            MachineEvent::Detach => self.end(MachineAction::Detached),
            MachineEvent::Time
            | MachineEvent::Scrub
            | MachineEvent::Submitted { .. }
            | MachineEvent::Connected { .. }
            | MachineEvent::Disconnected { .. }
            | MachineEvent::Replied { .. }
            | MachineEvent::Replaced { .. } => {}
        }
        let is_tick = self.now_us >= self.ticked_us + self.configuration.times.tick_us;
        if is_tick {
            self.ticked_us = self.now_us;
            self.tick();
        }
        self.settle();
        is_tick
    }

    /// Takes the actions that the driver has to do.
    pub(crate) fn actions(&mut self) -> impl Iterator<Item = MachineAction> + '_ {
        self.actions.drain(..)
    }

    /// Takes the news since the last call, in the order in which they happened.
    pub(crate) fn take_news(&mut self) -> Vec<GroupNews> {
        std::mem::take(&mut self.news)
    }

    /// Returns the time at which [`MachineEvent::Time`] has to come at the latest; `None` after the end.
    pub fn wake_at(&self) -> Option<Moment> {
        (self.phase != GroupPhase::Ended).then_some(self.ticked_us + self.configuration.times.tick_us)
    }

    /// The current phase of the machine.
    pub fn phase(&self) -> GroupPhase {
        self.phase
    }

    /// Returns the counters since the start.
    pub fn figures(&self) -> GroupFigures {
        self.figures
    }

    /// Returns the view: which donors have the device's data, as this client decided.
    pub fn view(&self) -> &MembershipView {
        &self.membership.view
    }

    /// The state of the connection to a donor; `None` if there is no such donor.
    pub fn link_state(&self, donor: Donor) -> Option<LinkState> {
        self.links.get(donor).map(|link| link.state)
    }

    /// Whether this client owns the donor on the present connection, so that requests can be sent.
    pub(crate) fn is_claimed(&self, donor: Donor) -> bool {
        self.links[donor].state == LinkState::Claimed && !self.links[donor].is_empty
    }

    /// Whether a donor has lost its memory of the device.
    pub(crate) fn is_empty(&self, donor: Donor) -> bool {
        self.links[donor].is_empty
    }

    /// Returns the number of requests to a donor without an answer.
    pub(crate) fn load(&self, donor: Donor) -> usize {
        self.links[donor].outstanding.len()
    }

    /// Whether a donor certainly has the mark of a stripe.
    pub(crate) fn is_marked(&self, donor: Donor, stripe: u64) -> bool {
        self.links[donor].is_marked(stripe)
    }

    /// Returns the stripes that a trusted donor's record has marked.
    pub(crate) fn marks_of_trusted(&self) -> impl Iterator<Item = u64> + '_ {
        let trusted = self.links.iter().zip(&self.membership.standing);
        let trusted = trusted.filter(|(_, standing)| **standing == DonorStanding::Trusted);
        trusted.filter_map(|(link, _)| link.record()).flat_map(|record| record.dirty.iter())
    }

    /// Changes which stripe's mark has to be stored. The donors store it with their next record, and at once if that is
    /// wanted.
    pub(crate) fn mark(&mut self, stripe: u64, is_marked: bool, is_wanted: bool) {
        self.marked.set(stripe, is_marked);
        if is_wanted {
            for donor in self.markers(stripe).into_iter().flatten() {
                self.links[donor].is_stale = true;
            }
        }
    }

    /// Returns the stripes whose marks have to be stored.
    pub(crate) fn marked(&self) -> &StripeSet {
        &self.marked
    }

    pub(super) fn markers(&self, stripe: u64) -> Option<[Donor; 2]> {
        (self.configuration.markers)(&self.configuration.geometry, stripe)
    }

    /// Returns the generation of this client.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether something has changed since the last call that may let requests of the machine above continue.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_more)
    }

    /// Returns the geometry of the device.
    pub(crate) fn geometry(&self) -> RecordGeometry {
        self.configuration.geometry
    }

    /// Returns how many donors may be missing.
    pub(super) fn losses_max(&self) -> usize {
        self.configuration.geometry.losses_max()
    }

    /// Returns the time limits.
    pub(crate) fn times(&self) -> &MachineTimes {
        &self.configuration.times
    }

    /// Returns the time of the last event.
    pub(crate) fn now_us(&self) -> Moment {
        self.now_us
    }

    pub(crate) fn patience_us(&self) -> Moment {
        self.configuration.times.patience_us
    }

    pub(super) fn act(&mut self, action: MachineAction) {
        self.actions.push_back(action);
    }

    /// Ends the machine.
    pub(crate) fn end(&mut self, last: MachineAction) {
        self.phase = GroupPhase::Ended;
        self.act(last);
    }

    fn connected(&mut self, donor: Donor, incarnation: u64) {
        self.drop_link(donor);
        let link = &mut self.links[donor];
        (link.state, link.incarnation) = (LinkState::Reading, incarnation);
        self.send(donor, OutstandingPurpose::Metadata, DonorRequest::ReadMetadata);
    }

    /// Handles the loss of a connection. Its unanswered requests may be done already, later, or never.
    pub(super) fn drop_link(&mut self, donor: Donor) {
        let link = &mut self.links[donor];
        if link.state == LinkState::Claimed {
            link.down_since_us = self.now_us;
        }
        link.state = LinkState::Down;
        for outstanding in std::mem::take(&mut link.outstanding).into_values() {
            if let OutstandingPurpose::Outside { tag } = outstanding.purpose {
                self.news.push(GroupNews::Dropped { tag });
            }
        }
        self.has_changed = true;
    }

    pub(super) fn disconnect(&mut self, donor: Donor) {
        if self.links[donor].state != LinkState::Down {
            self.drop_link(donor);
            self.act(MachineAction::Disconnect { donor });
        }
    }

    pub(super) fn send(&mut self, donor: Donor, purpose: OutstandingPurpose, body: DonorRequest) {
        let request = self.next_request;
        self.next_request += 1;
        self.links[donor].outstanding.insert(request, OutstandingRequest { sent_us: self.now_us, purpose });
        self.act(MachineAction::Send { donor, request, body });
    }

    /// Sends a request of the machine above to a claimed donor.
    pub(crate) fn send_outside(&mut self, donor: Donor, tag: u64, body: DonorRequest) {
        self.send(donor, OutstandingPurpose::Outside { tag }, body);
    }

    /// Whether a stamp is one that this client stored.
    pub(super) fn is_mine(&self, stamp: RecordStamp) -> bool {
        let is_client = stamp.client == self.configuration.client || self.is_final && stamp.client == 0;
        stamp.generation == self.generation && is_client
    }

    fn replied(&mut self, donor: Donor, request: RequestId, reply: DonorReply) {
        let Some(OutstandingRequest { sent_us, purpose }) = self.links[donor].outstanding.remove(&request) else {
            return self.note_late_reply();
        };
        self.links[donor].answered_us = self.now_us;
        match (purpose, reply) {
            (OutstandingPurpose::Metadata, DonorReply::Metadata { area, is_owned }) => {
                let geometry = self.configuration.geometry;
                self.links[donor].read(&area, is_owned, &geometry, donor);
                self.has_changed = true;
                self.metadata_read(donor);
            }
            (OutstandingPurpose::Ping, DonorReply::Data(_)) => self.prove(donor, sent_us),
            (OutstandingPurpose::Swap(record), DonorReply::Done) => {
                let link = &mut self.links[donor];
                (link.stamp, link.content) = (record.stamp, MetadataContent::Record(record));
                if link.state == LinkState::Claiming {
                    link.state = LinkState::Claimed;
                }
                self.has_changed = true;
                self.prove(donor, sent_us);
            }
            (OutstandingPurpose::Swap(_), DonorReply::SwapRefused) => {
                let link = &mut self.links[donor];
                if link.state == LinkState::Claimed {
                    link.down_since_us = self.now_us;
                }
                link.state = LinkState::Reading;
                self.send(donor, OutstandingPurpose::Metadata, DonorRequest::ReadMetadata);
            }
            (OutstandingPurpose::Outside { tag }, DonorReply::Done) => {
                self.prove(donor, sent_us);
                self.news.push(GroupNews::Done { tag });
            }
            (OutstandingPurpose::Outside { tag }, DonorReply::Data(data)) => {
                self.prove(donor, sent_us);
                self.news.push(GroupNews::Data { tag, data });
            }
            (purpose, reply) => {
                // The answer is an error, or does not belong to the request: the request counts as unanswered.
                if reply != DonorReply::NotOwner {
                    self.links[donor].troubles += 1;
                }
                self.links[donor].outstanding.insert(request, OutstandingRequest { sent_us, purpose });
                self.disconnect(donor);
            }
        }
    }

    /// Ends the connection to a donor whose answer does not belong to its request.
    pub(crate) fn misanswered(&mut self, donor: Donor) {
        self.links[donor].troubles += 1;
        self.disconnect(donor);
    }

    /// Counts an answer that is not needed any more.
    pub(crate) fn note_late_reply(&mut self) {
        self.figures.late_replies += 1;
    }

    /// Counts wrong answers.
    pub(crate) fn note_wrong_answers(&mut self, count: u64) {
        self.figures.lies += count;
    }

    /// Notes that a donor returned wrong bytes, and may be left for it.
    pub(crate) fn trouble(&mut self, donor: Donor) {
        self.figures.lies += 1;
        self.links[donor].troubles += 1;
    }

    /// Notes that the donor served this client at `sent_us` or later.
    fn prove(&mut self, donor: Donor, sent_us: Moment) {
        let link = &mut self.links[donor];
        link.proof_us = link.proof_us.max(Some(sent_us));
    }

    /// Whether no other client can have begun to change the device by now.
    pub(crate) fn has_proof(&self) -> bool {
        let lease_us = self.configuration.times.lease_us;
        let is_proven = |proof_us: Option<Moment>| proof_us.is_some_and(|proof_us| proof_us + lease_us > self.now_us);
        let is_proof = |donor: &Donor| {
            self.membership.standing[*donor] == DonorStanding::Trusted && is_proven(self.links[*donor].proof_us)
        };
        (0..self.links.len()).filter(is_proof).count() >= self.proofs_needed()
    }

    /// Returns how many donors must have confirmed that this client has the device. Without redundancy none: a client that
    /// takes it over owns every donor before it changes anything, and a donor answers its owner alone.
    pub(crate) fn proofs_needed(&self) -> usize {
        if self.losses_max() == 0 {
            return 0;
        }
        let is_leaving = self.membership.standing.contains(&DonorStanding::Leaving);
        if self.is_whole() || is_leaving { 2 } else { 1 }
    }

    /// Whether no other client can have begun to change the device before `began_us`, because a donor has confirmed
    /// this since. Answers from the client's memory need this proof: a donor refuses requests of a client that was
    /// replaced, but the memory cannot.
    pub(crate) fn is_proven_since(&self, began_us: Moment) -> bool {
        let is_fresh = |(donor, link): (usize, &GroupLink)| {
            let is_trusted = self.membership.standing[donor] == DonorStanding::Trusted;
            is_trusted && link.proof_us.is_some_and(|proof_us| proof_us >= began_us)
        };
        self.has_proof() && self.links.iter().enumerate().any(is_fresh)
    }

    /// Asks one donor whether this client still has the device, unless such a question is in progress; asks the next one
    /// if the answer is late, and all donors if their last answers are too old.
    pub(crate) fn prove_again(&mut self) {
        if !self.has_proof() {
            return self.ping_all();
        }
        let suspect_us = self.configuration.times.suspect_us;
        for donor in 0..self.links.len() {
            let link = &self.links[donor];
            if link.state != LinkState::Claimed || self.membership.standing[donor] != DonorStanding::Trusted {
                continue;
            }
            match link.ping_us() {
                None => return self.ping(donor),
                Some(sent_us) if self.now_us < sent_us + suspect_us => return,
                Some(_) => {}
            }
        }
    }

    /// Asks a donor whether this client still has the device: a donor refuses reads of a client that was replaced.
    fn ping(&mut self, donor: Donor) {
        self.send(donor, OutstandingPurpose::Ping, DonorRequest::Read { offset: 0, bytes: PING_BYTES });
    }

    /// Asks every claimed donor, unless the question is in progress.
    pub(crate) fn ping_all(&mut self) {
        for donor in 0..self.links.len() {
            if self.links[donor].state == LinkState::Claimed && self.links[donor].ping_us().is_none() {
                self.ping(donor);
            }
        }
    }

    /// Lets each part of the machine act, until no part has anything to do; also after the machine above has told it
    /// something.
    pub(crate) fn settle(&mut self) {
        while self.phase != GroupPhase::Ended {
            self.advance_attach();
            if self.phase == GroupPhase::Ended {
                return;
            }
            self.advance_membership();
            if self.has_absent() {
                self.note_absent();
            }
            let has_changed = std::mem::take(&mut self.has_changed);
            self.has_more |= has_changed;
            self.store_records();
            if !has_changed && !self.has_changed {
                return;
            }
        }
    }

    /// Checks the deadlines.
    fn tick(&mut self) {
        let times = self.configuration.times;
        let now_us = self.now_us;
        for donor in 0..self.links.len() {
            let link = &self.links[donor];
            let is_idle = link.state == LinkState::Claimed && link.outstanding.is_empty();
            if is_idle && link.proof_us.is_none_or(|proof_us| proof_us + times.ping_us <= now_us) {
                self.ping(donor);
            }
            // If reading the area or claiming gets no answer, the donor is connected again.
            if self.links[donor].is_stuck(now_us, times.leave_us) {
                self.disconnect(donor);
            }
        }
        self.note_absent();
        self.look_at_donors();
    }
}
