//! Writes Nectary's format: items are gathered into chunks, and each chunk is one write.
//!
//! Promises: flushed records are readable, even if the writer is killed. References beyond the bounds of the format are
//! refused and counted as lost.

use std::io::{self, Write};

use zerocopy::IntoBytes;

use super::layout::*;
use super::{
    FileEntry, FileKind, FileMapping, RecordingEnd, RecordingOutcome, RecordingTotals, TraceHeader, TraceProcess,
    UnseenCall,
};

/// The length of a payload at which its chunk is written. It leaves room for one more item of any kind below the
/// maximum. *Units*: bytes.
const PAYLOAD_BYTES_WANTED: usize = 64 << 10;

/// A trace that is being written.
///
/// ```
/// use nectary_trace::formats::nectary::{FileEntry, FileKind, TraceHeader, NectaryReader, RecordingOutcome, TraceProcess, NectaryWriter};
///
/// let header = TraceHeader { block_bytes: 8192, is_collapsed: false, is_reads_only: false };
/// let mut writer = NectaryWriter::new(Vec::new(), [7; 16], &header)?;
/// let process = writer.process(&TraceProcess { pid: 42, parent: None, name: "sort".to_owned() })?.unwrap();
/// let file = FileEntry { kind: FileKind::Regular, device: 1, inode: 2, size_bytes: 24576, name: "in".to_owned() };
/// let file = writer.file(&file)?.unwrap();
/// let stream = writer.stream(process, file)?.unwrap();
/// writer.references(stream, 0, 3, false)?;
/// let bytes = writer.finish(RecordingOutcome::Exited(0))?;
///
/// let mut reader = NectaryReader::new("sort.trace".as_ref(), bytes.as_slice())?;
/// let mut blocks = Vec::new();
/// while let Some(reference) = reader.next_reference()? {
///     blocks.push(reference.block);
/// }
/// assert_eq!(blocks, [0, 1, 2]);
/// assert_eq!(reader.end().map(|end| end.outcome), Some(RecordingOutcome::Exited(0)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NectaryWriter<W: Write> {
    output: W,
    identity: [u8; 8],
    chunk: u32,
    payload: Vec<u8>,
    totals: RecordingTotals,
    names_bytes: usize,
    /// For each stream, the block after its last reference.
    next: Vec<u64>,
    /// The stream of the last item with references.
    stream: u32,
}

impl<W: Write> NectaryWriter<W> {
    /// Writes the head of a file. `identity` should be random.
    pub fn new(mut output: W, identity: [u8; 16], header: &TraceHeader) -> io::Result<NectaryWriter<W>> {
        let sizes = BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX;
        if !header.block_bytes.is_power_of_two() || !sizes.contains(&header.block_bytes) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the block size is no power of two from 512 to 2^24",
            ));
        }
        let collapsed = if header.is_collapsed { FLAG_COLLAPSED } else { 0 };
        let reads_only = if header.is_reads_only { FLAG_READS_ONLY } else { 0 };
        let mut head = FileHead {
            magic: MAGIC,
            version: VERSION.into(),
            header_bytes: (size_of::<FileHead>() as u16).into(),
            block_bytes: header.block_bytes.into(),
            identity,
            flags: (collapsed | reads_only).into(),
            reserved: [0; 24],
            checksum: 0.into(),
        };
        head.checksum = head_sum(head.as_bytes()).into();
        output.write_all(head.as_bytes())?;
        output.flush()?;
        let mut short = [0; 8];
        short.copy_from_slice(&identity[..8]);
        Ok(NectaryWriter {
            output,
            identity: short,
            chunk: 0,
            payload: Vec::with_capacity(PAYLOAD_BYTES_WANTED + 2 * NAME_BYTES_MAX),
            totals: RecordingTotals::default(),
            names_bytes: 0,
            next: Vec::new(),
            stream: 0,
        })
    }

    /// Adds a process. *Returns* its number; `None` if the trace has as many processes as allowed.
    pub fn process(&mut self, process: &TraceProcess) -> io::Result<Option<u32>> {
        if self.totals.processes >= u64::from(PROCESSES_MAX) {
            return Ok(None);
        }
        self.payload.push(ITEM_PROCESS);
        self.number(u64::from(process.pid));
        self.number(process.parent.map_or(0, |parent| u64::from(parent) + 1));
        self.name(&process.name);
        let number = self.totals.processes as u32;
        self.totals.processes += 1;
        self.item_ends()?;
        Ok(Some(number))
    }

    /// Adds a file. *Returns* its number; `None` if the trace has as many files as allowed.
    pub fn file(&mut self, file: &FileEntry) -> io::Result<Option<u32>> {
        if self.totals.files >= u64::from(FILES_MAX) {
            return Ok(None);
        }
        self.payload.push(ITEM_FILE);
        self.payload.push(match file.kind {
            FileKind::Regular => KIND_REGULAR,
            FileKind::BlockDevice => KIND_BLOCK_DEVICE,
        });
        self.number(file.device);
        self.number(file.inode);
        self.number(file.size_bytes);
        self.name(&file.name);
        let number = self.totals.files as u32;
        self.totals.files += 1;
        self.item_ends()?;
        Ok(Some(number))
    }

    /// Adds a stream of a process and a file that were added before. *Returns* its number; `None` if the trace has as
    /// many streams as allowed.
    pub fn stream(&mut self, process: u32, file: u32) -> io::Result<Option<u32>> {
        debug_assert!(u64::from(process) < self.totals.processes && u64::from(file) < self.totals.files);
        if self.totals.streams >= u64::from(STREAMS_MAX) {
            return Ok(None);
        }
        self.payload.push(ITEM_STREAM);
        self.number(u64::from(process));
        self.number(u64::from(file));
        let number = self.totals.streams as u32;
        self.totals.streams += 1;
        self.next.push(0);
        self.item_ends()?;
        Ok(Some(number))
    }

    /// Adds the references of one call to `count` blocks from `first`. *Returns* `false` if they are beyond the bounds;
    /// they are then counted as lost.
    pub fn references(&mut self, stream: u32, first: u64, count: u64, is_write: bool) -> io::Result<bool> {
        if count == 0 {
            return Ok(true);
        }
        let last = first.checked_add(count);
        let is_within = count <= REFERENCES_PER_CALL_MAX && last.is_some_and(|end| end <= BLOCKS_MAX);
        let (Some(&next), true) = (self.next.get(stream as usize), is_within) else {
            self.lost(count);
            return Ok(false);
        };
        let distance = first as i64 - next as i64;
        let mut item = ITEM_REFERENCES;
        item |= if is_write { REFERENCES_WRITTEN } else { 0 };
        item |= if stream == self.stream { 0 } else { REFERENCES_STREAM };
        item |= if count == 1 { 0 } else { REFERENCES_COUNT };
        item |= if distance == 0 { 0 } else { REFERENCES_PLACE };
        self.payload.push(item);
        if stream != self.stream {
            self.number(u64::from(stream));
            self.stream = stream;
        }
        if distance != 0 {
            self.number(zigzag(distance));
        }
        if count != 1 {
            self.number(count);
        }
        self.next[stream as usize] = first + count;
        self.totals.references += count;
        self.item_ends()?;
        Ok(true)
    }

    /// Adds a map of a process and a file that were added before.
    pub fn map(&mut self, map: &FileMapping) -> io::Result<()> {
        debug_assert!(u64::from(map.process) < self.totals.processes && u64::from(map.file) < self.totals.files);
        self.payload.push(ITEM_MAP);
        self.number(u64::from(map.process));
        self.number(u64::from(map.file));
        let executable = if map.is_executable { MAP_EXECUTABLE } else { 0 };
        let written = if map.is_written { MAP_WRITTEN } else { 0 };
        let program = if map.is_program { MAP_PROGRAM } else { 0 };
        self.payload.push(executable | written | program);
        self.number(map.offset);
        self.number(map.bytes);
        self.totals.maps += 1;
        self.item_ends()
    }

    /// Adds a number of calls of a process whose references are not in the file.
    pub fn unseen(&mut self, process: u32, unseen: UnseenCall, calls: u64) -> io::Result<()> {
        self.payload.push(ITEM_UNSEEN);
        self.number(u64::from(process));
        let kind = UnseenCall::ALL.iter().position(|&kind| kind == unseen).unwrap_or_default();
        self.payload.push(kind as u8);
        self.number(calls);
        self.item_ends()
    }

    /// Counts references that the recorder drops.
    pub fn lost(&mut self, count: u64) {
        self.totals.lost_references = self.totals.lost_references.saturating_add(count);
    }

    /// The totals of the items that were added so far.
    pub fn totals(&self) -> &RecordingTotals {
        &self.totals
    }

    /// Whether items wait for a flush.
    pub fn is_pending(&self) -> bool {
        !self.payload.is_empty()
    }

    /// Writes the pending records as a chunk and flushes the output.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.payload.is_empty() {
            return Ok(());
        }
        let mut head = ChunkHead {
            magic: CHUNK_MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
            identity: self.identity,
            index: self.chunk.into(),
            payload_bytes: (self.payload.len() as u32).into(),
            payload_checksum: crc32c::crc32c(&self.payload).into(),
            checksum: 0.into(),
        };
        head.checksum = head_sum(head.as_bytes()).into();
        let head = head.as_bytes();
        // Head and payload are one write, so that a kill cannot separate them.
        self.payload.splice(0..0, head.iter().copied());
        let written = self.output.write_all(&self.payload).and_then(|()| self.output.flush());
        self.payload.clear();
        self.chunk = self.chunk.wrapping_add(1);
        written
    }

    /// Writes the end item and returns the output.
    pub fn finish(mut self, outcome: RecordingOutcome) -> io::Result<W> {
        let (how, code) = match outcome {
            RecordingOutcome::Exited(code) => (ENDED_EXITED, code),
            RecordingOutcome::Killed(signal) => (ENDED_KILLED, signal),
            RecordingOutcome::Stopped => (ENDED_STOPPED, 0),
        };
        let end = RecordingEnd { outcome, totals: self.totals };
        self.payload.extend_from_slice(&[ITEM_END, how]);
        self.number(u64::from(code));
        for total in [
            end.totals.processes,
            end.totals.files,
            end.totals.streams,
            end.totals.references,
            end.totals.maps,
            end.totals.lost_references,
        ] {
            self.number(total);
        }
        self.flush()?;
        Ok(self.output)
    }

    /// Appends raw bytes, for the tests of the reader.
    #[cfg(test)]
    pub(super) fn items_of_a_test(&mut self, bytes: &[u8]) {
        self.payload.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        put_number(&mut self.payload, number);
    }

    /// Appends a name. A name that is too long is cut at the end of a character; once the bound on all names is
    /// reached, names are empty.
    fn name(&mut self, name: &str) {
        let mut bytes = name.len().min(NAME_BYTES_MAX);
        while !name.is_char_boundary(bytes) {
            bytes -= 1;
        }
        if self.names_bytes + bytes > NAMES_BYTES_MAX {
            bytes = 0;
        }
        self.names_bytes += bytes;
        self.number(bytes as u64);
        self.payload.extend_from_slice(&name.as_bytes()[..bytes]);
    }

    fn item_ends(&mut self) -> io::Result<()> {
        if self.payload.len() >= PAYLOAD_BYTES_WANTED { self.flush() } else { Ok(()) }
    }
}
