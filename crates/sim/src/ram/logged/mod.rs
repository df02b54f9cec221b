//! Devices that log parity.
//!
//! Owns: the layout of a run. `values`: the possible contents of each block; `oracle`: the data that a recovery has to
//! find, computed from the donors' memory alone; `lies`: damage that the scrub has to find; `check`: the invariants after
//! every step. Leaves to others: the run (`world`).

mod check;
mod lies;
mod oracle;
mod values;

use std::ops::Range;

use bytes::Bytes;
use nectary_ram::format::slots::{DonorAreas, SlotShape};
use nectary_ram::format::{FormerSize, Formers};
use nectary_ram::group::{DeviceError, DonorRequest, DonorStanding, GroupPhase, MachineIntent, MachineTimes};
use nectary_ram::logged::{NewestData, ParityLogConfiguration, ParityLogMachine, RecoveryStage};
use nectary_ram::placement::{PlacementSettings, RedundancyPolicy, StaleRule};

use self::lies::DonorDamage;
use self::oracle::{Memory, RecoveryOracle};
use self::values::VersionedBlocks;
use super::WRITES_OF_FULL;
use super::blocks::{BLOCK_BYTES, number_of};
use super::client::{KillAt, RamUserOperation, TIMES, UserMix};
use super::coverage::RamCoverage;
use super::donor::{ConnectionId, DonorModel};
use super::fault_plan::{FaultShares, RamFaultKind, RamFaultPlan};
use super::network::{ClientId, MILLISECOND};
use super::world::{RamRunStage, RamWorld, SimulatedLayout};
use crate::random::SimulationRandom;

/// Each scenario has to be reached at least once per this many runs, on average.
const RUNS_PER_SCENARIO: u64 = 100;
/// A write of more than a slot may be cut off at any multiple of this. *Units*: bytes.
const CUT_BYTES: u64 = 16;
/// How many of a hundred such writes are cut off by the end of their connection.
const TORN_PERCENT: u64 = 1;

const SCENARIOS: &[&str] = &[
    "write lands after its connection was given up",
    "write cut off in the middle",
    "donors slow while another is left",
    "flush beside a write",
    "overlapping writes",
    "client lost with acknowledged data that was not flushed",
    "client lost after flushed zeroes",
    "attacher dies after fencing some donors",
    "left donor returns after the client crashed",
    "client paused, all donors cut, then back",
    "client killed in survey",
    "client killed in claim",
    "client killed in opening",
    "client killed in recovery: heads",
    "client killed in recovery: headers",
    "client killed in recovery: rows",
    "client killed in recovery: writing",
    "client killed while a donor is filled",
    "client killed in recovery, twice",
    "donor left during recovery",
    "second loss while a donor is filled",
    "donor lost while a slot is damaged",
    "donor restarted between two connections",
    "left donor filled again",
    "superseded client ends",
    "answer held for a proof",
    "patience lost",
    "block read through parity",
    "block read through parity while the donor was late",
    "open group sealed by recovery",
    "lost slot of an open group computed by recovery",
    "trim that one donor alone had",
    "block moved by cleaning",
    "group freed",
    "group not used again before its successors were stored",
    "group not used again while it was read",
    "open group over a freed one at a crash",
    "all sealed groups compared by the scrub",
    "damage repaired by the scrub",
];

/// The layout of a device that logs parity.
#[derive(Debug)]
pub struct LoggedLayout {
    placement: PlacementSettings,
    shape: SlotShape,
    areas: DonorAreas,
    values: VersionedBlocks,
    lies: DonorDamage,
    /// Whether users write to all blocks equally often and trim none, so that groups have to be cleaned.
    is_full: bool,
    /// Whether the donors become slow as soon as the client is leaving one of them.
    slows_on_leave: bool,
}

/// Draws the settings of a placement, which is as small as they allow.
fn placement(random: &mut SimulationRandom, policy: RedundancyPolicy) -> PlacementSettings {
    let members = [2, 3, 4][random.below(3) as usize];
    let mut layout = PlacementSettings {
        overflow_percent: 100 + 50 * random.below(3) as u32,
        streams: 1 + random.below(2) as usize,
        column_blocks: 1 + random.below(2) as u32,
        stale: StaleRule::ALL[random.below(4) as usize],
        ..PlacementSettings::new(policy, 10, members)
    };
    while layout.clone().open().is_err() {
        layout.blocks += 1;
    }
    layout.blocks += random.below(4) as u32;
    layout
}

/// Returns the sizes that the device had before it grew; half of the devices have not grown.
fn formers(layout: &PlacementSettings, seed: u64) -> Formers {
    let mut formers = Formers::default();
    let sizes = [layout.blocks / 3, layout.blocks / 2, layout.blocks - 1];
    for (former, blocks) in formers.iter_mut().zip(sizes).take(if seed.is_multiple_of(2) { 0 } else { sizes.len() }) {
        *former = FormerSize { blocks, groups: PlacementSettings { blocks, ..layout.clone() }.rows() };
    }
    formers
}

/// Returns the configuration of a client.
fn configuration(layout: &PlacementSettings, seed: u64, client: u64, intent: MachineIntent) -> ParityLogConfiguration {
    ParityLogConfiguration {
        device: [seed as u8; 16],
        block_bytes: BLOCK_BYTES as u32,
        layout: layout.clone(),
        formers: formers(layout, seed),
        labels: (0..layout.donors()).map(|donor| format!("host-{donor}")).collect(),
        client,
        intent,
        times: TIMES,
    }
}

impl RamWorld<LoggedLayout> {
    /// Draws a run.
    pub fn logged(seed: u64, policy: RedundancyPolicy) -> RamWorld<LoggedLayout> {
        let mut random = SimulationRandom::new(seed);
        let placement = placement(&mut random, policy);
        let shape = configuration(&placement, seed, 1, MachineIntent::Create).shape();
        let areas = DonorAreas::new(&shape);
        let donors: Vec<DonorModel> =
            (0..placement.donors()).map(|_| DonorModel::new(random.bits(), areas.donor_bytes, 1)).collect();
        let faults = RamFaultPlan::new(&mut random, 16);
        let (slows_on_leave, is_full) = (random.chance(30), random.chance(25));
        let (mut lies, mut scrub_us) = (DonorDamage::default(), 0);
        if random.chance(50) {
            let step_us = MILLISECOND + random.below(15 * MILLISECOND);
            scrub_us = step_us * ((1 << 20) / (u64::from(shape.members) * BLOCK_BYTES as u64));
            lies.is_kept_at_loss = random.chance(30);
        }
        let values = VersionedBlocks::new(shape.blocks);
        let layout = LoggedLayout { placement, shape, areas, values, lies, is_full, slows_on_leave };
        let coverage = RamCoverage::new(SCENARIOS, &[], RUNS_PER_SCENARIO);
        let mut world = RamWorld::new(seed, random, layout, donors, faults, coverage);
        world.scrub_us = scrub_us;
        if is_full {
            world.writes_wanted = WRITES_OF_FULL;
        }
        world.start(MachineIntent::Create);
        world
    }

    /// Returns the number that a newly attached client found in each block; `None` if it found none.
    fn found(&self, client: ClientId) -> Vec<Option<u64>> {
        let machine = &self.clients[client].machine;
        let is_trusted = |donor: &usize| machine.group().standing()[*donor] == DonorStanding::Trusted;
        let donors = (0..self.donors.len()).filter(is_trusted);
        let memory: Memory<'_> = donors.map(|donor| (donor, &self.donors[donor].memory[..])).collect();
        let LoggedLayout { shape, areas, .. } = self.layout;
        let oracle = RecoveryOracle { shape, areas, memory };
        let number = |block: u32| match machine.holds(block) {
            NewestData::Memory(data) => number_of(&data, u64::from(block)),
            NewestData::Zeroes => Some(0),
            NewestData::Coming | NewestData::Lost => None,
            NewestData::Slot { donor, group } => {
                let member = areas.member_on(group, donor)?;
                let contents = |bytes: &[u8]| {
                    oracle.contents(bytes, group, member).filter(|(of, ..)| *of == block).and_then(|found| found.2)
                };
                let direct = oracle.slot(donor, group).and_then(contents);
                direct.or_else(|| oracle.computed(donor, group).and_then(|bytes| contents(&bytes)))
            }
        };
        (0..shape.blocks).map(number).collect()
    }

    /// Whether a request is a write of more than a slot. Slots of real devices are longer than summaries.
    fn is_long(&self, body: &DonorRequest) -> bool {
        let DonorAreas { slot_bytes, summary_bytes, .. } = self.layout.areas;
        matches!(body, DonorRequest::Write { data, .. } if data.len() as u64 > slot_bytes.max(summary_bytes))
    }

    /// Makes the donors slow while the client is leaving one of them. So their answers about the new view may arrive
    /// later than their answers to newer requests.
    fn slow_on_leave(&mut self, client: ClientId) {
        let is_due = self.layout.slows_on_leave && self.stage == RamRunStage::Work;
        if !is_due || !self.clients[client].machine.group().standing().contains(&DonorStanding::Leaving) {
            return;
        }
        self.layout.slows_on_leave = false;
        self.coverage.met("donors slow while another is left", 1);
        let until_us = self.now_us() + 200 * MILLISECOND;
        self.donors.iter_mut().for_each(|donor| donor.slow_until_us = until_us);
    }
}

impl SimulatedLayout for LoggedLayout {
    type Machine = ParityLogMachine;

    const FAULTS: FaultShares = &[
        (10, RamFaultKind::Cut),
        (18, RamFaultKind::Break),
        (25, RamFaultKind::PauseDonor),
        (31, RamFaultKind::SlowDonor),
        (44, RamFaultKind::LoseMemory),
        (64, RamFaultKind::Kill),
        (69, RamFaultKind::PauseClient),
        (76, RamFaultKind::TakeOver),
        (80, RamFaultKind::CutAll),
        (84, RamFaultKind::CutOthers),
        (92, RamFaultKind::LeaveAndKill),
        (98, RamFaultKind::CutInRecovery),
        (100, RamFaultKind::Outage),
    ];
    const KILL_AFTER_LOSS_PERCENT: u64 = 35;
    const KILL_AGAIN_PERCENT: u64 = 70;

    fn draw_kill(random: &mut SimulationRandom) -> (KillAt, u64) {
        let (phase, steps) = match random.below(8) {
            0 => (KillAt::Group(GroupPhase::Survey), 6),
            1 => (KillAt::Group(GroupPhase::Claim), 4),
            2 => (KillAt::Group(GroupPhase::Opening), 3),
            3 => (KillAt::Recovery(RecoveryStage::Heads), 3),
            4 => (KillAt::Recovery(RecoveryStage::Headers), 20),
            5 => (KillAt::Recovery(RecoveryStage::Rows), 3),
            _ => (KillAt::Recovery(RecoveryStage::Writing), 8),
        };
        (phase, 1 + random.below(steps))
    }

    fn mix(&self) -> UserMix {
        let below = if self.is_full { [62, 62, 62, 92] } else { [50, 55, 62, 92] };
        UserMix { below, forced_percent: 15, is_even: self.is_full }
    }

    fn blocks(&self) -> u64 {
        u64::from(self.shape.blocks)
    }

    fn tick(&mut self) -> u64 {
        self.values.tick()
    }

    fn begin_change(&mut self, client: ClientId, blocks: Range<u64>, number: u64) -> u64 {
        self.values.begin(client, blocks.start as u32..blocks.end as u32, number)
    }

    fn machine(world: &RamWorld<Self>, client: u64, intent: MachineIntent) -> ParityLogMachine {
        let configuration = configuration(&world.layout.placement, world.seed, client, intent);
        let times = MachineTimes { scrub_us: world.scrub_us, ..TIMES };
        let configuration = ParityLogConfiguration { times, ..configuration };
        ParityLogMachine::new(configuration, world.now_us()).expect("the configuration is possible")
    }

    fn figures(machine: &ParityLogMachine) -> Vec<(&'static str, u64)> {
        let (figures, base, scrub) = (machine.figures(), machine.group().figures(), machine.scrub_progress());
        vec![
            ("left donor filled again", base.rebuilt),
            ("answer held for a proof", figures.held),
            ("patience lost", figures.impatient),
            ("block read through parity", figures.reconstructed),
            ("block read through parity while the donor was late", figures.hedged),
            ("open group sealed by recovery", figures.recovered_open),
            ("lost slot of an open group computed by recovery", figures.recovered_lost),
            ("trim that one donor alone had", figures.recovered_trims),
            ("block moved by cleaning", figures.cleaned),
            ("group freed", figures.freed),
            ("group not used again before its successors were stored", figures.reuse_waits),
            ("group not used again while it was read", figures.pinned),
            ("donor left during recovery", figures.recoveries_repeated),
            ("all sealed groups compared by the scrub", scrub.passes),
            ("damage repaired by the scrub", scrub.repaired),
        ]
    }

    fn describe(machine: &ParityLogMachine, donors: usize) -> String {
        let links: Vec<_> = (0..donors).filter_map(|donor| machine.group().link_state(donor)).collect();
        let (steps, writes) = machine.under_way();
        format!(
            "{:?}, {:?}, {:?}, {:?}, {links:?}, view {:?}, {} operations, {steps} steps, {writes} writes",
            machine.group().phase(),
            machine.phase(),
            machine.recovery_stage(),
            machine.group().standing(),
            machine.group().view().number(),
            machine.operations(),
        )
    }

    fn is_believed(world: &RamWorld<Self>, donor: usize) -> bool {
        let view = world.clients[world.current].machine.group().view();
        view.members[donor].incarnation == world.donors[donor].incarnation
    }

    fn is_told(world: &RamWorld<Self>) -> bool {
        world.is_told()
    }

    fn complete(
        world: &mut RamWorld<Self>,
        client: ClientId,
        of: RamUserOperation,
        result: Result<Bytes, DeviceError>,
    ) {
        world.judge(client, of, result);
    }

    fn check_client(world: &mut RamWorld<Self>, client: ClientId) {
        world.check_client(client);
    }

    fn memory_changed(world: &mut RamWorld<Self>, donor: usize, offset: u64, bytes: u64) {
        world.overwritten(donor, offset, bytes);
        // One of eight runs checks every change, the others check some; flushed data are always checked.
        if world.seed.is_multiple_of(8) || world.random.chance(20) {
            world.check_recoveries("after a change of a donor");
        }
    }

    fn records_changed(world: &mut RamWorld<Self>, what: &str) {
        world.check_recoveries(what);
    }

    fn attached(world: &mut RamWorld<Self>, client: ClientId, is_new: bool) {
        if !is_new && !world.is_lossy {
            world.layout.values.crash();
            let found = world.found(client);
            let is_kept = world.layout.lies.is_kept;
            if let Err(broken) = world.layout.values.attached(client, &found, is_kept) {
                world.break_with(broken);
            }
        }
        world.check_recoveries("after attaching");
    }

    fn note_death(world: &mut RamWorld<Self>, client: ClientId) {
        if !world.clients[client].is_attached {
            return;
        }
        // Whether a freed group is open again, and some of its slots still contain blocks of the former group.
        let machine = &world.clients[client].machine;
        let is_over = (0..world.layout.shape.groups).any(|group| machine.is_opened_again(group));
        let values = &world.layout.values;
        let met = [
            ("open group over a freed one at a crash", is_over),
            ("client lost with acknowledged data that was not flushed", values.has_unflushed()),
            ("client lost after flushed zeroes", values.has_flushed_zeroes()),
        ];
        met.into_iter().for_each(|(name, is_met)| world.coverage.met(name, u64::from(is_met)));
    }

    fn client_lost(world: &mut RamWorld<Self>) {
        world.check_recoveries("after the loss of a client");
    }

    fn damage(world: &mut RamWorld<Self>) -> bool {
        world.lie()
    }

    fn heal(world: &mut RamWorld<Self>) {
        world.heal_lie();
    }

    fn damaged(&self) -> Option<String> {
        self.lies.lie.map(|lie| format!("{lie:?}"))
    }

    fn damage_stays(&self) -> bool {
        self.lies.is_kept
    }

    fn before_operation(world: &mut RamWorld<Self>) {
        if world.scrub_us > 0 && world.random.chance(3) {
            world.lie();
        }
    }

    fn before_loss(world: &mut RamWorld<Self>, donor: usize) {
        world.lie_at_loss(donor);
    }

    fn is_torn(world: &mut RamWorld<Self>, body: &DonorRequest) -> bool {
        world.stage == RamRunStage::Work && world.is_long(body) && world.random.chance(TORN_PERCENT)
    }

    /// Stores a part of a write whose connection ended while the donor executed it, or nothing.
    fn lost_in_flight(world: &mut RamWorld<Self>, connection: ConnectionId, body: &DonorRequest) {
        let DonorRequest::Write { offset, data, .. } = body else { return };
        let donor = world.network.connections[connection].donor;
        if world.donors[donor].owner != Some(connection) || !world.random.chance(70) || !world.is_long(body) {
            return;
        }
        let bytes = world.random.below(data.len() as u64 / CUT_BYTES) * CUT_BYTES;
        world.coverage.met("write cut off in the middle", 1);
        let part = DonorRequest::Write { offset: *offset, data: data.slice(..bytes as usize), force: false };
        world.perform(connection, &part);
        world.check_recoveries("after a write that was cut off");
    }
}
