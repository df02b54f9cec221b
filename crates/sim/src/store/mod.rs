//! Tests of the store: workloads, the promises made to them, and whether a store keeps the promises.
//!
//! Owns: models of the store that share no code with it, and checkers that compare. Leaves to others: the possible
//! crash states (`crate::crash`), and the store itself.

pub mod chain_run;
pub mod concurrent;
pub mod crash_check;
pub mod crash_run;
pub mod directed;
pub mod expectation;
pub mod fault_run;
pub mod random_run;
pub mod shard_run;
pub mod spans_run;
pub mod unreadable;
pub mod waiting_run;
pub mod workload;

/// The body of a version of a key: a pure function, so that any mix of two versions is noticed.
pub fn body(salt: u64, key: u32, version: u32, length: usize) -> Vec<u8> {
    let mut state = salt ^ u64::from(key) << 32 ^ u64::from(version).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bytes.extend_from_slice(&(mixed ^ mixed >> 27).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The primary part of a key's name.
pub fn primary(key: u32) -> Vec<u8> {
    format!("http://model.invalid/{key}").into_bytes()
}

/// The name of a tag.
pub fn tag(number: u32) -> Vec<u8> {
    format!("tag {number}").into_bytes()
}

/// The variant part of a key's name: some keys have one.
pub fn variant(key: u32) -> &'static [u8] {
    if key % 5 == 3 { b"gzip" } else { b"" }
}
