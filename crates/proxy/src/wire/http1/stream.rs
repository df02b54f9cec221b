//! The stream that reports to a [`ConnectionWatch`], and the shortcut past hyper for requests that are answered at once.
//!
//! Owns: reading and writing on one connection, and the [`RequestShortcut`] and its responses. No byte after refused framing
//! is read: hyper waits, without further bytes, until the connection ends. A client's stream has two users. hyper reads
//! from it and writes to it as usual. The task of the connection calls [`SharedStream::poll_shortcut`] first, and polls
//! hyper only if hyper has work to do.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::watch::{ConnectionWatch, PeerSide};

/// The number of bytes of a request that are kept until the next request.
const START_BYTES_KEPT: usize = 512;

/// A part that can answer a request before hyper sees it.
pub trait RequestShortcut {
    /// Answers a request that has no body and whose head is complete: appends the response's head to `head` and returns
    /// the response's body. If hyper must answer the request, appends nothing and returns `None`.
    fn answer(&self, request: &[u8], head: &mut Vec<u8>) -> Option<Bytes>;
}

/// `None` answers nothing, so that a connection needs no hyper until a request comes.
impl<S: RequestShortcut> RequestShortcut for Option<S> {
    fn answer(&self, request: &[u8], head: &mut Vec<u8>) -> Option<Bytes> {
        self.as_ref()?.answer(request, head)
    }
}

/// A stream whose bytes are reported to a [`ConnectionWatch`].
pub struct WatchedStream<S> {
    stream: S,
    watch: Rc<ConnectionWatch>,
}

impl<S> WatchedStream<S> {
    /// Reports the bytes of a stream to a watch.
    pub fn new(stream: S, watch: Rc<ConnectionWatch>) -> WatchedStream<S> {
        WatchedStream { stream, watch }
    }

    /// The stream without its watch.
    pub fn into_inner(self) -> S {
        self.stream
    }

    fn note_write(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Pending => self.watch.transport.on_write_waits(),
            Poll::Ready(Ok(_)) => self.watch.on_written(),
            Poll::Ready(Err(_)) => {}
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(violation) = this.watch.violation() {
            if this.watch.side() == PeerSide::Client && this.watch.is_refused_in_head() {
                // Earlier requests must still be answered. No wake-up is needed: the task of the connection checks
                // `is_refused` after it has polled hyper.
                return Poll::Pending;
            }
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
        }
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Pending => {
                this.watch.on_read_waits();
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let came = &mut buffer.filled_mut()[before..];
                if came.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let Err((accepted, _)) = this.watch.on_read(came) else { return Poll::Ready(Ok(())) };
                buffer.set_filled(before + accepted);
                if accepted > 0 { Poll::Ready(Ok(())) } else { Pin::new(this).poll_read(context, buffer) }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_write(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        match &result {
            Poll::Pending => self.watch.transport.on_write_waits(),
            Poll::Ready(Ok(())) => self.watch.on_flushed(),
            Poll::Ready(Err(_)) => {}
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        if result.is_pending() {
            // TLS has a last message to send.
            self.watch.transport.on_write_waits();
        }
        result
    }
}

/// A client's stream. It is shared by hyper and by the task of the connection, which tries the shortcut first.
pub struct SharedStream<S>(Rc<RefCell<SharedStreamState<S>>>);

/// The state that the two users of the stream share.
struct SharedStreamState<S> {
    stream: WatchedStream<S>,
    /// Whether hyper waits for bytes. If it does not wait, its buffer may have requests that it must handle first.
    is_awaited: bool,
    /// Bytes that were read and that the shortcut did not answer. hyper reads them next.
    came: Vec<u8>,
    /// The beginning of the last bytes with which a request began and that hyper got.
    start: Vec<u8>,
    /// The informational responses that are being written, and the number of their bytes written so far.
    announced: Vec<u8>,
    announced_sent: usize,
    /// The head and the body of the shortcut's response that is being written, and the number of bytes written so far.
    head: Vec<u8>,
    body: Bytes,
    sent: usize,
    /// The error with which reading a request, or writing the shortcut's response to it, failed. hyper gets this error
    /// when it next reads.
    failed: Option<io::Error>,
}

impl<S> Clone for SharedStream<S> {
    fn clone(&self) -> Self {
        SharedStream(self.0.clone())
    }
}

impl<S> SharedStream<S> {
    /// Shares a stream.
    pub fn new(stream: WatchedStream<S>) -> SharedStream<S> {
        SharedStream(Rc::new(RefCell::new(SharedStreamState {
            stream,
            is_awaited: true,
            came: Vec::new(),
            start: Vec::new(),
            announced: Vec::new(),
            announced_sent: 0,
            head: Vec::new(),
            body: Bytes::new(),
            sent: 0,
            failed: None,
        })))
    }

    /// The beginning of the last bytes with which a request began and that hyper got. Several requests may have come
    /// together.
    pub fn start(&self) -> Vec<u8> {
        self.0.borrow().start.clone()
    }

    /// The stream; `None` if another clone still exists.
    pub fn into_inner(self) -> Option<WatchedStream<S>> {
        Rc::into_inner(self.0).map(|front| front.into_inner().stream)
    }
}

impl<S: AsyncWrite + Unpin> SharedStream<S> {
    /// Writes the informational responses that can be written now. An error is ignored here, because hyper's next write
    /// fails with the same error.
    pub fn announce(&self, context: &mut Context<'_>) {
        _ = self.0.borrow_mut().poll_announced(context);
    }
}

impl<S> SharedStream<S> {
    /// Whether the client has made no request for a while and hyper has nothing that it still needs: bytes or an error
    /// to come, or something to write.
    pub fn is_resting(&self) -> bool {
        let front = self.0.borrow();
        let is_empty = front.came.is_empty() && front.head.is_empty() && front.announced.is_empty();
        front.is_awaited && is_empty && front.failed.is_none() && front.stream.watch.is_resting()
    }

    /// Whether a request's head was refused and all earlier requests are answered, so that hyper only waits for the
    /// rest of the head.
    pub fn is_refused(&self) -> bool {
        let front = self.0.borrow();
        front.is_awaited && front.came.is_empty() && front.head.is_empty() && front.stream.watch.is_refused()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> SharedStream<S> {
    /// Reads requests and answers them by the shortcut until it meets one that hyper must answer. Returns pending if
    /// the client must send or read first, and ready if hyper must be polled. `room` is the buffer for requests.
    pub fn poll_shortcut(
        &self,
        context: &mut Context<'_>,
        shortcut: &impl RequestShortcut,
        room: &mut [u8],
    ) -> Poll<()> {
        let front = &mut *self.0.borrow_mut();
        loop {
            match front.poll_unsent(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    front.failed = Some(error);
                    return Poll::Ready(());
                }
            }
            if !front.is_awaited || !front.came.is_empty() || !front.stream.watch.is_fresh() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(room);
            match Pin::new(&mut front.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    front.failed = Some(error);
                    return Poll::Ready(());
                }
            }
            let request = buffer.filled();
            let is_whole = !request.is_empty() && front.stream.watch.is_fresh();
            match is_whole.then(|| shortcut.answer(request, &mut front.head)).flatten() {
                Some(body) => {
                    front.body = body;
                    front.stream.watch.on_shortcut();
                }
                None => {
                    front.came.extend_from_slice(request);
                    front.keep_start(request);
                    return Poll::Ready(());
                }
            }
        }
    }
}

impl<S> SharedStreamState<S> {
    /// Keeps the beginning of bytes with which a request begins.
    fn keep_start(&mut self, bytes: &[u8]) {
        self.start.clear();
        self.start.extend_from_slice(&bytes[..bytes.len().min(START_BYTES_KEPT)]);
    }
}

impl<S: AsyncWrite + Unpin> SharedStreamState<S> {
    /// Writes the informational responses if the next byte begins a response. Returns pending while the client does not
    /// read them.
    fn poll_announced(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.stream.watch.has_announced() {
            if self.announced.is_empty() {
                match self.stream.watch.take_announced() {
                    Some(announced) => self.announced = announced,
                    None => break,
                }
            }
            let left = &self.announced[self.announced_sent..];
            match std::task::ready!(Pin::new(&mut self.stream).poll_write(context, left))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.announced_sent += count,
            }
            if self.announced_sent == self.announced.len() {
                self.announced = Vec::new();
                self.announced_sent = 0;
                self.stream.watch.on_announced();
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes the shortcut's answer. Nothing else is read or written before the answer is complete.
    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.head.is_empty() {
            let head = &self.head[self.head.len().min(self.sent)..];
            let body = &self.body[self.sent.saturating_sub(self.head.len())..];
            if head.is_empty() && body.is_empty() {
                // TLS keeps bytes back that the socket does not take.
                std::task::ready!(Pin::new(&mut self.stream).poll_flush(context))?;
                self.head.clear();
                self.body = Bytes::new();
                self.sent = 0;
                break;
            }
            let slices = [io::IoSlice::new(head), io::IoSlice::new(body)];
            match Pin::new(&mut self.stream).poll_write_vectored(context, &slices) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.sent += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SharedStream<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let front = &mut *self.0.borrow_mut();
        front.is_awaited = false;
        if let Some(error) = front.failed.take() {
            return Poll::Ready(Err(error));
        }
        if !front.came.is_empty() {
            let count = front.came.len().min(buffer.remaining());
            buffer.put_slice(&front.came[..count]);
            if count < front.came.len() {
                front.came.drain(..count);
            } else {
                front.came = Vec::new();
            }
            return Poll::Ready(Ok(()));
        }
        let (is_start, before) = (front.stream.watch.is_between(), buffer.filled().len());
        let polled = match front.poll_unsent(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut front.stream).poll_read(context, buffer),
            other => other,
        };
        if is_start && polled.is_ready() && buffer.filled().len() > before {
            front.keep_start(&buffer.filled()[before..]);
        }
        front.is_awaited = polled.is_pending();
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SharedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let front = &mut *self.0.borrow_mut();
        std::task::ready!(front.poll_announced(context))?;
        front.stream.watch.on_parser_writes();
        Pin::new(&mut front.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let front = &mut *self.0.borrow_mut();
        std::task::ready!(front.poll_announced(context))?;
        front.stream.watch.on_parser_writes();
        Pin::new(&mut front.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.borrow_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let front = &mut *self.0.borrow_mut();
        match front.poll_unsent(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut front.stream).poll_shutdown(context),
            other => other,
        }
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
