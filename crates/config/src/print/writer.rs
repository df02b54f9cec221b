//! Tables and comments.
//!
//! Owns: the order of keys in a table, which is that of [`keys`](crate::keys), and where comments stand. A key is explained
//! where it is first in the file.

use std::collections::HashSet;

use super::value_text::key;
use crate::keys::{ConfigKey, ConfigTable};

/// The keys of a table with their values; `None` if a key is not set.
pub(super) type Entries = Vec<(&'static str, Option<String>)>;

/// The longest line of a comment. *Units*: characters.
const COMMENT_MAX: usize = 100;

/// A file that is being written.
pub(super) struct ConfigWriter {
    text: String,
    explained: HashSet<(&'static str, &'static str)>,
}

impl ConfigWriter {
    pub fn new() -> ConfigWriter {
        ConfigWriter { text: String::new(), explained: HashSet::new() }
    }

    /// Writes a comment, broken into lines.
    pub fn comment(&mut self, text: &str) {
        let mut line = String::from("#");
        for word in text.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > COMMENT_MAX && line.len() > 1 {
                self.line(&line);
                line = String::from("#");
            }
            line.push(' ');
            line.push_str(word);
        }
        self.line(&line);
    }

    /// Writes a table with the keys that are set.
    pub fn section(&mut self, header: &str, table: &'static ConfigTable, entries: Entries) {
        self.header(header, table);
        for (key, value) in in_order(table, entries) {
            if let Some(value) = value {
                self.explain(table, key, "");
                self.line(&format!("{} = {value}", key.name));
            }
        }
    }

    /// Writes a table with all its keys; those that are not set as comments.
    pub fn full_section(&mut self, header: &str, table: &'static ConfigTable, entries: Entries) {
        self.header(header, table);
        for (key, value) in in_order(table, entries) {
            match value {
                Some(value) => {
                    self.explain(table, key, "");
                    self.line(&format!("{} = {value}", key.name));
                }
                None => {
                    self.explain(table, key, &format!(" Default: {}.", key.default));
                    self.line(&format!("# {} = {}", key.name, key.example));
                }
            }
        }
    }

    fn header(&mut self, header: &str, table: &'static ConfigTable) {
        self.line("");
        if self.explained.insert((table.header, "")) {
            self.comment(table.meaning);
        }
        self.line(header);
    }

    fn explain(&mut self, table: &'static ConfigTable, key: &'static ConfigKey, more: &str) {
        if self.explained.insert((table.header, key.name)) {
            self.comment(&format!("{}{more}", key.meaning));
        }
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// The whole file.
    pub fn end(self) -> String {
        self.text
    }
}

/// The entries in the order of the table's keys.
fn in_order(table: &'static ConfigTable, entries: Entries) -> Vec<(&'static ConfigKey, Option<String>)> {
    debug_assert!(entries.iter().all(|(name, _)| table.key(name).is_some()), "{} has another key", table.header);
    let mut ordered: Vec<_> = entries.into_iter().filter_map(|(name, value)| Some((table.key(name)?, value))).collect();
    ordered.sort_by_key(|(key, _)| table.keys().position(|other| other.name == key.name));
    ordered
}

/// A table in a line.
pub(super) fn inline(table: &'static ConfigTable, entries: Entries) -> String {
    let set = in_order(table, entries).into_iter().filter_map(|(key, value)| Some((key.name.to_owned(), value?)));
    pairs(set.collect())
}

/// Pairs of keys and values in a line.
pub(super) fn pairs(pairs: Vec<(String, String)>) -> String {
    if pairs.is_empty() {
        return "{}".to_owned();
    }
    let written: Vec<String> = pairs.iter().map(|(name, value)| format!("{} = {value}", key(name))).collect();
    format!("{{ {} }}", written.join(", "))
}
