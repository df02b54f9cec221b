//! What every connection has, whatever its protocol: its clock and limits, the exchanges under way, and its end.
//!
//! Owns: time limits without a timer per request, and whether a connection must end now or after its exchanges. The
//! connection's stream reports what is written, and the service reports when an exchange begins and ends. On every tick
//! the worker's sweeper checks whether the connection is overdue; what that means is the protocol's (`http1`, `http2`).
//!
//! Times are counted in ticks of [`TICK`], so that no code on the data path reads a clock. A limit may be exceeded by
//! up to two ticks.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The unit of the sweeper's clock.
pub const TICK: Duration = Duration::from_millis(250);

/// The ticks without activity after which a connection gives back memory that only requests need.
pub const RESTING_TICKS: u32 = 4;

/// The worker's clock, which its sweeper advances.
#[derive(Debug, Default)]
pub struct TickClock {
    tick: Cell<u32>,
}

impl TickClock {
    /// The current tick.
    pub fn tick(&self) -> u32 {
        self.tick.get()
    }

    /// Advances by one tick.
    pub fn advance(&self) {
        self.tick.set(self.tick.get().wrapping_add(1));
    }

    /// The ticks since an earlier one.
    pub fn since(&self, tick: u32) -> u32 {
        self.tick().wrapping_sub(tick)
    }
}

/// The longest time that each phase of a connection may last, in ticks.
#[derive(Debug, Clone, Copy)]
pub struct PhaseDeadlines {
    /// The pause between exchanges.
    pub idle: u32,
    /// The time from the first byte of a head to its last. On a connection to an origin it also limits the time from
    /// the request to the first byte.
    pub head: u32,
    /// The time in which no byte of an expected body arrives.
    pub body: u32,
    /// The time in which the peer accepts no byte although there are bytes to write.
    pub write: u32,
    /// The time in which a tunnel carries no byte in either direction.
    pub tunnel: u32,
    /// The time from a refusal to the end of the connection.
    pub linger: u32,
}

impl PhaseDeadlines {
    /// The number of ticks of a limit that never passes.
    pub const NEVER: u32 = u32::MAX / 2;

    /// The number of ticks in a duration, rounded up; at least 1.
    pub fn ticks(duration: Duration) -> u32 {
        let ticks = duration.as_millis().div_ceil(TICK.as_millis());
        u32::try_from(ticks).unwrap_or(PhaseDeadlines::NEVER).clamp(1, PhaseDeadlines::NEVER)
    }
}

/// The state of one connection.
#[derive(Debug)]
pub struct Transport {
    clock: Rc<TickClock>,
    /// The number of exchanges under way.
    busy: Cell<u32>,
    /// The tick of the last activity.
    active: Cell<u32>,
    /// The tick at which the write that waits began to wait.
    write_since: Cell<Option<u32>>,
    /// The tick at which the connection was told to end after its exchanges.
    drained_at: Cell<Option<u32>>,
    killed: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Transport {
    /// The state of a new connection.
    pub fn new(clock: Rc<TickClock>) -> Transport {
        let active = Cell::new(clock.tick());
        Transport {
            clock,
            busy: Cell::new(0),
            active,
            write_since: Cell::new(None),
            drained_at: Cell::new(None),
            killed: Cell::new(false),
            waker: RefCell::new(None),
        }
    }

    /// The current tick.
    pub fn tick(&self) -> u32 {
        self.clock.tick()
    }

    /// Records that an exchange begins.
    pub fn begin(&self) {
        self.busy.set(self.busy.get() + 1);
        self.touch();
    }

    /// Records that an exchange has ended, with or without success.
    pub fn end(&self) {
        self.busy.set(self.busy.get().saturating_sub(1));
        self.touch();
    }

    /// Records activity.
    pub fn touch(&self) {
        self.active.set(self.tick());
    }

    /// Whether an exchange is under way.
    pub fn is_busy(&self) -> bool {
        self.busy.get() > 0
    }

    /// Whether no exchange is under way and no write waits. This can be true although part of the next request's head
    /// has arrived.
    pub fn is_settled(&self) -> bool {
        !self.is_busy() && self.is_written()
    }

    /// Whether no write waits.
    pub fn is_written(&self) -> bool {
        self.write_since.get().is_none()
    }

    /// The ticks since the last activity; `None` while an exchange is under way or a write waits.
    pub fn settled_ticks(&self) -> Option<u32> {
        self.is_settled().then(|| self.quiet_ticks())
    }

    /// The ticks since the last activity.
    pub fn quiet_ticks(&self) -> u32 {
        self.clock.since(self.active.get())
    }

    /// Whether a write has waited for more than `limit` ticks.
    pub fn is_stuck(&self, limit: u32) -> bool {
        self.is_past(self.write_since.get(), limit)
    }

    /// Whether more than `limit` ticks have passed since a tick, if there is one.
    pub fn is_past(&self, since: Option<u32>, limit: u32) -> bool {
        since.is_some_and(|since| self.clock.since(since) > limit)
    }

    /// Records that a write waits for the peer.
    pub fn on_write_waits(&self) {
        if self.write_since.get().is_none() {
            self.write_since.set(Some(self.tick()));
        }
    }

    /// Records that bytes were written.
    pub fn on_written(&self) {
        self.write_since.set(None);
        self.touch();
    }

    /// Records that no written byte waits any more.
    pub fn on_flushed(&self) {
        self.write_since.set(None);
    }

    /// Whether the connection must end now, because it is overdue or the worker stops.
    pub fn is_killed(&self) -> bool {
        self.killed.get()
    }

    /// Whether the connection must end after the exchanges under way.
    pub fn is_draining(&self) -> bool {
        self.drained_at.get().is_some()
    }

    /// The ticks since the connection was told to end after its exchanges; `None` if it was not.
    pub fn draining_ticks(&self) -> Option<u32> {
        self.drained_at.get().map(|at| self.clock.since(at))
    }

    /// Remembers the task to wake when [`Transport::kill`], [`Transport::drain`] or [`Transport::wake`] is called.
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

    /// Ends the connection after the exchanges under way.
    pub fn drain(&self) {
        if !self.is_draining() {
            self.drained_at.set(Some(self.tick()));
        }
        self.wake();
    }

    /// Wakes the task of the connection.
    pub fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

/// A connection that the sweeper checks, whatever its protocol.
pub trait SweptConnection {
    /// What the connection has whatever its protocol.
    fn transport(&self) -> &Transport;

    /// Whether the connection has exceeded a limit. A part of it that has (a stream of HTTP/2) may be ended by the call.
    fn is_overdue(&self) -> bool;

    /// The ticks since the last activity of a client that has everything that it requested and has sent no part of
    /// another request; else `None`.
    fn idle_ticks(&self) -> Option<u32>;

    /// The worker lets its clients go: ends the connection once no request on it can be lost by that.
    fn let_go(&self);
}

/// Runs `work` until it is done, or until the connection must end. *Returns*: whether it is done.
pub async fn until_killed(transport: &Transport, work: impl Future) -> bool {
    let mut work = pin!(work);
    poll_fn(|context| {
        transport.register(context);
        if transport.is_killed() { Poll::Ready(false) } else { work.as_mut().poll(context).map(|_| true) }
    })
    .await
}
