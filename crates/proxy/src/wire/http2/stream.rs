//! The stream of a connection of HTTP/2, with a client or an origin: writes are collected, so that the frames of many
//! messages are one call of the system, and one record of TLS.
//!
//! Owns: the bytes that hyper has written and the peer has not got. h2 flushes after each frame of data that it does not
//! copy, which would be a call for each response. So a flush by hyper does nothing; who polls hyper calls
//! [`CorkedStream::send`] when hyper has nothing more to write now. Promises: at most [`CORK_BYTES_MAX`] bytes wait here, and the
//! connection's state knows when a write waits for the peer.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::wire::transport::SweptConnection;

/// The most that is collected: as much as a record of TLS has. *Units*: bytes.
const CORK_BYTES_MAX: usize = 16 * 1024;

/// The most buffers that are written together with what was collected.
const SLICES_MAX: usize = 8;

/// A stream that two share: hyper, which reads and writes, and who polls hyper, and sends what it wrote.
pub struct CorkedStream<S> {
    shared: Rc<CorkState<S>>,
}

struct CorkState<S> {
    connection: Rc<dyn SweptConnection>,
    inner: RefCell<CorkBuffer<S>>,
}

struct CorkBuffer<S> {
    stream: S,
    collected: BytesMut,
}

impl<S> Clone for CorkedStream<S> {
    fn clone(&self) -> CorkedStream<S> {
        CorkedStream { shared: self.shared.clone() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CorkedStream<S> {
    /// Collects the writes to a stream, and reports to its connection's state when they wait.
    pub fn new(stream: S, connection: Rc<dyn SweptConnection>) -> CorkedStream<S> {
        let inner = RefCell::new(CorkBuffer { stream, collected: BytesMut::new() });
        CorkedStream { shared: Rc::new(CorkState { connection, inner }) }
    }

    /// Sends what was collected. *Errors*: those of the stream.
    pub fn send(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|inner| inner.send(context))
    }

    /// The stream, to close it; `None` as long as hyper has it, too. What was not sent is lost.
    pub fn into_stream(self) -> Option<S> {
        Some(Rc::into_inner(self.shared)?.inner.into_inner().stream)
    }

    /// Does something with the stream, and reports whether a write waits.
    fn with<T>(&self, work: impl FnOnce(&mut CorkBuffer<S>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let result = work(&mut self.shared.inner.borrow_mut());
        match &result {
            Poll::Pending => self.shared.connection.transport().on_write_waits(),
            Poll::Ready(Ok(_)) => self.shared.connection.transport().on_flushed(),
            Poll::Ready(Err(_)) => {}
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> CorkBuffer<S> {
    fn send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.collected.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.collected))?;
            self.take(written)?;
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn take(&mut self, written: usize) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.collected.advance(written);
        Ok(())
    }

    fn write(&mut self, context: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let slices = &slices[..slices.len().min(SLICES_MAX)];
        let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
        if bytes <= CORK_BYTES_MAX - self.collected.len() {
            slices.iter().for_each(|slice| self.collected.extend_from_slice(slice));
            return Poll::Ready(Ok(bytes));
        }
        // What does not fit is not copied: it follows what was collected.
        while !self.collected.is_empty() {
            let mut all = [IoSlice::new(&[]); SLICES_MAX + 1];
            all[0] = IoSlice::new(&self.collected);
            all[1..=slices.len()].copy_from_slice(slices);
            let all = &all[..=slices.len()];
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, all))?;
            let collected = self.collected.len();
            self.take(written.min(collected))?;
            if written > collected {
                return Poll::Ready(Ok(written - collected));
            }
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for CorkedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared.inner.borrow_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for CorkedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|inner| inner.write(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: see [`CorkedStream::send`].
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|inner| {
            ready!(inner.send(context))?;
            Pin::new(&mut inner.stream).poll_shutdown(context)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::super::super::transport::PhaseDeadlines;
    use super::super::Http2Connection;
    use super::*;
    use crate::wire::transport::TickClock;

    const DEADLINES: PhaseDeadlines = PhaseDeadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

    /// Writes the bytes of pieces of various lengths through a pipe of `room` bytes that is read now and then.
    async fn carry(room: usize, lengths: &[usize]) {
        let (near, mut far) = tokio::io::duplex(room);
        let connection = Http2Connection::new(Rc::new(TickClock::default()), DEADLINES);
        let mut stream = CorkedStream::new(near, connection.clone());
        let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
        let sent = bytes.clone();
        let lengths = lengths.to_vec();
        let write = async move {
            let mut at = 0;
            for length in lengths {
                let end = at + length;
                while at < end {
                    let middle = at + (end - at) / 3;
                    let slices = [IoSlice::new(&sent[at..middle]), IoSlice::new(&sent[middle..end])];
                    at += std::future::poll_fn(|context| Pin::new(&mut stream).poll_write_vectored(context, &slices))
                        .await
                        .expect("it is written");
                }
                let waiting = stream.shared.inner.borrow().collected.len();
                assert!(waiting <= CORK_BYTES_MAX, "{waiting} bytes wait");
                if end % 3 == 0 {
                    std::future::poll_fn(|context| stream.send(context)).await.expect("it is sent");
                    assert_eq!(stream.shared.inner.borrow().collected.len(), 0);
                }
            }
            std::future::poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await.expect("it ends");
        };
        let read = async {
            let mut got = Vec::new();
            far.read_to_end(&mut got).await.expect("it is read");
            got
        };
        let ((), got) = tokio::join!(write, read);
        assert!(got == bytes, "{} of {} bytes came, or others", got.len(), bytes.len());
        assert!(connection.transport.is_written());
    }

    #[tokio::test]
    async fn corked_bytes_sent_once_in_order() {
        for room in [1, 100, 20_000, 1 << 20] {
            carry(room, &[9, 1024, 0, 3, 17_000, 16_384, 1, 40_000, 5000, 5000, 5000, 5000, 2]).await;
        }
    }

    #[tokio::test]
    async fn small_writes_wait_for_the_send() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let connection = Http2Connection::new(Rc::new(TickClock::default()), DEADLINES);
        let mut stream = CorkedStream::new(near, connection);
        for _ in 0..10 {
            let slices = [IoSlice::new(&[7; 1000])];
            std::future::poll_fn(|context| Pin::new(&mut stream).poll_write_vectored(context, &slices)).await.unwrap();
            std::future::poll_fn(|context| Pin::new(&mut stream).poll_flush(context)).await.unwrap();
        }
        let mut buffer = vec![0; 20_000];
        let early = tokio::time::timeout(std::time::Duration::from_millis(20), far.read(&mut buffer)).await;
        assert!(early.is_err(), "{early:?}");
        std::future::poll_fn(|context| stream.send(context)).await.unwrap();
        assert_eq!(far.read(&mut buffer).await.unwrap(), 10_000);
    }

    #[tokio::test]
    async fn peer_that_takes_nothing_is_noticed() {
        let (near, far) = tokio::io::duplex(10);
        let connection = Http2Connection::new(Rc::new(TickClock::default()), DEADLINES);
        let mut stream = CorkedStream::new(near, connection.clone());
        let mut write = |length: usize| {
            let bytes = vec![1; length];
            let context = &mut Context::from_waker(std::task::Waker::noop());
            Pin::new(&mut stream).poll_write(context, &bytes).map(|written| written.expect("it is written"))
        };
        assert_eq!((write(1000), connection.transport.is_written()), (Poll::Ready(1000), true));
        assert_eq!((write(16_000), connection.transport.is_written()), (Poll::Pending, false));
        drop(far);
    }
}
