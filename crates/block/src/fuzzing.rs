//! For fuzz targets: recordings from memory and back.
//!
//! Owns: nothing. Not part of the public interface, and it changes without notice.

pub use crate::filter::record::{parse_recording as recording, write_recording};
