//! The constants that decisions rest on, each with its unit and its reason.
//!
//! Owns: the numbers ([`Tuning::default`]). Promises: `cache-figures --only ablation` runs without each, or with another.

/// The constants, and the parts that the ablation leaves out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tuning {
    /// The most that shadow caches hold; of larger caches they are a sample. *Units*: units of weight. Few enough for a
    /// processor's cache, and enough to distinguish policies that differ by a percent.
    pub sample_max: u64,
    /// The window in which misses count, and after which a stream without an access has ended. *Units*: accesses for
    /// each unit of capacity. Loops need some rounds to show which policy is better.
    pub window: f64,
    /// A lead must be so many roots of the accesses at which just one of two missed. One is what chance does.
    pub roots: f64,
    /// The lead of the first candidate at the start, where the contents follow, and where a sample chooses; it fades
    /// with the window. *Units*: misses for each unit of capacity. LIRS is rarely far from the best.
    pub prior: [f64; 2],
    /// A lead must be so large where a sample chooses. *Units*: misses for each unit of capacity. There the new policy
    /// begins empty.
    pub change: f64,
    /// A leader is chosen so many times in a capacity of accesses; one part in so many moves to another stream at a time.
    pub steps: u64,
    /// The most that a shadow cache of a curve holds. *Units*: units of weight. There are many of them.
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

    /// What is left of a count after one interval.
    pub(super) fn fade(&self, capacity: u64) -> f64 {
        (-(self.interval(capacity) as f64) / (self.window * capacity as f64).max(1.0)).exp()
    }
}
