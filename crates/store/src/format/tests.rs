//! Tests of the frames of the on-disk format: which frames are valid, and that no bytes make a decoder panic.

use super::*;

const PLACE: Place = Place { identity: 7, epoch: 3, address: 8192 };

fn sealed() -> Vec<u8> {
    let mut bytes = vec![5u8; 4096];
    seal(&mut bytes, Magic::State, PLACE, 100);
    bytes
}

#[test]
fn unit_is_believed_at_its_place_alone() {
    let bytes = sealed();
    assert!(open(&bytes, Magic::State, PLACE).is_ok());
    assert_eq!(open(&bytes, Magic::Purge, PLACE).unwrap_err(), Mismatch::Magic);
    for wrong in [Place { identity: 8, ..PLACE }, Place { epoch: 2, ..PLACE }, Place { address: 4096, ..PLACE }] {
        assert_eq!(open(&bytes, Magic::State, wrong).unwrap_err(), Mismatch::Place);
    }
}

#[test]
fn every_flipped_bit_under_the_checksum_is_noticed() {
    let bytes = sealed();
    for bit in 0..100 * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(open(&flipped, Magic::State, PLACE).is_err(), "bit {bit}");
    }
}

#[test]
fn short_and_overlong_units_are_refused_without_a_panic() {
    let bytes = sealed();
    for length in 0..100 {
        assert!(open(&bytes[..length], Magic::State, PLACE).is_err());
    }
    let mut overlong = bytes.clone();
    overlong[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(open(&overlong, Magic::State, PLACE).unwrap_err(), Mismatch::Length);
}

#[test]
fn other_version_is_named() {
    let mut bytes = sealed();
    bytes[4] = 9;
    assert_eq!(open(&bytes, Magic::State, PLACE).unwrap_err(), Mismatch::Version(9));
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
        assert!(Record::decode(&bytes, PLACE).is_err());
        assert!(Append::decode(&bytes, PLACE, 1 << 20).is_err());
    }
}
