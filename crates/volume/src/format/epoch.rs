//! Heads of epochs, and headers of metadata segments.

use super::cursor::BoundedWriter;
use super::error::FormatError;
use super::frame::{FrameKind, FramePosition, VerifiedFrame, VolumeIdentity};
use super::{BLOCKS_MAX, SPACE_START, epoch_block};

/// The head of an epoch, which seals the previous epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochHead {
    /// The number of the epoch.
    pub epoch: u64,
    /// The incarnation of its leader.
    pub incarnation: [u8; 16],
    /// The epoch that this head seals; 0 for the first epoch.
    pub previous_epoch: u64,
    /// The last valid append of the sealed epoch.
    pub sealed_sequence: u64,
    /// The chain checksum of that append.
    pub sealed_chain: u32,
    /// The first journal segment of this epoch. *Units*: blocks.
    pub journal_segment: u64,
    /// The segment at which replay begins. *Units*: blocks.
    pub base_segment: u64,
    /// The time of writing. *Units*: seconds since 1970.
    pub created_s: u64,
}

impl EpochHead {
    /// Encodes the block at [`epoch_block`].
    pub fn encode(&self, volume: VolumeIdentity) -> Result<Vec<u8>, FormatError> {
        let mut writer = BoundedWriter::default();
        writer.put(&self.incarnation).u64(self.previous_epoch).u64(self.sealed_sequence).u32(self.sealed_chain).u32(0);
        writer.u64(self.journal_segment).u64(self.base_segment);
        writer.u64(self.sealed_sequence.saturating_add(1)).u64(self.created_s);
        VerifiedFrame::encode(FrameKind::EpochHead, volume, self.epoch, epoch_block(self.epoch), 0, &writer.bytes)
    }

    /// Decodes the head in a block of the ring.
    pub fn decode(volume: VolumeIdentity, block: u64, bytes: &[u8]) -> Result<EpochHead, FormatError> {
        let frame =
            VerifiedFrame::decode(FrameKind::EpochHead, FramePosition { volume: Some(volume), address: block }, bytes)?;
        let mut reader = frame.body("epoch head")?;
        let epoch = reader.within("epoch", frame.epoch, 1, u64::MAX - 1)?;
        reader.within("block of the epoch", block, epoch_block(epoch), epoch_block(epoch))?;
        let (incarnation, previous_epoch) = (reader.array()?, reader.u64()?);
        reader.within("previous_epoch", previous_epoch, 0, epoch - 1)?;
        let (sealed_sequence, sealed_chain) = (reader.u64()?, reader.u32()?);
        reader.skip(4)?;
        let (journal_segment, base_segment) = (reader.u64()?, reader.u64()?);
        reader.within("journal_segment", journal_segment, SPACE_START, BLOCKS_MAX)?;
        reader.within("base_segment", base_segment, SPACE_START, BLOCKS_MAX)?;
        let first = sealed_sequence.saturating_add(1);
        let first_sequence = reader.u64()?;
        reader.within("first_sequence", first_sequence, first, first)?;
        let created_s = reader.u64()?;
        Ok(EpochHead {
            epoch,
            incarnation,
            previous_epoch,
            sealed_sequence,
            sealed_chain,
            journal_segment,
            base_segment,
            created_s,
        })
    }
}

/// The use of a metadata segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentUse {
    /// The segment holds a part of the journal.
    Journal,
    /// The segment holds runs.
    Runs,
}

/// The first block of a metadata segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The epoch that the segment belongs to.
    pub epoch: u64,
    /// The use of the segment.
    pub segment_use: SegmentUse,
    /// For the journal, the number of the segment in the epoch, from 0; for runs, the number of the run.
    pub number: u64,
    /// The first block of the previous journal segment; 0 for none. *Units*: blocks.
    pub previous: u64,
    /// The number of the first append in the segment.
    pub first_sequence: u64,
    /// The number of the newest append with a manifest before this segment; 0 for none.
    pub manifest_sequence: u64,
    /// The first block of that append. *Units*: blocks.
    pub manifest_block: u64,
    /// The chain checksum before the first append in the segment.
    pub chain: u32,
    /// The chain checksum before the append with the manifest.
    pub manifest_chain: u32,
}

impl SegmentHeader {
    /// Encodes the block at the start of the segment.
    pub fn encode(&self, volume: VolumeIdentity, block: u64) -> Result<Vec<u8>, FormatError> {
        let segment_use = match self.segment_use {
            SegmentUse::Journal => 1,
            SegmentUse::Runs => 2,
        };
        let mut writer = BoundedWriter::default();
        writer.u32(segment_use).u32(0).u64(self.number).u64(self.previous).u64(self.first_sequence);
        writer.u64(self.manifest_sequence).u64(self.manifest_block).u32(self.chain).u32(self.manifest_chain);
        VerifiedFrame::encode(FrameKind::Segment, volume, self.epoch, block, 0, &writer.bytes)
    }

    /// Decodes the header at the start of a segment.
    pub fn decode(volume: VolumeIdentity, block: u64, bytes: &[u8]) -> Result<SegmentHeader, FormatError> {
        let frame =
            VerifiedFrame::decode(FrameKind::Segment, FramePosition { volume: Some(volume), address: block }, bytes)?;
        let mut reader = frame.body("segment header")?;
        let segment_use = match reader.u32()? {
            1 => SegmentUse::Journal,
            2 => SegmentUse::Runs,
            other => return Err(reader.unknown("use", other.into())),
        };
        reader.skip(4)?;
        let (number, previous, first_sequence) = (reader.u64()?, reader.u64()?, reader.u64()?);
        reader.within("previous", previous, 0, BLOCKS_MAX)?;
        let (manifest_sequence, manifest_block) = (reader.u64()?, reader.u64()?);
        reader.within("manifest_block", manifest_block, 0, BLOCKS_MAX)?;
        let (chain, manifest_chain) = (reader.u32()?, reader.u32()?);
        Ok(SegmentHeader {
            epoch: frame.epoch,
            segment_use,
            number,
            previous,
            first_sequence,
            manifest_sequence,
            manifest_block,
            chain,
            manifest_chain,
        })
    }
}
