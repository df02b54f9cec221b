//! When sessions were last heard of.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::tokens::Silence;

/// A session is silent after so long without a renewal.
const SILENCE: Duration = Duration::from_secs(10);

/// Renewals of leases. A session that has not renewed since the server started counts from then.
pub(super) struct Presence {
    started: Instant,
    renewals: HashMap<u64, Instant>,
    /// Renewals that were answered.
    answered: HashMap<u64, Instant>,
}

impl Default for Presence {
    fn default() -> Presence {
        Presence { started: Instant::now(), renewals: HashMap::new(), answered: HashMap::new() }
    }
}

impl Presence {
    /// A session renewed its lease.
    pub fn renewed(&mut self, session: u64, is_answered: bool) {
        self.renewals.insert(session, Instant::now());
        if is_answered {
            self.answered.insert(session, Instant::now());
        }
    }

    /// Whether a session has not renewed its lease for longer than that lasts.
    pub fn is_silent(&self, session: u64) -> bool {
        self.since(&self.renewals, session) > SILENCE
    }

    /// How long a session has been silent.
    pub fn silence(&self, session: u64) -> Silence {
        let ms = |since: Duration| u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let (heard_ms, answered_ms) =
            (ms(self.since(&self.renewals, session)), ms(self.since(&self.answered, session)));
        Silence { heard_ms, answered_ms }
    }

    /// A session is over.
    pub fn forget(&mut self, session: u64) {
        self.renewals.remove(&session);
        self.answered.remove(&session);
    }

    fn since(&self, times: &HashMap<u64, Instant>, session: u64) -> Duration {
        times.get(&session).unwrap_or(&self.started).elapsed()
    }
}
