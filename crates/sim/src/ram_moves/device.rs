//! A device of any policy: its shape before and after it grows, and its machine.

use bytes::Bytes;
use nectary_ram::format::slots::DonorAreas;
use nectary_ram::format::{FormerSize, Formers, RecordGeometry, RedundancyCode};
use nectary_ram::log::{self, ParityLogConfiguration};
use nectary_ram::mirror::{
    self, MachineIntent, MachineTimes, MirrorAction, MirrorEvent, MirrorRing, ParityLayout, StripeLayout as _,
};
use nectary_ram::moving::MoveMachine;
use nectary_ram::placement::{PlacementSettings, RedundancyPolicy};

use crate::ram::blocks::BLOCK_BYTES;
use crate::random::SimulationRandom;

const MILLISECOND: u64 = 1000;
/// The number of blocks of a stripe on each donor.
const CHUNK_BLOCKS: u64 = 2;

/// The times of simulated machines: the defaults, with less patience.
pub const TIMES: MachineTimes = MachineTimes {
    suspect_us: 250 * MILLISECOND,
    leave_us: 800 * MILLISECOND,
    patience_us: 5000 * MILLISECOND,
    survey_us: 500 * MILLISECOND,
    lease_us: 1000 * MILLISECOND,
    ping_us: 300 * MILLISECOND,
    clean_us: 400 * MILLISECOND,
    rejoin_us: 300 * MILLISECOND,
    tick_us: 50 * MILLISECOND,
    scrub_us: 0,
    scrub_rest_us: 60_000 * MILLISECOND,
};

/// The machine of a device.
pub enum PolicyMachine {
    InPlace(Box<mirror::MirrorMachine>),
    Log(Box<log::ParityLogMachine>),
}

/// Draws the geometry of a device, and the one that it has when it has grown.
pub fn draw(random: &mut SimulationRandom, policy: RedundancyPolicy, seed: u64) -> (RecordGeometry, RecordGeometry) {
    let block_bytes = BLOCK_BYTES as u32;
    let in_place = |code: RedundancyCode, members: u16, stripe_blocks: u64| {
        let geometry = |blocks: u64| RecordGeometry {
            device: [seed as u8; 16],
            bytes: blocks * BLOCK_BYTES as u64,
            block_bytes,
            stripe_bytes: stripe_blocks as u32 * block_bytes,
            members,
            code,
        };
        (geometry(stripe_blocks * 12), geometry(stripe_blocks * 16))
    };
    match policy {
        RedundancyPolicy::Mirror => {
            in_place(RedundancyCode::Mirror, [2, 2, 3, 4][random.below(4) as usize], CHUNK_BLOCKS)
        }
        RedundancyPolicy::Parity => {
            let members = [3, 3, 4][random.below(3) as usize];
            in_place(RedundancyCode::Parity, members, CHUNK_BLOCKS * u64::from(members - 1))
        }
        policy => {
            let mut layout = PlacementSettings {
                overflow_percent: 100,
                ..PlacementSettings::new(policy, 16, [2, 2, 3][random.below(3) as usize])
            };
            while layout.clone().open().is_err() {
                layout.blocks += 1;
            }
            let before = geometry_of(&layout, Formers::default(), seed);
            let mut formers = Formers::default();
            formers[0] = FormerSize { blocks: layout.blocks, groups: layout.rows() };
            let larger = PlacementSettings { blocks: layout.blocks + 6, ..layout };
            (before, geometry_of(&larger, formers, seed))
        }
    }
}

fn geometry_of(layout: &PlacementSettings, formers: Formers, seed: u64) -> RecordGeometry {
    configuration(layout.clone(), formers, [seed as u8; 16], Vec::new(), 1, MachineIntent::Create).geometry()
}

fn configuration(
    layout: PlacementSettings,
    formers: Formers,
    device: [u8; 16],
    labels: Vec<String>,
    client: u64,
    intent: MachineIntent,
) -> ParityLogConfiguration {
    let block_bytes = BLOCK_BYTES as u32;
    ParityLogConfiguration { device, block_bytes, layout, formers, labels, client, intent, times: TIMES }
}

/// The bytes that a device has on each donor.
pub fn donor_bytes(geometry: &RecordGeometry) -> u64 {
    match ParityLogConfiguration::shape_of(geometry) {
        Some(shape) => DonorAreas::new(&shape).donor_bytes,
        None if geometry.is_parity() => ParityLayout::new(geometry).donor_bytes(),
        None => MirrorRing::new(geometry).donor_bytes(),
    }
}

impl PolicyMachine {
    /// The machine of a client that begins to create or attach the device.
    pub fn new(geometry: RecordGeometry, client: u64, intent: MachineIntent, now_us: u64) -> PolicyMachine {
        let labels: Vec<String> = (0..geometry.members).map(|donor| format!("host-{donor}")).collect();
        match geometry.log() {
            None => {
                let configuration = mirror::MirrorConfiguration { geometry, labels, client, intent, times: TIMES };
                let machine = mirror::MirrorMachine::new(configuration, now_us).expect("the geometry is possible");
                PolicyMachine::InPlace(Box::new(machine))
            }
            Some(shape) => {
                let layout = ParityLogConfiguration::layout_of(&geometry).expect("the layout is possible");
                let configuration = configuration(layout, shape.formers, geometry.device, labels, client, intent);
                let machine = log::ParityLogMachine::new(configuration, now_us).expect("the configuration is possible");
                PolicyMachine::Log(Box::new(machine))
            }
        }
    }

    pub fn step(&mut self, now_us: u64, event: MirrorEvent) -> Vec<MirrorAction> {
        match self {
            PolicyMachine::InPlace(machine) => {
                machine.step(now_us, event);
                machine.actions().collect()
            }
            PolicyMachine::Log(machine) => {
                machine.step(now_us, event);
                machine.actions().collect()
            }
        }
    }

    pub fn members(&self) -> &dyn MoveMachine {
        match self {
            PolicyMachine::InPlace(machine) => &**machine,
            PolicyMachine::Log(machine) => &**machine,
        }
    }

    pub fn wake_at(&self) -> Option<u64> {
        match self {
            PolicyMachine::InPlace(machine) => machine.wake_at(),
            PolicyMachine::Log(machine) => machine.wake_at(),
        }
    }

    pub fn is_ended(&self) -> bool {
        match self {
            PolicyMachine::InPlace(machine) => machine.phase() == mirror::MirrorPhase::Ended,
            PolicyMachine::Log(machine) => machine.phase() == log::ParityLogPhase::Ended,
        }
    }

    /// The incarnations and states of the donors in the view.
    pub fn view(&self) -> &nectary_ram::format::MembershipView {
        match self {
            PolicyMachine::InPlace(machine) => machine.view(),
            PolicyMachine::Log(machine) => machine.view(),
        }
    }

    /// What the donor that is being filled has.
    pub fn filled(&self) -> u64 {
        let progress = match self {
            PolicyMachine::InPlace(machine) => machine.rebuild_progress(),
            PolicyMachine::Log(machine) => machine.rebuild_progress(),
        };
        progress.map_or(0, |(_, copied, _)| copied)
    }

    /// What the device waits for, in words.
    pub fn state(&self) -> String {
        match self {
            PolicyMachine::InPlace(machine) => {
                format!("{:?}, {:?}, view {:?}", machine.phase(), machine.standing(), machine.view().number())
            }
            PolicyMachine::Log(machine) => format!(
                "{:?}, {:?}, {:?}, view {:?}",
                machine.phase(),
                machine.base_phase(),
                machine.standing(),
                machine.view().number()
            ),
        }
    }
}

/// The bytes of a change's blocks.
pub fn data(number: u64, block: u64) -> Bytes {
    Bytes::copy_from_slice(&crate::ram::blocks::contents(number, block))
}
