//! Nectary's own trace format, which `nectary trace record` writes. The byte map is in `docs/formats/trace.md`.
//!
//! Owns: the contents of such a file, the [`NectaryWriter`] and the reader, [`NectaryReader`]. Promises: the reader returns exactly
//! the written references; if a file was cut short, it returns those of the complete chunks and reports the cut; no
//! byte is used before its checksum and its bounds are checked; the memory of reader and writer is bounded. Leaves to
//! others: compression, and the source of references.

mod layout;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX, FILES_MAX, MAGIC, NAME_BYTES_MAX, PROCESSES_MAX,
    REFERENCES_PER_CALL_MAX, STREAMS_MAX,
};
pub use reader::NectaryReader;
pub use writer::NectaryWriter;

/// The properties of the whole trace, at the beginning of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHeader {
    /// The size of a block. *Units*: bytes; a power of two from [`BLOCK_BYTES_MIN`] to [`BLOCK_BYTES_MAX`].
    pub block_bytes: u32,
    /// Whether consecutive references of a stream to one block are recorded as one.
    pub is_collapsed: bool,
    /// Whether writes were left out.
    pub is_reads_only: bool,
}

/// A program that runs in a process. An exec starts another program in the same process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceProcess {
    /// The process id.
    pub pid: u32,
    /// The number of the program of the parent process, or of the program before an exec; `None` if the file does not
    /// have that program.
    pub parent: Option<u32>,
    /// The name of the program, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
}

/// The kind of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A block device.
    BlockDevice,
}

/// A file that was referenced or mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The kind of file.
    pub kind: FileKind,
    /// The device of the file, or the block device itself.
    pub device: u64,
    /// The inode of the file; 0 for a block device.
    pub inode: u64,
    /// The size of the file when it was first seen. *Units*: bytes.
    pub size_bytes: u64,
    /// The path of the file, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
}

/// Pages of a file that are mapped by a process, which can access them without a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileMapping {
    /// The process's number.
    pub process: u32,
    /// The file's number.
    pub file: u32,
    /// Whether the pages are mapped for execution.
    pub is_executable: bool,
    /// Whether the map is shared and writable, so that the process can also write without a system call.
    pub is_written: bool,
    /// Whether the map is that of the program itself, made by exec.
    pub is_program: bool,
    /// The offset of the map's first byte in the file. *Units*: bytes.
    pub offset: u64,
    /// The number of mapped bytes of the file. *Units*: bytes.
    pub bytes: u64,
}

/// The kinds of calls whose references are not in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnseenCall {
    /// A call through the 32-bit interface.
    Call32,
    /// The creation of an io_uring; the recorder cannot see its reads and writes.
    IoUring,
    /// Asynchronous I/O by `io_submit`.
    IoSubmit,
    /// A call whose descriptor or address the recorder was not permitted to read.
    NotPermitted,
    /// A call whose file, block or stream is beyond the format's bounds.
    BeyondBounds,
}

impl UnseenCall {
    /// All kinds; the position of a kind is its number in the file.
    pub const ALL: [UnseenCall; 5] = [
        UnseenCall::Call32,
        UnseenCall::IoUring,
        UnseenCall::IoSubmit,
        UnseenCall::NotPermitted,
        UnseenCall::BeyondBounds,
    ];

    /// A description of the kind for users.
    pub fn as_str(self) -> &'static str {
        match self {
            UnseenCall::Call32 => "32-bit calls",
            UnseenCall::IoUring => "io_uring rings",
            UnseenCall::IoSubmit => "io_submit calls",
            UnseenCall::NotPermitted => "calls that could not be looked at",
            UnseenCall::BeyondBounds => "calls beyond the format's bounds",
        }
    }
}

/// The end of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingOutcome {
    /// The command exited with this code.
    Exited(u8),
    /// This signal killed the command.
    Killed(u8),
    /// The recording was stopped while the command ran.
    Stopped,
}

/// The last item of a file: how the recording ended, and the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingEnd {
    /// The end of the recording.
    pub outcome: RecordingOutcome,
    /// The totals of the file.
    pub totals: RecordingTotals,
}

/// The numbers of items in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecordingTotals {
    /// The number of processes.
    pub processes: u64,
    /// The number of files.
    pub files: u64,
    /// The number of streams.
    pub streams: u64,
    /// The number of references, one for each block of each call.
    pub references: u64,
    /// The number of maps.
    pub maps: u64,
    /// The number of references that the recorder dropped because of a bound.
    pub lost_references: u64,
}
