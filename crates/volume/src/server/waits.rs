//! What the owner task waits for: appends, points in time, ticks.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use crate::journal::{Error, LeaderJournal};

/// How often the owner looks for background work.
const TICK: Duration = Duration::from_millis(100);

/// An append in flight; it returns the log when it ends.
pub(super) type InFlight = Pin<Box<dyn Future<Output = (LeaderJournal, Result<u64, Error>)> + Send>>;

/// Waits until a time, or for ever if none is given.
pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Makes the ticks; missed ticks are skipped.
pub(super) fn ticking() -> Interval {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Waits for the append in flight, or for ever if there is none.
pub(super) async fn appended(in_flight: &mut Option<InFlight>) -> (LeaderJournal, Result<u64, Error>) {
    match in_flight {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
