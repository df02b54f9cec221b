//! Bodies of questions.

use super::parts::{BodyPart, read_bool, read_bytes, read_level, read_siblings, write_bytes, write_list};
use crate::format::cursor::{BoundedReader, BoundedWriter};
use crate::format::{FormatError, NAME_BYTES_MAX};
use crate::protocol::{FileId, MetadataQuestion};

/// The maximum number of names that a question may request.
const ENTRIES_MAX: u64 = 8192;

impl MetadataQuestion {
    /// Returns the number of the question's kind.
    pub(super) fn kind(&self) -> u16 {
        match self {
            MetadataQuestion::Lookup { .. } => 64,
            MetadataQuestion::GetAttributes { .. } => 65,
            MetadataQuestion::ReadDirectory { .. } => 66,
            MetadataQuestion::ReadMap { .. } => 67,
            MetadataQuestion::ReadXattr { .. } => 68,
            MetadataQuestion::ListXattrs { .. } => 69,
            MetadataQuestion::Statistics => 70,
            MetadataQuestion::Open { .. } => 71,
            MetadataQuestion::Space { .. } => 72,
            MetadataQuestion::Numbers { .. } => 73,
            MetadataQuestion::Close { .. } => 75,
            MetadataQuestion::Push { .. } => 76,
            MetadataQuestion::Siblings => 77,
            MetadataQuestion::Gone { .. } => 78,
            MetadataQuestion::Unproven => 79,
            MetadataQuestion::Stored => 80,
        }
    }

    pub(super) fn write(&self, writer: &mut BoundedWriter) {
        match self {
            MetadataQuestion::Lookup { directory: file, name } | MetadataQuestion::ReadXattr { file, name } => {
                file.write(writer);
                write_bytes(writer, name);
            }
            MetadataQuestion::GetAttributes { file }
            | MetadataQuestion::ListXattrs { file }
            | MetadataQuestion::Close { file } => {
                file.write(writer);
            }
            MetadataQuestion::ReadDirectory { directory, cookie, entries } => {
                directory.write(writer);
                writer.u64(*cookie).u32(*entries);
            }
            MetadataQuestion::ReadMap { file, start, end } => {
                file.write(writer);
                writer.u64(*start).u64(*end);
            }
            MetadataQuestion::Statistics
            | MetadataQuestion::Siblings
            | MetadataQuestion::Unproven
            | MetadataQuestion::Stored => {}
            MetadataQuestion::Gone { siblings } => write_list(writer, siblings),
            MetadataQuestion::Open { file, level, is_direct } => {
                file.write(writer);
                writer.u8(*level).u8(u8::from(*is_direct));
            }
            MetadataQuestion::Push { file, size } => {
                file.write(writer);
                writer.u64(*size);
            }
            MetadataQuestion::Space { blocks } => _ = writer.u64(*blocks),
            MetadataQuestion::Numbers { count } => _ = writer.u32(*count),
        }
    }

    pub(super) fn read(kind: u16, reader: &mut BoundedReader<'_>) -> Result<MetadataQuestion, FormatError> {
        let name = |reader: &mut BoundedReader<'_>| read_bytes(reader, "name", NAME_BYTES_MAX as u64);
        Ok(match kind {
            64 => MetadataQuestion::Lookup { directory: FileId::read(reader)?, name: name(reader)? },
            65 => MetadataQuestion::GetAttributes { file: FileId::read(reader)? },
            66 => {
                let (directory, cookie) = (FileId::read(reader)?, reader.u64()?);
                let entries = u64::from(reader.u32()?);
                let entries = reader.within("entries", entries, 0, ENTRIES_MAX)? as u32;
                MetadataQuestion::ReadDirectory { directory, cookie, entries }
            }
            67 => MetadataQuestion::ReadMap { file: FileId::read(reader)?, start: reader.u64()?, end: reader.u64()? },
            68 => MetadataQuestion::ReadXattr { file: FileId::read(reader)?, name: name(reader)? },
            69 => MetadataQuestion::ListXattrs { file: FileId::read(reader)? },
            70 => MetadataQuestion::Statistics,
            71 => {
                let (file, level) = (FileId::read(reader)?, read_level(reader)?);
                MetadataQuestion::Open { file, level, is_direct: read_bool(reader, "is_direct")? }
            }
            72 => MetadataQuestion::Space { blocks: reader.u64()? },
            73 => MetadataQuestion::Numbers { count: reader.u32()? },
            75 => MetadataQuestion::Close { file: FileId::read(reader)? },
            76 => MetadataQuestion::Push { file: FileId::read(reader)?, size: reader.u64()? },
            77 => MetadataQuestion::Siblings,
            78 => MetadataQuestion::Gone { siblings: read_siblings(reader)? },
            79 => MetadataQuestion::Unproven,
            80 => MetadataQuestion::Stored,
            other => return Err(reader.unknown("kind", other.into())),
        })
    }
}
