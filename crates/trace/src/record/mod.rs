//! Records the block references of a real program and its children, without changing the program.
//!
//! Owns: [`record`]. Each system call of the command that reads, writes or maps a file waits until the recorder has
//! seen its arguments, and then continues unchanged (seccomp user notification). `docs/decisions/0014-trace-record.md`
//! explains this choice, its cost, and which references the recorder cannot see. Leaves to others: the file
//! (`crate::formats::nectary`), and the output for users.
//!
//! Promises: the command runs as it would without the recorder, except that it is slower and that setuid programs run
//! without their privileges if the recorder is not root. If the trace can no longer be written or the recorder is
//! killed, the command continues without being recorded. No action of the command ends the recorder. After the end of
//! the command, the recorder continues until the command's children have ended. All tables are bounded.
//!
//! | file | contents |
//! |---|---|
//! | `calls` | the calls that refer to blocks, and the meaning of their arguments |
//! | `filter` | the seccomp filter of those calls |
//! | `watch` | starting the command, receiving and answering calls |
//! | `session` | converting calls to references |
//! | `processes`, `files` | the process and the file of a reference |
//! | `guard` | the process that lets the command continue without the recorder |
//! | `signals`, `sys` | signals, and other system calls |
//! | `output` | plain files and gzip |

mod calls;
mod error;
mod files;
mod filter;
mod guard;
mod output;
mod processes;
mod session;
mod signals;
mod sys;
mod watch;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

pub use error::{Error, Result};

use crate::formats::nectary::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, RecordingOutcome, RecordingTotals, UnseenCall};

/// The default size of a block, which is that of the traces in the literature. *Units*: bytes.
pub const BLOCK_BYTES: u32 = 8192;

/// The options of a recording.
#[derive(Debug, Clone)]
pub struct RecordingOptions {
    /// The file to write; gzip if its name ends in `.gz`.
    pub output: PathBuf,
    /// Whether an existing file is overwritten.
    pub is_overwriting: bool,
    /// The size of a block. *Units*: bytes; a power of two from 512 to 2^24.
    pub block_bytes: u32,
    /// Whether calls that only write are left out; such calls then have no cost.
    pub is_reads_only: bool,
    /// Whether a reference is left out if it repeats the previous reference of its stream: the same block, and again a
    /// read or again a write.
    pub is_collapsed: bool,
    /// Paths below this folder are shown relative to it.
    pub folder: PathBuf,
    /// Whether the caller's process exists only for the recording, with no other children and no other threads yet. If
    /// so, the recorder passes signals on to the command and adopts the command's orphans, so that it may inspect them
    /// on every system.
    pub is_whole_program: bool,
}

impl RecordingOptions {
    /// Options that record everything into `output`, in blocks of [`BLOCK_BYTES`], for a caller that may have other
    /// threads and children.
    pub fn new(output: impl Into<PathBuf>) -> RecordingOptions {
        RecordingOptions {
            output: output.into(),
            is_overwriting: false,
            block_bytes: BLOCK_BYTES,
            is_reads_only: false,
            is_collapsed: false,
            folder: std::env::current_dir().unwrap_or_default(),
            is_whole_program: false,
        }
    }
}

/// The progress of a recording.
#[derive(Debug, Clone, Copy)]
pub struct RecordingProgress {
    /// The number of references so far.
    pub references: u64,
    /// The number of distinct blocks so far.
    pub blocks: u64,
    /// The time since the start.
    pub elapsed: Duration,
    /// Whether the command has ended but some of its children still run.
    pub is_command_over: bool,
}

/// A mapped file. The recorder cannot see accesses to the mapped pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSummary {
    /// The path of the file.
    pub name: String,
    /// The number of maps of the file.
    pub maps: u64,
    /// The number of pages of all maps together.
    pub pages: u64,
    /// Whether any map was executable.
    pub is_executable: bool,
}

/// The contents of a recording, and what is missing from it.
#[derive(Debug, Clone)]
pub struct RecordingSummary {
    /// The end of the command.
    pub outcome: RecordingOutcome,
    /// Whether the recording was stopped before the last of the command's children had ended.
    pub is_stopped: bool,
    /// The totals of the file.
    pub totals: RecordingTotals,
    /// The number of distinct blocks.
    pub blocks: u64,
    /// Whether [`RecordingSummary::blocks`] is only a lower bound, because there were more blocks than the recorder can
    /// distinguish.
    pub is_lower_bound: bool,
    /// The calls whose references are not in the file, by kind.
    pub unseen: Vec<(UnseenCall, u64)>,
    /// The mapped files, the one with most pages first.
    pub maps: Vec<MapSummary>,
    /// The number of maps of files that are not listed because of a bound.
    pub maps_unnamed: u64,
    /// The size of a page. *Units*: bytes.
    pub page_bytes: u64,
    /// The duration of the recording. *Units*: seconds.
    pub seconds: f64,
    /// The size of the file. *Units*: bytes.
    pub file_bytes: u64,
}

impl RecordingSummary {
    /// The exit code for the end of the command: its own code, or 128 plus the signal that killed it.
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            RecordingOutcome::Exited(code) => code,
            RecordingOutcome::Killed(signal) => signal.saturating_add(128),
            RecordingOutcome::Stopped => 0,
        }
    }
}

/// Runs `command` and records the references of it and its children, until the last of them has ended.
///
/// `progress` is called a few times a second. With `is_whole_program`, SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the
/// recording once the command itself has ended; children that still run continue without being recorded.
///
/// *Errors*: after [`Error::Write`], the command may have run with a trace that broke off; after any other error, the
/// command was not run.
///
/// *Cost*: two context switches and about seven short system calls per recorded call; nothing for other calls.
///
/// ```
/// use nectary_trace::record::{RecordingOptions, record};
///
/// # let folder = std::env::temp_dir().join(format!("nectary-record-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let mut command = std::process::Command::new("cat");
/// command.arg("/etc/passwd").stdout(std::process::Stdio::null());
/// match record(command, &RecordingOptions::new(folder.join("cat.trace.gz")), &mut |_| {}) {
///     Ok(summary) => assert_eq!(summary.exit_code(), 0),
///     Err(error) => println!("{error}; what to do: {:?}", error.remedy()),
/// }
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn record(
    command: Command,
    options: &RecordingOptions,
    progress: &mut dyn FnMut(&RecordingProgress),
) -> Result<RecordingSummary> {
    let sizes = BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX;
    if !options.block_bytes.is_power_of_two() || !sizes.contains(&options.block_bytes) {
        let message = format!("a block size of {}: give a power of two from 512 to 16M", options.block_bytes);
        return Err(Error::Usage(message));
    }
    watch::run(command, options, progress)
}
