//! The stream of bytes that a connection uses: TCP, a Unix socket, or TLS over either.
//!
//! Owns: the trait of streams, splitting a stream into a reading and a writing half, and the time limit if the other
//! side stalls in the middle of a message.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::task::Poll;
use std::time::Duration;

use nectary_host::tls::TlsStream;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::limits::STALL_TIME_MAX;

/// The maximum number of slices in one write call.
const SLICES_MAX: usize = 64;

/// The idle time after which TCP checks that the peer is alive.
const KEEPALIVE_TIME: Duration = Duration::from_secs(30);

/// The reading half of a stream.
pub(crate) type ReadHalf = Box<dyn AsyncRead + Send + Unpin>;
/// The writing half of a stream.
pub(crate) type WriteHalf = Box<dyn AsyncWrite + Send + Unpin>;

/// A stream in both directions that can be split.
pub trait SplittableStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Splits the stream into its halves.
    fn into_halves(self: Box<Self>) -> (Box<dyn AsyncRead + Send + Unpin>, Box<dyn AsyncWrite + Send + Unpin>);
}

/// A stream of any kind.
pub type Transport = Box<dyn SplittableStream>;

impl SplittableStream for TcpStream {
    fn into_halves(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (reader, writer) = self.into_split();
        (Box::new(reader), Box::new(writer))
    }
}

impl SplittableStream for UnixStream {
    fn into_halves(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (reader, writer) = self.into_split();
        (Box::new(reader), Box::new(writer))
    }
}

impl SplittableStream for TlsStream<Transport> {
    fn into_halves(self: Box<Self>) -> (ReadHalf, WriteHalf) {
        let (reader, writer) = tokio::io::split(*self);
        (Box::new(reader), Box::new(writer))
    }
}

/// Writes all slices in as few calls as possible. Each call may wait up to [`STALL_TIME_MAX`].
pub(crate) async fn write_slices(writer: &mut WriteHalf, slices: &[&[u8]]) -> io::Result<()> {
    let (mut index, mut at) = (0, 0);
    while index < slices.len() {
        let mut list = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (place, slice) in list.iter_mut().zip(&slices[index..]) {
            *place = IoSlice::new(if count == 0 { &slice[at..] } else { slice });
            count += 1;
        }
        let mut written = within_stall(writer.write_vectored(&list[..count])).await?;
        let left: usize = list[..count].iter().map(|slice| slice.len()).sum();
        if written == 0 && left > 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while index < slices.len() && written >= slices[index].len() - at {
            written -= slices[index].len() - at;
            (index, at) = (index + 1, 0);
        }
        at += written;
    }
    within_stall(writer.flush()).await
}

/// Fills a slice with bytes of the stream. Each read may wait up to [`STALL_TIME_MAX`].
pub(crate) async fn read_all(reader: &mut (impl AsyncRead + Unpin), into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match within_stall(reader.read(&mut into[at..])).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => at += count,
        }
    }
    Ok(())
}

async fn within_stall<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let mut step = std::pin::pin!(step);
    // A read or write that completes immediately needs no timer.
    if let Poll::Ready(result) = poll_fn(|context| Poll::Ready(step.as_mut().poll(context))).await {
        return result;
    }
    match tokio::time::timeout(STALL_TIME_MAX, step).await {
        Ok(result) => result,
        Err(_) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the other side stands still in the middle of a message"))
        }
    }
}

/// Makes TCP send small messages immediately and detect a lost peer.
pub(crate) fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_TIME / 3);
    let _ = stream.set_nodelay(true);
    let _ = SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
