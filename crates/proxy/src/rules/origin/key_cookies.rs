//! Cookies that the operator makes a part of every key.
//!
//! Owns: the names by which such cookies stand among the request headers by which a URL varies, and their values in
//! the variant part of a key (see `vary`). A response is stored as if it named them in `Vary`: requests with different
//! values get different copies, a purge of the URL purges all of them, and neither other cookies nor the order count.
//!
//! The name of such a header is `cookie!` and the cookie's name in lower case. No request header has that name: what a
//! client sends as one is never read, and a `Vary` that names one counts as `*`. Not all characters of cookies' names
//! may be in names of headers. So all bytes but `a-z`, `0-9`, `-`, `_` and `.` are written as `^` and two hexadecimal
//! digits, and only names that differ in case alone become the same.
//!
//! | the request has | the variant has |
//! |---|---|
//! | no such cookie | `cookie!lang` |
//! | `lang` | `cookie!lang:lang` |
//! | `lang=` | `cookie!lang:lang=` |
//! | `lang=de; a=1` or `a=1; lang=de` | `cookie!lang:lang=de` |
//! | `Lang=de; lang =fr` | `cookie!lang:Lang=de;lang =fr` |
//! | `a=1, lang=de; b=2` | `cookie!lang:a=1, lang=de` |
//!
//! No two requests that an origin could tell apart by the cookie have the same variant, whatever the origin thinks of
//! case, of spaces around a name, of commas and spaces between cookies, and of a cookie that is there twice: all that may be
//! the cookie is in the variant as it was sent, in its order. A cookie has no `;` and no line end, so this is not
//! ambiguous. Origins that decode names, or take other characters for each other (PHP reads `.` as `_`), are not covered.

use http::{HeaderMap, HeaderName};

use super::super::syntax::cookie_pairs::cookies_of;

/// What the names of such headers begin with.
const PREFIX: &str = "cookie!";

/// The longest name of such a header, which markers can hold (`docs/formats/http-metadata.md`). *Units*: bytes.
const NAME_BYTES_MAX: usize = 255;

/// The name of the header that stands for a cookie; `None` if it would be too long.
pub fn header_of(cookie: &str) -> Option<HeaderName> {
    let mut name = PREFIX.as_bytes().to_vec();
    for byte in cookie.bytes() {
        let (form, length) = written(byte.to_ascii_lowercase());
        name.extend_from_slice(&form[..length]);
    }
    if name.len() > NAME_BYTES_MAX { None } else { HeaderName::from_bytes(&name).ok() }
}

/// The written name of the cookie for which a header stands; `None` if it stands for none.
#[inline]
pub fn cookie_in(header: &str) -> Option<&str> {
    header.strip_prefix(PREFIX)
}

/// Appends what a request has of a cookie, whose name is given as it is written in the header's name; nothing if the
/// request lacks the cookie. *Cost*: one pass over the request's cookies, and no allocation beyond `out`.
pub fn push_cookie(out: &mut Vec<u8>, name: &str, request: &HeaderMap) {
    let mut separator = b':';
    for cookie in cookies_of(request) {
        if cookie.possible_names().any(|found| is_written(name.as_bytes(), found)) {
            out.push(separator);
            out.extend_from_slice(cookie.text);
            separator = b';';
        }
    }
}

/// Whether `form` is the written form of a cookie's name in lower case.
fn is_written(form: &[u8], name: &[u8]) -> bool {
    let mut left = form;
    for byte in name {
        let (form, length) = written(byte.to_ascii_lowercase());
        match left.strip_prefix(&form[..length]) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    left.is_empty()
}

/// A byte of a cookie's name as it is written in a header's name: one byte, or three.
fn written(byte: u8) -> ([u8; 3], usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    if byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.') {
        ([byte, 0, 0], 1)
    } else {
        ([b'^', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]], 3)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::rules::headers;

    #[test]
    fn key_cookies_have_own_header_names() {
        for (cookie, header) in [
            ("lang", "cookie!lang"),
            ("my-lang_2.x", "cookie!my-lang_2.x"),
            ("Lang", "cookie!lang"),
            ("^4clang", "cookie!^5e4clang"),
            ("a[b]", "cookie!a^5bb^5d"),
        ] {
            let name = header_of(cookie).expect("short");
            assert_eq!(name, header);
            let form = cookie_in(name.as_str()).expect("a cookie");
            assert!(is_written(form.as_bytes(), cookie.as_bytes()), "{cookie}");
            assert!(!is_written(form.as_bytes(), &cookie.as_bytes()[1..]) && !is_written(form.as_bytes(), b""));
        }
        let all = (b'!'..=b'~').map(|byte| header_of(&char::from(byte).to_string()).expect("short").to_string());
        assert_eq!(all.collect::<HashSet<_>>().len(), usize::from(b'~' - b'!') + 1 - 26, "all but the capital letters");
        assert!(header_of(&"a".repeat(248)).is_some() && header_of(&"a".repeat(249)).is_none());
        assert!(header_of(&"+".repeat(82)).is_some() && header_of(&"+".repeat(83)).is_none());
        assert_eq!((cookie_in("cookie"), cookie_in("x-cookie!a")), (None, None));
    }

    /// Two requests whose cookies an origin may read differently have different values.
    #[test]
    fn key_values_differ_with_cookie_meaning() {
        let table: &[(&[&str], &str)] = &[
            (&[], ""),
            (&["a=1", "slang=x; langs=y; %6cang=z"], ""),
            (&["lang"], ":lang"),
            (&["lang="], ":lang="),
            (&["lang=de"], ":lang=de"),
            (&["lang=DE"], ":lang=DE"),
            (&["lang=\"de\""], ":lang=\"de\""),
            (&["a=1; lang=de;b"], ":lang=de"),
            (&["b", "lang=de; a=1"], ":lang=de"),
            (&["a", " lang =de"], ":lang =de"),
            (&["LANG=de"], ":LANG=de"),
            (&["a=1, lang=de; b"], ":a=1, lang=de"),
            (&["a=1 lang=de; b"], ":a=1 lang=de"),
            (&["a=lang,langs"], ""),
            (&["a=1,lang"], ":a=1,lang"),
            (&["lang=de; lang=fr"], ":lang=de;lang=fr"),
            (&["lang=fr; a=1", "lang=de"], ":lang=fr;lang=de"),
            (&["lang=; lang"], ":lang=;lang"),
        ];
        for (lines, expected) in table {
            let lines: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            let mut found = Vec::new();
            push_cookie(&mut found, "lang", &headers(&lines));
            assert_eq!(String::from_utf8(found).expect("text"), *expected, "{lines:?}");
        }
    }
}
