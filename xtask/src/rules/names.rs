//! The names of types and tests: how many types share theirs with others, have one word, and how long tests' names are.
//!
//! Owns: the counts and their bounds. A definition is a `struct`, `enum`, `union` or `trait` outside of comments; a name
//! that three definitions and more have says nothing in a search, except `Error`, which each crate may have. A word of a
//! type's name begins with a capital letter. Leaves to others: what a good name is (`CONTRIBUTING.md`).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::json;

use super::house;
use crate::metadata::Workspace;

/// A name with this many definitions is shared.
const SHARED: usize = 3;
/// The largest shares of definitions with a shared name, and with a name of one word. *Units*: percent.
const SHARED_PERCENT_MAX: f64 = 10.0;
const ONE_WORD_PERCENT_MAX: f64 = 35.0;
/// The most words of a test's name, and of all names on average.
const TEST_WORDS_MAX: usize = 7;
const TEST_WORDS_MEAN_MAX: f64 = 5.5;
/// The name that each crate may use.
const ERROR: &str = "Error";
/// The number of names in the list of those with most definitions.
const LISTED: usize = 20;

/// The names of a workspace.
#[derive(Debug, Default)]
struct NameCounts {
    /// The number of definitions of each type's name.
    types: BTreeMap<String, usize>,
    /// The name of each test, with its file.
    tests: Vec<(String, String)>,
}

impl NameCounts {
    fn of(root: &Path) -> NameCounts {
        let mut counts = NameCounts::default();
        for path in house::files(root, &["crates", "xtask"], "rs") {
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let file = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            counts.add(&file, &text);
        }
        counts
    }

    fn add(&mut self, file: &str, text: &str) {
        for name in text.lines().filter_map(defined) {
            *self.types.entry(name.to_owned()).or_default() += 1;
        }
        self.tests.extend(house::tests_in(text).map(|name| (name.to_owned(), file.to_owned())));
    }

    fn definitions(&self) -> usize {
        self.types.values().sum()
    }

    fn shared(&self) -> usize {
        self.types.iter().filter(|(name, count)| **count >= SHARED && *name != ERROR).map(|(_, count)| count).sum()
    }

    fn of_one_word(&self) -> usize {
        self.types.iter().filter(|(name, _)| words_of_type(name) < 2).map(|(_, count)| count).sum()
    }

    fn test_words_mean(&self) -> f64 {
        ratio(self.tests.iter().map(|(name, _)| words_of_test(name)).sum(), self.tests.len())
    }

    fn long_tests(&self) -> impl Iterator<Item = &(String, String)> {
        self.tests.iter().filter(|(name, _)| words_of_test(name) > TEST_WORDS_MAX)
    }

    /// What is beyond its bound, one line each.
    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut compare = |what: &str, value: f64, max: f64| {
            if value > max {
                problems.push(format!("{what}: {value:.1} of at most {max} (`cargo xtask names` lists them)"));
            }
        };
        let definitions = self.definitions();
        let shared = "types that share their name with two others, in percent";
        compare(shared, 100.0 * ratio(self.shared(), definitions), SHARED_PERCENT_MAX);
        let one_word = "types with a name of one word, in percent";
        compare(one_word, 100.0 * ratio(self.of_one_word(), definitions), ONE_WORD_PERCENT_MAX);
        compare("words of a test's name on average", self.test_words_mean(), TEST_WORDS_MEAN_MAX);
        for (name, file) in self.long_tests() {
            problems.push(format!("{file}: the test {name} has more than {TEST_WORDS_MAX} words"));
        }
        problems
    }

    fn most_shared(&self) -> Vec<(&str, usize)> {
        let mut names: Vec<_> = self.types.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        names.retain(|(name, count)| *count >= SHARED && *name != ERROR);
        names.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
        names
    }
}

/// Returns what is beyond its bound, one line each.
pub fn problems(root: &Path) -> Vec<String> {
    NameCounts::of(root).problems()
}

/// Prints the counts; returns whether all are within their bounds.
pub fn command(arguments: &[String]) -> Result<bool> {
    let is_json = match arguments {
        [] => false,
        [option] if option == "--json" => true,
        _ => bail!("names takes --json"),
    };
    let counts = NameCounts::of(&Workspace::load()?.root);
    let problems = counts.problems();
    if is_json {
        let value = json!({
            "definitions": counts.definitions(),
            "shared": counts.shared(),
            "one_word": counts.of_one_word(),
            "tests": counts.tests.len(),
            "test_words_mean": counts.test_words_mean(),
            "long_tests": counts.long_tests().count(),
            "most_shared": counts.most_shared(),
            "problems": problems,
        });
        println!("{value:#}");
        return Ok(problems.is_empty());
    }
    let definitions = counts.definitions();
    let percent = |count: usize| 100.0 * ratio(count, definitions);
    println!("{definitions} definitions of types");
    println!("{:.1} % share their name with two others ({SHARED_PERCENT_MAX} allowed)", percent(counts.shared()));
    println!("{:.1} % have a name of one word ({ONE_WORD_PERCENT_MAX} allowed)", percent(counts.of_one_word()));
    println!(
        "{} tests, {:.2} words on average ({TEST_WORDS_MEAN_MAX} allowed), {} above {TEST_WORDS_MAX}",
        counts.tests.len(),
        counts.test_words_mean(),
        counts.long_tests().count()
    );
    for (name, count) in counts.most_shared().into_iter().take(LISTED) {
        println!("  {name}: {count} definitions");
    }
    for problem in &problems {
        println!("SHORT {problem}");
    }
    Ok(problems.is_empty())
}

/// The type that a line defines, if any.
fn defined(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let line = line.strip_prefix("unsafe ").unwrap_or(line);
    let rest = ["struct ", "enum ", "union ", "trait "].iter().find_map(|word| line.strip_prefix(word))?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    rest.starts_with(|c: char| c.is_ascii_uppercase()).then(|| &rest[..end])
}

fn words_of_type(name: &str) -> usize {
    name.chars().filter(char::is_ascii_uppercase).count()
}

fn words_of_test(name: &str) -> usize {
    name.split('_').filter(|word| !word.is_empty()).count()
}

#[expect(clippy::cast_precision_loss, reason = "counts of names")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_define_types() {
        let name = |line| defined(line);
        assert_eq!(name("pub(crate) struct SlotAddress(u64);"), Some("SlotAddress"));
        assert_eq!(name("    enum Part<'a> {"), Some("Part"));
        assert_eq!(name("pub unsafe trait Erased {"), Some("Erased"));
        assert_eq!(name("struct $name {"), None);
        assert_eq!(name("// struct Part"), None);
        assert_eq!((words_of_type("Part"), words_of_type("SlotAddress")), (1, 2));
    }

    #[test]
    fn shared_and_long_names_are_problems() {
        let mut counts = NameCounts::default();
        let types = "struct FirstPart;\nstruct SecondPart;\nstruct Error;\n";
        counts.add("a.rs", &format!("{types}#[test]\nfn a_short_name() {{}}\n"));
        counts.add("b.rs", "struct Error;\nstruct OtherPart;\nstruct LastPart;\nstruct NewPart;\nstruct OldPart;\n");
        assert_eq!(counts.problems(), Vec::<String>::new());
        counts.add("c.rs", "#[test]\nfn a_name_of_a_test_with_too_many_words() {}\n");
        assert_eq!(counts.problems().len(), 2, "the mean, and one test");
        for file in ["d.rs", "e.rs", "f.rs"] {
            counts.add(file, "struct Part;\n");
        }
        assert_eq!(counts.problems().len(), 4, "a name of three definitions, and of one word");
    }
}
