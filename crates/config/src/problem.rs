//! What is wrong with a configuration, and what is doubtful.
//!
//! Owns: the form of a message: `FILE:LINE:COLUMN: error: …`, then the line with a mark below, then `help: …`. Promises:
//! no control character of a file reaches a terminal, and a message has a bounded length.

use std::fmt;

use crate::place::SourcePosition;
use crate::source::ConfigSource;

/// The longest part of a line that is shown. *Units*: characters.
const SHOWN_MAX: usize = 100;
/// How much of a longer line is shown before the place. *Units*: characters.
const SHOWN_BEFORE: usize = 30;

/// Something because of which a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigProblem {
    place: SourcePosition,
    message: String,
    help: Option<String>,
    source: ConfigSource,
}

/// Something that is allowed, but probably not meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigWarning(ConfigProblem);

impl ConfigProblem {
    /// A problem at a place of a file; at [`SourcePosition::NOWHERE`] for the file as a whole.
    pub fn new(source: &ConfigSource, place: SourcePosition, message: impl Into<String>) -> ConfigProblem {
        ConfigProblem { place, message: message.into(), help: None, source: source.clone() }
    }

    /// Adds what is allowed, or what was perhaps meant.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> ConfigProblem {
        self.help = Some(help.into());
        self
    }

    /// Where it is.
    pub fn place(&self) -> SourcePosition {
        self.place
    }

    /// What is wrong, as a part of a sentence without a dot at the end.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What is allowed, or what was perhaps meant.
    pub fn help(&self) -> Option<&str> {
        self.help.as_deref()
    }

    /// The name of the file.
    pub fn file(&self) -> &str {
        self.source.name()
    }

    fn render(&self, f: &mut fmt::Formatter<'_>, kind: &str) -> fmt::Result {
        write!(f, "{}", self.file())?;
        if self.place.is_in_file() {
            write!(f, ":{}", self.place)?;
        }
        write!(f, ": {kind}: {}", self.message)?;
        if self.place.is_in_file() {
            self.render_line(f)?;
        }
        self.help.iter().try_for_each(|help| write!(f, "\nhelp: {help}"))
    }

    /// Writes the line of the place, and marks the place in the line below.
    fn render_line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = self.source.line(self.place.line);
        let first = (self.place.column.saturating_sub(1) as usize).min(line.chars().count());
        let is_short = line.chars().nth(SHOWN_MAX).is_none();
        let left_out = if is_short { 0 } else { first.saturating_sub(SHOWN_BEFORE) };
        let shown: String = line.chars().skip(left_out).take(SHOWN_MAX).map(printable).collect();
        let number = self.place.line.to_string();
        let before = first - left_out;
        let width = (self.place.width as usize).clamp(1, (SHOWN_MAX - before.min(SHOWN_MAX - 1)).max(1));
        write!(f, "\n{number} | {}", shown.trim_end())?;
        write!(f, "\n{} | {}{}", " ".repeat(number.len()), " ".repeat(before), "^".repeat(width))
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.render(f, "error")
    }
}

impl std::error::Error for ConfigProblem {}

impl ConfigWarning {
    /// Makes a warning of what would be a problem.
    pub fn new(problem: ConfigProblem) -> ConfigWarning {
        ConfigWarning(problem)
    }

    /// Where it is.
    pub fn place(&self) -> SourcePosition {
        self.0.place
    }

    /// What is doubtful, as a part of a sentence without a dot at the end.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What was perhaps meant.
    pub fn help(&self) -> Option<&str> {
        self.0.help()
    }
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.render(f, "warning")
    }
}

/// A character that takes one column and changes nothing else of a terminal.
fn printable(character: char) -> char {
    match character {
        '\t' => ' ',
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
        character if character.is_control() => '\u{fffd}',
        character => character,
    }
}

/// A text of the file for a message: in backquotes, without control characters, and cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    const QUOTED_MAX: usize = 60;
    let mut shown: String = text.chars().take(QUOTED_MAX).map(printable).collect();
    if text.chars().nth(QUOTED_MAX).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_line_and_mark() {
        let source = ConfigSource::new("p.toml", "a = 1\n\tb = \"\u{1b}[2J\"\n");
        let problem =
            ConfigProblem::new(&source, SourcePosition { line: 2, column: 6, width: 6 }, "no").with_help("yes");
        let expected = "p.toml:2:6: error: no\n2 |  b = \"\u{fffd}[2J\"\n  |      ^^^^^^\nhelp: yes";
        assert_eq!(problem.to_string(), expected);
        let whole = ConfigProblem::new(&source, SourcePosition::NOWHERE, "gone");
        assert_eq!(ConfigWarning::new(whole).to_string(), "p.toml: warning: gone");
    }

    #[test]
    fn a_long_line_is_cut() {
        let source = ConfigSource::new("p", &"x".repeat(5000));
        for (column, width) in [(1, 9000), (4000, 1), (4999, 7), (5001, 1), (9999, 9)] {
            let text = ConfigProblem::new(&source, SourcePosition { line: 1, column, width }, "no").to_string();
            assert!(text.lines().all(|line| line.chars().count() < 140), "{text}");
            assert!(text.contains('^'));
        }
    }
}
