//! Groups without a summary: open ones, and those whose summary was erased before their next use.

use super::blocks::{CheckedBlocks, ValidCopy};
use super::group::{GroupChecker, GroupSlots};
use super::report::{CheckCounts, CheckFindings, RedundancyHealth};
use crate::format::Formers;
use crate::format::slots::{DonorAreas, SlotHeader, SlotShape, device_checksum};

const BLOCK_BYTES: usize = 512;

fn judge() -> GroupChecker {
    let shape = SlotShape {
        policy: 3,
        device: [7; 16],
        blocks: 100,
        block_bytes: BLOCK_BYTES as u32,
        members: 2,
        groups: 60,
        caches: 2,
        region_blocks: 8,
        formers: Formers::default(),
    };
    GroupChecker { shape, areas: DonorAreas::new(&shape), device: device_checksum(&shape.device), generation: 3 }
}

fn slot(group: u32, member: u8, block: u32, sequence: u64) -> Vec<u8> {
    let device = device_checksum(&[7; 16]);
    let slot = SlotHeader { device, generation: 3, group, member, block, sequence, data_checksum: 0, is_lost: false };
    slot.encode(&[9; BLOCK_BYTES])
}

fn checked() -> CheckFindings {
    CheckFindings {
        id: "disk".to_owned(),
        size_bytes: 0,
        block_bytes: BLOCK_BYTES as u32,
        redundancy: "parity-log",
        health: RedundancyHealth::Healthy,
        view: (1, 1),
        is_detached: true,
        donors: Vec::new(),
        counts: CheckCounts::default(),
        problem_count: 0,
        problems: Vec::new(),
    }
}

/// Checks group 5, which has blocks 10 and 11 with these images and no summary; the newest copies of other groups have
/// the sequence `newest`.
fn check(images: [&[u8]; 2], newest: u64) -> CheckFindings {
    let (judge, mut checked) = (judge(), checked());
    let mut blocks = CheckedBlocks::new(judge.shape.blocks);
    for block in [10, 11] {
        blocks.consider(&mut checked, block, ValidCopy { sequence: newest, row: 9, member: (block % 2) as u8 });
    }
    let mut slots = vec![Some(&[][..]); 3];
    for (member, image) in (0..2).zip(images) {
        slots[judge.areas.member_donor(5, member)] = Some(image);
    }
    judge.open(&mut checked, &mut blocks, &GroupSlots { number: 5, slots }, &[]);
    blocks.conclude(&mut checked, &[0; 100]);
    checked
}

/// Damage in a group that was erased for its next use is no problem, because no block needs it.
#[test]
fn erased_group_is_not_open() {
    let (one, mut other) = (slot(5, 0, 10, 40), slot(5, 1, 11, 41));
    let dead = check([&one, &other], 50);
    assert_eq!(
        (dead.counts.open_groups, dead.problem_count, dead.health),
        (0, 0, RedundancyHealth::Healthy),
        "{dead:?}"
    );
    // A flipped bit of the data, and then of the header.
    for at in [other.len() - 1, 20] {
        other[at] ^= 1;
        let dead = check([&one, &other], 50);
        let CheckCounts { open_groups, damaged_slots, mapped_blocks, .. } = dead.counts;
        assert_eq!((open_groups, damaged_slots, mapped_blocks), (0, 0, 2), "{dead:?}");
        assert_eq!((dead.problem_count, dead.health), (0, RedundancyHealth::Healthy), "{dead:?}");
        // The same damage in a group that has a newest copy.
        let open = check([&one, &other], 39);
        assert_eq!((open.counts.open_groups, open.counts.damaged_slots), (1, 1), "{open:?}");
        assert!(open.health > RedundancyHealth::Healthy, "{open:?}");
    }
}
