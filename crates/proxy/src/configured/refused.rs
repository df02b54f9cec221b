//! What of a configuration is refused, and where it is.

use std::fmt;

use nectary_config::{Place, Problem, Source};

/// All that is wrong with a configuration: at least one thing, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<Problem>);

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigProblems {}

/// Collects problems.
pub(super) struct Refused {
    source: Source,
    problems: Vec<Problem>,
}

impl Refused {
    pub fn new(source: &Source) -> Refused {
        Refused { source: source.clone(), problems: Vec::new() }
    }

    /// Refuses a value for this reason.
    pub fn refuse(&mut self, place: Place, key: &str, what: impl fmt::Display) {
        self.problems.push(Problem::new(&self.source, place, format!("`{key}`: {what}")));
    }

    /// The problems that were found.
    pub fn problems(self) -> Vec<Problem> {
        self.problems
    }

    /// The result, unless something was refused.
    pub fn finish<T>(mut self, result: T) -> Result<T, ConfigProblems> {
        if self.problems.is_empty() {
            return Ok(result);
        }
        self.problems.sort_by_key(Problem::place);
        Err(ConfigProblems(self.problems))
    }
}
