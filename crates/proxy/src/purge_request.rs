//! A purge as JSON says it, over HTTP and over the control socket.
//!
//! Owns: the words of such a purge, and which of them may stand together. Leaves to others: who may purge
//! (`service/admin`), and purging (`service/purge`, the command).

use nectary_host::fleet::PurgeWish;
use serde::Deserialize;
use serde_json::Value;

/// What the JSON of a purge may be.
const FORMS: &str = r#"A purge is one of {"url": URL}, {"prefix": URL}, {"tags": [TAG, …]}, {"all": true}, each also with "soft": true and "wait": "accepted" or "applied""#;

/// The most characters of a text that is no URL which the refusal repeats.
const SHOWN_CHARS_MAX: usize = 100;

/// What a purge is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PurgeSubject {
    /// A URL with all its variants.
    Url(String),
    /// All URLs that begin so.
    Prefix(String),
    /// All responses that have one of these tags.
    Tags(Vec<String>),
    /// Everything.
    All,
}

/// A purge that was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeRequest {
    /// What is purged.
    pub subject: PurgeSubject,
    /// Whether it is not removed, but stale from now on.
    pub is_soft: bool,
    /// What the answer waits for in a fleet; `None` for what the configuration says. Without a fleet a purge is applied
    /// when it is answered.
    pub wish: Option<PurgeWish>,
}

/// The words of a purge.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct PurgeFields {
    #[serde(alias = "key")]
    url: Option<String>,
    prefix: Option<String>,
    tags: Option<Vec<String>>,
    all: Option<bool>,
    soft: bool,
    wait: Option<WaitWord>,
}

/// What the answer to a purge waits for.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum WaitWord {
    Accepted,
    Applied,
}

impl PurgeRequest {
    /// Reads the JSON of a purge. *Errors*: a sentence about what a purge is, and what this one is instead.
    pub fn parse(json: &[u8]) -> Result<PurgeRequest, String> {
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(format!("{FORMS}; this is no object."));
        }
        of_words(serde_json::from_slice(json))
    }

    /// Reads a purge, as [`parse`](PurgeRequest::parse) does.
    pub fn from_value(value: Value) -> Result<PurgeRequest, String> {
        if !value.is_object() {
            return Err(format!("{FORMS}; this is no object."));
        }
        of_words(serde_json::from_value(value))
    }
}

fn of_words(words: serde_json::Result<PurgeFields>) -> Result<PurgeRequest, String> {
    let PurgeFields { url, prefix, tags, all, soft, wait } =
        words.map_err(|error| format!("{FORMS}; this is not one of them: {error}."))?;
    let subject = match (url, prefix, tags, all) {
        (Some(url), None, None, None) if !url.is_empty() => PurgeSubject::Url(url),
        (None, Some(prefix), None, None) if !prefix.is_empty() => PurgeSubject::Prefix(prefix),
        (None, None, Some(tags), None) if !tags.is_empty() => PurgeSubject::Tags(tags),
        (None, None, None, Some(true)) => PurgeSubject::All,
        _ => return Err(format!("{FORMS}; this purges nothing, or several of these.")),
    };
    if let PurgeSubject::Url(url) | PurgeSubject::Prefix(url) = &subject
        && !has_scheme_and_host(url)
    {
        let shown: String = url.chars().take(SHOWN_CHARS_MAX).collect();
        return Err(format!(
            "{shown:?} is no whole URL, so nothing is purged. \
             A URL or a prefix of URLs begins with http:// or https:// and a host, as http://example.org/a."
        ));
    }
    let wish = wait.map(|word| match word {
        WaitWord::Accepted => PurgeWish::Accepted,
        WaitWord::Applied => PurgeWish::Applied,
    });
    Ok(PurgeRequest { subject, is_soft: soft, wish })
}

/// Whether a text begins as all keys of responses do: with a scheme and at least the beginning of a host.
fn has_scheme_and_host(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let is_http = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    is_http && rest.bytes().next().is_some_and(|byte| !b"/?#:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_says_one_thing() {
        let url = || PurgeSubject::Url("http://h/".to_owned());
        let hard = |subject| PurgeRequest { subject, is_soft: false, wish: None };
        let soft = |subject| PurgeRequest { subject, is_soft: true, wish: None };
        for (json, expected) in [
            (r#"{"url": "http://h/"}"#, hard(url())),
            (r#" {"key": "http://h/", "soft": false}"#, hard(url())),
            (r#"{"soft": true, "url": "http://h/"}"#, soft(url())),
            (r#"{"prefix": "http://h/", "soft": true}"#, soft(PurgeSubject::Prefix("http://h/".to_owned()))),
            (r#"{"tags": ["a", "b"]}"#, hard(PurgeSubject::Tags(vec!["a".to_owned(), "b".to_owned()]))),
            (r#"{"all": true, "soft": true}"#, soft(PurgeSubject::All)),
            (
                r#"{"all": true, "wait": "accepted"}"#,
                PurgeRequest { wish: Some(PurgeWish::Accepted), ..hard(PurgeSubject::All) },
            ),
            (
                r#"{"wait": "applied", "url": "http://h/"}"#,
                PurgeRequest { wish: Some(PurgeWish::Applied), ..hard(url()) },
            ),
        ] {
            assert_eq!(PurgeRequest::parse(json.as_bytes()), Ok(expected.clone()), "{json}");
            let value = serde_json::from_str(json).expect("JSON");
            assert_eq!(PurgeRequest::from_value(value), Ok(expected), "{json}");
        }
    }

    #[test]
    fn unclear_purges_are_refused() {
        for json in [
            "",
            "null",
            "[]",
            "\"all\"",
            "{}",
            r#"{"soft": true}"#,
            r#"{"url": ""}"#,
            r#"{"prefix": ""}"#,
            r#"{"tags": []}"#,
            r#"{"tags": "a"}"#,
            r#"{"all": false}"#,
            r#"{"url": "a", "all": true}"#,
            r#"{"url": "a", "key": "b"}"#,
            r#"{"url": "a", "soft": 1}"#,
            r#"{"url": "a", "wait": "soon"}"#,
            r#"{"url": "a", "gently": true}"#,
            r#"["a", null, null, null, true]"#,
        ] {
            let error = PurgeRequest::parse(json.as_bytes()).expect_err(json);
            assert!(error.starts_with("A purge is one of"), "{error}");
        }
    }

    #[test]
    fn purges_without_scheme_or_host_are_refused() {
        for bad in ["a", "/a", "example.org/a", "//example.org/a", "http:/a", "http://", "https:///a", "ftp://h/"] {
            for kind in ["url", "key", "prefix"] {
                let json = serde_json::json!({ kind: bad }).to_string();
                let error = PurgeRequest::parse(json.as_bytes()).expect_err(&json);
                assert!(error.starts_with(&format!("{bad:?} is no whole URL")), "{error}");
            }
        }
        for good in ["http://h", "HTTPS://h/a", "http://[::1]:80/"] {
            for kind in ["url", "prefix"] {
                let json = serde_json::json!({ kind: good }).to_string();
                assert!(PurgeRequest::parse(json.as_bytes()).is_ok(), "{json}");
            }
        }
        let json = serde_json::json!({ "url": "x".repeat(1000) }).to_string();
        let error = PurgeRequest::parse(json.as_bytes()).expect_err("no URL");
        assert!(error.len() < 300, "{error}");
    }
}
