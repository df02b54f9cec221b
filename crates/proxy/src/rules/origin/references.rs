//! References to the origin in its responses.
//!
//! Owns: making a reference relative if it names the origin by an authority that only the origin and this proxy use. A
//! reverse proxy's clients may not be able to reach that authority, and should not go past the proxy. A relative
//! reference keeps the scheme and the authority of each client's own URL, so it is right for all clients that share the
//! stored response, also behind a TLS terminator.
//!
//! A reference with another scheme, another port or user information stays. A path that begins with two slashes would
//! name a host if it stood alone, so it gets a dot segment. *Source*: RFC 3986, 4.2 and 5.3; RFC 8288, 3; RFC 9110,
//! 8.7 and 10.2.2.

use http::header::{CONTENT_LOCATION, LINK, LOCATION, REFRESH};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::super::key::UrlOrigin;

/// The authorities by which an origin names itself.
#[derive(Debug, Clone)]
pub struct OwnReferences {
    own: Vec<UrlOrigin>,
}

impl OwnReferences {
    /// Takes the origin's own authority, and the one in the `Host` that it gets if that is always the same.
    pub fn new(own: Vec<UrlOrigin>) -> OwnReferences {
        OwnReferences { own }
    }

    /// Makes the origin's references to itself relative in `Location`, `BodyContent-Location`, `Link` and `Refresh`.
    pub fn rewrite(&self, headers: &mut HeaderMap) {
        self.rewrite_each(headers, &LOCATION, |value| self.relative(value.trim_ascii()));
        self.rewrite_each(headers, &CONTENT_LOCATION, |value| self.relative(value.trim_ascii()));
        self.rewrite_each(headers, &LINK, |value| self.link(value));
        self.rewrite_each(headers, &REFRESH, |value| self.refresh(value));
    }

    fn rewrite_each(&self, headers: &mut HeaderMap, name: &HeaderName, new: impl Fn(&[u8]) -> Option<Vec<u8>>) {
        let http::header::Entry::Occupied(mut entry) = headers.entry(name) else { return };
        for value in entry.iter_mut() {
            if let Some(rewritten) = new(value.as_bytes()).and_then(|bytes| HeaderValue::from_bytes(&bytes).ok()) {
                *value = rewritten;
            }
        }
    }

    /// The relative form of a reference to the origin; `None` for all other references.
    fn relative(&self, reference: &[u8]) -> Option<Vec<u8>> {
        let https = self.own.first()?.https;
        let scheme: &[u8] = if https { b"https:" } else { b"http:" };
        let rest = match reference.split_at_checked(scheme.len()) {
            Some((begin, rest)) if begin.eq_ignore_ascii_case(scheme) => rest,
            _ => reference,
        };
        let rest = rest.strip_prefix(b"//")?;
        let end = rest.iter().position(|byte| b"/?#\\".contains(byte)).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = Authority::try_from(authority).ok()?;
        if !self.own.contains(&UrlOrigin::new(https, &authority)?) {
            return None;
        }
        let prefix: &[u8] = match path {
            [b'\\', ..] => return None,
            // Browsers ignore tabs and take backslashes for slashes.
            [b'/', after @ ..] => match after.iter().find(|byte| **byte != b'\t') {
                Some(b'/' | b'\\') => b"/.",
                _ => b"",
            },
            _ => b"/",
        };
        Some([prefix, path].concat())
    }

    /// Rewrites the targets in a `Link`, which are in angle brackets outside of quoted strings.
    fn link(&self, value: &[u8]) -> Option<Vec<u8>> {
        let (mut out, mut copied, mut at, mut is_quoted) = (Vec::new(), 0, 0, false);
        while at < value.len() {
            match value[at] {
                b'\\' if is_quoted => at += 1,
                b'"' => is_quoted = !is_quoted,
                b'<' if !is_quoted => {
                    let end = at + memchr::memchr(b'>', &value[at..])?;
                    if let Some(target) = self.relative(value[at + 1..end].trim_ascii()) {
                        out.extend_from_slice(&value[copied..=at]);
                        out.extend_from_slice(&target);
                        copied = end;
                    }
                    at = end;
                }
                _ => {}
            }
            at += 1;
        }
        (copied > 0).then(|| [&out[..], &value[copied..]].concat())
    }

    /// Rewrites the URL of a `Refresh`, as in `5; url=http://a/b`.
    fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let start = value.windows(4).position(|window| window.eq_ignore_ascii_case(b"url="))? + 4;
        let (before, url) = value.split_at(start);
        let is_quote = |byte: &&u8| **byte == b'"' || **byte == b'\'';
        let quote: Vec<u8> = url.first().filter(is_quote).copied().into_iter().collect();
        let inner = url.strip_prefix(&quote[..]).and_then(|rest| rest.strip_suffix(&quote[..]))?;
        Some([before, &quote, &self.relative(inner.trim_ascii())?, &quote].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    fn of(urls: &[&str]) -> OwnReferences {
        OwnReferences::new(
            urls.iter().map(|url| UrlOrigin::of(&url.parse().expect("a URL")).expect("an origin")).collect(),
        )
    }

    #[test]
    fn references_to_the_origin_become_relative() {
        let table = [
            ("http://10.0.0.5:3000/a?b#c", Some("/a?b#c")),
            ("HTTP://10.0.0.5:03000/a", Some("/a")),
            ("//10.0.0.5:3000/a", Some("/a")),
            ("http://10.0.0.5:3000", Some("/")),
            ("http://10.0.0.5:3000?b", Some("/?b")),
            ("http://10.0.0.5:3000#c", Some("/#c")),
            ("http://APP.internal/a", Some("/a")),
            ("http://app.internal:80/a", Some("/a")),
            ("http://10.0.0.5:3000//evil/a", Some("/.//evil/a")),
            ("http://10.0.0.5:3000/\\evil/a", Some("/./\\evil/a")),
            ("http://10.0.0.5:3000/\t/evil/a", Some("/./\t/evil/a")),
            ("http://10.0.0.5:3000\\evil/a", None),
            ("http://10.0.0.5:3000@evil/a", None),
            ("http://user@10.0.0.5:3000/a", None),
            ("https://10.0.0.5:3000/a", None),
            ("http://10.0.0.5/a", None),
            ("http://10.0.0.5:3000.evil/a", None),
            ("http://app.internal.evil/a", None),
            ("http:/10.0.0.5:3000/a", None),
            ("http://", None),
            ("/a", None),
            ("a", None),
            ("", None),
        ];
        let own = of(&["http://10.0.0.5:3000", "http://app.internal"]);
        for (reference, expected) in table {
            let found = own.relative(reference.as_bytes());
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{reference}");
        }
        assert_eq!(of(&["https://a"]).relative(b"https://A:443/x").as_deref(), Some(&b"/x"[..]));
        assert_eq!(of(&["https://a"]).relative(b"http://a/x"), None);
    }

    #[test]
    fn headers_keep_all_but_the_authority() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, Lines)] = &[
            (
                &[("location", "http://o/a"), ("content-location", "//o/b")],
                &[("location", "/a"), ("content-location", "/b")],
            ),
            (
                &[("location", "http://b/a"), ("x-link", "http://o/a")],
                &[("location", "http://b/a"), ("x-link", "http://o/a")],
            ),
            (
                &[
                    ("link", "<http://o/a,b>; rel=\"x <http://o/>\", < http://o/c >;rel=next,<http://b/d>"),
                    ("link", "<//o/e>"),
                ],
                &[("link", "</a,b>; rel=\"x <http://o/>\", </c>;rel=next,<http://b/d>"), ("link", "</e>")],
            ),
            (
                &[("link", "<http://o/a"), ("link", "rel=\"\\\"<http://o/>")],
                &[("link", "<http://o/a"), ("link", "rel=\"\\\"<http://o/>")],
            ),
            (&[("refresh", "5; url=http://o/a")], &[("refresh", "5; url=/a")]),
            (&[("refresh", "5;URL='http://o/a'")], &[("refresh", "5;URL='/a'")]),
            (
                &[("refresh", "5;url='http://o/a"), ("refresh", "5")],
                &[("refresh", "5;url='http://o/a"), ("refresh", "5")],
            ),
        ];
        for (before, after) in table {
            let mut map = headers(before);
            of(&["http://o"]).rewrite(&mut map);
            assert_eq!(map, headers(after));
        }
    }
}
