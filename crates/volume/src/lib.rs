//! The shared volume: a file system on a disk that several hosts can reach.
//!
//! Owns: `format`, the bytes on the disk (`docs/formats/volume.md`); `journal`, which reads and writes everything
//! except the data of files; `tables`, its records in memory; `metadata`, what operations do to them; `protocol`, what
//! hosts say to each other; `tokens`, who may cache and change what; `server` and `client`. Promises: for no bytes does
//! a decoder panic or allocate beyond its bounds. Leaves to others: the kernel's side.

#![forbid(unsafe_code)]

pub mod client;
pub mod format;
pub mod journal;
pub mod metadata;
mod net;
pub mod planted;
pub mod protocol;
pub mod server;
pub mod tables;
pub mod tokens;
mod wire;
