//! Simulates policies over traces.
//!
//! Owns: workloads (traces in memory, mixed or not) and streams (traces of any length), sizes, what is counted, runs on
//! all cores, and their presentation. Leaves to others: the policies (`nectary-cache`), the options and the output
//! (`nectary`).

pub mod counting;
mod cutter;
pub(crate) mod distinct;
mod load;
mod mix;
mod outline;
pub mod policies;
mod run;
mod runs;
mod said;
pub mod sizes;
pub mod stream;
pub mod svg;
pub mod table;
mod workload;

pub use counting::{CountingWindows, RunCounts};
pub use load::{LoadOptions, REFERENCES_MAX};
pub use mix::TRACES_MAX;
pub use outline::{TraceOutline, WindowStart};
pub use run::{count, misses};
pub use runs::{SimulationRow, SimulationRun, run_all};
pub use said::{PeriodFindings, PolicyReport};
pub use workload::{ObjectLifetime, TraceWorkload};
