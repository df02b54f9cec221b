//! Bodies of operations.

use super::parts::{BodyPart, read_bool, read_bytes, read_extents, read_list, read_space, write_bytes, write_list};
use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, NAME_BYTES_MAX, TARGET_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use crate::protocol::{AttributeChanges, FileAccess, FileId, GrantedSpace, JudgedOwner, MetadataOperation, TimeChange};

/// The most accesses of one operation.
const ACCESSES_MAX: u64 = 256;

fn read_name(reader: &mut BoundedReader<'_>) -> Result<Vec<u8>, FormatError> {
    read_bytes(reader, "name", NAME_BYTES_MAX as u64)
}

impl BodyPart for AttributeChanges {
    fn write(&self, writer: &mut BoundedWriter) {
        let time = |time: Option<TimeChange>| match time {
            None => (0, 0),
            Some(TimeChange::Now) => (1, 0),
            Some(TimeChange::At(at)) => (2, at),
        };
        let (accessed, modified) = (time(self.accessed), time(self.modified));
        let has = [
            self.mode.is_some(),
            self.owner.is_some(),
            self.group.is_some(),
            self.size.is_some(),
            self.drops_rights,
            self.judged.is_some(),
        ];
        let mask = has.iter().enumerate().map(|(bit, has)| u32::from(*has) << bit).sum::<u32>();
        writer.u32(mask).u32(self.mode.unwrap_or(0)).u32(self.owner.unwrap_or(0)).u32(self.group.unwrap_or(0));
        writer.u64(self.size.unwrap_or(0)).u8(accessed.0).i64(accessed.1).u8(modified.0).i64(modified.1);
        let judged = self.judged.unwrap_or_default();
        writer.u32(judged.owner).u32(judged.group);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<AttributeChanges, FormatError> {
        let mask = reader.u32()?;
        reader.within("mask", mask.into(), 0, 63)?;
        let (mode, owner, group, size) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u64()?);
        let time = |reader: &mut BoundedReader<'_>| -> Result<Option<TimeChange>, FormatError> {
            let (kind, at) = (reader.u8()?, reader.i64()?);
            match kind {
                0 => Ok(None),
                1 => Ok(Some(TimeChange::Now)),
                2 => Ok(Some(TimeChange::At(at))),
                other => Err(reader.unknown("time", other.into())),
            }
        };
        let (accessed, modified) = (time(reader)?, time(reader)?);
        let judged = JudgedOwner { owner: reader.u32()?, group: reader.u32()? };
        let has = |bit: u32| mask >> bit & 1 == 1;
        Ok(AttributeChanges {
            mode: has(0).then_some(mode),
            owner: has(1).then_some(owner),
            group: has(2).then_some(group),
            size: has(3).then_some(size),
            accessed,
            modified,
            drops_rights: has(4),
            judged: has(5).then_some(judged),
        })
    }
}

impl BodyPart for FileAccess {
    fn write(&self, writer: &mut BoundedWriter) {
        self.file.write(writer);
        writer.i64(self.at_ns).u64(self.time_generation);
    }

    fn read(reader: &mut BoundedReader<'_>) -> Result<FileAccess, FormatError> {
        Ok(FileAccess { file: FileId::read(reader)?, at_ns: reader.i64()?, time_generation: reader.u64()? })
    }
}

impl MetadataOperation {
    /// Returns the number of the operation's kind.
    pub(super) fn kind(&self) -> u16 {
        match self {
            MetadataOperation::Create { .. } => 32,
            MetadataOperation::Link { .. } => 33,
            MetadataOperation::Unlink { .. } => 34,
            MetadataOperation::Rename { .. } => 35,
            MetadataOperation::SetAttributes { .. } => 36,
            MetadataOperation::SetXattr { .. } => 37,
            MetadataOperation::RemoveXattr { .. } => 38,
            MetadataOperation::Commit { .. } => 39,
            MetadataOperation::Truncate { .. } => 40,
            MetadataOperation::Allocate { .. } => 41,
            MetadataOperation::Access { .. } => 43,
            MetadataOperation::ReturnSpace { .. } => 44,
            MetadataOperation::TakeReserved { .. } => 45,
        }
    }

    pub(super) fn write(&self, writer: &mut BoundedWriter) {
        match self {
            MetadataOperation::Create {
                directory,
                name,
                mode,
                owner,
                group,
                umask,
                device,
                target,
                target_block,
                open,
                inode,
            } => {
                directory.write(writer);
                writer.u32(*mode).u32(*owner).u32(*group).u32(*umask).u64(*device).u8(u8::from(*open)).u64(*inode);
                write_bytes(writer, name);
                write_bytes(writer, target);
                write_list(writer, target_block.as_slice());
            }
            MetadataOperation::Link { file, directory, name } => {
                file.write(writer);
                directory.write(writer);
                write_bytes(writer, name);
            }
            MetadataOperation::Unlink { directory, name, is_directory, expected } => {
                directory.write(writer);
                writer.u8(u8::from(*is_directory)).u64(*expected);
                write_bytes(writer, name);
            }
            MetadataOperation::Rename { directory, name, new_directory, new_name, flags } => {
                directory.write(writer);
                new_directory.write(writer);
                writer.u32(*flags);
                write_bytes(writer, name);
                write_bytes(writer, new_name);
            }
            MetadataOperation::SetAttributes { file, changes } => {
                file.write(writer);
                changes.write(writer);
            }
            MetadataOperation::SetXattr { file, name, value, flags } => {
                file.write(writer);
                writer.u32(*flags);
                write_bytes(writer, name);
                write_bytes(writer, value);
            }
            MetadataOperation::RemoveXattr { file, name } => {
                file.write(writer);
                write_bytes(writer, name);
            }
            MetadataOperation::Commit { file, truncate_generation, size, modified_ns, changed_ns, extents } => {
                file.write(writer);
                writer.u64(*truncate_generation).u64(*size).i64(*modified_ns).i64(*changed_ns);
                write_list(writer, extents);
            }
            MetadataOperation::Truncate { file, size } => {
                file.write(writer);
                writer.u64(*size);
            }
            MetadataOperation::TakeReserved { file, start, end } => {
                file.write(writer);
                writer.u64(*start).u64(*end);
            }
            MetadataOperation::Allocate { file, start, end, mode } => {
                file.write(writer);
                writer.u64(*start).u64(*end).u32(*mode);
            }
            MetadataOperation::Access { accesses } => write_list(writer, accesses),
            MetadataOperation::ReturnSpace { extents } => {
                let extents: Vec<GrantedSpace> =
                    extents.iter().map(|(block, blocks)| GrantedSpace { block: *block, blocks: *blocks }).collect();
                write_list(writer, &extents);
            }
        }
    }

    pub(super) fn read(kind: u16, reader: &mut BoundedReader<'_>) -> Result<MetadataOperation, FormatError> {
        Ok(match kind {
            32 => {
                let directory = FileId::read(reader)?;
                let (mode, owner, group, umask) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
                let (device, open, inode) = (reader.u64()?, read_bool(reader, "open")?, reader.u64()?);
                let name = read_name(reader)?;
                let target = read_bytes(reader, "target", TARGET_BYTES_MAX as u64)?;
                let target_block = read_list(reader, "blocks of the target", 1)?.pop();
                MetadataOperation::Create {
                    directory,
                    name,
                    mode,
                    owner,
                    group,
                    umask,
                    device,
                    target,
                    target_block,
                    open,
                    inode,
                }
            }
            33 => {
                let (file, directory) = (FileId::read(reader)?, FileId::read(reader)?);
                MetadataOperation::Link { file, directory, name: read_name(reader)? }
            }
            34 => {
                let directory = FileId::read(reader)?;
                let (is_directory, expected) = (read_bool(reader, "is_directory")?, reader.u64()?);
                MetadataOperation::Unlink { directory, name: read_name(reader)?, is_directory, expected }
            }
            35 => {
                let (directory, new_directory) = (FileId::read(reader)?, FileId::read(reader)?);
                let flags = reader.u32()?;
                let (name, new_name) = (read_name(reader)?, read_name(reader)?);
                MetadataOperation::Rename { directory, name, new_directory, new_name, flags }
            }
            36 => MetadataOperation::SetAttributes {
                file: FileId::read(reader)?,
                changes: AttributeChanges::read(reader)?,
            },
            37 => {
                let (file, flags) = (FileId::read(reader)?, reader.u32()?);
                let (name, value) = (read_name(reader)?, read_bytes(reader, "value", XATTR_VALUE_BYTES_MAX as u64)?);
                MetadataOperation::SetXattr { file, name, value, flags }
            }
            38 => MetadataOperation::RemoveXattr { file: FileId::read(reader)?, name: read_name(reader)? },
            39 => {
                let (file, truncate_generation, size) = (FileId::read(reader)?, reader.u64()?, reader.u64()?);
                let (modified_ns, changed_ns) = (reader.i64()?, reader.i64()?);
                let extents = read_extents(reader)?;
                MetadataOperation::Commit { file, truncate_generation, size, modified_ns, changed_ns, extents }
            }
            40 => MetadataOperation::Truncate { file: FileId::read(reader)?, size: reader.u64()? },
            41 => {
                let (file, start, end) = (FileId::read(reader)?, reader.u64()?, reader.u64()?);
                MetadataOperation::Allocate { file, start, end, mode: reader.u32()? }
            }
            43 => MetadataOperation::Access { accesses: read_list(reader, "accesses", ACCESSES_MAX)? },
            44 => {
                let extents = read_space(reader)?;
                MetadataOperation::ReturnSpace {
                    extents: extents.iter().map(|part| (part.block, part.blocks)).collect(),
                }
            }
            45 => MetadataOperation::TakeReserved {
                file: FileId::read(reader)?,
                start: reader.u64()?,
                end: reader.u64()?,
            },
            other => return Err(reader.unknown("kind", other.into())),
        })
    }
}
