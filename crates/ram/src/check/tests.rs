//! Groups without a summary: open ones, and those whose summary was erased before their next use.

use super::blocks::{Blocks, Copy};
use super::group::{Judge, Row};
use super::report::{Checked, Counts, Health};
use crate::format::Formers;
use crate::format::slots::{Areas, Shape, Slot, device_checksum};

const BLOCK_BYTES: usize = 512;

fn judge() -> Judge {
    let shape = Shape {
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
    Judge { shape, areas: Areas::new(&shape), device: device_checksum(&shape.device), generation: 3 }
}

fn slot(group: u32, member: u8, block: u32, sequence: u64) -> Vec<u8> {
    let device = device_checksum(&[7; 16]);
    let slot = Slot { device, generation: 3, group, member, block, sequence, data_checksum: 0, is_lost: false };
    slot.encode(&[9; BLOCK_BYTES])
}

fn checked() -> Checked {
    Checked {
        id: "disk".to_owned(),
        size_bytes: 0,
        block_bytes: BLOCK_BYTES as u32,
        redundancy: "parity-log",
        health: Health::Healthy,
        view: (1, 1),
        is_detached: true,
        donors: Vec::new(),
        counts: Counts::default(),
        problem_count: 0,
        problems: Vec::new(),
    }
}

/// Checks group 5, which has blocks 10 and 11 with these images and no summary; the newest copies of other groups have
/// the sequence `newest`.
fn check(images: [&[u8]; 2], newest: u64) -> Checked {
    let (judge, mut checked) = (judge(), checked());
    let mut blocks = Blocks::new(judge.shape.blocks);
    for block in [10, 11] {
        blocks.consider(&mut checked, block, Copy { sequence: newest, row: 9, member: (block % 2) as u8 });
    }
    let mut slots = vec![Some(&[][..]); 3];
    for (member, image) in (0..2).zip(images) {
        slots[judge.areas.member_donor(5, member)] = Some(image);
    }
    judge.open(&mut checked, &mut blocks, &Row { number: 5, slots }, &[]);
    blocks.conclude(&mut checked, &[0; 100]);
    checked
}

#[test]
fn a_group_that_was_erased_for_its_next_use_is_not_open_and_damage_in_it_harms_nobody() {
    let (one, mut other) = (slot(5, 0, 10, 40), slot(5, 1, 11, 41));
    let dead = check([&one, &other], 50);
    assert_eq!((dead.counts.open_groups, dead.problem_count, dead.health), (0, 0, Health::Healthy), "{dead:?}");
    // A flipped bit of the data, and then of the header.
    for at in [other.len() - 1, 20] {
        other[at] ^= 1;
        let dead = check([&one, &other], 50);
        let Counts { open_groups, damaged_slots, mapped_blocks, .. } = dead.counts;
        assert_eq!((open_groups, damaged_slots, mapped_blocks), (0, 0, 2), "{dead:?}");
        assert_eq!((dead.problem_count, dead.health), (0, Health::Healthy), "{dead:?}");
        // The same damage in a group that has a newest copy.
        let open = check([&one, &other], 39);
        assert_eq!((open.counts.open_groups, open.counts.damaged_slots), (1, 1), "{open:?}");
        assert!(open.health > Health::Healthy, "{open:?}");
    }
}
