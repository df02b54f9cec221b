//! The configuration of a machine.
//!
//! Owns: the configuration. Promises: a machine can serve every configuration
//! that passes `check`.

use super::layout::RowLayout;
use crate::format::RecordGeometry;
use crate::group::{AttachRefusal, MachineIntent, MachineTimes};

/// The configuration of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlaceConfiguration {
    /// The geometry of the device. The donors are numbered from 0; they must always be given in the same order.
    pub geometry: RecordGeometry,
    /// The label of each donor: two donors with the same label may fail together.
    pub labels: Vec<String>,
    /// A random number, not 0, that no other client has.
    pub client: u64,
    /// The purpose: to create or to attach the device.
    pub intent: MachineIntent,
    /// The time limits.
    pub times: MachineTimes,
}

impl InPlaceConfiguration {
    /// Checks the geometry, and that all members of a stripe are on donors with
    /// different labels.
    ///
    /// *Errors*: [`AttachRefusal::RecordGeometry`], [`AttachRefusal::SameLabel`].
    pub fn check(&self) -> Result<(), AttachRefusal> {
        self.geometry.check()?;
        let rows = RowLayout::new(&self.geometry);
        for stripe in 0..u64::from(self.geometry.members).min(self.geometry.stripes()) {
            let mut donors: Vec<usize> = rows.donors(stripe).collect();
            if !rows.is_copied() {
                donors.sort_unstable();
            }
            for (at, second) in donors.iter().enumerate() {
                donors[..at].iter().try_for_each(|first| self.check_pair(*first, *second))?;
            }
        }
        Ok(())
    }

    fn check_pair(&self, first: usize, second: usize) -> Result<(), AttachRefusal> {
        let label = |donor: usize| self.labels.get(donor).map(String::as_str).unwrap_or_default();
        match label(first) == label(second) {
            true => Err(AttachRefusal::SameLabel { first, second, label: label(first).to_owned() }),
            false => Ok(()),
        }
    }
}
