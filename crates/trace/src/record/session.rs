//! Converts calls to references: finds the blocks to which a waiting call will refer, and writes them to the trace.
//!
//! Owns: the tables of a recording and its writer. Promises: every call that reaches the recorder is either described
//! or counted as unseen; if the trace can no longer be written, only the writing stops. Leaves to others: receiving and
//! answering calls.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use super::calls::{self, SystemCall, TransferLength, TransferOffset, TransferSide};
use super::files::{self, CallFile, DistinctBlocks, RecordedFiles};
use super::processes::{TracedProcesses, TracedThread};
use super::sys::{self, SeccompNotification};
use super::{MapSummary, RecordingOptions, RecordingSummary};
use crate::formats::nectary::{FileMapping, NectaryWriter, RecordingOutcome, TraceProcess, UnseenCall};

/// The longest time for which a reference stays in memory before it is written.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// The maximum number of mapped files that a summary lists by name.
const MAPPED_FILES_MAX: usize = 1 << 16;
/// The maximum number of entries in the vector of one call (`UIO_MAXIOV`).
const VECTOR_MAX: u64 = 1024;

/// The tables of a recording.
pub(super) struct RecordingSession<W: Write> {
    writer: NectaryWriter<W>,
    options: RecordingOptions,
    processes: TracedProcesses,
    files: RecordedFiles,
    /// The number of the stream of each process and file. Pairs beyond the bound on streams are not remembered, so that
    /// the table is bounded too.
    streams: HashMap<(u32, u32), u32>,
    /// The last reference of each stream: the block, and whether it was a write.
    last: Vec<Option<(u64, bool)>>,
    distinct: DistinctBlocks,
    maps: HashMap<u32, MapSummary>,
    /// The number of maps of files that the summary does not list, because of [`MAPPED_FILES_MAX`].
    maps_unnamed: u64,
    unseen: [u64; UnseenCall::ALL.len()],
    /// The numbers of unseen calls that are not written yet, by process and kind.
    unseen_since: HashMap<(u32, UnseenCall), u64>,
    /// The number of the process that stands for all calls whose process is unknown.
    unknown: Option<u32>,
    page_bytes: u64,
    flushed: Instant,
}

/// The description of a waiting call: the blocks to which it will refer, if it continues.
#[derive(Debug, Default)]
pub(super) struct PreparedCall {
    transfers: [Option<FileTransfer>; 2],
    map: Option<FileMapping>,
    /// The number of the process, and the reason why the call could not be described.
    unseen: Option<(Option<u32>, UnseenCall)>,
}

/// Bytes of a file to which a process refers.
#[derive(Debug, Clone, Copy)]
struct FileTransfer {
    process: u32,
    file: Option<u32>,
    offset: u64,
    bytes: u64,
    is_write: bool,
}

/// The reason why a call could not be described.
enum CallObstacle {
    /// The call will fail, or its process has ended, so it refers to no blocks.
    Nothing,
    /// The call may refer to blocks that the recorder cannot see.
    Unseen(UnseenCall),
    /// The trace cannot be written.
    Write(io::Error),
}

type Described<T> = std::result::Result<T, CallObstacle>;

/// Classifies an error that occurred when the recorder inspected a process.
fn looking(error: io::Error) -> CallObstacle {
    match error.raw_os_error() {
        Some(libc::EBADF | libc::ESRCH | libc::ENOENT | libc::EFAULT | libc::ESPIPE | libc::EIO) => {
            CallObstacle::Nothing
        }
        _ => CallObstacle::Unseen(UnseenCall::NotPermitted),
    }
}

impl<W: Write> RecordingSession<W> {
    /// Starts a session that writes to `writer`.
    pub(super) fn new(writer: NectaryWriter<W>, options: &RecordingOptions) -> RecordingSession<W> {
        RecordingSession {
            writer,
            options: options.clone(),
            processes: TracedProcesses::default(),
            files: RecordedFiles::new(options.folder.clone()),
            streams: HashMap::new(),
            last: Vec::new(),
            distinct: DistinctBlocks::default(),
            maps: HashMap::new(),
            maps_unnamed: 0,
            unseen: [0; UnseenCall::ALL.len()],
            unseen_since: HashMap::new(),
            unknown: None,
            page_bytes: sys::page_bytes(),
            flushed: Instant::now(),
        }
    }

    /// Finds the blocks to which a call will refer. The call must be waiting.
    ///
    /// *Errors*: the trace cannot be written.
    pub(super) fn prepare(&mut self, notification: &SeccompNotification) -> io::Result<PreparedCall> {
        let Some(call) = calls::decode(notification.machine, notification.number, &notification.arguments) else {
            return Ok(PreparedCall::default());
        };
        match self.describe(notification.thread, call) {
            Ok(prepared) => Ok(prepared),
            Err(CallObstacle::Nothing) => Ok(PreparedCall::default()),
            Err(CallObstacle::Unseen(unseen)) => {
                let process = match self.processes.thread(notification.thread) {
                    Ok(thread) => self.program(thread.pid).ok(),
                    Err(_) => None,
                };
                Ok(PreparedCall { unseen: Some((process, unseen)), ..PreparedCall::default() })
            }
            Err(CallObstacle::Write(error)) => Err(error),
        }
    }

    fn describe(&mut self, thread: u32, call: SystemCall) -> Described<PreparedCall> {
        let mut prepared = PreparedCall::default();
        match call {
            SystemCall::Exec => self.processes.exec_begins(thread).map_err(looking)?,
            SystemCall::Call32 => return Err(CallObstacle::Unseen(UnseenCall::Call32)),
            SystemCall::IoUring => return Err(CallObstacle::Unseen(UnseenCall::IoUring)),
            SystemCall::IoSubmit => return Err(CallObstacle::Unseen(UnseenCall::IoSubmit)),
            SystemCall::Transfer(side, length) => {
                let (from, fd) = self.open(thread, side.fd)?;
                if let Some(found) = self.find(fd.as_fd())? {
                    let bytes = match length {
                        TransferLength::Bytes(bytes) => bytes,
                        TransferLength::Vector { address, count } => vector_bytes(thread, address, count)?,
                    };
                    prepared.transfers[0] = self.transfer(thread, &from, fd.as_fd(), &found, &side, bytes)?;
                }
            }
            SystemCall::Copy(input, output, bytes) => {
                let (from, source) = self.open(thread, input.fd)?;
                let (_, target) = self.open(thread, output.fd)?;
                let mut bytes = bytes;
                if let Some(found) = self.find(source.as_fd())? {
                    bytes = bytes.min(sys::room_bytes(target.as_fd()).unwrap_or(bytes));
                    prepared.transfers[0] = self.transfer(thread, &from, source.as_fd(), &found, &input, bytes)?;
                    bytes = prepared.transfers[0].map_or(0, |transfer| transfer.bytes);
                } else {
                    // If nothing waits in the source yet, the number of bytes is unknown. At least one byte is counted,
                    // because otherwise the call would refer to no block.
                    bytes = bytes.min(sys::waiting_bytes(source.as_fd()).max(1));
                }
                if !self.options.is_reads_only
                    && let Some(found) = self.find(target.as_fd())?
                {
                    prepared.transfers[1] = self.transfer(thread, &from, target.as_fd(), &found, &output, bytes)?;
                }
            }
            SystemCall::Map { fd, bytes, offset, is_executable, is_written } => {
                let (from, fd) = self.open(thread, fd)?;
                if let Some(CallFile { number: Some(file), size_bytes }) = self.find(fd.as_fd())? {
                    let process = self.program(from.pid)?;
                    self.note_name(file, fd.as_fd());
                    let bytes = bytes.min(size_bytes.saturating_sub(offset));
                    let is_program = false;
                    prepared.map =
                        Some(FileMapping { process, file, is_executable, is_written, is_program, offset, bytes });
                }
            }
        }
        Ok(prepared)
    }

    /// Borrows a descriptor of a thread's process.
    fn open(&mut self, thread: u32, fd: i32) -> Described<(TracedThread, OwnedFd)> {
        let known = self.processes.thread(thread).map_err(looking)?;
        match sys::borrow_descriptor(known.handle(), fd) {
            Ok(borrowed) => Ok((known, borrowed)),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                let known = self.processes.look_up(thread).map_err(looking)?;
                let borrowed = sys::borrow_descriptor(known.handle(), fd).map_err(looking)?;
                Ok((known, borrowed))
            }
            Err(error) => Err(looking(error)),
        }
    }

    fn find(&mut self, fd: BorrowedFd<'_>) -> Described<Option<CallFile>> {
        let writer = &mut self.writer;
        let mut failed = None;
        let found = self.files.find(fd, |entry| {
            writer.file(entry).or_else(|error| {
                failed = Some(error);
                Ok(None)
            })
        });
        match failed {
            Some(error) => Err(CallObstacle::Write(error)),
            None => found.map_err(looking),
        }
    }

    fn transfer(
        &mut self,
        thread: u32,
        from: &TracedThread,
        fd: BorrowedFd<'_>,
        found: &CallFile,
        side: &TransferSide,
        bytes: u64,
    ) -> Described<Option<FileTransfer>> {
        let mut offset = match side.offset {
            TransferOffset::Position | TransferOffset::Pointer(0) => sys::position(fd).map_err(looking)?,
            TransferOffset::At(offset) => offset,
            TransferOffset::Pointer(address) => {
                let mut number = [0; 8];
                match sys::read_memory(thread, address, &mut number).map_err(looking)? {
                    8 => u64::from_ne_bytes(number),
                    _ => return Err(CallObstacle::Nothing),
                }
            }
        };
        if i64::try_from(offset).is_err() {
            return Err(CallObstacle::Nothing);
        }
        let mut bytes = bytes.min(calls::CALL_BYTES_MAX);
        if side.is_write {
            if sys::is_append(fd) {
                offset = found.size_bytes;
            }
        } else {
            bytes = bytes.min(found.size_bytes.saturating_sub(offset));
        }
        if bytes == 0 {
            return Ok(None);
        }
        let process = self.program(from.pid)?;
        Ok(Some(FileTransfer { process, file: found.number, offset, bytes, is_write: side.is_write }))
    }

    /// The number of a process's program in the trace; a new program is added to the trace.
    fn program(&mut self, pid: u32) -> Described<u32> {
        let unnamed = match self.processes.program(pid).map_err(looking)? {
            Ok(number) => return Ok(number),
            Err(unnamed) => unnamed,
        };
        let process = TraceProcess { pid, parent: unnamed.parent, name: unnamed.name };
        let number = self.writer.process(&process).map_err(CallObstacle::Write)?;
        let number = number.ok_or(CallObstacle::Unseen(UnseenCall::BeyondBounds))?;
        self.processes.named(pid, number);
        if unnamed.is_fresh {
            self.map_program(pid, number)?;
        }
        Ok(number)
    }

    /// Adds the map of the program's own file, which the kernel makes during exec without a call.
    fn map_program(&mut self, pid: u32, process: u32) -> Described<()> {
        // The file is opened without permission to read, because only its kind and size are needed.
        let Ok(program) = open_path(&format!("/proc/{pid}/exe")) else { return Ok(()) };
        let Some(CallFile { number: Some(file), size_bytes: bytes }) = self.find(program.as_fd())? else {
            return Ok(());
        };
        self.note_name(file, program.as_fd());
        let map =
            FileMapping { process, file, is_executable: true, is_written: false, is_program: true, offset: 0, bytes };
        self.add_map(&map).map_err(CallObstacle::Write)
    }

    /// Writes the references of a call that has continued.
    ///
    /// *Errors*: the trace cannot be written.
    pub(super) fn commit(&mut self, prepared: PreparedCall) -> io::Result<()> {
        if let Some((process, unseen)) = prepared.unseen {
            self.add_unseen(process, unseen)?;
        }
        if let Some(map) = prepared.map {
            self.add_map(&map)?;
        }
        for transfer in prepared.transfers.into_iter().flatten() {
            self.add(transfer)?;
        }
        Ok(())
    }

    fn add(&mut self, transfer: FileTransfer) -> io::Result<()> {
        let FileTransfer { process, file, offset, bytes, is_write } = transfer;
        let (mut first, mut count) = files::blocks(offset, bytes, self.options.block_bytes);
        let stream = match file {
            Some(file) => match self.streams.get(&(process, file)) {
                Some(&known) => Some(known),
                None => {
                    let stream = self.writer.stream(process, file)?;
                    if let Some(stream) = stream {
                        self.last.push(None);
                        self.streams.insert((process, file), stream);
                    }
                    stream
                }
            },
            None => None,
        };
        let (Some(file), Some(stream)) = (file, stream) else {
            self.writer.lost(count);
            return self.add_unseen(Some(process), UnseenCall::BeyondBounds);
        };
        let last = &mut self.last[stream as usize];
        if self.options.is_collapsed && *last == Some((first, is_write)) {
            (first, count) = (first + 1, count - 1);
        }
        if count == 0 {
            return Ok(());
        }
        if !self.writer.references(stream, first, count, is_write)? {
            return self.add_unseen(Some(process), UnseenCall::BeyondBounds);
        }
        *last = Some((first + count - 1, is_write));
        self.distinct.add(file, first, count);
        Ok(())
    }

    fn add_map(&mut self, map: &FileMapping) -> io::Result<()> {
        match self.maps.get_mut(&map.file) {
            Some(known) => {
                known.maps += 1;
                known.pages += map.bytes.div_ceil(self.page_bytes);
                known.is_executable |= map.is_executable;
            }
            None => self.maps_unnamed += 1,
        }
        self.writer.map(map)
    }

    /// Remembers a mapped file and its name for the summary.
    fn note_name(&mut self, file: u32, fd: BorrowedFd<'_>) {
        if !self.maps.contains_key(&file) && self.maps.len() < MAPPED_FILES_MAX {
            let name = self.files.name(fd);
            self.maps.insert(file, MapSummary { name, maps: 0, pages: 0, is_executable: false });
        }
    }

    fn add_unseen(&mut self, process: Option<u32>, unseen: UnseenCall) -> io::Result<()> {
        let process = match process.or(self.unknown) {
            Some(process) => Some(process),
            None => {
                let unknown = TraceProcess { pid: 0, parent: None, name: "(unknown)".to_owned() };
                self.unknown = self.writer.process(&unknown)?;
                self.unknown
            }
        };
        if let Some(index) = UnseenCall::ALL.iter().position(|&known| known == unseen) {
            self.unseen[index] += 1;
        }
        if let Some(process) = process {
            *self.unseen_since.entry((process, unseen)).or_default() += 1;
        }
        Ok(())
    }

    /// Writes the records if [`FLUSH_EVERY`] has passed since the last write. The caller calls this regularly.
    pub(super) fn tick(&mut self, now: Instant) -> io::Result<()> {
        if now.duration_since(self.flushed) < FLUSH_EVERY {
            return Ok(());
        }
        self.flushed = now;
        self.write_unseen()?;
        self.writer.flush()
    }

    fn write_unseen(&mut self) -> io::Result<()> {
        let mut since: Vec<_> = self.unseen_since.drain().collect();
        since.sort_unstable();
        for ((process, unseen), calls) in since {
            self.writer.unseen(process, unseen, calls)?;
        }
        Ok(())
    }

    /// The number of references, and the number of distinct blocks so far.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.writer.totals().references, self.distinct.count().0)
    }

    /// Writes the end item. *Returns* the output, and the summary without the size of the file.
    pub(super) fn finish(
        mut self,
        outcome: RecordingOutcome,
        is_stopped: bool,
        seconds: f64,
    ) -> io::Result<(W, RecordingSummary)> {
        self.write_unseen()?;
        let mut maps: Vec<MapSummary> = self.maps.into_values().filter(|map| map.maps > 0).collect();
        maps.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.name.cmp(&b.name)));
        let (blocks, is_lower_bound) = self.distinct.count();
        let summary = RecordingSummary {
            outcome,
            is_stopped,
            totals: *self.writer.totals(),
            blocks,
            is_lower_bound,
            unseen: UnseenCall::ALL.into_iter().zip(self.unseen).filter(|&(_, calls)| calls > 0).collect(),
            maps,
            maps_unnamed: self.maps_unnamed,
            page_bytes: self.page_bytes,
            seconds,
            file_bytes: 0,
        };
        let end = if is_stopped { RecordingOutcome::Stopped } else { outcome };
        Ok((self.writer.finish(end)?, summary))
    }
}

/// The sum of the lengths in the vector of a call.
fn vector_bytes(thread: u32, address: u64, count: u64) -> Described<u64> {
    if count == 0 || count > VECTOR_MAX {
        return Err(CallObstacle::Nothing);
    }
    const ENTRY_BYTES: usize = 16;
    let mut entries = vec![0; count as usize * ENTRY_BYTES];
    if sys::read_memory(thread, address, &mut entries).map_err(looking)? != entries.len() {
        return Err(CallObstacle::Nothing);
    }
    let mut sum = 0_u64;
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let mut length = [0; 8];
        length.copy_from_slice(&entry[8..]);
        sum = sum.saturating_add(u64::from_ne_bytes(length));
    }
    Ok(sum)
}

/// Opens a path without access to its contents.
fn open_path(path: &str) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)
}
