//! The leader's lease, as everything that speaks for the leader sees it.
//!
//! Owns: the time from which the lease counts, and whether it is over for good. Promises: it can be read at any time,
//! also while an append or a renewal hangs in the disk. It counts from before the last successful renewal was written,
//! on the clock that is furthest ahead: one that also runs while the host is suspended, or that of the runtime. Leaves
//! to others: renewing it (`lease`).

use std::sync::Arc;
use std::time::Duration;

use nectary_host::clock::since_boot;
use tokio::sync::watch;
use tokio::time::Instant;

/// A moment, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockMoment {
    runtime: Instant,
    boot: Duration,
}

impl ClockMoment {
    pub fn now() -> ClockMoment {
        ClockMoment { runtime: Instant::now(), boot: since_boot() }
    }

    /// Returns the time since this moment.
    pub fn elapsed(self) -> Duration {
        self.runtime.elapsed().max(since_boot().saturating_sub(self.boot))
    }
}

/// The state of the lease.
#[derive(Debug, Clone, Copy)]
enum LeaseStanding {
    /// It was not renewed yet.
    None,
    /// It counts from this moment.
    Since(ClockMoment),
    /// It is lost, or was given up; it never holds again.
    Over,
}

/// The lease of a leader. Clones share it.
#[derive(Debug, Clone)]
pub struct LeaderLease {
    standing: Arc<watch::Sender<LeaseStanding>>,
    length: Duration,
}

impl LeaderLease {
    /// Makes a lease of this length that does not hold yet.
    pub(super) fn new(length: Duration) -> LeaderLease {
        LeaderLease { standing: Arc::new(watch::Sender::new(LeaseStanding::None)), length }
    }

    /// Returns the length of the lease.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Returns the time since the last successful renewal began; `None` if there was none, or if the lease is over.
    fn elapsed(&self) -> Option<Duration> {
        match *self.standing.borrow() {
            LeaseStanding::Since(moment) => Some(moment.elapsed()),
            LeaseStanding::None | LeaseStanding::Over => None,
        }
    }

    /// Whether the lease is valid now, so that this process may speak as the leader.
    pub fn holds(&self) -> bool {
        self.elapsed().is_some_and(|elapsed| elapsed < self.length)
    }

    /// Whether the lease must be renewed now.
    pub(super) fn is_due(&self) -> bool {
        self.elapsed().is_none_or(|elapsed| elapsed * 3 >= self.length)
    }

    /// Waits until the lease holds. Returns `false` if it is over for good.
    ///
    /// A renewal that succeeds late shows that nobody else has led in the meantime, so what waited may go on.
    pub async fn wait(&self) -> bool {
        let mut standing = self.standing.subscribe();
        loop {
            if matches!(*standing.borrow_and_update(), LeaseStanding::Over) {
                return false;
            }
            if self.holds() {
                return true;
            }
            if standing.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Counts the lease from this moment: the renewal that began then succeeded.
    pub(super) fn renewed(&self, since: ClockMoment) {
        self.standing.send_if_modified(|standing| {
            let is_over = matches!(standing, LeaseStanding::Over);
            if !is_over {
                *standing = LeaseStanding::Since(since);
            }
            !is_over
        });
    }

    /// Ends the lease for good.
    pub fn end(&self) {
        self.standing.send_replace(LeaseStanding::Over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lease_counts_from_renewal_start() {
        let lease = LeaderLease::new(Duration::from_secs(1));
        assert!(!lease.holds() && lease.is_due());
        let begun = ClockMoment::now();
        tokio::time::advance(Duration::from_millis(400)).await;
        lease.renewed(begun);
        assert!(lease.holds() && lease.is_due());
        tokio::time::advance(Duration::from_millis(599)).await;
        assert!(lease.holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!lease.holds());
    }

    /// A wait also ends with a renewal.
    #[tokio::test(start_paused = true)]
    async fn lease_wait_ends_with_lease() {
        let lease = LeaderLease::new(Duration::from_secs(1));
        let waiting = |lease: LeaderLease| tokio::spawn(async move { lease.wait().await });
        let first = waiting(lease.clone());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!first.is_finished());
        lease.renewed(ClockMoment::now());
        assert!(first.await.expect("it ends"));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let second = waiting(lease.clone());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(!second.is_finished());
        lease.end();
        assert!(!second.await.expect("it ends"));
        // What is over stays over.
        lease.renewed(ClockMoment::now());
        assert!(!lease.holds() && !lease.wait().await);
    }
}
