//! The benchmarks that measure a whole proxy, beside its peers or an earlier version.

pub mod before;
pub mod edge;
pub mod large;
pub mod memory;
pub mod pressure;
