//! Structured fields: dictionaries and lists.
//!
//! Owns: parsing as in RFC 9651, 4.2, which adds dates and display strings to RFC 8941. One wrong byte makes the whole
//! field invalid: the parser guesses nothing. Parameters must parse, too, and are then dropped: none of the fields that
//! the proxy reads uses them. Time and memory are linear in the length of the field, which is bounded by the limit on
//! heads.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

/// A member's value. All kinds of values that no caller needs are [`StructuredValue::Other`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StructuredValue {
    /// A whole number of at most 15 digits.
    Integer(i64),
    /// Text between quotes, without the quotes and with its escapes resolved.
    Text(Vec<u8>),
    /// A word without quotes.
    Token,
    /// `?0`, `?1`, or a key without a value.
    Boolean(bool),
    /// A decimal, bytes, a date, a display string, or a list in parentheses.
    Other,
}

/// A field's members in order. Of several members with the same key, the last one counts.
pub type Dictionary<'a> = Vec<(&'a [u8], StructuredValue)>;

/// All lines of a field, joined for parsing; `None` if there is no line.
pub fn field<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut lines = headers.get_all(name).into_iter();
    let first = lines.next()?.as_bytes();
    let mut whole = Cow::Borrowed(first);
    for line in lines {
        whole.to_mut().extend_from_slice(b", ");
        whole.to_mut().extend_from_slice(line.as_bytes());
    }
    Some(whole)
}

/// Reads a dictionary. The result is empty if the field is empty, and `None` if the field does not parse.
pub fn dictionary(field: &[u8]) -> Option<Dictionary<'_>> {
    let mut members: Dictionary<'_> = Vec::new();
    let mut parser = StructuredParser { rest: field };
    parser.members(|parser| {
        let key = parser.key()?;
        let value = if parser.take(b'=') { parser.member()? } else { StructuredValue::Boolean(true) };
        parser.parameters()?;
        members.push((key, value));
        Some(())
    })?;
    Some(members)
}

/// Reads a list. The result is empty if the field is empty, and `None` if the field does not parse.
pub fn list(field: &[u8]) -> Option<Vec<StructuredValue>> {
    let mut values = Vec::new();
    let mut parser = StructuredParser { rest: field };
    parser.members(|parser| {
        values.push(parser.member()?);
        parser.parameters()
    })?;
    Some(values)
}

struct StructuredParser<'a> {
    rest: &'a [u8],
}

impl<'a> StructuredParser<'a> {
    /// Calls `member` for each member and skips the separators; the field must end after a member.
    fn members(&mut self, mut member: impl FnMut(&mut StructuredParser<'a>) -> Option<()>) -> Option<()> {
        self.spaces();
        if self.rest.is_empty() {
            return Some(());
        }
        loop {
            member(self)?;
            self.blanks();
            if self.rest.is_empty() {
                return Some(());
            }
            if !self.take(b',') {
                return None;
            }
            self.blanks();
        }
    }

    /// Reads an item or an inner list, but not the parameters after it.
    fn member(&mut self) -> Option<StructuredValue> {
        if !self.take(b'(') {
            return self.item();
        }
        loop {
            self.spaces();
            if self.take(b')') {
                return Some(StructuredValue::Other);
            }
            self.item()?;
            self.parameters()?;
            if !matches!(self.rest.first(), Some(b' ' | b')')) {
                return None;
            }
        }
    }

    fn item(&mut self) -> Option<StructuredValue> {
        match *self.rest.first()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.text().map(StructuredValue::Text),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => {
                self.while_in(|byte| is_token(byte) || byte == b':' || byte == b'/');
                Some(StructuredValue::Token)
            }
            b':' => {
                self.take(b':');
                self.while_in(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
                self.take(b':').then_some(StructuredValue::Other)
            }
            b'?' => {
                self.take(b'?');
                let is_true = self.take(b'1');
                (is_true || self.take(b'0')).then_some(StructuredValue::Boolean(is_true))
            }
            b'@' => {
                self.take(b'@');
                matches!(self.number()?, StructuredValue::Integer(_)).then_some(StructuredValue::Other)
            }
            b'%' => {
                self.take(b'%');
                self.display_string()
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<StructuredValue> {
        let is_negative = self.take(b'-');
        let whole = self.while_in(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return None;
        }
        if self.take(b'.') {
            let fraction = self.while_in(|byte| byte.is_ascii_digit());
            return (whole.len() <= 12 && matches!(fraction.len(), 1..=3)).then_some(StructuredValue::Other);
        }
        let number = whole.iter().fold(0i64, |number, digit| number * 10 + i64::from(digit - b'0'));
        Some(StructuredValue::Integer(if is_negative { -number } else { number }))
    }

    fn text(&mut self) -> Option<Vec<u8>> {
        self.take(b'"');
        let mut text = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Some(text),
                b'\\' => text.push(self.next().filter(|byte| matches!(byte, b'"' | b'\\'))?),
                byte @ b' '..=b'~' => text.push(byte),
                _ => return None,
            }
        }
    }

    /// Reads a display string after its `%`: UTF-8 between quotes, with `%` and two lower-case hexadecimal digits for
    /// each byte that is not printable ASCII.
    fn display_string(&mut self) -> Option<StructuredValue> {
        if !self.take(b'"') {
            return None;
        }
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                b'"' => return std::str::from_utf8(&bytes).ok().map(|_| StructuredValue::Other),
                b'%' => bytes.push(hex(self.next()?)? << 4 | hex(self.next()?)?),
                byte @ b' '..=b'~' => bytes.push(byte),
                _ => return None,
            }
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.take(b';') {
            self.spaces();
            self.key()?;
            if self.take(b'=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        matches!(self.rest.first()?, b'*' | b'a'..=b'z').then_some(())?;
        Some(self.while_in(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*')))
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take(&mut self, byte: u8) -> bool {
        let is_there = self.rest.first() == Some(&byte);
        if is_there {
            self.rest = &self.rest[1..];
        }
        is_there
    }

    fn while_in(&mut self, is_in: impl Fn(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !is_in(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn spaces(&mut self) {
        self.while_in(|byte| byte == b' ');
    }

    fn blanks(&mut self) {
        self.while_in(|byte| matches!(byte, b' ' | b'\t'));
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::StructuredValue::*;
    use super::*;
    use crate::rules::headers;

    #[test]
    fn dictionary_parses_without_parameters() {
        let text = |text: &str| Text(text.as_bytes().to_vec());
        let table: &[(&str, &[(&str, StructuredValue)])] = &[
            ("", &[]),
            ("   ", &[]),
            ("a", &[("a", Boolean(true))]),
            ("a;b;c=1;d=\"x\", e=?0", &[("a", Boolean(true)), ("e", Boolean(false))]),
            ("max-age=60", &[("max-age", Integer(60))]),
            ("a=-5,b=999999999999999", &[("a", Integer(-5)), ("b", Integer(999_999_999_999_999))]),
            ("a=1 \t,\t b=2", &[("a", Integer(1)), ("b", Integer(2))]),
            ("a=1, b, a=2", &[("a", Integer(1)), ("b", Boolean(true)), ("a", Integer(2))]),
            ("a=\"x, \\\"y\\\\\";p", &[("a", text("x, \"y\\"))]),
            ("a=Token/x:y, *b=*", &[("a", Token), ("*b", Token)]),
            ("a=1.5, b=:aGk=:, c=@12, d=%\"f%c3%bc\"", &[("a", Other), ("b", Other), ("c", Other), ("d", Other)]),
            ("a=(1 x;q \"s\");p, b=()", &[("a", Other), ("b", Other)]),
        ];
        for (field, expected) in table {
            let found = dictionary(field.as_bytes()).unwrap_or_else(|| panic!("{field:?} does not parse"));
            let expected: Vec<_> = expected.iter().map(|(key, value)| (key.as_bytes(), value.clone())).collect();
            assert_eq!(found, expected, "{field:?}");
        }
    }

    #[test]
    fn misplaced_byte_rejects_structured_field() {
        for field in [
            "a,",
            ",a",
            "a,,b",
            "a b",
            "a =1",
            "a= 1",
            "a=",
            "A=1",
            "Max-Age=1",
            "1a",
            "a, &&&&&",
            "a=1.",
            "a=1.2345",
            "a=1234567890123.1",
            "a=1000000000000000",
            "a=-",
            "a=\"x",
            "a=\"\\x\"",
            "a=\"\u{e9}\"",
            "a=?2",
            "a=:?:",
            "a=:aa",
            "a=@1.5",
            "a=%\"%C3%BC\"",
            "a=%\"%ff\"",
            "a=%x",
            "a=(1",
            "a=(1,2)",
            "a=(1\"x\")",
            "a;",
            "a;B",
            "a; \tb",
            "\ta",
            "a;b=(1)",
        ] {
            assert_eq!(dictionary(field.as_bytes()), None, "{field:?}");
        }
    }

    #[test]
    fn list_lines_form_one_field() {
        assert_eq!(list(b"\"a\", b;x=1"), Some(vec![Text(b"a".to_vec()), Token]));
        assert_eq!(list(b"\"a\" \"b\""), None);
        let name = HeaderName::from_static("x");
        let map = headers(&[("x", "a=1"), ("x", "a=2"), ("y", "")]);
        assert_eq!(field(&map, &name).as_deref(), Some(&b"a=1, a=2"[..]));
        assert_eq!(field(&map, &HeaderName::from_static("z")), None);
        assert_eq!(field(&map, &HeaderName::from_static("y")).as_deref(), Some(&b""[..]));
    }
}
