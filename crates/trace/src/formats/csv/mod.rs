//! Reads lines of values between separators; some of the columns give the accessed blocks or objects.
//!
//! Owns: the expansion of a request (offset and size in bytes) into blocks, the numbers of keys, and the first line,
//! which is a header if it has known names. Equal offsets on two volumes are two different blocks: a block number has
//! the volume's number above its lower 48 bits. Leaves to others: the meaning of columns (`columns`), and splitting a
//! line (`values`).
//!
//! A key of decimal digits below 2^64 without leading zeros is its number. Any other key has the number that XXH3 gives
//! for its bytes; the chance that two of 100 million keys get the same number is 1 in 3,700. So no key is kept in
//! memory.
//!
//! Bounds: at most [`STREAMS_MAX`] streams and as many volumes, each with a name of at most [`NAME_BYTES_MAX`].

mod columns;
mod values;

use hashbrown::HashMap;
use nectary_cache::StreamId;
use xxhash_rust::xxh3::xxh3_64;

use super::input::DecompressedInput;
use super::{
    BLOCKS_PER_RECORD_MAX, ReadOptions, ReferenceReader, STREAMS_MAX, TraceOperation, TraceReference, blocks_of, digits,
};
use crate::error::{Error, Result, TracePosition, quote};
pub use columns::{CsvColumns, TargetColumn};
use values::LineValues;
pub use values::ValueSeparator;

/// The longest name of a volume or stream. *Units*: bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The lowest bit of the volume's number in a block number.
const VOLUME_SHIFT: u32 = 48;

const SECTOR_BYTES: u64 = 512;

/// A reader of CSV files.
pub struct CsvReader {
    input: DecompressedInput,
    columns: CsvColumns,
    block_bytes: u64,
    separator: ValueSeparator,
    /// The place in a line, counted from 0, of the column with each number; a column above the last is at its own place.
    places: Vec<usize>,
    values: LineValues,
    line: Vec<u8>,
    /// The bytes of a key or name of several columns.
    joined: Vec<u8>,
    streams: NameNumbers,
    volumes: NameNumbers,
    is_started: bool,
}

/// Gives each name a number, in the order in which the names first appear.
#[derive(Default)]
struct NameNumbers {
    numbers: HashMap<Box<[u8]>, u32>,
}

impl CsvReader {
    /// Reads `input` from its current position. If the options have no columns, those of the header are read, or else
    /// those of the MSR Cambridge traces.
    ///
    /// *Errors*: requests start at block numbers and have sizes, but the options give no size of blocks.
    pub fn new(input: DecompressedInput, options: &ReadOptions) -> Result<CsvReader> {
        let found = || CsvColumns::of_header(input.head()).unwrap_or_else(CsvColumns::msr);
        let columns = options.columns.clone().unwrap_or_else(found);
        if columns.target == TargetColumn::Block && !columns.size.is_empty() && options.block_bytes.is_none() {
            let what = "block= and size= need the size of the trace's blocks: give --block SIZE; sector=N has sectors \
                        of 512 bytes";
            return Err(Error::Usage(format!("{}: {what}", input.path().display())));
        }
        Ok(CsvReader {
            input,
            separator: columns.separator.unwrap_or(ValueSeparator::Byte(b',')),
            columns,
            block_bytes: options.block_bytes(),
            places: Vec::new(),
            values: LineValues::default(),
            line: Vec::new(),
            joined: Vec::new(),
            streams: NameNumbers::default(),
            volumes: NameNumbers::default(),
            is_started: false,
        })
    }

    /// Whether the first lines of a file look like a header with known names, or like the MSR Cambridge traces.
    pub fn is_likely(head: &[u8]) -> bool {
        let mut lines = super::lines_of_head(head);
        let Some(first) = lines.next() else { return false };
        let is_request = |line: &[u8]| {
            let values: Vec<&[u8]> = line.split(|&byte| byte == b',').collect();
            values.len() >= 6 && digits(values[4]).is_some() && digits(values[5]).is_some()
        };
        is_request(first) || CsvColumns::of_header(head).is_some() || lines.next().is_some_and(is_request)
    }

    /// Finds the separator and the places of the columns in the first line. *Returns* whether it is a header.
    fn start(&mut self, line: &[u8]) -> std::result::Result<bool, String> {
        let names = std::mem::take(&mut self.columns.names);
        let tried = match self.columns.separator {
            Some(separator) => vec![separator],
            None => ValueSeparator::TRIED.to_vec(),
        };
        let last = self.columns.last();
        let mut most = (0, tried[0]);
        for separator in tried.iter().copied() {
            self.separator = separator;
            self.values.split(line, separator, columns::COLUMN_MAX)?;
            if names.is_empty() {
                if self.values.len() >= last {
                    return Ok(self.columns.is_header(|column| self.values.get(line, column - 1)));
                }
                if self.values.len() > most.0 {
                    most = (self.values.len(), separator);
                }
                continue;
            }
            let place = |name: &String| {
                let is_it = |index: usize| self.values.get(line, index).is_some_and(|value| is_name(value, name));
                (0..self.values.len()).find(|&index| is_it(index))
            };
            if let Some(places) = names.iter().map(place).collect() {
                self.places = places;
                return Ok(true);
            }
        }
        // No separator gives enough values. The request in this line is refused, unless it needs fewer.
        self.separator = most.1;
        if names.is_empty() {
            Ok(false)
        } else {
            Err(format!("a header with the columns {}", quote(names.join(", ").as_bytes())))
        }
    }
}

/// Whether a value of a header is a name that the user gave.
fn is_name(value: &[u8], name: &str) -> bool {
    value.eq_ignore_ascii_case(name.as_bytes())
}

impl ReferenceReader for CsvReader {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let path = self.input.path().clone();
        let Some(line) = self.input.line()? else { return Ok(false) };
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'*' || line[0] == b'#' {
            return Ok(true);
        }
        // The line is copied out of the input, so that the other fields can be changed while it is read.
        let mut copy = std::mem::take(&mut self.line);
        copy.clear();
        copy.extend(line);
        let line_number = self.input.line_number();
        let bad = |(expected, found): (String, Vec<u8>)| {
            Error::malformed(&path, TracePosition::Line(line_number), expected, quote(&found))
        };
        let is_first = !std::mem::replace(&mut self.is_started, true);
        let is_header = is_first && self.start(&copy).map_err(|expected| bad((expected, copy.clone())))?;
        if !is_header {
            self.request(&copy, is_first, to).map_err(bad)?;
        }
        self.line = copy;
        Ok(true)
    }

    fn has_objects(&self) -> bool {
        self.columns.target == TargetColumn::Key && !self.columns.size.is_empty()
    }

    fn has_times(&self) -> bool {
        self.columns.time.is_some()
    }

    fn has_areas(&self) -> bool {
        !self.columns.volume.is_empty()
    }
}

/// What was expected, and what was found.
type Bad = (String, Vec<u8>);

/// One line, split.
struct CsvLine<'a> {
    bytes: &'a [u8],
    values: &'a LineValues,
    places: &'a [usize],
}

impl<'a> CsvLine<'a> {
    /// The place of a column in the line, from 0.
    fn place(&self, column: usize) -> usize {
        self.places.get(column - 1).copied().unwrap_or(column - 1)
    }

    fn value(&self, column: usize) -> Option<&'a [u8]> {
        self.values.get(self.bytes, self.place(column))
    }

    fn bad<T>(&self, what: &str, column: usize) -> std::result::Result<T, Bad> {
        Err((format!("{what} in column {}", self.place(column) + 1), self.value(column).unwrap_or(self.bytes).to_vec()))
    }

    fn number(&self, what: &str, column: usize) -> std::result::Result<u64, Bad> {
        self.value(column).and_then(digits).map_or_else(|| self.bad(what, column), Ok)
    }

    /// Joins the values of `columns`.
    fn joined<'b>(&self, columns: &[usize], joined: &'b mut Vec<u8>) -> std::result::Result<&'b [u8], Bad> {
        joined.clear();
        for (index, &column) in columns.iter().enumerate() {
            let Some(value) = self.value(column) else { return self.bad("a value", column) };
            if index > 0 {
                joined.push(0);
            }
            joined.extend(value);
        }
        Ok(joined)
    }
}

impl CsvReader {
    /// Reads a request.
    fn request(&mut self, line: &[u8], is_first: bool, to: &mut Vec<TraceReference>) -> std::result::Result<(), Bad> {
        let last = self.places.iter().map(|place| place + 1).max().unwrap_or_else(|| self.columns.last());
        self.values.split(line, self.separator, last).map_err(|expected| (expected.to_owned(), line.to_vec()))?;
        let CsvReader { columns, block_bytes, values, places, joined, streams, volumes, .. } = self;
        let block_bytes = *block_bytes;
        let line = CsvLine { bytes: line, values, places };
        let start = match (columns.target, &columns.place[..]) {
            (TargetColumn::Key, place) => match line.joined(place, joined)? {
                [] => return line.bad("a key", place[0]),
                key => number_of_key(key),
            },
            (_, &[place, ..]) => {
                let what = match columns.target {
                    TargetColumn::Offset => "an offset in bytes",
                    TargetColumn::Sector => "the number of a sector",
                    _ => "a block number",
                };
                let header = format!("{what} (or a header that calls it {})", columns.names_of_target().join(", "));
                line.number(if is_first { header.as_str() } else { what }, place)?
            }
            _ => 0,
        };
        let operation = match columns.operation {
            None => TraceOperation::Read,
            Some(column) => match line.value(column).and_then(|value| operation(value, &columns.operations)) {
                Some(operation) => operation,
                None => return line.bad("read, write or delete (or its meaning in --columns: read=VALUE)", column),
            },
        };
        // A delete needs no size, and many traces leave it out.
        let needs_size = |column: usize| {
            operation != TraceOperation::Delete || line.value(column).is_some_and(|value| !value.is_empty())
        };
        let mut length = None;
        for &column in columns.size.iter().filter(|&&column| needs_size(column)) {
            let what = if columns.size_unit_bytes > 1 { "a size in sectors" } else { "a size in bytes" };
            let size = line.number(what, column)?.saturating_mul(columns.size_unit_bytes.max(1));
            length = Some(size.saturating_add(length.unwrap_or(0)));
        }
        let time_s = match columns.time {
            None => 0,
            Some(column) => match line.value(column).and_then(whole) {
                Some(time) => time / columns.ticks_per_second.max(1),
                None => return line.bad("a time as a number", column),
            },
        };
        let ttl_s = match columns.ttl {
            Some(column) if line.value(column).is_some_and(|value| !value.is_empty()) => {
                u32::try_from(line.number("a time to live in seconds", column)?).unwrap_or(u32::MAX)
            }
            _ => 0,
        };
        let repeats = match columns.count {
            Some(column) => line.number("a count", column)?,
            None => 1,
        };
        let volume =
            volumes.number(line.joined(&columns.volume, joined)?).map_err(|what| (what, line.bytes.to_vec()))?;
        let stream = match &columns.stream[..] {
            [] => volume,
            stream => streams.number(line.joined(stream, joined)?).map_err(|what| (what, line.bytes.to_vec()))?,
        };
        let blocks = match columns.target {
            TargetColumn::Offset => blocks_of(start, length.unwrap_or(1), block_bytes),
            TargetColumn::Sector => {
                start.checked_mul(SECTOR_BYTES).and_then(|offset| blocks_of(offset, length.unwrap_or(1), block_bytes))
            }
            TargetColumn::Block => Some((start, length.unwrap_or(1).div_ceil(block_bytes))),
            TargetColumn::Key => Some((start, 1)),
        };
        let is_key = columns.target == TargetColumn::Key;
        let fits = |&(first, count): &(u64, u64)| {
            let is_within = || first.checked_add(count).is_some_and(|end| volume == 0 || end <= 1 << VOLUME_SHIFT);
            count.checked_mul(repeats).is_some_and(|all| all <= BLOCKS_PER_RECORD_MAX) && (is_key || is_within())
        };
        let Some((first, count)) = blocks.filter(fits) else {
            let expected = format!("a request of at most {BLOCKS_PER_RECORD_MAX} blocks within the volume");
            return Err((expected, line.bytes.to_vec()));
        };
        if length == Some(0) && !is_key {
            return Ok(());
        }
        let bytes = if is_key { length.unwrap_or(0) } else { block_bytes };
        let Ok(bytes) = u32::try_from(bytes) else {
            return Err((format!("an object of at most {} bytes", u32::MAX), line.bytes.to_vec()));
        };
        let stream = StreamId(stream);
        let tag = u64::from(volume) << VOLUME_SHIFT;
        for _ in 0..repeats {
            let reference = |block| TraceReference { stream, block: block | tag, bytes, operation, time_s, ttl_s };
            to.extend((0..count).map(|index| reference(first + index)));
        }
        Ok(())
    }
}

/// The number of a key.
fn number_of_key(key: &[u8]) -> u64 {
    match digits(key) {
        Some(number) if key[0] != b'0' || key.len() == 1 => number,
        _ => xxh3_64(key),
    }
}

/// Words for operations, in small letters.
const OPERATIONS: [(&str, TraceOperation); 23] = [
    ("r", TraceOperation::Read),
    ("read", TraceOperation::Read),
    ("get", TraceOperation::Read),
    ("gets", TraceOperation::Read),
    ("head", TraceOperation::Read),
    ("w", TraceOperation::Write),
    ("write", TraceOperation::Write),
    ("set", TraceOperation::Write),
    ("put", TraceOperation::Write),
    ("post", TraceOperation::Write),
    ("add", TraceOperation::Write),
    ("replace", TraceOperation::Write),
    ("cas", TraceOperation::Write),
    ("append", TraceOperation::Write),
    ("prepend", TraceOperation::Write),
    ("incr", TraceOperation::Write),
    ("decr", TraceOperation::Write),
    ("del", TraceOperation::Delete),
    ("delete", TraceOperation::Delete),
    ("remove", TraceOperation::Delete),
    ("purge", TraceOperation::Delete),
    ("trim", TraceOperation::Delete),
    ("discard", TraceOperation::Delete),
];

/// The meaning of a value: that in `own`, else that of its first known word, else that of its first letter, if it is one
/// word (`RS`, `WSM`).
fn operation(value: &[u8], own: &[(String, TraceOperation)]) -> Option<TraceOperation> {
    let find = |word: &[u8]| {
        let known = OPERATIONS.iter().find(|(known, _)| word.eq_ignore_ascii_case(known.as_bytes()))?;
        Some(known.1)
    };
    if let Some((_, operation)) = own.iter().find(|(known, _)| value.eq_ignore_ascii_case(known.as_bytes())) {
        return Some(*operation);
    }
    let mut words = value.split(|byte| !byte.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.find_map(find).or_else(|| match value {
        [b'r' | b'R', rest @ ..] if rest.iter().all(u8::is_ascii_alphabetic) => Some(TraceOperation::Read),
        [b'w' | b'W', rest @ ..] if rest.iter().all(u8::is_ascii_alphabetic) => Some(TraceOperation::Write),
        _ => None,
    })
}

/// A number without its fraction.
fn whole(value: &[u8]) -> Option<u64> {
    let (whole, fraction) = match value.iter().position(|&byte| byte == b'.') {
        Some(point) => (&value[..point], &value[point + 1..]),
        None => (value, &b"0"[..]),
    };
    fraction.iter().all(u8::is_ascii_digit).then(|| digits(whole)).flatten()
}

impl NameNumbers {
    /// The number of a name; 0 for no name.
    fn number(&mut self, name: &[u8]) -> std::result::Result<u32, String> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        if name.len() > NAME_BYTES_MAX || self.numbers.len() >= STREAMS_MAX {
            return Err(format!(
                "at most {STREAMS_MAX} streams and volumes with names of at most {NAME_BYTES_MAX} bytes"
            ));
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(name.into(), number);
        Ok(number)
    }
}
