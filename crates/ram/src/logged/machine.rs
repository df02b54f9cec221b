//! The machine: events in, actions out.
//!
//! Owns: the base, which attaches and fences; requests to donors and the purpose of each; the order in which the parts
//! of the machine act. Promises: after each event, all actions that follow from it are listed.
//!
//! The parts of the machine are methods in several files. Each owns a struct of fields: `blocks`,
//! `steps`, `stores`, `reuse`, `reads`, `calls`, `recovery`, `refill`, `scrub`.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::blocks::BlockContents;
use super::calls::{ParityLogWork, UserCalls};
use super::configuration::ParityLogConfiguration;
use super::figures::ParityLogFigures;
use super::groups::{BufferedGroups, contents};
use super::progress::{DonorRefill, GroupScrub, ParityLogRecovery};
use super::reuse::RowReuse;
use super::slot_reads::{SlotReadPart, SlotReads};
use super::steps::StepQueue;
use super::stores::UnfinishedWrites;
use crate::format::slots::{DonorAreas, SlotShape, device_checksum};
use crate::group::{
    AttachRefusal, DeviceError, Donor, DonorRequest, GroupConfiguration, GroupMachine, GroupNews, GroupPhase,
    MachineAction, MachineEvent, Moment,
};
use crate::placement::{LogPlacement, NewestLocation, Placement};
use crate::scrub::Scrub;

/// A sequence consists of the client's generation above this many bits, and a counter below.
const SEQUENCE_BITS: u32 = 40;

/// The phase of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParityLogPhase {
    /// The base attaches; it has phases itself.
    Attaching,
    /// Recovery: the contents of the donors are found and protected.
    Recovering,
    /// The device is in use.
    Open,
    /// Operations in progress are finished.
    Detaching,
    /// The machine has ended.
    Ended,
}

/// The purpose of a request to a donor.
#[derive(Debug, Clone, Copy)]
pub(super) enum DonorRequestPurpose {
    Store(u64),
    Look { number: u64, donor: Donor },
    Survey { attempt: u64, at: u64 },
    Scrub { attempt: u64, at: usize },
}

/// The place of a block's newest data, for checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewestData {
    /// The data is in the client's memory.
    Memory(Bytes),
    /// The block reads as zeroes.
    Zeroes,
    /// The data is in a slot that the parity of a sealed group covers.
    Slot {
        /// The donor of the slot.
        donor: Donor,
        /// The group.
        group: u32,
    },
    /// The data is on the way from a donor to the client's memory.
    Coming,
    /// The contents are lost.
    Lost,
}

/// A device with logged parity, as its client sees it.
#[derive(Debug)]
pub struct ParityLogMachine {
    pub(super) configuration: ParityLogConfiguration,
    pub(super) shape: SlotShape,
    pub(super) areas: DonorAreas,
    pub(super) device: u64,
    pub(super) group: GroupMachine,
    pub(super) now_us: Moment,
    pub(super) phase: ParityLogPhase,
    pub(super) placement: LogPlacement,
    pub(super) blocks: BlockContents,
    pub(super) groups: BufferedGroups,
    pub(super) steps: StepQueue,
    pub(super) stores: UnfinishedWrites,
    pub(super) reuse: RowReuse,
    pub(super) reads: SlotReads,
    pub(super) calls: UserCalls,
    pub(super) recovery: Option<ParityLogRecovery>,
    pub(super) refill: Option<DonorRefill>,
    pub(super) scrub: GroupScrub,
    pub(super) figures: ParityLogFigures,
    output: MachineOutput,
}

/// What the machine sends and does.
#[derive(Debug, Default)]
struct MachineOutput {
    /// The requests without an answer, and what each is for.
    asked: BTreeMap<u64, DonorRequestPurpose>,
    /// The number of the last request.
    last: u64,
    actions: VecDeque<MachineAction>,
}

impl ParityLogMachine {
    /// Makes a machine that begins to attach or create its device.
    ///
    /// *Errors*: see [`Configuration::check`].
    pub fn new(configuration: ParityLogConfiguration, now_us: Moment) -> Result<ParityLogMachine, AttachRefusal> {
        configuration.check()?;
        let shape = configuration.shape();
        let (client, intent, times) = (configuration.client, configuration.intent, configuration.times);
        let geometry = configuration.geometry();
        // A log marks no stripes.
        let base = GroupConfiguration { geometry, markers: |_, _| None, client, intent, times };
        let placement = match LogPlacement::restore(configuration.layout.clone(), std::iter::empty()) {
            Ok(placement) => placement,
            Err(error) => unreachable!("the layout was checked: {error}"),
        };
        let data_bytes = u64::from(shape.block_bytes) * u64::from(shape.members);
        let pace = Scrub::new(&times, data_bytes, ParityLogMachine::scrub_units(&shape), now_us);
        Ok(ParityLogMachine {
            areas: DonorAreas::new(&shape),
            device: device_checksum(&shape.device),
            group: GroupMachine::new(base, now_us)?,
            now_us,
            phase: ParityLogPhase::Attaching,
            placement,
            blocks: BlockContents::new(shape.blocks),
            groups: BufferedGroups::default(),
            steps: StepQueue::new(),
            stores: UnfinishedWrites::default(),
            reuse: RowReuse::default(),
            reads: SlotReads::default(),
            calls: UserCalls::default(),
            recovery: None,
            refill: None,
            scrub: GroupScrub { pace, step: None, begun: 0 },
            figures: ParityLogFigures::default(),
            output: MachineOutput::default(),
            shape,
            configuration,
        })
    }

    /// Handles an event that happened at `now_us`. The actions that follow are then in [`actions`](Self::actions).
    pub fn step(&mut self, now_us: Moment, event: MachineEvent) {
        self.now_us = self.now_us.max(now_us);
        match event {
            MachineEvent::Submitted { id, request } => {
                self.submitted(id, request);
                self.group.step(now_us, MachineEvent::Time);
            }
            MachineEvent::Detach if self.phase == ParityLogPhase::Open => {
                self.phase = ParityLogPhase::Detaching;
                self.begin(None, ParityLogWork::Flush, true, 0..0);
                self.group.step(now_us, MachineEvent::Time);
            }
            MachineEvent::Scrub => {
                self.scrub.pace.request(self.now_us);
                self.group.step(now_us, MachineEvent::Time);
            }
            event => {
                // Late donors are searched only when time passes, so that other events need not check every read.
                if event == MachineEvent::Time {
                    self.reads.ready.extend(self.reads.list.keys().copied());
                    self.steps.may_begin = true;
                }
                self.group.step(now_us, event);
            }
        }
        self.settle();
    }

    /// Takes the actions that the driver has to do.
    pub fn actions(&mut self) -> impl Iterator<Item = MachineAction> + '_ {
        self.output.actions.drain(..)
    }

    /// Returns the time at which [`MachineEvent::Time`] has to come at the latest; `None` after the end.
    pub fn wake_at(&self) -> Option<Moment> {
        self.group.wake_at().filter(|_| self.phase != ParityLogPhase::Ended)
    }

    /// The current phase of the machine.
    pub fn phase(&self) -> ParityLogPhase {
        self.phase
    }

    /// Returns the donors of the device.
    pub fn group(&self) -> &GroupMachine {
        &self.group
    }

    /// Returns the counters since the start.
    pub fn figures(&self) -> ParityLogFigures {
        self.figures
    }

    /// Returns the shape of the device.
    pub fn shape(&self) -> &SlotShape {
        &self.shape
    }

    /// Returns the number of groups that may be reused.
    pub fn free_groups(&self) -> u32 {
        self.placement.free_groups()
    }

    /// Returns the number of operations in progress.
    pub fn operations(&self) -> usize {
        self.calls.list.len()
    }

    /// Returns the numbers of unfinished steps and of unfinished writes to donors.
    pub fn under_way(&self) -> (usize, usize) {
        (self.steps.tasks.len(), self.stores.len())
    }

    /// Whether every donor is trusted and knows the view, and nothing is in progress.
    pub fn is_quiet(&self) -> bool {
        let is_idle = self.calls.list.is_empty() && self.steps.tasks.is_empty() && self.reads.list.is_empty();
        self.phase == ParityLogPhase::Open && is_idle && self.group.is_quiet()
    }

    /// Returns the place of a block's newest data. *Panics* if the device has no such block.
    pub fn holds(&self, block: u32) -> NewestData {
        if let Some(data) = self.blocks.held.get(&block) {
            return data.clone().map_or(NewestData::Lost, NewestData::Memory);
        }
        match self.placement.locate(block) {
            NewestLocation::Unmapped => NewestData::Zeroes,
            NewestLocation::Memory => NewestData::Coming,
            NewestLocation::Slot(place) => {
                let sequence = self.blocks.newest[block as usize];
                match self.groups.of(place.slot).and_then(|group| group.member(sequence)) {
                    None => NewestData::Slot { donor: usize::from(place.donor), group: place.slot },
                    Some(member) => match &member.image {
                        Some(image) => contents(image).map_or(NewestData::Lost, NewestData::Memory),
                        None => NewestData::Coming,
                    },
                }
            }
        }
    }

    /// Whether a group is sealed, its parity is stored, and no other use of its slots is in progress.
    pub fn is_sealed(&self, group: u32) -> bool {
        !self.placement.is_free(group) && self.groups.of(group).is_none()
    }

    /// Whether a group was opened again while some of its slots still have their former contents.
    pub fn is_opened_again(&self, group: u32) -> bool {
        self.groups.of(group).is_some_and(|of| of.is_open && of.members.len() < usize::from(self.shape.members))
    }

    pub(super) fn sequence_of(&self, count: u64) -> u64 {
        assert!(count < 1 << SEQUENCE_BITS, "a client writes fewer blocks");
        (self.group.generation() << SEQUENCE_BITS) + count
    }

    pub(super) fn act(&mut self, action: MachineAction) {
        self.output.actions.push_back(action);
    }

    pub(super) fn ask_donor(&mut self, donor: Donor, what: DonorRequestPurpose, body: DonorRequest) {
        self.output.last += 1;
        let tag = self.output.last;
        self.output.asked.insert(tag, what);
        self.group.send_outside(donor, tag, body);
    }

    /// Ends the machine.
    pub(super) fn end(&mut self, last: MachineAction) {
        self.phase = ParityLogPhase::Ended;
        let error = match last {
            MachineAction::Superseded => DeviceError::Superseded,
            _ => DeviceError::NotAttached,
        };
        for operation in std::mem::take(&mut self.calls.list).into_values() {
            if let Some(id) = operation.user {
                self.figures.failed += 1;
                self.act(MachineAction::Complete { id, result: Err(error.clone()) });
            }
        }
        self.act(last);
    }

    /// Lets each part of the machine act, until no part has anything to do.
    fn settle(&mut self) {
        loop {
            let actions: Vec<MachineAction> = self.group.actions().collect();
            for action in actions {
                self.group_acts(action);
            }
            if self.phase == ParityLogPhase::Ended {
                return;
            }
            for news in self.group.take_news() {
                self.answered(news);
            }
            let mut has_moved = false;
            for donor in 0..self.group.standing().len() {
                if !self.is_excused(donor) {
                    continue;
                }
                for task in self.stores.excuse(donor) {
                    self.store_done(task);
                    has_moved = true;
                }
            }
            has_moved |= self.drive_recovery();
            has_moved |= self.drive_refill();
            has_moved |= self.drive_operations();
            has_moved |= self.drive_tasks();
            has_moved |= self.drive_looks();
            has_moved |= self.drive_scrub();
            self.send_stores();
            self.lose_patience();
            let is_attached = self.group.phase() == GroupPhase::Open;
            if self.phase == ParityLogPhase::Detaching && self.calls.list.is_empty() && is_attached {
                self.group.step(self.now_us, MachineEvent::Detach);
                has_moved = true;
            }
            // The base turns what the other parts sent through it or told it into actions.
            if !has_moved {
                self.group.step(self.now_us, MachineEvent::Time);
                let rest: Vec<MachineAction> = self.group.actions().collect();
                let has_more = rest.iter().any(|action| !matches!(action, MachineAction::Send { .. }));
                rest.into_iter().for_each(|action| self.group_acts(action));
                if !has_more {
                    return;
                }
            }
        }
    }

    fn group_acts(&mut self, action: MachineAction) {
        match action {
            MachineAction::Attached => {
                self.phase = ParityLogPhase::Recovering;
                self.recovery = Some(ParityLogRecovery::new(1));
            }
            MachineAction::Refused(_) | MachineAction::Superseded | MachineAction::Detached
                if self.phase == ParityLogPhase::Ended => {}
            MachineAction::Refused(_) | MachineAction::Superseded | MachineAction::Detached => self.end(action),
            MachineAction::Send { .. }
            | MachineAction::Disconnect { .. }
            | MachineAction::Restore { .. }
            | MachineAction::Complete { .. } => {
                self.act(action);
            }
        }
    }

    fn answered(&mut self, news: GroupNews) {
        let (tag, data, is_dropped) = match news {
            GroupNews::Done { tag } => (tag, None, false),
            GroupNews::Data { tag, data } => (tag, Some(data), false),
            GroupNews::Dropped { tag } => (tag, None, true),
            // Each write asks for itself whether its donor is left.
            GroupNews::Out { .. } => return,
        };
        let Some(asked) = self.output.asked.remove(&tag) else { return };
        match asked {
            DonorRequestPurpose::Store(number) if is_dropped => self.stores.dropped(number),
            DonorRequestPurpose::Store(number) => {
                if let Some(task) = self.stores.done(number) {
                    self.store_done(task);
                }
            }
            DonorRequestPurpose::Look { number, donor } => {
                if let Some(look) = self.reads.list.get_mut(&number) {
                    look.parts[donor] = data.map_or(SlotReadPart::Unsent, SlotReadPart::Got);
                    self.reads.ready.insert(number);
                }
            }
            DonorRequestPurpose::Survey { attempt, at } => self.surveyed(attempt, at, data),
            DonorRequestPurpose::Scrub { attempt, at } => self.scrub_read(attempt, at, data),
        }
    }

    fn send_stores(&mut self) {
        for donor in 0..self.group.standing().len() {
            if !self.group.is_claimed(donor) {
                continue;
            }
            for (number, write) in self.stores.take_ready(donor) {
                let body = DonorRequest::Write { offset: write.offset, data: write.data, force: false };
                self.ask_donor(donor, DonorRequestPurpose::Store(number), body);
            }
        }
    }
}
