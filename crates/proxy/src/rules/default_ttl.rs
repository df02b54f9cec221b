//! The operator's lifetimes for responses that have no lifetime.
//!
//! Owns: the rules `[HOST][/PATH]=TTL` or `TTL` alone. HOST is exact, `*.suffix` or `*`; PATH is a prefix, or a pattern
//! of the whole path and query if it has a `*`. The first rule that matches counts. Without rules there is no default.
//! [`freshness`](super::freshness) decides to which responses the default applies.

use std::fmt;
use std::time::Duration;

use super::cache_control::DELTA_SECONDS_MAX;
use super::key::host_and_path;

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefaultTtlRule {
    host: Vec<u8>,
    path: Vec<u8>,
    ttl_s: u64,
}

/// The rules, in the order in which they are tried.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultTtl {
    rules: Vec<DefaultTtlRule>,
}

impl DefaultTtlRule {
    /// Reads a rule.
    ///
    /// *Errors*: a sentence that names the mistake in the text.
    pub fn parse(text: &str) -> Result<DefaultTtlRule, String> {
        let (pattern, ttl) = text.rsplit_once('=').unwrap_or(("", text));
        let (host, path) = match pattern.find('/') {
            Some(slash) => pattern.split_at(slash),
            None => (pattern, ""),
        };
        if host.contains(|character: char| character.is_whitespace() || character == ':')
            || host.strip_prefix("*.").unwrap_or(if host == "*" { "" } else { host }).contains('*')
        {
            return Err(format!("`{host}` is no host: write one as `example.org`, `*.example.org` or `*`"));
        }
        let ttl_s = parse_duration(ttl)?.as_secs();
        let host = if host.is_empty() { "*" } else { host };
        Ok(DefaultTtlRule { host: host.to_ascii_lowercase().into_bytes(), path: path.as_bytes().to_vec(), ttl_s })
    }

    /// The host: a name, `*.` and a name, or `*`.
    pub fn host(&self) -> &str {
        std::str::from_utf8(&self.host).unwrap_or_default()
    }

    /// The path: the beginning of paths, or a pattern with `*`; empty for all.
    pub fn path(&self) -> &str {
        std::str::from_utf8(&self.path).unwrap_or_default()
    }

    /// The lifetime.
    pub fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_s)
    }

    /// Whether the rule is for URLs of a host, which is written as in keys.
    pub(crate) fn is_for_host(&self, host: &[u8]) -> bool {
        match self.host.strip_prefix(b"*") {
            Some(suffix) => host.ends_with(suffix),
            None => host == self.host,
        }
    }

    /// Whether this rule certainly matches every URL that another one matches. Of two patterns of paths with `*` that is known
    /// only if they are the same.
    pub(crate) fn covers(&self, other: &DefaultTtlRule) -> bool {
        let covers_path =
            if self.path.contains(&b'*') { self.path == other.path } else { other.path.starts_with(&self.path) };
        // A wildcard covers a host that ends as it does, and so also a longer wildcard.
        covers_path && self.is_for_host(&other.host)
    }

    fn matches(&self, host: &[u8], path: &[u8]) -> bool {
        self.is_for_host(host)
            && if self.path.contains(&b'*') { glob(&self.path, path) } else { path.starts_with(&self.path) }
    }
}

/// Writes the rule as it is read.
impl fmt::Display for DefaultTtlRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}={}s", self.host(), self.path(), self.ttl_s)
    }
}

impl DefaultTtl {
    /// Makes a set of rules, which are tried in the given order.
    pub fn new(rules: Vec<DefaultTtlRule>) -> DefaultTtl {
        DefaultTtl { rules }
    }

    /// The same lifetime in seconds for every URL, or none.
    pub fn of_all(ttl_s: Option<u64>) -> DefaultTtl {
        let rule =
            |ttl_s: u64| DefaultTtlRule { host: b"*".to_vec(), path: Vec::new(), ttl_s: ttl_s.min(DELTA_SECONDS_MAX) };
        DefaultTtl { rules: ttl_s.map(rule).into_iter().collect() }
    }

    /// The default lifetime, in seconds, for a URL given as its primary key.
    pub fn for_key(&self, key: &[u8]) -> Option<u64> {
        if self.rules.is_empty() {
            return None;
        }
        let (host, path) = host_and_path(key);
        self.rules.iter().find(|rule| rule.matches(host, path)).map(|rule| rule.ttl_s)
    }
}

/// Reads a duration: a number of seconds, or a number with `m`, `h` or `d` for minutes, hours or days.
///
/// *Errors*: a sentence that names the mistake in the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let seconds = parse_duration_s(text);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("`{text}` is no duration: write one as `90`, `15m`, `12h` or `7d`"))
}

fn parse_duration_s(text: &str) -> Option<u64> {
    let (digits, unit_s) = match text.as_bytes().last()? {
        b's' => (&text[..text.len() - 1], 1),
        b'm' => (&text[..text.len() - 1], 60),
        b'h' => (&text[..text.len() - 1], 3600),
        b'd' => (&text[..text.len() - 1], 86400),
        _ => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(digits.parse::<u64>().ok()?.checked_mul(unit_s)?.min(DELTA_SECONDS_MAX))
}

/// Whether the whole of `text` matches `pattern`, in which each `*` stands for any bytes. *Cost*: at most the product
/// of the two lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at_pattern, mut at_text) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at_text < text.len() {
        if pattern.get(at_pattern) == Some(&b'*') {
            star = Some((at_pattern + 1, at_text));
            at_pattern += 1;
        } else if pattern.get(at_pattern) == Some(&text[at_text]) {
            at_pattern += 1;
            at_text += 1;
        } else if let Some((after_star, taken)) = star {
            star = Some((after_star, taken + 1));
            at_pattern = after_star;
            at_text = taken + 1;
        } else {
            return false;
        }
    }
    pattern[at_pattern..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_counts() {
        let texts =
            ["deb.example.org/debian/pool/=7d", "*.example.org/*.deb=2h", "*.example.org=15m", "/late=5s", "60"];
        let rules = DefaultTtl::new(texts.iter().map(|text| DefaultTtlRule::parse(text).expect("a rule")).collect());
        let table = [
            ("http://deb.example.org/debian/pool/a.deb", Some(7 * 86400)),
            ("http://deb.example.org/other/a.deb", Some(7200)),
            ("http://deb.example.org:8080/other/a.tar", Some(900)),
            ("http://example.org/late/x", Some(5)),
            ("http://example.org/x", Some(60)),
            ("http://notexample.org/a.deb", Some(60)),
        ];
        for (key, expected) in table {
            assert_eq!(rules.for_key(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(DefaultTtl::default().for_key(b"http://a/"), None);
        let one = DefaultTtl::new(vec![DefaultTtlRule::parse("a/x=1").expect("a rule")]);
        assert_eq!(one.for_key(b"http://a/y"), None);
    }

    #[test]
    fn covered_rules_are_found() {
        let covers = |one: &str, other: &str| {
            let rule = |text: &str| DefaultTtlRule::parse(&format!("{text}=1")).expect("a rule");
            rule(one).covers(&rule(other))
        };
        for (one, other) in [
            ("*", "a/x"),
            ("*", "*.a"),
            ("*", "/x*y"),
            ("*.a", "b.a/x"),
            ("*.a", "*.b.a"),
            ("a", "a/x"),
            ("/x", "a/x/y"),
            ("/x", "/x*"),
            ("/*.deb", "a/*.deb"),
        ] {
            assert!(covers(one, other), "{one} {other}");
            assert!(!covers(other, one), "{other} {one}");
        }
        for (one, other) in [("a", "b"), ("*.a", "a"), ("/x", "/y"), ("/x*", "/xy"), ("a/x", "b/x/y")] {
            assert!(!covers(one, other), "{one} {other}");
        }
    }

    #[test]
    fn bad_rules_say_what_is_wrong() {
        for text in ["", "x", "a=", "a=5w", "a=-5", "a b=5", "a.*=5", "a:80=5", "a=99999999999999999999d"] {
            let error = DefaultTtlRule::parse(text).expect_err(text);
            assert!(error.contains("write one as"), "{text}: {error}");
        }
    }

    #[test]
    fn patterns_cover_the_whole_path() {
        let table = [
            ("/*.deb", "/a/b.deb", true),
            ("/*.deb", "/a/b.deb?x", false),
            ("*", "/anything", true),
            ("/a*b*c", "/aXbYbZc", true),
            ("/a*b*c", "/aXbYbZ", false),
            ("/a", "/a", true),
            ("/**", "/", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
