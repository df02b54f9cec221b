//! One connection as the worker's sweeper sees it, and the stream that keeps it informed.
//!
//! Owns: idle and head times without a timer per request, refusals by [`Framing`], and the requests to stop or to finish.
//! Every connection, of a client or to an origin, has one [`Guard`]; [`GuardedStream`] tells it what is read and written, the
//! service tells it when an exchange begins and ends, and the sweeper asks it on every tick whether it is overdue.
//!
//! Times are ticks of [`TICK`], so a limit may be exceeded by up to two ticks, and nothing on the data path reads a clock.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::framing::{Framing, Phase, Violation};

/// The unit of the sweeper's clock.
pub const TICK: Duration = Duration::from_millis(250);

/// What makes hyper answer a refused request with `400`: a byte that no head may hold, and the end of a head.
const POISON: &[u8] = b"\0\r\n\r\n";
/// What makes hyper answer with `431`: more headers than it takes.
static FLOOD: LazyLock<Vec<u8>> =
    LazyLock::new(|| [b"\r\n".to_vec(), b"a:\r\n".repeat(128), b"\r\n".to_vec()].concat());

/// The worker's clock, moved by its sweeper.
#[derive(Debug, Default)]
pub struct Clock {
    tick: Cell<u32>,
}

impl Clock {
    /// The tick of now.
    pub fn tick(&self) -> u32 {
        self.tick.get()
    }

    /// Goes on by one tick.
    pub fn advance(&self) {
        self.tick.set(self.tick.get().wrapping_add(1));
    }
}

/// How long each phase of a connection may last, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// Between exchanges.
    pub idle: u32,
    /// From the first byte of a head to its last; for an origin also from the request to the first byte.
    pub head: u32,
    /// Without a byte of a body that is waited for.
    pub body: u32,
    /// Without taking a byte that is to be written.
    pub write: u32,
    /// Without a byte either way in a tunnel.
    pub tunnel: u32,
    /// From a refusal to the end.
    pub linger: u32,
}

impl Deadlines {
    /// The ticks that cover a duration.
    pub fn ticks(duration: Duration) -> u32 {
        let ticks = duration.as_millis().div_ceil(TICK.as_millis());
        u32::try_from(ticks).unwrap_or(u32::MAX / 2).clamp(1, u32::MAX / 2)
    }
}

/// Whose connection it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A client's: requests come in.
    Client,
    /// To an origin: responses come in.
    Origin,
}

/// What is known about one connection.
#[derive(Debug)]
pub struct Guard {
    side: Side,
    clock: Rc<Clock>,
    deadlines: Deadlines,
    framing: RefCell<Framing>,
    /// Exchanges under way.
    busy: Cell<u32>,
    /// Whether a response may still be on its way out of the writer's own buffer.
    unflushed: Cell<bool>,
    /// Since when a head is being read, a read waits, a write waits.
    head_since: Cell<Option<u32>>,
    read_since: Cell<Option<u32>>,
    write_since: Cell<Option<u32>>,
    active: Cell<u32>,
    violation: Cell<Option<Violation>>,
    killed: Cell<bool>,
    draining: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Guard {
    /// A guard for a new connection.
    pub fn new(side: Side, clock: Rc<Clock>, deadlines: Deadlines, head_bytes_max: usize) -> Rc<Guard> {
        let framing = match side {
            Side::Client => Framing::of_requests(head_bytes_max),
            Side::Origin => Framing::of_responses(head_bytes_max),
        };
        let active = Cell::new(clock.tick());
        Rc::new(Guard {
            side,
            clock,
            deadlines,
            framing: RefCell::new(framing),
            busy: Cell::new(0),
            unflushed: Cell::new(false),
            head_since: Cell::new(None),
            read_since: Cell::new(None),
            write_since: Cell::new(None),
            active,
            violation: Cell::new(None),
            killed: Cell::new(false),
            draining: Cell::new(false),
            waker: RefCell::new(None),
        })
    }

    /// An exchange begins. To an origin: a request is sent, a HEAD or not, and one response may come.
    pub fn begin(&self, to_head: bool) {
        self.busy.set(self.busy.get() + 1);
        self.unflushed.set(true);
        self.active.set(self.clock.tick());
        if self.side == Side::Origin {
            self.framing.borrow_mut().await_response(to_head);
            self.read_since.set(Some(self.clock.tick()));
        }
    }

    /// An exchange has ended, well or not.
    pub fn end(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
        self.active.set(self.clock.tick());
        if self.read_since.get().is_some() {
            self.read_since.set(Some(self.clock.tick()));
        }
    }

    /// Whether an exchange is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.get() > 0
    }

    /// Whether no exchange is under way and no write waits; true in the middle of a request's head, too.
    pub fn is_settled(&self) -> bool {
        !self.is_busy() && self.write_since.get().is_none()
    }

    /// Whether no write waits.
    pub fn is_written(&self) -> bool {
        self.write_since.get().is_none()
    }

    /// Whether the next byte begins a request, with nothing before it still to be answered.
    fn is_fresh(&self) -> bool {
        self.side == Side::Client
            && self.is_settled()
            && !self.unflushed.get()
            && !self.draining.get()
            && !self.killed.get()
            && self.framing.borrow().phase() == Phase::Between
    }

    /// Why the peer's bytes were refused, if they were.
    pub fn violation(&self) -> Option<Violation> {
        self.violation.get()
    }

    /// Whether the connection is to end now, for it is overdue or the worker stops.
    pub fn is_killed(&self) -> bool {
        self.killed.get()
    }

    /// Whether the connection is to end after the exchange under way.
    pub fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Remembers whom to wake when [`Guard::kill`] or [`Guard::drain`] is called.
    pub fn register(&self, context: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *waker = Some(context.waker().clone());
        }
    }

    /// Ends the connection.
    pub fn kill(&self) {
        self.killed.set(true);
        self.wake();
    }

    /// Ends the connection after the exchange under way.
    pub fn drain(&self) {
        self.draining.set(true);
        self.wake();
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// Whether the connection has exceeded a limit.
    pub fn is_overdue(&self) -> bool {
        let now = self.clock.tick();
        let past = |since: &Cell<Option<u32>>, limit| since.get().is_some_and(|since| now.wrapping_sub(since) > limit);
        let quiet = |limit| now.wrapping_sub(self.active.get()) > limit;
        let phase = self.framing.borrow().phase();
        let limits = &self.deadlines;
        if phase != Phase::Opaque && past(&self.write_since, limits.write) {
            return true;
        }
        match (self.side, phase) {
            (_, Phase::Head) => past(&self.head_since, limits.head),
            (_, Phase::Body) => past(&self.read_since, limits.body),
            (_, Phase::Refused) => quiet(limits.linger),
            (Side::Client, Phase::Opaque) => quiet(limits.tunnel),
            (Side::Origin, Phase::Opaque) => past(&self.read_since, limits.body),
            (Side::Client, Phase::Between) => !self.is_busy() && quiet(limits.idle),
            (Side::Origin, Phase::Between) if self.is_busy() => past(&self.read_since, limits.head),
            (Side::Origin, Phase::Between) => quiet(limits.idle),
        }
    }

    fn on_read_waits(&self) {
        if self.read_since.get().is_none() {
            self.read_since.set(Some(self.clock.tick()));
        }
    }

    /// Notes bytes that came. *Errors*: as [`Framing::accept`].
    fn on_read(&self, bytes: &[u8]) -> Result<(), (usize, Violation)> {
        let tick = self.clock.tick();
        self.read_since.set(None);
        self.active.set(tick);
        let mut framing = self.framing.borrow_mut();
        let result = framing.accept(bytes);
        match framing.phase() {
            Phase::Head if self.head_since.get().is_none() => self.head_since.set(Some(tick)),
            Phase::Head => {}
            _ => self.head_since.set(None),
        }
        if let Err((_, violation)) = result {
            self.violation.set(Some(violation));
        }
        result
    }

    fn on_write_waits(&self) {
        if self.write_since.get().is_none() {
            self.write_since.set(Some(self.clock.tick()));
        }
    }

    fn on_written(&self) {
        let tick = self.clock.tick();
        self.write_since.set(None);
        self.active.set(tick);
        if self.read_since.get().is_some() {
            self.read_since.set(Some(tick));
        }
    }
}

/// Whoever can answer a request before anybody else sees it.
pub trait Shortcut {
    /// Answers one complete head of a request without a body: appends the response's head and returns its body. `None`,
    /// and nothing appended, where the request is to go the usual way.
    fn answer(&self, request: &[u8], head: &mut Vec<u8>) -> Option<Bytes>;
}

/// A response that is being written past the reader.
#[derive(Default)]
struct Unsent {
    head: Vec<u8>,
    body: Bytes,
    sent: usize,
}

impl Unsent {
    fn is_empty(&self) -> bool {
        self.head.is_empty()
    }
}

/// A stream whose bytes pass a [`Guard`].
pub struct GuardedStream<S> {
    stream: S,
    guard: Rc<Guard>,
    /// What is still to be read in place of what was refused.
    refusal: &'static [u8],
    shortcut: Option<Box<dyn Shortcut>>,
    unsent: Unsent,
}

impl<S> GuardedStream<S> {
    /// Puts a guard before a stream.
    pub fn new(stream: S, guard: Rc<Guard>) -> GuardedStream<S> {
        GuardedStream { stream, guard, refusal: b"", shortcut: None, unsent: Unsent::default() }
    }

    /// Puts a guard before a stream, and a shortcut before whoever reads requests from it.
    pub fn with_shortcut(stream: S, guard: Rc<Guard>, shortcut: Box<dyn Shortcut>) -> GuardedStream<S> {
        GuardedStream { shortcut: Some(shortcut), ..GuardedStream::new(stream, guard) }
    }

    /// The stream alone.
    pub fn into_inner(self) -> S {
        self.stream
    }
}

impl<S: AsyncWrite + Unpin> GuardedStream<S> {
    /// Writes what a shortcut has answered; nothing else is read or written before it is out.
    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            let Unsent { head, body, sent } = &self.unsent;
            let (head, body) = (&head[head.len().min(*sent)..], &body[sent.saturating_sub(head.len())..]);
            if head.is_empty() && body.is_empty() {
                self.unsent.head.clear();
                self.unsent.body = Bytes::new();
                self.unsent.sent = 0;
                break;
            }
            let slices = [io::IoSlice::new(head), io::IoSlice::new(body)];
            let result = Pin::new(&mut self.stream).poll_write_vectored(context, &slices);
            match self.note_write(result) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => self.unsent.sent += count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Answers by the shortcut; whether it did.
    fn answer(&mut self, request: &[u8]) -> bool {
        let Some(shortcut) = &self.shortcut else { return false };
        if self.guard.framing.borrow().phase() != Phase::Between {
            return false;
        }
        match shortcut.answer(request, &mut self.unsent.head) {
            Some(body) => {
                self.unsent.body = body;
                true
            }
            None => false,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(violation) = this.guard.violation.get() {
            if this.guard.side == Side::Origin || this.refusal.is_empty() {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
            let (now, later) = this.refusal.split_at(this.refusal.len().min(buffer.remaining()));
            buffer.put_slice(now);
            this.refusal = later;
            return Poll::Ready(Ok(()));
        }
        match this.poll_unsent(context) {
            Poll::Ready(Ok(())) => {}
            other => return other,
        }
        let is_fresh = this.shortcut.is_some() && this.guard.is_fresh();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Pending => {
                this.guard.on_read_waits();
                Poll::Pending
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let came = &buffer.filled()[before..];
                if came.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let Err((accepted, violation)) = this.guard.on_read(came) else {
                    if is_fresh && this.answer(came) {
                        buffer.set_filled(before);
                        return Pin::new(this).poll_read(context, buffer);
                    }
                    return Poll::Ready(Ok(()));
                };
                buffer.set_filled(before + accepted);
                if this.guard.side == Side::Client && this.guard.framing.borrow().is_refused_in_head() {
                    this.refusal = if violation == Violation::TooLong { &FLOOD } else { POISON };
                }
                if accepted > 0 { Poll::Ready(Ok(())) } else { Pin::new(this).poll_read(context, buffer) }
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
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
        if matches!(result, Poll::Ready(Ok(()))) && !self.guard.is_busy() {
            self.guard.unflushed.set(false);
        }
        result
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_unsent(context) {
            Poll::Ready(Ok(())) => Pin::new(&mut self.stream).poll_shutdown(context),
            other => other,
        }
    }
}

impl<S> GuardedStream<S> {
    fn note_write(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Pending => self.guard.on_write_waits(),
            Poll::Ready(Ok(_)) => self.guard.on_written(),
            Poll::Ready(Err(_)) => {}
        }
        result
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
