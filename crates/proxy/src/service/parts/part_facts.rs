//! What makes parts those of one body.
//!
//! Owns: the facts in which all parts of a body must agree before their bytes may be joined, and what the answer to the
//! request for a part is. *Source*: RFC 9110, 8.8.1 and 15.3.7.3; RFC 9111, 3.4.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::super::rest::strong_validator;
use super::part_range::PartRange;
use crate::stored::response::StoredResponse;

/// What all parts of one body have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartFacts {
    /// The length of the whole body.
    pub whole_bytes: u64,
    /// The strong validator.
    validator: (HeaderName, HeaderValue),
    encoding: Option<HeaderValue>,
}

impl PartFacts {
    /// The facts of a part that came with these headers; `None` if it cannot be joined with others.
    pub fn of(part: PartRange, headers: &HeaderMap) -> Option<PartFacts> {
        let is_multipart = |value: &HeaderValue| {
            value.as_bytes().get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/"))
        };
        if headers.get(CONTENT_TYPE).is_some_and(is_multipart) {
            return None;
        }
        Some(PartFacts {
            whole_bytes: part.whole_bytes(headers)?,
            validator: strong_validator(headers)?,
            encoding: headers.get(CONTENT_ENCODING).cloned(),
        })
    }

    /// The validator of the body.
    pub fn validator(&self) -> &HeaderValue {
        &self.validator.1
    }

    /// The facts of a stored response whose body has this length, if that is known; `None` if it is no part, not this
    /// one, or not whole.
    pub fn of_stored(part: PartRange, stored: &StoredResponse, body_bytes: Option<u64>) -> Option<PartFacts> {
        if stored.head.status != StatusCode::PARTIAL_CONTENT {
            return None;
        }
        let facts = PartFacts::of(part, &stored.headers())?;
        let range = part.within(facts.whole_bytes);
        (body_bytes == Some(range.end - range.start)).then_some(facts)
    }
}

/// What the answer to the request for a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartAnswer {
    /// The part, with this many bytes.
    Part(u64),
    /// A response that says nothing about parts. It is stored as if the request had had no range.
    Whole,
    /// The body ends before the part.
    Behind,
    /// A part that cannot be joined with others, or a body that is longer than a part: the origin serves no ranges, or
    /// has no strong validator.
    Useless,
}

impl PartAnswer {
    /// Judges a response with this status, these headers and a body of this length, if that is known.
    pub fn of(part: PartRange, status: StatusCode, headers: &HeaderMap, body_bytes: Option<u64>) -> PartAnswer {
        match status {
            StatusCode::PARTIAL_CONTENT => {
                let range = PartFacts::of(part, headers).map(|facts| part.within(facts.whole_bytes));
                match range.map(|range| range.end - range.start) {
                    Some(bytes) if body_bytes.is_none_or(|found| found == bytes) => PartAnswer::Part(bytes),
                    _ => PartAnswer::Useless,
                }
            }
            StatusCode::RANGE_NOT_SATISFIABLE => PartAnswer::Behind,
            StatusCode::OK if body_bytes.is_some_and(|bytes| bytes > part.part_bytes()) => PartAnswer::Useless,
            _ => PartAnswer::Whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    const RANGE: (&str, &str) = ("content-range", "bytes 100-199/250");
    const TAG: (&str, &str) = ("etag", "\"a\"");

    #[test]
    fn part_answer_is_classified() {
        type Row<'a> = (u16, &'a [(&'a str, &'a str)], Option<u64>, PartAnswer);
        let table: &[Row] = &[
            (206, &[RANGE, TAG], Some(100), PartAnswer::Part(100)),
            (206, &[RANGE, TAG], None, PartAnswer::Part(100)),
            (206, &[RANGE, TAG], Some(99), PartAnswer::Useless),
            (206, &[RANGE], Some(100), PartAnswer::Useless),
            (206, &[RANGE, ("etag", "W/\"a\"")], Some(100), PartAnswer::Useless),
            (206, &[TAG], Some(100), PartAnswer::Useless),
            (206, &[RANGE, TAG, ("content-type", "multipart/byteranges; boundary=x")], None, PartAnswer::Useless),
            (416, &[("content-range", "bytes */50")], Some(0), PartAnswer::Behind),
            (200, &[TAG], Some(100), PartAnswer::Whole),
            (200, &[TAG], Some(101), PartAnswer::Useless),
            (200, &[TAG], None, PartAnswer::Whole),
            (404, &[], Some(1000), PartAnswer::Whole),
        ];
        let part = PartRange::holding(100, 100);
        for (status, lines, body_bytes, expected) in table {
            let status = StatusCode::from_u16(*status).expect("a status");
            assert_eq!(PartAnswer::of(part, status, &headers(lines), *body_bytes), *expected, "{status} {lines:?}");
        }
    }

    #[test]
    fn parts_of_different_bodies_differ() {
        let part = PartRange::holding(100, 100);
        let facts = |lines: &[(&str, &str)]| PartFacts::of(part, &headers(lines)).expect("a part");
        let one = facts(&[RANGE, TAG]);
        assert_eq!(one, facts(&[RANGE, TAG, ("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("x", "y")]));
        for other in [
            facts(&[RANGE, ("etag", "\"b\"")]),
            facts(&[("content-range", "bytes 100-199/251"), TAG]),
            facts(&[RANGE, TAG, ("content-encoding", "gzip")]),
        ] {
            assert_ne!(one, other);
        }
    }
}
