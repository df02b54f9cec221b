//! Bodies of questions.

use super::parts::{Part, read_bool, read_bytes, read_level, read_siblings, write_bytes, write_list};
use crate::format::cursor::{Reader, Writer};
use crate::format::{FormatError, NAME_BYTES_MAX};
use crate::protocol::{FileId, Question};

/// The maximum number of names that a question may request.
const ENTRIES_MAX: u64 = 8192;

impl Question {
    /// Returns the number of the question's kind.
    pub(super) fn kind(&self) -> u16 {
        match self {
            Question::Lookup { .. } => 64,
            Question::GetAttributes { .. } => 65,
            Question::ReadDirectory { .. } => 66,
            Question::ReadMap { .. } => 67,
            Question::ReadXattr { .. } => 68,
            Question::ListXattrs { .. } => 69,
            Question::Statistics => 70,
            Question::Open { .. } => 71,
            Question::Space { .. } => 72,
            Question::Numbers { .. } => 73,
            Question::Close { .. } => 75,
            Question::Push { .. } => 76,
            Question::Siblings => 77,
            Question::Gone { .. } => 78,
            Question::Unproven => 79,
            Question::Stored => 80,
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        match self {
            Question::Lookup { directory: file, name } | Question::ReadXattr { file, name } => {
                file.write(writer);
                write_bytes(writer, name);
            }
            Question::GetAttributes { file } | Question::ListXattrs { file } | Question::Close { file } => {
                file.write(writer);
            }
            Question::ReadDirectory { directory, cookie, entries } => {
                directory.write(writer);
                writer.u64(*cookie).u32(*entries);
            }
            Question::ReadMap { file, start, end } => {
                file.write(writer);
                writer.u64(*start).u64(*end);
            }
            Question::Statistics | Question::Siblings | Question::Unproven | Question::Stored => {}
            Question::Gone { siblings } => write_list(writer, siblings),
            Question::Open { file, level, is_direct } => {
                file.write(writer);
                writer.u8(*level).u8(u8::from(*is_direct));
            }
            Question::Push { file, size } => {
                file.write(writer);
                writer.u64(*size);
            }
            Question::Space { blocks } => _ = writer.u64(*blocks),
            Question::Numbers { count } => _ = writer.u32(*count),
        }
    }

    pub(super) fn read(kind: u16, reader: &mut Reader<'_>) -> Result<Question, FormatError> {
        let name = |reader: &mut Reader<'_>| read_bytes(reader, "name", NAME_BYTES_MAX as u64);
        Ok(match kind {
            64 => Question::Lookup { directory: FileId::read(reader)?, name: name(reader)? },
            65 => Question::GetAttributes { file: FileId::read(reader)? },
            66 => {
                let (directory, cookie) = (FileId::read(reader)?, reader.u64()?);
                let entries = u64::from(reader.u32()?);
                let entries = reader.within("entries", entries, 0, ENTRIES_MAX)? as u32;
                Question::ReadDirectory { directory, cookie, entries }
            }
            67 => Question::ReadMap { file: FileId::read(reader)?, start: reader.u64()?, end: reader.u64()? },
            68 => Question::ReadXattr { file: FileId::read(reader)?, name: name(reader)? },
            69 => Question::ListXattrs { file: FileId::read(reader)? },
            70 => Question::Statistics,
            71 => {
                let (file, level) = (FileId::read(reader)?, read_level(reader)?);
                Question::Open { file, level, is_direct: read_bool(reader, "is_direct")? }
            }
            72 => Question::Space { blocks: reader.u64()? },
            73 => Question::Numbers { count: reader.u32()? },
            75 => Question::Close { file: FileId::read(reader)? },
            76 => Question::Push { file: FileId::read(reader)?, size: reader.u64()? },
            77 => Question::Siblings,
            78 => Question::Gone { siblings: read_siblings(reader)? },
            79 => Question::Unproven,
            80 => Question::Stored,
            other => return Err(reader.unknown("kind", other.into())),
        })
    }
}
