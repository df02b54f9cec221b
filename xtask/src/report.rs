//! What was run and how it went, and the summary at the end.
//!
//! Owns: the counts and the form of the last lines. A check counts as one test; a test that printed `NOT RUN` counts as
//! skipped, not as passed.

use std::time::Duration;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct Report {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
    not_run: Vec<String>,
    timings: Vec<Timing>,
}

#[derive(Debug)]
struct Timing {
    name: String,
    taken: Duration,
    budget_seconds: u64,
}

impl Report {
    /// Counts tests that passed.
    pub fn passed(&mut self, count: u64) {
        self.passed += count;
    }

    /// Counts tests that were skipped without a reason of their own.
    pub fn skipped(&mut self, count: u64) {
        self.skipped += count;
    }

    /// Counts one failure, with what failed.
    pub fn failed(&mut self, what: impl Into<String>) {
        self.failed += 1;
        self.failures.push(what.into());
    }

    /// Counts one test that could not be run here, with the reason that it gave.
    pub fn not_run(&mut self, reason: impl Into<String>) {
        self.skipped += 1;
        self.not_run.push(reason.into());
    }

    /// Adds a further reason of a test that is counted already.
    pub fn not_run_also(&mut self, reason: impl Into<String>) {
        self.not_run.push(reason.into());
    }

    /// Prints and records how long something took; over its budget it is a failure.
    pub fn timed(&mut self, name: &str, taken: Duration, budget_seconds: u64) {
        println!("== {name}: {:.1} s of {budget_seconds} s", taken.as_secs_f64());
        if taken > Duration::from_secs(budget_seconds) {
            self.failed(format!("{name} took {:.1} s, its budget is {budget_seconds} s", taken.as_secs_f64()));
        }
        self.timings.push(Timing { name: name.to_owned(), taken, budget_seconds });
    }

    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// The summary; its last line is the count.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        if !self.timings.is_empty() {
            text += "\nTime taken, and the budget\n";
            for Timing { name, taken, budget_seconds } in &self.timings {
                text += &format!("  {name:<20} {:>7.1} s  of {budget_seconds:>4} s\n", taken.as_secs_f64());
            }
        }
        for failure in &self.failures {
            text += &format!("FAILED {failure}\n");
        }
        text += &format!("NOT RUN {}\n", self.not_run.len());
        for reason in &self.not_run {
            text += &format!("  {reason}\n");
        }
        text + &format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_count_alone() {
        let mut report = Report::default();
        report.passed(12);
        report.not_run("loop device: not root");
        report.failed("store: it broke");
        report.timed("nectary-store", Duration::from_secs(3), 2);
        let summary = report.summary();
        assert!(summary.ends_with("\n12 passed, 2 failed, 1 skipped\n"), "{summary}");
        assert!(summary.contains("NOT RUN 1\n  loop device: not root\n"), "{summary}");
        assert!(summary.contains("FAILED nectary-store took 3.0 s, its budget is 2 s"), "{summary}");
        assert!(!report.is_good());
    }
}
