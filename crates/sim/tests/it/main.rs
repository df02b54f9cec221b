//! The tests of the simulations, in one program; most are samples of the campaigns of `sim-campaigns`.
//!
//! Most planted bugs affect the whole process, so the tests take a lock (`support`): shared, or exclusive if they plant
//! such bugs.

mod cache_concurrent;
mod cache_device_late;
mod cache_replay;
mod fleet_simulation;
mod ram_log_simulation;
mod ram_moves;
mod ram_parity_simulation;
mod ram_plain_simulation;
mod ram_simulation;
mod store_admission;
mod store_concurrent;
mod store_crash_states;
mod store_model;
mod store_moments;
mod store_planted_bugs;
mod store_spans;
mod store_unreadable;
mod support;
mod volume_crash_states;
mod volume_journal;
mod volume_names;
mod volume_simulation;
