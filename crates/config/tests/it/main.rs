//! The promises of the configuration.
//!
//! Owns: a hundred configurations with their messages (`tests/cases`), the page of keys, random configurations, and bytes
//! that are none.

#![forbid(unsafe_code)]

mod arbitrary;
mod cases;
mod files;
mod hostile_bytes;
mod keys_are_read;
mod page;
mod round_trip;
