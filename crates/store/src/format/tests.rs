//! Tests of the frames of the on-disk format: which frames are valid, and that no bytes make a decoder panic.

use super::*;

const PLACE: FramePlace = FramePlace { identity: 7, epoch: 3, address: 8192 };

fn sealed() -> Vec<u8> {
    let mut bytes = vec![5u8; 4096];
    seal(&mut bytes, FrameMagic::State, PLACE, 100);
    bytes
}

#[test]
fn frame_is_valid_in_place() {
    let bytes = sealed();
    assert!(open(&bytes, FrameMagic::State, PLACE).is_ok());
    assert_eq!(open(&bytes, FrameMagic::Purge, PLACE).unwrap_err(), FrameMismatch::Magic);
    for wrong in
        [FramePlace { identity: 8, ..PLACE }, FramePlace { epoch: 2, ..PLACE }, FramePlace { address: 4096, ..PLACE }]
    {
        assert_eq!(open(&bytes, FrameMagic::State, wrong).unwrap_err(), FrameMismatch::Place);
    }
}

#[test]
fn flipped_bit_fails_checksum() {
    let bytes = sealed();
    for bit in 0..100 * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(open(&flipped, FrameMagic::State, PLACE).is_err(), "bit {bit}");
    }
}

#[test]
fn short_and_long_frames_refused() {
    let bytes = sealed();
    for length in 0..100 {
        assert!(open(&bytes[..length], FrameMagic::State, PLACE).is_err());
    }
    let mut overlong = bytes.clone();
    overlong[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(open(&overlong, FrameMagic::State, PLACE).unwrap_err(), FrameMismatch::Length);
}

#[test]
fn other_version_is_named() {
    let mut bytes = sealed();
    bytes[4] = 9;
    assert_eq!(open(&bytes, FrameMagic::State, PLACE).unwrap_err(), FrameMismatch::Version(9));
}

#[test]
fn garbage_never_decodes_and_never_panics() {
    let mut state = 88172645463325252u64;
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..400)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        assert!(DecodedRecord::decode(&bytes, PLACE).is_err());
        assert!(DecodedAppend::decode(&bytes, PLACE, 1 << 20).is_err());
    }
}
