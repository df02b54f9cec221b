//! Counts the lines and the constants of `adaptive` in its source.
//!
//! Owns: the rules of counting, and the limits. All of `adaptive` is in one folder. All lines of a file outside of
//! tests count, except comments and empty lines, whose number is printed beside. A constant is a number that could have another value: a `const` with one or several
//! numbers, or a field of `Tuning`, except its switches, which are for the ablation.

use std::path::{Path, PathBuf};

/// The folder of `adaptive`, relative to this crate.
const FOLDER: &str = "../cache/src/policies/adaptive";
const LINES_MAX: usize = 700;
const CONSTANTS_MAX: usize = 9;

/// Prints both counts. *Returns* a line for each count that is over its limit.
pub fn size() -> Vec<String> {
    let base = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder: Vec<PathBuf> = match std::fs::read_dir(base.join(FOLDER)) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(error) => return vec![format!("{}: {error}; run this in the source tree", base.join(FOLDER).display())],
    };
    let (mut lines, mut all, mut constants, mut short) = (0, 0, 0, Vec::new());
    let is_source = |path: &&PathBuf| path.extension().is_some_and(|end| end == "rs") && !path.ends_with("tests.rs");
    for path in folder.iter().filter(is_source) {
        match std::fs::read_to_string(path) {
            Ok(text) => {
                let of = outside_of_tests(&text);
                (lines, constants) = (lines + code_of(&of), constants + constants_of(&of));
                all += of.len();
            }
            Err(error) => short.push(format!("{}: {error}", path.display())),
        }
    }
    println!(
        "adaptive: {lines} lines of code, at most {LINES_MAX} ({all} with comments and empty lines); {constants} \
         constants, at most {CONSTANTS_MAX}"
    );
    for (what, count, most) in [("lines of code", lines, LINES_MAX), ("constants", constants, CONSTANTS_MAX)] {
        if count > most || count == 0 {
            short.push(format!("adaptive has {count} {what}, at most {most}"));
        }
    }
    short
}

/// The lines of a file before its tests.
fn outside_of_tests(text: &str) -> Vec<&str> {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().collect()
}

/// The number of lines that are neither comments nor empty.
fn code_of(lines: &[&str]) -> usize {
    lines.iter().map(|line| line.trim_start()).filter(|line| !line.is_empty() && !line.starts_with("//")).count()
}

/// The number of constants that these lines define.
fn constants_of(lines: &[&str]) -> usize {
    let mut is_in_tuning = false;
    let is_one = |line: &&&str| {
        let line = line.trim_start();
        is_in_tuning = is_in_tuning && line != "}" || line.starts_with("pub struct Tuning ");
        let kind = |rest: &str| rest.split_once(": ").map_or("", |(_, kind)| kind).to_owned();
        let is_number = |kind: &str| {
            let kind = kind.trim_start_matches('[');
            ["u8", "u32", "u64", "usize", "f64", "i64"].iter().any(|number| kind.starts_with(number))
        };
        let constant = ["const ", "pub const ", "pub(super) const ", "pub(crate) const "]
            .iter()
            .find_map(|start| line.strip_prefix(start));
        let field = line.strip_prefix("pub ").filter(|_| is_in_tuning && line.ends_with(','));
        constant.or(field).is_some_and(|rest| is_number(&kind(rest)))
    };
    lines.iter().filter(is_one).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comments and tests do not count as code.
    #[test]
    fn size_counts_code_and_constants() {
        let text = "//! A file.\n\n/// A constant.\nconst A: u64 = 1;\nconst B: [u64; 2] = [1, 2];\nconst C: [&str; 1] = [\"x\"];\npub struct Tuning {\n    pub d: f64,\n    pub e: bool,\n}\npub f: f64,\n#[cfg(test)]\nmod tests {\nconst G: u64 = 1;\n}";
        let lines = outside_of_tests(text);
        assert_eq!((lines.len(), code_of(&lines), constants_of(&lines)), (11, 8, 3));
    }
}
