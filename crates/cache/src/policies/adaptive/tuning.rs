//! The constants of `adaptive`, each with its unit and its reason.
//!
//! Owns: the numbers ([`Tuning::default`]). Promises: `cache-figures --only ablation` varies each of them.

/// The constants, and switches for the parts that the ablation leaves out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// The capacity of the largest shadow cache; shadow caches of a larger cache see a sample. It is small enough for a
    /// processor's cache, and large enough to distinguish policies that differ by a percent. *Units*: units of weight.
    pub sample_max: u64,
    /// The number of accesses in which a counted miss fades to 1/e. A stream has ended if none of the last `window`
    /// accesses is its own. *Units*: accesses for each unit of capacity. Loops need several rounds to show which policy
    /// is better.
    pub window: f64,
    /// The lead that changes the leader, in roots of the number of accesses that only one missed. One root is chance.
    pub roots: f64,
    /// The first candidate's lead at the start, if shadow caches see all ids, and if they see a sample; it fades with
    /// the window. LIRS is first, as it is rarely far from the best. *Units*: misses for each unit of capacity.
    pub prior: [f64; 2],
    /// The additional lead that changes the leader if shadow caches see a sample, because the new policy then begins
    /// empty. *Units*: misses for each unit of capacity.
    pub change: f64,
    /// How many times a leader is chosen per capacity of accesses. Streams exchange 1/`steps` of the capacity at once.
    pub steps: u64,
    /// The capacity of the largest shadow cache of a curve; there are many of these. *Units*: units of weight.
    pub curve_max: u64,
    /// The candidates, at most seven; the first one leads at the start.
    pub candidates: &'static [&'static str],
    /// Whether the cache can be divided between streams.
    pub is_divided: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            sample_max: 4 << 10,
            window: 10.0,
            roots: 1.0,
            prior: [0.2, 0.1],
            change: 0.03,
            steps: 32,
            curve_max: 256,
            candidates: &["lirs", "lru", "s3fifo", "wtinylfu"],
            is_divided: true,
        }
    }
}

impl Tuning {
    /// The number of accesses from one choice of the leader to the next.
    pub(super) fn interval(&self, capacity: u64) -> u64 {
        (capacity / self.steps.max(1)).max(self.steps / 2).max(1)
    }

    /// The factor by which counts fade after one interval.
    pub(super) fn fade(&self, capacity: u64) -> f64 {
        (-(self.interval(capacity) as f64) / (self.window * capacity as f64).max(1.0)).exp()
    }
}
