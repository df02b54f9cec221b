//! The shape of a device that logs parity: the settings that all its clients must share.
//!
//! Owns: the fields, limits and encoding of the shape.

use xxhash_rust::xxh3::xxh3_64;

use super::super::FormatError;
use super::super::bytes::FieldReader;
use super::super::log_shape::{CACHES_MAX, FormerSize, Formers, REGION_BLOCKS_MAX};
use super::super::record::BLOCK_BYTES;
use super::GROUP_MEMBERS_MAX;

const MAGIC: [u8; 8] = *b"NECRAMSH";
const VERSION: u32 = 1;
const BODY_BYTES: usize = 64;

/// The length of the area of the shape, in bytes.
pub const SHAPE_BYTES: usize = 4096;
/// The maximum number of blocks of a device.
const BLOCKS_MAX: u64 = 1 << 30;
/// The numbers of the policies that log parity.
const POLICIES: std::ops::RangeInclusive<u32> = 3..=5;

/// The shape of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotShape {
    /// The number of the policy: 3 `parity-log`, 4 `parity-cache`, 5 `adaptive`.
    pub policy: u32,
    /// The identity of the device.
    pub device: [u8; 16],
    /// The size of the device in blocks.
    pub blocks: u32,
    /// The length of a block. *Units*: bytes.
    pub block_bytes: u32,
    /// The number of members of a group.
    pub members: u8,
    /// The number of groups.
    pub groups: u32,
    /// The number of the client's caches; each may have an open group.
    pub caches: u32,
    /// The number of blocks of a region of trims.
    pub region_blocks: u32,
    /// The sizes of the device before it grew. The donors do not store them in the shape.
    pub formers: Formers,
}

impl SlotShape {
    /// Checks every field against its limits.
    ///
    /// *Errors*: [`FormatError::Range`] names the field.
    pub fn check(&self) -> Result<(), FormatError> {
        let members = u64::from(self.members);
        let fields = [
            ("policy", u64::from(self.policy), POLICIES.contains(&self.policy)),
            ("blocks", u64::from(self.blocks), (1..=BLOCKS_MAX).contains(&u64::from(self.blocks))),
            (
                "block bytes",
                u64::from(self.block_bytes),
                self.block_bytes.is_power_of_two() && (BLOCK_BYTES.0..=BLOCK_BYTES.1).contains(&self.block_bytes),
            ),
            ("members", members, (2..=GROUP_MEMBERS_MAX).contains(&self.members)),
            (
                "groups",
                u64::from(self.groups),
                u64::from(self.groups) * members >= u64::from(self.blocks)
                    && u64::from(self.groups) * members < u64::from(u32::MAX),
            ),
            ("caches", u64::from(self.caches), (2..=CACHES_MAX).contains(&self.caches)),
            ("region blocks", u64::from(self.region_blocks), (1..=REGION_BLOCKS_MAX).contains(&self.region_blocks)),
        ];
        match fields.into_iter().find(|(.., is_good)| !is_good) {
            Some((what, found, _)) => Err(FormatError::Range { what, found }),
            None => Ok(()),
        }
    }

    /// Returns the shape that the device had when it was made, which is the one that donors store.
    pub fn first(&self) -> SlotShape {
        match self.formers[0] {
            FormerSize { blocks: 0, .. } => *self,
            FormerSize { blocks, groups } => SlotShape { blocks, groups, formers: Formers::default(), ..*self },
        }
    }

    /// Encodes the [first](Self::first) shape, without the zeroes that fill its area.
    pub fn encode(&self) -> Vec<u8> {
        let first = self.first();
        let mut bytes = Vec::with_capacity(BODY_BYTES + 8);
        bytes.extend_from_slice(&MAGIC);
        for word in [VERSION, first.policy] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&first.device);
        bytes.extend_from_slice(&u64::from(first.blocks).to_le_bytes());
        let words = [first.block_bytes, u32::from(first.members), first.groups, first.caches, first.region_blocks, 0];
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Whether an area contains no shape.
    pub fn is_absent(bytes: &[u8]) -> bool {
        bytes.iter().take(BODY_BYTES + 8).all(|byte| *byte == 0)
    }

    /// Decodes the shape at the start of `bytes`.
    ///
    /// *Errors*: the first invalid field, and why.
    pub fn decode(bytes: &[u8]) -> Result<SlotShape, FormatError> {
        let mut fields = FieldReader::new(bytes);
        if fields.take(MAGIC.len())? != MAGIC {
            return Err(FormatError::Magic);
        }
        match fields.u32()? {
            VERSION => {}
            found => return Err(FormatError::Unsupported { what: "version of the shape", found: u64::from(found) }),
        }
        let needed = BODY_BYTES + 8;
        let whole = bytes.get(..needed).ok_or(FormatError::Short { needed, found: bytes.len() })?;
        let (expected, found) = (xxh3_64(&whole[..BODY_BYTES]), FieldReader::new(&whole[BODY_BYTES..]).u64()?);
        if expected != found {
            return Err(FormatError::Checksum { expected, found });
        }
        let (policy, device, blocks) = (fields.u32()?, fields.id()?, fields.u64()?);
        let (block_bytes, members, groups) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (caches, region_blocks, reserved) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let range = |what, found: u64| FormatError::Range { what, found };
        let blocks = u32::try_from(blocks).map_err(|_| range("blocks", blocks))?;
        let members = u8::try_from(members).map_err(|_| range("members", u64::from(members)))?;
        if reserved != 0 {
            return Err(range("reserved field of the shape", u64::from(reserved)));
        }
        let shape = SlotShape {
            policy,
            device,
            blocks,
            block_bytes,
            members,
            groups,
            caches,
            region_blocks,
            formers: Formers::default(),
        };
        shape.check().map(|()| shape)
    }
}
