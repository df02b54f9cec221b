//! Where clients connect, and TLS with them.
//!
//! Owns: the values of `[[listener]]` and `[tls]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::acme_config::AcmeConfig;
use super::network::IpNetwork;
use crate::place::{LocatedValue, Setting};

/// `[[listener]]`: one address for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    /// `address`: `127.0.0.1:8080`, `[::1]:8080`, `:80` for every address, or `unix:/run/nectary/http.sock`. Required.
    pub address: LocatedValue<ListenAddress>,
    /// `tls`: whether clients use TLS here, with the certificates of `[tls]`, of which there is then at least one.
    /// Default: false.
    pub tls: Setting<bool>,
    /// `redirect-to-https`: whether clients are sent to the same URL with TLS. Never set where [`tls`](Self::tls) is.
    /// Default: false.
    pub redirect_to_https: Setting<bool>,
    /// `proxy-protocol-from`: the peers that begin each connection with the PROXY protocol, version 1 or 2, whose client
    /// address then counts. At a Unix socket these are all or none. Default: none.
    pub proxy_protocol_from: Vec<LocatedValue<HeaderSender>>,
    /// `socket-mode`: the permissions of the file of a Unix socket. Without effect at another address. Default: 0666.
    pub socket_mode: Setting<SocketMode>,
}

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An IP address and a port; port 0 picks a free one.
    Socket(SocketAddr),
    /// The path of a Unix socket, absolute.
    Unix(PathBuf),
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Socket(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenAddress {
    /// Whether it is the path of a Unix socket.
    pub fn is_unix(&self) -> bool {
        matches!(self, ListenAddress::Unix(_))
    }

    /// Whether the port is picked at the start.
    pub fn is_any_port(&self) -> bool {
        matches!(self, ListenAddress::Socket(address) if address.port() == 0)
    }
}

/// Who begins each connection with the PROXY protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeaderSender {
    /// Peers with an address of this network.
    Network(IpNetwork),
    /// `"unix"`: all peers of a Unix socket.
    Unix,
}

impl From<IpNetwork> for HeaderSender {
    fn from(network: IpNetwork) -> HeaderSender {
        HeaderSender::Network(network)
    }
}

impl fmt::Display for HeaderSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderSender::Network(network) => write!(f, "{network}"),
            HeaderSender::Unix => f.write_str("unix"),
        }
    }
}

/// The permissions of a file, as `chmod` takes them: `0660`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketMode(pub u16);

impl SocketMode {
    /// The largest mode: everybody may do everything.
    pub const MAX: u16 = 0o777;
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// `[tls]`: TLS with clients, at every listener with `tls = true`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsConfig {
    /// `[[tls.certificate]]`: the certificates. The one for the name that a client asks for counts.
    pub certificates: Vec<LocatedValue<CertificateConfig>>,
    /// `[tls.acme]`: how other names get certificates. Default: not at all.
    pub acme: Setting<AcmeConfig>,
    /// `unknown-name`: what a client gets that asks for a name without a certificate. Default: the first certificate.
    pub unknown_name: Setting<UnknownName>,
    /// `version-min`: the lowest version of TLS. Default: 1.2.
    pub version_min: Setting<TlsVersion>,
    /// `client-ca`: a PEM file; a client must then have a certificate that is signed by one of these. Default: none, so
    /// clients are not asked for certificates.
    pub client_ca: Setting<PathBuf>,
}

/// `[[tls.certificate]]`: a certificate and its key. The files are not read here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateConfig {
    /// `cert`: a PEM file with the certificate and its chain. Required.
    pub cert: LocatedValue<PathBuf>,
    /// `key`: a PEM file with the private key. Required.
    pub key: LocatedValue<PathBuf>,
}

/// What a client gets that asks for a name without a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownName {
    /// `"first"`: the first certificate of the file.
    First,
    /// `"refuse"`: the handshake fails.
    Refuse,
}

/// A version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// `"1.2"`.
    Tls12,
    /// `"1.3"`.
    Tls13,
}
