//! Encoded bytes are those of the page and decode to the same values, and damaged bytes are refused.

use std::collections::BTreeSet;

use super::*;
use crate::format::{FormerSize, Formers};

fn shape() -> SlotShape {
    SlotShape {
        policy: 3,
        device: [7; 16],
        blocks: 100,
        block_bytes: 16,
        members: 2,
        groups: 60,
        caches: 2,
        region_blocks: 8,
        formers: Formers::default(),
    }
}

fn slot() -> SlotHeader {
    let data_checksum = xxh3_64(&[9; 16]);
    SlotHeader {
        device: device_checksum(&[7; 16]),
        generation: 3,
        group: 5,
        member: 1,
        block: 77,
        sequence: 99,
        data_checksum,
        is_lost: false,
    }
}

fn summary() -> GroupSummary {
    let named = |block| Some(CoveredMember { block, sequence: 40 + u64::from(block), checksum: 1 << 40 });
    GroupSummary {
        kind: SummaryKind::Sealed,
        device: device_checksum(&[7; 16]),
        generation: 3,
        group: 5,
        parity_checksum: 0xabcd,
        members: vec![named(1), None, named(2)],
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn bytes_are_those_of_version_1() {
    let of = |bytes: &[u8]| format!("{} {:016x}", bytes.len(), xxh3_64(bytes));
    let (slot, summary, shape) = (slot().encode(&[9; 16]), summary().encode(), shape().encode());
    assert_eq!(hexadecimal(&slot[..8]), "4e45435301010100");
    assert_eq!(hexadecimal(&slot[16..40]), "0300000000000000050000004d0000006300000000000000");
    assert_eq!(hexadecimal(&summary[..8]), "4e45434701010300");
    assert_eq!(hexadecimal(&summary[24..40]), "0500000000000000cdab000000000000");
    assert_eq!(hexadecimal(&shape[..16]), "4e454352414d53480100000003000000");
    let trim = TrimEntry { sequence: 12 }.encode(device_checksum(&[7; 16]), 3);
    let golden = [of(&slot), of(&summary), of(&shape), of(&trim)];
    assert_eq!(golden, GOLDEN);
}

const GOLDEN: [&str; 4] = ["80 7418745501b27649", "144 8f33d20dfd161032", "72 908c42507da5c045", "16 c2bb5b85602612d5"];

/// Slots, summaries, shapes and trims are read back unchanged, and each changed byte is an error.
#[test]
fn slot_formats_detect_changed_bytes() {
    let (slot, summary, shape) = (slot(), summary(), shape());
    let trim = TrimEntry { sequence: 12 };
    let bytes = [slot.encode(&[9; 16]), summary.encode(), shape.encode(), trim.encode(1, 3).to_vec()];
    assert_eq!(SlotHeader::decode_whole(&bytes[0]), Ok((slot, &[9; 16][..])));
    let lost = SlotHeader { is_lost: true, ..slot };
    assert_eq!(SlotHeader::decode_whole(&lost.encode(&[9; 16])), Ok((lost, &[9; 16][..])));
    assert_eq!(GroupSummary::decode(&bytes[1]).as_ref(), Ok(&summary));
    assert_eq!(SlotShape::decode(&bytes[2]), Ok(shape));
    assert_eq!(TrimEntry::decode(&bytes[3], 1, 3), Ok(trim));
    assert!(TrimEntry::decode(&bytes[3], 1, 4).is_err(), "an entry belongs to its block");
    for (which, whole) in bytes.iter().enumerate() {
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            let is_refused = match which {
                0 => SlotHeader::decode_whole(&changed).is_err(),
                1 => GroupSummary::decode(&changed).is_err(),
                2 => SlotShape::decode(&changed).is_err(),
                _ => TrimEntry::decode(&changed, 1, 3).is_err(),
            };
            assert!(is_refused, "{which}: byte {at}");
            let short = &whole[..at];
            let is_short = match which {
                0 if at >= SLOT_HEADER_BYTES => true,
                0 => SlotHeader::decode(short).is_err(),
                1 => GroupSummary::decode(short).is_err(),
                2 => SlotShape::decode(short).is_err(),
                _ => TrimEntry::decode(short, 1, 3).is_err(),
            };
            assert!(is_short, "{which}: {at} bytes");
        }
    }
    assert_eq!(TrimEntry::decode(&[0; TRIM_BYTES], 1, 3), Ok(TrimEntry::default()));
    assert!(SlotShape::is_absent(&[0; SHAPE_BYTES]) && !SlotShape::is_absent(&bytes[2]));
}

#[test]
fn parity_restores_slot_and_header() {
    let whole = slot().encode(&[9; 16]);
    let other = SlotHeader { block: 1, ..slot() }.encode(&[3; 16]);
    let mut parity = whole.clone();
    xor(&mut parity, &other);
    xor(&mut parity, &other);
    assert_eq!(parity, whole);
}

/// The shape of a device that has grown, by little and by much.
fn grown() -> SlotShape {
    let mut formers = Formers::default();
    for (former, (blocks, groups)) in formers.iter_mut().zip([(100, 60), (101, 61), (180, 108)]) {
        *former = FormerSize { blocks, groups };
    }
    SlotShape { blocks: 1000, groups: 600, formers, ..shape() }
}

/// No two areas share a byte, and the areas agree with the placement, before and after growing.
#[test]
fn donor_areas_do_not_overlap() {
    share_no_byte(&shape());
    share_no_byte(&grown());
}

/// Growing moves no area, and the donors keep the shape of the first size.
#[test]
fn growing_moves_no_area() {
    let (before, after) = (DonorAreas::new(&shape()), DonorAreas::new(&grown()));
    for block in 0..shape().blocks {
        assert_eq!(before.trims(block), after.trims(block));
    }
    for group in 0..shape().groups {
        assert_eq!((before.slot(group), before.summary(group)), (after.slot(group), after.summary(group)));
    }
    assert!((0..before.spares).all(|spare| before.spare(spare) == after.spare(spare)));
    assert!(after.spares == before.spares && after.donor_bytes > before.donor_bytes);
    assert_eq!(SlotShape::decode(&grown().encode()), Ok(shape()));
    // The bytes before the slots, read one range after the other, have each byte at its place.
    for (at, offset) in after.heads().flatten().enumerate() {
        assert_eq!(after.in_heads(offset), at, "{offset}");
    }
    assert_eq!(after.heads().flatten().count() as u64, after.head_bytes());
    let ends: Vec<u32> = [0, 59, 60, 61, 108, 599].map(|group| after.run_end(group)).into();
    assert_eq!(ends, [60, 60, 61, 108, 600, 600]);
}

fn share_no_byte(shape: &SlotShape) {
    let areas = DonorAreas::new(shape);
    let mut used: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut take = |donor: usize, at: u64, bytes: u64| {
        assert!(at >= SHAPE_BYTES as u64 && at + bytes <= areas.donor_bytes);
        (at..at + bytes).for_each(|byte| assert!(used.insert((donor, byte)), "byte {byte} of donor {donor}"));
    };
    for block in 0..shape.blocks {
        areas.trims(block).into_iter().for_each(|(donor, at)| take(donor, at, TRIM_BYTES as u64));
        assert!(areas.region(areas.region_of(block)).contains(&block));
    }
    for group in 0..shape.groups {
        let parity = areas.parity_donor(group);
        take(parity, areas.summary(group), areas.summary_bytes);
        take(parity, areas.slot(group), areas.slot_bytes);
        assert_eq!(areas.member_on(group, parity), None);
        for member in 0..shape.members {
            let donor = areas.member_donor(group, member);
            take(donor, areas.slot(group), areas.slot_bytes);
            assert_eq!(areas.member_on(group, donor), Some(member));
        }
    }
    for donor in 0..areas.donors as usize {
        (0..areas.spares).for_each(|spare| take(donor, areas.spare(spare), areas.summary_bytes + areas.slot_bytes));
    }
}

/// A shape with all values at their limits is accepted; one value beyond its limit is refused.
#[test]
fn shape_past_limits_is_refused() {
    let greatest = SlotShape {
        blocks: 1 << 30,
        block_bytes: 64 << 10,
        members: 15,
        groups: 1 << 27,
        caches: CACHES_MAX,
        region_blocks: REGION_BLOCKS_MAX,
        ..shape()
    };
    assert_eq!(SlotShape::decode(&greatest.encode()), Ok(greatest));
    let wrong = [
        SlotShape { policy: 2, ..greatest },
        SlotShape { policy: 6, ..greatest },
        SlotShape { blocks: 0, ..greatest },
        SlotShape { blocks: (1 << 30) + 1, ..greatest },
        SlotShape { block_bytes: 8, ..greatest },
        SlotShape { members: 16, ..greatest },
        SlotShape { members: 1, ..greatest },
        SlotShape { groups: 1, ..greatest },
        SlotShape { groups: 1 << 29, ..greatest },
        SlotShape { caches: CACHES_MAX + 1, ..greatest },
        SlotShape { region_blocks: 0, ..greatest },
    ];
    for shape in wrong {
        assert!(matches!(SlotShape::decode(&shape.encode()), Err(FormatError::Range { .. })), "{shape:?}");
    }
}
