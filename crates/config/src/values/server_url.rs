//! The URL of an origin's server.
//!
//! Owns: its parts and its form.

use std::fmt;

/// The URL of a server: scheme, host and port, without a path; or `unix:` and the path of a socket.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerUrl {
    /// How the server is spoken to.
    pub scheme: ServerScheme,
    /// A name in lower case, or an IP address; one of IPv6 without brackets. The path of a Unix socket, absolute.
    pub host: String,
    /// The port, not 0; that of the scheme if the URL names none. 0 for a Unix socket.
    pub port: u16,
}

/// How a server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ServerScheme {
    /// `http://`: without TLS; port 80.
    Http,
    /// `https://`: with TLS; port 443.
    Https,
    /// `unix:`: without TLS, at a Unix socket.
    Unix,
}

impl ServerScheme {
    /// The scheme as it is written.
    pub fn name(self) -> &'static str {
        match self {
            ServerScheme::Http => "http",
            ServerScheme::Https => "https",
            ServerScheme::Unix => "unix",
        }
    }

    /// The port of a URL that names none; 0 if there are no ports.
    pub fn default_port(self) -> u16 {
        match self {
            ServerScheme::Http => 80,
            ServerScheme::Https => 443,
            ServerScheme::Unix => 0,
        }
    }
}

/// Writes the URL, without the port if it is that of the scheme.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = &self.host;
        let scheme = self.scheme.name();
        if self.scheme == ServerScheme::Unix {
            return write!(f, "{scheme}:{host}");
        }
        if host.contains(':') { write!(f, "{scheme}://[{host}]") } else { write!(f, "{scheme}://{host}") }?;
        if self.port == self.scheme.default_port() { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}
