//! Bodies of answers and refusals.

use super::parts::{
    BodyPart, read_bool, read_bytes, read_extents, read_list, read_siblings, read_space, read_text, write_bytes,
    write_list,
};
use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::protocol::{InodeAttributes, ListedName, RefusalCode, ServerAnswer, ServerRefusal, VolumeStatistics};

/// The maximum number of names in a listing.
pub(super) const NAMES_MAX: u64 = 8192;
/// The maximum number of names of extended attributes.
const XATTR_NAMES_MAX: u64 = 65536;
/// The maximum number of inodes that a rename moves or replaces.
const RENAMED_MAX: u64 = 2;
/// The longest text of a refusal. *Units*: bytes.
pub(super) const WORDS_BYTES_MAX: usize = 1024;

/// The name of an extended attribute.
struct XattrName(Vec<u8>);

impl BodyPart for XattrName {
    fn write(&self, writer: &mut BoundedWriter) {
        write_bytes(writer, &self.0);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<XattrName, FormatError> {
        read_bytes(reader, "name", NAME_BYTES_MAX as u64).map(XattrName)
    }
}

impl BodyPart for ListedName {
    fn write(&self, writer: &mut BoundedWriter) {
        writer.u64(self.cookie);
        write_bytes(writer, &self.name);
        self.attributes.write(writer);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<ListedName, FormatError> {
        let cookie = reader.u64()?;
        let name = read_bytes(reader, "name", NAME_BYTES_MAX as u64)?;
        Ok(ListedName { cookie, name, attributes: InodeAttributes::read(reader)? })
    }
}

impl ServerAnswer {
    /// Returns the number of the answer's kind.
    pub(super) fn kind(&self) -> u16 {
        match self {
            ServerAnswer::Done => 128,
            ServerAnswer::Attributes(_) => 129,
            ServerAnswer::Listing { .. } => 130,
            ServerAnswer::Map { .. } => 131,
            ServerAnswer::Bytes(_) => 132,
            ServerAnswer::Names(_) => 133,
            ServerAnswer::Statistics(_) => 134,
            ServerAnswer::Space(_) => 135,
            ServerAnswer::Siblings(_) => 136,
            ServerAnswer::Numbers { .. } => 137,
            ServerAnswer::Renamed(_) => 138,
        }
    }

    pub(super) fn write(&self, writer: &mut BoundedWriter) {
        match self {
            ServerAnswer::Done => {}
            ServerAnswer::Attributes(attributes) => attributes.write(writer),
            ServerAnswer::Listing { names, is_end } => {
                writer.u8(u8::from(*is_end));
                write_list(writer, names);
            }
            ServerAnswer::Map { extents, answered_to } => {
                writer.u64(*answered_to);
                write_list(writer, extents);
            }
            ServerAnswer::Bytes(bytes) => write_bytes(writer, bytes),
            ServerAnswer::Names(names) => {
                writer.u32(names.len() as u32);
                names.iter().for_each(|name| write_bytes(writer, name));
            }
            ServerAnswer::Statistics(VolumeStatistics { blocks, free, inodes }) => {
                writer.u64(*blocks).u64(*free).u64(*inodes);
            }
            ServerAnswer::Space(extents) => write_list(writer, extents),
            ServerAnswer::Siblings(siblings) => write_list(writer, siblings),
            ServerAnswer::Numbers { first, count } => _ = writer.u64(*first).u32(*count),
            ServerAnswer::Renamed(files) => write_list(writer, files),
        }
    }

    pub(super) fn read(kind: u16, reader: &mut BoundedReader<'_>) -> Result<ServerAnswer, FormatError> {
        Ok(match kind {
            128 => ServerAnswer::Done,
            129 => ServerAnswer::Attributes(InodeAttributes::read(reader)?),
            130 => {
                let is_end = read_bool(reader, "is_end")?;
                ServerAnswer::Listing { names: read_list(reader, "names", NAMES_MAX)?, is_end }
            }
            131 => {
                let answered_to = reader.u64()?;
                ServerAnswer::Map { extents: read_extents(reader)?, answered_to }
            }
            132 => ServerAnswer::Bytes(read_bytes(reader, "bytes", XATTR_VALUE_BYTES_MAX as u64)?),
            133 => {
                let names: Vec<XattrName> = read_list(reader, "names", XATTR_NAMES_MAX)?;
                ServerAnswer::Names(names.into_iter().map(|name| name.0).collect())
            }
            134 => ServerAnswer::Statistics(VolumeStatistics {
                blocks: reader.u64()?,
                free: reader.u64()?,
                inodes: reader.u64()?,
            }),
            135 => ServerAnswer::Space(read_space(reader)?),
            136 => ServerAnswer::Siblings(read_siblings(reader)?),
            137 => ServerAnswer::Numbers { first: reader.u64()?, count: reader.u32()? },
            138 => ServerAnswer::Renamed(read_list(reader, "files", RENAMED_MAX)?),
            other => return Err(reader.unknown("kind", other.into())),
        })
    }

    /// Encodes the answer as the table *replies* stores it: kind (2 bytes), then the body.
    pub fn encode_stored(&self) -> Vec<u8> {
        let mut writer = BoundedWriter::default();
        writer.u16(self.kind());
        self.write(&mut writer);
        writer.bytes
    }

    /// Decodes a stored answer.
    pub fn decode_stored(bytes: &[u8]) -> Result<ServerAnswer, FormatError> {
        let mut reader = BoundedReader::new("stored reply", bytes);
        let kind = reader.u16()?;
        let answer = ServerAnswer::read(kind, &mut reader)?;
        reader.end()?;
        Ok(answer)
    }
}

impl RefusalCode {
    const ALL: [RefusalCode; 16] = [
        RefusalCode::Malformed,
        RefusalCode::Version,
        RefusalCode::Feature,
        RefusalCode::OldEpoch,
        RefusalCode::NotLeader,
        RefusalCode::Ended,
        RefusalCode::Forgotten,
        RefusalCode::OutOfOrder,
        RefusalCode::Stale,
        RefusalCode::Conflict,
        RefusalCode::Full,
        RefusalCode::Limit,
        RefusalCode::Grace,
        RefusalCode::Posix,
        RefusalCode::Damaged,
        RefusalCode::WrongVolume,
    ];
}

impl BodyPart for ServerRefusal {
    fn write(&self, writer: &mut BoundedWriter) {
        let mut end = self.words.len().min(WORDS_BYTES_MAX);
        while !self.words.is_char_boundary(end) {
            end -= 1;
        }
        writer.u32(self.code as u32).u32(self.errno as u32);
        write_bytes(writer, &self.words.as_bytes()[..end]);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<ServerRefusal, FormatError> {
        let code = reader.u32()?;
        let known = RefusalCode::ALL.get((code as usize).wrapping_sub(1)).copied();
        let code = known.ok_or_else(|| reader.unknown("code", code.into()))?;
        let errno = reader.u32()? as i32;
        Ok(ServerRefusal { code, errno, words: read_text(reader, "words", WORDS_BYTES_MAX as u64)? })
    }
}
