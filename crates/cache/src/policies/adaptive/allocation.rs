//! Allocation: how much of the cache each stream should have.
//!
//! Owns: each stream's curve of misses against size, and the division that it calls for. Promises: a division sums to the
//! capacity. Leaves to others: taking and giving of blocks (`partition.rs`).
//!
//! # Idea
//! Small ghosts of a stream at nine sizes, of LIRS and of LRU each, count what the stream would miss with so much memory:
//! the better of the two is a point of its curve. A unit of memory goes where it saves most, so the curves are made convex
//! (the lower hull: a loop saves nothing until it almost fits, and then everything) and the steepest pieces of all hulls
//! are taken first, until the capacity is spent.
//!
//! Curves of more than [`EXACT_MAX`] units are sampled: only ids whose hash falls into one of 2^k parts are seen, by ghosts
//! of one 2^k-th of the size, as in SHARDS (Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS",
//! FAST 2015).

use crate::structures::hash::hash;
use crate::{Access, Policy, Stream, by_name};

/// The sizes of a curve's points. *Units*: parts of [`SIZES_OF`] of the capacity.
const SIZES: [u64; 9] = [1, 2, 4, 6, 8, 12, 16, 24, 32];
const SIZES_OF: u64 = 32;
/// What each size is tried with.
const POLICIES: [&str; 2] = ["lirs", "lru"];
/// Above this curves are sampled. *Units*: units of weight.
const EXACT_MAX: u64 = 1024;

/// One corner of a hull: a share of the capacity, and the misses with it.
type Corner = (f64, f64);

/// The curve of one stream.
pub(super) struct Curve {
    ghosts: Vec<(Box<dyn Policy>, f64)>,
    references: f64,
    shift: u32,
    hull: Vec<Corner>,
}

impl Curve {
    /// A curve up to `capacity` of a stream of which nothing is known.
    pub(super) fn new(capacity: u64) -> Curve {
        let mut shift = 0;
        while capacity >> shift > EXACT_MAX {
            shift += 1;
        }
        let sizes = SIZES
            .iter()
            .map(|size| ((u128::from(capacity >> shift) * u128::from(*size) / u128::from(SIZES_OF)) as u64).max(1));
        let ghosts = POLICIES
            .iter()
            .flat_map(|name| sizes.clone().filter_map(|size| Some((by_name(name, size)?, 0.0))))
            .collect();
        Curve { ghosts, references: 0.0, shift, hull: Vec::with_capacity(SIZES.len() + 1) }
    }

    /// Counts a reference.
    pub(super) fn count(&mut self, id: u64, weight: u64) {
        // The table in a policy uses the same hash: its top bits and its low ones. The sample is taken from the middle.
        if (hash(id) >> 24) & ((1 << self.shift) - 1) != 0 {
            return;
        }
        self.references += 1.0;
        for (policy, misses) in &mut self.ghosts {
            if policy.reference(id, weight, Stream(0), &mut |_| true) != Access::Hit {
                *misses += 1.0;
            }
        }
    }

    /// Lets the past fade by a factor.
    pub(super) fn fade(&mut self, factor: f64) {
        self.references *= factor;
        for (_, misses) in &mut self.ghosts {
            *misses *= factor;
        }
    }

    /// Works out the hull from what was counted.
    pub(super) fn update(&mut self) {
        let scale = (1_u64 << self.shift) as f64;
        self.hull.clear();
        self.hull.push((0.0, self.references * scale));
        for (index, size) in SIZES.iter().enumerate() {
            let misses = (0..POLICIES.len())
                .filter_map(|policy| self.ghosts.get(policy * SIZES.len() + index))
                .fold(f64::MAX, |least, (_, misses)| least.min(*misses));
            let last = self.hull.last().map_or(0.0, |corner| corner.1);
            let corner = (*size as f64 / SIZES_OF as f64, last.min(misses * scale));
            while let [.., before, last] = self.hull[..] {
                if (last.1 - before.1) * (corner.0 - before.0) < (corner.1 - before.1) * (last.0 - before.0) {
                    break;
                }
                self.hull.pop();
            }
            self.hull.push(corner);
        }
    }

    /// The misses with a share of the capacity, by the hull.
    pub(super) fn misses(&self, share: f64) -> f64 {
        for pair in self.hull.windows(2) {
            if share <= pair[1].0 {
                return pair[0].1 + (pair[1].1 - pair[0].1) * (share - pair[0].0) / (pair[1].0 - pair[0].0);
            }
        }
        self.hull.last().map_or(0.0, |corner| corner.1)
    }
}

/// Divides the capacity: the steepest pieces of the hulls first; what no stream gains from goes in proportion to `shares`.
pub(super) fn divide<'a>(
    curves: impl Iterator<Item = &'a Curve> + Clone,
    shares: &[f64],
    pieces: &mut Vec<(f64, usize, f64)>,
    division: &mut Vec<f64>,
) {
    pieces.clear();
    division.clear();
    for (stream, curve) in curves.enumerate() {
        division.push(0.0);
        for pair in curve.hull.windows(2) {
            let width = pair[1].0 - pair[0].0;
            pieces.push(((pair[0].1 - pair[1].1) / width, stream, width));
        }
    }
    pieces.sort_unstable_by(|left, right| right.0.total_cmp(&left.0).then(left.1.cmp(&right.1)));
    let mut left = 1.0_f64;
    for &(gain, stream, width) in pieces.iter() {
        if gain <= 0.0 || left <= 0.0 {
            break;
        }
        let given = width.min(left);
        division[stream] += given;
        left -= given;
    }
    let total: f64 = shares.iter().sum();
    if left > 0.0 && total > 0.0 {
        for (given, share) in division.iter_mut().zip(shares) {
            *given += left * share / total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(capacity: u64, ids: impl Iterator<Item = u64>) -> Curve {
        let mut curve = Curve::new(capacity);
        for id in ids {
            curve.count(id, 1);
        }
        curve.update();
        curve
    }

    #[test]
    fn a_loop_that_fits_gets_what_it_needs_and_a_scan_gets_nothing() {
        let looping = curve(320, (0..5000).map(|step| step % 90));
        let scan = curve(320, 10_000..15_000);
        let mut division = Vec::new();
        divide([&looping, &scan].into_iter(), &[0.5, 0.5], &mut Vec::new(), &mut division);
        assert!(division[0] >= 0.28 && (division.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{division:?}");
        assert!(looping.misses(0.5) < 200.0 && scan.misses(0.5) == 5000.0);
    }

    #[test]
    fn a_sampled_curve_is_close_to_the_whole_one() {
        let misses = curve(16 * EXACT_MAX, (0..200_000).map(|step| step % 9000)).misses(0.75);
        assert!((misses - 9000.0).abs() < 1500.0, "{misses}");
    }
}
