//! The times of the sessions' lease renewals.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::tokens::SessionSilence;

/// A session that has not renewed its lease for this long is silent.
const SILENCE: Duration = Duration::from_secs(10);

/// The lease renewals of sessions. The begin of a session counts as a renewal; for an earlier session that has not renewed
/// since the server started, the start does.
pub(super) struct LeaseRenewals {
    started: Instant,
    renewals: HashMap<u64, Instant>,
    /// The last answered renewal of each session.
    answered: HashMap<u64, Instant>,
}

impl Default for LeaseRenewals {
    fn default() -> LeaseRenewals {
        LeaseRenewals { started: Instant::now(), renewals: HashMap::new(), answered: HashMap::new() }
    }
}

impl LeaseRenewals {
    /// Notes that a session begins.
    pub fn begun(&mut self, session: u64) {
        self.renewed(session, true);
    }

    /// Notes that a session renewed its lease, and whether the renewal is answered.
    pub fn renewed(&mut self, session: u64, is_answered: bool) {
        self.renewals.insert(session, Instant::now());
        if is_answered {
            self.answered.insert(session, Instant::now());
        }
    }

    /// Whether a session has not renewed its lease for longer than [`SILENCE`].
    pub fn is_silent(&self, session: u64) -> bool {
        self.since(&self.renewals, session) > SILENCE
    }

    /// Returns how long a session has been silent.
    pub fn silence(&self, session: u64) -> SessionSilence {
        let ms = |since: Duration| u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let (heard_ms, answered_ms) =
            (ms(self.since(&self.renewals, session)), ms(self.since(&self.answered, session)));
        SessionSilence { heard_ms, answered_ms }
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.renewals.remove(&session);
        self.answered.remove(&session);
    }

    fn since(&self, times: &HashMap<u64, Instant>, session: u64) -> Duration {
        times.get(&session).unwrap_or(&self.started).elapsed()
    }
}
