//! Reading and writing of little-endian fields, with checks of bounds.

use super::error::{FormatError, FormatProblem};

/// Reads fields in order.
pub(crate) struct BoundedReader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BoundedReader<'a> {
    pub fn new(what: &'static str, bytes: &'a [u8]) -> BoundedReader<'a> {
        BoundedReader { what, bytes, at: 0 }
    }

    pub fn error(&self, problem: FormatProblem) -> FormatError {
        FormatError { what: self.what, problem }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(taken) = rest.get(..count) else {
            return Err(
                self.error(FormatProblem::Short { needed: self.at.saturating_add(count), found: self.bytes.len() })
            );
        };
        self.at += count;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Returns all bytes that were not read.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at = self.bytes.len();
        rest
    }

    pub fn skip(&mut self, count: usize) -> Result<(), FormatError> {
        self.take(count).map(drop)
    }

    /// Skips to the next multiple of 8 bytes from the start.
    pub fn align(&mut self) -> Result<(), FormatError> {
        self.skip(self.at.next_multiple_of(8) - self.at)
    }

    pub fn u8(&mut self) -> Result<u8, FormatError> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub fn u16(&mut self) -> Result<u16, FormatError> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64, FormatError> {
        self.array().map(i64::from_le_bytes)
    }

    /// Checks that the value of a field is between `low` and `high`; returns it.
    pub fn within(&self, field: &'static str, value: u64, low: u64, high: u64) -> Result<u64, FormatError> {
        match (low..=high).contains(&value) {
            true => Ok(value),
            false => Err(self.error(FormatProblem::Bound { field, value, low, high })),
        }
    }

    pub fn unknown(&self, field: &'static str, value: u64) -> FormatError {
        self.error(FormatProblem::Unknown { field, value })
    }

    /// Returns the number of bytes that were read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Checks that no byte is left.
    pub fn end(&self) -> Result<(), FormatError> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            left => Err(self.error(FormatProblem::LeftOver(left))),
        }
    }

    /// Reads text that is padded with zeroes.
    pub fn padded(&mut self, field: &'static str, count: usize) -> Result<String, FormatError> {
        let bytes = self.take(count)?;
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(count);
        let (text, padding) = bytes.split_at(length);
        match std::str::from_utf8(text) {
            Ok(text) if padding.iter().all(|byte| *byte == 0) => Ok(text.to_owned()),
            _ => Err(self.error(FormatProblem::Text(field))),
        }
    }
}

/// Writes fields in order.
#[derive(Default)]
pub(crate) struct BoundedWriter {
    pub bytes: Vec<u8>,
}

impl BoundedWriter {
    pub fn put(&mut self, bytes: &[u8]) -> &mut BoundedWriter {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub fn zeroes(&mut self, count: usize) -> &mut BoundedWriter {
        self.bytes.resize(self.bytes.len() + count, 0);
        self
    }

    pub fn align(&mut self) -> &mut BoundedWriter {
        self.zeroes(self.bytes.len().next_multiple_of(8) - self.bytes.len())
    }

    pub fn u8(&mut self, value: u8) -> &mut BoundedWriter {
        self.put(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut BoundedWriter {
        self.put(&value.to_le_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut BoundedWriter {
        self.put(&value.to_le_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut BoundedWriter {
        self.put(&value.to_le_bytes())
    }

    pub fn i64(&mut self, value: i64) -> &mut BoundedWriter {
        self.put(&value.to_le_bytes())
    }

    /// Writes text padded with zeroes; text that is too long is cut between two characters.
    pub fn padded(&mut self, text: &str, count: usize) -> &mut BoundedWriter {
        let mut length = text.len().min(count);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        self.put(&text.as_bytes()[..length]).zeroes(count - length)
    }
}
