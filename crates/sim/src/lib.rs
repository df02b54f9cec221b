//! Simulation for tests: faults of disks, states after a crash, and models to compare the store with.
//!
//! Owns: simulated faults, crash states, models and seeded workloads. Nothing here is part of a user's build.
#![forbid(unsafe_code)]

pub mod cache;
pub mod crash;
pub mod disk;
pub mod fleet;
pub mod flushed;
pub mod held;
pub mod late;
pub mod planted;
pub mod ram;
pub mod ram_moves;
pub mod random;
pub mod store;
pub mod switch;
pub mod volume;
pub mod volume_clients;
pub mod volume_journal;
pub mod volume_names;
