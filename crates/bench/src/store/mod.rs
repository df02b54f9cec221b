//! `bench store`: a proxy's workload straight on storage, under the conditions of the seeds' tables 4 and 5.
//!
//! Owns: the presets and their scaling. How a run goes: for each disk size every contender gets a disk, a memory group and a process of its
//! own, and all stay until the end. The workload is cut into pieces; each piece is replayed by every contender before the next one
//! begins, in an order that turns round from piece to piece (A B B A …). The ratio of two contenders' times for one piece is
//! one pair, and there are at least ten. Nectary contends twice: what the two differ by is the noise.

mod limit;
mod plan;
mod report;
mod run;

use serde::{Deserialize, Serialize};

pub use limit::Limit;
pub use plan::{Group, Lane, Plan};
pub use report::{Figure, Report};
pub use run::{LaneResult, Programs, Progress, run};

/// The seeds' tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// One thread, one disk, 256 MB divided in two ways; against EFS and XFS.
    Table4,
    /// Four threads, two disks; against UFS in three forms.
    Table5,
}

impl Preset {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Table4 => "table4",
            Preset::Table5 => "table5",
        }
    }

    /// Threads of the workload.
    pub fn threads(self) -> usize {
        match self {
            Preset::Table4 => 1,
            Preset::Table5 => 4,
        }
    }

    /// The scale where none is asked for: large enough for the memory that the store needs for each thread.
    pub fn scale_default(self) -> f64 {
        match self {
            Preset::Table4 => 1.0 / 16.0,
            Preset::Table5 => 1.0 / 8.0,
        }
    }

    /// Share of the trace that is replayed, from its beginning on: disks in real time take too long for all of it.
    pub fn trace_share(self) -> f64 {
        match self {
            Preset::Table4 => 1.0,
            Preset::Table5 => 0.25,
        }
    }
}

/// What to run.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The seeds' conditions.
    pub preset: Preset,
    /// Their share: sizes, memory and trace in proportion.
    pub scale: Option<f64>,
    /// A look that takes less than a minute: the smallest disk, the beginning of the trace, fewer pairs.
    pub quick: bool,
    /// Chooses the requests.
    pub seed: u64,
    /// Pairs; ten where nothing is said.
    pub pairs: Option<usize>,
    /// Only contenders whose name contains one of these, beside Nectary; all where there is none.
    pub only: Vec<String>,
    /// Disk sizes of the table to run, in GB; all where there is none.
    pub sizes: Vec<u64>,
}
