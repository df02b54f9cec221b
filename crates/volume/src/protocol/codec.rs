//! Bodies of operations, questions and answers as bytes.
//!
//! Owns: their fields, in order, and the bounds of lists. What is longer than the rest of the frame is refused before
//! memory is taken for it.

use super::{
    Answer, Attributes, Changes, FileId, Granted, Listed, Mapped, Operation, Question, Statistics, TimeChange,
};
use crate::format::cursor::{Reader, Writer};
use crate::format::{FormatError, Inode};

pub(super) fn put_bytes(writer: &mut Writer, bytes: &[u8]) {
    writer.u32(bytes.len() as u32).put(bytes);
}

fn get_bytes(reader: &mut Reader<'_>) -> Result<Vec<u8>, FormatError> {
    let length = reader.u32()? as usize;
    Ok(reader.take(length)?.to_vec())
}

pub(super) fn get_text(reader: &mut Reader<'_>) -> Result<String, FormatError> {
    Ok(String::from_utf8_lossy(&get_bytes(reader)?).into_owned())
}

fn put_file(writer: &mut Writer, file: FileId) {
    writer.u64(file.inode).u64(file.generation);
}

fn get_file(reader: &mut Reader<'_>) -> Result<FileId, FormatError> {
    Ok(FileId { inode: reader.u64()?, generation: reader.u64()? })
}

fn put_attributes(writer: &mut Writer, attributes: &Attributes) {
    writer.u64(attributes.number);
    put_bytes(writer, &attributes.inode.encode().unwrap_or_default());
}

fn get_attributes(reader: &mut Reader<'_>) -> Result<Attributes, FormatError> {
    let number = reader.u64()?;
    let bytes = get_bytes(reader)?;
    Ok(Attributes { number, inode: Inode::decode(&bytes)? })
}

fn get_list<T>(
    reader: &mut Reader<'_>,
    count_max: u64,
    get: impl Fn(&mut Reader<'_>) -> Result<T, FormatError>,
) -> Result<Vec<T>, FormatError> {
    let count = u64::from(reader.u32()?);
    reader.within("count", count, 0, count_max)?;
    (0..count).map(|_| get(reader)).collect()
}

fn put_mapped(writer: &mut Writer, extents: &[Mapped]) {
    writer.u32(extents.len() as u32);
    for extent in extents {
        writer.u64(extent.file_block).u32(extent.blocks).u32(extent.is_unwritten.into()).u64(extent.block);
    }
}

fn get_mapped(reader: &mut Reader<'_>) -> Result<Vec<Mapped>, FormatError> {
    get_list(reader, 4096, |reader| {
        let (file_block, blocks, is_unwritten) = (reader.u64()?, reader.u32()?, reader.u32()? != 0);
        Ok(Mapped { file_block, blocks, block: reader.u64()?, is_unwritten })
    })
}

fn put_option(writer: &mut Writer, value: Option<u64>) {
    writer.u8(value.is_some().into()).u64(value.unwrap_or(0));
}

fn get_option(reader: &mut Reader<'_>) -> Result<Option<u64>, FormatError> {
    let (is_there, value) = (reader.u8()?, reader.u64()?);
    Ok((is_there != 0).then_some(value))
}

fn put_time(writer: &mut Writer, value: Option<TimeChange>) {
    match value {
        None => writer.u8(0).i64(0),
        Some(TimeChange::Now) => writer.u8(1).i64(0),
        Some(TimeChange::At(ns)) => writer.u8(2).i64(ns),
    };
}

fn get_time(reader: &mut Reader<'_>) -> Result<Option<TimeChange>, FormatError> {
    let (kind, ns) = (reader.u8()?, reader.i64()?);
    match kind {
        0 => Ok(None),
        1 => Ok(Some(TimeChange::Now)),
        2 => Ok(Some(TimeChange::At(ns))),
        other => Err(reader.unknown("time", other.into())),
    }
}

fn small(reader: &Reader<'_>, value: Option<u64>) -> Result<Option<u32>, FormatError> {
    value.map(|value| u32::try_from(value).map_err(|_| reader.unknown("attribute", value))).transpose()
}

pub(super) fn put_operation(writer: &mut Writer, operation: &Operation) {
    match operation {
        Operation::Create { directory, name, mode, owner, group, umask, device, target, open, inode } => {
            put_file(writer, *directory);
            put_bytes(writer, name);
            writer.u32(*mode).u32(*owner).u32(*group).u32(*umask).u64(*device);
            put_bytes(writer, target);
            writer.u8((*open).into()).u64(*inode);
        }
        Operation::Link { file, directory, name } => {
            put_file(writer, *file);
            put_file(writer, *directory);
            put_bytes(writer, name);
        }
        Operation::Unlink { directory, name, is_directory, expected } => {
            put_file(writer, *directory);
            put_bytes(writer, name);
            writer.u8((*is_directory).into()).u64(*expected);
        }
        Operation::Rename { directory, name, new_directory, new_name, flags } => {
            put_file(writer, *directory);
            put_bytes(writer, name);
            put_file(writer, *new_directory);
            put_bytes(writer, new_name);
            writer.u32(*flags);
        }
        Operation::SetAttributes { file, changes } => {
            put_file(writer, *file);
            for value in [changes.mode, changes.owner, changes.group] {
                put_option(writer, value.map(u64::from));
            }
            put_option(writer, changes.size);
            put_time(writer, changes.accessed);
            put_time(writer, changes.modified);
        }
        Operation::SetXattr { file, name, value, flags } => {
            put_file(writer, *file);
            put_bytes(writer, name);
            put_bytes(writer, value);
            writer.u32(*flags);
        }
        Operation::RemoveXattr { file, name } => {
            put_file(writer, *file);
            put_bytes(writer, name);
        }
        Operation::Commit { file, truncate_generation, size, modified_ns, changed_ns, extents } => {
            put_file(writer, *file);
            writer.u64(*truncate_generation).u64(*size).i64(*modified_ns).i64(*changed_ns);
            put_mapped(writer, extents);
        }
        Operation::Truncate { file, size } => {
            put_file(writer, *file);
            writer.u64(*size);
        }
        Operation::Allocate { file, start, end, mode } => {
            put_file(writer, *file);
            writer.u64(*start).u64(*end).u32(*mode);
        }
        Operation::Close { file } => put_file(writer, *file),
        Operation::ReturnSpace { extents } => {
            writer.u32(extents.len() as u32);
            for (block, blocks) in extents {
                writer.u64(*block).u64(*blocks);
            }
        }
    }
}

pub(super) fn kind_of_operation(operation: &Operation) -> u16 {
    match operation {
        Operation::Create { .. } => 32,
        Operation::Link { .. } => 33,
        Operation::Unlink { .. } => 34,
        Operation::Rename { .. } => 35,
        Operation::SetAttributes { .. } => 36,
        Operation::SetXattr { .. } => 37,
        Operation::RemoveXattr { .. } => 38,
        Operation::Commit { .. } => 39,
        Operation::Truncate { .. } => 40,
        Operation::Allocate { .. } => 41,
        Operation::Close { .. } => 43,
        Operation::ReturnSpace { .. } => 44,
    }
}

pub(super) fn get_operation(kind: u16, reader: &mut Reader<'_>) -> Result<Operation, FormatError> {
    Ok(match kind {
        32 => Operation::Create {
            directory: get_file(reader)?,
            name: get_bytes(reader)?,
            mode: reader.u32()?,
            owner: reader.u32()?,
            group: reader.u32()?,
            umask: reader.u32()?,
            device: reader.u64()?,
            target: get_bytes(reader)?,
            open: reader.u8()? != 0,
            inode: reader.u64()?,
        },
        33 => Operation::Link { file: get_file(reader)?, directory: get_file(reader)?, name: get_bytes(reader)? },
        34 => Operation::Unlink {
            directory: get_file(reader)?,
            name: get_bytes(reader)?,
            is_directory: reader.u8()? != 0,
            expected: reader.u64()?,
        },
        35 => Operation::Rename {
            directory: get_file(reader)?,
            name: get_bytes(reader)?,
            new_directory: get_file(reader)?,
            new_name: get_bytes(reader)?,
            flags: reader.u32()?,
        },
        36 => {
            let file = get_file(reader)?;
            let (mode, owner, group) = (get_option(reader)?, get_option(reader)?, get_option(reader)?);
            let changes = Changes {
                mode: small(reader, mode)?,
                owner: small(reader, owner)?,
                group: small(reader, group)?,
                size: get_option(reader)?,
                accessed: get_time(reader)?,
                modified: get_time(reader)?,
            };
            Operation::SetAttributes { file, changes }
        }
        37 => Operation::SetXattr {
            file: get_file(reader)?,
            name: get_bytes(reader)?,
            value: get_bytes(reader)?,
            flags: reader.u32()?,
        },
        38 => Operation::RemoveXattr { file: get_file(reader)?, name: get_bytes(reader)? },
        39 => Operation::Commit {
            file: get_file(reader)?,
            truncate_generation: reader.u64()?,
            size: reader.u64()?,
            modified_ns: reader.i64()?,
            changed_ns: reader.i64()?,
            extents: get_mapped(reader)?,
        },
        40 => Operation::Truncate { file: get_file(reader)?, size: reader.u64()? },
        41 => Operation::Allocate {
            file: get_file(reader)?,
            start: reader.u64()?,
            end: reader.u64()?,
            mode: reader.u32()?,
        },
        43 => Operation::Close { file: get_file(reader)? },
        44 => Operation::ReturnSpace { extents: get_list(reader, 4096, |reader| Ok((reader.u64()?, reader.u64()?)))? },
        other => return Err(reader.unknown("kind", other.into())),
    })
}

pub(super) fn kind_of_question(question: &Question) -> u16 {
    match question {
        Question::Lookup { .. } => 64,
        Question::GetAttributes { .. } => 65,
        Question::ReadDirectory { .. } => 66,
        Question::ReadMap { .. } => 67,
        Question::ReadXattr { .. } => 68,
        Question::ListXattrs { .. } => 74,
        Question::Statistics => 69,
        Question::Open { .. } => 70,
        Question::Space { .. } => 71,
    }
}

pub(super) fn put_question(writer: &mut Writer, question: &Question) {
    match question {
        Question::Lookup { directory: file, name } | Question::ReadXattr { file, name } => {
            put_file(writer, *file);
            put_bytes(writer, name);
        }
        Question::GetAttributes { file } | Question::ListXattrs { file } | Question::Open { file } => {
            put_file(writer, *file);
        }
        Question::ReadDirectory { directory, cookie, entries } => {
            put_file(writer, *directory);
            writer.u64(*cookie).u32(*entries);
        }
        Question::ReadMap { file, start, end } => {
            put_file(writer, *file);
            writer.u64(*start).u64(*end);
        }
        Question::Statistics => {}
        Question::Space { blocks } => {
            writer.u64(*blocks);
        }
    }
}

pub(super) fn get_question(kind: u16, reader: &mut Reader<'_>) -> Result<Question, FormatError> {
    Ok(match kind {
        64 => Question::Lookup { directory: get_file(reader)?, name: get_bytes(reader)? },
        65 => Question::GetAttributes { file: get_file(reader)? },
        66 => Question::ReadDirectory { directory: get_file(reader)?, cookie: reader.u64()?, entries: reader.u32()? },
        67 => Question::ReadMap { file: get_file(reader)?, start: reader.u64()?, end: reader.u64()? },
        68 => Question::ReadXattr { file: get_file(reader)?, name: get_bytes(reader)? },
        69 => Question::Statistics,
        70 => Question::Open { file: get_file(reader)? },
        71 => Question::Space { blocks: reader.u64()? },
        74 => Question::ListXattrs { file: get_file(reader)? },
        other => return Err(reader.unknown("kind", other.into())),
    })
}

pub(super) fn put_answer(writer: &mut Writer, answer: &Answer) {
    match answer {
        Answer::Done => {
            writer.u8(0);
        }
        Answer::Attributes(attributes) => {
            writer.u8(1);
            put_attributes(writer, attributes);
        }
        Answer::Listing { names, is_end } => {
            writer.u8(2).u8((*is_end).into()).u32(names.len() as u32);
            for listed in names {
                writer.u64(listed.cookie);
                put_bytes(writer, &listed.name);
                put_attributes(writer, &listed.attributes);
            }
        }
        Answer::Map { extents, answered_to } => {
            writer.u8(3).u64(*answered_to);
            put_mapped(writer, extents);
        }
        Answer::Bytes(bytes) => {
            writer.u8(4);
            put_bytes(writer, bytes);
        }
        Answer::Names(names) => {
            writer.u8(5).u32(names.len() as u32);
            names.iter().for_each(|name| put_bytes(writer, name));
        }
        Answer::Statistics(found) => {
            writer.u8(6).u64(found.blocks).u64(found.free).u64(found.inodes);
        }
        Answer::Space(granted) => {
            writer.u8(7).u32(granted.len() as u32);
            for granted in granted {
                writer.u64(granted.block).u64(granted.blocks);
            }
        }
    }
}

pub(super) fn get_answer(reader: &mut Reader<'_>) -> Result<Answer, FormatError> {
    Ok(match reader.u8()? {
        0 => Answer::Done,
        1 => Answer::Attributes(get_attributes(reader)?),
        2 => {
            let is_end = reader.u8()? != 0;
            let names = get_list(reader, 8192, |reader| {
                Ok(Listed { cookie: reader.u64()?, name: get_bytes(reader)?, attributes: get_attributes(reader)? })
            })?;
            Answer::Listing { names, is_end }
        }
        3 => Answer::Map { answered_to: reader.u64()?, extents: get_mapped(reader)? },
        4 => Answer::Bytes(get_bytes(reader)?),
        5 => Answer::Names(get_list(reader, 65536, get_bytes)?),
        6 => Answer::Statistics(Statistics { blocks: reader.u64()?, free: reader.u64()?, inodes: reader.u64()? }),
        7 => {
            Answer::Space(get_list(reader, 4096, |reader| Ok(Granted { block: reader.u64()?, blocks: reader.u64()? }))?)
        }
        other => return Err(reader.unknown("answer", other.into())),
    })
}

impl Answer {
    /// The bytes that are stored with an operation.
    pub fn encode_stored(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        put_answer(&mut writer, self);
        writer.bytes
    }

    /// Decodes them.
    pub fn decode_stored(bytes: &[u8]) -> Result<Answer, FormatError> {
        let mut reader = Reader::new("reply", bytes);
        let answer = get_answer(&mut reader)?;
        reader.end()?;
        Ok(answer)
    }
}
