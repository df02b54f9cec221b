//! Reading what Rust's test runner prints.
//!
//! Owns: the counts of the `test result:` lines, the names of failed tests, and `NOT RUN: reason` lines with the tests
//! that printed them. The runner must be started with `--show-output`, or tests that passed keep their output.

use crate::report::Report;

/// What one or more test programs said.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed, by name.
    pub failed: Vec<String>,
    /// How many failed by the runner's own count.
    pub failed_count: u64,
    /// Tests marked `#[ignore]`.
    pub ignored: u64,
    /// Reasons given for what was not run, with the test that gave each; empty where none was named.
    pub not_run: Vec<(String, String)>,
    /// How many `test result:` lines there were.
    pub results: u64,
}

impl Counts {
    /// Reads the output of test programs.
    pub fn parse(output: &str) -> Counts {
        let mut counts = Counts::default();
        let mut section = String::new();
        for line in output.lines() {
            let line = line.trim_end();
            if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
                section = name.to_owned();
            } else if matches!(line, "successes:" | "failures:") {
                section.clear();
            } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
                counts.failed.push(name.to_owned());
            } else if let Some(result) = line.strip_prefix("test result: ") {
                counts.results += 1;
                counts.passed += number_before(result, " passed");
                counts.failed_count += number_before(result, " failed");
                counts.ignored += number_before(result, " ignored");
                section.clear();
            } else if let Some((_, reason)) = line.split_once("NOT RUN: ") {
                counts.not_run.push((section.clone(), reason.to_owned()));
            }
        }
        counts
    }

    /// Adds these counts, of the tests of `name`, to a report.
    pub fn add_to(&self, report: &mut Report, name: &str) {
        let mut passed = self.passed;
        let mut counted: Vec<&str> = Vec::new();
        for (test, reason) in &self.not_run {
            let place = if test.is_empty() { name.to_owned() } else { format!("{name}: {test}") };
            if test.is_empty() || counted.contains(&test.as_str()) || self.failed.contains(test) {
                report.not_run_also(format!("{place}: {reason}"));
            } else {
                counted.push(test);
                passed = passed.saturating_sub(1);
                report.not_run(format!("{place}: {reason}"));
            }
        }
        report.passed(passed);
        report.skipped(self.ignored);
        for test in &self.failed {
            report.failed(format!("{name}: {test}"));
        }
        for _ in self.failed.len() as u64..self.failed_count {
            report.failed(format!("{name}: a test whose name was not printed"));
        }
    }
}

/// The number that stands before `word`; 0 where there is none.
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split_once(word).map_or("", |parts| parts.0);
    before.rsplit(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 5 tests
test a ... ok
test b::c ... FAILED
test d ... ignored
test e ... ok

successes:

---- e stdout ----
NOT RUN: loop device: not root
NOT RUN: FUSE: no /dev/fuse

---- a stdout ----
seed 7

failures:

---- b::c stdout ----
thread 'b::c' panicked

failures:
    b::c

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    #[test]
    fn counts_failures_and_reasons_are_found() {
        let counts = Counts::parse(OUTPUT);
        assert_eq!((counts.passed, counts.failed_count, counts.ignored, counts.results), (2, 1, 1, 1));
        assert_eq!(counts.failed, ["b::c"]);
        assert_eq!(counts.not_run[0], ("e".to_owned(), "loop device: not root".to_owned()));
        let mut report = Report::default();
        counts.add_to(&mut report, "x");
        assert!(report.summary().ends_with("\n1 passed, 1 failed, 2 skipped\n"), "{}", report.summary());
        assert!(report.summary().contains("NOT RUN 2\n"));
    }
}
