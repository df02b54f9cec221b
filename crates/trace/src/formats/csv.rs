//! Reads lines of values between separators; some of the columns give the accessed blocks.
//!
//! Owns: [`Columns`] and its text form, the preset for the MSR Cambridge traces, and the expansion of a request (offset
//! and size in bytes) into blocks. Equal offsets on two volumes are two different blocks: a block number has the
//! volume's number above its lower 48 bits.
//!
//! Bounds: at most [`STREAMS_MAX`] streams and as many volumes, each with a name of at most [`NAME_BYTES_MAX`].

use hashbrown::HashMap;
use nectary_cache::Stream;

use super::input::Input;
use super::{BLOCKS_PER_RECORD_MAX, ReadOptions, Reader, Reference, STREAMS_MAX, blocks_of, digits};
use crate::error::{Error, Place, Result, quote};

/// The longest name of a volume or stream. *Units*: bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The lowest bit of the volume's number in a block number.
const VOLUME_SHIFT: u32 = 48;

/// The meaning of the columns; they are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The byte between two values.
    pub separator: u8,
    /// The column of the start of the request, which is an offset in bytes or a block.
    pub target: Target,
    /// The column of the size in bytes; if there is none, a request is one block.
    pub size: Option<usize>,
    /// The column of the operation, `read` or `write` or their first letters, in upper or lower case; if there is none,
    /// every request is a read.
    pub operation: Option<usize>,
    /// The columns that name the stream; if there are none, the volume is the stream.
    pub stream: Vec<usize>,
    /// The columns that name the volume; if there are none, all blocks are on one volume.
    pub volume: Vec<usize>,
}

/// The column of the accessed block, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The column has an offset in bytes.
    Offset(usize),
    /// The column has the number of a block.
    Block(usize),
}

impl Columns {
    /// The columns of the MSR Cambridge traces: time, host, disk, operation, offset, size, response time.
    pub fn msr() -> Columns {
        Columns {
            separator: b',',
            target: Target::Offset(5),
            size: Some(6),
            operation: Some(4),
            stream: Vec::new(),
            volume: vec![2, 3],
        }
    }

    /// Reads a text such as `volume=2+3,offset=5,size=6,op=4` or `block=1,stream=2,sep=;`; `time` is allowed and
    /// ignored; `sep` is one character, `tab` or `space`.
    pub fn parse(text: &str) -> std::result::Result<Columns, String> {
        let mut columns = Columns { size: None, operation: None, volume: Vec::new(), ..Columns::msr() };
        let mut target = None;
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| format!("\"{part}\": expected NAME=COLUMN"))?;
            if name == "sep" {
                columns.separator = separator(value)?;
                continue;
            }
            let numbers: Option<Vec<usize>> = value.split('+').map(column).collect();
            let numbers = numbers.ok_or_else(|| format!("\"{part}\": columns are counted from 1"))?;
            let one = || match numbers[..] {
                [number] => Ok(number),
                _ => Err(format!("\"{part}\": expected one column")),
            };
            match name {
                "time" => {}
                "offset" => target = Some(Target::Offset(one()?)),
                "block" => target = Some(Target::Block(one()?)),
                "size" => columns.size = Some(one()?),
                "op" => columns.operation = Some(one()?),
                "stream" => columns.stream = numbers,
                "volume" => columns.volume = numbers,
                _ => {
                    let known = "time, offset, block, size, op, stream, volume, sep";
                    return Err(format!("\"{name}\" is no column; expected one of {known}"));
                }
            }
        }
        columns.target = target.ok_or("expected a column of offsets (offset=N) or of blocks (block=N)")?;
        Ok(columns)
    }
}

fn separator(value: &str) -> std::result::Result<u8, String> {
    match value.as_bytes() {
        b"tab" => Ok(b'\t'),
        b"space" => Ok(b' '),
        [one] if one.is_ascii() && !one.is_ascii_alphanumeric() => Ok(*one),
        // The option itself is separated by commas, so `sep=,` arrives as an empty value.
        b"" => Ok(b','),
        _ => Err(format!("\"{value}\" is no separator; expected one character, tab or space")),
    }
}

fn column(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&number| (1..=1000).contains(&number))
}

/// A reader of CSV files.
pub struct Csv {
    input: Input,
    columns: Columns,
    block_bytes: u64,
    streams: Names,
    volumes: Names,
    is_first: bool,
}

/// Gives each name a number, in the order in which the names first appear.
struct Names {
    numbers: HashMap<Box<[u8]>, u32>,
    name: Vec<u8>,
}

impl Csv {
    /// Reads `input` from its current position.
    pub fn new(input: Input, options: &ReadOptions) -> Csv {
        let names = || Names { numbers: HashMap::new(), name: Vec::new() };
        Csv {
            input,
            columns: options.columns.clone(),
            block_bytes: options.block_bytes,
            streams: names(),
            volumes: names(),
            is_first: true,
        }
    }

    /// Whether the first lines of a file look like the MSR Cambridge traces.
    pub fn is_likely(head: &[u8]) -> bool {
        let mut lines = super::lines_of_head(head);
        let Some(first) = lines.next() else { return false };
        let is_request = |line: &[u8]| {
            let values: Vec<&[u8]> = line.split(|&byte| byte == b',').collect();
            values.len() >= 6 && digits(values[4]).is_some() && digits(values[5]).is_some()
        };
        is_request(first) || lines.next().is_some_and(is_request)
    }
}

impl Reader for Csv {
    fn read(&mut self, to: &mut Vec<Reference>) -> Result<bool> {
        let path = self.input.path().clone();
        let line_number = self.input.line_number() + 1;
        let Some(line) = self.input.line()? else { return Ok(false) };
        let is_first = std::mem::take(&mut self.is_first);
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'*' || line[0] == b'#' {
            return Ok(true);
        }
        let bad = |expected: String, found: &[u8]| {
            Err(Error::malformed(&path, Place::Line(line_number), expected, quote(found)))
        };
        let value = |column: usize| line.split(|&byte| byte == self.columns.separator).nth(column - 1);
        let number = |column: usize| value(column).map(<[u8]>::trim_ascii).and_then(digits);
        let (target, what) = match self.columns.target {
            Target::Offset(column) => (column, "an offset in bytes"),
            Target::Block(column) => (column, "a block number"),
        };
        let Some(start) = number(target) else {
            if is_first && value(target).is_some() {
                return Ok(true);
            }
            return bad(format!("{what} in column {target}"), value(target).unwrap_or(line));
        };
        let length = match self.columns.size {
            None => None,
            Some(column) => match number(column) {
                Some(length) => Some(length),
                None => return bad(format!("a size in bytes in column {column}"), value(column).unwrap_or(line)),
            },
        };
        let is_write = match self.columns.operation {
            None => false,
            Some(column) => match value(column).and_then(|value| value.trim_ascii().first()) {
                Some(b'r' | b'R') => false,
                Some(b'w' | b'W') => true,
                _ => return bad(format!("read or write in column {column}"), value(column).unwrap_or(line)),
            },
        };
        let mut names = [0; 2];
        for (place, columns, known) in
            [(0, &self.columns.volume, &mut self.volumes), (1, &self.columns.stream, &mut self.streams)]
        {
            match known.number(columns.iter().map(|&column| value(column))) {
                Ok(number) => names[place] = number,
                Err(expected) => return bad(expected, line),
            }
        }
        let [volume, stream] = names;
        let stream = Stream(if self.columns.stream.is_empty() { volume } else { stream });
        let blocks = match self.columns.target {
            Target::Offset(_) => blocks_of(start, length.unwrap_or(1), self.block_bytes),
            Target::Block(_) => Some((start, length.unwrap_or(1).div_ceil(self.block_bytes))),
        };
        let fits = |(first, count): &(u64, u64)| {
            *count <= BLOCKS_PER_RECORD_MAX
                && first.checked_add(*count).is_some_and(|end| volume == 0 || end <= 1 << VOLUME_SHIFT)
        };
        let Some((first, count)) = blocks.filter(fits) else {
            let expected = format!("a request of at most {BLOCKS_PER_RECORD_MAX} blocks within the volume");
            return bad(expected, line);
        };
        if length == Some(0) {
            return Ok(true);
        }
        let bytes = u32::try_from(self.block_bytes).unwrap_or(u32::MAX);
        let tag = u64::from(volume) << VOLUME_SHIFT;
        to.extend((first..first + count).map(|block| Reference { stream, block: block | tag, bytes, is_write }));
        Ok(true)
    }
}

impl Names {
    /// The number of the name that consists of `parts`; 0 if there are no parts.
    fn number<'a>(&mut self, parts: impl Iterator<Item = Option<&'a [u8]>>) -> std::result::Result<u32, String> {
        self.name.clear();
        let mut has_parts = false;
        for part in parts {
            let part = part.ok_or("the columns of the stream and the volume")?;
            if has_parts {
                self.name.push(0);
            }
            self.name.extend(part.trim_ascii());
            has_parts = true;
        }
        if !has_parts {
            return Ok(0);
        }
        if let Some(&number) = self.numbers.get(self.name.as_slice()) {
            return Ok(number);
        }
        if self.name.len() > NAME_BYTES_MAX || self.numbers.len() >= STREAMS_MAX {
            return Err(format!(
                "at most {STREAMS_MAX} streams and volumes with names of at most {NAME_BYTES_MAX} bytes"
            ));
        }
        let number = self.numbers.len() as u32;
        self.numbers.insert(self.name.as_slice().into(), number);
        Ok(number)
    }
}
