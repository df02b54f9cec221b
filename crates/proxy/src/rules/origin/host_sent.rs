//! The `Host` that an origin gets, which is also the authority in the keys of its URLs.
//!
//! Owns: the choice of that host. An origin may answer by it, so a host that clients choose must be in the key.

use std::fmt;
use std::str::FromStr;

use super::super::host::is_host;
use super::super::key::push_decimal;

/// The `Host` that the origin of a reverse proxy gets; by default the origin's own authority.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OriginHost(pub(crate) HostChoice);

/// The possible choices of the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum HostChoice {
    /// The origin's own authority.
    #[default]
    Own,
    /// Always this host, which [`push_host`] accepts.
    Fixed(String),
    /// The one that the client names. Each host has its own keys.
    Client,
}

/// Writes the choice as it is read.
impl fmt::Display for OriginHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            HostChoice::Own => "origin",
            HostChoice::Fixed(host) => host,
            HostChoice::Client => "client",
        })
    }
}

impl FromStr for OriginHost {
    type Err = String;

    fn from_str(text: &str) -> Result<OriginHost, String> {
        match text {
            "origin" => Ok(OriginHost(HostChoice::Own)),
            "client" => Ok(OriginHost(HostChoice::Client)),
            host if push_host(&mut Vec::new(), host.as_bytes(), false) => {
                Ok(OriginHost(HostChoice::Fixed(host.to_owned())))
            }
            _ => Err(format!("`{text}` is no host: write `origin`, `client`, or one as `example.org:8080`")),
        }
    }
}

/// Appends the form of a host in keys: in lower case, without the scheme's default port. If the value is not a host, or
/// has a bad port, appends nothing and returns false. *Cost*: no allocation beyond `out`.
pub fn push_host(out: &mut Vec<u8>, value: &[u8], https: bool) -> bool {
    if !is_host(value) {
        return false;
    }
    let bracket = memchr::memchr(b']', value).unwrap_or(0);
    let end = memchr::memchr(b':', &value[bracket..]).map_or(value.len(), |at| bracket + at);
    let default_port = if https { 443 } else { 80 };
    let port = match value.get(end + 1..).unwrap_or_default() {
        b"" => default_port,
        digits => match std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u16>().ok()) {
            Some(port) if port != 0 => port,
            _ => return false,
        },
    };
    let start = out.len();
    out.extend_from_slice(&value[..end]);
    out[start..].make_ascii_lowercase();
    if port != default_port {
        out.push(b':');
        push_decimal(out, u64::from(port));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_has_one_form() {
        let table = [
            ("Example.org", false, Some("example.org")),
            ("a:80", false, Some("a")),
            ("a:", false, Some("a")),
            ("a:0080", false, Some("a")),
            ("a:443", false, Some("a:443")),
            ("a:443", true, Some("a")),
            ("[2001:DB8::1]:8080", false, Some("[2001:db8::1]:8080")),
            ("[::1]", true, Some("[::1]")),
            ("a:0", false, None),
            ("a:99999", false, None),
            ("a/b", false, None),
            ("", false, None),
        ];
        for (value, https, expected) in table {
            let mut out = Vec::new();
            let found = push_host(&mut out, value.as_bytes(), https);
            assert_eq!((found, &out[..]), (expected.is_some(), expected.unwrap_or("").as_bytes()), "{value}");
        }
    }

    #[test]
    fn host_option_names_choice_or_host() {
        let read = |text: &str| text.parse::<OriginHost>().map(|host| host.0);
        assert_eq!(read("origin"), Ok(HostChoice::Own));
        assert_eq!(read("client"), Ok(HostChoice::Client));
        assert_eq!(read("a:81"), Ok(HostChoice::Fixed("a:81".to_owned())));
        for wrong in ["", "http://a", "a/b", "a b", "a:99999"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
