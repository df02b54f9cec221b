//! The shared volume: a file system on a disk that several hosts can reach.
//!
//! Owns: `format`, the encoding on the disk (`docs/formats/volume.md`); `journal`, which reads and writes everything
//! except the data of files; `tables`, the records in memory; `metadata`, the effect of operations on the records;
//! `protocol`, the messages between hosts; `tokens`, the rules of who may cache and change what; `server` and `client`,
//! which do not import each other. Promises: no bytes make a decoder panic or allocate beyond its bounds. Leaves to
//! others: the interface to the kernel.

#![forbid(unsafe_code)]

pub mod client;
pub mod format;
mod identity;
pub mod journal;
pub mod metadata;
mod net;
pub mod origin;
pub mod planted;
pub mod protocol;
pub mod server;
pub mod simulated;
pub mod tables;
pub mod tokens;
mod wire;

pub use identity::random_id;
