//! Nectary's own trace format, which `nectary trace record` writes. The byte map is in `docs/formats/trace.md`.
//!
//! Owns: the contents of such a file, the [`Writer`] and the reader, [`Nectary`]. Promises: the reader returns exactly
//! what was written; of a file that was cut short it returns the complete part and reports the cut; nothing is used
//! before its checksum and its bounds are checked; the memory of reader and writer is bounded. Leaves to others:
//! compression, and the source of references.

mod layout;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCKS_MAX, FILES_MAX, MAGIC, NAME_BYTES_MAX, PROCESSES_MAX,
    REFERENCES_PER_CALL_MAX, STREAMS_MAX,
};
pub use reader::Nectary;
pub use writer::Writer;

/// A file's description of itself, at its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// *Units*: bytes; a power of two from [`BLOCK_BYTES_MIN`] to [`BLOCK_BYTES_MAX`].
    pub block_bytes: u32,
    /// Whether consecutive references of a stream to one block are recorded as one.
    pub is_collapsed: bool,
    /// Whether writes were left out.
    pub is_reads_only: bool,
}

/// A program in a process; an exec starts another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its process id.
    pub pid: u32,
    /// The number of the parent process's program, or of the program before an exec, if it is in the file.
    pub parent: Option<u32>,
    /// Its name, at most [`NAME_BYTES_MAX`] bytes.
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

/// A file that was referred to or mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The kind of file.
    pub kind: FileKind,
    /// The device of the file, or the block device itself.
    pub device: u64,
    /// Its inode; 0 for a device.
    pub inode: u64,
    /// Its size when it was first seen. *Units*: bytes.
    pub size_bytes: u64,
    /// Its path, at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
}

/// Pages of a file that a process may refer to without a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Map {
    /// The process's number.
    pub process: u32,
    /// The file's number.
    pub file: u32,
    /// Whether it is mapped for execution.
    pub is_executable: bool,
    /// Whether it is shared and writable, so writes may also be unseen.
    pub is_written: bool,
    /// Whether it is the program itself, mapped by exec.
    pub is_program: bool,
    /// The offset of its first byte in the file. *Units*: bytes.
    pub offset: u64,
    /// How many bytes of the file are mapped. *Units*: bytes.
    pub bytes: u64,
}

/// Calls whose references are not in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unseen {
    /// A call through the 32-bit interface.
    Call32,
    /// An io_uring, whose reads and writes the recorder cannot see.
    IoUring,
    /// Asynchronous I/O by `io_submit`.
    IoSubmit,
    /// A call whose descriptor or address the recorder was not permitted to read.
    NotPermitted,
    /// A file, block or stream beyond the format's bounds.
    BeyondBounds,
}

impl Unseen {
    /// All kinds; the position of a kind is its number in the file.
    pub const ALL: [Unseen; 5] =
        [Unseen::Call32, Unseen::IoUring, Unseen::IoSubmit, Unseen::NotPermitted, Unseen::BeyondBounds];

    /// A description for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Unseen::Call32 => "32-bit calls",
            Unseen::IoUring => "io_uring rings",
            Unseen::IoSubmit => "io_submit calls",
            Unseen::NotPermitted => "calls that could not be looked at",
            Unseen::BeyondBounds => "calls beyond the format's bounds",
        }
    }
}

/// How a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The command exited with this code.
    Exited(u8),
    /// This signal killed the command.
    Killed(u8),
    /// The recording was stopped while the command ran.
    Stopped,
}

/// The last item of a file: how the recording ended, and the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// How the recording ended.
    pub outcome: Outcome,
    /// How much the file contains.
    pub totals: Totals,
}

/// How many of each are in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Processes.
    pub processes: u64,
    /// Files.
    pub files: u64,
    /// Streams.
    pub streams: u64,
    /// References, one for each block of each call.
    pub references: u64,
    /// Maps.
    pub maps: u64,
    /// References that the recorder dropped because of a bound.
    pub lost_references: u64,
}
