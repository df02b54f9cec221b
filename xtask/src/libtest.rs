//! Reads the output of Rust's test runner.
//!
//! Owns: the counts of the `test result:` lines, the names of failed tests with their output, `NOT RUN: reason` lines
//! with the tests that printed them, and the choice of lines to show. The runner must be started with `--show-output`;
//! otherwise it hides the output of tests that passed.

use crate::failed_output;
use crate::report::TestReport;

/// Whether a line is shown immediately: output of tests and failures are, names of tests that passed are not.
pub fn is_told(line: &str) -> bool {
    let is_name = line.starts_with("    ") && !line.trim().contains(' ');
    let is_passed = line.starts_with("test ") && line.ends_with(" ... ok");
    !(is_name || is_passed || line.is_empty() || line == "successes:" || line.starts_with("running "))
}

/// The results of one or more test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TestCounts {
    /// The number of tests that passed.
    pub passed: u64,
    /// The name of each test that failed, with what the summary repeats of its output.
    pub failed: Vec<(String, String)>,
    /// The number of failed tests that the runner itself reports.
    pub failed_count: u64,
    /// The number of tests marked `#[ignore]`.
    pub ignored: u64,
    /// The name of each test that was not run, with the reason. The name is empty if the output does not have it.
    pub not_run: Vec<(String, String)>,
    /// The number of `test result:` lines.
    pub results: u64,
}

impl TestCounts {
    /// Reads the output of test programs.
    pub fn parse(output: &str) -> TestCounts {
        let mut counts = TestCounts::default();
        let mut section = String::new();
        let mut printed: Vec<(&str, Vec<&str>)> = Vec::new();
        let mut is_of_failures = false;
        for line in output.lines() {
            let line = line.trim_end();
            if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
                section = name.to_owned();
                printed.push((name, Vec::new()));
                // A quiet runner names the tests that failed only here.
                if is_of_failures && !counts.failed.iter().any(|failed| failed.0 == name) {
                    counts.failed.push((name.to_owned(), String::new()));
                }
            } else if matches!(line, "successes:" | "failures:") {
                section.clear();
                is_of_failures = line == "failures:";
            } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
                counts.failed.push((name.to_owned(), String::new()));
            } else if let Some(result) = line.strip_prefix("test result: ") {
                counts.results += 1;
                counts.passed += number_before(result, " passed");
                counts.failed_count += number_before(result, " failed");
                counts.ignored += number_before(result, " ignored");
                section.clear();
                is_of_failures = false;
            } else if let Some((_, reason)) = line.split_once("NOT RUN: ") {
                counts.not_run.push((section.clone(), reason.to_owned()));
            } else if !section.is_empty()
                && let Some((_, lines)) = printed.last_mut()
            {
                lines.push(line);
            }
        }
        for (name, text) in &mut counts.failed {
            let Some((_, lines)) = printed.iter().find(|(section, _)| section == name) else { continue };
            *text = failed_output::shortened(lines).iter().map(|line| format!("\n    {line}")).collect();
        }
        counts
    }

    /// Adds these counts to a report, under the name `name`.
    pub fn add_to(&self, report: &mut TestReport, name: &str) {
        let mut passed = self.passed;
        let mut counted: Vec<&str> = Vec::new();
        for (test, reason) in &self.not_run {
            let place = if test.is_empty() { name.to_owned() } else { format!("{name}: {test}") };
            if test.is_empty() || counted.contains(&test.as_str()) || self.failed.iter().any(|failed| failed.0 == *test)
            {
                report.not_run_also(format!("{place}: {reason}"));
            } else {
                counted.push(test);
                passed = passed.saturating_sub(1);
                report.not_run(format!("{place}: {reason}"));
            }
        }
        report.passed(passed);
        report.skipped(self.ignored);
        for (test, printed) in &self.failed {
            report.failed(format!("{name}: {test}{printed}"));
        }
        for _ in self.failed.len() as u64..self.failed_count {
            report.failed(format!("{name}: a test whose name was not printed"));
        }
    }
}

/// Returns the number before `word` in a text; 0 if there is none.
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
        let counts = TestCounts::parse(OUTPUT);
        assert_eq!((counts.passed, counts.failed_count, counts.ignored, counts.results), (2, 1, 1, 1));
        assert_eq!(counts.failed, [("b::c".to_owned(), "\n    thread 'b::c' panicked".to_owned())]);
        assert_eq!(counts.not_run[0], ("e".to_owned(), "loop device: not root".to_owned()));
        let mut report = TestReport::default();
        counts.add_to(&mut report, "x");
        assert!(report.summary().ends_with("\n1 passed, 1 failed, 2 skipped\n"), "{}", report.summary());
        assert!(report.summary().contains("NOT RUN 2\n"));
    }

    /// With `--quiet`, the name of a failed test is only that of its output.
    #[test]
    fn quiet_failures_are_named() {
        let lines = OUTPUT.lines().filter(|line| !line.starts_with("test ") || line.starts_with("test result"));
        let counts = TestCounts::parse(&lines.collect::<Vec<_>>().join("\n"));
        assert_eq!(counts.failed, [("b::c".to_owned(), "\n    thread 'b::c' panicked".to_owned())]);
    }

    /// Names of passed tests are left out; what tests print is not.
    #[test]
    fn passed_names_are_hidden() {
        let told: Vec<&str> = OUTPUT.lines().filter(|line| is_told(line)).collect();
        let expected = [
            "test b::c ... FAILED",
            "test d ... ignored",
            "---- e stdout ----",
            "NOT RUN: loop device: not root",
            "NOT RUN: FUSE: no /dev/fuse",
            "---- a stdout ----",
            "seed 7",
            "failures:",
            "---- b::c stdout ----",
            "thread 'b::c' panicked",
            "failures:",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        ];
        assert_eq!(told, expected);
    }
}
