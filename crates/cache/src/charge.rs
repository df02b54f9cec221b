//! The memory of each policy's tables, known before they grow: what a cache charges against its memory.
//!
//! Owns: the sum over the structures of each policy. Promises: a policy with this capacity, whose ids all have weight 1,
//! uses at most this memory, and uses it (within 3 % of a cache of 4 KiB blocks) once all its orders have been used.
//! Leaves to others: the memory of one structure (each has its own `bytes_of`), and the memory of the blocks.
//!
//! `cargo run --release -p nectary-bench -- cache-memory` compares these figures with allocated and resident memory.

use crate::policies::{adaptive, arc, dear, gdsf, lfu, lhd, lirs, ordered, s3fifo, swept, two_q, w_tinylfu};
use crate::structures::arena::Arena;
use crate::{AdaptiveTuning, WatchedPolicy};

/// The memory of the tables of a policy that holds up to `capacity` ids of weight 1. *Units*: bytes. *Returns* 0 for an
/// unknown policy. *Cost*: some hundred steps.
///
/// ```
/// // At a million blocks LRU needs less than 60 bytes for each.
/// assert!(nectary_cache::table_bytes("lru", 1_000_000) < 60_000_000);
/// ```
pub fn table_bytes(policy: &str, capacity: u64) -> u64 {
    let count = usize::try_from(capacity).unwrap_or(usize::MAX / 1024).min(usize::MAX / 1024);
    match policy {
        "fifo" => ordered::bytes_of(count, false),
        "lru" | "mru" => ordered::bytes_of(count, true),
        "clock" | "sieve" => swept::bytes_of(count),
        "lfu" | "lfu-aged" => lfu::bytes_of(count),
        "2q" => two_q::bytes_of(count),
        "arc" => arc::bytes_of(count),
        "lirs" => lirs::bytes_of(count),
        "s3fifo" => s3fifo::bytes_of(count),
        "wtinylfu" => w_tinylfu::bytes_of(count),
        "gdsf" => gdsf::bytes_of(count),
        "lhd" => lhd::bytes_of(count),
        "dear" => dear::bytes_of(count),
        "adaptive" => of_adaptive(count) + WatchedPolicy::bytes_of(capacity),
        _ => 0,
    }
}

/// The memory of `adaptive` at `count` units of weight 1, if as many streams use it as it distinguishes. *Units*: bytes.
fn of_adaptive(count: usize) -> u64 {
    let tuning = AdaptiveTuning::default();
    let all = |names: &[&str], count: usize| names.iter().map(|name| table_bytes(name, count as u64)).sum::<u64>();
    let shift = adaptive::shift_of(count as u64, &tuning);
    if shift > 0 {
        let contents = tuning.candidates_sampled.iter().map(|name| table_bytes(name, count as u64)).max();
        return all(tuning.candidates_sampled, count >> shift) + contents.unwrap_or(0);
    }
    // The shadow caches, the contents, the owners of all known ids, and the parts and curves of all streams.
    let streams = adaptive::STREAMS_MAX;
    let owners = (count * 4 * 8 / 7).next_power_of_two() * (size_of::<(u64, u8)>() + 1);
    let parts = all(tuning.candidates, count / streams) * streams as u64;
    let scale = (0..).find(|scale| count as u64 >> scale <= tuning.curve_max).unwrap_or(0);
    let largest = adaptive::SIZES[adaptive::SIZES.len() - 1];
    let sizes = adaptive::SIZES.map(|size| ((count as u64 >> scale) * size / largest).max(1) as usize);
    let curve: u64 = sizes.iter().map(|size| all(&["lirs", "lru"], *size)).sum();
    all(tuning.candidates, count) + Arena::bytes_of(count) + owners as u64 + parts + curve * streams as u64
}
