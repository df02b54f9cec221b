//! Comma-separated lists in header values.
//!
//! Owns: splitting a value into members, except inside quoted strings, and splitting a directive into name and
//! argument. It works on bytes, and allocates only for quoted arguments that contain escapes.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

/// The members of one header value. Members are trimmed, and empty members are left out.
#[derive(Debug, Clone)]
pub struct ListMembers<'a> {
    rest: &'a [u8],
}

impl<'a> ListMembers<'a> {
    /// Splits `value` at commas outside of quoted strings.
    pub fn new(value: &'a [u8]) -> ListMembers<'a> {
        ListMembers { rest: value }
    }
}

impl<'a> Iterator for ListMembers<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let (member, rest) = split_at_unquoted(self.rest, b',');
            self.rest = rest;
            let member = member.trim_ascii();
            if !member.is_empty() {
                return Some(member);
            }
        }
        None
    }
}

/// The members of every line of a header, in order.
pub fn members_of<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).into_iter().flat_map(|value| ListMembers::new(value.as_bytes()))
}

/// The parts of a value between separators outside of quoted strings. Parts are trimmed, and may be empty.
pub fn parts_of(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = value;
    std::iter::from_fn(move || {
        let (part, others) = if rest.is_empty() { return None } else { split_at_unquoted(rest, separator) };
        rest = others;
        Some(part.trim_ascii())
    })
}

/// Splits a directive into its name and its argument, if it has one.
///
/// A quoted argument is unquoted. An argument with an unclosed quote, or with spaces around its `=`, is returned
/// unchanged, and no later step can parse it.
pub fn directive(member: &[u8]) -> (&[u8], Option<Cow<'_, [u8]>>) {
    let Some(position) = member.iter().position(|&byte| byte == b'=') else {
        return (member, None);
    };
    let (name, argument) = (&member[..position], &member[position + 1..]);
    (name, Some(unquote(argument)))
}

fn unquote(argument: &[u8]) -> Cow<'_, [u8]> {
    let Some(inner) = argument.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else {
        return Cow::Borrowed(argument);
    };
    if !inner.contains(&b'\\') {
        return Cow::Borrowed(inner);
    }
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        plain.push(if byte == b'\\' { *bytes.next().unwrap_or(&b'\\') } else { byte });
    }
    Cow::Owned(plain)
}

/// Splits at the first `separator` outside of a quoted string; the second part is empty if there is no such separator.
fn split_at_unquoted(value: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let mut quoted = false;
    let mut index = 0;
    while index < value.len() {
        let byte = value[index];
        if quoted && byte == b'\\' {
            index += 1;
        } else if byte == b'"' {
            quoted = !quoted;
        } else if byte == separator && !quoted {
            return (&value[..index], &value[index + 1..]);
        }
        index += 1;
    }
    (value, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_splits_only_outside_quotes() {
        let table: &[(&str, &[&str])] = &[
            ("", &[]),
            (" , ,, ", &[]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            (" a , b ", &["a", "b"]),
            ("a=\"x,y\", b", &["a=\"x,y\"", "b"]),
            ("a=\"x\\\",y\", b", &["a=\"x\\\",y\"", "b"]),
            ("a=\"never closed, b", &["a=\"never closed, b"]),
        ];
        for (value, expected) in table {
            let found: Vec<_> = ListMembers::new(value.as_bytes()).collect();
            let expected: Vec<_> = expected.iter().map(|member| member.as_bytes()).collect();
            assert_eq!(found, expected, "{value:?}");
        }
    }

    #[test]
    fn arguments_are_tokens_or_quoted_strings() {
        let table: &[(&str, &str, Option<&str>)] = &[
            ("no-store", "no-store", None),
            ("max-age=1", "max-age", Some("1")),
            ("max-age=\"1\"", "max-age", Some("1")),
            ("a=\"x\\\"y\"", "a", Some("x\"y")),
            ("a=\"", "a", Some("\"")),
            ("a=", "a", Some("")),
            ("a= 1", "a", Some(" 1")),
        ];
        for (member, name, argument) in table {
            let (found_name, found_argument) = directive(member.as_bytes());
            assert_eq!(found_name, name.as_bytes(), "{member:?}");
            assert_eq!(found_argument.as_deref(), argument.map(str::as_bytes), "{member:?}");
        }
    }
}
