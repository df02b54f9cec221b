//! The memory of each policy's tables is what [`table_bytes`] says. All sizes and resident memory are compared by
//! `research cache-memory` of `nectary-bench`.

use nectary_cache::{NAMES, Policy, StreamId, explaining, table_bytes};

use crate::counting::bytes;

const CAPACITY: u64 = 10_000;
/// The size of a block, in comparison with which a table is large or small. *Units*: bytes.
const BLOCK_BYTES: u64 = 4096;

/// Makes references that fill every table and order of a policy: scans, a loop, and skewed references.
fn fill(policy: &mut dyn Policy) {
    // `dear` is charged for one stream: what another one takes depends on how often its blocks are referenced.
    let stream = |step: u64| if policy.name() == "dear" { 1 } else { (step % 20) as u32 };
    let streams: Vec<u32> = (0..12 * CAPACITY).map(stream).collect();
    let mut random = 7_u64;
    for round in 0..3 {
        (0..6 * CAPACITY).for_each(|id| _ = policy.reference(round << 40 | id, 1, StreamId(1), &mut |_| true));
        for stream in &streams {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let unit = (random >> 11) as f64 / (1_u64 << 53) as f64;
            let id = ((4 * CAPACITY) as f64 * unit * unit) as u64;
            policy.reference(id, 1, StreamId(*stream), &mut |_| true);
        }
    }
}

#[test]
fn tables_take_what_is_charged() {
    for name in NAMES {
        let before = bytes();
        let mut policy = explaining(name, CAPACITY, Box::new(|_| ())).expect("listed");
        fill(&mut *policy);
        let (used, charged) = (bytes().wrapping_sub(before) as u64, table_bytes(name, CAPACITY));
        let (each, of_each) = (used / CAPACITY, charged / CAPACITY);
        println!("{name}: {each} bytes a block used, {of_each} charged");
        let of_cache = CAPACITY * BLOCK_BYTES + charged;
        assert!(used.abs_diff(charged) * 100 <= 3 * of_cache, "{name}: {each} bytes a block used, {of_each} charged");
        let most = match *name {
            // These remember more evicted ids than they hold.
            "lirs" => 260,
            "dear" => 720,
            "adaptive" => 200,
            _ => 120,
        };
        assert!(used <= most * CAPACITY, "{name}: {each} bytes a block used");
    }
}
