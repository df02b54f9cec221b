//! The `nectary` program in whole systems: one test program, and one file for each promise or failure.
//!
//! `cargo xtask test nectary-e2e` runs each file's tests in their own process, one file after another: some files have
//! one test that uses all processors, or measure times. Under `cargo test`, all tests share one process and run beside
//! each other; then `-- --test-threads 1` keeps such tests from disturbing each other.

mod attach;
mod cache;
mod nbd;
mod packages;
mod proxy;
mod proxy_acme;
mod proxy_config_file;
mod ram;
mod readme;
mod volume;
