//! Simulates policies over traces.
//!
//! Owns: workloads (traces in memory, mixed or not), sizes, runs on all cores, and their presentation. Leaves to
//! others: the policies (`nectary-cache`), the options and the output (`nectary`).

pub mod policies;
mod run;
mod runs;
mod said;
pub mod sizes;
pub mod svg;
pub mod table;
mod workload;

pub use run::misses;
pub use runs::{Row, Run, run_all};
pub use said::{Period, Said};
pub use workload::{LoadOptions, REFERENCES_MAX, TRACES_MAX, Workload};
