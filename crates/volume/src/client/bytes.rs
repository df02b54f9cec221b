//! Buffers of data that was read, and of data to be written.
//!
//! Owns: cutting and joining buffers. Promises: holes need no memory.

use nectary_block::Buffer;

/// The size of a buffer for I/O. *Units*: bytes.
const UNIT_BYTES: usize = 64 << 10;
/// The zeroes that holes read as.
static ZEROES: [u8; UNIT_BYTES] = [0; UNIT_BYTES];

/// A part of the data that was read.
#[derive(Debug)]
enum ReadPart {
    Zeroes(usize),
    Bytes { buffer: Buffer, start: usize, end: usize },
}

/// Data that was read.
#[derive(Debug, Default)]
pub struct ReadContents {
    parts: Vec<ReadPart>,
    length: usize,
}

impl ReadContents {
    /// Returns the length. *Units*: bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no bytes, because the file ends before the offset.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes as a list of slices.
    pub fn slices(&self) -> Vec<&[u8]> {
        let mut slices = Vec::new();
        for part in &self.parts {
            match part {
                ReadPart::Zeroes(count) => {
                    let mut left = *count;
                    while left > 0 {
                        let length = left.min(UNIT_BYTES);
                        slices.push(&ZEROES[..length]);
                        left -= length;
                    }
                }
                ReadPart::Bytes { buffer, start, end } => slices.push(&buffer[*start..*end]),
            }
        }
        slices
    }

    /// Returns the bytes in one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().concat()
    }

    pub(crate) fn push_zeroes(&mut self, count: usize) {
        self.length += count;
        match self.parts.last_mut() {
            Some(ReadPart::Zeroes(before)) => *before += count,
            _ if count > 0 => self.parts.push(ReadPart::Zeroes(count)),
            _ => {}
        }
    }

    pub(crate) fn push(&mut self, buffer: Buffer, start: usize, end: usize) {
        if start < end {
            self.length += end - start;
            self.parts.push(ReadPart::Bytes { buffer, start, end });
        }
    }
}

/// Allocates buffers for `bytes` bytes.
pub(crate) fn buffers(bytes: usize) -> Vec<Buffer> {
    let whole = bytes / UNIT_BYTES;
    let rest = bytes % UNIT_BYTES;
    let lengths = std::iter::repeat_n(UNIT_BYTES, whole).chain((rest > 0).then_some(rest));
    lengths.map(Buffer::recycled).collect()
}

/// Returns the sum of the lengths of all buffers.
pub(crate) fn total(buffers: &[Buffer]) -> usize {
    buffers.iter().map(|buffer| buffer.len()).sum()
}

/// Copies `bytes` into the buffers, at offset `at` from the start of the first.
pub(crate) fn fill(buffers: &mut [Buffer], at: usize, bytes: &[u8]) {
    let (mut skip, mut rest) = (at, bytes);
    for buffer in buffers {
        if skip >= buffer.len() {
            skip -= buffer.len();
            continue;
        }
        let length = rest.len().min(buffer.len() - skip);
        buffer[skip..skip + length].copy_from_slice(&rest[..length]);
        (skip, rest) = (0, &rest[length..]);
        if rest.is_empty() {
            return;
        }
    }
}

/// Removes the first `bytes` bytes and returns them. Whole buffers are moved; a part of a buffer is copied.
pub(crate) fn split(buffers: &mut std::collections::VecDeque<Buffer>, bytes: usize) -> Vec<Buffer> {
    let (mut taken, mut left) = (Vec::new(), bytes);
    while left > 0 {
        let Some(buffer) = buffers.pop_front() else { break };
        if buffer.len() <= left {
            left -= buffer.len();
            taken.push(buffer);
        } else {
            taken.push(Buffer::copy_of(&buffer[..left]));
            buffers.push_front(Buffer::copy_of(&buffer[left..]));
            left = 0;
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_fill_and_split_anywhere() {
        let mut list = buffers(UNIT_BYTES + 8192);
        assert_eq!(total(&list), UNIT_BYTES + 8192);
        let pattern: Vec<u8> = (0..8000).map(|byte| byte as u8).collect();
        list.iter_mut().for_each(|buffer| buffer.fill(0xff));
        fill(&mut list, UNIT_BYTES - 100, &pattern);
        let joined: Vec<u8> = list.iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert_eq!(joined[UNIT_BYTES - 100..UNIT_BYTES + 7900], pattern[..]);
        assert!(joined[UNIT_BYTES + 7900..].iter().all(|&byte| byte == 0xff));
        let mut queue = std::collections::VecDeque::from(list);
        let first: Vec<u8> = split(&mut queue, 4096).iter().flat_map(|buffer| buffer.to_vec()).collect();
        let second: Vec<u8> = split(&mut queue, UNIT_BYTES).iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert_eq!(
            (first.len(), second.len(), [first, second].concat()),
            (4096, UNIT_BYTES, joined[..UNIT_BYTES + 4096].to_vec())
        );
    }

    #[test]
    fn holes_take_no_memory() {
        let mut contents = ReadContents::default();
        contents.push_zeroes(UNIT_BYTES + 5);
        contents.push_zeroes(3);
        contents.push(Buffer::copy_of(b"abcdef"), 1, 3);
        assert_eq!((contents.parts.len(), contents.len()), (2, UNIT_BYTES + 10));
        assert_eq!(contents.to_vec()[UNIT_BYTES + 6..], *b"\0\0bc");
    }
}
