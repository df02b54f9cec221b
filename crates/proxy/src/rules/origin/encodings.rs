//! The content codings that an origin is asked for.
//!
//! Owns: the normal form of `Accept-Encoding`, which stands in keys and in requests that fill the store. Browsers and
//! programs write the same few wishes in many ways, and an origin that varies by this header would otherwise get a
//! request, and the store a copy, for each of them. The normal form names those of `br` and `gzip` that the client
//! accepts, so there are four:
//!
//! | the client accepts | normal form |
//! |---|---|
//! | both | `br, gzip` |
//! | one of them | `br`, or `gzip` |
//! | none, or it has no such header | `identity` |
//!
//! Other codings are left out: a client of `zstd` or `deflate` accepts one of these two as well, and each further
//! coding would double the copies. A client never gets a coding that it does not accept. Preferences (`q`) of the client
//! are lost except for 0, which refuses. *Source*: RFC 9110, 12.5.3.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use super::super::list::{members_of, parts_of};

/// The normal form of a request's `Accept-Encoding`. *Cost*: no allocation.
pub fn normal_form(request: &HeaderMap) -> &'static str {
    let (mut br, mut gzip, mut any) = (None, None, false);
    for member in members_of(request, &ACCEPT_ENCODING) {
        let mut parts = parts_of(member, b';');
        let coding = parts.next().unwrap_or_default();
        let is_accepted = !parts.any(is_zero);
        if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
            gzip.get_or_insert(is_accepted);
        } else if coding.eq_ignore_ascii_case(b"br") {
            br.get_or_insert(is_accepted);
        } else if coding == b"*" {
            any = is_accepted;
        }
    }
    match (br.unwrap_or(any), gzip.unwrap_or(any)) {
        (true, true) => "br, gzip",
        (true, false) => "br",
        (false, true) => "gzip",
        (false, false) => "identity",
    }
}

/// Whether a parameter is a weight that refuses. A weight that is not a number refuses, too.
fn is_zero(parameter: &[u8]) -> bool {
    let Some(equals) = memchr::memchr(b'=', parameter) else { return false };
    let (name, weight) = (parameter[..equals].trim_ascii(), parameter[equals + 1..].trim_ascii());
    name.eq_ignore_ascii_case(b"q") && !weight.iter().any(|byte| (b'1'..=b'9').contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn many_wishes_have_four_forms() {
        let table: &[(&[&str], &str)] = &[
            (&["gzip, deflate, br, zstd"], "br, gzip"),
            (&["gzip, deflate, br"], "br, gzip"),
            (&["br;q=1.0, gzip;q=0.8, *;q=0.1"], "br, gzip"),
            (&["deflate, gzip, br, zstd"], "br, gzip"),
            (&["gzip", "br"], "br, gzip"),
            (&["*"], "br, gzip"),
            (&["gzip, deflate"], "gzip"),
            (&["GZIP"], "gzip"),
            (&["x-gzip"], "gzip"),
            (&["gzip;q=0.001"], "gzip"),
            (&["*, br;q=0"], "gzip"),
            (&["gzip;q=1.0, identity; q=0.5, *;q=0"], "gzip"),
            (&["br"], "br"),
            (&["br, gzip; Q = 0.000"], "br"),
            (&["gzip;q=0, br"], "br"),
            (&["gzip;q=, br;q=x"], "identity"),
            (&["gzip;q=0, gzip"], "identity"),
            (&["*;q=0"], "identity"),
            (&["identity"], "identity"),
            (&["zstd, deflate"], "identity"),
            (&["gzipped, brotli"], "identity"),
            (&["\"gzip, br\""], "identity"),
            (&[""], "identity"),
            (&[], "identity"),
        ];
        for (lines, expected) in table {
            let lines: Vec<_> = lines.iter().map(|line| ("accept-encoding", *line)).collect();
            assert_eq!(normal_form(&headers(&lines)), *expected, "{lines:?}");
            // The normal form is its own normal form.
            assert_eq!(normal_form(&headers(&[("accept-encoding", expected)])), *expected);
        }
    }
}
