//! What a machine is told at the start, and the limits of everything that it keeps.
//!
//! Owns: the configuration and the named limits. Promises: a configuration that passes `check` can be served.

use crate::format::slots::{REGION_BLOCKS_MAX, Shape};
use crate::format::{Geometry, LogShape};
use crate::mirror::{Intent, Refusal, Times};
use crate::placement::{Layout, Log, Policy};

/// Steps of the placement that are not done; no further operation is begun above it.
pub const STEPS_MAX: usize = 512;
/// Bytes of one read of a recovery.
pub const SURVEY_BYTES: u64 = 1 << 20;
/// Bytes of the reads of a recovery at a time, and one read more: a donor that owes too much counts as late on a slow
/// network.
pub const SURVEY_BYTES_UNDER_WAY_MAX: u64 = 8 << 20;
/// Reads of a recovery at a time.
pub const SURVEY_READS_MAX: usize = 256;
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
        let shape = self.shape();
        let log = LogShape {
            policy: shape.policy,
            groups: shape.groups,
            caches: shape.caches,
            region_blocks: shape.region_blocks,
            column_blocks: self.layout.column_blocks,
            overflow_percent: self.layout.overflow_percent,
        };
        let log = Some(log);
        Geometry { device: self.device, bytes, block_bytes: self.block_bytes, stripe_bytes: 0, members, log }
    }

    /// The shape that a record describes; `None`: it describes a mirror. The record was checked.
    pub fn shape_of(geometry: &Geometry) -> Option<Shape> {
        let log = geometry.log?;
        Some(Shape {
            policy: log.policy,
            device: geometry.device,
            blocks: u32::try_from(geometry.blocks()).unwrap_or(u32::MAX),
            block_bytes: geometry.block_bytes,
            members: geometry.members.saturating_sub(1).min(255) as u8,
            groups: log.groups,
            caches: log.caches,
            region_blocks: log.region_blocks,
        })
    }

    /// The layout that a record describes; `None` if this version would place blocks otherwise.
    pub fn layout_of(geometry: &Geometry) -> Option<Layout> {
        let log = geometry.log?;
        let policy = Policy::ALL.into_iter().find(|policy| !policy.is_in_place() && *policy as u32 == log.policy)?;
        let blocks = u32::try_from(geometry.blocks()).ok()?;
        let members = u8::try_from(geometry.members.checked_sub(1)?).ok()?;
        let mut layout = Layout::new(policy, blocks, members);
        (layout.overflow_percent, layout.column_blocks) = (log.overflow_percent, log.column_blocks);
        if policy == Policy::Adaptive {
            layout.streams = log.caches.checked_sub(2)? as usize;
        }
        let is_same = Log::restore(layout.clone(), std::iter::empty()).is_ok();
        (is_same && layout.rows() == log.groups && Log::caches(&layout) == log.caches).then_some(layout)
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
