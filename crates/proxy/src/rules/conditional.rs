//! Conditional requests that are answered from a stored response, and conditions that validate a stored response.
//!
//! Owns: entity tag comparison, `If-None-Match`, `If-Modified-Since`, `If-Range`. Only origins evaluate `If-Match` and
//! `If-Unmodified-Since`: requests with these headers are forwarded. *Source*: RFC 9110, 8.8 and 13; RFC 9111, 4.3.

use http::header::{
    DATE, ETAG, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::list::members_of;
use super::parse_date_s;

/// Every header that makes a request conditional.
pub const CONDITIONAL_HEADERS: [HeaderName; 5] =
    [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, IF_RANGE];

/// Whether a request has conditions that only an origin may evaluate.
pub fn is_for_origin_only(request: &HeaderMap) -> bool {
    request.contains_key(IF_MATCH) || request.contains_key(IF_UNMODIFIED_SINCE)
}

/// Whether two entity tags match weakly: their opaque parts are the same.
pub fn weakly_match(left: &[u8], right: &[u8]) -> bool {
    opaque(left) == opaque(right)
}

/// Whether two entity tags match strongly: both are strong, and they are the same.
pub fn strongly_match(left: &[u8], right: &[u8]) -> bool {
    left == right && left.starts_with(b"\"")
}

fn opaque(tag: &[u8]) -> &[u8] {
    tag.strip_prefix(b"W/").unwrap_or(tag)
}

/// Whether a conditional GET or HEAD is answered by `304`. `headers` are those of the stored response, which was
/// received at `response_ms`.
///
/// If `If-None-Match` is present, only this header decides. `If-Modified-Since` is compared with `Last-Modified`, else
/// with `Date`, else with the time of reception.
pub fn is_not_modified(
    method: &Method,
    request: &HeaderMap,
    status: StatusCode,
    headers: &HeaderMap,
    response_ms: u64,
) -> bool {
    if !(method == Method::GET || method == Method::HEAD) || status != StatusCode::OK {
        return false;
    }
    if request.contains_key(IF_NONE_MATCH) {
        let stored = headers.get(ETAG).map(HeaderValue::as_bytes);
        return members_of(request, &IF_NONE_MATCH)
            .any(|tag| tag == b"*" || stored.is_some_and(|stored| weakly_match(tag, stored)));
    }
    let Some(since_s) = request.get(IF_MODIFIED_SINCE).and_then(parse_date_s) else { return false };
    let modified_s =
        headers.get(LAST_MODIFIED).or_else(|| headers.get(DATE)).and_then(parse_date_s).unwrap_or(response_ms / 1000);
    modified_s <= since_s
}

/// Whether a range may be served: the request has no `If-Range`, or its `If-Range` is a strong validator of the stored
/// response.
pub fn if_range_holds(request: &HeaderMap, headers: &HeaderMap) -> bool {
    let Some(condition) = request.get(IF_RANGE) else { return true };
    let condition = condition.as_bytes().trim_ascii();
    if condition.starts_with(b"\"") || condition.starts_with(b"W/") {
        return headers.get(ETAG).is_some_and(|tag| strongly_match(condition, tag.as_bytes()));
    }
    let Some(modified) = headers.get(LAST_MODIFIED) else { return false };
    is_modified_before_date(headers, None) && condition == modified.as_bytes()
}

/// Whether a response's modification date is a strong validator: the response was generated at least a second later.
/// `date_s` stands in for a missing `Date`. *Source*: RFC 9110, 8.8.2.2.
fn is_modified_before_date(headers: &HeaderMap, date_s: Option<u64>) -> bool {
    let seconds = |name| headers.get(name).and_then(parse_date_s);
    match (seconds(DATE).or(date_s), seconds(LAST_MODIFIED)) {
        (Some(date_s), Some(modified_s)) => date_s > modified_s,
        _ => false,
    }
}

/// Replaces a request's conditions by conditions that validate the stored response; false if the stored response has no
/// validator that an origin can be asked about.
///
/// A modification date that is not strong is not used: the resource may have changed again in the same second, and an
/// origin that goes by the date would confirm the old body for ever.
pub fn set_validation(request: &mut HeaderMap, stored: &HeaderMap) -> bool {
    for name in CONDITIONAL_HEADERS {
        request.remove(name);
    }
    let tag = stored.get(ETAG);
    let modified = stored.get(LAST_MODIFIED).filter(|_| is_modified_before_date(stored, None));
    if let Some(tag) = tag {
        request.insert(IF_NONE_MATCH, tag.clone());
    }
    if let Some(modified) = modified {
        request.insert(IF_MODIFIED_SINCE, modified.clone());
    }
    tag.is_some() || modified.is_some()
}

/// Whether a `304` with `headers`, which arrived at `response_ms`, confirms the stored response. *Source*: RFC 9111,
/// 4.3.4.
///
/// | the `304` has | it confirms |
/// |---|---|
/// | an entity tag, and the stored response has one | if their opaque parts are the same |
/// | only one of the two has an entity tag, or none has | if the `304` has a modification date: if the stored response has the same, and it is strong |
/// | no validator | always: it answers the conditions of this proxy's request |
///
/// A strong tag may confirm a weak one with the same opaque part: origins that compress on the way out weaken the tags
/// of their `200` responses alone.
pub fn validates(headers: &HeaderMap, stored: &HeaderMap, response_ms: u64) -> bool {
    match (headers.get(ETAG), stored.get(ETAG)) {
        (Some(fresh), Some(stored)) => return weakly_match(fresh.as_bytes(), stored.as_bytes()),
        (None, _) if !headers.contains_key(LAST_MODIFIED) => return true,
        _ => {}
    }
    let modified_s = |headers: &HeaderMap| headers.get(LAST_MODIFIED).and_then(parse_date_s);
    let is_same = modified_s(headers).is_some_and(|fresh_s| modified_s(stored) == Some(fresh_s));
    is_same && is_modified_before_date(headers, Some(response_ms / 1000))
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 09:49:37 GMT";
    type Lines<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn conditional_request_uses_store() {
        let table: &[(&str, Lines, u16, Lines, bool)] = &[
            ("no condition", &[], 200, &[("etag", "\"a\"")], false),
            ("same tag", &[("if-none-match", "\"a\"")], 200, &[("etag", "\"a\"")], true),
            ("weak tag", &[("if-none-match", "W/\"a\"")], 200, &[("etag", "\"a\"")], true),
            ("weak stored tag", &[("if-none-match", "\"a\"")], 200, &[("etag", "W/\"a\"")], true),
            ("one of several", &[("if-none-match", "\"x\", W/\"a\"")], 200, &[("etag", "\"a\"")], true),
            (
                "one of several lines",
                &[("if-none-match", "\"x\""), ("if-none-match", "\"a\"")],
                200,
                &[("etag", "\"a\"")],
                true,
            ),
            ("a comma in a tag", &[("if-none-match", "\"a,b\"")], 200, &[("etag", "\"a,b\"")], true),
            ("other tag", &[("if-none-match", "\"b\"")], 200, &[("etag", "\"a\"")], false),
            ("case counts", &[("if-none-match", "\"A\"")], 200, &[("etag", "\"a\"")], false),
            ("star", &[("if-none-match", "*")], 200, &[], true),
            ("no stored tag", &[("if-none-match", "\"a\"")], 200, &[], false),
            (
                "tag beats date",
                &[("if-none-match", "\"b\""), ("if-modified-since", LATE)],
                200,
                &[("etag", "\"a\""), ("last-modified", EARLY)],
                false,
            ),
            ("not modified since", &[("if-modified-since", EARLY)], 200, &[("last-modified", EARLY)], true),
            ("modified since", &[("if-modified-since", EARLY)], 200, &[("last-modified", LATE)], false),
            ("date stands in", &[("if-modified-since", LATE)], 200, &[("date", EARLY)], true),
            ("reception stands in", &[("if-modified-since", EARLY)], 200, &[], false),
            ("bad date is ignored", &[("if-modified-since", "yesterday")], 200, &[("last-modified", EARLY)], false),
            ("only for 200", &[("if-none-match", "*")], 404, &[], false),
        ];
        for (name, request, status, stored, expected) in table {
            let found = is_not_modified(
                &Method::GET,
                &headers(request),
                StatusCode::from_u16(*status).expect("a status"),
                &headers(stored),
                784_200_000_000,
            );
            assert_eq!(found, *expected, "{name}");
        }
        assert!(!is_not_modified(&Method::POST, &headers(&[("if-none-match", "*")]), StatusCode::OK, &headers(&[]), 0));
    }

    #[test]
    fn if_range_needs_a_strong_validator() {
        let table: &[(&str, Option<&str>, Lines, bool)] = &[
            ("none", None, &[], true),
            ("same tag", Some("\"a\""), &[("etag", "\"a\"")], true),
            ("weak tag", Some("W/\"a\""), &[("etag", "W/\"a\"")], false),
            ("other tag", Some("\"b\""), &[("etag", "\"a\"")], false),
            ("same date", Some(EARLY), &[("last-modified", EARLY), ("date", LATE)], true),
            ("weak date", Some(EARLY), &[("last-modified", EARLY), ("date", EARLY)], false),
            ("date without date", Some(EARLY), &[("last-modified", EARLY)], false),
            ("other date", Some(LATE), &[("last-modified", EARLY), ("date", LATE)], false),
        ];
        for (name, condition, stored, expected) in table {
            let request = condition.map(|condition| headers(&[("if-range", condition)])).unwrap_or_default();
            assert_eq!(if_range_holds(&request, &headers(stored)), *expected, "{name}");
        }
    }

    #[test]
    fn validation_replaces_the_clients_conditions() {
        let mut request = headers(&[("if-none-match", "\"mine\""), ("if-range", "\"mine\"")]);
        let settled = [("etag", "\"a\""), ("last-modified", EARLY), ("date", LATE)];
        assert!(set_validation(&mut request, &headers(&settled)));
        assert_eq!(request, headers(&[("if-none-match", "\"a\""), ("if-modified-since", EARLY)]));
        assert!(set_validation(&mut request, &headers(&settled[1..])));
        assert_eq!(request, headers(&[("if-modified-since", EARLY)]));
        let in_one_second = [("etag", "\"a\""), ("last-modified", EARLY), ("date", EARLY)];
        assert!(set_validation(&mut request, &headers(&in_one_second)));
        assert_eq!(request, headers(&[("if-none-match", "\"a\"")]));
        assert!(!set_validation(&mut request, &headers(&in_one_second[1..])));
        assert!(!set_validation(&mut request, &headers(&[])));
        assert!(request.is_empty());
    }

    #[test]
    fn validation_304_needs_same_validators() {
        const TAG: (&str, &str) = ("etag", "\"a\"");
        const WEAK: (&str, &str) = ("etag", "W/\"a\"");
        const OTHER: (&str, &str) = ("etag", "\"b\"");
        const OTHER_WEAK: (&str, &str) = ("etag", "W/\"b\"");
        const MODIFIED: (&str, &str) = ("last-modified", EARLY);
        const MODIFIED_LATE: (&str, &str) = ("last-modified", LATE);
        const DATE: (&str, &str) = ("date", LATE);
        const DATE_EARLY: (&str, &str) = ("date", EARLY);
        // Each row has the headers of the `304`, those of the stored response, and whether the `304` confirms it.
        let table: &[(Lines, Lines, bool)] = &[
            (&[], &[TAG], true),
            (&[], &[MODIFIED], true),
            (&[], &[], true),
            (&[TAG], &[TAG], true),
            (&[WEAK], &[TAG], true),
            (&[TAG], &[WEAK], true),
            (&[OTHER], &[TAG], false),
            (&[OTHER_WEAK], &[TAG], false),
            (&[OTHER_WEAK], &[WEAK], false),
            (&[OTHER], &[], false),
            (&[OTHER_WEAK], &[], false),
            (&[TAG, MODIFIED_LATE], &[TAG, MODIFIED], true),
            (&[OTHER_WEAK, MODIFIED, DATE], &[TAG, MODIFIED], false),
            (&[TAG, MODIFIED, DATE], &[MODIFIED], true),
            (&[WEAK, MODIFIED], &[MODIFIED_LATE], false),
            (&[MODIFIED, DATE], &[MODIFIED], true),
            (&[MODIFIED, DATE], &[TAG, MODIFIED], true),
            (&[MODIFIED, DATE], &[TAG], false),
            (&[MODIFIED], &[MODIFIED], true),
            (&[MODIFIED, DATE_EARLY], &[MODIFIED, DATE], false),
            (&[MODIFIED_LATE, DATE], &[MODIFIED], false),
            (&[MODIFIED_LATE], &[MODIFIED], false),
            (&[("last-modified", "yesterday"), DATE], &[("last-modified", "yesterday")], false),
        ];
        for (fresh, stored, expected) in table {
            let found = validates(&headers(fresh), &headers(stored), 784_200_000_000);
            assert_eq!(found, *expected, "{fresh:?} for {stored:?}");
        }
    }
}
