//! Whole-system tests: the `nectary` binary, run as users run it, with real programs around it.
//!
//! Owns the harness that is shared by the tests and the campaigns of the program `e2e-campaigns` (`e2e-campaigns list`
//! lists them): a deterministic origin, an HTTP client that checks everything, process guards, models of the allowed
//! answers of a cache, and the peers. It links no other crate of the workspace, so its expectations do not come from the
//! tested code.
//!
//! Everything listens on loopback, uses scratch directories, prints its counts and its seed, and ends with its parent
//! process.

pub mod access_log;
pub mod attach;
pub mod bench;
pub mod browser;
pub mod cache_tests;
pub mod cache_tree;
pub mod clients;
pub mod configurations;
pub mod content;
pub mod emulated;
pub mod failover;
pub mod filled;
pub mod fleet;
pub mod guard;
pub mod http;
pub mod live;
pub mod load;
pub mod mirror;
pub mod nbd;
pub mod nectary;
pub mod origin;
pub mod packages;
pub mod peers;
pub mod pressure;
pub mod ram;
pub mod report;
pub mod restart;
pub mod ring;
pub mod rng;
pub mod scratch;
pub mod sigkill;
pub mod unmounting;
pub mod volume;
