//! What of a configuration is refused, and where it is.

use std::fmt;

use nectary_config::{ConfigProblem, ConfigSource, SourcePosition};

/// All that is wrong with a configuration: at least one thing, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblems(pub Vec<ConfigProblem>);

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
pub(super) struct ProblemCollector {
    source: ConfigSource,
    problems: Vec<ConfigProblem>,
}

impl ProblemCollector {
    pub fn new(source: &ConfigSource) -> ProblemCollector {
        ProblemCollector { source: source.clone(), problems: Vec::new() }
    }

    /// Refuses a value for this reason.
    pub fn refuse(&mut self, place: SourcePosition, key: &str, what: impl fmt::Display) {
        self.problems.push(ConfigProblem::new(&self.source, place, format!("`{key}`: {what}")));
    }

    /// The problems that were found.
    pub fn problems(self) -> Vec<ConfigProblem> {
        self.problems
    }

    /// The result, unless something was refused.
    pub fn finish<T>(mut self, result: T) -> Result<T, ConfigProblems> {
        if self.problems.is_empty() {
            return Ok(result);
        }
        self.problems.sort_by_key(ConfigProblem::place);
        Err(ConfigProblems(self.problems))
    }
}
