//! Finding and changing the blocks of an image of a store.
//!
//! Owns: the positions that a scenario needs, found by the marks of blocks alone.

/// The size of a block, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// The part of a write that is atomic, in bytes.
const SECTOR_BYTES: usize = 512;

/// The offsets of the blocks with this magic, in bytes.
fn blocks<'a>(image: &'a [u8], magic: &'a [u8; 4]) -> impl Iterator<Item = usize> + 'a {
    (0..image.len()).step_by(BLOCK_BYTES).filter(move |at| image[*at..].starts_with(magic))
}

/// The number in the field `epoch` of a frame.
pub fn epoch_of(image: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(image[at + 32..at + 40].try_into().expect("eight bytes"))
}

/// The offsets of the appends of an epoch, in bytes.
pub fn appends(image: &[u8], epoch: u64) -> Vec<usize> {
    blocks(image, b"NAPP").filter(|at| epoch_of(image, *at) == epoch).collect()
}

/// The offsets of the blocks of the purge log, in bytes.
pub fn purge_blocks(image: &[u8]) -> Vec<usize> {
    blocks(image, b"NPRG").collect()
}

/// Clears the sector at an offset, as if it had never reached the disk.
pub fn clear_sector(image: &mut [u8], at: usize) {
    image[at..at + SECTOR_BYTES].fill(0);
}

/// Flips a bit of the frame at an offset, behind its header.
pub fn flip_bit(image: &mut [u8], at: usize) {
    image[at + 70] ^= 1;
}

/// Copies a block from another image of the same device.
pub fn take_block(image: &mut [u8], other: &[u8], at: usize) {
    image[at..at + BLOCK_BYTES].copy_from_slice(&other[at..at + BLOCK_BYTES]);
}
