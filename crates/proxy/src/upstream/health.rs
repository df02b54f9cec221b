//! Which origins are failing.
//!
//! Owns: the count of each origin's failures in a row, which all workers share, and the probes of failing origins. While
//! an origin is failing, a stale response that may be served on a failure is served at once, and one request at a time
//! asks the origin whether it is back. An origin is failing after some failures in a row (a rule says how many), and at
//! once if it could not be connected to in time, because each further request would wait as long. Any success ends this.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::{CONNECTING, FetchError, LOOKUP};
use crate::rules::key::UrlOrigin;
use crate::rules::serve::OriginFailure;

/// What counts as that many failures in a row: more than any rule says.
const AT_ONCE: u32 = 1_000_000;

/// The maximum number of origins with failures. When there are more, all are forgotten.
const ORIGINS_MAX: usize = 4096;

/// When an origin, or a server of one, is failing, and how often it is then probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EjectRule {
    /// The failures in a row from which on it is failing.
    pub failures: u32,
    /// The time from the end of one probe to the begin of the next.
    pub pause: Duration,
}

impl Default for EjectRule {
    /// Fewer failures may be chance.
    fn default() -> EjectRule {
        EjectRule { failures: 3, pause: Duration::from_secs(1) }
    }
}

/// What a request may do for a server that is failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProbeBy {
    /// Nothing.
    Nobody,
    /// Connect to it, which says something only if its last failure was that nobody could.
    Connection,
    /// Be sent to it.
    Request,
}

/// An origin whose last exchange failed.
#[derive(Debug)]
struct FailingOrigin {
    failures: u32,
    last: OriginFailure,
    is_of_connecting: bool,
    is_probed: bool,
    /// The end of the last probe.
    probed: Option<Instant>,
}

/// The origins whose last exchange failed.
#[derive(Debug, Default)]
pub(crate) struct OriginHealth {
    origins: Mutex<HashMap<UrlOrigin, FailingOrigin>>,
    /// The number of these origins, so that a success without failing origins takes no lock.
    count: AtomicUsize,
}

/// The right to ask a failing origin whether it is back. The next probe begins a while after this value was dropped.
#[derive(Debug)]
pub(crate) struct OriginProbe {
    health: Arc<OriginHealth>,
    origin: UrlOrigin,
}

impl OriginHealth {
    /// Records that an origin gave no response for this reason, unless it is not to blame.
    pub fn note_failure(&self, origin: &UrlOrigin, error: &FetchError) {
        if error.is_blameless() || matches!(error, FetchError::TimedOut(LOOKUP)) {
            return;
        }
        let weight = if matches!(error, FetchError::TimedOut(CONNECTING)) { AT_ONCE } else { 1 };
        self.add(origin, weight, error.failure(), error.is_of_connecting());
    }

    /// Records that an origin has answered that it has failed.
    pub fn note_error(&self, origin: &UrlOrigin) {
        self.add(origin, 1, OriginFailure::Error, false);
    }

    fn add(&self, origin: &UrlOrigin, weight: u32, last: OriginFailure, is_of_connecting: bool) {
        let mut origins = self.origins();
        if origins.len() >= ORIGINS_MAX && !origins.contains_key(origin) {
            origins.clear();
        }
        let new = || FailingOrigin { failures: 0, last, is_of_connecting, is_probed: false, probed: None };
        let failing = origins.entry(origin.clone()).or_insert_with(new);
        failing.failures = failing.failures.saturating_add(weight);
        (failing.last, failing.is_of_connecting) = (last, is_of_connecting);
        self.count.store(origins.len(), Ordering::Relaxed);
    }

    /// Records that an origin has answered. *Cost*: an atomic load if no origin fails.
    pub fn note_success(&self, origin: &UrlOrigin) {
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

    /// The kind of failure if an origin is failing, and the right to probe it if `probe_by` may do so and nobody else does
    /// at `now`. *Returns*: `None` if it is not failing.
    pub fn look_at(
        self: &Arc<Self>,
        origin: &UrlOrigin,
        rule: &EjectRule,
        probe_by: ProbeBy,
        now: Instant,
    ) -> Option<(OriginFailure, Option<OriginProbe>)> {
        let mut origins = self.origins();
        let failing = origins.get_mut(origin).filter(|failing| failing.failures >= rule.failures)?;
        let may_probe = match probe_by {
            ProbeBy::Nobody => false,
            ProbeBy::Connection => failing.is_of_connecting,
            ProbeBy::Request => true,
        };
        Some((failing.last, if may_probe { self.probe(origin, failing, rule, now) } else { None }))
    }

    /// Whether an origin is failing, and the right to probe it, as [`look_at`](OriginHealth::look_at) says.
    pub fn standing(
        self: &Arc<Self>,
        origin: &UrlOrigin,
        rule: &EjectRule,
        probe_by: ProbeBy,
        now: Instant,
    ) -> Option<Option<OriginProbe>> {
        self.look_at(origin, rule, probe_by, now).map(|(_, probe)| probe)
    }

    /// Records that an origin accepts connections, which ends a failure that was about that.
    pub fn note_connected(&self, origin: &UrlOrigin) {
        if self.has_failing() {
            let mut origins = self.origins();
            if origins.get(origin).is_some_and(|failing| failing.is_of_connecting) {
                origins.remove(origin);
                self.count.store(origins.len(), Ordering::Relaxed);
            }
        }
    }

    fn probe(
        self: &Arc<Self>,
        origin: &UrlOrigin,
        failing: &mut FailingOrigin,
        rule: &EjectRule,
        now: Instant,
    ) -> Option<OriginProbe> {
        let is_due = !failing.is_probed && failing.probed.is_none_or(|last| last + rule.pause <= now);
        failing.is_probed |= is_due;
        is_due.then(|| OriginProbe { health: self.clone(), origin: origin.clone() })
    }

    fn origins(&self) -> MutexGuard<'_, HashMap<UrlOrigin, FailingOrigin>> {
        self.origins.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OriginProbe {
    fn drop(&mut self) {
        if let Some(failing) = self.health.origins().get_mut(&self.origin) {
            failing.is_probed = false;
            failing.probed = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule of an origin for which nothing else is said.
    const RULE: EjectRule = EjectRule { failures: 3, pause: Duration::from_secs(1) };

    fn origin(port: u16) -> UrlOrigin {
        UrlOrigin { https: false, host: "a".into(), port }
    }

    #[test]
    fn consecutive_failures_mark_origin_failing() {
        let (health, now) = (Arc::new(OriginHealth::default()), Instant::now());
        let refused = FetchError::Connect("refused".into());
        for _ in 0..RULE.failures - 1 {
            health.note_failure(&origin(1), &refused);
            health.note_failure(&origin(2), &refused);
        }
        assert!(health.look_at(&origin(1), &RULE, ProbeBy::Request, now).is_none());
        health.note_success(&origin(1));
        health.note_failure(&origin(1), &refused);
        health.note_error(&origin(2));
        assert!(health.look_at(&origin(1), &RULE, ProbeBy::Request, now).is_none());
        assert_eq!(health.look_at(&origin(2), &RULE, ProbeBy::Request, now).expect("failing").0, OriginFailure::Error);
        for blameless in [FetchError::OutOfReach, FetchError::Crowded, FetchError::TimedOut(LOOKUP)] {
            (0..RULE.failures).for_each(|_| health.note_failure(&origin(3), &blameless));
            assert!(!health.origins().contains_key(&origin(3)), "{blameless}");
        }
        health.note_failure(&origin(3), &FetchError::TimedOut(CONNECTING));
        assert_eq!(
            health.look_at(&origin(3), &RULE, ProbeBy::Request, now).expect("failing").0,
            OriginFailure::Unreachable
        );
        health.note_success(&origin(3));
        assert!(health.look_at(&origin(3), &RULE, ProbeBy::Request, now).is_none());
        let strict = EjectRule { failures: 1, ..RULE };
        health.note_failure(&origin(4), &refused);
        assert!(health.look_at(&origin(4), &RULE, ProbeBy::Request, now).is_none(), "each rule has its own number");
        assert!(health.look_at(&origin(4), &strict, ProbeBy::Request, now).is_some());
    }

    #[test]
    fn connecting_probes_what_refused_connections() {
        let (health, now) = (Arc::new(OriginHealth::default()), Instant::now());
        let refused = FetchError::Connect("refused".into());
        (0..3).for_each(|_| health.note_failure(&origin(1), &refused));
        (0..3).for_each(|_| health.note_error(&origin(2)));
        let standing = |port, by| health.standing(&origin(port), &RULE, by, now).expect("failing");
        assert!(standing(1, ProbeBy::Nobody).is_none() && standing(2, ProbeBy::Nobody).is_none());
        assert!(standing(2, ProbeBy::Connection).is_none(), "that it can be connected to was known");
        assert!(standing(1, ProbeBy::Connection).is_some() && standing(2, ProbeBy::Request).is_some());
    }

    #[test]
    fn connection_ends_failures_of_connecting_alone() {
        let (health, now) = (Arc::new(OriginHealth::default()), Instant::now());
        let refused = FetchError::Connect("refused".into());
        let is_failing = |port| health.standing(&origin(port), &RULE, ProbeBy::Nobody, now).is_some();
        (0..3).for_each(|_| health.note_failure(&origin(1), &refused));
        (0..3).for_each(|_| health.note_error(&origin(2)));
        // The last failure says what it is about.
        (0..2).for_each(|_| health.note_failure(&origin(3), &refused));
        health.note_error(&origin(3));
        (0..2).for_each(|_| health.note_error(&origin(4)));
        health.note_failure(&origin(4), &refused);
        (1..5).for_each(|port| health.note_connected(&origin(port)));
        assert_eq!([1, 2, 3, 4].map(is_failing), [false, true, true, false]);
    }

    #[test]
    fn one_request_at_a_time_probes() {
        let health = Arc::new(OriginHealth::default());
        let now = Instant::now();
        health.note_failure(&origin(1), &FetchError::TimedOut(CONNECTING));
        let may_probe = |now| health.look_at(&origin(1), &RULE, ProbeBy::Request, now).expect("failing").1;
        let probe = may_probe(now).expect("nobody probes");
        assert!(may_probe(now + 10 * RULE.pause).is_none());
        drop(probe);
        assert!(may_probe(now).is_none());
        assert!(may_probe(Instant::now() + RULE.pause).is_some());
    }

    #[test]
    fn failing_origins_are_bounded() {
        let health = OriginHealth::default();
        for port in 0..=ORIGINS_MAX as u16 {
            assert_eq!(health.count.load(Ordering::Relaxed), usize::from(port));
            health.note_error(&origin(port));
        }
        assert_eq!(health.count.load(Ordering::Relaxed), 1);
    }
}
