//! `bench store`: replays a proxy's workload directly on storage, under the conditions of tables 4 and 5 of the
//! Hummingbird paper, and on a modern device.
//!
//! Owns: the presets and their scaling. How a run works: for each disk size every contender gets a disk, a memory group
//! and a process, which last until the end. The workload is cut into pieces. All contenders replay a piece before the
//! next piece begins, in an order that alternates from piece to piece (A B B A …). This is repeated with several seeds
//! of the workload; the ratio of two contenders' run times with one seed is one pair. Nectary runs twice: the
//! difference between these two runs is the noise. In the end the hits of each contender are compared with those of a
//! simulation.

mod lanes;
mod limit;
mod plan;
mod plot;
mod report;
mod results;
mod run;
mod simulation;
mod text;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::disk::QUEUE_DEPTH;
use crate::workload::WorkloadPreset;

pub use lanes::StoreLane;
pub use limit::DiskSpeed;
pub use plan::{DiskSizeGroup, StorePlan};
pub use plot::pictures;
pub use results::{DirtyShareResult, ExpectedHits, GroupResult, LaneResult, RatioTrend};
pub use run::{ProcessCommands, RunProgress, run};

/// The conditions of a run: two tables of the paper, or a bare disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StorePreset {
    /// One thread, one disk, and 256 MB of memory, divided in two ways; compared with EFS and XFS.
    Table4,
    /// Four threads and two disks; compared with three forms of UFS.
    Table5,
    /// One thread and a bare disk, in real time; pages embed 1 to 10 objects; compared with file systems and foyer.
    Bare,
}

impl StorePreset {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StorePreset::Table4 => "table4",
            StorePreset::Table5 => "table5",
            StorePreset::Bare => "bare",
        }
    }

    /// The number of disks of a contender.
    pub fn disks(self) -> usize {
        match self {
            StorePreset::Table4 | StorePreset::Bare => 1,
            StorePreset::Table5 => 2,
        }
    }

    /// The number of threads of the workload.
    pub fn threads(self) -> usize {
        match self {
            StorePreset::Table4 | StorePreset::Bare => 1,
            StorePreset::Table5 => 4,
        }
    }
}

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 7] = [
    ("bench store --seed table4 --quick", "a look: one seed, the beginning of the trace, no verdicts", "1 minute"),
    (
        "bench store --seed table4 --log FILE",
        "the same with the requests of an access log, or `--workload wikimedia`: a public one's laws",
        "1 to 20 minutes",
    ),
    (
        "bench store --seed table4",
        "the store beside XFS and EFS's stand-in; one thread, disks of 4, 9 and 18 GB",
        "20 minutes",
    ),
    ("bench store --seed table5", "beside UFS in three forms; four threads, two disks", "20 minutes"),
    ("bench store --seed table4 --ablations", "the store beside itself with one thing changed at a time", "5 minutes"),
    ("bench store --disk bare --folder DIR", "a device of today as it is, beside file systems and foyer", "1 hour"),
    ("bench limits --folder DIR", "what a device gives the store and fio: reads and filling", "10 minutes"),
];

/// The default scale: the smallest one at which a store has enough memory.
pub const SCALE: f64 = 1.0 / 32.0;
/// The default share of the trace: the whole trace, as in the paper.
pub const TRACE_SHARE: f64 = 1.0;

/// The options of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchStoreOptions {
    /// The conditions of the run.
    pub preset: StorePreset,
    /// The laws by which requests are drawn; figures have targets only with the seed's.
    pub workload: WorkloadPreset,
    /// An access log that is replayed instead.
    pub log: Option<PathBuf>,
    /// The factor by which disk sizes, memory and the length of the trace are scaled.
    pub scale: Option<f64>,
    /// The share of the trace that is replayed, from its beginning.
    pub trace: Option<f64>,
    /// A quick run of about a minute: the smallest disk, the beginning of the trace, fewer pairs.
    pub quick: bool,
    /// Compares Nectary with itself, with one setting changed at a time, on the smallest disk. Peers run only if `only`
    /// names them.
    pub ablations: bool,
    /// The seed of the requests.
    pub seed: u64,
    /// The number of seeds of the workload; the first is `seed`. The default is 5 on a virtual clock, and 1 in real
    /// time and for quick and ablation runs.
    pub seeds: Option<usize>,
    /// The share of a buffer cache that may be dirty, in percent. By default, several shares are compared first, and
    /// the fastest is used.
    pub dirty_percent: Option<u64>,
    /// The number of pieces of the workload, each of which gives one pair; 10 by default.
    pub pairs: Option<usize>,
    /// Runs only Nectary and the contenders whose names contain one of these texts; all if the list is empty.
    pub only: Vec<String>,
    /// The disk sizes that run, in GB; all sizes of the paper's table if the list is empty.
    pub sizes: Vec<u64>,
    /// With a bare disk, the mean numbers of embedded objects per page for which the experiment runs; all if the list
    /// is empty.
    pub embedded: Vec<u64>,
    /// With a bare disk, a directory on the measured device: each contender's disk is a file in it.
    pub folder: Option<PathBuf>,
    /// The program that runs foyer as a contender, if it is present.
    pub foyer: Option<PathBuf>,
    /// The speed-up of disks that run in real time; `None` for a virtual clock.
    pub speed: Option<f64>,
    /// The queue depth of a modelled disk: the disk chooses its next request from this many waiting ones. A disk of
    /// 1999 has a queue depth of 1.
    pub queue_depth: usize,
}

impl BenchStoreOptions {
    /// The options of a preset, with the defaults for everything else.
    pub fn new(preset: StorePreset) -> BenchStoreOptions {
        BenchStoreOptions {
            preset,
            workload: WorkloadPreset::Seed,
            log: None,
            scale: None,
            trace: None,
            quick: false,
            ablations: false,
            seed: 1,
            seeds: None,
            dirty_percent: None,
            pairs: None,
            only: Vec::new(),
            sizes: Vec::new(),
            embedded: Vec::new(),
            folder: None,
            foyer: None,
            speed: None,
            queue_depth: QUEUE_DEPTH,
        }
    }
    /// The name of the workload; `None` for the seed's.
    pub fn workload_name(&self) -> Option<&'static str> {
        match (&self.log, self.workload) {
            (Some(_), _) => Some("log"),
            (None, WorkloadPreset::Seed) => None,
            (None, preset) => Some(preset.name()),
        }
    }

    /// The name of the experiment, which is that of its page.
    pub fn experiment(&self) -> String {
        let workload = self.workload_name().map_or(String::new(), |name| format!("-{name}"));
        format!("store-{}{workload}", self.preset.name())
    }
}
