//! Little-endian fields, read with bounds.
//!
//! Owns: a cursor over untrusted bytes. Promises: no read goes beyond the end.

use super::FormatError;

/// Reads fields from the front.
pub(super) struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> FieldReader<'a> {
    pub fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader { bytes, at: 0 }
    }

    pub fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let needed = self.at.saturating_add(count);
        let short = FormatError::Short { needed, found: self.bytes.len() };
        let taken = self.bytes.get(self.at..needed).ok_or(short)?;
        self.at = needed;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub fn u16(&mut self) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn id(&mut self) -> Result<[u8; 16], FormatError> {
        self.array()
    }
}
