//! The machine: events in, actions out.
//!
//! Owns: the connections' events, requests and replies, deadlines, and the order in which the parts of the machine act.
//! Promises: after each event, all actions that follow from it are listed.
//!
//! *Circle*: the parts of the machine are methods of [`MirrorMachine`] and share its fields; each duty has a file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use super::checksums::BlockChecksums;
use super::configuration::{MirrorConfiguration, OPERATIONS_MAX, REQUEST_BYTES_MAX};
use super::dirty::DirtyStripes;
use super::error::{AttachRefusal, MirrorError};
use super::event::{Donor, DonorReply, DonorRequest, MirrorAction, MirrorEvent, MirrorRequest, Moment, RequestId};
use super::figures::MirrorFigures;
use super::layout::MirrorRing;
use super::link::{LinkState, MetadataContent, MirrorLink, OutstandingPurpose, OutstandingRequest};
use super::locks::OperationLocks;
use super::membership::{DonorMembership, DonorStanding};
use super::operation::{MirrorOperation, MirrorWork, PartState};
use super::outside::BaseRequestOutcome;
use super::parity::rows::{MachineSizes, ParityLayout};
use super::scrub::MirrorScrubStep;
use crate::format::{MembershipView, RecordStamp};
use crate::planted::{MirrorBug, planted};
use crate::scrub::Scrub;

/// After this many ticks' time without an event, the process must have been stopped.
const STANDSTILL_TICKS: u64 = 3;

/// The phase of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirrorPhase {
    /// Reads the donors' records.
    Survey,
    /// Makes this client the owner of each donor.
    Claim,
    /// Stores the view, and waits for the end of an old client's lease.
    Opening,
    /// Makes the copies of dirty stripes equal.
    Resync,
    /// The device is in use.
    Open,
    /// Finishes the operations in progress.
    Detaching,
    /// The machine has ended.
    Ended,
}

/// A mirrored device, as its client sees it.
#[derive(Debug)]
pub struct MirrorMachine {
    pub(super) configuration: MirrorConfiguration,
    pub(super) ring: MirrorRing,
    pub(super) rows: ParityLayout,
    pub(super) now_us: Moment,
    pub(super) began_us: Moment,
    pub(super) phase: MirrorPhase,
    pub(super) phase_until_us: Moment,
    pub(super) claim_rounds: u32,
    pub(super) generation: u64,
    pub(super) links: Vec<MirrorLink>,
    pub(super) membership: DonorMembership,
    pub(super) operations: BTreeMap<u64, MirrorOperation>,
    pub(super) locks: OperationLocks,
    pub(super) dirty: DirtyStripes,
    pub(super) checksums: BlockChecksums,
    pub(super) scrub: Scrub,
    pub(super) scrub_step: Option<MirrorScrubStep>,
    /// Operations that may be able to continue.
    pub(super) ready: BTreeSet<u64>,
    /// Reads that have their data, and wait for the proof that no other client has the device.
    pub(super) held: BTreeSet<u64>,
    /// Whether every operation must be checked for progress.
    pub(super) has_changed: bool,
    pub(super) is_final: bool,
    pub(super) figures: MirrorFigures,
    actions: VecDeque<MirrorAction>,
    /// The outcomes of requests of the machine above.
    pub(super) outside: Vec<BaseRequestOutcome>,
    next_request: RequestId,
    next_operation: u64,
    ticked_us: Moment,
    /// Until this time no donor counts as late: the process was stopped, and answers may not have been read yet.
    pub(super) lenient_until_us: Moment,
    /// Whether each donor is waited for in vain, and whether any is; see `absence`.
    pub(super) absent: Vec<bool>,
    pub(super) has_absent: bool,
}

impl MirrorMachine {
    /// Makes a machine that begins to attach or create its device.
    ///
    /// *Errors*: see [`MirrorConfiguration::check`].
    pub fn new(configuration: MirrorConfiguration, now_us: Moment) -> Result<MirrorMachine, AttachRefusal> {
        configuration.check()?;
        let geometry = configuration.geometry;
        let MachineSizes { checked_blocks, scrub_unit_bytes, scrub_units } = MachineSizes::new(&geometry);
        Ok(MirrorMachine {
            ring: MirrorRing::new(&geometry),
            rows: ParityLayout::new(&geometry),
            now_us,
            began_us: now_us,
            phase: MirrorPhase::Survey,
            phase_until_us: now_us + configuration.times.survey_us,
            claim_rounds: 0,
            generation: 0,
            links: (0..geometry.members).map(|_| MirrorLink::new(now_us)).collect(),
            membership: DonorMembership::new(&geometry),
            operations: BTreeMap::new(),
            locks: OperationLocks::default(),
            dirty: DirtyStripes::new(geometry.stripes()),
            checksums: BlockChecksums::new(checked_blocks, geometry.block_bytes),
            scrub: Scrub::new(&configuration.times, scrub_unit_bytes, scrub_units, now_us),
            scrub_step: None,
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            has_changed: false,
            is_final: false,
            figures: MirrorFigures::default(),
            actions: VecDeque::new(),
            outside: Vec::new(),
            next_request: 1,
            next_operation: 1,
            ticked_us: now_us,
            lenient_until_us: now_us,
            absent: vec![false; usize::from(geometry.members)],
            has_absent: false,
            configuration,
        })
    }

    /// Handles an event that happened at `now_us`. The actions that follow are then in [`actions`](Self::actions).
    pub fn step(&mut self, now_us: Moment, event: MirrorEvent) {
        let times = self.configuration.times;
        if now_us >= self.now_us + STANDSTILL_TICKS * times.tick_us {
            self.lenient_until_us = now_us + times.suspect_us;
        }
        self.now_us = self.now_us.max(now_us);
        if self.phase == MirrorPhase::Ended {
            if let MirrorEvent::Submitted { id, .. } = event {
                self.actions.push_back(MirrorAction::Complete { id, result: Err(MirrorError::NotAttached) });
            }
            return;
        }
        match event {
            MirrorEvent::Connected { donor, incarnation } if donor < self.links.len() => {
                self.connected(donor, incarnation)
            }
            MirrorEvent::Disconnected { donor } if donor < self.links.len() => self.drop_link(donor),
            MirrorEvent::Replied { donor, request, reply } if donor < self.links.len() => {
                self.replied(donor, request, reply)
            }
            MirrorEvent::Submitted { id, request } => self.submitted(id, request),
            MirrorEvent::Replaced { donor, incarnation } if donor < self.links.len() => {
                self.replaced(donor, incarnation)
            }
            MirrorEvent::Detach if self.phase == MirrorPhase::Open => {
                (self.phase, self.phase_until_us) = (MirrorPhase::Detaching, self.now_us + self.patience_us());
            }
            MirrorEvent::Detach => self.end(MirrorAction::Detached, MirrorError::NotAttached),
            MirrorEvent::Scrub => self.scrub.request(self.now_us),
            MirrorEvent::Time
            | MirrorEvent::Connected { .. }
            | MirrorEvent::Disconnected { .. }
            | MirrorEvent::Replied { .. }
            | MirrorEvent::Replaced { .. } => {}
        }
        if self.now_us >= self.ticked_us + self.configuration.times.tick_us {
            self.ticked_us = self.now_us;
            self.tick();
        }
        self.settle();
    }

    /// Takes the actions that the driver has to do.
    pub fn actions(&mut self) -> impl Iterator<Item = MirrorAction> + '_ {
        self.actions.drain(..)
    }

    /// Returns the time at which [`MirrorEvent::Time`] has to come at the latest; `None` after the end.
    pub fn wake_at(&self) -> Option<Moment> {
        (self.phase != MirrorPhase::Ended).then_some(self.ticked_us + self.configuration.times.tick_us)
    }

    /// The current phase of the machine.
    pub fn phase(&self) -> MirrorPhase {
        self.phase
    }

    /// Returns the counters since the start.
    pub fn figures(&self) -> MirrorFigures {
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

    /// Returns the number of operations in progress, including the machine's own copies.
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// Whether a wrong copy of a block would be detected.
    pub fn knows_checksum(&self, block: u64) -> bool {
        self.checksums.knows(block)
    }

    pub(super) fn patience_us(&self) -> Moment {
        self.configuration.times.patience_us
    }

    pub(super) fn act(&mut self, action: MirrorAction) {
        self.actions.push_back(action);
    }

    /// Ends the machine.
    pub(super) fn end(&mut self, last: MirrorAction, error: MirrorError) {
        self.phase = MirrorPhase::Ended;
        for operation in std::mem::take(&mut self.operations).into_values() {
            if let Some(id) = operation.user {
                self.figures.failed += 1;
                self.act(MirrorAction::Complete { id, result: Err(error.clone()) });
            }
        }
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
        for (request, outstanding) in std::mem::take(&mut link.outstanding) {
            match outstanding.purpose {
                // A part that is excused stays so: its donor will not be asked again.
                OutstandingPurpose::Part { operation, part } => {
                    let operation = self.operations.get_mut(&operation);
                    if let Some(operation) =
                        operation.filter(|operation| operation.parts[part].state == PartState::Sent)
                    {
                        let is_trusted = self.membership.standing[donor] == DonorStanding::Trusted;
                        let skipped = planted(MirrorBug::ReplaySkipped) && operation.work.is_change() && is_trusted;
                        let state = if skipped { PartState::Done } else { PartState::Unsent };
                        operation.parts[part].state = state;
                        self.figures.replayed += u64::from(operation.work.is_change());
                    }
                }
                OutstandingPurpose::Piece { operation, piece } => {
                    if let Some(operation) = self.operations.get_mut(&operation) {
                        operation.pieces[piece].asked.retain(|asked| asked.request != request);
                    }
                }
                OutstandingPurpose::Outside { tag } => self.outside.push(BaseRequestOutcome::Dropped { tag }),
                OutstandingPurpose::Metadata | OutstandingPurpose::Ping | OutstandingPurpose::Swap(_) => {}
            }
        }
        self.has_changed = true;
    }

    pub(super) fn disconnect(&mut self, donor: Donor) {
        if self.links[donor].state != LinkState::Down {
            self.drop_link(donor);
            self.act(MirrorAction::Disconnect { donor });
        }
    }

    pub(super) fn send(&mut self, donor: Donor, purpose: OutstandingPurpose, body: DonorRequest) -> RequestId {
        let request = self.next_request;
        self.next_request += 1;
        self.links[donor].outstanding.insert(request, OutstandingRequest { sent_us: self.now_us, purpose });
        self.act(MirrorAction::Send { donor, request, body });
        request
    }

    /// Whether a stamp is one that this client stored.
    pub(super) fn is_mine(&self, stamp: RecordStamp) -> bool {
        let is_client = stamp.client == self.configuration.client || self.is_final && stamp.client == 0;
        stamp.generation == self.generation && is_client
    }

    fn replied(&mut self, donor: Donor, request: RequestId, reply: DonorReply) {
        let Some(OutstandingRequest { sent_us, purpose }) = self.links[donor].outstanding.remove(&request) else {
            self.figures.late_replies += 1;
            return;
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
            (OutstandingPurpose::Part { operation, part }, DonorReply::Done) => {
                self.prove(donor, sent_us);
                self.part_done(operation, part);
            }
            (OutstandingPurpose::Piece { operation, piece }, DonorReply::Data(data)) => {
                self.prove(donor, sent_us);
                self.piece_read(operation, piece, donor, request, data);
            }
            (OutstandingPurpose::Outside { tag }, DonorReply::Done) => {
                self.prove(donor, sent_us);
                self.outside.push(BaseRequestOutcome::Done { tag });
            }
            (OutstandingPurpose::Outside { tag }, DonorReply::Data(data)) => {
                self.prove(donor, sent_us);
                self.outside.push(BaseRequestOutcome::Data { tag, data });
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

    /// Notes that the donor served this client at `sent_us` or later.
    fn prove(&mut self, donor: Donor, sent_us: Moment) {
        let link = &mut self.links[donor];
        link.proof_us = link.proof_us.max(Some(sent_us));
        self.ready.extend(self.held.iter().copied());
    }

    fn submitted(&mut self, id: u64, request: MirrorRequest) {
        let refused = match self.phase {
            MirrorPhase::Open if self.operations.len() >= OPERATIONS_MAX => Some(MirrorError::Busy),
            MirrorPhase::Open if !self.configuration.geometry.is_log() => None,
            _ => Some(MirrorError::NotAttached),
        };
        let (offset, bytes, work) = match request {
            MirrorRequest::Read { offset, bytes } => (offset, bytes, MirrorWork::Read),
            MirrorRequest::Write { offset, data, force } => {
                (offset, data.len() as u64, MirrorWork::Write { data, is_forced: force })
            }
            MirrorRequest::WriteZeroes { offset, bytes, force } => {
                (offset, bytes, MirrorWork::Zeroes { is_forced: force })
            }
            MirrorRequest::Trim { offset, bytes } => (offset, bytes, MirrorWork::Trim),
            MirrorRequest::Flush => return self.flushed(id, refused),
        };
        let geometry = &self.configuration.geometry;
        let block = u64::from(geometry.block_bytes);
        let is_whole = offset % block == 0 && bytes % block == 0 && bytes > 0 && bytes <= REQUEST_BYTES_MAX;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= geometry.bytes);
        let is_good = is_whole && is_inside;
        if let Some(error) = refused.or((!is_good).then_some(MirrorError::Range { offset, bytes })) {
            self.figures.failed += 1;
            return self.act(MirrorAction::Complete { id, result: Err(error) });
        }
        let blocks = offset / block..(offset + bytes) / block;
        let is_change = work.is_change();
        let mut operation = MirrorOperation::new(Some(id), work, blocks, geometry, self.now_us);
        let locked = self.cut(&mut operation);
        self.begin(operation, locked, is_change);
    }

    /// Answers a flush. What was answered before is stored on every donor that has to store it, and donors have no cache.
    fn flushed(&mut self, id: u64, refused: Option<MirrorError>) {
        match refused {
            None => self.figures.completed += 1,
            Some(_) => self.figures.failed += 1,
        }
        self.act(MirrorAction::Complete { id, result: refused.map_or(Ok(Bytes::new()), Err) });
    }

    /// Starts an operation, and returns its number; it runs when no earlier operation uses its blocks.
    pub(super) fn begin(
        &mut self,
        operation: MirrorOperation,
        blocks: std::ops::Range<u64>,
        is_exclusive: bool,
    ) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        if self.locks.take(number, blocks, is_exclusive) {
            self.ready.insert(number);
        } else {
            self.figures.overlapping += 1;
        }
        self.operations.insert(number, operation);
        number
    }

    /// Ends an operation that was removed from the list, and starts those that waited for it.
    pub(super) fn finish(&mut self, number: u64, operation: MirrorOperation, result: Result<Bytes, MirrorError>) {
        self.ready.extend(self.locks.release(number));
        self.held.remove(&number);
        if operation.is_planned && operation.work.is_change() {
            for piece in &operation.pieces {
                self.dirty.end(piece.stripe, self.now_us);
            }
        }
        if let Some(id) = operation.user {
            match &result {
                Ok(_) => self.figures.completed += 1,
                Err(_) => self.figures.failed += 1,
            }
            self.act(MirrorAction::Complete { id, result });
        }
    }

    /// Lets each part of the machine act, until no part has anything to do.
    fn settle(&mut self) {
        while self.phase != MirrorPhase::Ended {
            self.advance_attach();
            if self.phase == MirrorPhase::Ended {
                return;
            }
            self.advance_membership();
            self.advance_copies();
            self.advance_scrub();
            if self.has_absent {
                self.note_absent();
            }
            let has_changed = std::mem::take(&mut self.has_changed);
            if has_changed {
                self.ready.extend(self.operations.keys().copied());
            }
            while let Some(number) = self.ready.pop_first() {
                self.drive(number);
            }
            self.store_records();
            if !has_changed && !self.has_changed && self.ready.is_empty() {
                return;
            }
        }
    }

    fn drive(&mut self, number: u64) {
        if !self.locks.has(number) {
            return;
        }
        if self.has_absent && self.operations.get(&number).is_some_and(|operation| self.is_in_vain(operation)) {
            self.lose_patience(number);
        }
        let Some(operation) = self.operations.remove(&number) else { return };
        let is_parity = self.configuration.geometry.is_parity();
        match operation.work {
            MirrorWork::Read => self.drive_read(number, operation),
            MirrorWork::Copy { to, why } => self.drive_copy(number, operation, to, why),
            MirrorWork::Scrub if is_parity => self.drive_row_scrub(number, operation),
            MirrorWork::Scrub => self.drive_scrub(number, operation),
            _ if is_parity => self.drive_row_change(number, operation),
            MirrorWork::Write { .. } | MirrorWork::Zeroes { .. } | MirrorWork::Trim => {
                self.drive_change(number, operation)
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
        let is_late = |operation: &MirrorOperation| operation.began_us + times.patience_us <= now_us;
        let late: Vec<u64> = self.operations.iter().filter(|(_, late)| is_late(late)).map(|(at, _)| *at).collect();
        for number in late {
            self.lose_patience(number);
        }
        // A read is also sent to the other copy when the first one is late.
        let is_asking = |operation: &MirrorOperation| operation.pieces.iter().any(|piece| !piece.asked.is_empty());
        let asking = self.operations.iter().filter(|(_, operation)| is_asking(operation)).map(|(at, _)| *at);
        self.ready.extend(asking);
        let clean_us = self.clean_us();
        if now_us > clean_us {
            for stripe in self.dirty.clean(now_us - clean_us) {
                self.mark_stale(stripe);
            }
        }
        self.look_at_donors();
        self.retry_rebuild();
        self.drop_late_step();
    }
}
