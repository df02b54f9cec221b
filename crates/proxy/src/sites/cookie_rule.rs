//! Which cookies of a request count.
//!
//! Owns: the removal of the others from a request before anything else reads its cookies: a response that may be stored
//! must not depend on them, and a `Vary: Cookie` is then about the cookies that remain. What remains is in one line, in
//! its order, joined by `; `, so clients that write the same cookies differently share their copies. A second removal
//! changes nothing. Leaves to others: what a cookie is (`rules/syntax/cookie_pairs`), and which requests lose cookies:
//! as with the query, `POST` and other unsafe methods keep all, and so does what is passed
//! ([`SiteRoute`](super::SiteRoute)).

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderValue};

use super::NameRule;
use crate::rules::syntax::cookie_pairs::{CookiePair, cookies_of};

/// A rule about the cookies of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CookieRule(pub NameRule);

impl CookieRule {
    /// Whether all cookies stay, in the form in which the client sent them.
    #[inline]
    pub fn is_all(&self) -> bool {
        self.0.is_all()
    }

    /// Whether a cookie counts, whatever the origin takes for its name: one that some origin may read as a cookie that does
    /// not count does not count either.
    fn keeps(&self, cookie: &CookiePair<'_>) -> bool {
        match &self.0 {
            NameRule::Without(_) => self.0.keeps_all(cookie.name, cookie.possible_names()),
            _ => self.0.keeps_all(cookie.name, cookie.further_names()),
        }
    }

    /// Removes the cookies that do not count. *Cost*: nothing without a cookie; else linear in the length of the
    /// cookies, and an allocation for those that stay.
    pub fn clean(&self, headers: &mut HeaderMap) {
        if self.is_all() || !headers.contains_key(COOKIE) {
            return;
        }
        let mut kept: Vec<u8> = Vec::new();
        for cookie in cookies_of(headers).filter(|cookie| self.keeps(cookie)) {
            if !kept.is_empty() {
                kept.extend_from_slice(b"; ");
            }
            kept.extend_from_slice(cookie.text);
        }
        let line = if kept.is_empty() { None } else { HeaderValue::from_maybe_shared(Bytes::from(kept)).ok() };
        match line {
            Some(line) => _ = headers.insert(COOKIE, line),
            None => _ = headers.remove(COOKIE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    fn cleaned(rule: &CookieRule, map: &HeaderMap) -> HeaderMap {
        let mut once = map.clone();
        rule.clean(&mut once);
        let mut twice = once.clone();
        rule.clean(&mut twice);
        assert_eq!(once, twice, "{rule:?} {map:?}");
        once
    }

    #[test]
    fn cookies_stay_by_their_names() {
        let names = ["a".to_owned(), "_ga*".to_owned()];
        // Each row has the lines, and what two rules leave of them.
        let table: &[(&[&str], &str, &str)] = &[
            (&[], "", ""),
            (&[""], "", ""),
            (&["; ;"], "", ""),
            (&["x=1"], "x=1", ""),
            (&["a=1"], "", "a=1"),
            (&["a=1;x=2;;  ; y"], "x=2; y", "a=1"),
            (&["_ga=1; x=2;_gat=3"], "x=2", "_ga=1; _gat=3"),
            (&["_ga=1", "_gb=2; a=3", "x=4"], "_gb=2; x=4", "_ga=1; a=3"),
            (&["A=1; aa=2; _g=3"], "aa=2; _g=3", ""),
            (&["x=1 a=2; y=3\ta=4; _GA=5"], "", ""),
            (&["a=1 x=2; a=1, b"], "", "a=1, b"),
            (&["a =1; x = 2"], "x = 2", "a =1"),
            (&["a; =a; =; x"], "=a; =; x", "a"),
            (&["x=\"a=1; b=2\""], "x=\"a=1; b=2\"", ""),
            (&["x=\"1; a=2; b=3\""], "x=\"1; b=3\"", "a=2"),
            (&["x=1, a=2"], "", ""),
            (&["x=1, a; y=2"], "y=2", ""),
            (&["%61=1"], "%61=1", ""),
            (&["a=1; a=2; x=1; x=1"], "x=1; x=1", "a=1; a=2"),
        ];
        let (without, only) = (CookieRule(NameRule::without(&names)), CookieRule(NameRule::only(&names)));
        let with = |cookies: &[&str]| {
            let mut map = headers(&[("accept", "x")]);
            for line in cookies {
                map.append(COOKIE, HeaderValue::from_str(line).expect("a value"));
            }
            map
        };
        for (lines, left_without, left_only) in table {
            let map = with(lines);
            assert_eq!(cleaned(&CookieRule::default(), &map), map, "{lines:?}");
            for (rule, left) in [(&without, *left_without), (&only, *left_only)] {
                let expected = if left.is_empty() { with(&[]) } else { with(&[left]) };
                assert_eq!(cleaned(rule, &map), expected, "{rule:?} {lines:?}");
            }
        }
    }

    #[test]
    fn any_bytes_are_cleaned() {
        let rules = ["", "*", "a", "\u{e9}*"].map(|name| {
            let name = [name.to_owned()];
            [CookieRule(NameRule::without(&name)), CookieRule(NameRule::only(&name))]
        });
        let bytes = (0..=u8::MAX).filter(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f));
        for byte in bytes {
            let line = [&b"a=1;"[..], &[byte; 3], b"=a=;", &[byte], b" ;a", &[byte], b"=x"].concat();
            let mut map = HeaderMap::new();
            map.append(COOKIE, HeaderValue::from_bytes(&line).expect("a value"));
            for rule in rules.iter().flatten() {
                cleaned(rule, &map);
            }
        }
    }

    #[test]
    fn many_cookies_are_cleaned() {
        let line = |from: &str| (0..10_000).map(|index| format!("{from}{index}=1")).collect::<Vec<_>>().join("; ");
        let both = headers(&[("cookie", &line("_ga")), ("cookie", &line("x"))]);
        let rule = CookieRule(NameRule::without(&["_ga*".to_owned()]));
        assert_eq!(cleaned(&rule, &both), headers(&[("cookie", &line("x"))]));
    }
}
