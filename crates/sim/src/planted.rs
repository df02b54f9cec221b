//! Planted bugs: each must be caught, and the case that caught it must catch it again.
//!
//! Owns: the identity of a case, its printed form, and the command line that replays it. Promises: a bug counts as
//! caught only if its case, run again, has the same message and the same counts. Leaves to others: the work of a case.
//! It must run on one thread in virtual time; with several threads or a real clock it could not be repeated.

use std::fmt;

use nectary_store::planted::Bug;

use crate::arguments::Arguments;

/// The run that catches a bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The seed of the run.
    pub seed: u64,
    /// The number of the crash state of the run, counted from 0, if crash states are checked.
    pub state: Option<u64>,
}

impl Case {
    /// The case of a run that is checked as a whole.
    pub fn of_seed(seed: u64) -> Case {
        Case { seed, state: None }
    }

    /// Reads the bug and the case from the arguments `--bug NAME --replay SEED` and, if given, `--state N`; `None` if
    /// there are none of these arguments.
    ///
    /// A bug that is not one of `names` ends the process with code 2, and so does a bug without a seed.
    pub fn of<'n>(arguments: &Arguments, names: &[&'n str]) -> Option<(&'n str, Case)> {
        let (bug, seed) = (arguments.word("bug"), arguments.word("replay"));
        if bug.is_none() && seed.is_none() && arguments.word("state").is_none() {
            return None;
        }
        let name = names.iter().copied().find(|&name| Some(name) == bug);
        let (Some(name), true) = (name, seed.is_some()) else {
            eprintln!("--bug NAME --replay SEED: a name is one of");
            names.iter().for_each(|name| eprintln!("  {name}"));
            std::process::exit(2);
        };
        let state = arguments.word("state").map(|_| arguments.number("state", 0));
        Some((name, Case { seed: arguments.number("replay", 0), state }))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            Some(state) => write!(f, "seed {}, state {state}", self.seed),
            None => write!(f, "seed {}", self.seed),
        }
    }
}

/// How a bug was caught.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// The case that was run.
    pub case: Case,
    /// The first violation that it reported.
    pub broken: String,
    /// The other results of the case, which are compared but not printed.
    pub account: String,
}

/// Returns whether a bug was caught by a case that catches it again, and the result in words.
pub fn is_caught(
    program: &str,
    name: &str,
    caught: Option<&Caught>,
    replay: impl FnOnce(Case) -> Option<Caught>,
) -> (bool, String) {
    let Some(caught) = caught else {
        return (false, format!("planted: {name}: SURVIVED"));
    };
    let Caught { case, broken, .. } = caught;
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

/// Tries to catch each bug; prints the case that caught it, and whether that case catches it again.
pub fn catch_each<'n>(
    program: &str,
    names: &[&'n str],
    find: impl Fn(&str) -> Option<Caught>,
    replay: impl Fn(&str, Case) -> Option<Caught>,
) -> Vec<(&'n str, Option<u64>, bool)> {
    let catch = |&name: &&'n str| {
        let caught = find(name);
        let (is_good, text) = is_caught(program, name, caught.as_ref(), |case| replay(name, case));
        println!("{text}");
        (name, caught.map(|caught| caught.case.seed), is_good)
    };
    names.iter().map(catch).collect()
}

/// Prints the result of the case that the command line names; returns whether the bug was caught.
pub fn print_replay(name: &str, case: Case, caught: Option<&Caught>) -> bool {
    match caught {
        Some(caught) => println!("planted: {name}: caught with {}: {}", caught.case, caught.broken),
        None => println!("planted: {name}: SURVIVED {case}"),
    }
    caught.is_some()
}

/// Returns the bug with a name. *Panics* if no bug in `bugs` has this name.
pub fn named(bugs: &[Bug], name: &str) -> Bug {
    let bug = bugs.iter().find(|bug| bug.name() == name);
    *bug.expect("names are those of the bugs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caught(seed: u64, broken: &str, account: &str) -> Caught {
        Caught { case: Case { seed, state: Some(3) }, broken: broken.to_owned(), account: account.to_owned() }
    }

    #[test]
    fn planted_bug_that_survives_or_is_not_caught_the_same_again_fails() {
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
