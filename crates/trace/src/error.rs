//! The kinds of errors in a trace, with their place.
//!
//! Owns: the one error type of the crate. Promises: quotations from a file are short and printable.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Quotations from a file are cut at this many bytes.
const QUOTED_BYTES_MAX: usize = 40;

/// A position in a trace; in a compressed one, after decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    Whole,
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0.
    Offset(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Whole => Ok(()),
            Place::Line(line) => write!(f, "line {line}: "),
            Place::Offset(offset) => write!(f, "offset {offset}: "),
        }
    }
}

/// A failure of a trace; each kind has its own remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file.
    #[error("{}: there is no such file", path.display())]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// The system failed to read or write it.
    #[error("{}: cannot be read or written", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It does not match its format.
    #[error("{}: {place}expected {expected}, found {found}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// It is well formed, but exceeds a bound of this crate.
    #[error("{}: {place}{what}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// Which bound, and how to stay within it.
        what: String,
    },
    /// The caller requested the impossible.
    #[error("{0}")]
    Usage(String),
}

/// The result type of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of the system on `path`.
    pub fn io(path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound { Error::Absent { path } } else { Error::Io { path, source } }
    }

    /// A violation of the format.
    pub fn malformed(path: &Arc<Path>, place: Place, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::Malformed { path: path.to_path_buf(), place, expected: expected.into(), found: found.into() }
    }
}

/// Bytes from a file in the form for messages: quoted, printable, cut if they are long.
pub fn quote(bytes: &[u8]) -> String {
    if bytes.len() <= QUOTED_BYTES_MAX {
        format!("\"{}\"", bytes.escape_ascii())
    } else {
        format!("\"{}\"… ({} bytes)", bytes[..QUOTED_BYTES_MAX].escape_ascii(), bytes.len())
    }
}
