//! Recording the block references of a real program and its children, from outside.
//!
//! Owns: [`record`]. Each call of the command that reads, writes or maps a file waits until the recorder has seen what
//! it is about to do, and then goes on unchanged (seccomp user notification); why so, what it costs and what it does
//! not see is in `docs/decisions/0014-trace-record.md`. Leaves to others: the file (`crate::formats::nectary`), what
//! users see.
//!
//! Promises: the command runs as it would without the recorder, but for time and for privileges: if the recorder is
//! not root, setuid programs run without theirs. It goes on, unrecorded, if the trace cannot be written any more or
//! the recorder is killed. Neither its death nor anything it does ends the recorder. Tables are bounded.
//!
//! | file | holds |
//! |---|---|
//! | `calls` | which calls refer to blocks, and how |
//! | `filter` | the seccomp filter of those calls |
//! | `watch` | beginning the command, taking and answering calls |
//! | `session` | from calls to references |
//! | `processes`, `files` | who, and what |
//! | `guard` | what lets the command go on without the recorder |
//! | `signals`, `sys` | the system calls |
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

use crate::formats::nectary::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, Outcome, Totals, Unseen};

/// The default size of a block: that of the traces in the literature. *Units*: bytes.
pub const BLOCK_BYTES: u32 = 8192;

/// The recorded command, and the file.
#[derive(Debug, Clone)]
pub struct Options {
    /// The file to write; gzip if its name ends in `.gz`.
    pub output: PathBuf,
    /// Whether an existing file is overwritten.
    pub is_overwriting: bool,
    /// *Units*: bytes; a power of two from 512 to 2^24.
    pub block_bytes: u32,
    /// Leaves out what is only written; the command's writes then cost nothing.
    pub is_reads_only: bool,
    /// Leaves out a reference to the block to which its stream referred just before, in the same way.
    pub is_collapsed: bool,
    /// Paths below it are shown relative to it.
    pub folder: PathBuf,
    /// Whether the caller is a separate program around the command: it has no other children and no other threads
    /// yet. Signals are then passed on, and orphans of the command adopted, so that they can be looked into everywhere.
    pub is_whole_program: bool,
}

impl Options {
    /// Everything into `output`, in blocks of [`BLOCK_BYTES`], by a caller that has other threads and children.
    pub fn new(output: impl Into<PathBuf>) -> Options {
        Options {
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

/// How far a recording is.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// References so far.
    pub references: u64,
    /// Distinct blocks so far.
    pub blocks: u64,
    /// Since it began.
    pub elapsed: Duration,
    /// The command has ended, and some of its children have not.
    pub is_command_over: bool,
}

/// A file that was mapped; accesses to its pages are unseen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapSummary {
    /// Its path.
    pub name: String,
    /// How often it was mapped.
    pub maps: u64,
    /// How many pages all maps have together.
    pub pages: u64,
    /// Whether any was for execution.
    pub is_executable: bool,
}

/// What a recording contains, and what it does not.
#[derive(Debug, Clone)]
pub struct Summary {
    /// How the command ended.
    pub outcome: Outcome,
    /// Whether the recording was stopped before the last of the command's children had ended.
    pub is_stopped: bool,
    /// The contents of the file.
    pub totals: Totals,
    /// Distinct blocks.
    pub blocks: u64,
    /// Whether there were more blocks than can be distinguished.
    pub is_lower_bound: bool,
    /// Calls whose references are not in the file.
    pub unseen: Vec<(Unseen, u64)>,
    /// Mapped files, most pages first.
    pub maps: Vec<MapSummary>,
    /// Maps of files that are not listed because of a bound.
    pub maps_unnamed: u64,
    /// The size of a page. *Units*: bytes.
    pub page_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// The size of the file. *Units*: bytes.
    pub file_bytes: u64,
}

impl Summary {
    /// The exit code that represents the command's end: its own, or 128 and the signal that killed it.
    pub fn exit_code(&self) -> u8 {
        match self.outcome {
            Outcome::Exited(code) => code,
            Outcome::Killed(signal) => signal.saturating_add(128),
            Outcome::Stopped => 0,
        }
    }
}

/// Runs `command` and records what it and its children refer to, until the last of them has ended.
///
/// `progress` is called a few times a second. If the caller is a whole program, SIGINT, SIGTERM, SIGHUP and SIGQUIT
/// after the command's own end stop the recording, and what still runs goes on unrecorded.
///
/// *Errors*: nothing was run, save for [`Error::Write`], which also tells that the trace broke off while the command
/// ran.
///
/// *Cost*: two switches between threads and about seven short calls for each call recorded; nothing for others.
///
/// ```
/// use nectary_trace::record::{Options, record};
///
/// # let folder = std::env::temp_dir().join(format!("nectary-record-example-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// let mut command = std::process::Command::new("cat");
/// command.arg("/etc/passwd").stdout(std::process::Stdio::null());
/// match record(command, &Options::new(folder.join("cat.trace.gz")), &mut |_| {}) {
///     Ok(summary) => assert_eq!(summary.exit_code(), 0),
///     Err(error) => println!("{error}; what to do: {:?}", error.remedy()),
/// }
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn record(command: Command, options: &Options, progress: &mut dyn FnMut(&Progress)) -> Result<Summary> {
    let sizes = BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX;
    if !options.block_bytes.is_power_of_two() || !sizes.contains(&options.block_bytes) {
        let message = format!("a block size of {}: give a power of two from 512 to 16M", options.block_bytes);
        return Err(Error::Usage(message));
    }
    watch::run(command, options, progress)
}
