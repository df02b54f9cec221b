//! The URL of an export, as the NBD URI document defines it: `nbd://host[:port]/export` or
//! `nbd+unix:///export?socket=PATH`. With TLS, the scheme is `nbds` or `nbds+unix`.
//!
//! Owns: parsing and formatting. The parameters are `socket`, `tls-hostname`, `tls-certificates` (a directory with
//! `ca-cert.pem`, `client-cert.pem` and `client-key.pem`), `x-connections`, `x-request-time` and `patience`. A URL with an
//! unknown parameter is refused.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use nectary_block::{DeviceSpec, SpecForm, parse_duration};

use crate::error::{Error, NbdErrorKind};
use crate::limits::{CLIENT_CONNECTIONS_MAX, PATIENCE_MAX};
use crate::wire::bytes::text;

/// The default port.
pub const DEFAULT_PORT: u16 = 10809;

/// The longest URL that is read, in bytes.
pub const URL_BYTES_MAX: usize = 16 << 10;

/// The address at which a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportAddress {
    /// A host name or an IP address without brackets, and a port.
    Tcp(String, u16),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A URL that names an export.
///
/// # Examples
/// ```
/// use nectary_nbd::{ExportAddress, ExportUrl};
/// let url = ExportUrl::parse("nbd+unix:///disk%201?socket=/run/nbd.sock").unwrap();
/// assert_eq!((url.export.as_str(), &url.address), ("disk 1", &ExportAddress::Unix("/run/nbd.sock".into())));
/// assert_eq!(ExportUrl::parse(&url.to_string()).unwrap(), url);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportUrl {
    /// Whether the connection must be encrypted.
    pub tls: bool,
    /// The address at which the server listens.
    pub address: ExportAddress,
    /// The name of the export; empty for the server's default export.
    pub export: String,
    /// The name in the server's certificate, if it differs from the host.
    pub tls_hostname: Option<String>,
    /// A directory with `ca-cert.pem` and, for servers that require a client's certificate, `client-cert.pem` and
    /// `client-key.pem`.
    pub tls_certificates: Option<PathBuf>,
    /// The maximum number of connections of one device.
    pub connections: Option<u32>,
    /// The time after which a request without an answer makes its connection fail.
    pub request_time: Option<Duration>,
    /// The time for which requests wait for a server that is away.
    pub patience: Option<Duration>,
}

impl ExportUrl {
    /// Reads a URL.
    ///
    /// *Errors*: [`NbdErrorKind::Invalid`]; the message states the expected form.
    pub fn parse(url: &str) -> Result<ExportUrl, Error> {
        let shown: String = url.chars().take(200).collect();
        let invalid = |message: &str| Error::new(NbdErrorKind::Invalid, shown.clone(), message);
        if url.len() > URL_BYTES_MAX {
            return Err(invalid("the URL is longer than 16 KiB"));
        }
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let (tls, is_unix) = match scheme {
            "nbd" => (false, false),
            "nbds" => (true, false),
            "nbd+unix" => (false, true),
            "nbds+unix" => (true, true),
            _ => return Err(invalid("expected nbd://, nbds://, nbd+unix:// or nbds+unix://")),
        };
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("\"//\" is missing after the scheme"))?;
        if rest.contains('#') {
            return Err(invalid("a \"#\" in a name is written %23"));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = path.split_once('/').unwrap_or((path, ""));
        let decode = |part: &str| decode(part).ok_or_else(|| invalid("a name is not UTF-8, or a % is not %XX"));
        let export = decode(export)?;
        if text(export.as_bytes()).is_err() {
            return Err(invalid("the export's name is longer than 4096 bytes or has a NUL in it"));
        }
        let unix = ExportAddress::Unix(PathBuf::new());
        let address = if is_unix { unix } else { tcp(authority).map_err(|message| invalid(&message))? };
        if is_unix && !authority.is_empty() {
            return Err(invalid("a Unix socket has no host: three slashes, as nbd+unix:///export?socket=PATH"));
        }
        let mut parsed = ExportUrl {
            tls,
            address,
            export,
            tls_hostname: None,
            tls_certificates: None,
            connections: None,
            request_time: None,
            patience: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode(value)?;
            parsed.parameter(key, value).map_err(|message| invalid(&message))?;
        }
        match &parsed.address {
            ExportAddress::Unix(path) if path.as_os_str().is_empty() => Err(invalid("?socket=PATH is missing")),
            _ => Ok(parsed),
        }
    }

    fn parameter(&mut self, key: &str, value: String) -> Result<(), String> {
        match (key, &mut self.address) {
            ("socket", ExportAddress::Unix(path)) if value.contains('\0') => {
                *path = PathBuf::new();
                return Err("sockets in the abstract namespace are not supported".to_owned());
            }
            ("socket", ExportAddress::Unix(path)) => *path = PathBuf::from(value),
            ("tls-hostname", _) => self.tls_hostname = Some(value),
            ("tls-certificates", _) => self.tls_certificates = Some(PathBuf::from(value)),
            ("tls-type", _) if value == "x509" => {}
            ("tls-type", _) => return Err(format!("tls-type={value} is not supported, x509 is")),
            ("tls-verify-peer", _) if value == "1" => {}
            ("tls-verify-peer", _) => return Err("certificates are always verified".to_owned()),
            ("x-connections", _) => {
                let count = value.parse().ok().filter(|count| (1..=CLIENT_CONNECTIONS_MAX).contains(count));
                let Some(count) = count else {
                    return Err(format!("x-connections is a number from 1 to {CLIENT_CONNECTIONS_MAX}"));
                };
                self.connections = Some(count);
            }
            ("x-request-time", _) => {
                let time = parse_duration(&value)?;
                if time.is_zero() {
                    return Err("x-request-time is longer than nothing, as 30s".to_owned());
                }
                self.request_time = Some(time);
            }
            ("patience", _) => {
                let time = parse_duration(&value)?;
                if time > PATIENCE_MAX {
                    return Err("patience is 0s to 24h".to_owned());
                }
                self.patience = Some(time);
            }
            _ => {
                return Err(format!(
                    "no parameter \"{key}\"; known are socket (with +unix), tls-hostname, tls-certificates, \
                     x-connections, x-request-time, patience"
                ));
            }
        }
        Ok(())
    }

    /// The SPEC for this URL, which is the URL itself, in quotes if necessary.
    pub fn spec(&self) -> String {
        DeviceSpec { position: 0, form: SpecForm::Text(self.to_string()) }.to_string()
    }

    /// The name that the server's certificate must have, if TLS is used.
    pub fn server_name(&self) -> String {
        match (&self.tls_hostname, &self.address) {
            (Some(name), _) => name.clone(),
            (None, ExportAddress::Tcp(host, _)) => host.clone(),
            (None, ExportAddress::Unix(_)) => "localhost".to_owned(),
        }
    }
}

impl fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            ExportAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            ExportAddress::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for ExportUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "nbds" } else { "nbd" };
        let mut parameters = Vec::new();
        match &self.address {
            ExportAddress::Tcp(_, DEFAULT_PORT) => {
                let address = self.address.to_string();
                let host = address.strip_suffix(":10809").unwrap_or(&address);
                write!(f, "{scheme}://{host}/{}", encode(&self.export))?;
            }
            ExportAddress::Tcp(..) => write!(f, "{scheme}://{}/{}", self.address, encode(&self.export))?,
            ExportAddress::Unix(path) => {
                write!(f, "{scheme}+unix:///{}", encode(&self.export))?;
                parameters.push(format!("socket={}", encode(&path.to_string_lossy())));
            }
        }
        parameters.extend(self.tls_hostname.iter().map(|name| format!("tls-hostname={}", encode(name))));
        let certificates = self.tls_certificates.iter();
        parameters.extend(certificates.map(|path| format!("tls-certificates={}", encode(&path.to_string_lossy()))));
        parameters.extend(self.connections.iter().map(|count| format!("x-connections={count}")));
        parameters.extend(self.request_time.iter().map(|time| format!("x-request-time={}us", time.as_micros())));
        parameters.extend(self.patience.iter().map(|time| format!("patience={}us", time.as_micros())));
        let mut mark = '?';
        for parameter in parameters {
            write!(f, "{mark}{parameter}")?;
            mark = '&';
        }
        Ok(())
    }
}

/// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
fn tcp(authority: &str) -> Result<ExportAddress, String> {
    if authority.contains('@') {
        return Err("a user name in the URL is not supported".to_owned());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("the \"]\" of the address is missing")?;
            host.parse::<std::net::Ipv6Addr>().map_err(|_| format!("\"{host}\" is no IPv6 address"))?;
            match rest.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None if rest.is_empty() => (host, None),
                None => return Err("expected a port after the address".to_owned()),
            }
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    if host.is_empty() || !host.chars().all(is_name) {
        return Err("a host is missing, as nbd://host/export".to_owned());
    }
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => port.parse().map_err(|_| format!("\"{port}\" is no port"))?,
    };
    Ok(ExportAddress::Tcp(host.to_owned(), port))
}

fn decode(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let (high, low) = (digit()?, digit()?);
        out.push((high * 16 + low) as u8);
    }
    String::from_utf8(out).ok()
}

fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_the_document_are_read() {
        for (url, export) in [
            ("nbd://example.com/disk", "disk"),
            ("nbd+unix:///disk?socket=sock", "disk"),
            ("nbd://example.com/", ""),
            ("nbd://example.com", ""),
            ("nbd://example.com//disk", "/disk"),
            ("nbd://example.com/hello%20world", "hello world"),
            ("nbds://[::1]:10810/a", "a"),
        ] {
            let parsed = ExportUrl::parse(url).unwrap();
            assert_eq!(parsed.export, export, "{url}");
            assert_eq!(ExportUrl::parse(&parsed.to_string()).unwrap(), parsed, "{url}");
            let spec = DeviceSpec::parse(&parsed.spec()).unwrap();
            assert_eq!(spec.to_string(), parsed.spec());
        }
        let url =
            ExportUrl::parse("nbds://h:1/a?tls-hostname=b&x-connections=2&x-request-time=5s&patience=2m").unwrap();
        let times = (url.request_time, url.patience);
        assert_eq!((url.connections, times), (Some(2), (Some(Duration::from_secs(5)), Some(Duration::from_secs(120)))));
        assert_eq!(
            (url.server_name().as_str(), url.tls, &url.address),
            ("b", true, &ExportAddress::Tcp("h".to_owned(), 1))
        );
        assert_eq!(ExportUrl::parse(&url.to_string()).unwrap(), url);
    }

    /// The error says what is wrong with the URL.
    #[test]
    fn invalid_url_is_refused() {
        for (url, words) in [
            ("http://h/", "expected nbd://"),
            ("nbd:h", "\"//\" is missing"),
            ("nbd:///a", "host is missing"),
            ("nbd://h:x/", "no port"),
            ("nbd://[::1/", "\"]\""),
            ("nbd://h/%zz", "not %XX"),
            ("nbd://h/%00", "NUL"),
            ("nbd+unix:///a", "socket=PATH"),
            ("nbd+unix://h/a?socket=b", "three slashes"),
            ("nbd://h/?socket=a", "no parameter \"socket\""),
            ("nbd://h/?x-connections=17", "1 to 16"),
            ("nbd://h/?tls-verify-peer=0", "always verified"),
            ("nbd://a@h/", "user name"),
            ("nbd://h/?patience=25h", "0s to 24h"),
        ] {
            let error = ExportUrl::parse(url).unwrap_err();
            assert!(error.kind == NbdErrorKind::Invalid && error.message.contains(words), "{url}: {error}");
        }
    }
}
