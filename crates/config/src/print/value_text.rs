//! Values as TOML writes them.
//!
//! Owns: quotes and escapes, lists, sizes and times.

use std::path::Path;
use std::time::Duration;

use crate::place::{LocatedValue, Setting};
use crate::quantity::{exact_size, exact_time};

/// A longer list has a line for each element. *Units*: characters.
const LINE_MAX: usize = 100;

/// A text in quotes.
pub(super) fn text(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for character in value.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A key, in quotes if it needs them.
pub(super) fn key(name: &str) -> String {
    let is_bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    if is_bare && !name.is_empty() { name.to_owned() } else { text(name) }
}

/// The path of a file.
pub(super) fn file(path: &Path) -> String {
    text(&path.display().to_string())
}

/// A setting, written by a function.
pub(super) fn optional<T>(setting: &Setting<T>, write: impl FnOnce(&T) -> String) -> Option<String> {
    setting.as_ref().map(|setting| write(&setting.value))
}

/// `true` or `false`.
pub(super) fn switch(setting: &Setting<bool>) -> Option<String> {
    optional(setting, ToString::to_string)
}

/// A number.
pub(super) fn number<T: ToString>(setting: &Setting<T>) -> Option<String> {
    optional(setting, ToString::to_string)
}

/// A size, from bytes.
pub(super) fn size(setting: &Setting<u64>) -> Option<String> {
    optional(setting, |bytes| text(&exact_size(*bytes)))
}

/// A time.
pub(super) fn time(setting: &Setting<Duration>) -> Option<String> {
    optional(setting, |time| text(&exact_time(*time)))
}

/// One of some words.
pub(super) fn spelled<T: PartialEq>(setting: &Setting<T>, words: &[(T, &str)]) -> Option<String> {
    let setting = setting.as_ref()?;
    words.iter().find(|(value, _)| *value == setting.value).map(|(_, word)| text(word))
}

/// A list; `None` if it is empty.
pub(super) fn list<T>(values: &[LocatedValue<T>], write: impl Fn(&T) -> String) -> Option<String> {
    (!values.is_empty()).then(|| given_list(values, write))
}

/// A list that may be empty.
pub(super) fn given_list<T>(values: &[LocatedValue<T>], write: impl Fn(&T) -> String) -> String {
    let written: Vec<String> = values.iter().map(|value| write(&value.value)).collect();
    let line = format!("[{}]", written.join(", "));
    if line.chars().count() <= LINE_MAX {
        return line;
    }
    format!("[\n{}]", written.iter().map(|value| format!("    {value},\n")).collect::<String>())
}
