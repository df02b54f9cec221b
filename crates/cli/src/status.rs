//! `nectary status`: every running part, its state, its problems and their remedies; also mounts without a process.
//!
//! Owns: the presentation, and the exit code, which depends on the worst state.

use std::time::Duration;

use nectary_host::control::RunningPart;
use nectary_host::{PartHealth, RuntimeDirectory};
use serde_json::{Value, json};

use crate::arguments::StatusArguments;
use crate::exit::{CommandFailure, NOT_FOUND};
use crate::mounts::dead_mounts::dead_mounts_in;
use crate::output;
use crate::services::running_parts::running_parts;

/// The longest time in which each part must answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// What to do about a part without a valid answer.
const REMEDY_SILENT: &str =
    "find its process with `ss -lxp` as root; `kill -CONT PID` if it is stopped, else restart it";

/// Runs the command.
pub fn run(arguments: &StatusArguments) -> Result<u8, CommandFailure> {
    let directory = RuntimeDirectory::open()?;
    let mut parts = running_parts(&directory, PATIENCE)?;
    parts.extend(dead_mounts_in(&directory));
    if arguments.json {
        let list: Vec<Value> = parts.iter().map(as_json).collect();
        output::json(&list)?;
    } else {
        let text: String = parts.iter().map(|part| as_text(part, arguments.verbose)).collect();
        let none = format!("nothing is running (no sockets in {})\n", directory.path().display());
        output::text(if parts.is_empty() { &none } else { &text })?;
    }
    Ok(exit_code(&parts))
}

/// The exit code of the worst state among the parts, or [`NOT_FOUND`] if nothing runs. A part without a valid answer
/// counts as broken.
fn exit_code(parts: &[RunningPart]) -> u8 {
    let state = |part: &RunningPart| part.status.as_ref().map_or(PartHealth::Broken, |status| status.state);
    match parts.iter().map(state).max() {
        Some(worst) => worst.exit_code(),
        None => NOT_FOUND,
    }
}

fn as_json(part: &RunningPart) -> Value {
    match &part.status {
        Ok(status) => json!({ "socket": part.path, "status": status }),
        Err(error) => json!({ "socket": part.path, "error": error.to_string(), "do": REMEDY_SILENT }),
    }
}

fn as_text(part: &RunningPart, verbose: bool) -> String {
    let status = match &part.status {
        Ok(status) => status,
        Err(error) => {
            let (path, error) = (part.path.display().to_string(), error.to_string());
            let what = error.strip_prefix(&format!("{path}: ")).unwrap_or(&error);
            return format!("broken    {path}\n  {what}\n  what to do: {REMEDY_SILENT}\n");
        }
    };
    let state = status.state.as_str();
    let mut text = format!("{state:<9} {} {} (process {})\n", status.component, status.name, status.pid);
    for problem in &status.problems {
        text += &format!("  {}\n  what to do: {}\n", problem.what, problem.remedy);
    }
    if verbose {
        text += &output::figures(&status.detail, 2);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::PartStatus;
    use std::path::PathBuf;

    fn part(status: PartStatus) -> RunningPart {
        RunningPart { path: PathBuf::from("/run/nectary/a.sock"), status: Ok(status) }
    }

    #[test]
    fn exit_code_follows_worst_part() {
        let good = || part(PartStatus::healthy("proxy", "a"));
        let slow = || part(PartStatus::healthy("proxy", "b").with_problem(PartHealth::Degraded, "x", "y"));
        let dead = || part(PartStatus::healthy("proxy", "c").with_problem(PartHealth::Broken, "x", "y"));
        assert_eq!(exit_code(&[]), 4);
        assert_eq!(exit_code(&[good()]), 0);
        assert_eq!(exit_code(&[good(), slow()]), 3);
        assert_eq!(exit_code(&[slow(), dead(), good()]), 1);
    }

    #[test]
    fn silent_part_is_named_once() {
        let path = PathBuf::from("/run/nectary/a.sock");
        let status = Err(nectary_host::Error::Protocol { path: path.clone(), problem: "no answer".to_owned() });
        let text = as_text(&RunningPart { path, status }, false);
        assert!(text.starts_with("broken    /run/nectary/a.sock\n  no answer\n  what to do: "), "{text}");
    }

    #[test]
    fn status_problems_show_remedies() {
        let text = as_text(
            &part(PartStatus::healthy("proxy", ":80").with_problem(PartHealth::Degraded, "disk slow", "wait")),
            false,
        );
        assert!(text.starts_with("degraded  proxy :80 (process "), "{text}");
        assert!(text.contains("\n  disk slow\n  what to do: wait\n"), "{text}");
    }
}
