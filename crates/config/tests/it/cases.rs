//! A hundred configurations: thirty that are right, with what they mean, and seventy that are wrong, with their messages.
//!
//! Each case of `tests/cases/*.txt` has a line `### NAME`, the text of a file, a line `---`, and what is expected. Parts
//! that a case does not care about are added behind its text, as its line `# with: PART…` says. `NECTARY_FREEZE=1` writes
//! what was found as what is expected; the commit then shows what users will see.

use std::collections::BTreeSet;
use std::path::PathBuf;

use nectary_config::{ProxyConfig, to_toml};

/// The parts that a case may name, and their text.
const PARTS: [(&str, &str); 4] = [
    ("listener", "[[listener]]\naddress = \"127.0.0.1:8080\"\n"),
    ("store", "[store]\ndevice = \"memory:1G\"\n"),
    ("origin", "[origins.app]\nservers = [\"http://10.0.0.5:3000\"]\n"),
    ("site", "[[site]]\nnames = [\"example.org\"]\n[[site.route]]\norigin = \"app\"\n"),
];

/// The line between a text and what is expected.
const DIVIDER: &str = "---";

/// A configuration and what is expected.
pub struct ConfigCase {
    /// Its name.
    pub name: String,
    /// The text as it is in the file of cases.
    shown: String,
    /// The whole text.
    pub text: String,
    expected: String,
}

/// Reads the cases of a file.
pub fn cases(file: &str) -> Vec<ConfigCase> {
    let text = std::fs::read_to_string(path(file)).expect("the cases");
    let parts = text.split("### ").skip(1);
    parts.map(case).collect()
}

fn case(part: &str) -> ConfigCase {
    let (name, rest) = part.split_once('\n').expect("a name");
    let divider = format!("{DIVIDER}\n");
    let (shown, expected) = match rest.strip_prefix(&divider) {
        Some(expected) => ("", expected),
        None => rest.split_once(&format!("\n{divider}")).unwrap_or((rest.trim_end_matches('\n'), "")),
    };
    let mut text = shown.to_owned();
    if !text.is_empty() {
        text.push('\n');
    }
    let with = shown.lines().next().and_then(|line| line.strip_prefix("# with: ")).unwrap_or_default();
    for word in with.split_whitespace() {
        text.push_str(PARTS.iter().find(|(name, _)| *name == word).expect("a part").1);
    }
    ConfigCase { name: name.to_owned(), shown: shown.to_owned(), text, expected: expected.to_owned() }
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file)
}

/// Compares what was found with what is expected in each case, or writes it if `NECTARY_FREEZE` is set.
fn compare(file: &str, found: impl Fn(&ConfigCase) -> String) {
    let cases = cases(file);
    let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
    assert_eq!(names.len(), cases.len(), "two cases have the same name");
    if std::env::var_os("NECTARY_FREEZE").is_some() {
        let written = cases.iter().map(|case| {
            let newline = if case.shown.is_empty() { "" } else { "\n" };
            format!("### {}\n{}{newline}{DIVIDER}\n{}", case.name, case.shown, found(case))
        });
        return std::fs::write(path(file), written.collect::<String>()).expect("the cases can be written");
    }
    for case in &cases {
        assert_eq!(found(case), case.expected, "{}: if that is meant, run with NECTARY_FREEZE=1", case.name);
    }
}

#[test]
fn thirty_configurations_are_right() {
    assert!(cases("valid.txt").len() >= 30);
    compare("valid.txt", |case| {
        let (config, warnings) = ProxyConfig::parse("proxy.toml", &case.text)
            .unwrap_or_else(|problems| panic!("{}: {}", case.name, problems[0]));
        let printed = to_toml(&config);
        let (again, _) = ProxyConfig::parse("proxy.toml", &printed).expect("what is printed is right");
        assert_eq!(config, again, "{}", case.name);
        let lines = printed.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let warnings = warnings.iter().map(|warning| format!("{warning}\n"));
        warnings.chain(lines.map(|line| format!("{line}\n"))).collect()
    });
}

#[test]
fn seventy_configurations_are_wrong() {
    assert!(cases("wrong.txt").len() >= 70);
    compare("wrong.txt", |case| match ProxyConfig::parse("proxy.toml", &case.text) {
        Ok(_) => panic!("{} is right", case.name),
        Err(problems) => problems.iter().map(|problem| format!("{problem}\n")).collect(),
    });
}
