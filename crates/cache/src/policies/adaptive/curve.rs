//! A stream's curve of misses against size, measured by small shadow caches of LIRS and of LRU, for `division.rs`.
//!
//! The shadow caches see a sample of the ids, one in 2^k by their hash, and have 1/2^k of the size, as in SHARDS
//! (Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS", FAST 2015). More memory saves no
//! misses of a loop until the loop almost fits; then it saves all. So the division uses the curve's convex hull.

use super::panel::candidate;
use super::tuning::AdaptiveTuning;
use crate::structures::hash::hash;
use crate::{AccessResult, Policy, StreamId};

/// The measured sizes. *Units*: 1/32 of the capacity.
pub(crate) const SIZES: [u64; 9] = [1, 2, 4, 6, 8, 12, 16, 24, 32];

/// The curve of one stream.
pub(super) struct StreamCurve {
    /// For each size, a cache of LIRS and a cache of LRU, each with its misses.
    points: Vec<[(Box<dyn Policy>, f64); 2]>,
    accesses: f64,
    shift: u32,
}

impl StreamCurve {
    /// The curve of a new stream, for sizes up to `capacity`.
    pub(super) fn new(capacity: u64, tuning: AdaptiveTuning) -> StreamCurve {
        let shift = (0..).find(|shift| capacity >> shift <= tuning.curve_max).unwrap_or(0);
        let size = |size: &u64| ((capacity >> shift) * size / SIZES[SIZES.len() - 1]).max(1);
        let points =
            SIZES.iter().map(|parts| ["lirs", "lru"].map(|name| (candidate(name, size(parts)), 0.0))).collect();
        StreamCurve { points, accesses: 0.0, shift }
    }

    /// Counts an access.
    pub(super) fn count(&mut self, id: u64, weight: u64) {
        // The sample uses other hash bits than tables (top and low bits) and the panel's sample (from bit 40 on).
        if (hash(id) >> 24) & ((1 << self.shift) - 1) != 0 {
            return;
        }
        self.accesses += 1.0;
        for (policy, misses) in self.points.iter_mut().flatten() {
            *misses += f64::from(policy.reference(id, weight, StreamId(0), &mut |_| true) != AccessResult::Hit);
        }
    }

    /// Multiplies all counts by a factor, so that older accesses count less.
    pub(super) fn fade(&mut self, factor: f64) {
        self.accesses *= factor;
        self.points.iter_mut().flatten().for_each(|(_, misses)| *misses *= factor);
    }

    /// The corners of the curve's convex hull: a share of the capacity, and the misses of a cache of that share.
    pub(super) fn hull(&self) -> Vec<(f64, f64)> {
        let scale = (1_u64 << self.shift) as f64;
        let mut hull = vec![(0.0, self.accesses * scale)];
        for (size, [lirs, lru]) in SIZES.iter().zip(&self.points) {
            let least = hull.last().map_or(0.0, |corner| corner.1).min(lirs.1.min(lru.1) * scale);
            let corner = (*size as f64 / SIZES[SIZES.len() - 1] as f64, least);
            while let [.., before, last] = hull[..] {
                if (last.1 - before.1) * (corner.0 - before.0) < (corner.1 - before.1) * (last.0 - before.0) {
                    break;
                }
                hull.pop();
            }
            hull.push(corner);
        }
        hull
    }
}
