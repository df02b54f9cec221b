//! Spans that fail during a purge.
//!
//! Owns: the promise of such a purge. If it returns without an error, each other span has recorded the loss of the span,
//! so that the store opens without it; or the span failed only some operations, and has the purge.

use std::time::Duration;

use super::SpansRun;
use crate::store::primary;

/// The largest number of operations that a span fails if it does not fail for good. More failures in a row than the
/// store tolerates are possible.
const FAILURES_MAX: u64 = 12;
/// A span fails at most this long after the beginning of the purge, in milliseconds.
const LATE_MS: u64 = 8;
/// The number of keys that are searched for one on the span.
const TRIES_MAX: u32 = 20;
/// The number of purges after the failure of a span that does not fail for good.
const LATER_PURGES: u32 = 3;

impl SpansRun {
    /// Purges a key while its span fails, for good or for some operations.
    pub(super) async fn fail_in_purge(&mut self) {
        let there: Vec<usize> = (0..self.devices.len()).filter(|span| !self.devices[*span].is_away).collect();
        if there.len() < 2 {
            return;
        }
        let failing = there[self.random.below(there.len() as u64) as usize];
        let key = self.key_on(failing as u32).await;
        let store = self.store();
        let name = primary(key);
        let mut purge = Box::pin(store.purge_key(&name));
        // Usually the span fails before the purge comes to its device, and otherwise at any later moment.
        let is_early = self.random.chance(60);
        let late = Duration::from_millis(self.random.below(LATE_MS));
        let ended = match is_early {
            true => None,
            false => tokio::time::timeout(late, &mut purge).await.ok(),
        };
        let is_for_good = self.random.chance(50);
        match is_for_good {
            true => self.devices[failing].off.set(true),
            false => self.devices[failing].off.fail(1 + self.random.below(FAILURES_MAX)),
        }
        let is_good = match ended {
            Some(purged) => purged.is_ok(),
            None => purge.await.is_ok(),
        };
        self.purged(is_good, |other| other == key);
        self.report.failed_in_purge[usize::from(!is_for_good)] += 1;
        if !is_for_good {
            self.devices[failing].off.fail(0);
            self.purge_later().await;
            return;
        }
        self.devices[failing].is_away = true;
        self.report.losses += 1;
        if is_early && is_good {
            // Nothing else happens in this life: only the purge can have recorded the loss.
            let way = if self.random.chance(50) { 0 } else { 2 };
            self.end(way).await;
            self.missing = Some(self.devices.iter().map(|device| device.is_away).collect());
            self.reopen().await;
        }
    }

    /// A key that is found on a span, if one is soon found.
    async fn key_on(&mut self, span: u32) -> u32 {
        let mut key = 0;
        for _ in 0..TRIES_MAX {
            key = self.random.below(self.expected.len() as u64) as u32;
            if self.store().span_of(&primary(key)) == Some(span) && self.get(key).await {
                break;
            }
        }
        key
    }

    /// Purges other keys, so that the span has later purges than the one during which it failed. If the store has lost
    /// the span, it is away from now on.
    async fn purge_later(&mut self) {
        for _ in 0..LATER_PURGES {
            let key = self.random.below(self.expected.len() as u64) as u32;
            self.purge_key(key).await;
        }
        let _ = self.store().sync().await;
        for span in self.store().stat().spans.iter().filter(|span| span.lost.is_some()) {
            let device = &mut self.devices[span.number as usize];
            self.report.losses += u64::from(!device.is_away);
            device.is_away = true;
            device.off.set(true);
        }
    }
}
