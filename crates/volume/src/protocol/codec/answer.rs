//! Bodies of answers and refusals.

use super::parts::{
    Part, read_bool, read_bytes, read_extents, read_list, read_siblings, read_space, read_text, write_bytes, write_list,
};
use crate::format::cursor::{Reader, Writer};
use crate::format::{FormatError, NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::protocol::{Answer, Attributes, Code, Failure, Listed, Statistics};

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

impl Part for XattrName {
    fn write(&self, writer: &mut Writer) {
        write_bytes(writer, &self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<XattrName, FormatError> {
        read_bytes(reader, "name", NAME_BYTES_MAX as u64).map(XattrName)
    }
}

impl Part for Listed {
    fn write(&self, writer: &mut Writer) {
        writer.u64(self.cookie);
        write_bytes(writer, &self.name);
        self.attributes.write(writer);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Listed, FormatError> {
        let cookie = reader.u64()?;
        let name = read_bytes(reader, "name", NAME_BYTES_MAX as u64)?;
        Ok(Listed { cookie, name, attributes: Attributes::read(reader)? })
    }
}

impl Answer {
    /// Returns the number of the answer's kind.
    pub(super) fn kind(&self) -> u16 {
        match self {
            Answer::Done => 128,
            Answer::Attributes(_) => 129,
            Answer::Listing { .. } => 130,
            Answer::Map { .. } => 131,
            Answer::Bytes(_) => 132,
            Answer::Names(_) => 133,
            Answer::Statistics(_) => 134,
            Answer::Space(_) => 135,
            Answer::Siblings(_) => 136,
            Answer::Numbers { .. } => 137,
            Answer::Renamed(_) => 138,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Answer::Done => {}
            Answer::Attributes(attributes) => attributes.write(writer),
            Answer::Listing { names, is_end } => {
                writer.u8(u8::from(*is_end));
                write_list(writer, names);
            }
            Answer::Map { extents, answered_to } => {
                writer.u64(*answered_to);
                write_list(writer, extents);
            }
            Answer::Bytes(bytes) => write_bytes(writer, bytes),
            Answer::Names(names) => {
                writer.u32(names.len() as u32);
                names.iter().for_each(|name| write_bytes(writer, name));
            }
            Answer::Statistics(Statistics { blocks, free, inodes }) => {
                writer.u64(*blocks).u64(*free).u64(*inodes);
            }
            Answer::Space(extents) => write_list(writer, extents),
            Answer::Siblings(siblings) => write_list(writer, siblings),
            Answer::Numbers { first, count } => _ = writer.u64(*first).u32(*count),
            Answer::Renamed(files) => write_list(writer, files),
        }
    }

    pub(super) fn read(kind: u16, reader: &mut Reader<'_>) -> Result<Answer, FormatError> {
        Ok(match kind {
            128 => Answer::Done,
            129 => Answer::Attributes(Attributes::read(reader)?),
            130 => {
                let is_end = read_bool(reader, "is_end")?;
                Answer::Listing { names: read_list(reader, "names", NAMES_MAX)?, is_end }
            }
            131 => {
                let answered_to = reader.u64()?;
                Answer::Map { extents: read_extents(reader)?, answered_to }
            }
            132 => Answer::Bytes(read_bytes(reader, "bytes", XATTR_VALUE_BYTES_MAX as u64)?),
            133 => {
                let names: Vec<XattrName> = read_list(reader, "names", XATTR_NAMES_MAX)?;
                Answer::Names(names.into_iter().map(|name| name.0).collect())
            }
            134 => Answer::Statistics(Statistics { blocks: reader.u64()?, free: reader.u64()?, inodes: reader.u64()? }),
            135 => Answer::Space(read_space(reader)?),
            136 => Answer::Siblings(read_siblings(reader)?),
            137 => Answer::Numbers { first: reader.u64()?, count: reader.u32()? },
            138 => Answer::Renamed(read_list(reader, "files", RENAMED_MAX)?),
            other => return Err(reader.unknown("kind", other.into())),
        })
    }

    /// Encodes the answer as the table *replies* stores it: kind (2 bytes), then the body.
    pub fn encode_stored(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.u16(self.kind());
        self.write(&mut writer);
        writer.bytes
    }

    /// Decodes a stored answer.
    pub fn decode_stored(bytes: &[u8]) -> Result<Answer, FormatError> {
        let mut reader = Reader::new("stored reply", bytes);
        let kind = reader.u16()?;
        let answer = Answer::read(kind, &mut reader)?;
        reader.end()?;
        Ok(answer)
    }
}

impl Code {
    const ALL: [Code; 16] = [
        Code::Malformed,
        Code::Version,
        Code::Feature,
        Code::OldEpoch,
        Code::NotLeader,
        Code::Ended,
        Code::Forgotten,
        Code::OutOfOrder,
        Code::Stale,
        Code::Conflict,
        Code::Full,
        Code::Limit,
        Code::Grace,
        Code::Posix,
        Code::Damaged,
        Code::WrongVolume,
    ];
}

impl Part for Failure {
    fn write(&self, writer: &mut Writer) {
        let mut end = self.words.len().min(WORDS_BYTES_MAX);
        while !self.words.is_char_boundary(end) {
            end -= 1;
        }
        writer.u32(self.code as u32).u32(self.errno as u32);
        write_bytes(writer, &self.words.as_bytes()[..end]);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Failure, FormatError> {
        let code = reader.u32()?;
        let known = Code::ALL.get((code as usize).wrapping_sub(1)).copied();
        let code = known.ok_or_else(|| reader.unknown("code", code.into()))?;
        let errno = reader.u32()? as i32;
        Ok(Failure { code, errno, words: read_text(reader, "words", WORDS_BYTES_MAX as u64)? })
    }
}
