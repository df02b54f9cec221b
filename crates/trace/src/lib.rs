//! Block reference traces: reading and writing them, recording them from real programs, simulating policies over them.
//!
//! Owns: the trace formats (one file each), access logs (`access_log`), the recorder, the simulator and its reports.
//! Leaves to others: the policies (`nectary-cache`), options and output (`nectary`).
#![deny(unsafe_code)]

pub mod access_log;
pub mod convert;
pub mod curve;
mod error;
pub mod formats;
pub mod record;
pub mod simulate;
pub mod stat;

pub use error::{Error, Result, TracePosition};
pub use formats::TraceReference;
pub use stat::TraceStat;
