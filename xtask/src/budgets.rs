//! The time budgets: the longest time that the tests of each crate may take on two cores.
//!
//! Owns: the table of budgets. A crate that exceeds its budget is reported; a test program that takes [`KILL_FACTOR`]
//! times the budget of its crate is killed. All crates together must stay within the sum of the budgets, which is at
//! most fifteen minutes after the build (`report`). Longer runs belong in `make soak`.

/// The budget of a crate that is not in the table. *Units*: seconds.
const DEFAULT_SECONDS: u64 = 10;

/// A process that takes longer than its crate's budget times this factor is assumed to hang, and is killed.
pub const KILL_FACTOR: u64 = 3;

/// The name of the budget for the examples in doc comments.
pub const DOCTESTS: &str = "doc examples";

const SECONDS: &[(&str, u64)] = &[
    ("nectary-block", 18),
    ("nectary-host", 5),
    ("nectary-config", 5),
    ("nectary-cache", 10),
    ("nectary-buffer", 5),
    ("nectary-nbd", 5),
    ("nectary-ram", 150),
    ("nectary-sim", 135),
    ("nectary-store", 25),
    ("nectary-fuzz", 5),
    ("nectary-trace", 5),
    ("nectary-attach", 10),
    ("nectary-fuse", 5),
    ("nectary-proxy", 85),
    ("nectary-bench", 5),
    ("nectary-volume", 45),
    ("nectary-foyer", 5),
    ("nectary", 20),
    ("nectary-capi", 5),
    ("nectary-e2e", 317),
    ("xtask", 10),
    (DOCTESTS, 25),
];

/// The budget of a crate, in seconds.
pub fn seconds(name: &str) -> u64 {
    SECONDS.iter().find(|entry| entry.0 == name).map_or(DEFAULT_SECONDS, |entry| entry.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest allowed sum of all budgets. *Units*: seconds.
    const TOTAL_SECONDS_MAX: u64 = 900;

    #[test]
    fn the_budgets_stay_within_fifteen_minutes() {
        let sum: u64 = SECONDS.iter().map(|entry| entry.1).sum();
        assert!(sum <= TOTAL_SECONDS_MAX, "{sum} s");
    }
}
