//! What an open of a store finds that is not as a clean close leaves it.
//!
//! Owns: the list of findings and their words. Leaves to others: finding and mending them (`recover`, `api/open.rs`).

use serde::Serialize;

/// Something that an open for writing repairs on the device, and that an open for reading leaves as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingRepair {
    /// What was found, where, and what an open for writing does about it.
    pub what: String,
    /// Whether the device is damaged; if not, this is what the end of a process or a power cut leaves.
    pub is_damage: bool,
}

impl PendingRepair {
    /// Notes what a crash leaves.
    pub fn after_crash(what: impl Into<String>) -> PendingRepair {
        PendingRepair { what: what.into(), is_damage: false }
    }

    /// Notes damage.
    pub fn of_damage(what: impl Into<String>) -> PendingRepair {
        PendingRepair { what: what.into(), is_damage: true }
    }
}
