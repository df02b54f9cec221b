//! The state that a running part reports.
//!
//! Owns: [`PartStatus`], which every part answers to the method `status`, and the exit code for each state. Leaves to
//! others: the part's own figures, which are sent as JSON in `detail`.

use serde::{Deserialize, Serialize};

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PartHealth {
    /// The part does everything that it should do.
    Healthy,
    /// The part works, but some function is missing or slower until the operator acts.
    Degraded,
    /// The part cannot do its task.
    Broken,
}

impl PartHealth {
    /// The exit code of a command that reports this state: 0 for healthy, 3 for degraded, 1 for broken.
    pub fn exit_code(self) -> u8 {
        match self {
            PartHealth::Healthy => 0,
            PartHealth::Degraded => 3,
            PartHealth::Broken => 1,
        }
    }

    /// The word that names this state.
    pub fn as_str(self) -> &'static str {
        match self {
            PartHealth::Healthy => "healthy",
            PartHealth::Degraded => "degraded",
            PartHealth::Broken => "broken",
        }
    }
}

/// A problem of a part, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartProblem {
    /// The problem and its place.
    pub what: String,
    /// What to do.
    #[serde(rename = "do")]
    pub remedy: String,
}

/// The answer to `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartStatus {
    /// The kind of part, such as `proxy`.
    pub component: String,
    /// The part's name among the parts of its kind, such as a listen address or a store's SPEC.
    pub name: String,
    /// The part's state, which is the state that its worst problem causes.
    pub state: PartHealth,
    /// The part's process id.
    pub pid: u32,
    /// The problems; empty if the part is healthy.
    #[serde(default)]
    pub problems: Vec<PartProblem>,
    /// The part's own figures.
    #[serde(default)]
    pub detail: serde_json::Value,
}

impl PartStatus {
    /// The status of a healthy part of this process, without figures.
    pub fn healthy(component: &str, name: &str) -> PartStatus {
        PartStatus {
            component: component.to_owned(),
            name: name.to_owned(),
            state: PartHealth::Healthy,
            pid: std::process::id(),
            problems: Vec::new(),
            detail: serde_json::Value::Null,
        }
    }

    /// Adds a problem. If `state` is worse than the current state, it becomes the state.
    pub fn with_problem(mut self, state: PartHealth, what: impl Into<String>, remedy: impl Into<String>) -> PartStatus {
        self.problems.push(PartProblem { what: what.into(), remedy: remedy.into() });
        self.state = self.state.max(state);
        self
    }

    /// Sets the part's own figures.
    pub fn with_detail(mut self, detail: serde_json::Value) -> PartStatus {
        self.detail = detail;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_problem_decides_the_state() {
        let status = PartStatus::healthy("proxy", "127.0.0.1:8080")
            .with_problem(PartHealth::Broken, "store: I/O error", "replace the disk")
            .with_problem(PartHealth::Degraded, "access log: no space left", "free space on /var/log");
        assert_eq!(status.state, PartHealth::Broken);
        assert_eq!(status.state.exit_code(), 1);
        assert_eq!(status.problems.len(), 2);
    }

    #[test]
    fn status_round_trips() {
        let status = PartStatus::healthy("proxy", "a").with_problem(PartHealth::Degraded, "x", "y");
        let text = serde_json::to_string(&status).expect("serialises");
        assert!(text.contains(r#""state":"degraded""#) && text.contains(r#""do":"y""#), "{text}");
        assert_eq!(serde_json::from_str::<PartStatus>(&text).expect("parses"), status);
    }
}
