//! Byte ranges of a whole response.
//!
//! Owns: finding the ranges that a `Range` header requests of a response whose size is known. The whole response is
//! served if the header has another unit than bytes, is malformed, has more than [`RANGES_MAX`] ranges, or has ranges
//! that together are longer than the whole. RFC 9110, 14.2 allows this and 17.15 recommends it.

use std::ops::Range;

use http::HeaderMap;
use http::header::RANGE;

/// The maximum number of ranges that one response may have.
pub const RANGES_MAX: usize = 16;

/// The part of a response that a request wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedRange {
    /// The whole response.
    Whole,
    /// These bytes; not empty.
    Part(Range<u64>),
    /// Several parts, in this order; none is empty.
    Parts(Vec<Range<u64>>),
    /// No requested range contains a byte of the response.
    Unsatisfiable,
}

/// Reads the `Range` of a request for a response of `size_bytes`.
pub fn wanted(request: &HeaderMap, size_bytes: u64) -> RequestedRange {
    let mut lines = request.get_all(RANGE).into_iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return RequestedRange::Whole };
    if memchr::memchr(b',', line.as_bytes()).is_some() {
        return wanted_of_several(line.as_bytes(), size_bytes);
    }
    match parse(line.as_bytes()) {
        Some(spec) => spec.within(size_bytes).map_or(RequestedRange::Unsatisfiable, RequestedRange::Part),
        None => RequestedRange::Whole,
    }
}

/// Like [`wanted`], for a header with several ranges.
fn wanted_of_several(value: &[u8], size_bytes: u64) -> RequestedRange {
    let Some(list) = ranges_of(value) else { return RequestedRange::Whole };
    let (mut parts, mut count, mut bytes) = (Vec::new(), 0, 0u64);
    // A list may have empty elements.
    for range in list.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|range| !range.is_empty()) {
        let Some(spec) = spec_of(range) else { return RequestedRange::Whole };
        count += 1;
        if count > RANGES_MAX {
            return RequestedRange::Whole;
        }
        if let Some(part) = spec.within(size_bytes) {
            bytes = bytes.saturating_add(part.end - part.start);
            parts.push(part);
        }
    }
    match (parts.len(), count) {
        (_, 0) => RequestedRange::Whole,
        (0, _) => RequestedRange::Unsatisfiable,
        (1, _) => RequestedRange::Part(parts.remove(0)),
        _ if bytes > size_bytes => RequestedRange::Whole,
        _ => RequestedRange::Parts(parts),
    }
}

/// The position at which a range starts, if the header has exactly one range and gives its start; 0 for any other
/// header.
pub fn first_byte(request: &HeaderMap) -> u64 {
    match request.get(RANGE).and_then(|line| parse(line.as_bytes())) {
        Some(RangeSpec::From(first, _)) => first,
        _ => 0,
    }
}

enum RangeSpec {
    /// The bytes from the first to the last position, both included.
    From(u64, u64),
    /// The last bytes of the response; the value is their number.
    Last(u64),
}

impl RangeSpec {
    /// The range within a response of this size; `None` if it would be empty.
    fn within(self, size_bytes: u64) -> Option<Range<u64>> {
        let range = match self {
            RangeSpec::From(first, last) => first..last.saturating_add(1).min(size_bytes),
            RangeSpec::Last(count) => size_bytes.saturating_sub(count)..size_bytes,
        };
        (range.start < range.end).then_some(range)
    }
}

fn parse(value: &[u8]) -> Option<RangeSpec> {
    spec_of(ranges_of(value)?.trim_ascii())
}

/// The text after the unit, if the unit is bytes.
fn ranges_of(value: &[u8]) -> Option<&[u8]> {
    let (unit, ranges) = value.split_at_checked(6)?;
    unit.eq_ignore_ascii_case(b"bytes=").then_some(ranges)
}

fn spec_of(range: &[u8]) -> Option<RangeSpec> {
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (&range[..dash], &range[dash + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, true) => None,
        (true, false) => Some(RangeSpec::Last(position(last)?)),
        (false, true) => Some(RangeSpec::From(position(first)?, u64::MAX)),
        (false, false) => {
            let (first, last) = (position(first)?, position(last)?);
            (first <= last).then_some(RangeSpec::From(first, last))
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
    fn valid_ranges_served_damaged_ignored() {
        use RequestedRange::*;
        let many = |count: usize| vec!["0-0"; count].join(",");
        let (most, more) = (format!("bytes={}", many(16)), format!("bytes={}", many(17)));
        let table: &[(&str, u64, RequestedRange)] = &[
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
            ("bytes=1-2,4-5", 10, Parts(vec![1..3, 4..6])),
            ("bytes=4-5 , 1-2,", 10, Parts(vec![4..6, 1..3])),
            ("bytes=0-0,-1", 10, Parts(vec![0..1, 9..10])),
            ("bytes=1-2,10-", 10, Part(1..3)),
            ("bytes=10-,20-30", 10, Unsatisfiable),
            ("bytes=0-,0-0", 10, Whole),
            ("bytes=0-4,5-9", 10, Parts(vec![0..5, 5..10])),
            ("bytes=1-2,x", 10, Whole),
            ("bytes=,", 10, Whole),
            (&most, 16, Parts(vec![0..1; 16])),
            (&more, 17, Whole),
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
    fn first_byte_known_before_size() {
        assert_eq!(first_byte(&headers(&[("range", "bytes=500-")])), 500);
        assert_eq!(first_byte(&headers(&[("range", "bytes=-500")])), 0);
        assert_eq!(first_byte(&headers(&[])), 0);
    }
}
