//! The cookies of a request.
//!
//! Owns: splitting `Cookie` into cookies, and finding their names. All lines of the header are one list, as if they
//! were joined by `; `. A cookie is what stands between two `;`, without the spaces around it. Quotes and commas
//! separate nothing and protect nothing, and what is empty is left out. The name is what precedes the first `=`,
//! without spaces. A cookie without `=` is all name, and one that begins with `=` has an empty name. Nothing is
//! decoded, and any bytes are read. *Cost*: linear in the length of the header, and no allocation. *Source*: RFC 6265,
//! 4.2 and 5.4; RFC 9113, 8.2.3.

use http::HeaderMap;
use http::header::COOKIE;

/// A cookie of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CookiePair<'a> {
    /// The whole cookie; it is never empty.
    pub text: &'a [u8],
    /// Its name, which may be empty.
    pub name: &'a [u8],
}

impl<'a> CookiePair<'a> {
    fn new(text: &'a [u8]) -> CookiePair<'a> {
        CookiePair { text, name: name_of(text) }
    }

    /// The names that an origin finds in the cookie if it takes commas for separators, too. The cookie's own name is the
    /// only one if it has no comma.
    pub fn names_by_commas(&self) -> impl Iterator<Item = &'a [u8]> {
        self.text.split(|byte| *byte == b',').map(name_of)
    }
}

/// What precedes the first `=`, without spaces around it.
fn name_of(text: &[u8]) -> &[u8] {
    text[..memchr::memchr(b'=', text).unwrap_or(text.len())].trim_ascii()
}

/// The cookies of a request, in their order.
pub fn cookies_of(headers: &HeaderMap) -> impl Iterator<Item = CookiePair<'_>> {
    let lines = headers.get_all(COOKIE).into_iter();
    let texts = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    texts.map(|text| text.trim_ascii()).filter(|text| !text.is_empty()).map(CookiePair::new)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::rules::headers;

    #[test]
    fn odd_cookies_are_read_and_lines_joined() {
        // Each row has the lines, and texts and names of the cookies.
        type Found<'a> = &'a [(&'a str, &'a str)];
        let table: &[(&[&str], Found)] = &[
            (&[], &[]),
            (&[""], &[]),
            (&["; ;;", ";"], &[]),
            (&["a=1"], &[("a=1", "a")]),
            (&["a=1; b=2;c=3 ;  d = 4 "], &[("a=1", "a"), ("b=2", "b"), ("c=3", "c"), ("d = 4", "d")]),
            (&["a=1; b=2", "c=3"], &[("a=1", "a"), ("b=2", "b"), ("c=3", "c")]),
            (&["a; b=; =c; =; a"], &[("a", "a"), ("b=", "b"), ("=c", ""), ("=", ""), ("a", "a")]),
            (&["a=b=c"], &[("a=b=c", "a")]),
            (&["a=\"x; b=y\""], &[("a=\"x", "a"), ("b=y\"", "b")]),
            (&["a=1, b=2"], &[("a=1, b=2", "a")]),
            (&["A=1; %61=2"], &[("A=1", "A"), ("%61=2", "%61")]),
        ];
        for (lines, expected) in table {
            let lines: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
            let map = headers(&lines);
            let found: Vec<_> = cookies_of(&map).map(|cookie| (cookie.text, cookie.name)).collect();
            let expected: Vec<_> = expected.iter().map(|(text, name)| (text.as_bytes(), name.as_bytes())).collect();
            assert_eq!(found, expected, "{lines:?}");
        }
    }

    #[test]
    fn commas_hide_no_name() {
        let table: &[(&str, &[&str])] = &[
            ("a=1", &["a"]),
            ("a=1, b=2", &["a", "b"]),
            ("a=1,b = 2 , c", &["a", "b", "c"]),
            ("a, b=1", &["a", "b"]),
            (",=,", &["", "", ""]),
        ];
        for (line, expected) in table {
            let map = headers(&[("cookie", *line)]);
            let cookie = cookies_of(&map).next().expect("a cookie");
            let found: Vec<_> = cookie.names_by_commas().map(String::from_utf8_lossy).collect();
            assert_eq!(found, *expected, "{line}");
        }
    }

    #[test]
    fn many_cookies_of_any_bytes_are_read() {
        let bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)).collect();
        let line = bytes.iter().cycle().take(1 << 20).copied().collect::<Vec<u8>>();
        let mut map = HeaderMap::new();
        map.append(COOKIE, HeaderValue::from_bytes(&line).expect("a value"));
        let expected = line.split(|byte| *byte == b';').count();
        assert_eq!(cookies_of(&map).count(), expected);
        assert!(cookies_of(&map).all(|cookie| !cookie.text.is_empty()));
    }
}
