//! The parts into which bodies are divided.
//!
//! Owns: where a part begins and ends, the `Range` that asks for it, and reading the `BodyContent-Range` of the answer. All
//! parts begin at multiples of the size that the route has; the last one of a body may be shorter. *Source*: RFC 9110,
//! 14.1.2 and 14.4.

use std::ops::Range;

use bytes::Bytes;
use http::header::CONTENT_RANGE;
use http::{HeaderMap, HeaderValue};

/// One part of a body whose length need not be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PartRange {
    index: u64,
    part_bytes: u64,
}

impl PartRange {
    /// The part that has the byte at `position`; `part_bytes` is the size of parts, and not 0.
    pub fn holding(position: u64, part_bytes: u64) -> PartRange {
        PartRange { index: position / part_bytes.max(1), part_bytes: part_bytes.max(1) }
    }

    /// The next part.
    pub fn following(self) -> PartRange {
        PartRange { index: self.index.saturating_add(1), ..self }
    }

    /// Whether the part is the first one of its body.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// The size of all parts but the last. *Units*: bytes.
    pub fn part_bytes(self) -> u64 {
        self.part_bytes
    }

    /// The offset of its first byte in the whole body.
    pub fn start(self) -> u64 {
        self.index.saturating_mul(self.part_bytes)
    }

    /// Its bytes in a body of this length; empty if the body ends before.
    pub fn within(self, whole_bytes: u64) -> Range<u64> {
        let end = self.start().saturating_add(self.part_bytes);
        self.start().min(whole_bytes)..end.min(whole_bytes)
    }

    /// The value of the `Range` that asks for it.
    pub fn requested(self) -> HeaderValue {
        let end = self.start().saturating_add(self.part_bytes);
        let text = format!("bytes={}-{}", self.start(), end.saturating_sub(1));
        HeaderValue::from_maybe_shared(Bytes::from(text)).expect("digits and punctuation")
    }

    /// The length of the whole body, if the `BodyContent-Range` of an answer says that exactly this part came; `None` for any
    /// other range, and if the length of the whole is not said.
    pub fn whole_bytes(self, headers: &HeaderMap) -> Option<u64> {
        let mut lines = headers.get_all(CONTENT_RANGE).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return None };
        let (unit, rest) = line.to_str().ok()?.split_at_checked(6)?;
        let (range, whole) = rest.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last, whole) = (number(first)?, number(last)?, number(whole)?);
        let own = self.within(whole);
        let is_own = !own.is_empty() && (first, last.checked_add(1)?) == (own.start, own.end);
        (unit.eq_ignore_ascii_case("bytes ") && is_own).then_some(whole)
    }
}

/// A number without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn part_ranges_are_aligned_until_end() {
        // Each row has a position, the length of the body, the bytes of the part there, and the `Range` that asks for it.
        let table = [
            (0, 250, 0..100, "bytes=0-99"),
            (99, 250, 0..100, "bytes=0-99"),
            (100, 250, 100..200, "bytes=100-199"),
            (249, 250, 200..250, "bytes=200-299"),
            (200, 200, 200..200, "bytes=200-299"),
            (900, 250, 250..250, "bytes=900-999"),
            (0, 0, 0..0, "bytes=0-99"),
        ];
        for (position, whole, range, requested) in table {
            let part = PartRange::holding(position, 100);
            assert_eq!(
                (part.within(whole), part.requested()),
                (range, HeaderValue::from_static(requested)),
                "{position}"
            );
        }
        assert_eq!(PartRange::holding(0, 100).following(), PartRange::holding(100, 100));
        assert!(PartRange::holding(99, 100).is_first() && !PartRange::holding(100, 100).is_first());
    }

    #[test]
    fn part_range_survives_maximum_numbers() {
        for part_bytes in [1, 3, 65_536, u64::MAX] {
            let part = PartRange::holding(u64::MAX, part_bytes);
            assert_eq!(part.within(u64::MAX).end, u64::MAX, "{part_bytes}");
            assert!(part.within(10).is_empty() && part.following().within(u64::MAX).is_empty(), "{part_bytes}");
            part.requested();
            part.following().requested();
        }
    }

    #[test]
    fn only_exactly_the_part_is_it() {
        let part = PartRange::holding(100, 100);
        let table: &[(&str, Option<u64>)] = &[
            ("bytes 100-199/250", Some(250)),
            ("Bytes 100-199/200", Some(200)),
            ("bytes 100-149/150", Some(150)),
            ("bytes 100-100/101", Some(101)),
            ("bytes 100-198/250", None),
            ("bytes 100-200/250", None),
            ("bytes 99-199/250", None),
            ("bytes 0-99/250", None),
            ("bytes 100-199/*", None),
            ("bytes 100-199/199", None),
            ("bytes */250", None),
            ("bytes 100-199", None),
            ("bytes=100-199/250", None),
            ("lines 100-199/250", None),
            ("bytes +100-199/250", None),
            ("bytes 100-99999999999999999999/250", None),
            ("bytes 100-18446744073709551615/18446744073709551615", None),
            ("", None),
        ];
        for (value, expected) in table {
            assert_eq!(part.whole_bytes(&headers(&[("content-range", value)])), *expected, "{value}");
        }
        assert_eq!(part.whole_bytes(&headers(&[])), None);
        let twice = [("content-range", "bytes 100-199/250"), ("content-range", "bytes 100-199/250")];
        assert_eq!(part.whole_bytes(&headers(&twice)), None);
    }
}
