//! A client: its machine, its connections, and the operations of its user.

use std::collections::BTreeMap;
use std::ops::Range;

use nectary_ram::format::{FormerSize, Formers};
use nectary_ram::log::{ParityLogConfiguration, ParityLogMachine, RecoveryStage};
use nectary_ram::mirror::MachineIntent;
use nectary_ram::placement::{PlacementSettings, RedundancyPolicy, StaleRule};

use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::client::TIMES;
use crate::ram::donor::ConnectionId;
use crate::random::SimulationRandom;

/// An operation for which a user waits.
#[derive(Debug, Clone)]
pub enum LogUserOperation {
    Read { blocks: Range<u32>, began: u64 },
    Change { place: u64, blocks: Range<u32>, is_forced: bool, is_write: bool },
    Flush { began: u64 },
}

/// The phases in which a client can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillAt {
    Base(nectary_ram::mirror::MirrorPhase),
    Recovery(RecoveryStage),
}

/// A client.
#[derive(Debug)]
pub struct LogClientModel {
    pub machine: ParityLogMachine,
    pub id: u64,
    pub is_alive: bool,
    pub paused_until_us: u64,
    pub connections: Vec<Option<ConnectionId>>,
    /// The incarnations of donors that it has seen.
    pub incarnations: Vec<u64>,
    pub is_attached: bool,
    pub pending: BTreeMap<u64, LogUserOperation>,
    pub next_id: u64,
    /// The phase in which the client is killed, and the number of steps in that phase before the kill.
    pub kill_at: Option<(KillAt, u64)>,
    /// A donor from which the client is cut off while it recovers, and the duration of the cut in microseconds.
    pub cut_in_recovery: Option<(usize, u64)>,
}

/// Draws the settings of a layout; the layout is as small as they allow.
pub fn layout(random: &mut SimulationRandom, policy: RedundancyPolicy) -> PlacementSettings {
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
pub fn configuration(
    layout: &PlacementSettings,
    seed: u64,
    client: u64,
    intent: MachineIntent,
) -> ParityLogConfiguration {
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

impl LogClientModel {
    /// A client that begins to create or attach the device.
    pub fn new(configuration: ParityLogConfiguration, now_us: u64) -> LogClientModel {
        let donors = usize::from(configuration.layout.donors());
        let id = configuration.client;
        LogClientModel {
            machine: ParityLogMachine::new(configuration, now_us).expect("the configuration is possible"),
            id,
            is_alive: true,
            paused_until_us: 0,
            connections: vec![None; donors],
            incarnations: vec![0; donors],
            is_attached: false,
            pending: BTreeMap::new(),
            next_id: 1,
            kill_at: None,
            cut_in_recovery: None,
        }
    }

    /// Whether a change of one of the blocks is in progress.
    pub fn changes(&self, blocks: &Range<u32>) -> bool {
        self.pending.values().any(|pending| match pending {
            LogUserOperation::Change { blocks: other, .. } => other.start < blocks.end && blocks.start < other.end,
            _ => false,
        })
    }
}
