//! A connection to an origin with two users: hyper reads and writes, and the pool of idle connections checks whether
//! bytes have arrived.
//!
//! Owns: that check, which queries the kernel. Bytes that an origin sends before a request are not the answer to the
//! request, but the async runtime may not have noticed them yet when the request is about to be sent.

use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection of TCP, or to a Unix socket.
#[derive(Debug)]
pub(super) enum OriginStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl From<TcpStream> for OriginStream {
    fn from(stream: TcpStream) -> OriginStream {
        OriginStream::Tcp(stream)
    }
}

impl AsFd for OriginStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            OriginStream::Tcp(stream) => stream.as_fd(),
            OriginStream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl OriginStream {
    fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            OriginStream::Tcp(stream) => stream.poll_read_ready(context),
            OriginStream::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            OriginStream::Tcp(stream) => stream.poll_write_ready(context),
            OriginStream::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    fn try_read_buf(&self, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
        match self {
            OriginStream::Tcp(stream) => stream.try_read_buf(buffer),
            OriginStream::Unix(stream) => stream.try_read_buf(buffer),
        }
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            OriginStream::Tcp(stream) => stream.try_write(bytes),
            OriginStream::Unix(stream) => stream.try_write(bytes),
        }
    }

    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        match self {
            OriginStream::Tcp(stream) => stream.try_write_vectored(slices),
            OriginStream::Unix(stream) => stream.try_write_vectored(slices),
        }
    }
}

/// A connection that its two users share on one thread.
#[derive(Debug, Clone)]
pub(super) struct SharedSocket(Rc<OriginStream>);

impl SharedSocket {
    pub fn new(stream: impl Into<OriginStream>) -> SharedSocket {
        SharedSocket(Rc::new(stream.into()))
    }

    /// Whether nothing waits to be read, neither bytes nor the end of the stream. *Cost*: one system call.
    pub fn is_quiet(&self) -> bool {
        let peeked = SockRef::from(&*self.0).peek(&mut [MaybeUninit::uninit()]);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Closes the connection, whoever else has the socket.
    pub fn close(&self) {
        // One that has ended already needs no end.
        _ = SockRef::from(&*self.0).shutdown(Shutdown::Both);
    }
}

impl AsyncRead for SharedSocket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(context))?;
            match self.0.try_read_buf(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result.map(drop)),
            }
        }
    }
}

impl AsyncWrite for SharedSocket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(context))?;
            match self.0.try_write_vectored(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(match SockRef::from(&*self.0).shutdown(Shutdown::Write) {
            // The connection has already ended.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            result => result,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Bytes that have arrived are seen although the runtime has not noticed them.
    #[tokio::test]
    async fn socket_sees_bytes_before_runtime() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("a connection");
        let (mut far, _) = listener.accept().expect("a connection");
        let mut socket = SharedSocket::new(stream);
        assert!(socket.is_quiet());
        // On loopback, written bytes arrive at once. The test awaits nothing, so the runtime does not notice that they
        // arrived.
        io::Write::write_all(&mut far, b"early").expect("room");
        assert!(!socket.is_quiet());
        let mut read = [0; 5];
        socket.read_exact(&mut read).await.expect("five bytes");
        assert!(&read == b"early" && socket.is_quiet());
        socket.write_all(b"request").await.expect("room");
        socket.shutdown().await.expect("its own side");
        let mut request = String::new();
        io::Read::read_to_string(&mut far, &mut request).expect("to its end");
        assert_eq!(request, "request");
        drop(far);
        assert!(!socket.is_quiet(), "the end is something, too");
    }
}
