//! Byte ranges of a whole response.
//!
//! Owns: what a `Range` header asks for once the size is known. One range is served; several, other units and damaged
//! headers get the whole, which RFC 9110, 14.2 allows.

use std::ops::Range;

use http::HeaderMap;
use http::header::RANGE;

/// What a request wants of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// All of it.
    Whole,
    /// These bytes; not empty.
    Part(Range<u64>),
    /// A range that the response does not have.
    Unsatisfiable,
}

/// Reads the `Range` of a request for a response of `size_bytes`.
pub fn wanted(request: &HeaderMap, size_bytes: u64) -> Wanted {
    let mut lines = request.get_all(RANGE).into_iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return Wanted::Whole };
    match parse(line.as_bytes()) {
        Some(Spec::From(first, last)) => {
            if first >= size_bytes {
                Wanted::Unsatisfiable
            } else {
                Wanted::Part(first..last.saturating_add(1).min(size_bytes))
            }
        }
        Some(Spec::Last(count)) => {
            if count == 0 || size_bytes == 0 {
                Wanted::Unsatisfiable
            } else {
                Wanted::Part(size_bytes.saturating_sub(count)..size_bytes)
            }
        }
        None => Wanted::Whole,
    }
}

/// The first byte that a single range from the front asks for; 0 for anything else.
pub fn first_byte(request: &HeaderMap) -> u64 {
    match request.get(RANGE).and_then(|line| parse(line.as_bytes())) {
        Some(Spec::From(first, _)) => first,
        _ => 0,
    }
}

enum Spec {
    /// From the first to the last position, both included.
    From(u64, u64),
    /// The last so many bytes.
    Last(u64),
}

fn parse(value: &[u8]) -> Option<Spec> {
    let (unit, ranges) = value.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") {
        return None;
    }
    let range = ranges.trim_ascii();
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (&range[..dash], &range[dash + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => Some(Spec::Last(position(last)?)),
        (false, true) => Some(Spec::From(position(first)?, u64::MAX)),
        (false, false) => {
            let (first, last) = (position(first)?, position(last)?);
            (first <= last).then_some(Spec::From(first, last))
        }
    }
}

fn position(digits: &[u8]) -> Option<u64> {
    digits.iter().all(u8::is_ascii_digit).then(|| {
        digits.iter().fold(0u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
    })
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn one_range_is_served_and_damage_is_ignored() {
        use Wanted::*;
        let table: &[(&str, u64, Wanted)] = &[
            ("bytes=0-0", 10, Part(0..1)),
            ("bytes=0-9", 10, Part(0..10)),
            ("bytes=5-", 10, Part(5..10)),
            ("Bytes=5-", 10, Part(5..10)),
            ("bytes=5-99", 10, Part(5..10)),
            ("bytes=9-9", 10, Part(9..10)),
            ("bytes=10-", 10, Unsatisfiable),
            ("bytes=10-20", 10, Unsatisfiable),
            ("bytes=-3", 10, Part(7..10)),
            ("bytes=-30", 10, Part(0..10)),
            ("bytes=-0", 10, Unsatisfiable),
            ("bytes=0-", 0, Unsatisfiable),
            ("bytes=-5", 0, Unsatisfiable),
            ("bytes=5-4", 10, Whole),
            ("bytes=-", 10, Whole),
            ("bytes=", 10, Whole),
            ("bytes", 10, Whole),
            ("", 10, Whole),
            ("bytes=1-2,4-5", 10, Whole),
            ("bytes=a-b", 10, Whole),
            ("bytes=1-2x", 10, Whole),
            ("bytes=+1-2", 10, Whole),
            ("lines=1-2", 10, Whole),
            ("bytes=0-99999999999999999999999999", 10, Part(0..10)),
            ("bytes=99999999999999999999999999-", 10, Unsatisfiable),
        ];
        for (value, size, expected) in table {
            assert_eq!(wanted(&headers(&[("range", value)]), *size), *expected, "{value:?} of {size}");
        }
        assert_eq!(wanted(&headers(&[]), 10), Whole);
        assert_eq!(wanted(&headers(&[("range", "bytes=1-2"), ("range", "bytes=3-4")]), 10), Whole);
    }

    #[test]
    fn the_first_byte_is_known_before_the_size() {
        assert_eq!(first_byte(&headers(&[("range", "bytes=500-")])), 500);
        assert_eq!(first_byte(&headers(&[("range", "bytes=-500")])), 0);
        assert_eq!(first_byte(&headers(&[])), 0);
    }
}
