//! Functions for fuzz targets: they convert recordings to and from bytes in memory.
//!
//! Owns: nothing. This module is not part of the public interface, and changes without notice.

pub use crate::filter::record::{parse_recording as recording, write_recording};
