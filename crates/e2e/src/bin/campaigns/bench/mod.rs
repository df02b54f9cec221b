//! The benchmarks that measure a whole proxy, beside its peers.

pub mod large;
pub mod memory;
pub mod pressure;
