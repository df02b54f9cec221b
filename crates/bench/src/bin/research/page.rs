//! Tables in pages that a subcommand writes.
//!
//! Owns: the marks between which such a table is, and the line that says what made it.

use std::path::Path;
use std::process::Command;

const BEGIN: &str = "<!-- written by research SUBCOMMAND -->";
const END: &str = "<!-- end -->";

/// Writes a table between the marks of a page, with the command, commit and machine that made it. `subcommand` is in
/// the first mark.
pub fn write(page: &Path, subcommand: &str, table: &str) -> Result<(), String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", page.display());
    let begin = BEGIN.replace("SUBCOMMAND", subcommand);
    let text = std::fs::read_to_string(page).map_err(|error| at(&error))?;
    let (before, rest) = text.split_once(&begin).ok_or_else(|| at(&format!("has no line {begin}")))?;
    let (_, after) = rest.split_once(END).ok_or_else(|| at(&format!("has no line {END}")))?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let commit = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    let machine = nectary_bench::machine::describe();
    let from = format!("`research {}`,\nafter commit {commit}, {machine}.", words.join(" "));
    std::fs::write(page, format!("{before}{begin}\n{from}\n\n{table}\n{END}{after}")).map_err(|error| at(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_replace_what_is_between_marks() {
        let page = std::env::temp_dir().join(format!("nectary-page-{}.md", std::process::id()));
        std::fs::write(&page, "above\n<!-- written by research one -->\nold\n<!-- end -->\nbelow\n").unwrap();
        assert!(
            write(&page, "another", "| new |").unwrap_err().contains("has no line <!-- written by research another")
        );
        write(&page, "one", "| new |").unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        std::fs::remove_file(&page).unwrap();
        assert!(text.starts_with("above\n<!-- written by research one -->\n`research "), "{text}");
        assert!(text.ends_with("\n\n| new |\n<!-- end -->\nbelow\n") && !text.contains("old"), "{text}");
    }
}
