//! The content codings that an origin is asked for.
//!
//! Owns: the normal form of `Accept-Encoding`, which stands in keys and in requests that fill the store. Browsers and
//! programs write the same few wishes in many ways, and an origin that varies by this header would otherwise get a
//! request, and the store a copy, for each of them. The normal form names those of `br`, `zstd` and `gzip` that the client
//! accepts, in the order of the size of their results. There are five:
//!
//! | the client accepts | normal form |
//! |---|---|
//! | all three: current browsers with Chromium's or Firefox's engine | `br, zstd, gzip` |
//! | `br` and `gzip`: Safari, older browsers | `br, gzip` |
//! | one of these two | `br`, or `gzip` |
//! | neither, or it has no such header | `identity` |
//!
//! So `zstd` counts only beside both others: clients that have it without them are rare, and their forms would double the
//! copies; they get `gzip`, `br` or `identity`. It must be named, because `*` is written by programs that do not know it.
//! `deflate` and all other codings are left out. A client never gets a coding that it does not accept. Preferences (`q`) of
//! the client are lost except for 0, which refuses. *Source*: RFC 9110, 12.5.3.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

use super::super::list::{members_of, parts_of};

/// The normal form of a request's `Accept-Encoding`. *Cost*: no allocation.
pub fn normal_form(request: &HeaderMap) -> &'static str {
    let (mut br, mut zstd, mut gzip, mut any) = (None, None, None, false);
    for member in members_of(request, &ACCEPT_ENCODING) {
        let mut parts = parts_of(member, b';');
        let coding = parts.next().unwrap_or_default();
        let is_accepted = !parts.any(is_zero);
        if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
            gzip.get_or_insert(is_accepted);
        } else if coding.eq_ignore_ascii_case(b"br") {
            br.get_or_insert(is_accepted);
        } else if coding.eq_ignore_ascii_case(b"zstd") {
            zstd.get_or_insert(is_accepted);
        } else if coding == b"*" {
            any = is_accepted;
        }
    }
    match (br.unwrap_or(any), gzip.unwrap_or(any)) {
        (true, true) if zstd == Some(true) => "br, zstd, gzip",
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
    fn many_wishes_have_five_forms() {
        let table: &[(&[&str], &str)] = &[
            (&["gzip, deflate, br, zstd"], "br, zstd, gzip"),
            (&["ZSTD;q=0.1", "br", "x-gzip"], "br, zstd, gzip"),
            (&["*, zstd"], "br, zstd, gzip"),
            (&["zstd, br, gzip, zstd;q=0"], "br, zstd, gzip"),
            (&["br, gzip, zstd;q=0"], "br, gzip"),
            (&["br, gzip, x-zstd, dcz, dcb"], "br, gzip"),
            (&["gzip, deflate, br"], "br, gzip"),
            (&["br;q=1.0, gzip;q=0.8, *;q=0.1"], "br, gzip"),
            (&["deflate, gzip, br, zstd"], "br, zstd, gzip"),
            (&["gzip, deflate, zstd"], "gzip"),
            (&["zstd, br"], "br"),
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
