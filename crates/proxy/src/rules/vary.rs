//! Responses that depend on request headers.
//!
//! Owns: the names in `Vary`, and the variant part of a key: for each name, in order, `name:value\n`, or `name\n` if
//! the request lacks it. Values are normalised before they are compared: several lines are joined by commas, whitespace
//! around commas is removed, other runs of whitespace become one space, and languages and character sets become lower
//! case. The order of values stays, because it may matter to an origin. `Accept-Encoding` has the normal form that
//! requests to origins have, too (`origin/encodings`). Lines of `Cookie` are joined by `; `. A single cookie that the
//! operator makes a part of the key has its name and its value from `origin/key_cookies`. A stored part of a body has
//! [`PART_NAME`] among the names, and the range that was requested as its value. The variant contains the names, so the
//! variant alone is enough to decide whether a request matches. *Source*: RFC 9111, 4.1.

use http::header::{ACCEPT_ENCODING, COOKIE, VARY};
use http::{HeaderMap, HeaderName};

use super::list::members_of;
use super::origin::encodings::normal_form;
use super::origin::key_cookies::{cookie_in, push_cookie};

/// The maximum number of names by which stored responses of one URL may vary.
pub const VARY_NAMES_MAX: usize = 16;

/// The name that stands for the range of a stored part, among the request headers by which a response varies. No request
/// header has that name: what a client sends as one is never read, and a `Vary` that names it counts as `*`.
pub const PART_NAME: &str = "part!";

/// The variant under which the marker of a URL's parts is stored. The marker of its whole responses has none.
pub const PART_MARKER: &[u8] = b"part!\n";

/// Headers whose values are case-insensitive (RFC 9110, 8.3.2 and 8.5.1).
const WITHOUT_CASE: [&str; 2] = ["accept-charset", "accept-language"];

/// The request headers by which a response varies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vary {
    /// No header.
    Nothing,
    /// These headers; they are sorted, and each occurs once.
    Names(Vec<HeaderName>),
    /// `*`: the response can never be reused.
    Any,
}

impl Vary {
    /// Reads a response's `Vary`. More than [`VARY_NAMES_MAX`] names, an invalid name, or one that stands for a single
    /// cookie or for a part, count as `*`.
    pub fn parse(headers: &HeaderMap) -> Vary {
        if !headers.contains_key(VARY) {
            return Vary::Nothing;
        }
        let mut names = Vec::new();
        for member in members_of(headers, &VARY) {
            match HeaderName::from_bytes(member) {
                Ok(name) if member != b"*" && cookie_in(name.as_str()).is_none() && name.as_str() != PART_NAME => {
                    names.push(name);
                }
                _ => return Vary::Any,
            }
        }
        Vary::of(names)
    }

    /// Makes a `Vary` from names, which may be in any order.
    pub fn of(mut names: Vec<HeaderName>) -> Vary {
        sort_names(&mut names);
        match names.len() {
            0 => Vary::Nothing,
            1..=VARY_NAMES_MAX => Vary::Names(names),
            _ => Vary::Any,
        }
    }

    /// Joins the names by which a URL is known to vary with the names of a new response.
    pub fn union(self, known: &[HeaderName]) -> Vary {
        match self {
            Vary::Any => Vary::Any,
            Vary::Nothing => Vary::of(known.to_vec()),
            Vary::Names(mut names) => {
                names.extend_from_slice(known);
                Vary::of(names)
            }
        }
    }
}

/// Sorts names and removes those that occur twice.
pub fn sort_names(names: &mut Vec<HeaderName>) {
    names.sort_unstable_by(|left, right| left.as_str().cmp(right.as_str()));
    names.dedup();
}

/// Appends the variant part of a request's key to `out`.
pub fn push_variant(out: &mut Vec<u8>, names: &[HeaderName], request: &HeaderMap) {
    for name in names {
        out.extend_from_slice(name.as_str().as_bytes());
        push_value(out, name.as_str(), request);
        out.push(b'\n');
    }
}

/// Whether a request's headers match a variant that [`push_variant`] wrote.
pub fn matches_variant(variant: &[u8], request: &HeaderMap) -> bool {
    let mut found = Vec::new();
    variant.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).all(|line| {
        let end = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let Ok(name) = std::str::from_utf8(&line[..end]) else { return false };
        found.clear();
        push_value(&mut found, name, request);
        found == line[end..]
    })
}

/// The names in a variant that [`push_variant`] wrote.
pub fn names_in(variant: &[u8]) -> Vec<HeaderName> {
    variant
        .split(|&byte| byte == b'\n')
        .filter_map(|line| HeaderName::from_bytes(line.split(|&byte| byte == b':').next()?).ok())
        .collect()
}

/// Appends `:` and the normalised value of a header; appends nothing if the request lacks the header, unless the absence
/// has a normal form.
fn push_value(out: &mut Vec<u8>, name: &str, request: &HeaderMap) {
    if name == ACCEPT_ENCODING.as_str() {
        out.push(b':');
        out.extend_from_slice(normal_form(request).as_bytes());
        return;
    }
    if let Some(cookie) = cookie_in(name) {
        return push_cookie(out, cookie, request);
    }
    let header = if name == PART_NAME { "range" } else { name };
    let mut lines = request.get_all(header).into_iter();
    let Some(first) = lines.next() else { return };
    out.push(b':');
    let start = out.len();
    push_normalised(out, start, first.as_bytes());
    let separator = if name == COOKIE.as_str() { &b"; "[..] } else { b"," };
    for line in lines {
        out.extend_from_slice(separator);
        push_normalised(out, start, line.as_bytes());
    }
    if WITHOUT_CASE.contains(&name) {
        out[start..].make_ascii_lowercase();
    }
}

fn push_normalised(out: &mut Vec<u8>, start: usize, value: &[u8]) {
    let mut spaced = false;
    for &byte in value.trim_ascii() {
        match byte {
            b' ' | b'\t' => spaced = true,
            _ => {
                if spaced && byte != b',' && out.len() > start && out.last() != Some(&b',') {
                    out.push(b' ');
                }
                spaced = false;
                out.push(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    fn names(list: &[&str]) -> Vec<HeaderName> {
        list.iter().map(|name| HeaderName::from_bytes(name.as_bytes()).expect("a name")).collect()
    }

    #[test]
    fn parts_are_told_by_their_range() {
        assert_eq!(Vary::parse(&headers(&[("vary", "accept, part!")])), Vary::Any);
        let request = headers(&[("range", "bytes=0-99"), ("part!", "evil"), ("accept", "x")]);
        let mut variant = Vec::new();
        push_variant(&mut variant, &names(&["accept", "part!"]), &request);
        assert_eq!(variant, b"accept:x\npart!:bytes=0-99\n");
        assert!(matches_variant(&variant, &request));
        let other = headers(&[("range", "bytes=100-199"), ("accept", "x")]);
        assert!(!matches_variant(&variant, &other));
        variant.clear();
        push_variant(&mut variant, &names(&["part!"]), &headers(&[]));
        assert_eq!(variant, PART_MARKER);
    }

    #[test]
    fn names_are_sorted_unique_and_bounded() {
        let table: &[(&[&str], Vary)] = &[
            (&[], Vary::Nothing),
            (&[""], Vary::Nothing),
            (&["Accept"], Vary::Names(names(&["accept"]))),
            (&["B, a", "A"], Vary::Names(names(&["a", "b"]))),
            (&["*"], Vary::Any),
            (&["a, *"], Vary::Any),
            (&["a b"], Vary::Any),
            (&["cookie!a"], Vary::Any),
            (&["cookie"], Vary::Names(names(&["cookie"]))),
            (&["a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"], Vary::Any),
            (
                &["a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p"],
                Vary::of(names(&["p", "o", "n", "m", "l", "k", "j", "i", "h", "g", "f", "e", "d", "c", "b", "a"])),
            ),
        ];
        for (lines, expected) in table {
            let lines: Vec<_> = lines.iter().map(|line| ("vary", *line)).collect();
            assert_eq!(Vary::parse(&headers(&lines)), *expected, "{lines:?}");
        }
        assert_eq!(Vary::Nothing.union(&names(&["b", "a"])), Vary::Names(names(&["a", "b"])));
        assert_eq!(Vary::Names(names(&["a"])).union(&names(&["b"])), Vary::Names(names(&["a", "b"])));
        assert_eq!(Vary::Any.union(&names(&["b"])), Vary::Any);
    }

    #[test]
    fn variants_match_exactly_but_for_whitespace() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, Lines, bool)] = &[
            (&[("a", "1")], &[("a", "1")], true),
            (&[("a", "1")], &[("a", "2")], false),
            (&[("a", "1")], &[], false),
            (&[], &[], true),
            (&[], &[("a", "")], false),
            (&[("a", "1, 2")], &[("a", "1,2")], true),
            (&[("a", "1 ,  2")], &[("a", "1"), ("a", "2")], true),
            (&[("a", "x  y")], &[("a", "x y")], true),
            (&[("a", "xy")], &[("a", "x y")], false),
            (&[("a", "1,2")], &[("a", "2,1")], false),
            (&[("a", "X")], &[("a", "x")], false),
            (&[("a", "1"), ("b", "2")], &[("b", "2"), ("a", "1")], true),
            (&[("a", "b:2")], &[("a", "b"), ("b", "2")], false),
        ];
        for (first, second, expected) in table {
            let (first, second) = (headers(first), headers(second));
            let mut variants = [Vec::new(), Vec::new()];
            push_variant(&mut variants[0], &names(&["a", "b"]), &first);
            push_variant(&mut variants[1], &names(&["a", "b"]), &second);
            assert_eq!(variants[0] == variants[1], *expected, "{first:?} {second:?}");
            assert_eq!(matches_variant(&variants[0], &second), *expected, "{first:?} {second:?}");
            assert_eq!(names_in(&variants[0]), names(&["a", "b"]));
        }
    }

    #[test]
    fn single_cookies_select_variants_alone() {
        let names = names(&["accept", "cookie!a", "cookie!b"]);
        let variant_of = |cookies: &[&str]| {
            let lines: Vec<_> = cookies.iter().map(|line| ("cookie", *line)).collect();
            let request = headers(&[&lines[..], &[("cookie!a", "sent"), ("accept", "x")]].concat());
            let mut variant = Vec::new();
            push_variant(&mut variant, &names, &request);
            assert!(matches_variant(&variant, &request), "{cookies:?}");
            assert_eq!(names_in(&variant), names);
            variant
        };
        let one = variant_of(&["a=1; c=1; b=x:y"]);
        assert_eq!(String::from_utf8_lossy(&one), "accept:x\ncookie!a:a=1\ncookie!b:b=x:y\n");
        assert_eq!(variant_of(&["b=x:y", "c=2;a=1"]), one);
        let others: [&[&str]; 6] = [&[], &["a=1"], &["a=1; b"], &["a=1; b="], &["a=x:y; b=1"], &["a=1; b=x:Y"]];
        let mut variants: Vec<_> = others.iter().map(|cookies| variant_of(cookies)).collect();
        assert!(!variants.contains(&one));
        variants.sort();
        variants.dedup();
        assert_eq!(variants.len(), others.len());
    }

    #[test]
    fn cookies_on_several_lines_are_joined() {
        let split = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        let mut variant = Vec::new();
        push_variant(&mut variant, &names(&["cookie"]), &split);
        for (line, expected) in [("a=1; b=2", true), ("a=1,b=2", false), ("b=2; a=1", false)] {
            assert_eq!(matches_variant(&variant, &headers(&[("cookie", line)])), expected, "{line}");
        }
    }

    #[test]
    fn variant_languages_and_codings_normalise() {
        for (name, first, second, expected) in [
            ("accept-language", "en, de", "eN,De", true),
            ("accept-encoding", "gzip", "GZIP", true),
            ("accept-encoding", "gzip, br;q=0.5", "deflate, br, gzip", true),
            ("accept-encoding", "gzip, br, zstd", "zstd, br;q=0.5, gzip", true),
            ("accept-encoding", "gzip, br", "zstd, br, gzip", false),
            ("accept-encoding", "gzip", "br", false),
            ("accept-language", "en, de", "de, en", false),
            ("accept", "text/html", "Text/HTML", false),
        ] {
            let mut variant = Vec::new();
            push_variant(&mut variant, &names(&[name]), &headers(&[(name, first)]));
            assert_eq!(matches_variant(&variant, &headers(&[(name, second)])), expected, "{name}: {first}, {second}");
        }
    }
}
