//! The label: the constant properties of a volume.

use super::cursor::BoundedWriter;
use super::error::FormatError;
use super::frame::{FrameKind, FramePosition, VerifiedFrame, VolumeIdentity};
use super::{BLOCKS_MAX, SPACE_START};

/// The least number of blocks of a metadata segment.
const SEGMENT_BLOCKS_MIN: u64 = 2048;
/// The maximum number of blocks of a metadata segment.
const SEGMENT_BLOCKS_MAX: u64 = 65536;
/// The size of the smallest volume: 256 MiB, in blocks.
const BLOCKS_MIN: u64 = 65536;
/// The maximum number of bytes of a volume's name. *Units*: bytes.
const NAME_BYTES: usize = 64;

/// The label, written once by `volume format`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLabel {
    /// The identity of the volume.
    pub volume: VolumeIdentity,
    /// The size of the disk when the volume was formatted. *Units*: blocks.
    pub blocks: u64,
    /// The size of a metadata segment. *Units*: blocks.
    pub segment_blocks: u64,
    /// The first block of the first segment, which belongs to epoch 1. *Units*: blocks.
    pub first_segment: u64,
    /// The key of the hash of names.
    pub hash_key: [u8; 16],
    /// The time of formatting. *Units*: seconds since 1970.
    pub created_s: u64,
    /// The length of a server's lease. *Units*: milliseconds.
    pub lease_ms: u32,
    /// The maximum number of by which two clocks may differ in speed. *Units*: thousandths.
    pub drift_per_mille: u32,
    /// Features that a program must know to read the volume.
    pub incompat: u64,
    /// Features that a program must know to write to the volume.
    pub ro_compat: u64,
    /// Features that a program may ignore.
    pub compat: u64,
    /// The oldest format version whose programs may serve the volume.
    pub version_min: u16,
    /// The format version of the program that made the volume.
    pub version_made: u16,
    /// The name of the volume.
    pub name: String,
}

impl VolumeLabel {
    /// Encodes the block of copy 0 or 1.
    pub fn encode(&self, copy: u64) -> Result<Vec<u8>, FormatError> {
        let mut writer = BoundedWriter::default();
        writer.u64(self.blocks).u64(self.segment_blocks).u64(SPACE_START).u64(self.first_segment);
        writer.put(&self.hash_key).u64(self.created_s).u32(self.lease_ms).u32(self.drift_per_mille);
        writer.u64(self.incompat).u64(self.ro_compat).u64(self.compat);
        writer.u16(self.version_min).u16(self.version_made).u32(0).padded(&self.name, NAME_BYTES);
        VerifiedFrame::encode(FrameKind::Label, self.volume, 0, copy, copy, &writer.bytes)
    }

    /// Decodes the block of copy 0 or 1.
    pub fn decode(copy: u64, bytes: &[u8]) -> Result<VolumeLabel, FormatError> {
        let frame = VerifiedFrame::decode(FrameKind::Label, FramePosition { volume: None, address: copy }, bytes)?;
        let mut reader = frame.body("label")?;
        let (blocks, segment_blocks) = (reader.u64()?, reader.u64()?);
        reader.within("blocks", blocks, BLOCKS_MIN, BLOCKS_MAX)?;
        reader.within("segment_blocks", segment_blocks, SEGMENT_BLOCKS_MIN, SEGMENT_BLOCKS_MAX)?;
        if !segment_blocks.is_power_of_two() {
            return Err(reader.unknown("segment_blocks", segment_blocks));
        }
        let space_start = reader.u64()?;
        reader.within("space_start", space_start, SPACE_START, SPACE_START)?;
        let first_segment = reader.u64()?;
        reader.within("first_segment", first_segment, SPACE_START, blocks - segment_blocks)?;
        if !first_segment.is_multiple_of(segment_blocks) {
            return Err(reader.unknown("first_segment", first_segment));
        }
        let (hash_key, created_s) = (reader.array()?, reader.u64()?);
        let lease_ms = reader.u32()?;
        reader.within("lease_ms", lease_ms.into(), 1000, 600_000)?;
        let drift_per_mille = reader.u32()?;
        reader.within("drift_per_mille", drift_per_mille.into(), 1, 100)?;
        let (incompat, ro_compat, compat) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (version_min, version_made) = (reader.u16()?, reader.u16()?);
        reader.skip(4)?;
        let name = reader.padded("name", NAME_BYTES)?;
        Ok(VolumeLabel {
            volume: frame.volume,
            blocks,
            segment_blocks,
            first_segment,
            hash_key,
            created_s,
            lease_ms,
            drift_per_mille,
            incompat,
            ro_compat,
            compat,
            version_min,
            version_made,
            name,
        })
    }
}
