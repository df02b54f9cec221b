//! The shared volume: a file system on a disk that several hosts can reach.
//!
//! Owns, as yet, one room: `format`, the bytes on the disk (`docs/formats/volume.md`). Promises: no decoder panics or
//! allocates beyond its bounds, whatever it is given. Leaves to others: devices, hosts and everything that moves bytes.

#![forbid(unsafe_code)]

pub mod format;
