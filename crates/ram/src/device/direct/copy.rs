//! Copying between the buffers of a request and the part of one donor.

use std::ops::Range;

use nectary_block::Buffer;

use super::parts::DonorPart;

/// Copies the bytes of one donor's part of a request into one buffer.
pub(super) fn gather(buffers: &[Buffer], part: &DonorPart) -> Buffer {
    let mut copy = Buffer::recycled(part.length as usize);
    let mut filled = 0;
    for (index, range) in spans(buffers, part) {
        copy[filled..filled + range.len()].copy_from_slice(&buffers[index][range.clone()]);
        filled += range.len();
    }
    copy
}

/// Copies the bytes of one donor's part to their places in a request.
pub(super) fn scatter(buffers: &mut [Buffer], part: &DonorPart, from: &[u8]) {
    let mut taken = 0;
    for (index, range) in spans(buffers, part) {
        let length = range.len();
        buffers[index][range].copy_from_slice(&from[taken..taken + length]);
        taken += length;
    }
}

/// Returns the place of each piece of a part: the index of a buffer, and the range in it.
fn spans(buffers: &[Buffer], part: &DonorPart) -> Vec<(usize, Range<usize>)> {
    let mut spans = Vec::with_capacity(part.pieces.len());
    let (mut index, mut start) = (0, 0);
    for piece in &part.pieces {
        let mut at = piece.start;
        while at < piece.end {
            while at >= start + buffers[index].len() {
                start += buffers[index].len();
                index += 1;
            }
            let until = piece.end.min(start + buffers[index].len());
            spans.push((index, at - start..until - start));
            at = until;
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_reverses_gather() {
        let bytes: Vec<u8> = (0..100).collect();
        let buffers: Vec<Buffer> = [&bytes[..10], &[], &bytes[10..70], &bytes[70..]].map(Buffer::copy_of).into();
        let part = DonorPart { donor: 0, place: 0, length: 55, pieces: vec![5..15, 20..60, 95..100] };
        let copy = gather(&buffers, &part);
        assert_eq!(copy[..], [&bytes[5..15], &bytes[20..60], &bytes[95..]].concat()[..]);
        let mut into: Vec<Buffer> = [10, 0, 60, 30].map(Buffer::zeroed).into();
        scatter(&mut into, &part, &copy);
        let flat: Vec<u8> = into.iter().flat_map(|buffer| buffer.to_vec()).collect();
        let expected: Vec<u8> =
            (0..100).map(|at| if part.pieces.iter().any(|piece| piece.contains(&at)) { at as u8 } else { 0 }).collect();
        assert_eq!(flat, expected);
    }
}
