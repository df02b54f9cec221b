//! Reads numbers and strings from received bytes.
//!
//! Promises: if bytes are missing, the result is `None`; no function here panics or allocates memory.

use super::STRING_BYTES_MAX;

/// Bytes that have not been read yet.
#[derive(Debug, Clone)]
pub(crate) struct WireReader<'a> {
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { rest: bytes }
    }

    /// Reads the next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Reads a string, which follows its length of 32 bits.
    pub fn string(&mut self) -> Option<Result<&'a str, StringError>> {
        let length = self.u32()?;
        Some(text(self.bytes(length as usize)?))
    }

    /// Reads all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The reason why a string is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StringError {
    /// The string is longer than [`STRING_BYTES_MAX`].
    TooLong,
    /// The string is not UTF-8, or contains a NUL.
    NotText,
}

/// Reads bytes as a string of the protocol.
pub(crate) fn text(bytes: &[u8]) -> Result<&str, StringError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(StringError::TooLong);
    }
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or(StringError::NotText)
}

/// Reads a text that the other side has sent, and replaces control characters by spaces.
pub(crate) fn message(bytes: &[u8]) -> String {
    let bytes = &bytes[..bytes.len().min(STRING_BYTES_MAX)];
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Cuts a text to the longest string that the protocol document allows.
pub(crate) fn clipped(text: &str) -> &str {
    let mut end = text.len().min(STRING_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
