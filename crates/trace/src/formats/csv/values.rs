//! Splits a line into its values.
//!
//! Owns: separators, quotes, and the white space around values. A value that begins with `"` ends at the next `"` that
//! is not doubled; in it separators are ordinary bytes, and `""` stands for `"`. A value cannot go on in the next line.

use std::ops::Range;

/// What is between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSeparator {
    /// One byte; two of them in sequence have an empty value between them.
    Byte(u8),
    /// Any number of spaces and tabs.
    Blanks,
}

impl ValueSeparator {
    /// The separators that are tried in this order if none is named.
    pub(super) const TRIED: [ValueSeparator; 5] = [
        ValueSeparator::Byte(b','),
        ValueSeparator::Byte(b'\t'),
        ValueSeparator::Byte(b';'),
        ValueSeparator::Byte(b'|'),
        ValueSeparator::Blanks,
    ];

    /// Reads `tab`, `space`, or one character; nothing stands for a comma.
    pub(super) fn parse(text: &str) -> Result<ValueSeparator, String> {
        match text.as_bytes() {
            b"tab" => Ok(ValueSeparator::Byte(b'\t')),
            b"space" => Ok(ValueSeparator::Blanks),
            b"\"" => Err("a quote is no separator".to_owned()),
            [one] if one.is_ascii() && !one.is_ascii_alphanumeric() => Ok(ValueSeparator::Byte(*one)),
            // The columns are separated by commas, so `sep=,` arrives as an empty value.
            b"" => Ok(ValueSeparator::Byte(b',')),
            _ => Err(format!("\"{text}\" is no separator; expected one character, tab or space")),
        }
    }

    fn is(self, byte: u8) -> bool {
        match self {
            ValueSeparator::Byte(separator) => byte == separator,
            ValueSeparator::Blanks => byte == b' ' || byte == b'\t',
        }
    }
}

/// The values of one line; they are reused for the next line.
#[derive(Debug, Default)]
pub struct LineValues {
    ranges: Vec<Range<usize>>,
    /// The line without its quotes, if it has any.
    unquoted: Vec<u8>,
    has_quotes: bool,
}

impl LineValues {
    /// Splits a line. Values after the first `count` are left out.
    ///
    /// *Errors*: a quoted value has no end, or text after its end.
    pub fn split(&mut self, line: &[u8], separator: ValueSeparator, count: usize) -> Result<(), &'static str> {
        self.ranges.clear();
        self.unquoted.clear();
        self.has_quotes = memchr::memchr(b'"', line).is_some();
        let mut at = 0;
        while self.ranges.len() < count {
            while separator == ValueSeparator::Blanks && line.get(at).is_some_and(|&byte| separator.is(byte)) {
                at += 1;
            }
            if at >= line.len() && separator == ValueSeparator::Blanks {
                break;
            }
            let end =
                if self.has_quotes { self.take(line, at, separator)? } else { self.take_plain(line, at, separator) };
            if end >= line.len() {
                break;
            }
            at = end + 1;
        }
        Ok(())
    }

    /// Takes the value at `at`. *Returns* the place after it.
    fn take_plain(&mut self, line: &[u8], at: usize, separator: ValueSeparator) -> usize {
        let end = line[at..].iter().position(|&byte| separator.is(byte)).map_or(line.len(), |length| at + length);
        let trimmed = trim(&line[at..end]);
        self.ranges.push(at + trimmed.start..at + trimmed.end);
        end
    }

    /// Takes the value at `at`, which may be quoted. *Returns* the place after it.
    fn take(&mut self, line: &[u8], at: usize, separator: ValueSeparator) -> Result<usize, &'static str> {
        let start = self.unquoted.len();
        let blank = line[at..].iter().take_while(|&&byte| byte == b' ' && !separator.is(byte)).count();
        if line.get(at + blank) != Some(&b'"') {
            let end = self.take_plain(line, at, separator);
            if let Some(range) = self.ranges.last_mut() {
                self.unquoted.extend(&line[range.clone()]);
                *range = start..self.unquoted.len();
            }
            return Ok(end);
        }
        let mut at = at + blank + 1;
        loop {
            let length = memchr::memchr(b'"', &line[at..]).ok_or("a quote that ends in its line")?;
            self.unquoted.extend(&line[at..at + length]);
            at += length + 1;
            if line.get(at) != Some(&b'"') {
                break;
            }
            self.unquoted.push(b'"');
            at += 1;
        }
        self.ranges.push(start..self.unquoted.len());
        let blank = line[at..].iter().take_while(|&&byte| byte == b' ' && !separator.is(byte)).count();
        match line.get(at + blank) {
            Some(&byte) if !separator.is(byte) => Err("a separator after a quoted value"),
            _ => Ok(at + blank),
        }
    }

    /// The value at `index`, counted from 0, of `line`, which was split last.
    pub fn get<'a>(&'a self, line: &'a [u8], index: usize) -> Option<&'a [u8]> {
        let range = self.ranges.get(index)?.clone();
        Some(if self.has_quotes { &self.unquoted[range] } else { &line[range] })
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }
}

/// The range of a value without white space at its ends.
fn trim(value: &[u8]) -> Range<usize> {
    let start = value.len() - value.trim_ascii_start().len();
    start..start + value.trim_ascii().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str, separator: ValueSeparator) -> Result<Vec<String>, &'static str> {
        let mut values = LineValues::default();
        values.split(line.as_bytes(), separator, 100)?;
        let all = (0..values.len()).filter_map(|index| values.get(line.as_bytes(), index));
        Ok(all.map(|value| String::from_utf8_lossy(value).into_owned()).collect())
    }

    #[test]
    fn values_are_split_trimmed_and_unquoted() {
        let comma = ValueSeparator::Byte(b',');
        for (line, separator, expected) in [
            ("a,b", comma, &["a", "b"][..]),
            (" a , b c ,, ", comma, &["a", "b c", "", ""]),
            ("", comma, &[""]),
            ("a,\"b, c\",\"say \"\"no\"\"\"", comma, &["a", "b, c", "say \"no\""]),
            ("\"\", \" x \" ,y", comma, &["", " x ", "y"]),
            ("5\" disk,1", comma, &["5\" disk", "1"]),
            ("a\t\tb", ValueSeparator::Byte(b'\t'), &["a", "", "b"]),
            ("  a   b\t c ", ValueSeparator::Blanks, &["a", "b", "c"]),
            ("\"a b\"  c", ValueSeparator::Blanks, &["a b", "c"]),
        ] {
            assert_eq!(
                split(line, separator).as_deref(),
                Ok(&expected.iter().map(|&v| v.to_owned()).collect::<Vec<_>>()[..]),
                "{line}"
            );
        }
        for line in ["\"a", "a,\"b\"c", "\"a\"\"", "\""] {
            assert!(split(line, comma).is_err(), "{line}");
        }
    }
}
