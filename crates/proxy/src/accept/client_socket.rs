//! The socket of a client's connection: TCP, or a Unix socket.
//!
//! Owns: that both are read, written and looked at in the same way. Leaves to others: TLS on it (`ClientStream`).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};

/// The socket of a client's connection.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ClientSocket {
    /// Whether the other end is on this machine and has no address.
    pub fn is_unix(&self) -> bool {
        matches!(self, ClientSocket::Unix(_))
    }

    /// Sends what is written at once, where that is a question.
    pub fn set_nodelay(&self) {
        if let ClientSocket::Tcp(stream) = self {
            _ = stream.set_nodelay(true);
        }
    }

    /// Waits until bytes are there, or the end.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            ClientSocket::Tcp(stream) => stream.readable().await,
            ClientSocket::Unix(stream) => stream.readable().await,
        }
    }

    /// Waits until bytes are there, or the end, and says which.
    pub async fn read_readiness(&self) -> io::Result<Ready> {
        match self {
            ClientSocket::Tcp(stream) => stream.ready(Interest::READABLE).await,
            ClientSocket::Unix(stream) => stream.ready(Interest::READABLE).await,
        }
    }

    /// Takes note that only further bytes make the socket readable.
    pub fn await_further_bytes(&self) {
        let nothing = || Err::<(), _>(io::Error::from(io::ErrorKind::WouldBlock));
        _ = match self {
            ClientSocket::Tcp(stream) => stream.try_io(Interest::READABLE, nothing),
            ClientSocket::Unix(stream) => stream.try_io(Interest::READABLE, nothing),
        };
    }

    /// Waits for bytes and copies them; they stay where they are. *Returns*: their number; 0 at the end.
    pub async fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Tcp(stream) => stream.peek(buffer).await,
            ClientSocket::Unix(stream) => {
                stream.async_io(Interest::READABLE, || nectary_host::peek(stream, buffer)).await
            }
        }
    }

    /// Writes what there is room for now.
    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Tcp(stream) => stream.try_write(bytes),
            ClientSocket::Unix(stream) => stream.try_write(bytes),
        }
    }
}

impl AsFd for ClientSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ClientSocket::Tcp(stream) => stream.as_fd(),
            ClientSocket::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for ClientSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ClientSocket::Tcp(stream) => stream.is_write_vectored(),
            ClientSocket::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_flush(context),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The address of a client as the logs show it; `None` for one of a Unix socket, which has none.
pub(crate) struct ShownAddress(pub Option<IpAddr>);

impl fmt::Display for ShownAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(address) => write!(f, "{address}"),
            None => f.write_str("unix:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn unix_bytes_are_seen_before_taken() {
        let (mut far, near) = UnixStream::pair().expect("two ends");
        let mut near = ClientSocket::Unix(near);
        let mut seen = [0; 8];
        let (count, written) = tokio::join!(near.peek(&mut seen), async {
            tokio::task::yield_now().await;
            far.write_all(b"one").await
        });
        written.expect("room");
        assert_eq!((count.expect("bytes"), &seen[..3]), (3, &b"one"[..]));
        assert_eq!(near.peek(&mut seen[..1]).await.expect("the same bytes"), 1);
        near.read_exact(&mut seen[..3]).await.expect("bytes");
        drop(far);
        assert_eq!(near.peek(&mut seen).await.expect("the end"), 0);
    }
}
