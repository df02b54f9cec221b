//! The state that a running part reports.
//!
//! Owns: [`Status`], which every part answers to the method `status`, and the exit code for each state. Leaves to
//! others: the part's own figures, which are sent as JSON in `detail`.

use serde::{Deserialize, Serialize};

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The part does everything that it should do.
    Healthy,
    /// The part works, but some function is missing or slower until the operator acts.
    Degraded,
    /// The part cannot do its task.
    Broken,
}

impl State {
    /// The exit code of a command that reports this state: 0 for healthy, 3 for degraded, 1 for broken.
    pub fn exit_code(self) -> u8 {
        match self {
            State::Healthy => 0,
            State::Degraded => 3,
            State::Broken => 1,
        }
    }

    /// The word that names this state.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Healthy => "healthy",
            State::Degraded => "degraded",
            State::Broken => "broken",
        }
    }
}

/// A problem of a part, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// The problem and its place.
    pub what: String,
    /// What to do.
    #[serde(rename = "do")]
    pub remedy: String,
}

/// The answer to `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The kind of part, such as `proxy`.
    pub component: String,
    /// The part's name among the parts of its kind, such as a listen address or a store's SPEC.
    pub name: String,
    /// The part's state, which is the state that its worst problem causes.
    pub state: State,
    /// The part's process id.
    pub pid: u32,
    /// The problems; empty if the part is healthy.
    #[serde(default)]
    pub problems: Vec<Problem>,
    /// The part's own figures.
    #[serde(default)]
    pub detail: serde_json::Value,
}

impl Status {
    /// The status of a healthy part of this process, without figures.
    pub fn healthy(component: &str, name: &str) -> Status {
        Status {
            component: component.to_owned(),
            name: name.to_owned(),
            state: State::Healthy,
            pid: std::process::id(),
            problems: Vec::new(),
            detail: serde_json::Value::Null,
        }
    }

    /// Adds a problem. If `state` is worse than the current state, it becomes the state.
    pub fn with_problem(mut self, state: State, what: impl Into<String>, remedy: impl Into<String>) -> Status {
        self.problems.push(Problem { what: what.into(), remedy: remedy.into() });
        self.state = self.state.max(state);
        self
    }

    /// Sets the part's own figures.
    pub fn with_detail(mut self, detail: serde_json::Value) -> Status {
        self.detail = detail;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_problem_decides_the_state() {
        let status = Status::healthy("proxy", "127.0.0.1:8080")
            .with_problem(State::Broken, "store: I/O error", "replace the disk")
            .with_problem(State::Degraded, "access log: no space left", "free space on /var/log");
        assert_eq!(status.state, State::Broken);
        assert_eq!(status.state.exit_code(), 1);
        assert_eq!(status.problems.len(), 2);
    }

    #[test]
    fn a_status_reads_back_as_it_was_written() {
        let status = Status::healthy("proxy", "a").with_problem(State::Degraded, "x", "y");
        let text = serde_json::to_string(&status).expect("serialises");
        assert!(text.contains(r#""state":"degraded""#) && text.contains(r#""do":"y""#), "{text}");
        assert_eq!(serde_json::from_str::<Status>(&text).expect("parses"), status);
    }
}
