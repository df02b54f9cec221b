//! The results of a run, and the summary at the end.
//!
//! Owns: the counts, and the format of the last lines: what failed comes last, before the counts. A check counts as
//! one test; a test that printed `NOT RUN` counts as skipped, not as passed. Each crate has a time budget. What other
//! programs took of the processors meanwhile is taken from its time. A crate that exceeds its budget is only reported.
//! The run fails only if all crates together exceed the sum of their budgets.

use std::time::Duration;

/// The work of others is told where it leaves less than this share of a time.
const SHARE_TOLD: f64 = 0.9;

/// The counts of a run.
#[derive(Debug, Default)]
pub struct TestReport {
    passed: u64,
    failed: u64,
    skipped: u64,
    failures: Vec<String>,
    not_run: Vec<String>,
    timings: Vec<CrateTiming>,
    /// The time from the first test to the last, without the share of other programs. Some tests run beside others, so
    /// it is less than the sum of all.
    own: Duration,
}

#[derive(Debug)]
struct CrateTiming {
    name: String,
    taken: Duration,
    /// The time without the share of other programs.
    own: Duration,
    budget_seconds: u64,
}

impl TestReport {
    /// Counts tests that passed.
    pub fn passed(&mut self, count: u64) {
        self.passed += count;
    }

    /// Counts tests that were skipped and gave no reason.
    pub fn skipped(&mut self, count: u64) {
        self.skipped += count;
    }

    /// Counts one failure; `what` describes it.
    pub fn failed(&mut self, what: impl Into<String>) {
        self.failed += 1;
        self.failures.push(what.into());
    }

    /// Counts one test that could not be run here, with its reason.
    pub fn not_run(&mut self, reason: impl Into<String>) {
        self.skipped += 1;
        self.not_run.push(reason.into());
    }

    /// Records another reason for a test that was not run, and does not count the test again.
    pub fn not_run_also(&mut self, reason: impl Into<String>) {
        self.not_run.push(reason.into());
    }

    /// Records how long the tests of a crate took, and the share of the processors that other programs had meanwhile.
    pub fn timed(&mut self, name: &str, taken: Duration, others: f64, budget_seconds: u64) {
        let own = taken.mul_f64(1.0 - others);
        self.timings.push(CrateTiming { name: name.to_owned(), taken, own, budget_seconds });
    }

    /// Adds the results of other tests.
    pub fn add(&mut self, other: TestReport) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.not_run.extend(other.not_run);
        self.timings.extend(other.timings);
    }

    /// Records how long all tests took together, and the share of the processors that other programs had meanwhile.
    pub fn took(&mut self, taken: Duration, others: f64) {
        self.own += taken.mul_f64(1.0 - others);
    }

    /// Counts a failure if all tests together took longer than the sum of their budgets.
    pub fn judge_time(&mut self) {
        let taken = self.own;
        let budget_seconds = self.timings.iter().map(|timing| timing.budget_seconds).sum();
        if taken > Duration::from_secs(budget_seconds) {
            self.failed(format!("the tests took {:.1} s, their budget is {budget_seconds} s", taken.as_secs_f64()));
        }
    }

    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed == 0
    }

    /// The summary; its last line has the counts, and the lines before it are what failed.
    pub fn summary(&self) -> String {
        let mut text = String::new();
        if !self.timings.is_empty() {
            text += "\nTime taken, and the budget\n";
            for CrateTiming { name, taken, own, budget_seconds } in &self.timings {
                let over = if *own > Duration::from_secs(*budget_seconds) { "  OVER" } else { "" };
                let (taken, own) = (taken.as_secs_f64(), own.as_secs_f64());
                let beside =
                    if own < taken * SHARE_TOLD { format!("  ({own:.1} s without others)") } else { String::new() };
                text += &format!("  {name:<20} {taken:>7.1} s  of {budget_seconds:>4} s{over}{beside}\n");
            }
        }
        text += &format!("NOT RUN {}\n", self.not_run.len());
        for reason in &self.not_run {
            text += &format!("  {reason}\n");
        }
        for failure in &self.failures {
            text += &format!("FAILED {failure}\n");
        }
        text + &format!("{} passed, {} failed, {} skipped\n", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_line_is_the_count() {
        let mut report = TestReport::default();
        report.passed(12);
        report.not_run("loop device: not root");
        report.failed("store: it broke");
        report.timed("nectary-store", Duration::from_secs(3), 0.0, 2);
        report.timed("nectary-block", Duration::from_millis(500), 0.0, 1);
        report.took(Duration::from_millis(3500), 0.0);
        report.judge_time();
        let summary = report.summary();
        assert!(summary.ends_with("\n12 passed, 2 failed, 1 skipped\n"), "{summary}");
        assert!(summary.contains("NOT RUN 1\n  loop device: not root\n"), "{summary}");
        let failures = "\nFAILED store: it broke\nFAILED the tests took 3.5 s, their budget is 3 s\n12 passed";
        assert!(summary.contains(failures), "{summary}");
        assert!(!report.is_good());
    }

    /// The run does not fail while all crates together are within their budget.
    #[test]
    fn crate_over_budget_is_named() {
        let mut report = TestReport::default();
        report.timed("nectary-store", Duration::from_secs(3), 0.0, 2);
        report.timed("nectary-block", Duration::from_secs(1), 0.0, 5);
        report.took(Duration::from_secs(4), 0.0);
        report.judge_time();
        let summary = report.summary();
        assert!(report.is_good() && summary.contains("nectary-store            3.0 s  of    2 s  OVER\n"), "{summary}");
    }

    #[test]
    fn what_others_took_is_not_counted() {
        let mut report = TestReport::default();
        report.timed("nectary-store", Duration::from_secs(3), 0.5, 2);
        report.took(Duration::from_secs(3), 0.5);
        report.judge_time();
        let summary = report.summary();
        assert!(report.is_good() && summary.contains("3.0 s  of    2 s  (1.5 s without others)\n"), "{summary}");
    }
}
