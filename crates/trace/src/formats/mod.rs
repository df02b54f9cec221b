//! Trace formats; each is read as a sequence of references to blocks.
//!
//! Owns: [`TraceReference`], the [`ReferenceReader`] that each format implements, the list of formats, and guessing the format of a
//! file. Leaves to others: the formats (one file each), and reading bytes (`input`).
//!
//! Bounds: a line, a record, and the blocks of one request each have a limit, so reading takes a fixed amount of memory
//! for any file. Callers bound the memory that they use themselves.

pub mod arc;
pub mod csv;
pub mod input;
pub mod nectary;
pub mod oracle_general;
pub mod text;
pub mod vscsi;
mod zstd;

use std::path::Path;

use nectary_cache::StreamId;

use crate::error::{Error, Result};
use input::DecompressedInput;

/// The maximum number of blocks to which one record of a trace may refer.
pub const BLOCKS_PER_RECORD_MAX: u64 = 1 << 20;

/// The maximum number of streams of one trace.
pub const STREAMS_MAX: usize = 1 << 16;

/// One reference to one block, or to one object if a trace has objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceReference {
    /// The origin of the reference: the process and file, the volume, or the trace that it comes from.
    pub stream: StreamId,
    /// The block, unique over all streams of a run.
    pub block: u64,
    /// The size of the block. *Units*: bytes; 0 if the trace does not give it.
    pub bytes: u32,
    /// What is done with the block.
    pub operation: TraceOperation,
    /// The time of the reference; only differences have a meaning. *Units*: seconds; 0 if the trace has no times.
    pub time_s: u64,
    /// The time after which the object is no longer valid. *Units*: seconds; 0 if it stays valid.
    pub ttl_s: u32,
}

/// What a reference does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TraceOperation {
    /// Reads the block.
    #[default]
    Read,
    /// Writes the block.
    Write,
    /// Deletes the block: no cache keeps it. A delete counts neither as a hit nor as a miss.
    Delete,
}

/// A trace being read.
pub trait ReferenceReader: Send {
    /// Appends the references of the next record, which may have none. *Returns* `false` at the end of the trace.
    ///
    /// *Errors*: the file cannot be read, or does not match its format; the error names the file and the place, what
    /// was expected and what was found. After an error, nothing was appended.
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool>;

    /// A description of a stream that was read so far; `None` if the format describes no streams.
    fn stream_name(&self, _stream: StreamId) -> Option<String> {
        None
    }

    /// The size of the trace's blocks, in bytes; `None` if the format does not have it.
    fn block_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether the references are to objects, each with its own size, and not to blocks of one size.
    fn has_objects(&self) -> bool {
        false
    }

    /// Whether the references have times.
    fn has_times(&self) -> bool {
        false
    }

    /// Whether the upper bits of a block number name a volume or a file.
    fn has_areas(&self) -> bool {
        false
    }

    /// A sentence for the user about a problem of a trace that was read to its end without an error.
    fn warning(&self) -> Option<String> {
        None
    }
}

/// A trace format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Plain text, with one block number per line.
    Text,
    /// The requests of the ARC authors' traces.
    Arc,
    /// Lines of values; an option or the header says what the columns mean.
    Csv,
    /// Twitter's cache traces, which are CSV.
    Twitter,
    /// The Storage Performance Council's traces, which are CSV.
    Spc,
    /// VSCSI records, version 1 or 2.
    Vscsi,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
    /// Nectary's own format, which `nectary trace record` writes.
    Nectary,
}

/// An entry of the list of formats.
pub struct FormatEntry {
    /// The format.
    pub format: TraceFormat,
    /// The names of the format for `--format`, the usual one first.
    pub names: &'static [&'static str],
    /// The endings of the names of the format's files, before that of a compression.
    pub endings: &'static [&'static str],
    /// A description in one line.
    pub about: &'static str,
}

/// Every format, in the order in which help texts list them.
pub const FORMATS: &[FormatEntry] = &[
    FormatEntry {
        format: TraceFormat::Text,
        names: &["text", "lirs"],
        endings: &[".trace", ".trc", ".txt"],
        about: "one block number a line; blank lines and lines that begin with * are skipped",
    },
    FormatEntry {
        format: TraceFormat::Arc,
        names: &["arc"],
        endings: &[".lis"],
        about: "first block, count, ignored, number of the request; a line each",
    },
    FormatEntry {
        format: TraceFormat::Csv,
        names: &["csv", "msr", "cachelib", "wikimedia"],
        endings: &[".csv", ".tsv"],
        about: "values by column: those of --columns, of the header, or of MSR Cambridge",
    },
    FormatEntry {
        format: TraceFormat::Twitter,
        names: &["twitter"],
        endings: &[],
        about: "Twitter's cache traces: time, key, sizes of key and value, client, operation, TTL",
    },
    FormatEntry {
        format: TraceFormat::Spc,
        names: &["spc"],
        endings: &[".spc"],
        about: "the Storage Performance Council's traces: unit, sector, bytes, operation, time",
    },
    FormatEntry {
        format: TraceFormat::Vscsi,
        names: &["vscsi"],
        endings: &[".vscsi", ".vscsitrace", ".vscsi1", ".vscsi2"],
        about: "binary records of 32 (version 1) or 40 bytes (version 2)",
    },
    FormatEntry {
        format: TraceFormat::OracleGeneral,
        names: &["oracleGeneral"],
        endings: &[".oraclegeneral", ".oraclegeneral.bin"],
        about: "binary records of 24 bytes, as libCacheSim writes them",
    },
    FormatEntry {
        format: TraceFormat::Nectary,
        names: &["nectary"],
        endings: &[".nectrace"],
        about: "processes, files and blocks, as `nectary trace record` writes them",
    },
];

impl TraceFormat {
    /// The format called `name`, in upper or lower case.
    pub fn by_name(name: &str) -> Option<TraceFormat> {
        let entry = FORMATS.iter().find(|entry| entry.names.iter().any(|known| known.eq_ignore_ascii_case(name)))?;
        Some(entry.format)
    }

    /// The usual name of the format.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|entry| entry.format == self).map_or("", |entry| entry.names[0])
    }

    /// The format whose ending `path` has, before that of a compression.
    pub fn by_ending(path: &Path) -> Option<TraceFormat> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let name = COMPRESSED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
        let entry = FORMATS.iter().find(|entry| entry.endings.iter().any(|end| name.ends_with(end)))?;
        Some(entry.format)
    }

    /// Guesses the format of a file: first by the ending if it is that of a binary format, then by the first bytes,
    /// then by any ending.
    fn guess(path: &Path, head: &[u8], has_columns: bool) -> Option<TraceFormat> {
        let by_name = TraceFormat::by_ending(path);
        if matches!(by_name, Some(TraceFormat::Vscsi | TraceFormat::OracleGeneral | TraceFormat::Nectary)) {
            return by_name;
        }
        if nectary::NectaryReader::<DecompressedInput>::is_likely(head) {
            Some(TraceFormat::Nectary)
        } else if has_columns {
            Some(TraceFormat::Csv)
        } else if by_name == Some(TraceFormat::Spc) {
            by_name
        } else if text::TextReader::is_likely(head) {
            Some(TraceFormat::Text)
        } else if arc::ArcReader::is_likely(head) {
            Some(TraceFormat::Arc)
        } else if csv::CsvReader::is_likely(head) {
            Some(TraceFormat::Csv)
        } else if vscsi::VscsiReader::is_likely(head) {
            Some(TraceFormat::Vscsi)
        } else {
            by_name
        }
    }
}

/// The endings of compressed files.
pub const COMPRESSED: [&str; 4] = [".gz", ".xz", ".zst", ".zstd"];

/// The options for reading a trace.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// The format of the trace; guessed if `None`.
    pub format: Option<TraceFormat>,
    /// The size of a block, for formats whose requests have offsets in bytes; [`BLOCK_BYTES`] if `None`. *Units*: bytes.
    pub block_bytes: Option<u64>,
    /// The meaning of the columns of a CSV file. If `None`, they are those of the format, or else of the header.
    pub columns: Option<csv::CsvColumns>,
}

/// The size of a block if none is given. *Units*: bytes.
pub const BLOCK_BYTES: u64 = 8192;

impl ReadOptions {
    /// The size of a block. *Units*: bytes.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.unwrap_or(BLOCK_BYTES)
    }

    /// The same options; if they have no columns, then those of a preset.
    fn with_columns(&self, preset: fn() -> csv::CsvColumns) -> ReadOptions {
        ReadOptions { columns: Some(self.columns.clone().unwrap_or_else(preset)), ..self.clone() }
    }
}

/// Opens a trace; `-` is standard input.
pub fn open(path: &Path, options: &ReadOptions) -> Result<Box<dyn ReferenceReader>> {
    let input = DecompressedInput::open(path)?;
    from_input(input, options)
}

/// Reads a trace from an open input.
pub fn from_input(input: DecompressedInput, options: &ReadOptions) -> Result<Box<dyn ReferenceReader>> {
    if options.block_bytes == Some(0) {
        return Err(Error::Usage("a block size of 0: give at least 1 byte".to_owned()));
    }
    let guess = || TraceFormat::guess(input.path(), input.head(), options.columns.is_some());
    let guessed = options.format.or_else(guess);
    let Some(format) = guessed else {
        let names: Vec<&str> = FORMATS.iter().map(|entry| entry.names[0]).collect();
        let expected = format!("a trace of a known format (name it: --format {})", names.join("|"));
        let found = crate::error::quote(input.head());
        return Err(Error::malformed(input.path(), crate::error::TracePosition::Whole, expected, found));
    };
    Ok(match format {
        TraceFormat::Text => Box::new(text::TextReader::new(input)),
        TraceFormat::Arc => Box::new(arc::ArcReader::new(input)),
        TraceFormat::Csv => Box::new(csv::CsvReader::new(input, options)?),
        TraceFormat::Twitter => Box::new(csv::CsvReader::new(input, &options.with_columns(csv::CsvColumns::twitter))?),
        TraceFormat::Spc => Box::new(csv::CsvReader::new(input, &options.with_columns(csv::CsvColumns::spc))?),
        TraceFormat::Vscsi => Box::new(vscsi::VscsiReader::new(input, options)?),
        TraceFormat::OracleGeneral => Box::new(oracle_general::OracleGeneral::new(input)),
        TraceFormat::Nectary => {
            let path = input.path().clone();
            Box::new(nectary::NectaryReader::new(&path, input)?)
        }
    })
}

/// Reads a number that consists only of decimal digits.
pub(crate) fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The complete lines of a file's head, trimmed, without blank lines and comments. The last line may be cut, so it is
/// left out unless it is the only one.
pub(crate) fn lines_of_head(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_cut = head.len() >= input::HEAD_BYTES;
    let head = head.strip_prefix(input::BYTE_ORDER_MARK).unwrap_or(head);
    let whole = match head.iter().rposition(|&byte| byte == b'\n') {
        Some(end) if is_cut => &head[..end],
        _ => head,
    };
    whole.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty() && line[0] != b'*')
}

/// The first block that `length` bytes at `offset` touch, and the number of blocks, which is at least one.
pub(crate) fn blocks_of(offset: u64, length: u64, block_bytes: u64) -> Option<(u64, u64)> {
    let last = offset.checked_add(length.max(1) - 1)?;
    let first = offset / block_bytes;
    Some((first, last / block_bytes - first + 1))
}
