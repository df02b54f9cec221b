//! Lost blocks: what stands for the data of a missing donor that a crash of the client made unknown.
//!
//! Owns: these bytes. Promises: a block that has them is lost, on every donor and for every client, until it is
//! written; data that a user wrote has them only if they were computed from the device's identity for this purpose.
//!
//! Reason: after a crash of the client in the middle of a change, the members of the stripe do not yield those of a
//! missing donor. The next client changes the parity so that each of these blocks yields its lost bytes. So the stripe
//! is like any other from then on, and no list of lost blocks has to be kept.

use xxhash_rust::xxh3::xxh3_128;

/// The length of the parts of which lost bytes consist; it divides every length of a block.
const PART_BYTES: usize = 16;

fn part(device: &[u8; 16], block: u64, number: usize) -> [u8; PART_BYTES] {
    let mut named = [0; 32];
    named[..16].copy_from_slice(device);
    named[16..24].copy_from_slice(&block.to_le_bytes());
    named[24..].copy_from_slice(&(number as u64).to_le_bytes());
    xxh3_128(&named).to_le_bytes()
}

/// Returns the bytes that stand for a block.
pub fn lost_bytes(device: &[u8; 16], block: u64, block_bytes: usize) -> Vec<u8> {
    (0..block_bytes / PART_BYTES).flat_map(|number| part(device, block, number)).collect()
}

/// Whether a block with these bytes is lost.
pub fn is_lost(device: &[u8; 16], block: u64, bytes: &[u8]) -> bool {
    !bytes.is_empty()
        && bytes.chunks(PART_BYTES).enumerate().all(|(number, found)| part(device, block, number)[..] == *found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that mark a lost block are specific to the device and the block.
    #[test]
    fn lost_bytes_match_only_their_block() {
        let lost = lost_bytes(&[7; 16], 5, 64);
        assert_eq!(lost.len(), 64);
        assert!(is_lost(&[7; 16], 5, &lost) && !is_lost(&[7; 16], 6, &lost) && !is_lost(&[8; 16], 5, &lost));
        for at in 0..64 {
            let mut other = lost.clone();
            other[at] ^= 1;
            assert!(!is_lost(&[7; 16], 5, &other));
        }
        assert!(!is_lost(&[7; 16], 5, &[]) && !is_lost(&[7; 16], 5, &[0; 64]));
    }
}
