//! The part of a record that only devices with logged parity have: the settings that a client needs to attach without
//! options.
//!
//! Owns: the fields, limits and encoding of this part. Leaves to others: using these settings (`logged`).

use super::FormatError;
use super::bytes::FieldReader;

/// The maximum number of caches of a device.
pub const CACHES_MAX: u32 = 66;
/// The maximum number of blocks of a region of trims.
pub const REGION_BLOCKS_MAX: u32 = 256;
/// The length of this part in a record, in bytes.
pub const LOG_SHAPE_BYTES: usize = 24;
/// The maximum number of blocks of a column.
const COLUMN_BLOCKS_MAX: u32 = 64;
/// The maximum number of slots beyond the blocks of the device. *Units*: percent.
const OVERFLOW_MAX: u32 = 200;

/// The maximum number of times that a device that logs parity grows.
pub const GROWTHS_MAX: usize = 7;
/// The length of the former sizes in a record of a device that has grown, in bytes.
pub const FORMER_BYTES: usize = 8 * GROWTHS_MAX;

/// A size that a device had before it grew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FormerSize {
    /// The number of blocks.
    pub blocks: u32,
    /// The number of groups.
    pub groups: u32,
}

/// The former sizes of a device, in their order, and zeroes behind them.
pub type Formers = [FormerSize; GROWTHS_MAX];

/// The settings of a device that logs parity. Only growing changes them: the number of groups and the former sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogShape {
    /// The number of the policy: 3 `parity-log`, 4 `parity-cache`, 5 `adaptive`.
    pub policy: u32,
    /// The number of groups.
    pub groups: u32,
    /// The number of the client's caches, including the cache of survivors.
    pub caches: u32,
    /// The number of blocks of a region of trims.
    pub region_blocks: u32,
    /// The number of blocks of a column of a cache.
    pub column_blocks: u32,
    /// The number of slots beyond the blocks of the device. *Units*: percent.
    pub overflow_percent: u32,
    /// The sizes of the device before it grew.
    pub formers: Formers,
}

impl LogShape {
    /// Checks every field against its limits.
    ///
    /// *Errors*: [`FormatError::Range`] names the field.
    pub fn check(&self, blocks: u64) -> Result<(), FormatError> {
        let fields = [
            ("policy", self.policy, 3..=5),
            ("groups", self.groups, 1..=u32::MAX),
            ("caches", self.caches, 2..=CACHES_MAX),
            ("region blocks", self.region_blocks, 1..=REGION_BLOCKS_MAX),
            ("column blocks", self.column_blocks, 1..=COLUMN_BLOCKS_MAX),
            ("overflow", self.overflow_percent, 0..=OVERFLOW_MAX),
        ];
        match fields.into_iter().find(|(_, found, range)| !range.contains(found)) {
            Some((what, found, _)) => Err(FormatError::Range { what, found: u64::from(found) }),
            None => self.check_formers(blocks),
        }
    }

    /// Whether the device has grown.
    pub fn has_grown(&self) -> bool {
        self.formers[0] != FormerSize::default()
    }

    /// Checks that each size is larger than the one before, and the present one is the largest.
    fn check_formers(&self, blocks: u64) -> Result<(), FormatError> {
        let count = self.formers.iter().take_while(|former| **former != FormerSize::default()).count();
        let mut before = FormerSize::default();
        for former in &self.formers[..count] {
            let is_more = former.blocks > before.blocks && former.groups >= before.groups.max(1);
            if !is_more || u64::from(former.blocks) >= blocks || former.groups > self.groups {
                return Err(FormatError::Range { what: "former size", found: u64::from(former.blocks) });
            }
            before = *former;
        }
        match self.formers[count..].iter().find(|former| **former != FormerSize::default()) {
            Some(stray) => Err(FormatError::Range { what: "former size", found: u64::from(stray.blocks) }),
            None => Ok(()),
        }
    }

    pub(super) fn encode(&self) -> [u8; LOG_SHAPE_BYTES] {
        let mut bytes = [0; LOG_SHAPE_BYTES];
        let words =
            [self.policy, self.groups, self.caches, self.region_blocks, self.column_blocks, self.overflow_percent];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode(fields: &mut FieldReader<'_>) -> Result<LogShape, FormatError> {
        let shape = LogShape {
            policy: fields.u32()?,
            groups: fields.u32()?,
            caches: fields.u32()?,
            region_blocks: fields.u32()?,
            column_blocks: fields.u32()?,
            overflow_percent: fields.u32()?,
            formers: Formers::default(),
        };
        Ok(shape)
    }

    pub(super) fn encode_formers(&self) -> [u8; FORMER_BYTES] {
        let mut bytes = [0; FORMER_BYTES];
        for (place, former) in bytes.chunks_exact_mut(8).zip(self.formers) {
            place[..4].copy_from_slice(&former.blocks.to_le_bytes());
            place[4..].copy_from_slice(&former.groups.to_le_bytes());
        }
        bytes
    }

    pub(super) fn decode_formers(fields: &mut FieldReader<'_>) -> Result<Formers, FormatError> {
        let mut formers = Formers::default();
        for former in &mut formers {
            *former = FormerSize { blocks: fields.u32()?, groups: fields.u32()? };
        }
        Ok(formers)
    }
}
