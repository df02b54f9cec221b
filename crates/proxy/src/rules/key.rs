//! The primary part of a cache key: the URL. All methods share one key.
//!
//! Owns: the form of the key: `scheme://authority/path?query` with a lower-case host, no default port, no user
//! information and no fragment. Path and query are copied byte for byte, so different URLs never have the same key.

use http::Uri;
use http::uri::{Authority, Scheme};

/// The part of a URL before its path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct UrlOrigin {
    /// Whether requests to the origin use TLS.
    pub https: bool,
    /// The host in lower case, in brackets if it is an IPv6 address. For a server at a Unix socket `unix:` and its path,
    /// which no URL of a client can have as its host.
    pub host: String,
    /// The port, even if it is the scheme's default.
    pub port: u16,
}

impl UrlOrigin {
    /// The origin of an absolute URI; `None` if the URI is not `http` or `https`, has user information, or has a bad
    /// port.
    pub fn of(uri: &Uri) -> Option<UrlOrigin> {
        let scheme = uri.scheme()?;
        let https = *scheme == Scheme::HTTPS;
        if !https && *scheme != Scheme::HTTP {
            return None;
        }
        UrlOrigin::new(https, uri.authority()?)
    }

    /// Makes an origin of a scheme and an authority; `None` if the authority has no host, has user information, or has
    /// a bad port.
    pub fn new(https: bool, authority: &Authority) -> Option<UrlOrigin> {
        let text = authority.as_str();
        let host = authority.host();
        if text.contains('@') || host.is_empty() {
            return None;
        }
        let port = match text.get(host.len()..).unwrap_or("") {
            "" | ":" => {
                if https {
                    443
                } else {
                    80
                }
            }
            rest => rest.strip_prefix(':')?.parse().ok().filter(|&port| port != 0)?,
        };
        Some(UrlOrigin { https, host: host.to_ascii_lowercase(), port })
    }

    /// A server at a Unix socket.
    pub fn of_socket(path: &str) -> UrlOrigin {
        UrlOrigin { https: false, host: format!("unix:{path}"), port: 80 }
    }

    /// The path of the Unix socket, if it is a server at one.
    pub fn socket_path(&self) -> Option<&str> {
        self.host.strip_prefix("unix:").filter(|path| path.starts_with('/'))
    }

    /// What the origin calls itself: for a server at a Unix socket `localhost`.
    pub fn named(&self) -> UrlOrigin {
        match self.socket_path() {
            Some(_) => UrlOrigin { host: "localhost".to_owned(), ..self.clone() },
            None => self.clone(),
        }
    }

    /// The origin as logs show it: its URL, or its Unix socket.
    pub fn shown(&self) -> String {
        match self.socket_path() {
            Some(_) => self.host.clone(),
            None => format!("{}://{}", self.scheme(), self.authority()),
        }
    }

    /// The host, without the brackets of an IPv6 address.
    pub fn bare_host(&self) -> &str {
        self.host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&self.host)
    }

    /// The scheme's name.
    pub fn scheme(&self) -> &'static str {
        if self.https { "https" } else { "http" }
    }

    /// The host, with the port unless it is the scheme's default.
    pub fn authority(&self) -> String {
        let mut text = Vec::new();
        self.push_authority(&mut text);
        String::from_utf8(text).expect("a host is text")
    }

    fn push_authority(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.host.as_bytes());
        if self.port != if self.https { 443 } else { 80 } {
            out.push(b':');
            out.extend_from_slice(self.port.to_string().as_bytes());
        }
    }

    /// Appends `scheme://authority`.
    pub fn push(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.scheme().as_bytes());
        out.extend_from_slice(b"://");
        self.push_authority(out);
    }
}

/// Appends the key of an absolute URI to `out`. If the URI has no key, appends nothing and returns false.
pub fn push_key(out: &mut Vec<u8>, uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else { return false };
    let default_port = match uri.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return false,
    };
    let (text, host) = (authority.as_str(), authority.host());
    if text.contains('@') || host.is_empty() {
        return false;
    }
    let port = match text.get(host.len()..).unwrap_or("") {
        "" | ":" => default_port,
        rest => match rest.strip_prefix(':').and_then(|digits| digits.parse::<u16>().ok()) {
            Some(port) if port != 0 => port,
            _ => return false,
        },
    };
    out.extend_from_slice(if default_port == 80 { b"http://" } else { b"https://" });
    let start = out.len();
    out.extend_from_slice(host.as_bytes());
    out[start..].make_ascii_lowercase();
    if port != default_port {
        out.push(b':');
        push_decimal(out, u64::from(port));
    }
    push_path(out, uri);
    true
}

/// Appends path and query; an empty path is `/`.
pub fn push_path(out: &mut Vec<u8>, uri: &Uri) {
    match uri.path_and_query() {
        Some(path) => {
            if !path.as_str().starts_with('/') {
                out.push(b'/');
            }
            out.extend_from_slice(path.as_str().as_bytes());
        }
        None => out.push(b'/'),
    }
}

/// Appends a number in decimal.
pub fn push_decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0u8; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Splits a key into its host and its path with query; both are empty if `key` has no scheme.
pub fn host_and_path(key: &[u8]) -> (&[u8], &[u8]) {
    let Some(start) = key.windows(3).take(8).position(|window| window == b"://").map(|at| at + 3) else {
        return (b"", b"");
    };
    let rest = &key[start..];
    let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let bracket = authority.iter().position(|&byte| byte == b']').unwrap_or(0);
    let colon = authority[bracket..].iter().position(|&byte| byte == b':').map_or(authority.len(), |at| bracket + at);
    (&authority[..colon], path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_url_names_a_unix_socket() {
        let server = UrlOrigin::of_socket("/run/app.sock");
        assert_eq!((server.socket_path(), server.shown().as_str()), (Some("/run/app.sock"), "unix:/run/app.sock"));
        assert_eq!((server.named().authority().as_str(), server.named().socket_path()), ("localhost", None));
        for url in ["http://unix:/run/app.sock", "http://unix:80/run", "http://unix/run", "http://unix:%2Frun/"] {
            let found = url.parse::<Uri>().ok().and_then(|uri| UrlOrigin::of(&uri));
            assert!(found.is_none_or(|origin| origin.socket_path().is_none()), "{url}");
        }
    }

    #[test]
    fn key_normalises_host_not_path() {
        let table: &[(&str, Option<&str>)] = &[
            ("http://Example.COM/Path?Q=1", Some("http://example.com/Path?Q=1")),
            ("http://a:80/", Some("http://a/")),
            ("http://a:/", Some("http://a/")),
            ("http://a:080/", Some("http://a/")),
            ("https://a:443/", Some("https://a/")),
            ("https://a:80/", Some("https://a:80/")),
            ("http://a:8080/x", Some("http://a:8080/x")),
            ("HTTP://a/x", Some("http://a/x")),
            ("http://a", Some("http://a/")),
            ("http://a?x", Some("http://a/?x")),
            ("http://a/b/../c//d/%7e?", Some("http://a/b/../c//d/%7e?")),
            ("http://a/b#fragment", Some("http://a/b")),
            ("http://[::1]:8080/x", Some("http://[::1]:8080/x")),
            ("http://[2001:DB8::1]/x", Some("http://[2001:db8::1]/x")),
            ("http://user@a/x", None),
            ("http://a:0/x", None),
            ("http://a:99999/x", None),
            ("ftp://a/x", None),
            ("/x", None),
        ];
        for (text, expected) in table {
            let Ok(uri) = text.parse::<Uri>() else {
                assert_eq!(None, *expected, "{text} does not parse");
                continue;
            };
            let mut key = Vec::new();
            let found = push_key(&mut key, &uri).then(|| String::from_utf8(key).expect("text"));
            assert_eq!(found.as_deref(), *expected, "{text}");
            let origin = UrlOrigin::of(&uri);
            assert_eq!(origin.is_some(), expected.is_some(), "{text}");
            if let (Some(origin), Some(expected)) = (origin, expected) {
                let mut same = Vec::new();
                origin.push(&mut same);
                push_path(&mut same, &uri);
                assert_eq!(same, expected.as_bytes());
            }
        }
    }

    #[test]
    fn key_yields_host_and_path() {
        let table = [
            ("http://a/", "a", "/"),
            ("http://a:8080/x?y", "a", "/x?y"),
            ("https://[::1]:8080/x", "[::1]", "/x"),
            ("nonsense", "", ""),
        ];
        for (key, host, path) in table {
            assert_eq!(host_and_path(key.as_bytes()), (host.as_bytes(), path.as_bytes()), "{key}");
        }
    }

    #[test]
    fn decimals_are_written() {
        for value in [0, 9, 10, 65535, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
