//! The constants of `adaptive`, each with its unit and its reason.
//!
//! Owns: the numbers ([`Tuning::default`]). Promises: `cache-figures --only ablation` varies each of them.

/// The constants, and switches for the parts that the ablation leaves out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// The largest shadow cache; those of larger caches see a sample. *Units*: units of weight. Small enough for a
    /// processor's cache, and large enough to distinguish policies that differ by a percent.
    pub sample_max: u64,
    /// For how many accesses misses count, and after how many accesses of others a stream has ended. *Units*: accesses
    /// for each unit of capacity. Loops need some rounds to show which policy is better.
    pub window: f64,
    /// A lead must be this many roots of the number of accesses at which only one of two missed. One root is chance.
    pub roots: f64,
    /// The lead of the first candidate at the start: if shadow caches see all ids, and if they see a sample. It fades
    /// with the window. *Units*: misses for each unit of capacity. LIRS is rarely far from the best.
    pub prior: [f64; 2],
    /// How large a lead must be if shadow caches see a sample, because the new policy then begins empty. *Units*:
    /// misses for each unit of capacity.
    pub change: f64,
    /// How often a leader is chosen in a capacity of accesses; 1/`steps` of the capacity moves between streams at once.
    pub steps: u64,
    /// The largest shadow cache of a curve; there are many of these. *Units*: units of weight.
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
    /// Accesses from one choice to the next.
    pub(super) fn interval(&self, capacity: u64) -> u64 {
        (capacity / self.steps.max(1)).max(self.steps / 2).max(1)
    }

    /// The factor by which counts fade after one interval.
    pub(super) fn fade(&self, capacity: u64) -> f64 {
        (-(self.interval(capacity) as f64) / (self.window * capacity as f64).max(1.0)).exp()
    }
}
