//! A device of any policy: its shape before and after it grows, and its machine.

use bytes::Bytes;
use nectary_ram::format::slots::Areas;
use nectary_ram::format::{Code, Former, Formers, Geometry};
use nectary_ram::log::{self, Configuration};
use nectary_ram::mirror::{self, Action, Event, Intent, Layout as _, Ring, Rows, Times};
use nectary_ram::moving::Members;
use nectary_ram::placement::{Layout, Policy};

use crate::ram::blocks::BLOCK_BYTES;
use crate::random::Random;

const MILLISECOND: u64 = 1000;
/// The number of blocks of a stripe on each donor.
const CHUNK_BLOCKS: u64 = 2;

/// The times of simulated machines: the defaults, with less patience.
pub const TIMES: Times = Times {
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
pub enum Machine {
    InPlace(Box<mirror::Machine>),
    Log(Box<log::Machine>),
}

/// Draws the geometry of a device, and the one that it has when it has grown.
pub fn draw(random: &mut Random, policy: Policy, seed: u64) -> (Geometry, Geometry) {
    let block_bytes = BLOCK_BYTES as u32;
    let in_place = |code: Code, members: u16, stripe_blocks: u64| {
        let geometry = |blocks: u64| Geometry {
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
        Policy::Mirror => in_place(Code::Mirror, [2, 2, 3, 4][random.below(4) as usize], CHUNK_BLOCKS),
        Policy::Parity => {
            let members = [3, 3, 4][random.below(3) as usize];
            in_place(Code::Parity, members, CHUNK_BLOCKS * u64::from(members - 1))
        }
        policy => {
            let mut layout =
                Layout { overflow_percent: 100, ..Layout::new(policy, 16, [2, 2, 3][random.below(3) as usize]) };
            while layout.clone().open().is_err() {
                layout.blocks += 1;
            }
            let before = geometry_of(&layout, Formers::default(), seed);
            let mut formers = Formers::default();
            formers[0] = Former { blocks: layout.blocks, groups: layout.rows() };
            let larger = Layout { blocks: layout.blocks + 6, ..layout };
            (before, geometry_of(&larger, formers, seed))
        }
    }
}

fn geometry_of(layout: &Layout, formers: Formers, seed: u64) -> Geometry {
    configuration(layout.clone(), formers, [seed as u8; 16], Vec::new(), 1, Intent::Create).geometry()
}

fn configuration(
    layout: Layout,
    formers: Formers,
    device: [u8; 16],
    labels: Vec<String>,
    client: u64,
    intent: Intent,
) -> Configuration {
    let block_bytes = BLOCK_BYTES as u32;
    Configuration { device, block_bytes, layout, formers, labels, client, intent, times: TIMES }
}

/// The bytes that a device has on each donor.
pub fn donor_bytes(geometry: &Geometry) -> u64 {
    match Configuration::shape_of(geometry) {
        Some(shape) => Areas::new(&shape).donor_bytes,
        None if geometry.is_parity() => Rows::new(geometry).donor_bytes(),
        None => Ring::new(geometry).donor_bytes(),
    }
}

impl Machine {
    /// The machine of a client that begins to create or attach the device.
    pub fn new(geometry: Geometry, client: u64, intent: Intent, now_us: u64) -> Machine {
        let labels: Vec<String> = (0..geometry.members).map(|donor| format!("host-{donor}")).collect();
        match geometry.log() {
            None => {
                let configuration = mirror::Configuration { geometry, labels, client, intent, times: TIMES };
                let machine = mirror::Machine::new(configuration, now_us).expect("the geometry is possible");
                Machine::InPlace(Box::new(machine))
            }
            Some(shape) => {
                let layout = Configuration::layout_of(&geometry).expect("the layout is possible");
                let configuration = configuration(layout, shape.formers, geometry.device, labels, client, intent);
                let machine = log::Machine::new(configuration, now_us).expect("the configuration is possible");
                Machine::Log(Box::new(machine))
            }
        }
    }

    pub fn step(&mut self, now_us: u64, event: Event) -> Vec<Action> {
        match self {
            Machine::InPlace(machine) => {
                machine.step(now_us, event);
                machine.actions().collect()
            }
            Machine::Log(machine) => {
                machine.step(now_us, event);
                machine.actions().collect()
            }
        }
    }

    pub fn members(&self) -> &dyn Members {
        match self {
            Machine::InPlace(machine) => &**machine,
            Machine::Log(machine) => &**machine,
        }
    }

    pub fn wake_at(&self) -> Option<u64> {
        match self {
            Machine::InPlace(machine) => machine.wake_at(),
            Machine::Log(machine) => machine.wake_at(),
        }
    }

    pub fn is_ended(&self) -> bool {
        match self {
            Machine::InPlace(machine) => machine.phase() == mirror::Phase::Ended,
            Machine::Log(machine) => machine.phase() == log::Phase::Ended,
        }
    }

    /// The incarnations and states of the donors in the view.
    pub fn view(&self) -> &nectary_ram::format::View {
        match self {
            Machine::InPlace(machine) => machine.view(),
            Machine::Log(machine) => machine.view(),
        }
    }

    /// What the donor that is being filled has.
    pub fn filled(&self) -> u64 {
        let progress = match self {
            Machine::InPlace(machine) => machine.rebuild_progress(),
            Machine::Log(machine) => machine.rebuild_progress(),
        };
        progress.map_or(0, |(_, copied, _)| copied)
    }

    /// What the device waits for, in words.
    pub fn state(&self) -> String {
        match self {
            Machine::InPlace(machine) => {
                format!("{:?}, {:?}, view {:?}", machine.phase(), machine.standing(), machine.view().number())
            }
            Machine::Log(machine) => format!(
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
