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

    /// All names that some origin may find in the cookie: its own, and that of each part between commas and white space,
    /// which some take for separators. Around a name, bytes beyond ASCII do not count: some take them for spaces.
    pub fn possible_names(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        std::iter::once(self.name).chain(self.parts().map(name_of)).map(trimmed)
    }

    /// The names, after its own, of the parts that look like cookies.
    pub fn further_names(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let names = self.parts().skip(1).filter(|part| part.contains(&b'=')).map(name_of).map(trimmed);
        names.filter(|name| !name.is_empty())
    }

    fn parts(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.text.split(|byte| matches!(byte, b',' | b' ' | b'\t')).filter(|part| !part.is_empty())
    }
}

/// A name without the bytes around it that some origins take for spaces.
fn trimmed(name: &[u8]) -> &[u8] {
    let is_name = |byte: &u8| byte.is_ascii_graphic();
    let start = name.iter().position(is_name).unwrap_or(name.len());
    let end = name.iter().rposition(is_name).map_or(start, |last| last + 1);
    &name[start..end]
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
    fn odd_cookies_are_read_from_lines() {
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
    fn separators_hide_no_name() {
        // Each row has a cookie, all names that it may have, and those of its further parts that look like cookies.
        let table: &[(&str, &[&str], &[&str])] = &[
            ("a=1", &["a", "a"], &[]),
            ("a=1, b=2", &["a", "a", "b"], &["b"]),
            ("a=1,b = 2 , c", &["a", "a", "b", "", "2", "c"], &[]),
            ("a=1 lang=x\tc=2", &["a", "a", "lang", "c"], &["lang", "c"]),
            ("a=1,\u{a0}lang=x", &["a", "a", "lang"], &["lang"]),
            ("\u{a0}lang=x", &["lang", "lang"], &[]),
            ("a={\"x\":1,\"y\":2}", &["a", "a", "\"y\":2}"], &[]),
            ("a=bc==", &["a", "a"], &[]),
        ];
        for (line, possible, further) in table {
            let mut map = HeaderMap::new();
            map.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).expect("a value"));
            let cookie = cookies_of(&map).next().expect("a cookie");
            let found: Vec<_> = cookie.possible_names().map(String::from_utf8_lossy).collect();
            assert_eq!(found, *possible, "{line}");
            let found: Vec<_> = cookie.further_names().map(String::from_utf8_lossy).collect();
            assert_eq!(found, *further, "{line}");
        }
    }

    #[test]
    fn random_cookie_bytes_are_read() {
        let bytes: Vec<u8> = (0..=u8::MAX).filter(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f)).collect();
        let line = bytes.iter().cycle().take(1 << 20).copied().collect::<Vec<u8>>();
        let mut map = HeaderMap::new();
        map.append(COOKIE, HeaderValue::from_bytes(&line).expect("a value"));
        let expected = line.split(|byte| *byte == b';').count();
        assert_eq!(cookies_of(&map).count(), expected);
        assert!(cookies_of(&map).all(|cookie| !cookie.text.is_empty()));
    }
}
