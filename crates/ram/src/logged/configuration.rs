//! The configuration of a machine, and the limits of everything that it keeps.
//!
//! Owns: the configuration and the named limits. Promises: a machine can serve every configuration that passes `check`.

use crate::format::slots::{REGION_BLOCKS_MAX, SlotShape};
use crate::format::{Formers, LogShape, RecordGeometry, RedundancyCode};
use crate::group::{AttachRefusal, MachineIntent, MachineTimes};
use crate::placement::{LogPlacement, PlacementSettings, RedundancyPolicy};

/// The maximum number of unfinished steps of the placement; above this, no further operation begins.
pub const STEPS_MAX: usize = 512;
/// The maximum number of bytes of one read of a recovery.
pub const SURVEY_BYTES: u64 = 1 << 20;
/// When the recovery's reads in progress have this many bytes, no further one begins. With more, a donor on a slow
/// network would count as late.
pub const SURVEY_BYTES_UNDER_WAY_MAX: u64 = 8 << 20;
/// The maximum number of reads of a recovery in progress.
pub const SURVEY_READS_MAX: usize = 256;
/// The maximum number of groups that are refilled at the same time.
pub const REFILLS_MAX: usize = 4;
/// A group is opened only while more groups than this are free, unless nothing else is in progress: after a crash,
/// cleaning needs them.
pub const FREE_GROUPS_KEPT: usize = 3;
/// The number of groups whose summaries are erased before they are opened.
pub const ERASED_AHEAD: usize = 8;

/// The configuration of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParityLogConfiguration {
    /// The identity of the device.
    pub device: [u8; 16],
    /// *Units*: bytes.
    pub block_bytes: u32,
    /// The placement's policy, blocks, and members of a group; the number of donors is one more than the members.
    pub layout: PlacementSettings,
    /// The sizes of the device before it grew.
    pub formers: Formers,
    /// The label of each donor: two donors with the same label may fail together.
    pub labels: Vec<String>,
    /// A random number, not 0, that no other client has.
    pub client: u64,
    /// The purpose of attaching: to create the device, or to open it.
    pub intent: MachineIntent,
    /// The time limits.
    pub times: MachineTimes,
}

impl ParityLogConfiguration {
    /// Returns the device's geometry, as the donors' records store it.
    pub fn geometry(&self) -> RecordGeometry {
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
            formers: self.formers,
        };
        let code = RedundancyCode::Log(log);
        RecordGeometry { device: self.device, bytes, block_bytes: self.block_bytes, stripe_bytes: 0, members, code }
    }

    /// Returns the shape that a record describes; `None`: it describes a mirror. The record must be checked before.
    pub fn shape_of(geometry: &RecordGeometry) -> Option<SlotShape> {
        let log = geometry.log()?;
        Some(SlotShape {
            policy: log.policy,
            device: geometry.device,
            blocks: u32::try_from(geometry.blocks()).unwrap_or(u32::MAX),
            block_bytes: geometry.block_bytes,
            members: geometry.members.saturating_sub(1).min(255) as u8,
            groups: log.groups,
            caches: log.caches,
            region_blocks: log.region_blocks,
            formers: log.formers,
        })
    }

    /// Returns the layout that a record describes; `None` if this version would place blocks differently.
    pub fn layout_of(geometry: &RecordGeometry) -> Option<PlacementSettings> {
        let log = geometry.log()?;
        let policy =
            RedundancyPolicy::ALL.into_iter().find(|policy| !policy.is_in_place() && *policy as u32 == log.policy)?;
        let blocks = u32::try_from(geometry.blocks()).ok()?;
        let members = u8::try_from(geometry.members.checked_sub(1)?).ok()?;
        let mut layout = PlacementSettings::new(policy, blocks, members);
        (layout.overflow_percent, layout.column_blocks) = (log.overflow_percent, log.column_blocks);
        if policy == RedundancyPolicy::Adaptive {
            layout.streams = log.caches.checked_sub(2)? as usize;
        }
        let is_same = LogPlacement::restore(layout.clone(), std::iter::empty()).is_ok();
        (is_same && layout.rows() == log.groups && LogPlacement::caches(&layout) == log.caches).then_some(layout)
    }

    /// Returns the device's shape, as the donors' memory stores it.
    pub fn shape(&self) -> SlotShape {
        let donors = u32::from(self.layout.donors());
        let first = if self.formers[0].blocks > 0 { self.formers[0].blocks } else { self.layout.blocks };
        SlotShape {
            policy: self.layout.policy as u32,
            device: self.device,
            blocks: self.layout.blocks,
            block_bytes: self.block_bytes,
            members: self.layout.members,
            groups: self.layout.rows(),
            caches: LogPlacement::caches(&self.layout),
            // Even on a small device, every donor stores its share of the trims.
            region_blocks: (first / (4 * donors)).clamp(1, REGION_BLOCKS_MAX),
            formers: self.formers,
        }
    }

    /// Checks the shape, and that all donors have different labels.
    ///
    /// *Errors*: [`AttachRefusal::RecordGeometry`], [`AttachRefusal::SameLabel`].
    pub fn check(&self) -> Result<(), AttachRefusal> {
        let range = |what, found| AttachRefusal::Geometry(crate::format::FormatError::Range { what, found });
        if self.layout.policy.is_in_place() {
            return Err(range("policy", self.layout.policy as u64));
        }
        if LogPlacement::restore(self.layout.clone(), std::iter::empty()).is_err() {
            return Err(range("groups", u64::from(self.layout.rows())));
        }
        self.geometry().check()?;
        self.shape().check()?;
        for (second, label) in self.labels.iter().enumerate() {
            if let Some(first) = self.labels[..second].iter().position(|other| other == label) {
                return Err(AttachRefusal::SameLabel { first, second, label: label.clone() });
            }
        }
        Ok(())
    }
}
