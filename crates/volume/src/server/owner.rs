//! The owner of a volume's metadata: one task that does everything to the image and the journal, in order.
//!
//! Owns: the image, the log, and answers that wait until what they show is durable. Promises:
//! 1. Operations are applied in the order of their arrival; an append is in flight at most once at a time, and takes
//!    with it whatever was applied while the one before was written.
//! 2. No answer leaves before everything that was applied before it is durable, whether it changed something or only
//!    looked: nobody sees what a crash could undo.
//! 3. An operation is done once: one that is done already is answered with the stored reply.
//! 4. After an append failed, nothing is answered any more, and the server ends.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_block::SharedDevice;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::connection::{Reply, Shared};
use super::{ServerError, ServerOptions};
use crate::format::{Session, Transaction};
use crate::journal::Log;
use crate::metadata::Image;
use crate::protocol::{Answer, Code, Failure, Operation, Question};

/// Requests that wait for the owner.
pub(super) const REQUESTS_MAX: usize = 4096;
/// Transactions of an append.
const BATCH_MAX: usize = 1024;
/// How often the owner looks whether there is work of its own.
const TICK: Duration = Duration::from_millis(100);

/// What the owner is asked to do.
pub(super) enum Request {
    /// An operation of a session.
    Operate { session: u64, number: u64, operation: Operation, reply: Reply },
    /// A question of a session.
    Ask { session: u64, question: Question, reply: Reply },
    /// A session begins: its number.
    Begin { session: Session, reply: Number },
    /// A session is there again.
    Resume { session: u64, incarnation: [u8; 16], reply: Number },
    /// Replies up to this number are not needed, and freed extents of appends up to this one are in no cached map.
    Acknowledge { session: u64, acknowledged: u64, drained: u64 },
    /// A session ended by itself: everything is returned.
    Goodbye { session: u64, reply: Reply },
    /// An operator says that a session's host writes nothing any more.
    Release { session: u64, reply: Number },
}

/// An answer with a number.
pub(super) type Number = oneshot::Sender<Result<u64, Failure>>;

/// An answer that waits until it may be given.
enum Held {
    Call(Reply, Result<Answer, Failure>),
    Number(Number, Result<u64, Failure>),
}

impl Held {
    fn release(self) {
        // Who asked may have gone.
        match self {
            Held::Call(reply, answer) => reply.send(answer),
            Held::Number(reply, answer) => drop(reply.send(answer)),
        }
    }
}

/// What a server has, for its status.
#[derive(Debug, Clone, Default)]
pub struct Overview {
    /// The epoch of this leadership.
    pub epoch: u64,
    /// Sessions, with what is stored of them.
    pub sessions: Vec<(u64, Session)>,
    /// Operations that were done.
    pub operations: u64,
    /// Questions that were answered.
    pub questions: u64,
    /// Appends of the journal.
    pub appends: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// *Units*: blocks.
    pub blocks: u64,
    /// *Units*: blocks.
    pub free: u64,
    /// In use.
    pub inodes: u64,
}

/// The server's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// An append in flight; it gives the log back.
type InFlight = Pin<Box<dyn Future<Output = (Log, Result<u64, crate::journal::Error>)> + Send>>;

/// The owner.
pub(super) struct Owner {
    image: Image,
    /// Not there while an append is in flight.
    log: Option<Log>,
    in_flight: Option<InFlight>,
    /// Answers that wait for the append in flight.
    held: Vec<Held>,
    /// What was applied since it began, and the answers that wait for that.
    next: Vec<Transaction>,
    next_held: Vec<Held>,
    overview: Overview,
}

impl Owner {
    /// Serves requests until it is told to stop.
    ///
    /// *Errors*: what could not be stored; nothing is answered after that.
    pub async fn run(
        mut self,
        mut requests: mpsc::Receiver<Request>,
        seen: watch::Sender<Overview>,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), ServerError> {
        let mut ticks = ticking();
        loop {
            tokio::select! {
                biased;
                (log, result) = appended(&mut self.in_flight) => self.settle(log, result)?,
                Some(request) = requests.recv(), if self.next.len() < BATCH_MAX => {
                    self.apply(request);
                    while self.next.len() < BATCH_MAX && let Ok(request) = requests.try_recv() {
                        self.apply(request);
                    }
                }
                _ = ticks.tick() => {
                    self.background().await?;
                    let _ = seen.send_replace(self.overview());
                }
                _ = stopped.wait_for(|stopped| *stopped) => break,
            }
            self.begin_append().await?;
        }
        // What was applied and not answered is stored, too: clients ask the next server.
        while self.in_flight.is_some() || !self.next.is_empty() {
            let (log, result) = appended(&mut self.in_flight).await;
            self.settle(log, result)?;
            self.begin_append().await?;
        }
        self.resign().await
    }

    /// Begins an append if none is in flight and there is something to store or to answer.
    async fn begin_append(&mut self) -> Result<(), ServerError> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        if self.next.is_empty() {
            // Everything that was applied is durable.
            self.next_held.drain(..).for_each(Held::release);
            self.log = Some(log);
            return Ok(());
        }
        let transactions = std::mem::take(&mut self.next);
        self.held = std::mem::take(&mut self.next_held);
        self.in_flight = Some(Box::pin(async move {
            let result = log.append(transactions).await;
            (log, result)
        }));
        Ok(())
    }

    fn settle(&mut self, log: Log, result: Result<u64, crate::journal::Error>) -> Result<(), ServerError> {
        self.in_flight = None;
        self.log = Some(log);
        result?;
        self.overview.appends += 1;
        self.held.drain(..).for_each(Held::release);
        Ok(())
    }

    /// Gives an answer when everything that was applied so far is durable.
    fn hold(&mut self, held: Held) {
        match (&self.in_flight, self.next.is_empty()) {
            (Some(_), true) => self.held.push(held),
            _ => self.next_held.push(held),
        }
    }
}

fn ticking() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits for the append in flight; for ever if there is none.
async fn appended(in_flight: &mut Option<InFlight>) -> (Log, Result<u64, crate::journal::Error>) {
    match in_flight {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
