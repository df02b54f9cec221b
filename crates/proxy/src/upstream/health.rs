//! Which origins are failing.
//!
//! Owns: the count of each origin's failures in a row, which all workers share, and the probes of failing origins. While
//! an origin is failing, a stale response that may be served on a failure is served at once, and one request at a time
//! asks the origin whether it is back. An origin is failing after a few failures in a row, and at once if it could not be
//! connected to in time, because each further request would wait as long. Any success ends this.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::{CONNECTING, FetchError, LOOKUP};
use crate::rules::key::Origin;
use crate::rules::serve::Failure;

/// The number of failures in a row after which an origin is failing. Fewer may be chance.
const FAILURES_MIN: u32 = 3;

/// The pause between the probes of an origin.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// The maximum number of origins with failures. When there are more, all are forgotten.
const ORIGINS_MAX: usize = 4096;

/// An origin whose last exchange failed.
#[derive(Debug)]
struct Failing {
    failures: u32,
    last: Failure,
    is_probed: bool,
    next_probe: Option<Instant>,
}

/// The origins whose last exchange failed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    origins: Mutex<HashMap<Origin, Failing>>,
    /// The number of these origins, so that a success without failing origins takes no lock.
    count: AtomicUsize,
}

/// The right to ask a failing origin whether it is back. The next probe begins a while after this value was dropped.
#[derive(Debug)]
pub(crate) struct Probe {
    health: Arc<Health>,
    origin: Origin,
}

impl Health {
    /// Records that an origin gave no response for this reason, unless it is not to blame.
    pub fn note_failure(&self, origin: &Origin, error: &FetchError) {
        let weight = match error {
            FetchError::TimedOut(CONNECTING) => FAILURES_MIN,
            FetchError::TimedOut(LOOKUP) | FetchError::Client(_) | FetchError::OutOfReach | FetchError::Crowded => {
                return;
            }
            _ => 1,
        };
        self.add(origin, weight, error.failure());
    }

    /// Records that an origin has answered that it has failed.
    pub fn note_error(&self, origin: &Origin) {
        self.add(origin, 1, Failure::Error);
    }

    fn add(&self, origin: &Origin, weight: u32, last: Failure) {
        let mut origins = self.origins();
        if origins.len() >= ORIGINS_MAX && !origins.contains_key(origin) {
            origins.clear();
        }
        let new = || Failing { failures: 0, last, is_probed: false, next_probe: None };
        let failing = origins.entry(origin.clone()).or_insert_with(new);
        failing.failures = failing.failures.saturating_add(weight);
        failing.last = last;
        self.count.store(origins.len(), Ordering::Relaxed);
    }

    /// Records that an origin has answered. *Cost*: an atomic load if no origin fails.
    pub fn note_success(&self, origin: &Origin) {
        if self.has_failing() {
            let mut origins = self.origins();
            origins.remove(origin);
            self.count.store(origins.len(), Ordering::Relaxed);
        }
    }

    /// Whether any origin may be failing.
    pub fn has_failing(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// The kind of failure if an origin is failing, and the right to probe it if nobody does at `now`.
    pub fn look_at(self: &Arc<Self>, origin: &Origin, now: Instant) -> Option<(Failure, Option<Probe>)> {
        let mut origins = self.origins();
        let failing = origins.get_mut(origin).filter(|failing| failing.failures >= FAILURES_MIN)?;
        let is_due = !failing.is_probed && failing.next_probe.is_none_or(|next| next <= now);
        failing.is_probed |= is_due;
        let probe = is_due.then(|| Probe { health: self.clone(), origin: origin.clone() });
        Some((failing.last, probe))
    }

    /// Whether an origin is failing, and the right to probe it if `may_probe` and nobody does. *Returns*: `None` if it is
    /// not failing.
    pub fn standing(self: &Arc<Self>, origin: &Origin, may_probe: bool, now: Instant) -> Option<Option<Probe>> {
        if may_probe {
            return self.look_at(origin, now).map(|(_, probe)| probe);
        }
        let origins = self.origins();
        origins.get(origin).filter(|failing| failing.failures >= FAILURES_MIN).map(|_| None)
    }

    fn origins(&self) -> MutexGuard<'_, HashMap<Origin, Failing>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(failing) = self.health.origins().get_mut(&self.origin) {
            failing.is_probed = false;
            failing.next_probe = Some(Instant::now() + PROBE_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(port: u16) -> Origin {
        Origin { https: false, host: "a".into(), port }
    }

    #[test]
    fn an_origin_is_failing_after_failures_in_a_row() {
        let (health, now) = (Arc::new(Health::default()), Instant::now());
        let refused = FetchError::Connect("refused".into());
        for _ in 0..FAILURES_MIN - 1 {
            health.note_failure(&origin(1), &refused);
            health.note_failure(&origin(2), &refused);
        }
        assert!(health.look_at(&origin(1), now).is_none());
        health.note_success(&origin(1));
        health.note_failure(&origin(1), &refused);
        health.note_error(&origin(2));
        assert!(health.look_at(&origin(1), now).is_none());
        assert_eq!(health.look_at(&origin(2), now).expect("failing").0, Failure::Error);
        for blameless in [FetchError::OutOfReach, FetchError::Crowded, FetchError::TimedOut(LOOKUP)] {
            (0..FAILURES_MIN).for_each(|_| health.note_failure(&origin(3), &blameless));
            assert!(!health.origins().contains_key(&origin(3)), "{blameless}");
        }
        health.note_failure(&origin(3), &FetchError::TimedOut(CONNECTING));
        assert_eq!(health.look_at(&origin(3), now).expect("failing").0, Failure::Unreachable);
        health.note_success(&origin(3));
        assert!(health.look_at(&origin(3), now).is_none());
    }

    #[test]
    fn one_request_at_a_time_probes() {
        let health = Arc::new(Health::default());
        let now = Instant::now();
        health.note_failure(&origin(1), &FetchError::TimedOut(CONNECTING));
        let may_probe = |now| health.look_at(&origin(1), now).expect("failing").1;
        let probe = may_probe(now).expect("nobody probes");
        assert!(may_probe(now + 10 * PROBE_EVERY).is_none());
        drop(probe);
        assert!(may_probe(now).is_none());
        assert!(may_probe(Instant::now() + PROBE_EVERY).is_some());
    }

    #[test]
    fn failing_origins_are_bounded() {
        let health = Health::default();
        for port in 0..=ORIGINS_MAX as u16 {
            assert_eq!(health.count.load(Ordering::Relaxed), usize::from(port));
            health.note_error(&origin(port));
        }
        assert_eq!(health.count.load(Ordering::Relaxed), 1);
    }
}
