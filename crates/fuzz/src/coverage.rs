//! The code that a run reached, measured with the counters that `-C instrument-coverage` adds to Nectary's crates.
//!
//! Owns: the reading and clearing of the counters, and the set of all reached features. A feature is a counter together
//! with the magnitude of its count. A default build has no counters, so it finds no features.

/// All features reached so far.
#[derive(Debug, Default)]
pub struct FeatureCoverage {
    /// For each counter, a bit for each magnitude of its count.
    seen: Vec<u8>,
    features: usize,
}

impl FeatureCoverage {
    /// Makes an empty set of features.
    pub fn new() -> FeatureCoverage {
        FeatureCoverage::default()
    }

    /// The number of features reached so far.
    pub fn features(&self) -> usize {
        self.features
    }

    /// Adds the features since the counters were cleared, and clears the counters; returns the number of new features.
    pub fn take(&mut self) -> usize {
        let mut new = 0;
        counted(|index, count| {
            if self.seen.len() <= index {
                self.seen.resize(index + 1, 0);
            }
            let bit = 1 << size_of_count(count);
            if self.seen[index] & bit == 0 {
                self.seen[index] |= bit;
                new += 1;
            }
        });
        self.features += new;
        new
    }
}

/// Returns the features since the counters were cleared, and clears the counters.
pub fn features() -> Vec<(u32, u8)> {
    let mut features = Vec::new();
    counted(|index, count| features.push((index as u32, size_of_count(count))));
    features
}

/// Clears the counters.
pub fn clear() {
    counted(|_, _| {});
}

fn size_of_count(count: u64) -> u8 {
    match count {
        0..=3 => count.saturating_sub(1) as u8,
        4..=7 => 3,
        8..=31 => 4,
        32..=127 => 5,
        128..=1023 => 6,
        _ => 7,
    }
}

/// Whether this build has counters.
pub const IS_COUNTED: bool = cfg!(nectary_coverage);

#[cfg(nectary_coverage)]
fn counted(mut visit: impl FnMut(usize, u64)) {
    unsafe extern "C" {
        safe fn __llvm_profile_begin_counters() -> *mut u64;
        safe fn __llvm_profile_end_counters() -> *mut u64;
    }
    let (begin, end) = (__llvm_profile_begin_counters(), __llvm_profile_end_counters());
    // SAFETY: the linker puts all counters, aligned, between these two addresses. A target ends its threads before it
    // returns, so no other thread changes a counter now.
    let counters = unsafe { std::slice::from_raw_parts_mut(begin, end.offset_from(begin).max(0) as usize) };
    for (chunk, counters) in counters.chunks_mut(CHUNK).enumerate() {
        // Skips this chunk if all its counters are zero. Most runs do not reach most of the code, so this saves time.
        if counters.iter().fold(0, |any, count| any | *count) == 0 {
            continue;
        }
        for (index, count) in counters.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            visit(chunk * CHUNK + index, std::mem::take(count));
        }
    }
}

/// The number of counters that are skipped together if all are zero.
#[cfg(nectary_coverage)]
const CHUNK: usize = 32;

#[cfg(not(nectary_coverage))]
fn counted(_: impl FnMut(usize, u64)) {}
