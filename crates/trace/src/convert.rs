//! Converts a trace to another format.
//!
//! Owns: the writers of text and oracleGeneral, and the mapping of any trace's streams and blocks to processes and
//! files of Nectary's format. Promises: information that is lost is reported; a failed conversion does not touch the
//! output file.
//!
//! | into | kept | left out |
//! |---|---|---|
//! | `nectary` | blocks, streams, reads and writes | sizes of objects, times |
//! | `text` | blocks | streams, writes, sizes, times |
//! | `oracleGeneral` | blocks, sizes, times | streams, writes |
//!
//! Times to live and deletes are always left out. Nectary's format has files of 2^40 blocks. Larger block numbers
//! whose upper bits name no volume or file, such as hashes, get new numbers in the order of their first references.

use std::fs::{self, File};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use hashbrown::HashMap;
use nectary_cache::StreamId;

use crate::error::{Error, Result, TracePosition};
use crate::formats::nectary::{self, FileEntry, FileKind, RecordingOutcome, TraceHeader, TraceProcess};
use crate::formats::oracle_general::RECORD_BYTES;
use crate::formats::{COMPRESSED, ReferenceReader, TraceFormat, TraceOperation, TraceReference};

/// The formats that can be written.
pub const WRITTEN: [TraceFormat; 3] = [TraceFormat::Nectary, TraceFormat::Text, TraceFormat::OracleGeneral];

/// The maximum number of distinct blocks of a trace that can be written as oracleGeneral; the last position of each is
/// kept in memory.
const DISTINCT_MAX: usize = 1 << 27;

/// The maximum number of streams of a trace that can be written in Nectary's format.
const STREAMS_MAX: usize = 1 << 16;

/// The result of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConversionReport {
    /// The number of references that were written.
    pub references: u64,
    /// Whether the trace has several streams but the format has none.
    pub streams_are_lost: bool,
    /// Whether the trace has writes but the format has none.
    pub writes_are_lost: bool,
    /// Whether the trace has deletes; no format that is written has them.
    pub deletes_are_lost: bool,
    /// Whether the trace has objects with sizes but the format has none.
    pub sizes_are_lost: bool,
    /// The number of distinct blocks that have new numbers.
    pub renumbered: u64,
}

/// Reads `reader` to its end and writes its references to the file `to`. An existing file is replaced. `identity`
/// should be random; it is used only in Nectary's format.
///
/// *Errors*: those of the reader; the file cannot be written; the format cannot hold the trace.
pub fn convert(
    reader: &mut dyn ReferenceReader,
    from: &Path,
    to: &Path,
    format: TraceFormat,
    identity: [u8; 16],
    progress: &dyn Fn(u64),
) -> Result<ConversionReport> {
    if let Some(folder) = to.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
        return Err(Error::Absent { path: folder.to_owned() });
    }
    let part = part_of(to)?;
    let file = File::create(&part).map_err(|error| Error::io(&part, error))?;
    let result = write(reader, from, file, &part, format, identity, progress)
        .and_then(|converted| fs::rename(&part, to).map(|()| converted).map_err(|error| Error::io(to, error)));
    if result.is_err() {
        // Only the first failure matters; if the partial file remains, the next attempt overwrites it.
        let _ = fs::remove_file(&part);
    }
    result
}

/// The name of the unfinished file, next to the output.
fn part_of(to: &Path) -> Result<PathBuf> {
    let name = to.file_name().ok_or_else(|| Error::Usage(format!("{}: this names no file", to.display())))?;
    if fs::metadata(to).is_ok_and(|found| !found.is_file()) {
        return Err(Error::Usage(format!("{}: this is there and is no regular file", to.display())));
    }
    if COMPRESSED.iter().any(|end| name.to_string_lossy().ends_with(*end)) {
        let message = "traces are written plain; leave this ending out and compress the file afterwards";
        return Err(Error::Usage(format!("{}: {message}", to.display())));
    }
    let mut name = name.to_owned();
    name.push(".part");
    Ok(to.with_file_name(name))
}

fn write(
    reader: &mut dyn ReferenceReader,
    from: &Path,
    file: File,
    part: &Path,
    format: TraceFormat,
    identity: [u8; 16],
    progress: &dyn Fn(u64),
) -> Result<ConversionReport> {
    let mut target = match format {
        TraceFormat::Text => ConversionTarget::Text(BufWriter::new(file)),
        TraceFormat::OracleGeneral => ConversionTarget::OracleGeneral(OracleTarget::new(file)),
        TraceFormat::Nectary => ConversionTarget::Nectary(Box::new(NectaryTarget::new(file, identity, from, reader))),
        _ => {
            let names: Vec<&str> = WRITTEN.iter().map(|format| format.name()).collect();
            let message = format!("{} is only read; traces are written as {}", format.name(), names.join(", "));
            return Err(Error::Usage(message));
        }
    };
    let has_streams = matches!(format, TraceFormat::Nectary);
    let mut converted = ConversionReport::default();
    let mut batch = Vec::new();
    let mut first = None;
    loop {
        batch.clear();
        if !reader.read(&mut batch)? {
            break;
        }
        for reference in &batch {
            if reference.operation == TraceOperation::Delete {
                converted.deletes_are_lost = true;
                continue;
            }
            target.reference(reference, part, from)?;
            converted.references += 1;
            converted.streams_are_lost |= *first.get_or_insert(reference.stream) != reference.stream && !has_streams;
            converted.writes_are_lost |= reference.operation == TraceOperation::Write && !has_streams;
        }
        progress(converted.references);
    }
    if converted.references == 0 {
        return Err(Error::malformed(&from.into(), TracePosition::Whole, "at least one reference", "none"));
    }
    converted.sizes_are_lost = reader.has_objects() && !matches!(format, TraceFormat::OracleGeneral);
    converted.renumbered = target.finish(part)?;
    Ok(converted)
}

/// A trace being written.
enum ConversionTarget {
    Text(BufWriter<File>),
    OracleGeneral(OracleTarget),
    Nectary(Box<NectaryTarget>),
}

impl ConversionTarget {
    fn reference(&mut self, reference: &TraceReference, to: &Path, from: &Path) -> Result<()> {
        match self {
            ConversionTarget::Text(output) => {
                writeln!(output, "{}", reference.block).map_err(|error| Error::io(to, error))
            }
            ConversionTarget::OracleGeneral(oracle) => oracle.reference(reference, to, from),
            ConversionTarget::Nectary(recorded) => recorded.reference(reference, to, from),
        }
    }

    /// Completes the file. *Returns* the number of distinct blocks that have new numbers.
    fn finish(self, to: &Path) -> Result<u64> {
        let mut renumbered = 0;
        let result = match self {
            ConversionTarget::Text(mut output) => output.flush(),
            ConversionTarget::OracleGeneral(oracle) => oracle.finish(),
            ConversionTarget::Nectary(recorded) => {
                renumbered = recorded.numbers.len() as u64;
                recorded.finish()
            }
        };
        result.map(|()| renumbered).map_err(|error| Error::io(to, error))
    }
}

/// The writer of oracleGeneral. Each record holds the position of the next reference to its object, so the record is
/// corrected when that reference comes.
///
/// The latest records are kept in memory; older ones are corrected in the file.
struct OracleTarget {
    output: File,
    window: Vec<u8>,
    /// The number of records that are in the file already.
    written: u64,
    last: HashMap<u64, u64>,
    first_s: Option<u64>,
}

/// The latest first time that is kept. *Units*: seconds; a trace of a century fits after it.
const MAX_TIME_S: u64 = u32::MAX as u64 / 2;

/// The number of the latest records that are kept in memory.
const WINDOW_RECORDS: usize = 1 << 18;

impl OracleTarget {
    fn new(output: File) -> OracleTarget {
        OracleTarget { output, window: Vec::new(), written: 0, last: HashMap::new(), first_s: None }
    }

    fn reference(&mut self, reference: &TraceReference, to: &Path, from: &Path) -> Result<()> {
        let now = self.written + (self.window.len() / RECORD_BYTES) as u64;
        if let Some(last) = self.last.insert(reference.block, now) {
            self.mend(last, now).map_err(|error| Error::io(to, error))?;
        }
        if self.last.len() > DISTINCT_MAX {
            let what = format!("more than {DISTINCT_MAX} distinct blocks, too many for oracleGeneral");
            return Err(Error::TooLarge { path: from.to_owned(), place: TracePosition::Whole, what });
        }
        // Times are those of the trace if they fit, and otherwise count from its first reference.
        let first_s = *self.first_s.get_or_insert(if reference.time_s > MAX_TIME_S { reference.time_s } else { 0 });
        let time_s = u32::try_from(reference.time_s.saturating_sub(first_s)).unwrap_or(u32::MAX);
        self.window.extend(time_s.to_le_bytes());
        self.window.extend(reference.block.to_le_bytes());
        self.window.extend(reference.bytes.max(1).to_le_bytes());
        self.window.extend((-1_i64).to_le_bytes());
        if self.window.len() >= WINDOW_RECORDS * RECORD_BYTES {
            self.spill().map_err(|error| Error::io(to, error))?;
        }
        Ok(())
    }

    /// Stores `next` as the next reference of the record numbered `record`.
    fn mend(&mut self, record: u64, next: u64) -> std::io::Result<()> {
        let bytes = i64::try_from(next).unwrap_or(-1).to_le_bytes();
        if let Some(inside) = record.checked_sub(self.written) {
            let at = inside as usize * RECORD_BYTES + 16;
            self.window[at..at + 8].copy_from_slice(&bytes);
            return Ok(());
        }
        self.output.seek(SeekFrom::Start(record * RECORD_BYTES as u64 + 16))?;
        self.output.write_all(&bytes)
    }

    fn spill(&mut self) -> std::io::Result<()> {
        self.output.seek(SeekFrom::End(0))?;
        self.output.write_all(&self.window)?;
        self.written += (self.window.len() / RECORD_BYTES) as u64;
        self.window.clear();
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<()> {
        self.spill()
    }
}

/// The writer of Nectary's format: a stream becomes a process, and each range of 2^40 blocks becomes a file.
struct NectaryTarget {
    /// The output file and the identity, until the first reference gives the block size that the writer needs.
    start: Option<(File, [u8; 16])>,
    writer: Option<nectary::NectaryWriter<BufWriter<File>>>,
    name: String,
    has_objects: bool,
    has_areas: bool,
    processes: HashMap<StreamId, u32>,
    files: HashMap<u64, u32>,
    streams: HashMap<(StreamId, u64), u32>,
    /// The new numbers of blocks.
    numbers: HashMap<u64, u64>,
}

/// The area of the blocks that have new numbers; no other block is in it.
const RENUMBERED: u64 = u64::MAX;

impl NectaryTarget {
    fn new(output: File, identity: [u8; 16], from: &Path, reader: &dyn ReferenceReader) -> NectaryTarget {
        let name = from.file_name().unwrap_or(from.as_os_str()).to_string_lossy().chars().take(200).collect();
        NectaryTarget {
            start: Some((output, identity)),
            writer: None,
            name,
            has_objects: reader.has_objects(),
            has_areas: reader.has_areas(),
            processes: HashMap::new(),
            files: HashMap::new(),
            streams: HashMap::new(),
            numbers: HashMap::new(),
        }
    }

    fn reference(&mut self, reference: &TraceReference, to: &Path, from: &Path) -> Result<()> {
        let too_many = |what: &str| Error::TooLarge {
            path: from.to_owned(),
            place: TracePosition::Whole,
            what: format!("more {what} than nectary's format has room for"),
        };
        let io = |error| Error::io(to, error);
        if let Some((output, identity)) = self.start.take() {
            let bytes = if self.has_objects { 0 } else { reference.bytes };
            let block_bytes = bytes.clamp(nectary::BLOCK_BYTES_MIN, nectary::BLOCK_BYTES_MAX);
            let block_bytes = if bytes == 0 { 8192 } else { block_bytes.next_power_of_two() };
            let header = TraceHeader { block_bytes, is_collapsed: false, is_reads_only: false };
            self.writer = Some(nectary::NectaryWriter::new(BufWriter::new(output), identity, &header).map_err(io)?);
        }
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let (mut area, mut block) = (reference.block / nectary::BLOCKS_MAX, reference.block % nectary::BLOCKS_MAX);
        if area != 0 && !self.has_areas {
            let next = self.numbers.len() as u64;
            (area, block) = (RENUMBERED, *self.numbers.entry(reference.block).or_insert(next));
            if self.numbers.len() > DISTINCT_MAX {
                return Err(too_many("distinct block numbers above 2^40"));
            }
        }
        let known = self.streams.get(&(reference.stream, area)).copied();
        let stream = match known {
            Some(stream) => stream,
            None => {
                if self.streams.len() >= STREAMS_MAX {
                    return Err(too_many("streams"));
                }
                let process = match self.processes.get(&reference.stream).copied() {
                    Some(process) => process,
                    None => {
                        let name = format!("stream {}", reference.stream.0);
                        let process = TraceProcess { pid: reference.stream.0, parent: None, name };
                        let number = writer.process(&process).map_err(io)?.ok_or_else(|| too_many("streams"))?;
                        self.processes.insert(reference.stream, number);
                        number
                    }
                };
                let file = match self.files.get(&area).copied() {
                    Some(file) => file,
                    None => {
                        let (name, kind) = (self.name.clone(), FileKind::Regular);
                        let file = FileEntry { kind, device: 0, inode: area, size_bytes: 0, name };
                        let number = writer.file(&file).map_err(io)?.ok_or_else(|| too_many("areas of blocks"))?;
                        self.files.insert(area, number);
                        number
                    }
                };
                let number = writer.stream(process, file).map_err(io)?.ok_or_else(|| too_many("streams"))?;
                self.streams.insert((reference.stream, area), number);
                number
            }
        };
        if !writer.references(stream, block, 1, reference.operation == TraceOperation::Write).map_err(io)? {
            return Err(too_many("references"));
        }
        Ok(())
    }

    fn finish(mut self) -> std::io::Result<()> {
        match self.writer.take() {
            Some(writer) => writer.finish(RecordingOutcome::Exited(0))?.flush(),
            None => Ok(()),
        }
    }
}
