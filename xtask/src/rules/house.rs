//! The rules for files and documents that a program can check.
//!
//! Owns: every source file begins with `//!`; the code has no markers of unfinished work; every relative link in a
//! document has a target; every test that `docs/semantics.md` lists exists, and has a promise.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders with sources.
const SOURCES: &[&str] = &["crates", "xtask"];
/// The folders with documents.
const DOCUMENTS: &[&str] = &["docs"];
const DEPTH_MAX: usize = 8;
/// The most characters of a cell in the tables of promises, and the most tests in a range of numbers.
const CELL_MAX: usize = 200;
const NUMBERS_MAX: usize = 1000;

/// Returns the violations of these rules, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let mut tests = BTreeSet::new();
    for path in files(root, SOURCES, "rs") {
        match fs::read_to_string(&path) {
            Ok(text) => {
                source(&shown(root, &path), &text, &mut problems);
                tests.extend(tests_in(&text).map(str::to_owned));
            }
            Err(error) => problems.push(format!("{}: {error}", shown(root, &path))),
        }
    }
    let mut documents = files(root, DOCUMENTS, "md");
    documents.extend(["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root.join(name)));
    for path in documents {
        match fs::read_to_string(&path) {
            Ok(text) => {
                links(root, &path, &text, &mut problems);
                if path.ends_with("docs/semantics.md") {
                    promises(&text, &tests, &mut problems);
                }
            }
            Err(error) => problems.push(format!("{}: {error}", shown(root, &path))),
        }
    }
    problems
}

fn source(name: &str, text: &str, problems: &mut Vec<String>) {
    if !text.lines().take(3).any(|line| line.starts_with("//!")) {
        problems.push(format!("{name}: does not open with //!, what it owns and promises"));
    }
    // The words are joined from pieces, so that the check does not report this file.
    for unfinished in
        [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("FIX", "ME"), concat!("TO", "DO:")]
    {
        if let Some(line) = text.lines().position(|line| line.contains(unfinished)) {
            problems.push(format!("{name}:{}: {unfinished} is left in the code", line + 1));
        }
    }
}

fn links(root: &Path, path: &Path, text: &str, problems: &mut Vec<String>) {
    for rest in text.split("](").skip(1) {
        let target = rest.split([')', '#', ' ']).next().unwrap_or_default();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let from = path.parent().unwrap_or(root);
        if !from.join(target).exists() {
            problems.push(format!("{}: the link to {target} leads nowhere", shown(root, path)));
        }
    }
}

/// The names of the functions in a source file that have an attribute `#[test]`, `#[tokio::test]` or the like.
pub fn tests_in(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim_start).filter_map(move |line| {
        is_test |= line.starts_with("#[") && (line.contains("test]") || line.contains("test("));
        let name = line.split_once("fn ").filter(|_| !line.starts_with("//"))?.1;
        std::mem::take(&mut is_test).then(|| word(name))
    })
}

/// Checks the tables of promises, those with the header `tests`: their last column has numbers (`3-5, 9`) of the list of
/// tests below; every test of the list exists and has its number in a table; no cell is longer than [`CELL_MAX`].
fn promises(text: &str, tests: &BTreeSet<String>, problems: &mut Vec<String>) {
    let mut report = |problem: String| problems.push(format!("docs/semantics.md: {problem}"));
    let mut count = 0;
    for (number, name) in text.lines().filter_map(listed_test) {
        count += 1;
        if number != count {
            report(format!("test {number} is number {count} of the list"));
        }
        if !tests.contains(name.rsplit("::").next().unwrap_or_default()) {
            report(format!("there is no test {name}"));
        }
    }
    let mut used = BTreeSet::new();
    let mut is_promises = false;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|').and_then(|line| line.trim_end().strip_suffix('|')) else {
            is_promises = false;
            continue;
        };
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let last = cells.last().copied().unwrap_or_default();
        if last == "tests" {
            is_promises = true;
        } else if is_promises && !last.starts_with('-') {
            match numbers(last) {
                Some(numbers) if numbers.iter().all(|number| (1..=count).contains(number)) => used.extend(numbers),
                _ => report(format!("`{last}` are not numbers of tests in the list")),
            }
        }
        for cell in cells.iter().filter(|cell| cell.chars().count() > CELL_MAX) {
            let begin: String = cell.chars().take(40).collect();
            report(format!("the cell `{begin}…` has more than {CELL_MAX} characters"));
        }
    }
    for number in (1..=count).filter(|number| !used.contains(number)) {
        report(format!("no promise has test {number}"));
    }
}

/// The number and the name of a line such as ``3. `name` ``.
fn listed_test(line: &str) -> Option<(usize, &str)> {
    let (number, rest) = line.split_once(". `")?;
    Some((number.parse().ok()?, rest.strip_suffix('`')?))
}

/// The numbers of a list such as `3-5, 9`.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in text.split(", ") {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last - first > NUMBERS_MAX {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// The files with an extension in some folders, in the order of their paths.
pub fn files(root: &Path, folders: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in folders {
        collect(&root.join(folder), extension, DEPTH_MAX, &mut found);
    }
    found.sort();
    found
}

fn collect(folder: &Path, extension: &str, depth: usize, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() && depth > 0 && !path.ends_with("target") {
            collect(&path, extension, depth - 1, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_finds_what_breaks_it() {
        let mut problems = Vec::new();
        source("a.rs", "//! Owns a.\nfn a() {}\n", &mut problems);
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        links(root, &root.join("x.md"), "[a](src/main.rs) [b](https://x.y/) [c](src/main.rs#top)", &mut problems);
        let code = "#[test]\n#[ignore]\nfn a_test() {}\nfn helper() {}\n#[tokio::test(start_paused = true)]\n// Why.\n\
                    async fn in_tokio() {}\n";
        let tests = BTreeSet::from_iter(tests_in(code).map(str::to_owned));
        assert_eq!(tests, BTreeSet::from(["a_test", "in_tokio"].map(str::to_owned)));
        let good =
            "| promise | tests |\n|---|---|\n| it does | 1-2 |\n| too | 2 |\n\n1. `crate::a_test`\n2. `in_tokio`\n";
        promises(good, &tests, &mut problems);
        assert_eq!(problems, Vec::<String>::new());

        source("b.rs", "fn a() {}\n", &mut problems);
        source("c.rs", concat!("//! C.\nfn a() { todo", "!() }\n"), &mut problems);
        links(root, &root.join("x.md"), "[a](src/nothing.rs)", &mut problems);
        assert_eq!(problems.len(), 3, "{problems:?}");
        let long = "x".repeat(CELL_MAX + 1);
        let wrong = format!("| promise | tests |\n|---|---|\n| {long} | 1, 4 |\n\n1. `no_test`\n3. `in_tokio`\n");
        promises(&wrong, &tests, &mut problems);
        // A test that is not there, a wrong number in the list, one in the table, a long cell, and two unused tests.
        assert_eq!(problems.len(), 9, "{problems:?}");
    }
}
