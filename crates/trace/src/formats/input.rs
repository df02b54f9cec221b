//! Reads the bytes of a trace from a file or from standard input, plain or compressed with gzip, xz or zstd.
//!
//! Owns: recognising compression by its magic, reading lines and fixed-size records, the places of lines and records
//! for messages, and the bounds on their lengths. Promises: memory does not grow with the input; input that is cut
//! short or fails to decompress is an error that names the place. Leaves to others: the meaning of lines and records.
//!
//! Cost: two buffers of 64 KiB, for compressed and for plain bytes; for xz and zstd also the window that the file
//! requires, at most 128 MiB.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;

use super::zstd::ZstdDecoder;
use crate::error::{Error, Result, TracePosition, quote};

/// The longest line. *Units*: bytes. Lines of all text formats are far shorter; a longer one is not text.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The number of bytes at the beginning of a file from which its format is guessed.
pub const HEAD_BYTES: usize = 4096;

/// The most memory that decompressing xz may take; `xz -9` needs half of it. *Units*: KiB.
const XZ_KIB_MAX: u32 = 128 << 10;

const BUFFER_BYTES: usize = 64 << 10;
/// The mark with which some programs begin a text in UTF-8.
pub const BYTE_ORDER_MARK: &[u8] = &[0xef, 0xbb, 0xbf];

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const XZ_MAGIC: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

type Bytes = Box<dyn BufRead + Send>;

/// The decompressed bytes of a trace, with the current place.
pub struct DecompressedInput {
    path: Arc<Path>,
    bytes: Bytes,
    head: Vec<u8>,
    line: u64,
    offset: u64,
    buffer: Vec<u8>,
}

impl DecompressedInput {
    /// Opens a file; `-` is standard input.
    pub fn open(path: &Path) -> Result<DecompressedInput> {
        let source: Box<dyn Read + Send> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(|error| Error::io(path, error))?)
        };
        DecompressedInput::from_reader(path, source)
    }

    /// Reads from `source`; `path` is used in messages.
    pub fn from_reader(path: &Path, source: Box<dyn Read + Send>) -> Result<DecompressedInput> {
        let io_error = |error| Error::io(path, error);
        let mut plain: Bytes = Box::new(BufReader::with_capacity(BUFFER_BYTES, source));
        let (magic, plain_again) = peek(&mut plain, XZ_MAGIC.len()).map_err(io_error)?;
        let source = plain_again.chain(plain);
        let mut bytes: Bytes = if magic.starts_with(GZIP_MAGIC) {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(source)))
        } else if magic.starts_with(XZ_MAGIC) {
            let decoder = XzReader::new_mem_limit(source, true, XZ_KIB_MAX);
            Box::new(BufReader::with_capacity(BUFFER_BYTES, decoder))
        } else if magic.starts_with(ZSTD_MAGIC) {
            Box::new(BufReader::with_capacity(BUFFER_BYTES, ZstdDecoder::new(Box::new(source))))
        } else {
            Box::new(source)
        };
        let (head, again) = match peek(&mut bytes, HEAD_BYTES) {
            Ok(head) => head,
            Err(error) => return Err(decode_error(path, TracePosition::Whole, error)),
        };
        let bytes = Box::new(again.chain(bytes));
        Ok(DecompressedInput { path: path.into(), bytes, head, line: 0, offset: 0, buffer: Vec::new() })
    }

    /// The file's name, for messages.
    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The first [`HEAD_BYTES`] bytes, or all if there are fewer. They are not consumed.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The next line without its end, and without a byte order mark in front of the first one; `None` at the end of
    /// the input.
    ///
    /// *Errors*: a line longer than [`LINE_BYTES_MAX`].
    pub fn line(&mut self) -> Result<Option<&[u8]>> {
        self.buffer.clear();
        self.line += 1;
        let place = TracePosition::Line(self.line);
        let mut bounded = self.bytes.by_ref().take(LINE_BYTES_MAX as u64 + 1);
        let count = bounded.read_until(b'\n', &mut self.buffer).map_err(|e| decode_error(&self.path, place, e))?;
        if count == 0 {
            return Ok(None);
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if count > LINE_BYTES_MAX {
            let found = quote(&self.buffer[..QUOTED_OF_LONG]);
            let expected = format!("a line of at most {LINE_BYTES_MAX} bytes");
            return Err(Error::malformed(&self.path, place, expected, format!("a longer one that begins {found}")));
        }
        if self.buffer.last() == Some(&b'\r') {
            self.buffer.pop();
        }
        let mark = if self.line == 1 { BYTE_ORDER_MARK } else { &[] };
        Ok(Some(self.buffer.strip_prefix(mark).unwrap_or(&self.buffer)))
    }

    /// Fills `record` with the next bytes; `false` at the end of the input.
    ///
    /// *Errors*: the input ends inside the record.
    pub fn record(&mut self, record: &mut [u8]) -> Result<bool> {
        let start = self.offset;
        let mut filled = 0;
        while filled < record.len() {
            match self.bytes.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => {
                    let expected = format!("a record of {} bytes", record.len());
                    let found = format!("the end of the file after {filled}");
                    return Err(Error::malformed(&self.path, TracePosition::Offset(start), expected, found));
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(decode_error(&self.path, TracePosition::Offset(start + filled as u64), error));
                }
            }
        }
        self.offset += filled as u64;
        Ok(true)
    }

    /// The number of the line that [`DecompressedInput::line`] returned last, from 1.
    pub fn line_number(&self) -> u64 {
        self.line
    }

    /// The number of bytes that [`DecompressedInput::record`] has returned.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// An error about the line that [`DecompressedInput::line`] returned last.
    pub fn bad_line(&self, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::malformed(&self.path, TracePosition::Line(self.line), expected, found)
    }

    /// An error about the record of `bytes` bytes that ends at the current offset.
    pub fn bad_record(&self, bytes: usize, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::malformed(&self.path, TracePosition::Offset(self.offset - bytes as u64), expected, found)
    }
}

impl Read for DecompressedInput {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.read(to)?;
        self.offset += count as u64;
        Ok(count)
    }
}

const QUOTED_OF_LONG: usize = 32;

/// Reads up to `count` bytes. *Returns* them, and a reader that returns them again.
fn peek(bytes: &mut Bytes, count: usize) -> io::Result<(Vec<u8>, Cursor<Vec<u8>>)> {
    let mut head = Vec::new();
    bytes.by_ref().take(count as u64).read_to_end(&mut head)?;
    Ok((head.clone(), Cursor::new(head)))
}

/// Converts an error of a decoder to an error about the trace. Decoders report damage as I/O errors without a system
/// error code.
fn decode_error(path: &Path, place: TracePosition, error: io::Error) -> Error {
    if error.raw_os_error().is_some() {
        return Error::io(path, error);
    }
    let found = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the end of the file in the middle of it".to_owned(),
        _ => format!("damage ({})", quote_text(&error.to_string())),
    };
    Error::malformed(&path.into(), place, "whole compressed data", found)
}

fn quote_text(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(120).collect()
}
