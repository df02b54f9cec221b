//! Functions for fuzz targets: they convert recordings to and from bytes in memory.
//!
//! This module owns nothing. It is not part of the public interface and changes without notice.

pub use crate::filter::record::{parse_recording as recording, write_recording};
