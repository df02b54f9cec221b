//! Wrong configuration files, each with its exact message: the cases of `nectary-config`, given to the program.
//!
//! The program must print what the case expects and nothing else, and end with exit code 2. A file that is made of the
//! usual parts alone must be good, so that a program that refuses every file is noticed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guard;
use crate::nectary::binary;

/// The cases: a name, the text of a file, `---`, and what is said of it.
const CASES: &str = include_str!("../../../config/tests/cases/wrong.txt");
/// The parts that a case may name in its first line, which are added behind its text.
const PARTS: [(&str, &str); 4] = [
    ("listener", "[[listener]]\naddress = \"127.0.0.1:8080\"\n"),
    ("store", "[store]\ndevice = \"memory:1G\"\n"),
    ("origin", "[origins.app]\nservers = [\"http://10.0.0.5:3000\"]\n"),
    ("site", "[[site]]\nnames = [\"example.org\"]\n[[site.route]]\norigin = \"app\"\n"),
];
const NAME: &str = "proxy.toml";
const USAGE: i32 = 2;
/// The most problems of a file that the program shows.
const PROBLEMS_SHOWN_MAX: usize = 10;
const LIMIT: Duration = Duration::from_secs(30);

/// A wrong file.
#[derive(Debug, PartialEq, Eq)]
pub struct WrongFile {
    /// The name of the case.
    pub name: String,
    /// The file.
    pub text: String,
    /// What is said of it.
    pub message: String,
}

/// All cases. *Errors*: one has not the form of a case.
pub fn cases() -> Result<Vec<WrongFile>> {
    CASES.split("### ").skip(1).map(case).collect()
}

fn case(part: &str) -> Result<WrongFile> {
    let (name, rest) = part.split_once('\n').context("a case without a text")?;
    let (shown, message) = match rest.strip_prefix("---\n") {
        Some(message) => ("", message),
        None => rest.split_once("\n---\n").with_context(|| format!("{name} expects nothing"))?,
    };
    let mut text = shown.to_owned();
    if !text.is_empty() {
        text.push('\n');
    }
    let with = shown.lines().next().and_then(|line| line.strip_prefix("# with: ")).unwrap_or_default();
    for word in with.split_whitespace() {
        text += PARTS.iter().find(|(part, _)| *part == word).with_context(|| format!("{name}: no part {word}"))?.1;
    }
    Ok(WrongFile { name: name.to_owned(), text, message: message.trim_end_matches('\n').to_owned() })
}

/// Lets the program check a file. *Returns*: its exit code and all it printed.
fn look_at(text: &str, folder: &Path) -> Result<(Option<i32>, String)> {
    fs::write(folder.join(NAME), text)?;
    let mut command = Command::new(fs::canonicalize(binary()?)?);
    command.args(["proxy", "--check-config", "--config", NAME]).current_dir(folder);
    command.env("NECTARY_RUNTIME_DIR", folder.join("run"));
    let log = folder.join("check.log");
    let _ = fs::remove_file(&log);
    let (status, said) = guard::run("nectary", command, &log, LIMIT)?;
    Ok((status.code(), said))
}

/// A message about all problems of a file, as the program shows it.
fn shown(message: &str) -> String {
    let is_start = |at: usize| at == 0 || message.as_bytes()[at - 1] == b'\n';
    let starts = message.match_indices("proxy.toml:").map(|(at, _)| at).filter(|at| is_start(*at));
    let starts: Vec<usize> = starts.collect();
    match starts.get(PROBLEMS_SHOWN_MAX) {
        Some(end) => format!("{}and {} more", &message[..*end], starts.len() - PROBLEMS_SHOWN_MAX),
        None => message.to_owned(),
    }
}

/// Checks a wrong file. *Returns*: how the program's answer differs from what is expected.
pub fn difference(file: &WrongFile, folder: &Path) -> Result<Option<String>> {
    let (code, said) = look_at(&file.text, folder)?;
    if code != Some(USAGE) {
        return Ok(Some(format!("{}: exit code {code:?} instead of {USAGE}: {said}", file.name)));
    }
    let found = said.strip_prefix("nectary: error: ").and_then(|rest| rest.split_once("\n  what to do: "));
    Ok(match found {
        Some((message, _)) if message == shown(&file.message) => None,
        _ => Some(format!("{}: said\n{said}\nexpected\n{}", file.name, file.message)),
    })
}

/// Checks that a file of the usual parts is good, and that a difference of one letter in a message is noticed.
pub fn check_the_checker(cases: &[WrongFile], folder: &Path) -> Result<()> {
    let usual: String = PARTS.iter().map(|(_, text)| *text).collect();
    let (code, said) = look_at(&usual, folder)?;
    ensure!(code == Some(0), "the usual parts are refused: {code:?}: {said}");
    let first = cases.first().context("there are no cases")?;
    let message = first.message.replacen('e', "a", 1);
    ensure!(message != first.message, "{} has a message without a letter e", first.name);
    let planted = WrongFile { name: "planted".to_owned(), text: first.text.clone(), message };
    ensure!(difference(&planted, folder)?.is_some(), "another message than the expected one is not noticed");
    let good = WrongFile { name: "good".to_owned(), text: usual, message: String::new() };
    ensure!(difference(&good, folder)?.is_some(), "a good file counts as a wrong one");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_has_a_message() {
        let cases = cases().unwrap();
        assert!(cases.len() >= 70, "{}", cases.len());
        assert!(cases.iter().all(|case| case.message.starts_with("proxy.toml:")), "a message without a place");
    }

    #[test]
    fn named_parts_are_added() {
        let found = case("two-stores\n# with: store\nx = 1\n---\nproxy.toml:1:1: error: no\n").unwrap();
        assert_eq!(found.text, "# with: store\nx = 1\n[store]\ndevice = \"memory:1G\"\n");
        assert_eq!(found.message, "proxy.toml:1:1: error: no");
        assert!(case("bad\n# with: nothing\n---\nx\n").is_err());
    }
}
