//! The addresses of a server: TCP addresses and Unix sockets.
//!
//! Owns: the form `tcp:ADDR` or `unix:PATH`, the socket file, and the check whether other machines can reach an
//! address. The socket file has mode 0600, replaces a stale socket file, and is removed at the end. Promises: the
//! socket of a live process is never replaced.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::error::{Error, NbdErrorKind};
use crate::transport::{Transport, prepare};
use crate::url::{DEFAULT_PORT, ExportAddress, ExportUrl};

/// The maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 128;

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenEndpoint {
    /// A TCP address, for example `tcp:127.0.0.1:10809` or `tcp:[::1]:0`.
    Tcp(SocketAddr),
    /// The path of a Unix socket, for example `unix:/run/nbd.sock`.
    Unix(PathBuf),
}

impl FromStr for ListenEndpoint {
    type Err = String;
    fn from_str(text: &str) -> Result<ListenEndpoint, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(ListenEndpoint::Unix(PathBuf::from(path))),
            Some(("tcp", address)) => {
                let address = match address.parse::<std::net::IpAddr>() {
                    Ok(ip) => Ok(SocketAddr::new(ip, DEFAULT_PORT)),
                    Err(_) => address.replacen("localhost:", "127.0.0.1:", 1).parse(),
                };
                address.map(ListenEndpoint::Tcp).map_err(|_| format!("expected tcp:IP:PORT, found \"{text}\""))
            }
            _ => Err(format!("expected unix:PATH or tcp:IP:PORT, found \"{text}\"")),
        }
    }
}

impl std::fmt::Display for ListenEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ListenEndpoint::Tcp(address) => write!(f, "tcp:{address}"),
            ListenEndpoint::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ListenEndpoint {
    /// Refuses an address that other machines can reach.
    pub(super) fn check_private(&self) -> Result<(), Error> {
        match self {
            ListenEndpoint::Tcp(address) if !address.ip().is_loopback() => Err(Error::new(
                NbdErrorKind::Invalid,
                self.to_string(),
                "whoever reaches this address could read and write the export: use TLS with certificates of clients \
                 (`nectary cert` makes them), or say that the network is trusted (--insecure)",
            )),
            _ => Ok(()),
        }
    }

    /// The URL of an export at this address.
    pub fn url(&self, export: &str, tls: bool) -> ExportUrl {
        let address = match self {
            ListenEndpoint::Tcp(address) => ExportAddress::Tcp(address.ip().to_string(), address.port()),
            ListenEndpoint::Unix(path) => ExportAddress::Unix(path.clone()),
        };
        ExportUrl {
            tls,
            address,
            export: export.to_owned(),
            tls_hostname: None,
            tls_certificates: None,
            connections: None,
            request_time: None,
            patience: None,
        }
    }
}

enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A listening socket and its address.
pub(super) struct EndpointListener {
    address: ListenEndpoint,
    socket: ListenSocket,
}

impl EndpointListener {
    pub fn bind(listen: &ListenEndpoint) -> Result<EndpointListener, Error> {
        let failed = |error: io::Error| Error::from_io(&error, &listen.to_string(), "cannot listen");
        match listen {
            ListenEndpoint::Tcp(address) => {
                let socket = bind_tcp(*address).and_then(TcpListener::from_std).map_err(failed)?;
                let address = socket.local_addr().map_err(failed)?;
                Ok(EndpointListener { address: ListenEndpoint::Tcp(address), socket: ListenSocket::Tcp(socket) })
            }
            ListenEndpoint::Unix(path) => {
                remove_stale(path).map_err(failed)?;
                let socket = bind_unix(path).map_err(failed)?;
                // The path must be absolute, because programs with another working directory use the URL.
                let address = ListenEndpoint::Unix(std::path::absolute(path).map_err(failed)?);
                Ok(EndpointListener { address, socket: ListenSocket::Unix(socket) })
            }
        }
    }

    pub fn address(&self) -> &ListenEndpoint {
        &self.address
    }

    /// Waits for the next client; returns the client, and its name for messages.
    pub async fn accept(&self) -> io::Result<(AcceptedClient, String)> {
        match &self.socket {
            ListenSocket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                prepare(&stream);
                // An IPv4 client of a socket for both families.
                let name = SocketAddr::new(peer.ip().to_canonical(), peer.port()).to_string();
                Ok((AcceptedClient::Tcp(stream), name))
            }
            ListenSocket::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                let process = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
                let name = process.map_or("a local client".to_owned(), |pid| format!("process {pid}"));
                Ok((AcceptedClient::Unix(stream), name))
            }
        }
    }
}

/// An accepted client whose stream belongs to the listener's runtime.
pub(super) enum AcceptedClient {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AcceptedClient {
    /// The client's stream, in the same runtime.
    pub fn stay(self) -> Transport {
        match self {
            AcceptedClient::Tcp(stream) => Box::new(stream),
            AcceptedClient::Unix(stream) => Box::new(stream),
        }
    }

    /// Detaches the client from this runtime, so that it can be moved to another one.
    pub fn leave(self) -> io::Result<DetachedClient> {
        Ok(match self {
            AcceptedClient::Tcp(stream) => DetachedClient::Tcp(stream.into_std()?),
            AcceptedClient::Unix(stream) => DetachedClient::Unix(stream.into_std()?),
        })
    }
}

/// A client whose stream belongs to no runtime.
pub(super) enum DetachedClient {
    Tcp(std::net::TcpStream),
    Unix(BlockingStream),
}

impl DetachedClient {
    /// The client's stream, in the runtime of the caller.
    pub fn arrive(self) -> io::Result<Transport> {
        Ok(match self {
            DetachedClient::Tcp(stream) => Box::new(TcpStream::from_std(stream)?),
            DetachedClient::Unix(stream) => Box::new(UnixStream::from_std(stream)?),
        })
    }
}

impl Drop for EndpointListener {
    fn drop(&mut self) {
        if let ListenEndpoint::Unix(path) = &self.address {
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `[::]` means every address, including those of IPv4.
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Removes a socket file if no process listens on it. Fails if a process listens, or if the file is not a socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file of this name is there, and it is no socket"));
    }
    match BlockingStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
    }
}

/// Binds the socket, sets the file's mode, and only then listens. The kernel refuses connections before the socket
/// listens.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses to listen on are parsed, and those that other machines can reach are recognised.
    #[test]
    fn listen_addresses_are_parsed() {
        let listen = |text: &str| text.parse::<ListenEndpoint>();
        assert_eq!(listen("unix:/a").unwrap(), ListenEndpoint::Unix("/a".into()));
        assert_eq!(listen("tcp:127.0.0.1").unwrap().to_string(), "tcp:127.0.0.1:10809");
        assert_eq!(listen("tcp:localhost:1").unwrap().to_string(), "tcp:127.0.0.1:1");
        for text in ["", "unix:", "tcp:", "tcp:host:1", "127.0.0.1:1"] {
            assert!(listen(text).is_err(), "{text}");
        }
        for (text, is_private) in
            [("tcp:[::1]:1", true), ("unix:/a", true), ("tcp:0.0.0.0:1", false), ("tcp:192.0.2.1:1", false)]
        {
            assert_eq!(listen(text).unwrap().check_private().is_ok(), is_private, "{text}");
        }
    }
}
