//! The machine: events in, actions out.
//!
//! Owns: the group, the requests of operations and what each is for, and the order in which the parts of the machine act.
//! Promises: after each event, all actions that follow from it are listed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use super::checksums::BlockChecksums;
use super::configuration::InPlaceConfiguration;
use super::dirty::DirtyStripes;
use super::figures::InPlaceFigures;
use super::layout::{RowLayout, markers};
use super::operation::{InPlaceOperation, InPlaceWork, PartState};
use super::progress::{CopyScrubStep, DonorRebuild};
use crate::group::locks::OperationLocks;
use crate::group::{
    AttachRefusal, DeviceError, Donor, DonorRequest, DonorStanding, GroupConfiguration, GroupMachine, GroupNews,
    GroupPhase, MachineAction, MachineEvent, Moment, OPERATIONS_MAX, REQUEST_BYTES_MAX, RequestId, UserRequest,
};
use crate::planted::{MirrorBug, planted};
use crate::scrub::Scrub;

/// The phase of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPlacePhase {
    /// The group attaches; it has phases itself.
    Attaching,
    /// Makes the copies of dirty stripes equal.
    Resync,
    /// The device is in use.
    Open,
    /// Finishes the operations in progress.
    Detaching,
    /// The machine has ended.
    Ended,
}

/// What a request to a donor is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum InPlaceRequest {
    /// A piece is read.
    Piece { operation: u64, piece: usize, donor: Donor },
    /// A part is stored.
    Part { operation: u64, part: usize, donor: Donor },
}

/// A device that is changed in place, as its client sees it.
#[derive(Debug)]
pub struct InPlaceMachine {
    pub(super) group: GroupMachine,
    pub(super) rows: RowLayout,
    pub(super) phase: InPlacePhase,
    /// When detaching ends at the latest.
    detached_by_us: Moment,
    pub(super) operations: BTreeMap<u64, InPlaceOperation>,
    pub(super) locks: OperationLocks,
    next_operation: u64,
    pub(super) dirty: DirtyStripes,
    pub(super) checksums: BlockChecksums,
    pub(super) scrub: Scrub,
    pub(super) scrub_step: Option<CopyScrubStep>,
    /// Stripes that still have to be made equal after attaching.
    pub(super) resync: Vec<u64>,
    /// The donor that is being filled, and the progress.
    pub(super) rebuild: Option<DonorRebuild>,
    /// Operations that may be able to continue.
    pub(super) ready: BTreeSet<u64>,
    /// Reads that have their data, and wait for the proof that no other client has the device.
    pub(super) held: BTreeSet<u64>,
    /// Whether every operation must be checked for progress.
    pub(super) has_changed: bool,
    pub(super) figures: InPlaceFigures,
    /// The first block that was lost with a donor, without redundancy: no flush succeeds any more.
    lost: Option<u64>,
    actions: VecDeque<MachineAction>,
    /// The requests without an answer, in the order in which they were sent.
    asked: BTreeMap<RequestId, InPlaceRequest>,
    next_tag: RequestId,
}

impl InPlaceMachine {
    /// Makes a machine that begins to attach or create its device.
    ///
    /// *Errors*: see [`InPlaceConfiguration::check`].
    pub fn new(configuration: InPlaceConfiguration, now_us: Moment) -> Result<InPlaceMachine, AttachRefusal> {
        configuration.check()?;
        let InPlaceConfiguration { geometry, client, intent, times, .. } = configuration;
        let rows = RowLayout::new(&geometry);
        let (columns, data_members) = (rows.columns(), rows.parity() as u64);
        // The copies of a block have one checksum.
        let checked_blocks = match (rows.has_parity(), rows.is_copied()) {
            (false, _) => 0,
            (true, true) => columns,
            (true, false) => columns * (data_members + 1),
        };
        let column_bytes = u64::from(geometry.block_bytes) * data_members;
        Ok(InPlaceMachine {
            group: GroupMachine::new(GroupConfiguration { geometry, markers, client, intent, times }, now_us)?,
            rows,
            phase: InPlacePhase::Attaching,
            detached_by_us: Moment::MAX,
            operations: BTreeMap::new(),
            locks: OperationLocks::default(),
            next_operation: 1,
            dirty: DirtyStripes::default(),
            checksums: BlockChecksums::new(checked_blocks, geometry.block_bytes),
            scrub: Scrub::new(&times, column_bytes, columns, now_us),
            scrub_step: None,
            resync: Vec::new(),
            rebuild: None,
            ready: BTreeSet::new(),
            held: BTreeSet::new(),
            has_changed: false,
            figures: InPlaceFigures::default(),
            lost: None,
            actions: VecDeque::new(),
            asked: BTreeMap::new(),
            next_tag: 1,
        })
    }

    /// Handles an event that happened at `now_us`. The actions that follow are then in [`actions`](Self::actions).
    pub fn step(&mut self, now_us: Moment, event: MachineEvent) {
        if self.phase == InPlacePhase::Ended {
            if let MachineEvent::Submitted { id, .. } = event {
                self.act(MachineAction::Complete { id, result: Err(DeviceError::NotAttached) });
            }
            return;
        }
        let is_tick = match event {
            MachineEvent::Submitted { id, request } => {
                let is_tick = self.group.step(now_us, MachineEvent::Time);
                self.submitted(id, request);
                is_tick
            }
            MachineEvent::Detach => {
                let is_tick = self.group.step(now_us, MachineEvent::Time);
                self.detach();
                is_tick
            }
            MachineEvent::Scrub => {
                let is_tick = self.group.step(now_us, MachineEvent::Time);
                self.scrub.request(self.group.now_us());
                is_tick
            }
            event => self.group.step(now_us, event),
        };
        self.ready.extend(self.held.iter().copied());
        if is_tick {
            self.hear();
            self.tick();
        }
        self.settle();
    }

    /// Takes the actions that the driver has to do.
    pub fn actions(&mut self) -> impl Iterator<Item = MachineAction> + '_ {
        self.actions.drain(..)
    }

    /// Returns the time at which [`MachineEvent::Time`] has to come at the latest; `None` after the end.
    pub fn wake_at(&self) -> Option<Moment> {
        self.group.wake_at().filter(|_| self.phase != InPlacePhase::Ended)
    }

    /// Returns the donors of the device.
    pub fn group(&self) -> &GroupMachine {
        &self.group
    }

    /// The current phase of the machine.
    pub fn phase(&self) -> InPlacePhase {
        self.phase
    }

    /// Returns the counters since the start.
    pub fn figures(&self) -> InPlaceFigures {
        self.figures
    }

    /// Returns the number of operations in progress, including the machine's own copies.
    pub fn operations(&self) -> usize {
        self.operations.len()
    }

    /// Whether every donor is trusted and has stored the view, and nothing is in progress.
    pub fn is_quiet(&self) -> bool {
        self.phase == InPlacePhase::Open && self.operations.is_empty() && self.group.is_quiet()
    }

    /// Whether a wrong copy of a block would be detected.
    pub fn knows_checksum(&self, block: u64) -> bool {
        self.checksums.knows(block)
    }

    pub(super) fn act(&mut self, action: MachineAction) {
        self.actions.push_back(action);
    }

    /// Sends a request of an operation; returns its number.
    pub(super) fn ask_donor(&mut self, donor: Donor, what: InPlaceRequest, body: DonorRequest) -> RequestId {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.asked.insert(tag, what);
        self.group.send_outside(donor, tag, body);
        tag
    }

    /// Ends the machine.
    fn end(&mut self, last: MachineAction) {
        self.phase = InPlacePhase::Ended;
        let error = match last {
            MachineAction::Superseded => DeviceError::Superseded,
            _ => DeviceError::NotAttached,
        };
        for operation in std::mem::take(&mut self.operations).into_values() {
            if let Some(id) = operation.user {
                self.figures.failed += 1;
                self.act(MachineAction::Complete { id, result: Err(error.clone()) });
            }
        }
        self.act(last);
    }

    /// Takes what the group does and tells.
    fn hear(&mut self) {
        let actions: Vec<MachineAction> = self.group.actions().collect();
        for action in actions {
            match action {
                MachineAction::Attached => self.begin_resync(),
                _ if self.phase == InPlacePhase::Ended => {}
                MachineAction::Refused(_) | MachineAction::Superseded | MachineAction::Detached => self.end(action),
                action => self.act(action),
            }
        }
        for news in self.group.take_news() {
            match news {
                GroupNews::Out { donor } => {
                    self.note_loss(donor);
                    self.excuse(donor);
                }
                GroupNews::Done { tag } => self.answered(tag, None),
                GroupNews::Data { tag, data } => self.answered(tag, Some(data)),
                GroupNews::Dropped { tag } => {
                    if let Some(what) = self.asked.remove(&tag) {
                        self.dropped(tag, what);
                    }
                }
            }
        }
        self.has_changed |= self.group.take_changed();
    }

    fn answered(&mut self, tag: RequestId, data: Option<Bytes>) {
        let Some(what) = self.asked.remove(&tag) else { return };
        match (what, data) {
            (InPlaceRequest::Part { operation, part, .. }, None) => self.part_done(operation, part),
            (InPlaceRequest::Piece { operation, piece, donor }, Some(data)) => {
                self.member_read(operation, piece, donor, tag, data);
            }
            (InPlaceRequest::Part { donor, .. } | InPlaceRequest::Piece { donor, .. }, _) => {
                self.dropped(tag, what);
                self.group.misanswered(donor);
            }
        }
    }

    /// Handles a request whose connection was lost. It may be done already, later, or never.
    fn dropped(&mut self, tag: RequestId, what: InPlaceRequest) {
        match what {
            // A part that is excused stays so: its donor will not be asked again.
            InPlaceRequest::Part { operation, part, donor } => {
                let is_trusted = self.group.standing()[donor] == DonorStanding::Trusted;
                let operation = self.operations.get_mut(&operation);
                if let Some(operation) = operation.filter(|operation| operation.parts[part].state == PartState::Sent) {
                    let skipped = planted(MirrorBug::ReplaySkipped) && operation.work.is_change() && is_trusted;
                    operation.parts[part].state = if skipped { PartState::Done } else { PartState::Unsent };
                    self.figures.replayed += u64::from(operation.work.is_change());
                }
            }
            InPlaceRequest::Piece { operation, piece, .. } => {
                if let Some(operation) = self.operations.get_mut(&operation) {
                    operation.pieces[piece].asked.retain(|asked| asked.request != tag);
                }
            }
        }
    }

    /// The group is attached: what a lost client has left unfinished is finished first.
    fn begin_resync(&mut self) {
        self.phase = InPlacePhase::Resync;
        self.resync = self.group.marked().iter().collect();
        self.resync.iter().for_each(|stripe| self.dirty.begin(*stripe));
        if planted(MirrorBug::ResyncSkipsOne)
            && let Some(stripe) = self.resync.pop()
        {
            self.dirty.end(stripe, self.group.now_us());
        }
    }

    /// Begins to detach; the operations in progress are finished first.
    fn detach(&mut self) {
        match self.phase {
            InPlacePhase::Open => {
                self.phase = InPlacePhase::Detaching;
                self.detached_by_us = self.group.now_us() + self.group.patience_us();
            }
            InPlacePhase::Attaching => _ = self.group.step(self.group.now_us(), MachineEvent::Detach),
            InPlacePhase::Resync | InPlacePhase::Detaching => self.group.end(MachineAction::Detached),
            InPlacePhase::Ended => {}
        }
    }

    /// Goes on to the next phase if the present one is over.
    fn advance_phase(&mut self) {
        match self.phase {
            InPlacePhase::Resync if self.resync.is_empty() && self.operations.is_empty() => {
                (self.phase, self.has_changed) = (InPlacePhase::Open, true);
                self.act(MachineAction::Attached);
            }
            InPlacePhase::Resync if self.group.is_late_to_attach() => self.group.refuse_unsettled(),
            InPlacePhase::Detaching if self.group.phase() == GroupPhase::Open => {
                // What is copied already is still read and changed there by the operations in progress.
                if let Some(donor) = self.rebuild.as_ref().map(|rebuild| rebuild.donor) {
                    self.drop_copies_to(donor);
                }
                if self.group.now_us() >= self.detached_by_us {
                    (self.operations, self.locks) = (BTreeMap::new(), OperationLocks::default());
                    self.group.end(MachineAction::Detached);
                } else if self.operations.is_empty() {
                    self.clean_marks(Moment::MAX);
                    self.group.step(self.group.now_us(), MachineEvent::Detach);
                }
            }
            _ => {}
        }
    }

    fn submitted(&mut self, id: u64, request: UserRequest) {
        let refused = match self.phase {
            InPlacePhase::Open if self.operations.len() >= OPERATIONS_MAX => Some(DeviceError::Busy),
            InPlacePhase::Open => None,
            _ => Some(DeviceError::NotAttached),
        };
        let (offset, bytes, work) = match request {
            UserRequest::Read { offset, bytes } => (offset, bytes, InPlaceWork::Read),
            UserRequest::Write { offset, data, force } => {
                (offset, data.len() as u64, InPlaceWork::Write { data, is_forced: force })
            }
            UserRequest::WriteZeroes { offset, bytes, force } => {
                (offset, bytes, InPlaceWork::Zeroes { is_forced: force })
            }
            UserRequest::Trim { offset, bytes } => (offset, bytes, InPlaceWork::Trim),
            UserRequest::Flush => return self.flushed(id, refused),
        };
        let geometry = self.group.geometry();
        let block = u64::from(geometry.block_bytes);
        let is_whole = offset % block == 0 && bytes % block == 0 && bytes > 0 && bytes <= REQUEST_BYTES_MAX;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= geometry.bytes);
        let is_good = is_whole && is_inside;
        if let Some(error) = refused.or((!is_good).then_some(DeviceError::Range { offset, bytes })) {
            self.figures.failed += 1;
            return self.act(MachineAction::Complete { id, result: Err(error) });
        }
        let blocks = offset / block..(offset + bytes) / block;
        let is_change = work.is_change();
        let mut operation = InPlaceOperation::new(Some(id), work, blocks, &geometry, self.group.now_us());
        let locked = self.cut(&mut operation);
        self.begin(operation, locked, is_change);
    }

    /// Notes that a donor lost its memory of a device without redundancy.
    fn note_loss(&mut self, donor: Donor) {
        if self.rows.has_parity() || self.lost.is_some() || planted(MirrorBug::FlushForgetsLoss) {
            return;
        }
        let stripe = (0..self.group.geometry().stripes()).find(|stripe| self.is_on(*stripe, donor));
        self.lost = stripe.map(|stripe| self.first_member(stripe).start);
    }

    /// Answers a flush. What was answered before is stored on every donor that has to store it, and donors have no cache.
    /// Without redundancy, what this client wrote may be lost with a donor; only the next client begins with what is there.
    fn flushed(&mut self, id: u64, refused: Option<DeviceError>) {
        let refused = refused.or(self.lost.map(|block| DeviceError::Lost { block }));
        match refused {
            None => self.figures.completed += 1,
            Some(_) => self.figures.failed += 1,
        }
        self.act(MachineAction::Complete { id, result: refused.map_or(Ok(Bytes::new()), Err) });
    }

    /// Starts an operation, and returns its number; it runs when no earlier operation uses its blocks.
    pub(super) fn begin(&mut self, operation: InPlaceOperation, blocks: Range<u64>, is_exclusive: bool) -> u64 {
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
    pub(super) fn finish(&mut self, number: u64, operation: InPlaceOperation, result: Result<Bytes, DeviceError>) {
        self.ready.extend(self.locks.release(number));
        self.held.remove(&number);
        if operation.is_planned && operation.work.is_change() {
            for piece in &operation.pieces {
                self.dirty.end(piece.stripe, self.group.now_us());
            }
        }
        if let Some(id) = operation.user {
            match &result {
                Ok(_) => self.figures.completed += 1,
                Err(_) => self.figures.failed += 1,
            }
            self.act(MachineAction::Complete { id, result });
        }
    }

    /// Lets each part of the machine act, until no part has anything to do.
    fn settle(&mut self) {
        loop {
            self.hear();
            if self.phase == InPlacePhase::Ended {
                return;
            }
            self.advance_phase();
            self.advance_copies();
            self.advance_scrub();
            let has_changed = std::mem::take(&mut self.has_changed);
            if has_changed {
                self.ready.extend(self.operations.keys().copied());
            }
            while let Some(number) = self.ready.pop_first() {
                self.drive(number);
            }
            // The group stores the marks that the other parts want, and hears that a donor is filled.
            self.group.settle();
            self.hear();
            if !has_changed && !self.has_changed && self.ready.is_empty() {
                return;
            }
        }
    }

    fn drive(&mut self, number: u64) {
        if !self.locks.has(number) {
            return;
        }
        if self.group.has_absent() && self.operations.get(&number).is_some_and(|operation| self.is_in_vain(operation)) {
            self.lose_patience(number);
        }
        let Some(operation) = self.operations.remove(&number) else { return };
        match operation.work {
            InPlaceWork::Read => self.drive_read(number, operation),
            InPlaceWork::Copy { to, why } => self.drive_copy(number, operation, to, why),
            InPlaceWork::Scrub => self.drive_scrub(number, operation),
            InPlaceWork::Write { .. } | InPlaceWork::Zeroes { .. } | InPlaceWork::Trim => {
                self.drive_row_change(number, operation)
            }
        }
    }

    /// Checks the deadlines.
    fn tick(&mut self) {
        let (now_us, patience_us) = (self.group.now_us(), self.group.patience_us());
        let is_late = |operation: &InPlaceOperation| operation.began_us + patience_us <= now_us;
        let late: Vec<u64> = self.operations.iter().filter(|(_, late)| is_late(late)).map(|(at, _)| *at).collect();
        for number in late {
            self.lose_patience(number);
        }
        // A read is also sent to the other copy when the first one is late.
        let is_asking = |operation: &InPlaceOperation| operation.pieces.iter().any(|piece| !piece.asked.is_empty());
        let asking = self.operations.iter().filter(|(_, operation)| is_asking(operation)).map(|(at, _)| *at);
        self.ready.extend(asking);
        let clean_us = self.clean_us();
        if now_us > clean_us {
            self.clean_marks(now_us - clean_us);
        }
        self.retry_rebuild();
        self.drop_late_step();
    }

    /// Notes that a change of a stripe begins. If the stripe is not marked yet, its mark is stored, unless a planted bug
    /// forgets that.
    pub(super) fn begin_marked(&mut self, stripe: u64, is_wanted: bool) {
        self.dirty.begin(stripe);
        if !self.group.marked().has(stripe) {
            self.group.mark(stripe, true, is_wanted);
        }
    }

    /// Removes the marks of stripes that were not used since this time.
    fn clean_marks(&mut self, unused_since_us: Moment) {
        for stripe in self.dirty.clean(unused_since_us) {
            self.group.mark(stripe, false, true);
        }
    }
}
