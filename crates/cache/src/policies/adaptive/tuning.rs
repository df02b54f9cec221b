//! The constants of `adaptive`, each with its unit and its reason.
//!
//! Owns: the numbers ([`AdaptiveTuning::default`]). Promises: `research cache-figures --only ablation` varies each of them.

/// The constants, and switches with which the ablation study turns parts off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaptiveTuning {
    /// The largest cache whose shadow caches see all ids; those of a larger cache see a sample. It is small enough for a
    /// processor's cache, and large enough to distinguish policies that differ by a percent. *Units*: units of weight.
    pub sample_max: u64,
    /// The number of accesses in which a counted miss fades to 1/e. A stream without an access in that time has ended.
    /// Loops need several rounds to show which policy is better. *Units*: accesses for each unit of capacity.
    pub window: f64,
    /// The lead that changes the leader, in square roots of the number of accesses that only one of the two missed.
    pub roots: f64,
    /// The first candidate's lead at the start if shadow caches see all ids. It fades. LIRS is first, because it is rarely
    /// far from the best. *Units*: misses for each unit of capacity.
    pub prior: f64,
    /// The saving for which the leader changes if shadow caches see a sample. *Units*: misses for each unit of capacity,
    /// and for each miss of the leader in the window, whichever are more.
    pub change: f64,
    /// The number of times that a leader is chosen in as many accesses as the cache has units of capacity. A stream
    /// gives another stream 1/`steps` of the capacity at a time. Former contents hand over as many ids at an access.
    pub steps: u64,
    /// The largest shadow cache of a curve; it is small, because there are many. *Units*: units of weight.
    pub curve_max: u64,
    /// The candidates, at most seven; the first one leads at the start.
    pub candidates: &'static [&'static str],
    /// The candidates where shadow caches see a sample. LIRS is not one of them: it takes many accesses until contents that
    /// it did not choose are as good as its own, and its tables are large.
    pub candidates_sampled: &'static [&'static str],
    /// Whether the cache can be divided between streams.
    pub is_divided: bool,
}

impl Default for AdaptiveTuning {
    fn default() -> AdaptiveTuning {
        AdaptiveTuning {
            sample_max: 4 << 10,
            window: 10.0,
            roots: 1.0,
            prior: 0.2,
            change: 0.25,
            steps: 32,
            curve_max: 256,
            candidates: &["lirs", "lru", "s3fifo", "wtinylfu"],
            candidates_sampled: &["s3fifo", "wtinylfu", "lru"],
            is_divided: true,
        }
    }
}

impl AdaptiveTuning {
    /// The number of accesses from one choice of the leader to the next.
    pub(super) fn interval(&self, capacity: u64) -> u64 {
        (capacity / self.steps.max(1)).max(self.steps / 2).max(1)
    }

    /// The factor by which counts fade after one interval.
    pub(super) fn fade(&self, capacity: u64) -> f64 {
        (-(self.interval(capacity) as f64) / (self.window * capacity as f64).max(1.0)).exp()
    }
}
