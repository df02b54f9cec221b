//! The commands of a page of the documents.
//!
//! Owns: reading its blocks, and the comparison of outputs. A block `sh` is one script. A block `console` has commands
//! after `$ `, each with its output below. Numbers in outputs do not count, except that there is one.

/// A script of a page, and the output that the page shows, if it shows one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageStep {
    /// The line of the page at which it begins, counted from 1.
    pub line: usize,
    /// What is run by a shell.
    pub script: String,
    /// The output on the page.
    pub shown: Option<String>,
}

/// The scripts of all `sh` and `console` blocks, in their order.
pub fn steps(text: &str) -> Vec<PageStep> {
    let mut steps: Vec<PageStep> = Vec::new();
    let mut language = None;
    for (index, line) in text.lines().enumerate() {
        let step = |script: &str, shown: Option<&str>| PageStep {
            line: index + 1,
            script: script.to_owned(),
            shown: shown.map(str::to_owned),
        };
        match (language, line.strip_prefix("```")) {
            (None, Some(name)) => {
                language = Some(name);
                if name == "sh" {
                    steps.push(step("", None));
                }
            }
            (Some(_), Some(_)) => language = None,
            (Some("sh"), None) => {
                if let Some(last) = steps.last_mut() {
                    last.script += &format!("{line}\n");
                }
            }
            (Some("console"), None) => match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(step(&format!("{command}\n"), Some(""))),
                (None, Some(PageStep { shown: Some(shown), .. })) => *shown += &format!("{line}\n"),
                _ => {}
            },
            _ => {}
        }
    }
    steps
}

/// The text with each number replaced by `#`.
pub fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    for symbol in text.chars() {
        match symbol.is_ascii_digit() {
            false => result.push(symbol),
            true if !result.ends_with('#') => result.push('#'),
            true => {}
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block is one script, or commands with their outputs.
    #[test]
    fn page_blocks_become_steps() {
        let found = steps("a\n```sh\ncat <<E\nx\nE\n```\n```toml\nb = 1\n```\n```console\n$ c\nttl=12\n$ d\n```\n");
        let step = |line, script: &str, shown: Option<&str>| PageStep {
            line,
            script: script.to_owned(),
            shown: shown.map(str::to_owned),
        };
        assert_eq!(
            found,
            [step(2, "cat <<E\nx\nE\n", None), step(11, "c\n", Some("ttl=12\n")), step(13, "d\n", Some(""))]
        );
        assert_eq!(without_numbers("ttl=604797; 2"), without_numbers("ttl=1; 45"));
    }
}
