//! The redundancy code of a device: what is stored beside the data, so that a donor can be lost.
//!
//! Owns: the list of codes. Leaves to others: their numbers in a record (`record`), and using them (`in_place`, `logged`).

use super::{LogShape, RowZones};

/// A redundancy code. When the device grows, only the zones, or the sizes in the settings of a log, change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedundancyCode {
    /// Each stripe is on one donor: there is no redundancy.
    None(RowZones),
    /// Each stripe is on two donors.
    Mirror,
    /// Each stripe is cut into one chunk for each donor but one, which has their XOR. It is changed in place.
    Parity,
    /// Blocks are appended to groups with parity.
    Log(LogShape),
}
