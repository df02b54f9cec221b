//! The file of a recording: a header, then the events, each with its data. The byte map is `docs/formats/record.md`.
//!
//! Promises: bytes from the file are used only after their checksum and bounds were checked. A damaged file leads to an
//! error that names the file, the offset, and the expected and found contents.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use bytes::Bytes;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::recording::{RecordedEvent, Recording};
use crate::device::DeviceGeometry;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::OPERATION_BYTES_MAX;
use crate::spec::quoted;

const FILE_MAGIC: [u8; 8] = *b"NECTREC\0";
const EVENT_MAGIC: [u8; 4] = *b"NREV";
const VERSION: u16 = 1;

const FLAG_FUA: u32 = 1;
const FLAG_SUCCEEDED: u32 = 2;

/// The head of the file.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FileHeader {
    magic: [u8; 8],
    version: U16,
    header_bytes: U16,
    block_bytes: U32,
    identity: [u8; 16],
    size_bytes: U64,
    reserved: [u8; 20],
    checksum: U32,
}

/// The head of an event.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EventHeader {
    magic: [u8; 4],
    version: U16,
    kind: U16,
    identity: U64,
    index: U64,
    number: U64,
    offset: U64,
    length: U64,
    flags: U32,
    data_bytes: U32,
    data_checksum: U32,
    checksum: U32,
}

/// The size of an event without its data. *Units*: bytes.
pub(super) const EVENT_BYTES: usize = size_of::<EventHeader>();

const KIND_WRITE: u16 = 1;
const KIND_ZEROES: u16 = 2;
const KIND_DISCARD: u16 = 3;
const KIND_FLUSH: u16 = 4;
const KIND_GROW: u16 = 5;
const KIND_COMPLETED: u16 = 6;
const KIND_MARK: u16 = 7;

/// Makes the random identity of a new recording.
pub(super) fn random_identity() -> io::Result<[u8; 16]> {
    let mut identity = [0; 16];
    getrandom::fill(&mut identity)?;
    Ok(identity)
}

/// The part of the recording's identity that every event repeats.
pub(super) fn short(identity: [u8; 16]) -> u64 {
    let mut low = [0; 8];
    low.copy_from_slice(&identity[..8]);
    u64::from_le_bytes(low)
}

/// Encodes the head of a file.
pub(super) fn header(identity: [u8; 16], geometry: &DeviceGeometry) -> Vec<u8> {
    let mut header = FileHeader {
        magic: FILE_MAGIC,
        version: VERSION.into(),
        header_bytes: (size_of::<FileHeader>() as u16).into(),
        block_bytes: geometry.block_bytes.into(),
        identity,
        size_bytes: geometry.size_bytes.into(),
        reserved: [0; 20],
        checksum: 0.into(),
    };
    header.checksum = sum(header.as_bytes()).into();
    header.as_bytes().to_vec()
}

/// Encodes the head of an event. In the file, the event's data follows the head.
pub(super) fn event(identity: u64, index: u64, event: &RecordedEvent) -> [u8; EVENT_BYTES] {
    let (kind, number, offset, length, flags) = match *event {
        RecordedEvent::WriteBegun { id, offset, ref data, fua } => {
            (KIND_WRITE, id, offset, data.len() as u64, if fua { FLAG_FUA } else { 0 })
        }
        RecordedEvent::ZeroesBegun { id, offset, length } => (KIND_ZEROES, id, offset, length, 0),
        RecordedEvent::DiscardBegun { id, offset, length } => (KIND_DISCARD, id, offset, length, 0),
        RecordedEvent::FlushBegun { id } => (KIND_FLUSH, id, 0, 0, 0),
        RecordedEvent::GrowBegun { id, size_bytes } => (KIND_GROW, id, 0, size_bytes, 0),
        RecordedEvent::Completed { id, succeeded } => {
            (KIND_COMPLETED, id, 0, 0, if succeeded { FLAG_SUCCEEDED } else { 0 })
        }
        RecordedEvent::Mark(mark) => (KIND_MARK, mark, 0, 0, 0),
    };
    let data = event.data().map_or(&[][..], |data| data);
    let mut header = EventHeader {
        magic: EVENT_MAGIC,
        version: VERSION.into(),
        kind: kind.into(),
        identity: identity.into(),
        index: index.into(),
        number: number.into(),
        offset: offset.into(),
        length: length.into(),
        flags: flags.into(),
        data_bytes: (data.len() as u32).into(),
        data_checksum: crc32c::crc32c(data).into(),
        checksum: 0.into(),
    };
    header.checksum = sum(header.as_bytes()).into();
    let mut bytes = [0; EVENT_BYTES];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}

/// The checksum of a head, over all bytes except the last four.
fn sum(header: &[u8]) -> u32 {
    crc32c::crc32c(&header[..header.len() - 4])
}

/// Reads a whole file.
pub(super) fn load(path: &Path) -> Result<Recording, Error> {
    let name = quoted(&path.to_string_lossy());
    let os = |error: io::Error| Error::from_os(&error, &name, DeviceOperation::Read);
    let file = File::open(path).map_err(|error| Error::from_os(&error, &name, DeviceOperation::Open))?;
    parse(BufReader::new(file), &name).map_err(|problem| match problem {
        RecordingError::Os(error) => os(error),
        RecordingError::Damage { offset, length, detail } => {
            Error::new(DeviceErrorKind::Invalid, &name, DeviceOperation::Read, detail).at(offset, length)
        }
    })
}

/// The reason why a file cannot be read.
#[derive(Debug)]
pub(super) enum RecordingError {
    Os(io::Error),
    Damage { offset: u64, length: u64, detail: String },
}

fn damage<T>(offset: u64, length: usize, detail: String) -> Result<T, RecordingError> {
    Err(RecordingError::Damage { offset, length: length as u64, detail })
}

/// Reads a recording from any source.
pub(super) fn parse(mut source: impl Read, name: &str) -> Result<Recording, RecordingError> {
    let mut bytes = [0; size_of::<FileHeader>()];
    if fill(&mut source, &mut bytes)? < bytes.len() {
        return damage(0, bytes.len(), format!("{name} is too short for the head of a recording"));
    }
    let Ok(header) = FileHeader::ref_from_bytes(&bytes) else {
        return damage(0, bytes.len(), "the head has another length".to_owned());
    };
    if header.magic != FILE_MAGIC {
        let found = String::from_utf8_lossy(&header.magic).escape_debug().to_string();
        return damage(0, 8, format!("expected the magic NECTREC of a recording, found \"{found}\""));
    }
    if header.version.get() != VERSION || usize::from(header.header_bytes.get()) != bytes.len() {
        return damage(8, 4, format!("expected version {VERSION}, found {}", header.version));
    }
    let (expected, found) = (header.checksum.get(), sum(&bytes));
    if expected != found {
        return damage(0, bytes.len(), format!("the checksum is {expected:08x}, the content has {found:08x}"));
    }
    let (identity, mut position) = (short(header.identity), bytes.len() as u64);
    let mut recording =
        Recording { size_bytes: header.size_bytes.get(), block_bytes: header.block_bytes.get(), events: Vec::new() };
    while let Some((event, length)) = parse_event(&mut source, identity, recording.events.len() as u64, position)? {
        recording.events.push(event);
        position += length;
    }
    Ok(recording)
}

/// Reads one event. *Returns* the event and its length in the file; `None` if the file ends, even in the middle of an
/// event.
fn parse_event(
    source: &mut impl Read,
    identity: u64,
    index: u64,
    position: u64,
) -> Result<Option<(RecordedEvent, u64)>, RecordingError> {
    let mut bytes = [0; EVENT_BYTES];
    if fill(source, &mut bytes)? < bytes.len() {
        return Ok(None);
    }
    let Ok(header) = EventHeader::ref_from_bytes(&bytes) else {
        return damage(position, bytes.len(), "the event has another length".to_owned());
    };
    let (expected, found) = (header.checksum.get(), sum(&bytes));
    if header.magic != EVENT_MAGIC || expected != found {
        let detail = format!("event {index}: the checksum is {expected:08x}, the content has {found:08x}");
        return damage(position, bytes.len(), detail);
    }
    if header.version.get() != VERSION || header.identity.get() != identity || header.index.get() != index {
        let detail = format!(
            "expected version {VERSION}, event {index} of recording {identity:016x}, found version {}, event {} of {:016x}",
            header.version, header.index, header.identity
        );
        return damage(position, bytes.len(), detail);
    }
    let data_bytes = u64::from(header.data_bytes.get());
    let is_write = header.kind.get() == KIND_WRITE;
    if data_bytes > OPERATION_BYTES_MAX || data_bytes != if is_write { header.length.get() } else { 0 } {
        let detail = format!("event {index}: {data_bytes} bytes of data do not fit its kind and length");
        return damage(position, bytes.len(), detail);
    }
    // The data is read piece by piece, so that a wrong length cannot allocate more memory than the file has bytes.
    let mut data = Vec::new();
    source.by_ref().take(data_bytes).read_to_end(&mut data).map_err(RecordingError::Os)?;
    if (data.len() as u64) < data_bytes {
        return Ok(None);
    }
    let (expected, found) = (header.data_checksum.get(), crc32c::crc32c(&data));
    if expected != found {
        let detail = format!("the data of event {index}: the checksum is {expected:08x}, the content has {found:08x}");
        return damage(position + EVENT_BYTES as u64, data.len(), detail);
    }
    let (id, offset, length) = (header.number.get(), header.offset.get(), header.length.get());
    if offset.checked_add(length).is_none() {
        return damage(position, bytes.len(), format!("event {index}: {length} bytes at {offset} have no end"));
    }
    let flag = |flag| header.flags.get() & flag != 0;
    let event = match header.kind.get() {
        KIND_WRITE => RecordedEvent::WriteBegun { id, offset, data: Bytes::from(data), fua: flag(FLAG_FUA) },
        KIND_ZEROES => RecordedEvent::ZeroesBegun { id, offset, length },
        KIND_DISCARD => RecordedEvent::DiscardBegun { id, offset, length },
        KIND_FLUSH => RecordedEvent::FlushBegun { id },
        KIND_GROW => RecordedEvent::GrowBegun { id, size_bytes: length },
        KIND_COMPLETED => RecordedEvent::Completed { id, succeeded: flag(FLAG_SUCCEEDED) },
        KIND_MARK => RecordedEvent::Mark(id),
        kind => return damage(position, bytes.len(), format!("event {index}: kind {kind} is not known")),
    };
    Ok(Some((event, EVENT_BYTES as u64 + data_bytes)))
}

/// Reads until `bytes` is full or the source ends. *Returns* the number of bytes read.
fn fill(source: &mut impl Read, bytes: &mut [u8]) -> Result<usize, RecordingError> {
    let mut done = 0;
    while done < bytes.len() {
        match source.read(&mut bytes[done..]) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(RecordingError::Os(error)),
        }
    }
    Ok(done)
}
