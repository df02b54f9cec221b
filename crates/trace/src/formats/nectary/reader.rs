//! Reads Nectary's format: each chunk is checked, then the references of its items are returned one by one.
//!
//! Promises: every item is checked against the items before it and against the bounds; a file that ends early is read
//! to its last complete chunk and reported as truncated; damage is an error, and nothing after it is read.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use nectary_cache::StreamId;
use zerocopy::{FromBytes, IntoBytes};

use super::layout::*;
use super::{
    FileEntry, FileKind, FileMapping, RecordingEnd, RecordingOutcome, RecordingTotals, TraceHeader, TraceProcess,
    UnseenCall,
};
use crate::error::{Error, Result, TracePosition, quote};
use crate::formats::{self, TraceOperation, TraceReference};

/// The maximum number of references that one call of [`formats::ReferenceReader::read`] appends.
const BATCH: u64 = 4096;

/// A trace that is being read. [`super::NectaryWriter`] has an example.
pub struct NectaryReader<R> {
    path: Arc<Path>,
    input: R,
    header: TraceHeader,
    identity: [u8; 8],
    chunk: u32,
    payload: Vec<u8>,
    /// The number of bytes of the payload that have been read.
    taken: usize,
    /// The offset of the payload in the file.
    payload_offset: u64,
    offset: u64,
    processes: Vec<TraceProcess>,
    files: Vec<FileEntry>,
    names_bytes: usize,
    /// For each stream, its process, its file, and the block after its last reference.
    streams: Vec<(u32, u32, u64)>,
    /// The stream of the last item with references.
    stream: u32,
    maps: u64,
    mapped: Vec<u64>,
    unseen: [u64; UnseenCall::ALL.len()],
    run: ReferenceRun,
    references: u64,
    end: Option<RecordingEnd>,
    is_at_end: bool,
}

/// The references of an item that are not returned yet.
#[derive(Debug, Default)]
struct ReferenceRun {
    stream: u32,
    block: u64,
    left: u64,
    is_write: bool,
}

/// An error in an item: the expected and the found contents.
type Wrong = (&'static str, String);

impl<R: Read> NectaryReader<R> {
    /// Whether a file that begins with `head` is of this format.
    pub fn is_likely(head: &[u8]) -> bool {
        head.starts_with(&MAGIC)
    }

    /// Reads the head of a file; `path` is used in messages.
    ///
    /// *Errors*: another format or version, or a head that is damaged or cut short.
    pub fn new(path: &Path, mut input: R) -> Result<NectaryReader<R>> {
        let path: Arc<Path> = path.into();
        let mut bytes = [0; size_of::<FileHead>()];
        let filled = fill(&path, &mut input, &mut bytes)?;
        let malformed = |at: u64, expected: &str, found: String| {
            Err(Error::malformed(&path, TracePosition::Offset(at), expected.to_owned(), found))
        };
        if !MAGIC.starts_with(&bytes[..filled.min(MAGIC.len())]) || filled < MAGIC.len() {
            return malformed(0, "a trace of nectary's format, NECTTRC", quote(&bytes[..filled.min(MAGIC.len())]));
        }
        if filled < bytes.len() {
            return malformed(0, "a head of 64 bytes", format!("the end of the file after {filled}"));
        }
        let Ok(head) = FileHead::read_from_bytes(&bytes) else {
            return malformed(0, "a head of 64 bytes", "something else".to_owned());
        };
        if head.version.get() != VERSION {
            return malformed(8, "version 1", format!("version {}", head.version.get()));
        }
        let (expected, found) = (head_sum(&bytes), head.checksum.get());
        if expected != found {
            return malformed(60, &format!("checksum {expected:08x}"), format!("{found:08x}"));
        }
        let block_bytes = head.block_bytes.get();
        if !block_bytes.is_power_of_two() || !(BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block_bytes) {
            return malformed(12, "a block size that is a power of two from 512 to 2^24", block_bytes.to_string());
        }
        if usize::from(head.header_bytes.get()) != bytes.len() {
            return malformed(10, "a head of 64 bytes", format!("{} bytes", head.header_bytes.get()));
        }
        let flags = head.flags.get();
        if flags & !(FLAG_COLLAPSED | FLAG_READS_ONLY) != 0 {
            return malformed(32, "flags of version 1", format!("{flags:#x}"));
        }
        let header = TraceHeader {
            block_bytes,
            is_collapsed: flags & FLAG_COLLAPSED != 0,
            is_reads_only: flags & FLAG_READS_ONLY != 0,
        };
        let mut identity = [0; 8];
        identity.copy_from_slice(&head.identity[..8]);
        Ok(NectaryReader {
            path,
            input,
            header,
            identity,
            chunk: 0,
            payload: Vec::new(),
            taken: 0,
            payload_offset: 0,
            offset: size_of::<FileHead>() as u64,
            processes: Vec::new(),
            files: Vec::new(),
            names_bytes: 0,
            streams: Vec::new(),
            stream: 0,
            maps: 0,
            mapped: Vec::new(),
            unseen: [0; UnseenCall::ALL.len()],
            run: ReferenceRun::default(),
            references: 0,
            end: None,
            is_at_end: false,
        })
    }

    /// The properties of the whole trace.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// The processes read so far, by number.
    pub fn processes(&self) -> &[TraceProcess] {
        &self.processes
    }

    /// The files read so far, by number.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The numbers of the process and of the file of a stream that was read so far.
    pub fn stream(&self, stream: StreamId) -> Option<(u32, u32)> {
        self.streams.get(stream.0 as usize).map(|&(process, file, _)| (process, file))
    }

    /// The number of bytes of a file that were mapped so far, over all its maps. `file` is the file's number. *Units*:
    /// bytes.
    pub fn mapped_bytes(&self, file: u32) -> u64 {
        self.mapped.get(file as usize).copied().unwrap_or_default()
    }

    /// The number of calls of a kind whose references are missing, as far as the file was read.
    pub fn unseen(&self, kind: UnseenCall) -> u64 {
        UnseenCall::ALL.iter().position(|&known| known == kind).map_or(0, |index| self.unseen[index])
    }

    /// The end of the recording; `None` until the end item was read.
    pub fn end(&self) -> Option<&RecordingEnd> {
        self.end.as_ref()
    }

    /// Whether the file ended without an end item, because its recorder was killed or its disk was full.
    pub fn is_truncated(&self) -> bool {
        self.is_at_end && self.end.is_none()
    }

    /// The next reference; `None` at the end of the file, even if the file was cut short.
    ///
    /// *Errors*: the file is damaged. Every reference before the damage was returned.
    pub fn next_reference(&mut self) -> Result<Option<TraceReference>> {
        while self.run.left == 0 {
            if !self.next_item()? {
                return Ok(None);
            }
        }
        let file = self.streams.get(self.run.stream as usize).map_or(0, |&(_, file, _)| file);
        let reference = TraceReference {
            stream: StreamId(self.run.stream),
            block: u64::from(file) * BLOCKS_MAX + self.run.block,
            bytes: self.header.block_bytes,
            operation: if self.run.is_write { TraceOperation::Write } else { TraceOperation::Read },
            ..TraceReference::default()
        };
        self.run.left -= 1;
        self.run.block += 1;
        Ok(Some(reference))
    }

    /// Reads the next item; `false` at the end of the file.
    fn next_item(&mut self) -> Result<bool> {
        if self.is_at_end {
            return Ok(false);
        }
        if self.taken == self.payload.len() && !self.next_chunk()? {
            self.is_at_end = true;
            return Ok(false);
        }
        let place = TracePosition::Offset(self.payload_offset + self.taken as u64);
        let payload = std::mem::take(&mut self.payload);
        let mut rest = &payload[self.taken..];
        let result = self.item(&mut rest);
        self.taken = payload.len() - rest.len();
        self.payload = payload;
        result.map_err(|(expected, found)| {
            self.is_at_end = true;
            Error::malformed(&self.path, place, expected, found)
        })?;
        Ok(true)
    }

    /// Reads and checks the next chunk; `false` if the file ends before the end of the chunk.
    fn next_chunk(&mut self) -> Result<bool> {
        let at = self.offset;
        let mut bytes = [0; size_of::<ChunkHead>()];
        let filled = fill(&self.path, &mut self.input, &mut bytes)?;
        if filled < bytes.len() {
            return Ok(false);
        }
        match self.chunk_after(at, &bytes) {
            Ok(is_whole) => Ok(is_whole),
            Err(error) => {
                self.is_at_end = true;
                Err(error)
            }
        }
    }

    fn chunk_after(&mut self, at: u64, bytes: &[u8; size_of::<ChunkHead>()]) -> Result<bool> {
        let malformed = |place: u64, expected: String, found: String| {
            Err(Error::malformed(&self.path, TracePosition::Offset(at + place), expected, found))
        };
        if self.end.is_some() {
            return malformed(0, "the end of the file after its end item".to_owned(), "more".to_owned());
        }
        let Ok(head) = ChunkHead::read_from_bytes(bytes.as_bytes()) else {
            return malformed(0, "a chunk's head".to_owned(), "something else".to_owned());
        };
        if head.magic != CHUNK_MAGIC {
            return malformed(0, "a chunk, NTCH".to_owned(), quote(&head.magic));
        }
        if head.version.get() != VERSION {
            return malformed(4, "version 1".to_owned(), format!("version {}", head.version.get()));
        }
        let (expected, found) = (head_sum(bytes), head.checksum.get());
        if expected != found {
            return malformed(28, format!("checksum {expected:08x}"), format!("{found:08x}"));
        }
        if head.identity != self.identity {
            return malformed(8, "this file's identity".to_owned(), "another file's".to_owned());
        }
        if head.index.get() != self.chunk {
            return malformed(16, format!("chunk {}", self.chunk), format!("chunk {}", head.index.get()));
        }
        let payload_bytes = head.payload_bytes.get() as usize;
        if payload_bytes == 0 || payload_bytes > PAYLOAD_BYTES_MAX {
            return malformed(20, format!("1 to {PAYLOAD_BYTES_MAX} bytes"), payload_bytes.to_string());
        }
        self.payload.clear();
        self.payload.resize(payload_bytes, 0);
        self.taken = 0;
        let filled = fill(&self.path, &mut self.input, &mut self.payload)?;
        if filled < payload_bytes {
            self.payload.clear();
            return Ok(false);
        }
        let (expected, found) = (crc32c::crc32c(&self.payload), head.payload_checksum.get());
        if expected != found {
            return malformed(24, format!("checksum {expected:08x}"), format!("{found:08x}"));
        }
        self.payload_offset = at + bytes.len() as u64;
        self.offset = self.payload_offset + payload_bytes as u64;
        self.chunk = self.chunk.wrapping_add(1);
        Ok(true)
    }

    fn item(&mut self, rest: &mut &[u8]) -> std::result::Result<(), Wrong> {
        if self.end.is_some() {
            return Err(("nothing after the end item", "more".to_owned()));
        }
        match byte(rest)? {
            ITEM_PROCESS => {
                let pid = number(rest)?;
                let pid = u32::try_from(pid).map_err(|_| ("a process id", pid.to_string()))?;
                let parent = match number(rest)? {
                    0 => None,
                    parent => Some(index(parent - 1, self.processes.len(), "a process before it")?),
                };
                let name = self.name(rest)?;
                room(self.processes.len(), PROCESSES_MAX)?;
                self.processes.push(TraceProcess { pid, parent, name });
            }
            ITEM_FILE => {
                let kind = match byte(rest)? {
                    KIND_REGULAR => FileKind::Regular,
                    KIND_BLOCK_DEVICE => FileKind::BlockDevice,
                    other => return Err(("a kind of file, 0 or 1", other.to_string())),
                };
                let (device, inode, size_bytes) = (number(rest)?, number(rest)?, number(rest)?);
                let name = self.name(rest)?;
                room(self.files.len(), FILES_MAX)?;
                self.files.push(FileEntry { kind, device, inode, size_bytes, name });
            }
            ITEM_STREAM => {
                let process = index(number(rest)?, self.processes.len(), "a process before it")?;
                let file = index(number(rest)?, self.files.len(), "a file before it")?;
                room(self.streams.len(), STREAMS_MAX)?;
                self.streams.push((process, file, 0));
            }
            ITEM_MAP => {
                let map = self.map(rest)?;
                let file = map.file as usize;
                if self.mapped.len() <= file {
                    self.mapped.resize(file + 1, 0);
                }
                self.mapped[file] = self.mapped[file].saturating_add(map.bytes);
                self.maps += 1;
            }
            ITEM_UNSEEN => {
                index(number(rest)?, self.processes.len(), "a process before it")?;
                let kind = byte(rest)?;
                let Some(calls) = self.unseen.get_mut(usize::from(kind)) else {
                    return Err(("a kind of unseen call, 0 to 4", kind.to_string()));
                };
                *calls = calls.saturating_add(number(rest)?);
            }
            ITEM_END => {
                let end = self.ended(rest)?;
                self.end = Some(end);
            }
            item @ ITEM_REFERENCES..=ITEM_REFERENCES_LAST => self.references(item, rest)?,
            other => return Err(("an item of version 1", format!("byte {other:#04x}"))),
        }
        Ok(())
    }

    fn references(&mut self, item: u8, rest: &mut &[u8]) -> std::result::Result<(), Wrong> {
        if item & REFERENCES_STREAM != 0 {
            self.stream = index(number(rest)?, self.streams.len(), "a stream before it")?;
        }
        let Some(&(_, _, next)) = self.streams.get(self.stream as usize) else {
            return Err(("a stream before its references", "references".to_owned()));
        };
        let distance = if item & REFERENCES_PLACE != 0 { unzigzag(number(rest)?) } else { 0 };
        let count = if item & REFERENCES_COUNT != 0 { number(rest)? } else { 1 };
        if count == 0 || count > REFERENCES_PER_CALL_MAX {
            return Err(("1 to 2^22 references", count.to_string()));
        }
        let block =
            next.checked_add_signed(distance).filter(|&block| block < BLOCKS_MAX && block + count <= BLOCKS_MAX);
        let Some(block) = block else {
            return Err(("blocks below 2^40", format!("{count} blocks at {next} {distance:+}")));
        };
        self.streams[self.stream as usize].2 = block + count;
        self.references = self.references.saturating_add(count);
        self.run = ReferenceRun { stream: self.stream, block, left: count, is_write: item & REFERENCES_WRITTEN != 0 };
        Ok(())
    }

    fn map(&self, rest: &mut &[u8]) -> std::result::Result<FileMapping, Wrong> {
        let process = index(number(rest)?, self.processes.len(), "a process before it")?;
        let file = index(number(rest)?, self.files.len(), "a file before it")?;
        let flags = byte(rest)?;
        if flags & !(MAP_EXECUTABLE | MAP_WRITTEN | MAP_PROGRAM) != 0 {
            return Err(("flags of a map", format!("{flags:#04x}")));
        }
        let (offset, bytes) = (number(rest)?, number(rest)?);
        let is_executable = flags & MAP_EXECUTABLE != 0;
        let (is_written, is_program) = (flags & MAP_WRITTEN != 0, flags & MAP_PROGRAM != 0);
        Ok(FileMapping { process, file, is_executable, is_written, is_program, offset, bytes })
    }

    fn ended(&self, rest: &mut &[u8]) -> std::result::Result<RecordingEnd, Wrong> {
        let how = byte(rest)?;
        let code = number(rest)?;
        let code = u8::try_from(code).map_err(|_| ("a code below 256", code.to_string()))?;
        let outcome = match how {
            ENDED_EXITED => RecordingOutcome::Exited(code),
            ENDED_KILLED => RecordingOutcome::Killed(code),
            ENDED_STOPPED => RecordingOutcome::Stopped,
            other => return Err(("a way to end, 0 to 2", other.to_string())),
        };
        let totals = RecordingTotals {
            processes: number(rest)?,
            files: number(rest)?,
            streams: number(rest)?,
            references: number(rest)?,
            maps: number(rest)?,
            lost_references: number(rest)?,
        };
        let found = RecordingTotals {
            processes: self.processes.len() as u64,
            files: self.files.len() as u64,
            streams: self.streams.len() as u64,
            references: self.references,
            maps: self.maps,
            lost_references: totals.lost_references,
        };
        if totals != found {
            return Err(("the totals of what stands before the end", format!("{totals:?}")));
        }
        Ok(RecordingEnd { outcome, totals })
    }

    fn name(&mut self, rest: &mut &[u8]) -> std::result::Result<String, Wrong> {
        let bytes = number(rest)?;
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if length > NAME_BYTES_MAX {
            return Err(("a text of at most 4096 bytes", format!("{bytes} bytes")));
        }
        let Some((name, after)) = rest.split_at_checked(length) else {
            return Err(("a text within its chunk", format!("{bytes} bytes")));
        };
        self.names_bytes += length;
        if self.names_bytes > NAMES_BYTES_MAX {
            return Err(("at most 64 MiB of text", "more".to_owned()));
        }
        *rest = after;
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

impl<R: Read + Send> formats::ReferenceReader for NectaryReader<R> {
    fn has_areas(&self) -> bool {
        true
    }

    fn block_bytes(&self) -> Option<u64> {
        Some(self.header.block_bytes.into())
    }

    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let Some(first) = self.next_reference()? else { return Ok(false) };
        to.push(first);
        // The other references of the item are already in memory, so if reading fails, nothing was appended.
        for _ in 0..self.run.left.min(BATCH - 1) {
            if let Some(reference) = self.next_reference()? {
                to.push(reference);
            }
        }
        Ok(true)
    }

    fn stream_name(&self, stream: StreamId) -> Option<String> {
        let (process, file) = NectaryReader::stream(self, stream)?;
        let (process, file) = (self.processes.get(process as usize)?, self.files.get(file as usize)?);
        Some(format!("{} ({}): {}", process.name, process.pid, file.name))
    }

    fn warning(&self) -> Option<String> {
        self.is_truncated().then(|| "the recording was cut short: its end is missing".to_owned())
    }
}

fn byte(rest: &mut &[u8]) -> std::result::Result<u8, Wrong> {
    let (&byte, after) = rest.split_first().ok_or(("a whole item", "the end of its chunk".to_owned()))?;
    *rest = after;
    Ok(byte)
}

fn number(rest: &mut &[u8]) -> std::result::Result<u64, Wrong> {
    take_number(rest).ok_or(("a number below 2^64", "something else, or the end of its chunk".to_owned()))
}

/// Converts a number to an index, if it is below `count`.
fn index(number: u64, count: usize, expected: &'static str) -> std::result::Result<u32, Wrong> {
    match u32::try_from(number) {
        Ok(index) if (index as usize) < count => Ok(index),
        _ => Err((expected, format!("number {number} of {count}"))),
    }
}

fn room(count: usize, count_max: u32) -> std::result::Result<(), Wrong> {
    if count < count_max as usize {
        Ok(())
    } else {
        Err(("no more than the format's bounds", format!("{count} and one more")))
    }
}

/// Reads into `bytes` until `bytes` is full or the input ends. *Returns* the number of bytes that were read. A
/// compressed stream that was cut short is not an error; it ends at the cut.
fn fill(path: &Path, input: &mut impl Read, bytes: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(Error::io(path, error)),
        }
    }
    Ok(filled)
}
