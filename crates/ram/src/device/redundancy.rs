//! The redundancy of a device.

use crate::placement::RedundancyPolicy;

/// The kind of redundancy, by which a device survives the loss of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redundancy {
    /// There is no redundancy.
    None,
    /// Every block is on two donors.
    Mirror,
    /// Each stripe has a parity, which is changed in place.
    Parity,
    /// Blocks are appended to groups with parity; `parity-log`, `parity-cache` or `adaptive`.
    Log(RedundancyPolicy),
}

impl Redundancy {
    /// Returns the name of the redundancy in a SPEC.
    pub fn name(self) -> &'static str {
        match self {
            Redundancy::None => "none",
            Redundancy::Mirror => "mirror",
            Redundancy::Parity => "parity",
            Redundancy::Log(policy) => policy.name(),
        }
    }
}
