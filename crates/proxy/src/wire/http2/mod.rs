//! HTTP/2: the time limits of a connection and of each of its streams, and the form of its requests (`form`).
//!
//! Owns: ending streams whose client neither sends nor takes anything for too long, connections that are idle, and
//! those whose client takes back its requests again and again. hyper and h2 read the frames, and limit the number of streams,
//! of resets, of control frames and the size of heads. hyper hands each stream to an executor as a future of
//! its own; a stream ends early when that future is dropped, and its client then gets a reset of this stream alone.
//!
//! *Source*: RFC 9113.

mod form;
mod stream;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bytes::{Buf, Bytes};

pub use self::form::{Form, to_http1};
pub use self::stream::CorkedStream;
use super::transport::{PhaseDeadlines, SweptConnection, TickClock, Transport};

/// The first bytes of a connection whose client knows that the server speaks HTTP/2.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The maximum number of ended streams of a connection whose last bytes the client does not take. Each may have
/// [`PIECE_BYTES_MAX`] bytes.
const LEFT_STREAMS_MAX: usize = 10;

/// The number of requests that a client may take back before they are answered. Beyond it, a connection ends if more
/// than half of its requests were taken back: each may have cost a request to an origin, and the client next to nothing.
const ABANDONED_MAX: u64 = 200;

/// The state of one connection of HTTP/2.
#[derive(Debug)]
pub struct Http2Connection {
    pub transport: Transport,
    clock: Rc<TickClock>,
    deadlines: PhaseDeadlines,
    streams: RefCell<Vec<Rc<Http2Stream>>>,
    /// The stream whose request hyper has just handed over and whose future comes next.
    latest: RefCell<Option<Rc<Http2Stream>>>,
    /// The number of requests, and of those that the client has taken back before they were answered.
    begun: Cell<u64>,
    abandoned: Cell<u64>,
    /// Whether the connection is about to end, and its client does not answer that.
    is_let_down: Cell<bool>,
}

/// The state of one stream.
#[derive(Debug)]
pub struct Http2Stream {
    clock: Rc<TickClock>,
    /// The tick at which waiting for the next part of the request's body began.
    upload_since: Cell<Option<u32>>,
    /// The number of pieces of the response's body that hyper has got and not written to their ends, and the tick at
    /// which bytes of them were last written, or the first of them came.
    queued: Cell<u32>,
    taken_at: Cell<u32>,
    /// Whether hyper still works on the response.
    is_running: Cell<bool>,
    is_answered: Cell<bool>,
    is_cut: Cell<bool>,
    /// Whether the client had taken nothing for too long at the last tick.
    is_left: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Http2Connection {
    /// The state of a new connection.
    pub fn new(clock: Rc<TickClock>, deadlines: PhaseDeadlines) -> Rc<Http2Connection> {
        Rc::new(Http2Connection {
            transport: Transport::new(clock.clone()),
            clock,
            deadlines,
            streams: RefCell::default(),
            latest: RefCell::default(),
            begun: Cell::new(0),
            abandoned: Cell::new(0),
            is_let_down: Cell::new(false),
        })
    }

    /// Records that a request came. The next future that is [run](Multiplexed::run) makes its response.
    pub fn begin(&self) -> Rc<Http2Stream> {
        let stream = Rc::new(Http2Stream {
            taken_at: Cell::new(self.clock.tick()),
            clock: self.clock.clone(),
            upload_since: Cell::new(None),
            queued: Cell::new(0),
            is_running: Cell::new(true),
            is_answered: Cell::new(false),
            is_cut: Cell::new(false),
            is_left: Cell::new(false),
            waker: RefCell::default(),
        });
        self.transport.begin();
        self.begun.set(self.begun.get() + 1);
        self.streams.borrow_mut().push(stream.clone());
        *self.latest.borrow_mut() = Some(stream.clone());
        stream
    }

    /// Runs a future of hyper, until its stream is overdue if it makes the response to the latest request.
    pub fn run(self: &Rc<Self>, future: impl Future + 'static) -> impl Future<Output = bool> + 'static {
        let running = self.latest.take().map(|stream| RunningStream { connection: self.clone(), stream });
        async move {
            match &running {
                Some(running) => running.stream.until_cut(future).await,
                None => {
                    future.await;
                    true
                }
            }
        }
    }
}

impl Http2Connection {
    /// Whether the connection was told to end and its client has not answered that within the time to linger.
    pub fn is_let_down(&self) -> bool {
        self.is_let_down.get()
    }

    /// Whether the client takes back too many of its requests.
    pub fn is_abused(&self) -> bool {
        self.abandoned.get() > ABANDONED_MAX && self.abandoned.get() > self.begun.get() / 2
    }
}

impl SweptConnection for Http2Connection {
    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn is_overdue(&self) -> bool {
        let (transport, limits) = (&self.transport, &self.deadlines);
        let mut left = 0;
        self.streams.borrow_mut().retain(|stream| {
            let is_over = transport.is_past(stream.upload_since.get(), limits.body)
                // While the whole connection waits, no stream of it is at fault.
                || (transport.is_written() && transport.is_past(stream.queued_since(), limits.write));
            match (is_over, stream.is_running.get()) {
                (true, true) => stream.cut(),
                // h2 keeps what is queued until the client takes it, and only then says that the stream has ended.
                (true, false) => left += 1,
                (false, _) => {}
            }
            stream.is_left.set(is_over);
            stream.is_running.get() || stream.queued.get() > 0
        });
        if let Some(ticks) = self.idle_ticks() {
            if ticks > limits.idle {
                // The client learns that no request of it is answered any more, and may still answer that.
                transport.drain();
            }
            if transport.draining_ticks().is_some_and(|ticks| ticks > limits.linger) {
                self.is_let_down.set(true);
                transport.wake();
            }
            if ticks > limits.idle.saturating_add(limits.linger) && !self.is_let_down.get() {
                return true;
            }
        }
        transport.is_stuck(limits.write) || left > LEFT_STREAMS_MAX
    }

    fn idle_ticks(&self) -> Option<u32> {
        let is_sent = self.streams.borrow().iter().all(|stream| stream.queued.get() == 0 || stream.is_left.get());
        self.transport.settled_ticks().filter(|_| is_sent)
    }

    /// The client learns which of its requests are answered, so none is lost.
    fn let_go(&self) {
        self.transport.drain();
    }
}

/// A stream on whose response hyper works.
struct RunningStream {
    connection: Rc<Http2Connection>,
    stream: Rc<Http2Stream>,
}

impl Drop for RunningStream {
    fn drop(&mut self) {
        self.stream.is_running.set(false);
        self.stream.upload_since.set(None);
        self.connection.transport.end();
        if !self.stream.is_answered.get() && !self.stream.is_cut.get() {
            self.connection.abandoned.set(self.connection.abandoned.get() + 1);
            if self.connection.is_abused() {
                self.connection.transport.kill();
            }
        }
        if self.stream.queued.get() == 0 {
            self.connection.streams.borrow_mut().retain(|stream| !Rc::ptr_eq(stream, &self.stream));
        }
    }
}

impl Http2Stream {
    /// Records that the answer is ready and will now be written.
    pub fn answered(&self) {
        self.is_answered.set(true);
    }

    /// Records that the request's body was polled, and whether the client has to send more of it.
    pub fn on_upload_polled(&self, waits: bool) {
        let since = || self.upload_since.get().unwrap_or_else(|| self.clock.tick());
        self.upload_since.set(waits.then(since));
    }

    /// The tick since which no byte of the queued pieces was written; `None` if there are none.
    fn queued_since(&self) -> Option<u32> {
        (self.queued.get() > 0).then(|| self.taken_at.get())
    }

    fn on_taken(&self) {
        self.taken_at.set(self.clock.tick());
    }

    /// Ends the stream: its client gets a reset.
    fn cut(&self) {
        self.is_cut.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Runs `work` until it is done, or until the stream is cut. *Returns*: whether it is done.
    async fn until_cut(&self, work: impl Future) -> bool {
        let mut work = pin!(work);
        poll_fn(|context| {
            if self.is_cut.get() {
                return Poll::Ready(false);
            }
            let polled = work.as_mut().poll(context);
            if polled.is_pending() {
                self.waker.borrow_mut().get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
            }
            polled.map(|_| true)
        })
        .await
    }
}

/// The longest piece of a body that hyper gets at once for a stream, and the most that h2 keeps for it. h2 keeps it as long
/// as the client takes nothing, also when the stream was ended.
pub const PIECE_BYTES_MAX: usize = 64 * 1024;

/// A piece of a response's body. Its stream, if it has one, learns how far it is written.
#[derive(Debug)]
pub struct BodyPiece {
    bytes: Bytes,
    stream: Option<Rc<Http2Stream>>,
}

impl BodyPiece {
    /// A piece of the body of a response on `stream`, if that is one of HTTP/2.
    pub fn new(bytes: Bytes, stream: Option<&Rc<Http2Stream>>) -> BodyPiece {
        if let Some(stream) = stream {
            if stream.queued.get() == 0 {
                stream.on_taken();
            }
            stream.queued.set(stream.queued.get() + 1);
        }
        BodyPiece { bytes, stream: stream.cloned() }
    }
}

impl Buf for BodyPiece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(stream) = &self.stream {
            stream.on_taken();
        }
    }
}

impl Drop for BodyPiece {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            stream.queued.set(stream.queued.get().saturating_sub(1));
        }
    }
}

#[cfg(test)]
mod tests;
