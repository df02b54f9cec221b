//! What a donor returns for a block whose memory is damaged.
//!
//! Owns: these bytes. A donor of a device that is changed in place keeps a checksum beside each block of its memory. A
//! block that does not match is returned as these bytes, so a client that did not write the block itself does not
//! mistake it for data: it uses the other copy, or the other members of the stripe. A user who writes these bytes gets
//! errors for that block, and nothing else.

use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_128;

/// The length of a block. *Units*: bytes.
const BYTES: usize = 4096;
/// The length of the parts of which the bytes consist.
const PART_BYTES: usize = 16;

fn part(number: usize) -> [u8; PART_BYTES] {
    let mut named = *b"nectary: damaged memory\0";
    named[23] = number as u8;
    xxh3_128(&named).to_le_bytes()
}

/// Returns the bytes that stand for a damaged block.
pub fn damaged_bytes() -> &'static [u8] {
    static DAMAGED: OnceLock<Vec<u8>> = OnceLock::new();
    DAMAGED.get_or_init(|| (0..BYTES / PART_BYTES).flat_map(part).collect())
}

/// Whether a block is what a donor returns for damaged memory. *Cost*: a comparison of a few bytes for other blocks.
pub fn is_damaged(block: &[u8]) -> bool {
    block.len() == BYTES && block[..PART_BYTES] == damaged_bytes()[..PART_BYTES] && block == damaged_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_these_bytes_are_damaged() {
        let mut bytes = damaged_bytes().to_vec();
        assert!(is_damaged(&bytes) && !is_damaged(&bytes[..4080]) && !is_damaged(&[0; BYTES]));
        bytes[4095] ^= 1;
        assert!(!is_damaged(&bytes));
    }
}
