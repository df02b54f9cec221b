//! Planted bugs: each must be caught, and the case that caught it must catch it again.
//!
//! Owns: the identity of a case, its printed form, and the command line that replays it. Promises: a bug counts as
//! caught only if its case, run again, has the same message and the same counts. Leaves to others: the work of a case.
//! It must run on one thread in virtual time; with several threads or a real clock it could not be repeated.

use std::fmt;

/// The run that catches a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BugCase {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the crash state of the run, counted from 0, if crash states are checked.
    pub state: Option<u64>,
}

impl BugCase {
    /// The case of a run that is checked as a whole.
    pub fn of_seed(seed: u64) -> BugCase {
        BugCase { seed, state: None }
    }
}

impl fmt::Display for BugCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            Some(state) => write!(f, "seed {}, state {state}", self.seed),
            None => write!(f, "seed {}", self.seed),
        }
    }
}

/// How a bug was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaughtBug {
    /// The case that was run.
    pub case: BugCase,
    /// The first violation that it reported.
    pub broken: String,
    /// The other results of the case, which are compared but not printed.
    pub account: String,
}

/// Returns whether a bug was caught by a case that catches it again, and the result in words.
pub fn is_caught(
    program: &str,
    name: &str,
    caught: Option<&CaughtBug>,
    replay: impl FnOnce(BugCase) -> Option<CaughtBug>,
) -> (bool, String) {
    let Some(caught) = caught else {
        return (false, format!("planted: {name}: SURVIVED"));
    };
    let CaughtBug { case, broken, .. } = caught;
    let again = replay(*case);
    let is_same = again.as_ref() == Some(caught);
    let how = match again {
        _ if is_same => "again the same".to_owned(),
        Some(again) => format!("NOT THE SAME AGAIN: {}", again.broken),
        None => "NOT THE SAME AGAIN: nothing was found".to_owned(),
    };
    let state = case.state.map_or_else(String::new, |state| format!(" --state {state}"));
    let command = format!("{program} --bug '{name}' --replay {}{state}", case.seed);
    (is_same, format!("planted: {name}: caught with {case}: {broken}; {how}\n  {command}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(seed: u64, broken: &str, account: &str) -> CaughtBug {
        CaughtBug { case: BugCase { seed, state: Some(3) }, broken: broken.to_owned(), account: account.to_owned() }
    }

    /// A planted bug fails the check if it survives, or if its case does not catch it the same way again.
    #[test]
    fn uncaught_or_unrepeatable_bug_fails() {
        let first = caught(7, "key 1: missing", "9 hits");
        let (is_good, text) = is_caught("program", "name", Some(&first), |case| {
            assert_eq!(case, first.case);
            Some(first.clone())
        });
        assert!(is_good);
        assert_eq!(
            text,
            "planted: name: caught with seed 7, state 3: key 1: missing; again the same\n  \
             program --bug 'name' --replay 7 --state 3"
        );
        for (again, how) in [
            (None, "nothing was found"),
            (Some(caught(7, "key 2: missing", "9 hits")), "key 2: missing"),
            (Some(caught(7, "key 1: missing", "8 hits")), "key 1: missing"),
        ] {
            let (is_good, text) = is_caught("program", "name", Some(&first), |_| again);
            assert!(!is_good && text.contains(&format!("NOT THE SAME AGAIN: {how}")), "{text}");
        }
        let (is_good, text) = is_caught("program", "name", None, |_| unreachable!("there is nothing to replay"));
        assert!(!is_good && text.contains("SURVIVED"), "{text}");
    }
}
