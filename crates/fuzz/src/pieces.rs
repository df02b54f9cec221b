//! Images as inputs: an input has only a few pieces of an image, whose other bytes are zeroes or those of a valid
//! image.
//!
//! Owns: the encoding of pieces. A whole image of half a mebibyte would be a useless input, because nearly every
//! mutation would change bytes outside all fields. An input is a sequence of pieces; each consists of its position in
//! units of 64 bytes (2 bytes), its length (2 bytes, both little-endian), and its bytes. Bytes beyond the end of the
//! image are dropped.

/// The unit of positions. *Units*: bytes.
const UNIT_BYTES: usize = 64;
/// The shortest run of zeroes that ends a piece. *Units*: bytes.
const GAP_BYTES: usize = 16;
/// The longest piece. *Units*: bytes.
const PIECE_BYTES_MAX: usize = u16::MAX as usize;

/// Puts the pieces of an input into an image.
pub fn place(mut input: &[u8], image: &mut [u8]) {
    while let Some((head, rest)) = input.split_at_checked(4) {
        let at = usize::from(u16::from_le_bytes([head[0], head[1]])) * UNIT_BYTES;
        let length = usize::from(u16::from_le_bytes([head[2], head[3]])).min(rest.len());
        let (bytes, next) = rest.split_at(length);
        if let Some(room) = image.get_mut(at..) {
            let length = length.min(room.len());
            room[..length].copy_from_slice(&bytes[..length]);
        }
        input = next;
    }
}

/// Makes the pieces that turn an image of zeroes into `image`.
pub fn take(image: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < image.len() && at / UNIT_BYTES <= usize::from(u16::MAX) {
        if image[at] == 0 && image[at..(at + UNIT_BYTES).min(image.len())].iter().all(|&byte| byte == 0) {
            at += UNIT_BYTES;
            continue;
        }
        let room = &image[at..image.len().min(at + PIECE_BYTES_MAX / UNIT_BYTES * UNIT_BYTES)];
        // The piece ends before a run of `GAP_BYTES` zeroes.
        let mut end = 0;
        while end < room.len() {
            match room[end..].iter().position(|&byte| byte != 0) {
                Some(zeroes) if zeroes < GAP_BYTES || end == 0 => end += zeroes + 1,
                _ => break,
            }
        }
        out.extend(((at / UNIT_BYTES) as u16).to_le_bytes());
        out.extend((end as u16).to_le_bytes());
        out.extend_from_slice(&room[..end]);
        at += end.next_multiple_of(UNIT_BYTES).max(UNIT_BYTES);
        // If other bytes follow in the piece's last unit, they become another piece, which begins at the start of that
        // unit.
        let last = end.next_multiple_of(UNIT_BYTES).min(room.len());
        if room[end..last].iter().any(|&byte| byte != 0) {
            let start = end / UNIT_BYTES * UNIT_BYTES;
            out.extend(((at / UNIT_BYTES - 1) as u16).to_le_bytes());
            out.extend(((last - start) as u16).to_le_bytes());
            out.extend_from_slice(&room[start..last]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_image_again() {
        let mut image = vec![0; 100_000];
        for (at, length) in [(0, 100), (128, 1), (200, 3), (250, 2), (4096, 70_000), (99_999, 1)] {
            image[at..at + length].iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8 | 1);
        }
        let pieces = take(&image);
        let mut again = vec![0; image.len()];
        place(&pieces, &mut again);
        assert_eq!(again, image);
    }

    #[test]
    fn oversized_pieces_are_cut() {
        let mut image = vec![0; 130];
        place(&[2, 0, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 255, 255, 1, 0, 7, 1], &mut image);
        assert_eq!(image[128..], [1, 2]);
    }
}
