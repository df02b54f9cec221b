//! Parts that several message bodies share: identities, names, extents, attributes.

use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, FormatProblem, Inode};
use crate::protocol::{FileId, GrantedSpace, InodeAttributes, MappedExtent, SiblingSession};

/// A value that occurs in several bodies.
pub(super) trait BodyPart: Sized {
    fn write(&self, writer: &mut BoundedWriter);
    fn read(reader: &mut BoundedReader<'_>) -> Result<Self, FormatError>;
}

/// The highest level of a token.
const LEVEL_MAX: u64 = 3;
/// The maximum number of extents of a message.
const EXTENTS_MAX: u64 = 4096;
/// The maximum number of sessions of a message.
const SIBLINGS_MAX: u64 = 1024;

/// Writes bytes, preceded by their length (4 bytes).
pub(super) fn write_bytes(writer: &mut BoundedWriter, bytes: &[u8]) {
    writer.u32(bytes.len() as u32).put(bytes);
}

/// Reads bytes, preceded by their length; more than `max` bytes are an error.
pub(super) fn read_bytes(
    reader: &mut BoundedReader<'_>,
    field: &'static str,
    max: u64,
) -> Result<Vec<u8>, FormatError> {
    let length = u64::from(reader.u32()?);
    let length = reader.within(field, length, 0, max)? as usize;
    Ok(reader.take(length)?.to_vec())
}

/// Reads text, which must be UTF-8.
pub(super) fn read_text(reader: &mut BoundedReader<'_>, field: &'static str, max: u64) -> Result<String, FormatError> {
    let bytes = read_bytes(reader, field, max)?;
    String::from_utf8(bytes).map_err(|_| reader.error(FormatProblem::Text(field)))
}

/// Reads a byte that must be 0 (no) or 1 (yes).
pub(super) fn read_bool(reader: &mut BoundedReader<'_>, field: &'static str) -> Result<bool, FormatError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(reader.unknown(field, other.into())),
    }
}

/// Reads the level of a token.
pub(super) fn read_level(reader: &mut BoundedReader<'_>) -> Result<u8, FormatError> {
    let level = reader.u8()?;
    reader.within("level", level.into(), 0, LEVEL_MAX)?;
    Ok(level)
}

/// Writes a list, preceded by its count (4 bytes).
pub(super) fn write_list<P: BodyPart>(writer: &mut BoundedWriter, list: &[P]) {
    writer.u32(list.len() as u32);
    list.iter().for_each(|part| part.write(writer));
}

/// Reads a list, preceded by its count; more than `max` parts are an error.
pub(super) fn read_list<P: BodyPart>(
    reader: &mut BoundedReader<'_>,
    field: &'static str,
    max: u64,
) -> Result<Vec<P>, FormatError> {
    let count = u64::from(reader.u32()?);
    let count = reader.within(field, count, 0, max)?;
    // The list grows with the bytes that are present, so a wrong count causes no large allocation.
    let mut list = Vec::new();
    for _ in 0..count {
        list.push(P::read(reader)?);
    }
    Ok(list)
}

/// Reads extents of a file.
pub(super) fn read_extents(reader: &mut BoundedReader<'_>) -> Result<Vec<MappedExtent>, FormatError> {
    read_list(reader, "extents", EXTENTS_MAX)
}

/// Reads extents of the disk.
pub(super) fn read_space(reader: &mut BoundedReader<'_>) -> Result<Vec<GrantedSpace>, FormatError> {
    read_list(reader, "extents", EXTENTS_MAX)
}

/// Reads sessions of the same origin.
pub(super) fn read_siblings(reader: &mut BoundedReader<'_>) -> Result<Vec<SiblingSession>, FormatError> {
    read_list(reader, "siblings", SIBLINGS_MAX)
}

impl BodyPart for SiblingSession {
    fn write(&self, writer: &mut BoundedWriter) {
        writer.u64(self.session).put(&self.incarnation);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<SiblingSession, FormatError> {
        Ok(SiblingSession { session: reader.u64()?, incarnation: reader.array()? })
    }
}

impl BodyPart for FileId {
    fn write(&self, writer: &mut BoundedWriter) {
        writer.u64(self.inode).u64(self.generation);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<FileId, FormatError> {
        Ok(FileId { inode: reader.u64()?, generation: reader.u64()? })
    }
}

impl BodyPart for MappedExtent {
    fn write(&self, writer: &mut BoundedWriter) {
        writer.u64(self.file_block).u64(self.block).u32(self.blocks).u32(u32::from(self.is_unwritten));
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<MappedExtent, FormatError> {
        let (file_block, block, blocks) = (reader.u64()?, reader.u64()?, reader.u32()?);
        let is_unwritten = match reader.u32()? {
            0 => false,
            1 => true,
            other => return Err(reader.unknown("flags", other.into())),
        };
        Ok(MappedExtent { file_block, blocks, block, is_unwritten })
    }
}

impl BodyPart for GrantedSpace {
    fn write(&self, writer: &mut BoundedWriter) {
        writer.u64(self.block).u64(self.blocks);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<GrantedSpace, FormatError> {
        Ok(GrantedSpace { block: reader.u64()?, blocks: reader.u64()? })
    }
}

impl BodyPart for InodeAttributes {
    fn write(&self, writer: &mut BoundedWriter) {
        let inode = self.inode.encode().unwrap_or_default();
        writer.u64(self.number);
        write_bytes(writer, &inode);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<InodeAttributes, FormatError> {
        let number = reader.u64()?;
        let inode = Inode::decode(&read_bytes(reader, "inode", 4096)?)?;
        Ok(InodeAttributes { number, inode })
    }
}
