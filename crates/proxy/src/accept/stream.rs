//! The stream of a client's connection, with or without TLS.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use rustls::ProtocolVersion;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;

use super::client_socket::ClientSocket;
use crate::acme::ACME_PROTOCOL;

/// The stream of a client's connection.
pub(crate) enum ClientStream {
    Plain(ClientSocket),
    Tls(Box<TlsStream<ClientSocket>>),
}

impl ClientStream {
    /// Whether an authority checks a name by this connection, and says nothing more on it.
    pub fn is_check(&self) -> bool {
        matches!(self, ClientStream::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(ACME_PROTOCOL))
    }

    /// The socket that carries the stream.
    pub fn socket(&self) -> &ClientSocket {
        match self {
            ClientStream::Plain(stream) => stream,
            ClientStream::Tls(stream) => stream.get_ref().0,
        }
    }

    /// The version of TLS, for example `1.3`; `None` without TLS.
    pub fn tls_version(&self) -> Option<&'static str> {
        let ClientStream::Tls(stream) = self else { return None };
        match stream.get_ref().1.protocol_version()? {
            ProtocolVersion::TLSv1_2 => Some("1.2"),
            ProtocolVersion::TLSv1_3 => Some("1.3"),
            _ => None,
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            ClientStream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ClientStream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            ClientStream::Plain(stream) => stream.is_write_vectored(),
            ClientStream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_flush(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            ClientStream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            ClientStream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
