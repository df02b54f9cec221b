//! `bench store`: a proxy's workload straight on storage, under the conditions of the seeds' tables 4 and 5, and on a
//! device of today.
//!
//! Owns: the presets and their scaling. How a run goes: for each disk size every contender gets a disk, a memory group
//! and a process, and all stay until the end. The workload is cut into pieces; each piece is replayed by every
//! contender before the next one begins, in an order that turns round from piece to piece (A B B A …). The whole is
//! repeated with several seeds of the workload; the ratio of two contenders' run times with one seed is one pair.
//! Nectary contends twice: the difference of the two is the noise. In the end the hits of each are compared with a
//! simulation's.

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

pub use lanes::Lane;
pub use limit::Limit;
pub use plan::{Group, Plan};
pub use report::Report;
pub use results::{Expected, Figure, GroupResult, LaneResult, Swept, Trend};
pub use run::{Programs, Progress, run};

/// The seeds' tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// One thread, one disk, 256 MB divided in two ways; against EFS and XFS.
    Table4,
    /// Four threads, two disks; against UFS in three forms.
    Table5,
    /// One thread, one disk as it is, in real time; pages that embed 1 to 10 objects; against file systems and foyer.
    Bare,
}

impl Preset {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Table4 => "table4",
            Preset::Table5 => "table5",
            Preset::Bare => "bare",
        }
    }

    /// Disks of a contender.
    pub fn disks(self) -> usize {
        match self {
            Preset::Table4 | Preset::Bare => 1,
            Preset::Table5 => 2,
        }
    }

    /// Threads of the workload.
    pub fn threads(self) -> usize {
        match self {
            Preset::Table4 | Preset::Bare => 1,
            Preset::Table5 => 4,
        }
    }
}

/// The experiments, each with its subject and about how long it takes.
pub const EXPERIMENTS: [(&str, &str, &str); 6] = [
    ("bench store --seed table4 --quick", "a look: one seed, the beginning of the trace, no verdicts", "1 minute"),
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

/// The default scale: the least with the memory that a store needs.
pub const SCALE: f64 = 1.0 / 32.0;
/// The default share of the trace: all of it, as in the seeds.
pub const TRACE_SHARE: f64 = 1.0;

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The seeds' conditions.
    pub preset: Preset,
    /// Their share: sizes, memory and trace in proportion.
    pub scale: Option<f64>,
    /// The share of the trace that is replayed, from its beginning on.
    pub trace: Option<f64>,
    /// A look that takes about a minute: the smallest disk, the beginning of the trace, fewer pairs.
    pub quick: bool,
    /// Nectary beside itself with one thing changed at a time, on the smallest disk; peers where `only` names them.
    pub ablations: bool,
    /// Chooses the requests.
    pub seed: u64,
    /// Seeds of the workload, from `seed` on; by default five on a virtual clock, unless the run is quick.
    pub seeds: Option<usize>,
    /// How much of a buffer cache may be dirty, in percent; the best of a sweep by default.
    pub dirty_percent: Option<u64>,
    /// Pairs; ten by default.
    pub pairs: Option<usize>,
    /// Only contenders whose name contains one of these, beside Nectary; all if there is none.
    pub only: Vec<String>,
    /// Disk sizes of the table to run, in GB; all if there is none.
    pub sizes: Vec<u64>,
    /// Only pages that embed this many objects on average, of a bare disk's; all of them if there is none.
    pub embedded: Vec<u64>,
    /// The directory whose device is the bare disk.
    pub folder: Option<PathBuf>,
    /// The program that contends with foyer, if it is there.
    pub foyer: Option<PathBuf>,
    /// Disks in real time, this many times faster; on a virtual clock by default.
    pub speed: Option<f64>,
    /// From how many waiting requests a modelled disk chooses the next; 1 is a disk of 1999.
    pub queue_depth: usize,
}

impl Options {
    /// A preset without further options.
    pub fn new(preset: Preset) -> Options {
        Options {
            preset,
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
}
