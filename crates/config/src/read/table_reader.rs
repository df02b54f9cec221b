//! A table of the file, and how its keys are read.
//!
//! Owns: the types of TOML, bounds on numbers and lists, unknown and missing keys. Promises: a key that is wrong is told
//! once and read as absent, so that reading goes on.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::findings::ReadFindings;
use crate::keys::{self, ConfigTable};
use crate::place::{LocatedValue, Setting, SourcePosition};
use crate::problem::quoted;
use crate::quantity::{exact_size, exact_time, parse_size, parse_time};
use crate::suggest::nearest;
use crate::text::{Read, file_path};

/// A value of the file, with its range of bytes.
pub(super) type Value<'a> = &'a Spanned<DeValue<'a>>;

/// The most elements of a list.
pub(super) const LIST_MAX: usize = 10_000;
/// The most digits of a number that a message repeats.
const DIGITS_MAX: usize = 20;

/// A table of the file, all of whose keys are known to be allowed or were told.
pub(super) struct TableReader<'a> {
    /// Its keys.
    table: &'a DeTable<'a>,
    /// What it may have.
    allowed: &'static ConfigTable,
    /// The place of its header, or of the brace that opens it.
    pub place: SourcePosition,
}

/// The times that a key may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimeBound {
    /// 0 to a year.
    Any,
    /// A millisecond to a year.
    Positive,
    /// Whole seconds, 0 to ten years.
    Lifetime,
}

impl<'a> TableReader<'a> {
    /// Takes a table, and tells which of its keys are unknown. *Errors*: `None`, and it is told, if it is no table.
    pub fn open(out: &mut ReadFindings, allowed: &'static ConfigTable, value: Value<'a>) -> Option<TableReader<'a>> {
        let place = out.place(value.span());
        let DeValue::Table(table) = value.get_ref() else {
            let header = allowed.header;
            let help =
                if header.starts_with('[') { format!("write it as {header}") } else { format!("write {header}") };
            out.wrong(place, format!("expected a table, not {}", described(value.get_ref())), help);
            return None;
        };
        let reader = TableReader { table, allowed, place };
        let mut keys: Vec<_> = table.keys().filter(|key| allowed.key(key.get_ref()).is_none()).collect();
        keys.sort_by_key(|key| key.span().start);
        keys.into_iter().for_each(|key| unknown_key(out, allowed, key.get_ref(), key.span()));
        Some(reader)
    }

    /// The value of a key.
    pub fn get(&self, name: &str) -> Option<Value<'a>> {
        debug_assert!(self.allowed.key(name).is_some(), "{name} is not a key of {}", self.allowed.header);
        self.table.get(name)
    }

    /// The place of a key itself; of the table if the key is absent.
    pub fn key_place(&self, out: &ReadFindings, name: &str) -> SourcePosition {
        self.table.get_key_value(name).map_or(self.place, |(key, _)| out.place(key.span()))
    }

    /// Tells that a key is missing.
    pub fn missing(&self, out: &mut ReadFindings, name: &str) {
        let example = self.allowed.key(name).map_or("", |key| key.example);
        let header = self.allowed.header.split(" = ").next().unwrap_or_default();
        out.unfit(
            self.place,
            format!("`{name}` is missing in {header}"),
            format!("write for example `{name} = {example}`"),
        );
    }

    /// Reads a key by a function, and tells if the key is missing.
    pub fn required<T>(
        &self,
        out: &mut ReadFindings,
        name: &str,
        read: impl FnOnce(&mut ReadFindings) -> Setting<T>,
    ) -> Setting<T> {
        if self.get(name).is_none() {
            self.missing(out, name);
        }
        read(out)
    }

    /// Reads a key by a function, which gives `None` for a value of the wrong type.
    fn setting<T>(
        &self,
        out: &mut ReadFindings,
        name: &str,
        expected: &str,
        read: impl FnOnce(&DeValue<'_>) -> Option<Read<T>>,
    ) -> Setting<T> {
        let value = self.get(name)?;
        let place = out.place(value.span());
        match read(value.get_ref()) {
            Some(Ok(value)) => Some(LocatedValue::new(value, place)),
            Some(Err(wrong)) => {
                out.wrong_text(place, wrong);
                None
            }
            None => {
                wrong_type(out, place, &format!("`{name}`"), expected, value.get_ref());
                None
            }
        }
    }

    /// A text that a function reads.
    pub fn text<T>(&self, out: &mut ReadFindings, name: &str, read: impl FnOnce(&str) -> Read<T>) -> Setting<T> {
        self.setting(out, name, "a text in quotes", |value| value.as_str().map(read))
    }

    /// The path of a file.
    pub fn file(&self, out: &mut ReadFindings, name: &str) -> Setting<PathBuf> {
        self.text(out, name, file_path)
    }

    /// `true` or `false`.
    pub fn switch(&self, out: &mut ReadFindings, name: &str) -> Setting<bool> {
        self.setting(out, name, "true or false", |value| value.as_bool().map(Ok))
    }

    /// One of some words.
    pub fn choice<T: Copy>(&self, out: &mut ReadFindings, name: &str, words: &[(&str, T)]) -> Setting<T> {
        let value = self.get(name)?;
        let place = out.place(value.span());
        let names = || words.iter().map(|(word, _)| *word);
        let allowed = names().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(", ");
        let Some(text) = value.get_ref().as_str() else {
            wrong_type(out, place, &format!("`{name}`"), &format!("one of {allowed}"), value.get_ref());
            return None;
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(LocatedValue::new(*value, place));
        }
        let perhaps = nearest(text, names()).map_or(String::new(), |word| format!("perhaps \"{word}\"; "));
        out.wrong(place, format!("`{name}` cannot be {}", quoted(text)), format!("{perhaps}allowed: {allowed}"));
        None
    }

    /// A whole number.
    pub fn number<T>(&self, out: &mut ReadFindings, name: &str, range: RangeInclusive<T>) -> Setting<T>
    where
        T: TryFrom<i64> + PartialOrd + Copy + Display,
    {
        let value = self.get(name)?;
        number_in(out, &format!("`{name}`"), value, range)
    }

    /// A size, in bytes: a text with a unit, or a number.
    pub fn size(&self, out: &mut ReadFindings, name: &str, range: RangeInclusive<u64>) -> Setting<u64> {
        let value = self.get(name)?;
        let place = out.place(value.span());
        let bytes = match value.get_ref() {
            DeValue::String(text) => parse_size(text),
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            other => {
                wrong_type(out, place, &format!("`{name}`"), "a size such as \"512M\"", other);
                return None;
            }
        };
        let Some(bytes) = bytes else {
            let shown = shown(value.get_ref());
            out.wrong(
                place,
                format!("{shown} is not a size"),
                "write a whole number of bytes, or with K, M, G or T: \"64G\"",
            );
            return None;
        };
        if !range.contains(&bytes) {
            let (least, most) = (exact_size(*range.start()), exact_size(*range.end()));
            let allowed = match (*range.start(), *range.end()) {
                (least_bytes, u64::MAX) => format!("at least {}", exact_size(least_bytes)),
                _ => format!("{least} to {most}"),
            };
            out.wrong(place, format!("`{name}` cannot be {}", exact_size(bytes)), format!("allowed: {allowed}"));
            return None;
        }
        Some(LocatedValue::new(bytes, place))
    }

    /// A time.
    pub fn time(&self, out: &mut ReadFindings, name: &str, bound: TimeBound) -> Setting<Duration> {
        let value = self.get(name)?;
        time_in(out, &format!("`{name}`"), value, bound)
    }

    /// A list of texts that a function reads; empty if the key is absent.
    pub fn list<T>(&self, out: &mut ReadFindings, name: &str, read: impl Fn(&str) -> Read<T>) -> Vec<LocatedValue<T>> {
        self.given_list(out, name, read).unwrap_or_default()
    }

    /// A list of texts that a function reads; `None` if the key is absent.
    pub fn given_list<T>(
        &self,
        out: &mut ReadFindings,
        name: &str,
        read: impl Fn(&str) -> Read<T>,
    ) -> Option<Vec<LocatedValue<T>>> {
        let elements = self.elements(out, name, "a list of texts such as [\"a\", \"b\"]", LIST_MAX)?;
        let mut list = Vec::new();
        for element in elements {
            list.extend(text_element(out, name, element, &read));
        }
        Some(list)
    }

    /// The elements of a list; `None` if the key is absent or wrong.
    pub fn elements(
        &self,
        out: &mut ReadFindings,
        name: &str,
        expected: &str,
        count_max: usize,
    ) -> Option<Vec<Value<'a>>> {
        let value = self.get(name)?;
        let place = out.place(value.span());
        let DeValue::Array(elements) = value.get_ref() else {
            wrong_type(out, place, &format!("`{name}`"), expected, value.get_ref());
            return None;
        };
        if elements.len() > count_max {
            let count = elements.len();
            out.wrong(place, format!("`{name}` has {count} elements"), format!("at most {count_max} are allowed"));
            return None;
        }
        Some(elements.iter().collect())
    }

    /// A table in this table.
    pub fn table(&self, out: &mut ReadFindings, name: &str, allowed: &'static ConfigTable) -> Option<TableReader<'a>> {
        let value = self.get(name)?;
        TableReader::open(out, allowed, value)
    }

    /// The entries of a table whose keys are free, in the order of the file; empty if the key is absent or wrong.
    pub fn entries(
        &self,
        out: &mut ReadFindings,
        name: &str,
        expected: &str,
    ) -> Vec<(LocatedValue<&'a str>, Value<'a>)> {
        let Some(value) = self.get(name) else { return Vec::new() };
        let place = out.place(value.span());
        let DeValue::Table(table) = value.get_ref() else {
            wrong_type(out, place, &format!("`{name}`"), expected, value.get_ref());
            return Vec::new();
        };
        entries_of(out, name, place, table)
    }
}

/// The entries of a table whose keys are free, in the order of the file.
pub(super) fn entries_of<'a>(
    out: &mut ReadFindings,
    name: &str,
    place: SourcePosition,
    table: &'a DeTable<'a>,
) -> Vec<(LocatedValue<&'a str>, Value<'a>)> {
    if table.len() > LIST_MAX {
        out.wrong(place, format!("`{name}` has {} keys", table.len()), format!("at most {LIST_MAX} are allowed"));
        return Vec::new();
    }
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut located = Vec::new();
    for (key, value) in entries {
        let name: &'a str = key.get_ref();
        located.push((LocatedValue::new(name, out.place(key.span())), value));
    }
    located
}

/// Reads an element of a list of texts.
pub(super) fn text_element<T>(
    out: &mut ReadFindings,
    name: &str,
    element: Value<'_>,
    read: impl Fn(&str) -> Read<T>,
) -> Setting<T> {
    let place = out.place(element.span());
    let Some(text) = element.get_ref().as_str() else {
        wrong_type(out, place, &format!("an element of `{name}`"), "a text in quotes", element.get_ref());
        return None;
    };
    match read(text) {
        Ok(value) => Some(LocatedValue::new(value, place)),
        Err(wrong) => {
            out.wrong_text(place, wrong);
            None
        }
    }
}

/// Reads a whole number within bounds; `what` is its name in messages.
pub(super) fn number_in<T>(out: &mut ReadFindings, what: &str, value: Value<'_>, range: RangeInclusive<T>) -> Setting<T>
where
    T: TryFrom<i64> + PartialOrd + Copy + Display,
{
    let place = out.place(value.span());
    let DeValue::Integer(number) = value.get_ref() else {
        wrong_type(out, place, what, "a whole number", value.get_ref());
        return None;
    };
    let found = i64::from_str_radix(number.as_str(), number.radix()).ok().and_then(|number| T::try_from(number).ok());
    let Some(found) = found.filter(|found| range.contains(found)) else {
        let allowed = format!("allowed: {} to {}", range.start(), range.end());
        out.wrong(place, format!("{what} cannot be {}", shown(value.get_ref())), allowed);
        return None;
    };
    Some(LocatedValue::new(found, place))
}

/// Reads a time within bounds; `what` is its name in messages.
pub(super) fn time_in(out: &mut ReadFindings, what: &str, value: Value<'_>, bound: TimeBound) -> Setting<Duration> {
    const DAY: Duration = Duration::from_secs(86_400);
    let place = out.place(value.span());
    let text = match value.get_ref() {
        DeValue::String(text) => text,
        DeValue::Integer(number) => {
            let digits: String = number.as_str().chars().take(DIGITS_MAX).collect();
            let help = format!("write it in quotes: \"{digits}s\" for seconds, or with ms, m, h or d");
            out.wrong(place, format!("{what} has no unit"), help);
            return None;
        }
        other => {
            wrong_type(out, place, what, "a time such as \"10s\"", other);
            return None;
        }
    };
    let Some(time) = parse_time(text) else {
        let help = "write numbers with ms, s, m, h or d, the longest first: \"10s\", \"1h30m\"";
        out.wrong(place, format!("{} is not a time", quoted(text)), help);
        return None;
    };
    let allowed = match bound {
        TimeBound::Any | TimeBound::Positive if time > DAY * 366 => "at most a year (366d)",
        TimeBound::Positive if time.is_zero() => "longer than 0s",
        TimeBound::Lifetime if time > DAY * 3650 => "at most ten years (3650d)",
        TimeBound::Lifetime if time.subsec_nanos() != 0 => "whole seconds",
        _ => return Some(LocatedValue::new(time, place)),
    };
    out.wrong(place, format!("{what} cannot be {}", exact_time(time)), format!("allowed: {allowed}"));
    None
}

/// Tells that a key is not allowed in a table, and what was perhaps meant.
fn unknown_key(out: &mut ReadFindings, allowed: &'static ConfigTable, name: &str, span: Range<usize>) {
    let place = out.place(span);
    if out.is_full() {
        return out.wrong(place, "", "");
    }
    let header = allowed.header.split(" = ").next().unwrap_or_default();
    let names: Vec<&str> = allowed.keys().map(|key| key.name).collect();
    let list = names.join(", ");
    let elsewhere = || keys::TABLES.iter().find(|table| table.key(name).is_some());
    let help = match (nearest(name, names), elsewhere()) {
        (_, Some(table)) => format!("`{name}` is a key of {}; allowed here: {list}", table.header),
        (Some(near), None) => format!("perhaps `{near}`; allowed: {list}"),
        (None, None) => format!("allowed: {list}"),
    };
    out.wrong(place, format!("{header} has no key {}", quoted(name)), help);
}

/// Tells that a value has the wrong type.
pub(super) fn wrong_type(
    out: &mut ReadFindings,
    place: SourcePosition,
    what: &str,
    expected: &str,
    found: &DeValue<'_>,
) {
    let help = match found {
        DeValue::String(text) if expected.starts_with("true") || expected.starts_with("a whole number") => {
            let is_number = text.len() <= DIGITS_MAX && text.parse::<u32>().is_ok();
            let is_plain = is_number || matches!(&**text, "true" | "false");
            if is_plain { format!("write it without quotes: {text}") } else { format!("write {expected}") }
        }
        DeValue::Integer(_) | DeValue::Boolean(_) | DeValue::Float(_) if expected.starts_with("a text") => {
            format!("write it in quotes: {}", shown(found).replace('`', "\""))
        }
        DeValue::String(text) if expected.starts_with("a list of texts") => {
            format!("write it in brackets: [{}]", quoted(text).replace('`', "\""))
        }
        _ => format!("write {expected}"),
    };
    out.wrong(place, format!("{what} must be {expected}, not {}", described(found)), help);
}

/// A number, a date, `true` or `false` as the file has it.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    Some(match value {
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        _ => return None,
    })
}

/// A value in a message.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        other => scalar(other).map_or_else(|| described(other).to_owned(), |text| quoted(&text)),
    }
}

/// What a value is.
pub(super) fn described(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
