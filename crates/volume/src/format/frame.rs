//! The header of every frame: the frame's kind, volume and position, and a checksum.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::{FormatError, FormatProblem};
use super::{BLOCK_BYTES, VERSION};

/// The length of the header. *Units*: bytes.
pub(super) const HEADER_BYTES: usize = 64;
/// The offset of the length in a frame.
const LENGTH_AT: usize = 8;
/// The offset of the checksum in a frame.
const CHECKSUM_AT: usize = 12;

/// The random identity of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct VolumeIdentity(pub [u8; 16]);

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// The label of the volume.
    Label,
    /// A lease sector.
    Lease,
    /// The head of an epoch.
    EpochHead,
    /// The first block of a metadata segment.
    Segment,
    /// An append to the journal.
    Append,
    /// A chunk: a part of the records of a run.
    Chunk,
    /// The index of a run.
    Index,
}

impl FrameKind {
    fn bytes(self) -> [u8; 4] {
        match self {
            FrameKind::Label => *b"NVLB",
            FrameKind::Lease => *b"NVLS",
            FrameKind::EpochHead => *b"NVEH",
            FrameKind::Segment => *b"NVSG",
            FrameKind::Append => *b"NVJA",
            FrameKind::Chunk => *b"NVRC",
            FrameKind::Index => *b"NVRI",
        }
    }

    /// Returns the length of the longest frame of this kind. *Units*: bytes.
    pub fn bytes_max(self) -> usize {
        match self {
            FrameKind::Label | FrameKind::Lease | FrameKind::EpochHead | FrameKind::Segment => BLOCK_BYTES,
            FrameKind::Chunk => 128 << 10,
            FrameKind::Append | FrameKind::Index => 4 << 20,
        }
    }

    fn name(self) -> &'static str {
        match self {
            FrameKind::Label => "label",
            FrameKind::Lease => "lease sector",
            FrameKind::EpochHead => "epoch head",
            FrameKind::Segment => "segment header",
            FrameKind::Append => "append",
            FrameKind::Chunk => "run chunk",
            FrameKind::Index => "run index",
        }
    }
}

/// The position that a frame must be written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePosition {
    /// The volume; `None` if it is not known yet, as for the first label that is read.
    pub volume: Option<VolumeIdentity>,
    /// The block in which the frame begins.
    pub address: u64,
}

/// A frame whose header and checksum are correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerifiedFrame<'a> {
    /// The volume.
    pub volume: VolumeIdentity,
    /// The epoch of the frame's writer.
    pub epoch: u64,
    /// The block in which the frame begins.
    pub address: u64,
    /// A number whose meaning depends on the kind.
    pub sequence: u64,
    /// Header and body; offsets of fields are counted from the start of the header, as in the documents.
    pub bytes: &'a [u8],
}

impl<'a> VerifiedFrame<'a> {
    /// Puts a header before a body, and pads to whole blocks.
    ///
    /// *Errors*: [`FormatProblem::Bound`] if the body is too long for its kind.
    pub fn encode(
        magic: FrameKind,
        volume: VolumeIdentity,
        epoch: u64,
        address: u64,
        sequence: u64,
        body: &[u8],
    ) -> Result<Vec<u8>, FormatError> {
        let length = HEADER_BYTES + body.len();
        let reader = BoundedReader::new(magic.name(), &[]);
        reader.within("length", length as u64, HEADER_BYTES as u64, magic.bytes_max() as u64)?;
        let mut writer = BoundedWriter::default();
        writer.put(&magic.bytes()).u16(VERSION).u16(0).u32(length as u32).u32(0);
        writer.put(&volume.0).u64(epoch).u64(address).u64(sequence).u64(0).put(body);
        let checksum = crc32c::crc32c(&writer.bytes);
        let mut bytes = writer.bytes;
        bytes[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
        bytes.resize(length.next_multiple_of(BLOCK_BYTES), 0);
        Ok(bytes)
    }

    /// Decodes the frame at the start of `bytes` and checks it.
    ///
    /// *Errors*: the first problem found; the body is not read before its checksum is verified.
    pub fn decode(magic: FrameKind, place: FramePosition, bytes: &'a [u8]) -> Result<VerifiedFrame<'a>, FormatError> {
        let mut reader = BoundedReader::new(magic.name(), bytes);
        let found = reader.array::<4>()?;
        if found != magic.bytes() {
            return Err(reader.error(FormatProblem::Magic(u32::from_be_bytes(found))));
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(reader.error(FormatProblem::Version(version)));
        }
        reader.skip(2)?;
        let (length, checksum) = (u64::from(reader.u32()?), reader.u32()?);
        let length = reader.within("length", length, HEADER_BYTES as u64, magic.bytes_max() as u64)? as usize;
        let Some(whole) = bytes.get(..length) else {
            return Err(reader.error(FormatProblem::Short { needed: length, found: bytes.len() }));
        };
        let expected = crc32c::crc32c(&whole[..CHECKSUM_AT]);
        let expected = crc32c::crc32c_append(expected, &[0; 4]);
        let expected = crc32c::crc32c_append(expected, &whole[CHECKSUM_AT + 4..]);
        if expected != checksum {
            return Err(reader.error(FormatProblem::Checksum { expected, found: checksum }));
        }
        let (volume, epoch) = (VolumeIdentity(reader.array()?), reader.u64()?);
        let (address, sequence) = (reader.u64()?, reader.u64()?);
        if place.volume.is_some_and(|known| known != volume) {
            return Err(reader.error(FormatProblem::OtherVolume));
        }
        if address != place.address {
            return Err(reader.error(FormatProblem::Misplaced { expected: place.address, found: address }));
        }
        Ok(VerifiedFrame { volume, epoch, address, sequence, bytes: whole })
    }

    /// How many blocks the frame at the start of `bytes` has, as its header says; 1 if no frame of this kind is there.
    /// Nothing else is checked.
    pub fn blocks_said(magic: FrameKind, bytes: &[u8]) -> u64 {
        let length = bytes.get(LENGTH_AT..LENGTH_AT + 4).and_then(|length| length.try_into().ok());
        let length = length.map_or(0, u32::from_le_bytes) as usize;
        match bytes.starts_with(&magic.bytes()) && (HEADER_BYTES..=magic.bytes_max()).contains(&length) {
            true => length.div_ceil(BLOCK_BYTES) as u64,
            false => 1,
        }
    }

    /// A reader at the first byte of the body.
    pub(super) fn body(&self, what: &'static str) -> Result<BoundedReader<'a>, FormatError> {
        let mut reader = BoundedReader::new(what, self.bytes);
        reader.skip(HEADER_BYTES)?;
        Ok(reader)
    }
}
