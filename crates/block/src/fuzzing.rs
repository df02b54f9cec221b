//! For fuzz targets: recordings from memory and back.
//!
//! Owns: nothing of its own. No part of the public face, and it changes without notice.

pub use crate::filter::record::{parse_recording as recording, write_recording};
