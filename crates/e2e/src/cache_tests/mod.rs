//! Runs the cache-tests suite against Nectary and other proxies.
//!
//! Owns: a run of the suite and the meaning of its figures. `suite` installs it with npm and runs it, `contestants` has
//! the configurations, `explanations` has the reasons of failures, `page` writes the results.
//!
//! Promises: the suite's own code decides what passes, including dependencies between its tests; its browser-only tests
//! are not run. Tests that HTTP/2 has no words for are counted apart. All contestants run at the same time in front of the same origin, because the suite mostly waits.

pub mod contestants;
pub mod explanations;
pub mod page;
pub mod suite;

use anyhow::{Context, Result};
use serde::Deserialize;
use std::thread;

use contestants::SuiteContestant;
use suite::InstalledSuite;

/// The most tests that may be left out because HTTP/2 has no words for them: interim responses, which the suite reads
/// with a client of its own, and headers of the connection.
const INEXPRESSIBLE_MAX: usize = 8;

/// The two layouts of the suite; the repository has been corrected since the package was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuiteLayout {
    /// The package, with 157 required and 86 optimal tests.
    Package,
    /// The repository, with 160 required and 105 optimal tests.
    Repository,
}

impl SuiteLayout {
    /// The number of tests of a kind that Nectary may fail: 158 of 160 required and 95 of 105 optimal tests of the
    /// repository pass.
    pub fn failures_max(self, kind: &str) -> usize {
        match (self, kind) {
            (SuiteLayout::Repository, "required") => 2,
            (SuiteLayout::Repository, _) => 10,
            // Sixteen of these tests have since been corrected in the repository or turned into checks, and each is
            // explained. The other two tests fail with the repository's version, too.
            (SuiteLayout::Package, "required") => 18,
            (SuiteLayout::Package, _) => 10,
        }
    }
}

/// A suite's version and layout, and its results.
#[derive(Clone, Debug)]
pub struct SuiteResults {
    /// The version that the suite reports.
    pub version: String,
    /// Its layout.
    pub layout: SuiteLayout,
    /// The results of each contestant, in order; the first are Nectary's, one for each protocol.
    pub outcomes: Vec<SuiteOutcome>,
}

/// One test of the suite, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SuiteTestResult {
    /// The suite's name of the test.
    pub id: String,
    /// The part of the suite.
    pub group: String,
    /// The suite's description of the test.
    pub name: String,
    /// `required`, `optimal`, or `check`, which can neither pass nor fail.
    pub kind: String,
    /// `pass`, `fail`, `yes`, `no`, `dependency` (a test that it depends on did not pass), `setup`, `harness`, `retry`,
    /// `inexpressible` (HTTP/2 has no words for it).
    pub result: String,
    /// The tests that it depends on and that did not pass.
    pub failed: Vec<String>,
    /// The suite's report of a failure.
    pub detail: String,
}

/// The results of the suite in front of one contestant.
#[derive(Clone, Debug)]
pub struct SuiteOutcome {
    /// Name and version.
    pub name: String,
    /// Every test that is not browser-only.
    pub rows: Vec<SuiteTestResult>,
}

/// The output of one run of the suite's client.
#[derive(Debug, Deserialize)]
pub(crate) struct SuiteOutput {
    pub version: String,
    pub layout: SuiteLayout,
    pub rows: Vec<SuiteTestResult>,
}

impl SuiteOutcome {
    /// Returns the number of tests of a kind that pass, and the number of all tests of that kind that can be expressed.
    pub fn passed(&self, kind: &str) -> (usize, usize) {
        let of_kind = || self.rows.iter().filter(|row| row.kind == kind && row.is_expressible());
        (of_kind().filter(|row| row.passes()).count(), of_kind().count())
    }

    /// The tests that should pass but do not.
    pub fn failures(&self) -> Vec<&SuiteTestResult> {
        self.rows.iter().filter(|row| row.kind != "check" && row.is_expressible() && !row.passes()).collect()
    }

    /// The tests that HTTP/2 has no words for.
    pub fn inexpressible(&self) -> Vec<&SuiteTestResult> {
        self.rows.iter().filter(|row| !row.is_expressible()).collect()
    }

    /// The problems in these results of Nectary: too many failures, or an unexplained failure.
    pub fn problems(&self, layout: SuiteLayout) -> Vec<String> {
        let mut problems = Vec::new();
        for kind in ["required", "optimal"] {
            let ((passed, count), failures_max) = (self.passed(kind), layout.failures_max(kind));
            if passed + failures_max < count || count == 0 {
                let wanted = count.saturating_sub(failures_max);
                problems.push(format!("{passed} of {count} {kind} tests pass, at least {wanted} are wanted"));
            }
        }
        let inexpressible = self.inexpressible().len();
        if inexpressible > INEXPRESSIBLE_MAX {
            let problem = format!("{inexpressible} tests are not expressed, of at most {INEXPRESSIBLE_MAX}");
            problems.push(problem);
        }
        for row in self.failures() {
            if explanations::of(row).is_none() {
                problems.push(format!("{} ({}) fails, and nothing explains it: {}", row.id, row.kind, row.detail));
            }
        }
        problems
    }
}

impl SuiteTestResult {
    fn passes(&self) -> bool {
        self.result == "pass"
    }

    fn is_expressible(&self) -> bool {
        self.result != "inexpressible"
    }
}

/// Runs the suite against all contestants concurrently.
///
/// *Errors*: there is no contestant, or the suite's client does not run to its end.
pub fn measure(suite: &InstalledSuite, contestants: &[SuiteContestant]) -> Result<SuiteResults> {
    let runs: Vec<Result<SuiteOutput>> = thread::scope(|scope| {
        let started: Vec<_> = contestants.iter().map(|contestant| scope.spawn(|| suite.run(contestant))).collect();
        started.into_iter().map(|run| run.join().expect("a run does not panic")).collect()
    });
    let mut measured = None;
    for (contestant, run) in contestants.iter().zip(runs) {
        let SuiteOutput { version, layout, rows } =
            run.with_context(|| format!("the suite in front of {}", contestant.name))?;
        let measured = measured.get_or_insert(SuiteResults { version, layout, outcomes: Vec::new() });
        measured.outcomes.push(SuiteOutcome { name: contestant.name.clone(), rows });
    }
    measured.context("nobody to run the suite against")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, kind: &str, result: &str) -> SuiteTestResult {
        let text = |text: &str| text.to_owned();
        SuiteTestResult {
            id: text(id),
            group: String::new(),
            name: String::new(),
            kind: text(kind),
            result: text(result),
            failed: Vec::new(),
            detail: String::new(),
        }
    }

    /// Too many failures are problems, and so are failures without an explanation.
    #[test]
    fn suite_reports_failures_as_problems() {
        let explained = explanations::ids().next().expect("some test is explained");
        let mut rows = vec![row("a", "required", "pass"), row("b", "optimal", "pass"), row("c", "check", "no")];
        let problems = |rows: &[SuiteTestResult]| {
            SuiteOutcome { name: String::new(), rows: rows.to_vec() }.problems(SuiteLayout::Repository)
        };
        assert_eq!(problems(&rows), Vec::<String>::new());
        for _ in 0..2 {
            rows.push(row(explained, "required", "fail"));
        }
        assert_eq!(problems(&rows), Vec::<String>::new());
        rows.push(row(explained, "required", "fail"));
        assert_eq!(problems(&rows).len(), 1);
        rows.push(row("unheard-of", "optimal", "dependency"));
        assert_eq!(problems(&rows).len(), 2);
        rows.extend((0..INEXPRESSIBLE_MAX).map(|_| row("no words", "required", "inexpressible")));
        assert_eq!(problems(&rows).len(), 2);
        rows.push(row("no words", "required", "inexpressible"));
        assert_eq!(problems(&rows).len(), 3, "too many are left out");
        assert_eq!(problems(&[]).len(), 2, "no test at all is no success");
    }

    /// A test that depends on a failed one is explained by that failure.
    #[test]
    fn dependency_explains_failure() {
        let mut dependent = row("dependent", "required", "dependency");
        assert_eq!(explanations::of(&dependent), None);
        dependent.failed = vec!["another".to_owned()];
        assert!(explanations::of(&dependent).is_some_and(|text| text.contains("`another`")));
    }
}
