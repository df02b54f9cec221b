//! What a machine is told at the start, and the limits of everything that it keeps.
//!
//! Owns: the configuration and the named limits. Promises: a configuration that passes `check` can be served.

use crate::format::Geometry;
use crate::format::slots::{REGION_BLOCKS_MAX, Shape};
use crate::mirror::{Intent, Refusal, Times};
use crate::placement::{Layout, Log};

/// Steps of the placement that are not done; no further operation is begun above it.
pub const STEPS_MAX: usize = 512;
/// Bytes of one read of a recovery.
pub const SURVEY_BYTES: u64 = 1 << 20;
/// Reads of a recovery at a time.
pub const SURVEY_READS_MAX: usize = 64;
/// Groups that are refilled at a time.
pub const REFILLS_MAX: usize = 4;
/// A group is opened only while more than this many are free, unless nothing else is under way: after a crash, cleaning
/// needs them.
pub const FREE_GROUPS_KEPT: usize = 3;

/// What a machine is told at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The identity of the device.
    pub device: [u8; 16],
    /// *Units*: bytes.
    pub block_bytes: u32,
    /// Policy, blocks, members of a group; there is one donor more.
    pub layout: Layout,
    /// The label of each donor: two donors with one label may fail together.
    pub labels: Vec<String>,
    /// A random number that no other client has; not 0.
    pub client: u64,
    /// What to do.
    pub intent: Intent,
    /// The times.
    pub times: Times,
}

impl Configuration {
    /// What the donors' records say of the device.
    pub fn geometry(&self) -> Geometry {
        let bytes = u64::from(self.layout.blocks) * u64::from(self.block_bytes);
        let members = u16::from(self.layout.donors());
        Geometry { device: self.device, bytes, block_bytes: self.block_bytes, stripe_bytes: 0, members }
    }

    /// What the donors' memory says of it.
    pub fn shape(&self) -> Shape {
        let donors = u32::from(self.layout.donors());
        Shape {
            policy: self.layout.policy as u32,
            device: self.device,
            blocks: self.layout.blocks,
            block_bytes: self.block_bytes,
            members: self.layout.members,
            groups: self.layout.rows(),
            caches: Log::caches(&self.layout),
            // Every donor has its share also of a small device's trims.
            region_blocks: (self.layout.blocks / (4 * donors)).clamp(1, REGION_BLOCKS_MAX),
        }
    }

    /// Checks the shape, and that no two donors have the same label.
    ///
    /// *Errors*: [`Refusal::Geometry`], [`Refusal::SameLabel`].
    pub fn check(&self) -> Result<(), Refusal> {
        let range = |what, found| Refusal::Geometry(crate::format::FormatError::Range { what, found });
        if self.layout.policy.is_in_place() {
            return Err(range("policy", self.layout.policy as u64));
        }
        if Log::restore(self.layout.clone(), std::iter::empty()).is_err() {
            return Err(range("groups", u64::from(self.layout.rows())));
        }
        self.geometry().check()?;
        self.shape().check()?;
        for (second, label) in self.labels.iter().enumerate() {
            if let Some(first) = self.labels[..second].iter().position(|other| other == label) {
                return Err(Refusal::SameLabel { first, second, label: label.clone() });
            }
        }
        Ok(())
    }
}
