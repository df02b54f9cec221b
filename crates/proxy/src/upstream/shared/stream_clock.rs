//! The time limits of a connection of HTTP/2 to an origin, and of each of its streams.
//!
//! Owns: since when the origin is waited for, on each stream, and ending a stream for which that takes too long. The
//! sweeper that checks all connections calls [`OriginStreams::is_overdue`]; a stream that is cut wakes whoever waits for it,
//! who drops it, so that the origin gets a reset of this stream alone. Leaves to others: silent connections, which hyper's
//! pings find (`shared_task`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::super::request::BodyProgress;
use crate::wire::transport::{PhaseDeadlines, SweptConnection, TickClock, Transport};

/// The maximum number of exchanges under way on a connection, also if the server allows more.
pub const STREAMS_MAX: usize = 100;

/// The state of one connection to an origin that exchanges share.
pub struct OriginStreams {
    pub transport: Transport,
    clock: Rc<TickClock>,
    deadlines: PhaseDeadlines,
    streams: RefCell<Vec<Rc<StreamClock>>>,
    /// The tick at which bytes of the origin last came.
    heard_at: Cell<u32>,
    /// The streams that the server allows.
    streams_max: Cell<usize>,
    /// Whether no exchange may begin any more.
    is_retired: Cell<bool>,
}

/// The state of one stream.
pub struct StreamClock {
    clock: Rc<TickClock>,
    /// The tick since which the origin is waited for; `None` while it is not.
    waits_since: Cell<Option<u32>>,
    is_answered: Cell<bool>,
    /// The request's body, and the number of its parts at the last look.
    upload: RefCell<Option<Rc<BodyProgress>>>,
    parts_seen: Cell<u64>,
    is_cut: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl OriginStreams {
    /// The state of a new connection.
    pub fn new(clock: Rc<TickClock>, deadlines: PhaseDeadlines) -> Rc<OriginStreams> {
        Rc::new(OriginStreams {
            transport: Transport::new(clock.clone()),
            heard_at: Cell::new(clock.tick()),
            clock,
            deadlines,
            streams: RefCell::default(),
            streams_max: Cell::new(STREAMS_MAX),
            is_retired: Cell::new(false),
        })
    }

    /// Records that an exchange begins.
    pub fn begin(&self) -> Rc<StreamClock> {
        let stream = Rc::new(StreamClock {
            clock: self.clock.clone(),
            waits_since: Cell::new(None),
            is_answered: Cell::new(false),
            upload: RefCell::default(),
            parts_seen: Cell::new(0),
            is_cut: Cell::new(false),
            waker: RefCell::default(),
        });
        self.transport.begin();
        self.streams.borrow_mut().push(stream.clone());
        stream
    }

    /// Records that an exchange has ended, with or without success.
    pub fn end(&self, stream: &Rc<StreamClock>) {
        self.transport.end();
        self.streams.borrow_mut().retain(|other| !Rc::ptr_eq(other, stream));
    }

    /// The exchanges under way.
    pub fn count(&self) -> usize {
        self.streams.borrow().len()
    }

    /// Whether another exchange may begin.
    pub fn has_room(&self) -> bool {
        self.count() < self.streams_max.get().clamp(1, STREAMS_MAX)
    }

    /// Records how many streams the server allows.
    pub fn allow(&self, streams_max: usize) {
        self.streams_max.set(streams_max);
    }

    /// Records that bytes of the origin have come.
    pub fn on_heard(&self) {
        self.heard_at.set(self.clock.tick());
    }

    /// The ticks since bytes of the origin last came.
    pub fn unheard_ticks(&self) -> u32 {
        self.clock.since(self.heard_at.get())
    }

    /// The ticks that the head of a response may take.
    pub fn head_ticks(&self) -> u32 {
        self.deadlines.head
    }

    /// From now on no exchange begins on the connection. It ends after those that are under way.
    pub fn retire(&self) {
        self.is_retired.set(true);
    }

    /// Whether no exchange may begin any more.
    pub fn is_retired(&self) -> bool {
        self.is_retired.get()
    }
}

impl SweptConnection for OriginStreams {
    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn is_overdue(&self) -> bool {
        let (transport, limits) = (&self.transport, &self.deadlines);
        for stream in &*self.streams.borrow() {
            if stream.is_overdue(transport, limits) {
                stream.cut();
            }
        }
        transport.is_stuck(limits.write) || transport.settled_ticks().is_some_and(|ticks| ticks > limits.idle)
    }

    fn idle_ticks(&self) -> Option<u32> {
        self.transport.settled_ticks()
    }

    /// The worker closes its unused connections to origins itself.
    fn let_go(&self) {}
}

impl StreamClock {
    /// Records that the request is sent, with this body if it has one, and that the head of its response is awaited.
    pub fn await_answer(&self, upload: Option<Rc<BodyProgress>>) {
        *self.upload.borrow_mut() = upload;
        self.waits_since.set(Some(self.clock.tick()));
    }

    /// Records that the head of the response has come.
    pub fn answered(&self) {
        self.is_answered.set(true);
        self.waits_since.set(None);
    }

    /// Whether the head of the response has come.
    pub fn is_answered(&self) -> bool {
        self.is_answered.get()
    }

    /// Waits for the head of the response; `None` if the stream is cut before.
    pub async fn until_cut<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(output) = work.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if self.is_cut.get() {
                return Poll::Ready(None);
            }
            if self.is_answered.get() && self.waits_since.get().is_none() {
                self.waits_since.set(Some(self.clock.tick()));
            }
            self.waker.borrow_mut().get_or_insert_with(|| context.waker().clone()).clone_from(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits for a part of the response's body; `None` if the stream is cut before. The time in which nobody calls this does
    /// not count: it is the client who is slow then.
    pub async fn until_read<F: Future>(&self, read: F) -> Option<F::Output> {
        let found = self.until_cut(read).await;
        self.waits_since.set(None);
        found
    }

    fn is_overdue(&self, transport: &Transport, limits: &PhaseDeadlines) -> bool {
        if self.is_answered.get() {
            return transport.is_past(self.waits_since.get(), limits.body);
        }
        if let Some(upload) = &*self.upload.borrow() {
            let parts = upload.parts.get();
            // The origin cannot answer yet, because the client has not sent the next part of the request, or it has just
            // taken a part.
            if self.parts_seen.replace(parts) != parts || upload.is_awaited.get() {
                self.waits_since.set(Some(transport.tick()));
                return false;
            }
        }
        transport.is_past(self.waits_since.get(), limits.head)
    }

    /// Ends the stream.
    fn cut(&self) {
        self.is_cut.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DEADLINES: PhaseDeadlines = PhaseDeadlines { idle: 10, head: 5, body: 7, write: 6, tunnel: 20, linger: 2 };

    fn connection() -> (Rc<TickClock>, Rc<OriginStreams>) {
        let clock = Rc::new(TickClock::default());
        (clock.clone(), OriginStreams::new(clock, DEADLINES))
    }

    /// The ticks after which the stream is cut.
    fn ticks_until_cut(clock: &TickClock, streams: &OriginStreams, stream: &StreamClock) -> u32 {
        for ticks in 1..100 {
            clock.advance();
            assert!(!streams.is_overdue(), "a stream of it is, and the connection is not");
            if stream.is_cut.get() {
                return ticks;
            }
        }
        0
    }

    #[tokio::test]
    async fn late_head_cuts_its_stream_alone() {
        let (clock, streams) = connection();
        let (slow, other) = (streams.begin(), streams.begin());
        slow.await_answer(None);
        other.await_answer(None);
        other.answered();
        assert_eq!(ticks_until_cut(&clock, &streams, &slow), DEADLINES.head + 1);
        assert!(slow.until_cut(std::future::pending::<()>()).await.is_none());
        assert!(!other.is_cut.get());
        assert_eq!(other.until_cut(std::future::ready(5)).await, Some(5));
    }

    #[tokio::test]
    async fn silent_body_is_cut_while_awaited() {
        let (clock, streams) = connection();
        let stream = streams.begin();
        stream.await_answer(None);
        stream.answered();
        assert_eq!(ticks_until_cut(&clock, &streams, &stream), 0, "nobody reads");
        let waiting = tokio::time::timeout(Duration::ZERO, stream.until_read(std::future::pending::<()>()));
        assert!(waiting.await.is_err());
        assert_eq!(ticks_until_cut(&clock, &streams, &stream), DEADLINES.body + 1);
    }

    #[tokio::test]
    async fn stream_clock_ignores_slow_reader() {
        let (clock, streams) = connection();
        let stream = streams.begin();
        stream.await_answer(None);
        stream.answered();
        let (tell, told) = tokio::sync::oneshot::channel();
        let mut reading = Box::pin(stream.until_read(told));
        assert!(futures_util::poll!(&mut reading).is_pending());
        tell.send(()).expect("it waits");
        assert!(reading.await.is_some());
        assert_eq!(ticks_until_cut(&clock, &streams, &stream), 0, "the client takes its time");
    }

    #[test]
    fn stream_clock_ignores_slow_upload() {
        let (clock, streams) = connection();
        let (stream, upload) = (streams.begin(), Rc::<BodyProgress>::default());
        stream.await_answer(Some(upload.clone()));
        upload.is_awaited.set(true);
        assert_eq!(ticks_until_cut(&clock, &streams, &stream), 0);
        upload.is_awaited.set(false);
        for _ in 0..DEADLINES.head * 2 {
            upload.parts.set(upload.parts.get() + 1);
            clock.advance();
            assert!(!streams.is_overdue() && !stream.is_cut.get());
        }
        assert_eq!(ticks_until_cut(&clock, &streams, &stream), DEADLINES.head + 1);
    }

    #[test]
    fn unused_connection_ends_after_its_time() {
        let (clock, streams) = connection();
        let stream = streams.begin();
        assert!((0..DEADLINES.idle * 2).all(|_| {
            clock.advance();
            !streams.is_overdue()
        }));
        streams.end(&stream);
        let ticks = (1..100).find(|_| {
            clock.advance();
            streams.is_overdue()
        });
        assert_eq!(ticks, Some(DEADLINES.idle + 1));
    }

    #[test]
    fn room_is_what_the_server_allows() {
        let (_, streams) = connection();
        streams.allow(2);
        let first = streams.begin();
        assert!(streams.has_room());
        let _second = streams.begin();
        assert!(!streams.has_room());
        streams.end(&first);
        assert!(streams.has_room());
        streams.allow(usize::MAX);
        let _more: Vec<_> = (1..STREAMS_MAX).map(|_| streams.begin()).collect();
        assert_eq!((streams.count(), streams.has_room()), (STREAMS_MAX, false));
    }
}
