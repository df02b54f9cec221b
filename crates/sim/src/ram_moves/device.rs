//! A device of any policy: its shape before and after it grows, and its machine.

use bytes::Bytes;
use nectary_ram::device::owner::{self, DeviceMachine};
use nectary_ram::format::slots::DonorAreas;
use nectary_ram::format::{FormerSize, Formers, RecordGeometry, RedundancyCode};
use nectary_ram::group::{MachineIntent, MachineTimes};
use nectary_ram::logged::ParityLogConfiguration;
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
    let configuration = ParityLogConfiguration {
        device: [seed as u8; 16],
        block_bytes: BLOCK_BYTES as u32,
        layout: layout.clone(),
        formers,
        labels: Vec::new(),
        client: 1,
        intent: MachineIntent::Create,
        times: TIMES,
    };
    configuration.geometry()
}

/// The bytes that a device has on each donor, not rounded up as on real ones.
pub fn donor_bytes(geometry: &RecordGeometry) -> u64 {
    match ParityLogConfiguration::shape_of(geometry) {
        Some(shape) => DonorAreas::new(&shape).donor_bytes,
        None => owner::donor_bytes(geometry, 0),
    }
}

/// The machine of a client that begins to create or attach the device.
pub fn new_machine(
    geometry: RecordGeometry,
    client: u64,
    intent: MachineIntent,
    now_us: u64,
) -> Box<dyn DeviceMachine> {
    let labels: Vec<String> = (0..geometry.members).map(|donor| format!("host-{donor}")).collect();
    owner::machine(geometry, labels, client, intent, TIMES, now_us).expect("the geometry is possible")
}

/// The bytes of a change's blocks.
pub fn data(number: u64, block: u64) -> Bytes {
    Bytes::copy_from_slice(&crate::ram::blocks::contents(number, block))
}
