//! Mistakes of syntax, in the words of this house.
//!
//! Owns: the translation of the parser's messages. A message that is not known is passed on as it is.

use std::ops::Range;

use toml::de::{DeTable, DeValue, Error};

use super::findings::ReadFindings;
use super::table_reader::Value;
use crate::problem::quoted;

/// The most tables within tables that are searched for the first of two equal keys.
const DEPTH_MAX: usize = 16;

/// Tells the mistakes of syntax; `table` is what could be read in spite of them.
pub(super) fn tell(out: &mut ReadFindings, table: &DeTable<'_>, errors: &[Error]) {
    for error in errors {
        let span = error.span().unwrap_or_default();
        let place = out.place(span.clone());
        if out.is_full() {
            out.syntax(place, error.message().to_owned(), None);
            continue;
        }
        if is_end_missing(error.message(), out.source.line(place.line)) {
            // Everything that follows is taken for a part of the list.
            let open = open_value(table, span.start, DEPTH_MAX);
            let (opened, what, end) = open.map_or((span.start, "list", "]"), |open| open);
            let help = format!("write `{end}` at its end: line {} is taken for a part of it", place.line);
            let opened = out.place(opened..opened + 1);
            return out.lost(opened, format!("the {what} is not closed"), help);
        }
        let (message, help) = translated(out, table, error.message(), span);
        out.syntax(place, message, help);
    }
}

/// Whether a list or a table in a line goes on where a line begins something else, or where the file ends.
fn is_end_missing(message: &str, line: &str) -> bool {
    let line = line.trim_start();
    let key = line.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    let begins_other = line.starts_with('[') || (key.len() < line.len() && key.trim_start().starts_with('='));
    let goes_on = ["missing comma between", "unexpected `=` in array", "extra assignment", "extra `=`"];
    message.starts_with("unclosed array, ")
        || message.starts_with("unclosed inline table")
        || (begins_other && goes_on.iter().any(|start| message.starts_with(start)))
}

/// The innermost list or table in a line around a byte: where it begins, what it is, and how it ends.
fn open_value(table: &DeTable<'_>, byte: usize, depth: usize) -> Option<(usize, &'static str, &'static str)> {
    let values = table.iter().map(|(_, value)| value);
    values.filter_map(|value| open_value_in(value, byte, depth)).max()
}

fn open_value_in(value: Value<'_>, byte: usize, depth: usize) -> Option<(usize, &'static str, &'static str)> {
    let span = value.span();
    let (own, inner) = match value.get_ref() {
        DeValue::Array(values) if depth > 0 => {
            let inner = values.iter().filter_map(|value| open_value_in(value, byte, depth - 1)).max();
            ((span.start, "list", "]"), inner)
        }
        DeValue::Table(table) if depth > 0 => ((span.start, "table", "}"), open_value(table, byte, depth - 1)),
        _ => return None,
    };
    inner.or_else(|| (span.start < byte && byte <= span.end).then_some(own))
}

/// A message, and what is allowed.
fn translated(out: &ReadFindings, table: &DeTable<'_>, message: &str, span: Range<usize>) -> (String, Option<String>) {
    let text = out.source.text();
    let found = text.get(span.clone()).unwrap_or_default();
    let rest = text.get(span.start..).unwrap_or_default().lines().next().unwrap_or_default();
    let is = |start: &str| message.starts_with(start);
    let (message, help) = match message {
        "duplicate key" => return duplicate(out, table, found, span),
        r#"invalid basic string, expected `"`"# => {
            ("the text is not closed".to_owned(), r#"write `"` at its end"#.to_owned())
        }
        _ if is("invalid basic string, expected non-double-quote visible characters") => (
            "the text has a control character".to_owned(),
            r"write it as `\u` and four digits, if it is meant".to_owned(),
        ),
        "invalid literal string, expected `'`" => {
            ("the text is not closed".to_owned(), "write `'` at its end".to_owned())
        }
        _ if is("string values must be quoted") && found.is_empty() => {
            ("a value is missing".to_owned(), "write a text in quotes, a number, true, false, or a list".to_owned())
        }
        _ if is("string values must be quoted") => {
            let help = match found {
                "yes" | "on" | "True" | "TRUE" => "write true".to_owned(),
                "no" | "off" | "False" | "FALSE" => "write false".to_owned(),
                _ => format!("write {}", quoted(found).replace('`', "\"")),
            };
            (format!("{} is not in quotes", quoted(found)), help)
        }
        _ if is("key with no value") => ("a key has no value".to_owned(), "write KEY = VALUE".to_owned()),
        _ if is("unexpected key or value, expected newline") => {
            let is_separator = rest.starts_with([';', ',']);
            let help = if is_separator { "write each key on a line of its own" } else { "after a value the line ends" };
            (format!("{} does not belong here", quoted(rest.trim())), help.to_owned())
        }
        _ if is("missing escaped value") => {
            let help = r"write `\\` for a `\`, or put the text in single quotes";
            (r"what follows the `\` is not known".to_owned(), help.to_owned())
        }
        _ if is("unclosed table") => ("the header is not closed".to_owned(), "write `]` at its end".to_owned()),
        _ if is("unclosed array table") => ("the header is not closed".to_owned(), "write `]]` at its end".to_owned()),
        _ if is("missing comma between") => {
            ("a comma is missing".to_owned(), "write it between two elements".to_owned())
        }
        _ if is("cannot extend value of type") => {
            (format!("{} has a value, so it cannot have keys", quoted(found)), "leave out one of them".to_owned())
        }
        _ if message.contains("recurs") => {
            ("tables and lists are nested too deeply".to_owned(), "no key needs more than four levels".to_owned())
        }
        other => return (other.to_owned(), None),
    };
    (message, Some(help))
}

/// The message about a key or a header that is there twice.
fn duplicate(out: &ReadFindings, table: &DeTable<'_>, name: &str, span: Range<usize>) -> (String, Option<String>) {
    let before = out.source.text().get(..span.start).unwrap_or_default();
    let line = out.source.line(out.place(span.clone()).line).trim();
    let (what, first, remedy) = if line.starts_with('[') {
        let first = before.lines().position(|earlier| earlier.trim() == line);
        ("table", first.map(|index| index + 1), "write its keys under one header")
    } else {
        let first = earlier(table, name, span.start, DEPTH_MAX);
        ("key", first.map(|at| out.place(at..at).line as usize), "leave out one of them")
    };
    let help = first.map_or(remedy.to_owned(), |line| format!("the first is at line {line}: {remedy}"));
    (format!("the {what} {} is given twice", quoted(name)), Some(help))
}

/// Where the last key of this name is that begins before a byte.
fn earlier(table: &DeTable<'_>, name: &str, before: usize, depth: usize) -> Option<usize> {
    let mut last = None;
    for (key, value) in table {
        let start = key.span().start;
        if key.get_ref() == name && start < before {
            last = last.max(Some(start));
        }
        if depth > 0 {
            last = last.max(earlier_in(value.get_ref(), name, before, depth - 1));
        }
    }
    last
}

fn earlier_in(value: &DeValue<'_>, name: &str, before: usize, depth: usize) -> Option<usize> {
    match value {
        DeValue::Table(table) => earlier(table, name, before, depth),
        DeValue::Array(values) => {
            values.iter().filter_map(|value| earlier_in(value.get_ref(), name, before, depth)).max()
        }
        _ => None,
    }
}
