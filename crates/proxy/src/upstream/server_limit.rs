//! The limit on connections to a server, and the requests that wait for one.
//!
//! Owns: the places for connections to a server, which all workers share. A connection has a place until it is closed. When
//! no place is free, a request waits, in the order of coming, and not for ever. It gets the next connection that its worker
//! no longer needs, or the place of one that another worker closes: unused connections are closed as soon as somebody
//! waits.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::error::FetchError;
use super::{Destination, IdleConnection};
use crate::stats::WorkerStats;
use crate::wire::transport::Transport;

/// While requests wait in other workers, too, one in so many connections is closed for them instead of being used again
/// here.
pub(super) const OTHERS_TURN: u32 = 4;

/// How many connections a server may have, and how requests wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LimitRule {
    /// Connections at a time.
    pub connections_max: usize,
    /// Requests that wait.
    pub queue_max: usize,
    /// The longest time for which one waits.
    pub queue_time: Duration,
}

/// The connections to a server, of all workers together.
#[derive(Debug)]
pub(crate) struct ServerLimit {
    rule: LimitRule,
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Tells unused connections that somebody waits.
    is_wanted: Notify,
}

/// The place of a connection to a server.
#[derive(Debug)]
pub(super) struct ServerPlace {
    limit: Arc<ServerLimit>,
    _permit: OwnedSemaphorePermit,
}

impl ServerPlace {
    /// Waits until somebody waits for a place while no exchange is under way on this connection.
    pub async fn is_wanted(&self, transport: &Transport) {
        loop {
            self.limit.is_wanted.notified().await;
            if !transport.is_busy() {
                return;
            }
        }
    }
}

/// What a request got that needs a connection.
pub(super) enum ConnectionGrant<C = IdleConnection> {
    /// The place for a new one.
    Place(ServerPlace),
    /// One that another request no longer needs, or that has room for this one, too.
    Connection(C),
}

/// A request that waits and is counted, until it has got a connection or this value is dropped.
#[derive(Clone)]
struct WaitingRequest {
    limit: Arc<ServerLimit>,
    is_counted: Rc<Cell<bool>>,
}

impl WaitingRequest {
    /// Counts a request that begins to wait. *Returns*: also how many waited before.
    fn begin(limit: &Arc<ServerLimit>) -> (WaitingRequest, usize) {
        let before = limit.waiting.fetch_add(1, Ordering::Relaxed);
        (WaitingRequest { limit: limit.clone(), is_counted: Rc::new(Cell::new(true)) }, before)
    }

    fn end(&self) {
        if self.is_counted.replace(false) {
            self.limit.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Ends the wait of a request when it is dropped.
struct WaitGuard(WaitingRequest);

impl Drop for WaitGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl ServerLimit {
    /// A server without connections.
    pub fn new(rule: LimitRule) -> Arc<ServerLimit> {
        let places = Arc::new(Semaphore::new(rule.connections_max.min(Semaphore::MAX_PERMITS)));
        Arc::new(ServerLimit { rule, places, waiting: AtomicUsize::new(0), is_wanted: Notify::new() })
    }

    /// The connections that there may be at a time.
    pub fn connections_max(&self) -> usize {
        self.rule.connections_max
    }

    /// The requests that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A place, if one is free.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<ServerPlace> {
        let permit = self.places.clone().try_acquire_owned().ok()?;
        Some(ServerPlace { limit: self.clone(), _permit: permit })
    }

    /// Waits for a place, or for a connection that `handed` brings.
    ///
    /// *Errors*: [`FetchError::Busy`] if too many wait, or when the time is over. *Cancel safety*: dropping the future gives
    /// the turn to the next.
    async fn wait<C>(
        self: &Arc<Self>,
        stats: &WorkerStats,
        (waiting, before): (WaitingRequest, usize),
        handed: impl Future<Output = Option<C>>,
    ) -> Result<ConnectionGrant<C>, FetchError> {
        let _ending = WaitGuard(waiting);
        if before >= self.rule.queue_max {
            stats.queue_refusals.add(1);
            return Err(FetchError::Busy(format!("{before} requests wait for one already")));
        }
        stats.queued.add(1);
        // While somebody waits, no connection stays unused: only the first one finds such connections.
        if before == 0 {
            self.is_wanted.notify_waiters();
        }
        tokio::select! {
            biased;
            Some(connection) = handed => Ok(ConnectionGrant::Connection(connection)),
            Ok(permit) = self.places.clone().acquire_owned() => {
                Ok(ConnectionGrant::Place(ServerPlace { limit: self.clone(), _permit: permit }))
            }
            () = tokio::time::sleep(self.rule.queue_time) => {
                stats.queue_refusals.add(1);
                Err(FetchError::Busy(format!("none was free for {:?}", self.rule.queue_time)))
            }
        }
    }

    /// Waits for a place, as [`ServerQueues::get`] does.
    pub(super) async fn take(self: &Arc<Self>, stats: &WorkerStats) -> Result<ServerPlace, FetchError> {
        if let Some(place) = self.try_take() {
            return Ok(place);
        }
        match self.wait(stats, WaitingRequest::begin(self), std::future::pending::<Option<IdleConnection>>()).await? {
            ConnectionGrant::Place(place) => Ok(place),
            ConnectionGrant::Connection(_) => Err(FetchError::Busy("it was given to another request".to_owned())),
        }
    }

    /// Waits for a place, as [`ServerQueues::get`] does, or for the connection that `found` brings.
    pub(super) async fn take_or<C>(
        self: &Arc<Self>,
        stats: &WorkerStats,
        found: impl Future<Output = Option<C>>,
    ) -> Result<ConnectionGrant<C>, FetchError> {
        self.wait(stats, WaitingRequest::begin(self), found).await
    }
}

/// A request that waits, and how it is given a connection.
struct ConnectionWaiter {
    hand: oneshot::Sender<IdleConnection>,
    waiting: WaitingRequest,
}

/// The requests of one worker that wait for a connection to a server.
#[derive(Default)]
pub(super) struct ServerQueues {
    queues: RefCell<HashMap<Destination, VecDeque<ConnectionWaiter>>>,
    /// The connections that were no longer needed while others waited, too.
    turns: Cell<u32>,
}

impl ServerQueues {
    /// Gets a place for a connection, or a connection. *Errors*: [`FetchError::Busy`].
    pub async fn get(
        &self,
        to: &Destination,
        limit: &Arc<ServerLimit>,
        stats: &WorkerStats,
    ) -> Result<ConnectionGrant, FetchError> {
        if let Some(place) = limit.try_take() {
            return Ok(ConnectionGrant::Place(place));
        }
        let (hand, handed) = oneshot::channel();
        let (waiting, before) = WaitingRequest::begin(limit);
        {
            let mut queues = self.queues.borrow_mut();
            let queue = queues.entry(to.clone()).or_default();
            queue.retain(|waiter| !waiter.hand.is_closed());
            queue.push_back(ConnectionWaiter { hand, waiting: waiting.clone() });
        }
        let handed = async {
            let connection = handed.await.ok()?;
            connection.watch.transport.end();
            Some(connection)
        };
        limit.wait(stats, (waiting, before), handed).await
    }

    /// Gives a connection that is no longer needed to a request of this worker that waits for one. *Returns*: the connection
    /// if nobody waits anywhere. If somebody waits elsewhere alone, it is closed.
    pub fn hand_over(
        &self,
        to: &Destination,
        limit: &ServerLimit,
        mut connection: IdleConnection,
    ) -> Option<IdleConnection> {
        let waiting = limit.waiting();
        if waiting == 0 {
            return Some(connection);
        }
        let mut queues = self.queues.borrow_mut();
        let queue = queues.get_mut(to)?;
        queue.retain(|waiter| !waiter.hand.is_closed());
        if waiting > queue.len() {
            self.turns.set(self.turns.get().wrapping_add(1));
            if self.turns.get().is_multiple_of(OTHERS_TURN) {
                return None;
            }
        }
        while let Some(waiter) = queue.pop_front() {
            // It is not unused on its way.
            connection.watch.transport.begin();
            match waiter.hand.send(connection) {
                Ok(()) => {
                    waiter.waiting.end();
                    return None;
                }
                Err(back) => connection = back,
            }
            connection.watch.transport.end();
        }
        None
    }

    /// Forgets the servers for which nobody waits.
    pub fn sweep(&self) {
        self.queues.borrow_mut().retain(|_, queue| {
            queue.retain(|waiter| !waiter.hand.is_closed());
            !queue.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: LimitRule = LimitRule { connections_max: 2, queue_max: 1, queue_time: Duration::from_secs(5) };

    #[tokio::test(start_paused = true)]
    async fn server_wait_is_bounded() {
        let (limit, stats) = (ServerLimit::new(RULE), WorkerStats::default());
        let first = limit.take(&stats).await.expect("a place");
        let _second = limit.take(&stats).await.expect("a place");
        assert!(limit.try_take().is_none());
        let begin = tokio::time::Instant::now();
        assert!(matches!(limit.take(&stats).await, Err(FetchError::Busy(_))));
        assert_eq!((begin.elapsed(), limit.waiting()), (RULE.queue_time, 0));
        let wait = limit.take(&stats);
        let crowd = async {
            tokio::task::yield_now().await;
            assert!(matches!(limit.take(&stats).await, Err(FetchError::Busy(_))), "too many wait");
            drop(first);
        };
        let (waited, ()) = tokio::join!(wait, crowd);
        assert!(waited.is_ok());
        assert_eq!((stats.queued.get(), stats.queue_refusals.get(), begin.elapsed()), (2, 2, RULE.queue_time));
    }

    #[tokio::test(start_paused = true)]
    async fn wait_closes_unused_connection() {
        let (limit, stats) = (ServerLimit::new(LimitRule { connections_max: 1, ..RULE }), WorkerStats::default());
        let unused = limit.take(&stats).await.expect("a place");
        let transport = Transport::new(std::rc::Rc::default());
        let close = async {
            unused.is_wanted(&transport).await;
            drop(unused);
        };
        let ((), got) = tokio::join!(close, limit.take(&stats));
        assert!(got.is_ok());
    }
}
