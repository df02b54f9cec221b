//! Devices that are changed in place: without redundancy, a mirror, or parity.
//!
//! Owns: the layout of a run. `copies`: what the donors have; `check`: the invariants after every step; `moves`: other
//! donors take the place of some. Leaves to others: the run (`world`).

mod check;
mod copies;
mod moves;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;
use nectary_ram::format::{RecordGeometry, RedundancyCode, RowZones};
use nectary_ram::group::{DeviceError, GroupPhase, MachineIntent, MachineTimes};
use nectary_ram::in_place::{InPlaceConfiguration, InPlaceMachine, RowLayout};

use self::copies::UndetectedDamage;
use super::blocks::{BLOCK_BYTES, ChangedBlocks};
use super::client::{KillAt, RamUserOperation, TIMES, UserMix};
use super::coverage::RamCoverage;
use super::donor::DonorModel;
use super::fault_plan::{FaultShares, RamFaultKind, RamFaultPlan};
use super::network::{ClientId, MILLISECOND};
use super::world::{RamWorld, SimulatedLayout};
use crate::cache::history::{CellEffect, DeviceHistory};
use crate::random::SimulationRandom;

/// The number of blocks of a stripe of a mirror.
const STRIPE_BLOCKS: u64 = 4;
/// The number of blocks of a stripe with parity, on each donor, and of a stripe without redundancy.
const CHUNK_BLOCKS: u64 = 2;
/// Each scenario has to be reached at least once per this many runs, on average.
const RUNS_PER_SCENARIO: u64 = 100;

const SCENARIOS: &[&str] = &[
    "write lands after its connection was given up",
    "flush beside a write",
    "client lost after a trim",
    "attacher dies after fencing some donors",
    "left donor returns after the client crashed",
    "client paused, all donors cut, then back",
    "client killed in survey",
    "client killed in claim",
    "client killed in opening",
    "client killed in resync",
    "client killed while a donor is filled",
    "client killed in recovery, twice",
    "overlapping writes",
    "second loss while a donor is filled",
    "donor comes and goes",
    "donor restarted between two connections",
    "left donor filled again",
    "wrong bytes repaired",
    "another donor took the place of one",
    "all copies compared by the scrub",
    "wrong copy repaired by the scrub",
    "answer after another one was used",
    "superseded client ends",
    "unfenced donor's lease waited for",
    "answer held for a proof",
    "patience lost",
    "one of two donors cannot settle",
    "dirty stripes resynchronised",
    "read answered from the other members",
    "block of a missing donor lost in an unfinished stripe",
    "read of a lost block failed",
];
/// The scenarios that a mirror need not reach.
const OF_PARITY: &[&str] = &[
    "read answered from the other members",
    "block of a missing donor lost in an unfinished stripe",
    "read of a lost block failed",
];
/// The scenarios that only redundancy can reach.
const OF_REDUNDANCY: &[&str] = &[
    "left donor returns after the client crashed",
    "client killed in resync",
    "client killed in recovery, twice",
    "wrong bytes repaired",
    "wrong copy repaired by the scrub",
    "unfenced donor's lease waited for",
    "answer held for a proof",
    "one of two donors cannot settle",
    "dirty stripes resynchronised",
    "read answered from the other members",
];
/// The scenarios that parity need not reach.
const OF_MIRROR: &[&str] = &["one of two donors cannot settle"];

/// The layout of a device that is changed in place.
#[derive(Debug)]
pub struct InPlaceLayout {
    geometry: RecordGeometry,
    rows: RowLayout,
    history: DeviceHistory,
    blocks: ChangedBlocks,
    /// Without redundancy: donors whose memory was lost, and the clients that had the device then.
    losses: BTreeSet<ClientId>,
    is_unfilled: bool,
    /// Wrong copies that no read has detected yet.
    lies: Vec<UndetectedDamage>,
    had_lies: bool,
    /// Blocks that a crash may have lost, each with the client that found that.
    may_be_lost: BTreeMap<u64, ClientId>,
    /// The time of the history until which a block may have been lost.
    were_lost: BTreeMap<u64, u64>,
    /// Whether other donors take the place of some.
    has_moves: bool,
    /// The place that another donor took last, and the one of the two that is not there.
    moved: Option<(usize, DonorModel)>,
    /// For each donor, whether an attaching client may accept its data, according to the donors' records.
    believed: Vec<bool>,
    /// Whether all donors have the same record.
    is_told: bool,
}

impl RamWorld<InPlaceLayout> {
    /// Draws a run.
    pub fn in_place(seed: u64, code: RedundancyCode) -> RamWorld<InPlaceLayout> {
        let mut random = SimulationRandom::new(seed);
        let drawn = random.below(5) as usize;
        let (members, stripe_blocks) = match code {
            RedundancyCode::Parity => {
                let members = [3, 3, 4, 4, 5][drawn];
                (members, CHUNK_BLOCKS * u64::from(members - 1))
            }
            RedundancyCode::None(_) => ([1, 2, 2, 3, 4][drawn], CHUNK_BLOCKS),
            _ => ([2, 2, 3, 3, 4][drawn], STRIPE_BLOCKS),
        };
        let blocks = 18 + random.below(14);
        let code = match code {
            RedundancyCode::None(_) => RedundancyCode::None(draw_zones(&mut random, members, blocks)),
            code => code,
        };
        let geometry = RecordGeometry {
            device: [seed as u8; 16],
            bytes: blocks * BLOCK_BYTES as u64,
            block_bytes: BLOCK_BYTES as u32,
            stripe_bytes: (stripe_blocks * BLOCK_BYTES as u64) as u32,
            members,
            code,
        };
        let rows = RowLayout::new(&geometry);
        let donors: Vec<DonorModel> =
            (0..usize::from(members)).map(|at| DonorModel::new(random.bits(), rows.donor_bytes(at), at)).collect();
        let lossy_percent = if rows.has_parity() { 8 } else { 50 };
        let faults = RamFaultPlan::new(&mut random, lossy_percent);
        let stripe_us = if random.chance(40) { 2 * MILLISECOND + random.below(20 * MILLISECOND) } else { 0 };
        let layout = InPlaceLayout {
            geometry,
            rows,
            history: DeviceHistory::default(),
            blocks: ChangedBlocks::new(blocks),
            losses: BTreeSet::new(),
            is_unfilled: false,
            lies: Vec::new(),
            had_lies: false,
            may_be_lost: BTreeMap::new(),
            were_lost: BTreeMap::new(),
            has_moves: random.chance(30),
            moved: None,
            believed: vec![false; donors.len()],
            is_told: false,
        };
        let optional = match code {
            RedundancyCode::None(_) => OF_REDUNDANCY,
            RedundancyCode::Parity => OF_MIRROR,
            _ => OF_PARITY,
        };
        let coverage = RamCoverage::new(SCENARIOS, optional, RUNS_PER_SCENARIO);
        let mut world = RamWorld::new(seed, random, layout, donors, faults, coverage);
        // The pace of a scrub that compares a stripe of a mirror in `stripe_us`.
        world.scrub_us = stripe_us * ((1 << 20) / (STRIPE_BLOCKS * BLOCK_BYTES as u64));
        world.start(MachineIntent::Create);
        world
    }
}

/// Draws how many stripes of a device without redundancy are on each donor.
fn draw_zones(random: &mut SimulationRandom, members: u16, blocks: u64) -> RowZones {
    let mut stripes = vec![1; usize::from(members)];
    for _ in members.into()..blocks.div_ceil(CHUNK_BLOCKS) {
        stripes[random.below(members.into()) as usize] += 1;
    }
    RowZones::of(&stripes).expect("few donors")
}

impl InPlaceLayout {
    /// Whether the device has no redundancy.
    fn is_plain(&self) -> bool {
        !self.rows.has_parity()
    }
}

impl SimulatedLayout for InPlaceLayout {
    type Machine = InPlaceMachine;

    const FAULTS: FaultShares = &[
        (10, RamFaultKind::Cut),
        (20, RamFaultKind::Break),
        (27, RamFaultKind::PauseDonor),
        (33, RamFaultKind::SlowDonor),
        (46, RamFaultKind::LoseMemory),
        (58, RamFaultKind::Kill),
        (65, RamFaultKind::PauseClient),
        (73, RamFaultKind::TakeOver),
        (78, RamFaultKind::CutAll),
        (83, RamFaultKind::CutOthers),
        (91, RamFaultKind::Damage),
        (98, RamFaultKind::LeaveAndKill),
        (100, RamFaultKind::Outage),
    ];
    const KILL_AFTER_LOSS_PERCENT: u64 = 25;
    const KILL_AGAIN_PERCENT: u64 = 60;

    fn draw_kill(random: &mut SimulationRandom) -> (KillAt, u64) {
        let (phase, steps) = match random.below(4) {
            0 => (KillAt::Group(GroupPhase::Survey), 6),
            1 => (KillAt::Group(GroupPhase::Claim), 4),
            2 => (KillAt::Group(GroupPhase::Opening), 3),
            _ => (KillAt::Resync, 3),
        };
        (phase, 1 + random.below(steps))
    }

    fn mix(&self) -> UserMix {
        UserMix { below: [45, 51, 59, 93], forced_percent: 20, is_even: false }
    }

    fn blocks(&self) -> u64 {
        self.geometry.blocks()
    }

    fn tick(&mut self) -> u64 {
        self.history.tick()
    }

    fn begin_change(&mut self, client: ClientId, blocks: Range<u64>, number: u64) -> u64 {
        let effect = if number == 0 { CellEffect::Zero } else { CellEffect::Write(number) };
        let place = self.history.begin(blocks.start as usize..blocks.end as usize, effect, false);
        self.blocks.begin(client, place, blocks, number);
        place as u64
    }

    fn machine(world: &RamWorld<Self>, client: u64, intent: MachineIntent) -> InPlaceMachine {
        let labels = (0..world.donors.len()).map(|donor| format!("host-{donor}")).collect();
        let times = MachineTimes { scrub_us: world.scrub_us, ..TIMES };
        let configuration = InPlaceConfiguration { geometry: world.layout.geometry, labels, client, intent, times };
        InPlaceMachine::new(configuration, world.now_us()).expect("the geometry is possible")
    }

    fn figures(machine: &InPlaceMachine) -> Vec<(&'static str, u64)> {
        let (group, figures) = (machine.group().figures(), machine.figures());
        let scrub = machine.scrub_progress();
        vec![
            ("left donor filled again", group.rebuilt),
            ("wrong bytes repaired", figures.repaired),
            ("another donor took the place of one", group.replaced),
            ("all copies compared by the scrub", scrub.passes),
            ("wrong copy repaired by the scrub", scrub.repaired),
            ("answer after another one was used", group.late_replies),
            ("unfenced donor's lease waited for", group.lease_waits),
            ("answer held for a proof", figures.held_reads),
            ("patience lost", figures.impatient),
            ("dirty stripes resynchronised", figures.resynchronised),
            ("read answered from the other members", figures.reconstructed),
            ("block of a missing donor lost in an unfinished stripe", figures.lost_blocks),
            ("donor comes and goes", group.taken_back.min(figures.replayed)),
        ]
    }

    fn is_believed(world: &RamWorld<Self>, donor: usize) -> bool {
        world.layout.believed[donor]
    }

    fn is_told(world: &RamWorld<Self>) -> bool {
        world.layout.is_told
    }

    fn has_everything(world: &RamWorld<Self>, donor: usize) -> bool {
        world.has_everything(donor)
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
        world.memory_changed(donor, offset, bytes);
    }

    fn records_changed(world: &mut RamWorld<Self>, _what: &str) {
        world.records_changed();
    }

    fn settled(world: &mut RamWorld<Self>) {
        world.check_copies();
        // The next client does not know the checksums, so it could not detect wrong copies.
        world.heal_lies();
    }

    fn attached(world: &mut RamWorld<Self>, _client: ClientId, is_new: bool) {
        if is_new {
            world.records_changed();
        }
    }

    fn note_death(world: &mut RamWorld<Self>, _client: ClientId) {
        world.coverage.met("client lost after a trim", u64::from(world.layout.blocks.has_trimmed()));
    }

    fn knows_losses(&self) -> bool {
        self.is_plain()
    }

    fn is_gone(&self) -> bool {
        self.is_unfilled
    }

    fn before_loss(world: &mut RamWorld<Self>, donor: usize) {
        world.note_loss(donor);
    }

    fn damage_stays(&self) -> bool {
        self.is_plain()
    }

    fn damage(world: &mut RamWorld<Self>) -> bool {
        world.lie()
    }

    fn heal(world: &mut RamWorld<Self>) {
        world.heal_lies();
    }

    fn damaged(&self) -> Option<String> {
        self.lies.first().map(|lie| format!("{lie:?}"))
    }

    fn turn(world: &mut RamWorld<Self>, client: ClientId) {
        world.replace_sometimes(client);
    }

    fn before_attach(world: &mut RamWorld<Self>, take_over: bool) {
        world.finish_move(take_over);
    }

    fn restored(world: &mut RamWorld<Self>, client: ClientId, donor: usize) {
        world.take_back(client, donor);
    }

    fn unexplained(&self) -> Vec<String> {
        self.history.unexplained(self.geometry.blocks() as usize)
    }
}
