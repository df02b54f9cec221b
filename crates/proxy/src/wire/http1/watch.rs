//! The state of one connection of HTTP/1 that the worker's sweeper checks.
//!
//! Owns: the time limits of the phases that [`FramingReader`] finds, the violation that it found, and the informational
//! responses on their way to a client. Every connection of HTTP/1, from a client or to an origin, has one [`ConnectionWatch`]. The
//! connection's stream reports to the watch what is read and written, and the service reports when an exchange begins
//! and ends. What connections have whatever their protocol is in [`Transport`].

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};

use super::framing::{FramingPhase, FramingReader, FramingViolation};
use super::informational::InformationalResponse;
use crate::wire::transport::{PhaseDeadlines, RESTING_TICKS, SweptConnection, TickClock, Transport};

/// The kind of peer that a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSide {
    /// The peer is a client, which sends requests.
    Client,
    /// The peer is an origin, which sends responses.
    Origin,
}

/// The state of one connection.
#[derive(Debug)]
pub struct ConnectionWatch {
    pub transport: Transport,
    side: PeerSide,
    deadlines: PhaseDeadlines,
    framing: RefCell<FramingReader>,
    /// The number of exchanges that have begun.
    begun: Cell<u64>,
    /// Whether bytes of a response may still be in the buffer of hyper, which writes them.
    unflushed: Cell<bool>,
    /// The ticks at which two things began, if they still go on: reading a head, waiting in a read.
    head_since: Cell<Option<u32>>,
    read_since: Cell<Option<u32>>,
    /// On a connection to an origin: whether no byte of the request under way has been sent yet, so that received bytes
    /// cannot answer it.
    unsent: Cell<bool>,
    /// On a connection to an origin: the tick at which the wait for the head of the final response began, and the task
    /// that receives informational responses.
    answer_since: Cell<Option<u32>>,
    /// On a connection to an origin: whether more of the request under way is awaited from the client.
    client_awaited: RefCell<Option<Rc<Cell<bool>>>>,
    listener: RefCell<Option<Waker>>,
    /// On a connection to a client: the informational responses that must be written, whether there are any, and
    /// whether they may be written now. They may be written if everything that hyper has written so far is flushed, so
    /// that its next bytes begin a response.
    announced: RefCell<Vec<u8>>,
    has_announced: Cell<bool>,
    is_at_start: Cell<bool>,
    violation: Cell<Option<FramingViolation>>,
}

impl ConnectionWatch {
    /// Makes the watch of a new connection.
    pub fn new(
        side: PeerSide,
        clock: Rc<TickClock>,
        deadlines: PhaseDeadlines,
        head_bytes_max: usize,
    ) -> Rc<ConnectionWatch> {
        let framing = match side {
            PeerSide::Client => FramingReader::of_requests(head_bytes_max),
            PeerSide::Origin => FramingReader::of_responses(head_bytes_max),
        };
        Rc::new(ConnectionWatch {
            transport: Transport::new(clock),
            side,
            deadlines,
            framing: RefCell::new(framing),
            begun: Cell::new(0),
            unflushed: Cell::new(false),
            head_since: Cell::new(None),
            read_since: Cell::new(None),
            unsent: Cell::new(false),
            answer_since: Cell::new(None),
            client_awaited: RefCell::new(None),
            listener: RefCell::new(None),
            announced: RefCell::new(Vec::new()),
            has_announced: Cell::new(false),
            is_at_start: Cell::new(true),
            violation: Cell::new(None),
        })
    }

    /// Records that an exchange begins. On a connection to an origin, a request is about to be sent, and one response
    /// may come; `to_head` says that the request is a HEAD.
    pub fn begin(&self, to_head: bool) {
        self.transport.begin();
        self.begun.set(self.begun.get() + 1);
        self.unflushed.set(true);
        if self.side == PeerSide::Origin {
            self.unsent.set(true);
            self.answer_since.set(Some(self.transport.tick()));
            *self.client_awaited.borrow_mut() = None;
            self.framing.borrow_mut().await_response(to_head);
            self.read_since.set(Some(self.transport.tick()));
        }
    }

    /// On a connection to an origin, after [`begin`](ConnectionWatch::begin): the origin is not waited for while `is_awaited` says
    /// that the client has not sent the next part of the request. Other limits bound that time.
    pub fn pause_while(&self, is_awaited: Rc<Cell<bool>>) {
        *self.client_awaited.borrow_mut() = Some(is_awaited);
    }

    /// Whether the peer is an origin that cannot answer yet, because the client has not sent the next part of the request
    /// and all that it has sent is written.
    fn is_client_awaited(&self) -> bool {
        self.transport.is_written() && self.client_awaited.borrow().as_ref().is_some_and(|awaited| awaited.get())
    }

    /// On a connection to an origin, after [`begin`](ConnectionWatch::begin): the request asks for another protocol.
    pub fn await_switch(&self) {
        self.framing.borrow_mut().await_switch();
    }

    /// On a connection to a client: the connection switches to another protocol after the answer under way. False if the
    /// client has already sent something else.
    pub fn switch(&self) -> bool {
        self.framing.borrow_mut().switch(self.begun.get())
    }

    /// Records an exchange that is over at once: the shortcut has answered a request.
    pub(super) fn on_shortcut(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    /// Records that an exchange has ended, with or without success.
    pub fn end(&self) {
        self.transport.end();
        if self.read_since.get().is_some() {
            self.read_since.set(Some(self.transport.tick()));
        }
    }

    /// On a connection to an origin: takes the informational responses that have arrived. The caller is woken when more
    /// arrive.
    pub fn poll_informational(&self, context: &Context<'_>) -> Vec<InformationalResponse> {
        let mut listener = self.listener.borrow_mut();
        if !listener.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            *listener = Some(context.waker().clone());
        }
        self.framing.borrow_mut().take_informational()
    }

    /// On a connection to a client: adds an informational response that must be sent before the answer under way.
    pub fn announce(&self, response: &[u8]) {
        self.announced.borrow_mut().extend_from_slice(response);
        self.has_announced.set(true);
        self.transport.wake();
    }

    /// Records that the answer under way is ready and will now be written. If the previous answer has not been sent
    /// completely, informational responses cannot be sent before this answer, so they are dropped.
    pub fn answered(&self) {
        if !self.is_at_start.get() {
            self.announced.borrow_mut().clear();
        }
    }

    /// On a connection to a client: whether an informational response may still have to be written.
    pub fn has_announced(&self) -> bool {
        self.has_announced.get()
    }

    /// Records that all bytes that [`ConnectionWatch::take_announced`] returned are written.
    pub(super) fn on_announced(&self) {
        self.has_announced.set(!self.announced.borrow().is_empty());
    }

    /// Takes the informational responses, if they can be written now.
    pub(super) fn take_announced(&self) -> Option<Vec<u8>> {
        let mut announced = self.announced.borrow_mut();
        (self.is_at_start.get() && !announced.is_empty()).then(|| std::mem::take(&mut *announced))
    }

    /// Records that hyper has begun to write.
    pub(super) fn on_parser_writes(&self) {
        self.is_at_start.set(false);
    }

    /// Whether the next byte begins a request, and all earlier requests are answered.
    pub(super) fn is_fresh(&self) -> bool {
        self.side == PeerSide::Client
            && self.transport.is_settled()
            && !self.unflushed.get()
            && !self.transport.is_draining()
            && !self.transport.is_killed()
            && self.framing.borrow().phase() == FramingPhase::Between
    }

    /// Whether the client has made no request for a while. The sweeper wakes its task once then.
    pub(super) fn is_resting(&self) -> bool {
        self.is_fresh() && self.transport.quiet_ticks() >= RESTING_TICKS
    }

    /// Whether a request's head was refused, and all earlier answers are sent.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused_in_head() && self.transport.is_settled() && !self.unflushed.get()
    }

    /// The kind of peer that the connection has.
    pub fn side(&self) -> PeerSide {
        self.side
    }

    /// Whether the peer's bytes were refused in a head.
    pub(super) fn is_refused_in_head(&self) -> bool {
        self.framing.borrow().refused_in_head().is_some()
    }

    /// The beginning of the bytes that were refused in a head; empty if none were.
    pub fn refused_bytes(&self) -> Vec<u8> {
        self.framing.borrow().refused_in_head().unwrap_or_default().to_vec()
    }

    /// Whether the next byte begins a message.
    pub(super) fn is_between(&self) -> bool {
        self.framing.borrow().phase() == FramingPhase::Between
    }

    /// The reason why the peer's bytes were refused; `None` if they were not.
    pub fn violation(&self) -> Option<FramingViolation> {
        self.violation.get()
    }

    pub(super) fn on_read_waits(&self) {
        if self.read_since.get().is_none() {
            self.read_since.set(Some(self.transport.tick()));
        }
    }

    /// Records received bytes, and replaces minor versions of HTTP later than 1.1 in them by 1.1. *Errors*: the errors
    /// of [`FramingReader::accept`].
    pub(super) fn on_read(&self, bytes: &mut [u8]) -> Result<(), (usize, FramingViolation)> {
        let tick = self.transport.tick();
        self.read_since.set(None);
        self.transport.touch();
        let mut framing = self.framing.borrow_mut();
        // A response that arrives before its request was sent does not belong to that request.
        let result = if self.unsent.get() { Err((0, FramingViolation::Unexpected)) } else { framing.accept(bytes) };
        framing.later_minors().iter().for_each(|at| bytes[*at] = b'1');
        if !framing.is_head_awaited() {
            self.answer_since.set(None);
        }
        if framing.has_informational()
            && let Some(listener) = self.listener.borrow().as_ref()
        {
            listener.wake_by_ref();
        }
        match framing.phase() {
            FramingPhase::Head if self.head_since.get().is_none() => self.head_since.set(Some(tick)),
            FramingPhase::Head => {}
            _ => self.head_since.set(None),
        }
        if let Err((_, violation)) = result {
            self.violation.set(Some(violation));
        }
        result
    }

    pub(super) fn on_written(&self) {
        let tick = self.transport.tick();
        self.unsent.set(false);
        if self.answer_since.get().is_some() {
            self.answer_since.set(Some(tick));
        }
        self.transport.on_written();
        if self.read_since.get().is_some() {
            self.read_since.set(Some(tick));
        }
    }

    /// Records that all written bytes are flushed.
    pub(super) fn on_flushed(&self) {
        self.is_at_start.set(true);
        self.transport.on_flushed();
        if !self.transport.is_busy() {
            self.unflushed.set(false);
        }
    }
}

impl SweptConnection for ConnectionWatch {
    fn transport(&self) -> &Transport {
        &self.transport
    }

    fn is_overdue(&self) -> bool {
        let transport = &self.transport;
        let past = |since: &Cell<Option<u32>>, limit| transport.is_past(since.get(), limit);
        let quiet = |limit| transport.quiet_ticks() > limit;
        let phase = self.framing.borrow().phase();
        let limits = &self.deadlines;
        if phase != FramingPhase::Opaque && transport.is_stuck(limits.write) {
            return true;
        }
        if phase == FramingPhase::Between && self.is_client_awaited() {
            return false;
        }
        // Informational responses do not extend the limit on the wait for a final response's head.
        if past(&self.answer_since, limits.head) {
            return true;
        }
        match (self.side, phase) {
            (_, FramingPhase::Head) => past(&self.head_since, limits.head),
            (_, FramingPhase::Body) => past(&self.read_since, limits.body),
            // While an exchange is under way, earlier requests are still being answered.
            (PeerSide::Client, FramingPhase::Refused) => !transport.is_busy() && quiet(limits.linger),
            (PeerSide::Origin, FramingPhase::Refused) => quiet(limits.linger),
            (PeerSide::Client, FramingPhase::Opaque) => quiet(limits.tunnel),
            (PeerSide::Origin, FramingPhase::Opaque) => past(&self.read_since, limits.body),
            (PeerSide::Client, FramingPhase::Between) => !transport.is_busy() && quiet(limits.idle),
            (PeerSide::Origin, FramingPhase::Between) if transport.is_busy() => past(&self.read_since, limits.head),
            (PeerSide::Origin, FramingPhase::Between) => quiet(limits.idle),
        }
    }

    fn idle_ticks(&self) -> Option<u32> {
        self.is_fresh().then(|| self.transport.quiet_ticks())
    }

    /// A client that sends a request at this moment gets an answer, whereas a connection that is closed at once loses
    /// the request. So it ends after its next answer.
    fn let_go(&self) {}
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
