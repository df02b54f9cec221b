//! What was found in a file.
//!
//! Owns: the problems and warnings, their number, and their order. Promises: a problem that only follows from another one
//! is left out: on a line with a mistake of syntax, after a list that never ends, and about the whole while a part of it could not be read.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::place::SourcePosition;
use crate::problem::{ConfigProblem, ConfigWarning};
use crate::source::ConfigSource;
use crate::text::ValueProblem;

/// The most problems that are kept, and the most warnings; the number of the others is told.
pub(super) const FINDINGS_MAX: usize = 100;

/// What was found in a file so far.
pub(super) struct ReadFindings {
    pub source: ConfigSource,
    problems: Vec<ConfigProblem>,
    problems_left_out: usize,
    warnings: Vec<ConfigWarning>,
    warnings_left_out: usize,
    broken_lines: BTreeSet<u32>,
    /// From this line on nothing is certain.
    lost_from_line: u32,
}

impl ReadFindings {
    pub fn new(source: ConfigSource) -> ReadFindings {
        ReadFindings {
            source,
            problems: Vec::new(),
            problems_left_out: 0,
            warnings: Vec::new(),
            warnings_left_out: 0,
            broken_lines: BTreeSet::new(),
            lost_from_line: u32::MAX,
        }
    }

    /// The place of a range of bytes.
    pub fn place(&self, bytes: Range<usize>) -> SourcePosition {
        self.source.place(bytes)
    }

    /// A mistake of syntax.
    pub fn syntax(&mut self, place: SourcePosition, message: String, help: Option<String>) {
        if self.problems.iter().any(|known| known.place() == place && known.message() == message) {
            return;
        }
        self.broken_lines.insert(place.line);
        self.add(place, message, help);
    }

    /// A mistake of syntax after which the rest of the file cannot be understood.
    pub fn lost(&mut self, place: SourcePosition, message: String, help: String) {
        self.syntax(place, message, Some(help));
        self.lost_from_line = self.lost_from_line.min(place.line);
    }

    /// A value that is wrong in itself.
    pub fn wrong(&mut self, place: SourcePosition, message: impl Into<String>, help: impl Into<String>) {
        if place.line < self.lost_from_line && !self.broken_lines.contains(&place.line) {
            self.add(place, message.into(), Some(help.into()));
        }
    }

    /// A text that is wrong in itself.
    pub fn wrong_text(&mut self, place: SourcePosition, wrong: ValueProblem) {
        self.wrong(place, wrong.message, wrong.help);
    }

    /// Something that is missing, or does not fit to something else. It may only seem so after a mistake of syntax.
    pub fn unfit(&mut self, place: SourcePosition, message: impl Into<String>, help: impl Into<String>) {
        if self.broken_lines.is_empty() {
            self.add(place, message.into(), Some(help.into()));
        }
    }

    /// Something that is allowed, but probably not meant.
    pub fn doubt(&mut self, place: SourcePosition, message: impl Into<String>, help: impl Into<String>) {
        if self.warnings.len() == FINDINGS_MAX {
            self.warnings_left_out += 1;
            return;
        }
        self.warnings.push(ConfigWarning::new(ConfigProblem::new(&self.source, place, message).with_help(help)));
    }

    fn add(&mut self, place: SourcePosition, message: String, help: Option<String>) {
        if self.problems.len() == FINDINGS_MAX {
            self.problems_left_out += 1;
            return;
        }
        let problem = ConfigProblem::new(&self.source, place, message);
        self.problems.push(match help {
            Some(help) => problem.with_help(help),
            None => problem,
        });
    }

    /// Whether so many problems were found that others are only counted.
    pub fn is_full(&self) -> bool {
        self.problems.len() == FINDINGS_MAX
    }

    /// The warnings if there is no problem, or the problems; both by place.
    pub fn end(mut self) -> Result<Vec<ConfigWarning>, Vec<ConfigProblem>> {
        let more = |count: usize| (count > 0).then(|| format!("{count} more are not shown"));
        if self.problems.is_empty() {
            self.warnings.sort_by_key(ConfigWarning::place);
            let rest = more(self.warnings_left_out)
                .map(|text| ConfigProblem::new(&self.source, SourcePosition::NOWHERE, text));
            self.warnings.extend(rest.map(ConfigWarning::new));
            return Ok(self.warnings);
        }
        self.problems.sort_by_key(ConfigProblem::place);
        let rest =
            more(self.problems_left_out).map(|text| ConfigProblem::new(&self.source, SourcePosition::NOWHERE, text));
        self.problems.extend(rest);
        Err(self.problems)
    }
}
