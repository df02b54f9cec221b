//! The errors of reading and writing traces, with the place of each error.
//!
//! Owns: the one error type of the crate. Promises: quotations from a file are short and printable.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest quotation from a file; a longer one is cut. *Units*: bytes.
const QUOTED_BYTES_MAX: usize = 40;

/// A position in a trace; in a compressed trace, the position after decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracePosition {
    /// The file as a whole.
    Whole,
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Offset(u64),
}

impl fmt::Display for TracePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TracePosition::Whole => Ok(()),
            TracePosition::Line(line) => write!(f, "line {line}: "),
            TracePosition::Offset(offset) => write!(f, "offset {offset}: "),
        }
    }
}

/// A failure to read or write a trace; each kind has its own remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("{}: there is no such file or folder", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// The system failed to read or write the file.
    #[error("{}: cannot be read or written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not match its format.
    #[error("{}: {place}expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        place: TracePosition,
        /// The expected contents.
        expected: String,
        /// The contents that were found.
        found: String,
    },
    /// The file is well formed, but exceeds a bound of this crate.
    #[error("{}: {place}{what}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The place in the file.
        place: TracePosition,
        /// The bound, and how to stay within it.
        what: String,
    },
    /// The caller requested something impossible.
    #[error("{0}")]
    Usage(String),
}

/// The result type of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of the system to read or write `path`.
    pub fn io(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound { Error::Absent { path } } else { Error::Io { path, source } }
    }

    /// A violation of the format.
    pub fn malformed(
        path: &Arc<Path>,
        place: TracePosition,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Error {
        Error::Malformed { path: path.to_path_buf(), place, expected: expected.into(), found: found.into() }
    }
}

/// Formats bytes from a file for a message: quoted, printable, and cut if they are long.
pub fn quote(bytes: &[u8]) -> String {
    if bytes.len() <= QUOTED_BYTES_MAX {
        format!("\"{}\"", bytes.escape_ascii())
    } else {
        format!("\"{}\"… ({} bytes)", bytes[..QUOTED_BYTES_MAX].escape_ascii(), bytes.len())
    }
}
