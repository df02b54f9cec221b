//! How long the tests of each crate may take on two cores, in seconds.
//!
//! Owns: the table. A crate over its budget is named, and one that takes a multiple of it is killed; together they must
//! stay inside the sum, fifteen minutes at most after the build (`report`). Longer runs belong into `make soak`.

/// The budget of a crate that is not in the table. *Units*: seconds.
const DEFAULT_SECONDS: u64 = 10;

/// A process is killed at this many times its crate's budget: it hangs.
pub const KILL_FACTOR: u64 = 3;

/// The name under which the examples in doc comments are run.
pub const DOCTESTS: &str = "doc examples";

const SECONDS: &[(&str, u64)] = &[
    ("nectary-block", 30),
    ("nectary-host", 5),
    ("nectary-cache", 30),
    ("nectary-buffer", 10),
    ("nectary-nbd", 5),
    ("nectary-ram", 35),
    ("nectary-sim", 135),
    ("nectary-store", 35),
    ("nectary-fuzz", 10),
    ("nectary-trace", 20),
    ("nectary-attach", 20),
    ("nectary-fuse", 5),
    ("nectary-proxy", 30),
    ("nectary-bench", 10),
    ("nectary-foyer", 20),
    ("nectary", 20),
    ("nectary-capi", 5),
    ("nectary-e2e", 400),
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

    /// The sum of all budgets may not pass this. *Units*: seconds.
    const TOTAL_SECONDS_MAX: u64 = 900;

    #[test]
    fn the_budgets_stay_within_fifteen_minutes() {
        let sum: u64 = SECONDS.iter().map(|entry| entry.1).sum();
        assert!(sum <= TOTAL_SECONDS_MAX, "{sum} s");
    }
}
