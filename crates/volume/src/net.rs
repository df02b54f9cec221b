//! Streams of bytes between hosts: TCP or a Unix socket, with TLS if certificates are given.
//!
//! Owns: addresses, connecting, listening, and reading and writing whole frames with time limits. Promises: a frame is
//! never longer than its bound, whatever its header says; a Unix socket of a live process is never replaced. Leaves to
//! others: the content of frames.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use nectary_host::tls::{ClientTls, ServerTls, explain};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::time::timeout;

/// The time limit of connecting, and of the first message.
pub(crate) const HELLO_TIME_MAX: Duration = Duration::from_secs(10);
/// The time limit from the first byte of a frame to its last, and of a write.
const STALL_TIME_MAX: Duration = Duration::from_secs(30);
/// The longest time for which the other host may confirm no byte. A client must notice the loss of its server's host well
/// before a new server stops to wait for it.
const UNCONFIRMED_MAX: Duration = Duration::from_secs(3);
/// After this long without traffic, TCP checks whether the other side is alive.
const KEEPALIVE_TIME: Duration = Duration::from_secs(5);

/// A stream that can be read and written.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A stream of any kind.
pub(crate) type Stream = Box<dyn ByteStream>;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host, by name or address, and a port.
    Tcp(String, u16),
    /// A Unix socket on this machine.
    Unix(PathBuf),
}

impl FromStr for ServerAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerAddress, String> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(ServerAddress::Unix(PathBuf::from(path)));
        }
        let expected = || format!("expected HOST:PORT, [IPv6]:PORT or unix:PATH, found \"{text}\"");
        let plain = text.strip_prefix("tcp:").unwrap_or(text);
        let (host, port) = plain.rsplit_once(':').ok_or_else(expected)?;
        let port = port.parse().map_err(|_| expected())?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if plain.matches(':').count() > 1 && !plain.starts_with('[') {
            return Err(expected());
        }
        // An address without a host, `:PORT`, means all addresses of this machine.
        Ok(ServerAddress::Tcp(if host.is_empty() { "::" } else { host }.to_owned(), port))
    }
}

impl std::fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServerAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            ServerAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            ServerAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl ServerAddress {
    /// Whether other machines can reach the address.
    pub fn is_public(&self) -> bool {
        match self {
            ServerAddress::Tcp(host, _) => {
                host != "localhost" && !host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
            }
            ServerAddress::Unix(_) => false,
        }
    }
}

fn prepare(stream: &TcpStream) {
    // A failure is ignored: without these options the connection works, but is slower, or notices later that the other
    // side has ended.
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_TIME);
    let socket = SockRef::from(stream);
    let _ = socket.set_tcp_keepalive(&keepalive);
    // A host that is gone does not close its connections, and is not probed while sent bytes have no confirmation.
    let _ = socket.set_tcp_user_timeout(Some(UNCONFIRMED_MAX));
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what.to_owned())
}

/// Connects to a server. *Errors*: the network fails, or a certificate is not accepted.
pub(crate) async fn connect(address: &ServerAddress, tls: Option<&ClientTls>) -> io::Result<Stream> {
    #[cfg(feature = "planted")]
    if let (ServerAddress::Unix(path), true) = (address, crate::simulated::is_on()) {
        return Ok(Box::new(crate::simulated::connect(path)?));
    }
    let connecting = async {
        let stream: Stream = match address {
            ServerAddress::Tcp(host, port) => {
                let stream = nectary_host::connect::connect(host, *port).await?;
                prepare(&stream);
                Box::new(stream)
            }
            ServerAddress::Unix(path) => Box::new(UnixStream::connect(path).await?),
        };
        match (tls, address) {
            (Some(tls), ServerAddress::Tcp(host, _)) => Ok(Box::new(tls.connect(host, stream).await?) as Stream),
            (Some(tls), ServerAddress::Unix(_)) => Ok(Box::new(tls.connect("localhost", stream).await?) as Stream),
            (None, _) => Ok(stream),
        }
    };
    timeout(HELLO_TIME_MAX, connecting).await.unwrap_or_else(|_| Err(late("no connection within 10 s")))
}

/// A listening socket.
pub(crate) struct StreamListener {
    address: ServerAddress,
    socket: ListenerSocket,
}

enum ListenerSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
    #[cfg(feature = "planted")]
    Simulated(tokio::sync::Mutex<tokio::sync::mpsc::UnboundedReceiver<tokio::io::DuplexStream>>),
}

impl StreamListener {
    /// Listens on an address. *Errors*: those of the system; `AddrInUse` if another process listens on the address.
    pub async fn bind(address: &ServerAddress) -> io::Result<StreamListener> {
        match address {
            ServerAddress::Tcp(host, port) => {
                let socket = TcpListener::bind((host.as_str(), *port)).await?;
                let bound: SocketAddr = socket.local_addr()?;
                Ok(StreamListener {
                    address: ServerAddress::Tcp(bound.ip().to_string(), bound.port()),
                    socket: ListenerSocket::Tcp(socket),
                })
            }
            #[cfg(feature = "planted")]
            ServerAddress::Unix(path) if crate::simulated::is_on() => {
                let socket = ListenerSocket::Simulated(tokio::sync::Mutex::new(crate::simulated::listen(path)));
                Ok(StreamListener { address: address.clone(), socket })
            }
            ServerAddress::Unix(path) => {
                remove_stale(path)?;
                let socket = UnixListener::bind(path)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(StreamListener {
                    address: ServerAddress::Unix(std::path::absolute(path)?),
                    socket: ListenerSocket::Unix(socket),
                })
            }
        }
    }

    /// Returns the address that it listens on.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// Waits for the next client; returns its stream, and its name for messages. *Cancel safety*: a dropped call loses
    /// no client.
    pub async fn accept(&self) -> io::Result<(Stream, String)> {
        match &self.socket {
            ListenerSocket::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                prepare(&stream);
                Ok((Box::new(stream), peer.to_string()))
            }
            ListenerSocket::Unix(socket) => Ok((Box::new(socket.accept().await?.0), "a local client".to_owned())),
            #[cfg(feature = "planted")]
            ListenerSocket::Simulated(accepted) => match accepted.lock().await.recv().await {
                Some(stream) => Ok((Box::new(stream), "a simulated client".to_owned())),
                // Another listener has the path.
                None => std::future::pending().await,
            },
        }
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        if let ServerAddress::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Does the server's part of the TLS handshake, if TLS is used.
pub(crate) async fn secure(stream: Stream, tls: Option<&ServerTls>) -> io::Result<Stream> {
    match tls {
        None => Ok(stream),
        Some(tls) => {
            let accepted = timeout(HELLO_TIME_MAX, tls.accept(stream)).await;
            let accepted = accepted.unwrap_or_else(|_| Err(late("no TLS handshake within 10 s")));
            match accepted {
                Ok(stream) => Ok(Box::new(stream)),
                Err(error) => Err(explain(&error).map_or(error, io::Error::other)),
            }
        }
    }
}

/// Removes the Unix socket of a process that has ended.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there")),
            Err(_) => std::fs::remove_file(path),
        },
        Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and is no socket")),
        Err(_) => Ok(()),
    }
}

/// Reads one frame: a header, then as many bytes as `body_bytes` returns for that header. Returns `None` at the end of
/// the stream. *Errors*: those of the stream; `InvalidData` if `body_bytes` refuses the header; `TimedOut` if the frame
/// stalls.
pub(crate) async fn read_frame(
    stream: &mut (impl AsyncRead + Unpin),
    header_bytes: usize,
    body_bytes: impl FnOnce(&[u8]) -> Result<usize, String>,
) -> io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0; header_bytes];
    // There is no limit on the time before a frame, only on the time from its first byte to its last.
    let first = stream.read(&mut frame).await?;
    if first == 0 {
        return Ok(None);
    }
    let rest = async {
        stream.read_exact(&mut frame[first..]).await?;
        let length = body_bytes(&frame).map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))?;
        frame.resize(header_bytes + length, 0);
        stream.read_exact(&mut frame[header_bytes..]).await?;
        Ok::<(), io::Error>(())
    };
    timeout(STALL_TIME_MAX, rest).await.unwrap_or_else(|_| Err(late("a frame stalled for 30 s")))?;
    Ok(Some(frame))
}

/// Writes frames.
pub(crate) async fn write_frames(stream: &mut (impl AsyncWrite + Unpin), frames: &[u8]) -> io::Result<()> {
    let writing = async {
        stream.write_all(frames).await?;
        stream.flush().await
    };
    timeout(STALL_TIME_MAX, writing).await.unwrap_or_else(|_| Err(late("the other side took nothing for 30 s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address knows whether other hosts can reach it.
    #[test]
    fn server_addresses_parse() {
        for (text, shown, is_public) in [
            ("127.0.0.1:7000", "127.0.0.1:7000", false),
            ("localhost:7000", "localhost:7000", false),
            ("[::1]:7000", "[::1]:7000", false),
            (":7000", "[::]:7000", true),
            ("tcp:h1.example:7000", "h1.example:7000", true),
            ("unix:/run/a", "unix:/run/a", false),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_public()), (shown, is_public));
        }
        for wrong in ["", "h1", "unix:", "h1:x", "::1:80", "h1:70000"] {
            assert!(wrong.parse::<ServerAddress>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn frame_read_whole_or_refused() {
        let (mut near, mut far) = tokio::io::duplex(64);
        let body = |header: &[u8]| match usize::from(header[0]) {
            length @ 0..=8 => Ok(length),
            length => Err(format!("{length} is too long")),
        };
        near.write_all(&[2, 0, 7, 7, 9, 0]).await.unwrap();
        assert_eq!(read_frame(&mut far, 2, body).await.unwrap(), Some(vec![2, 0, 7, 7]));
        assert_eq!(read_frame(&mut far, 2, body).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert!(read_frame(&mut far, 2, body).await.unwrap().is_none());
    }
}
