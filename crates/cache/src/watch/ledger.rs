//! The ledger: for each stream, the reads that the cache saves and loses in comparison with LRU, counted live.
//!
//! Owns: four sums per stream. Promises: for each stream, `saved - lost` is the number of misses that an LRU of the
//! same memory, shared by all streams, has on this stream's accesses, minus the number of misses that the cache has
//! on them. The first `STREAMS_MAX` - 1 streams have their own sums; all other streams share the last sums. Leaves to
//! others: the simulation of the LRU.
//!
//! An access is *saved* if that LRU would have missed and the cache hit; it is *lost* if the LRU would have hit and the
//! cache missed.

use std::fmt;

use crate::StreamId;

/// The largest number of ledgers, including the one that all further streams share.
pub(super) const STREAMS_MAX: usize = 16;

/// The accesses of one stream that the cache saved and lost in comparison with LRU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamLedger {
    /// The number of accesses.
    pub references: u64,
    /// The number of misses among the accesses.
    pub misses: u64,
    /// The number of hits that LRU would have missed.
    pub saved: u64,
    /// The number of misses that LRU would have hit.
    pub lost: u64,
}

impl StreamLedger {
    /// Counts an access.
    pub(super) fn count(&mut self, is_hit: bool, is_lru_hit: bool) {
        self.references += 1;
        self.misses += u64::from(!is_hit);
        self.saved += u64::from(is_hit && !is_lru_hit);
        self.lost += u64::from(!is_hit && is_lru_hit);
    }

    /// The number of misses that LRU would have had over the same accesses.
    pub fn misses_lru(&self) -> u64 {
        self.misses + self.saved - self.lost
    }
}

/// The ledgers by slot, each with its stream; the shared slot names the stream that used it last.
#[derive(Default)]
pub(super) struct LedgerTable {
    slots: Vec<(StreamId, StreamLedger)>,
    /// The slot of the last access; the next access often has the same slot.
    last: usize,
    is_shared: bool,
}

impl LedgerTable {
    /// The slot of a stream that makes an access. A new stream gets a slot.
    pub(super) fn slot(&mut self, stream: StreamId) -> usize {
        if self.slots.get(self.last).is_none_or(|slot| slot.0 != stream) {
            let known = self.slots.iter().position(|slot| slot.0 == stream);
            self.last = known.unwrap_or_else(|| self.admit(stream));
        }
        self.last
    }

    fn admit(&mut self, stream: StreamId) -> usize {
        if self.slots.len() < STREAMS_MAX {
            self.slots.push((stream, StreamLedger::default()));
        } else {
            self.is_shared = true;
            self.slots[STREAMS_MAX - 1].0 = stream;
        }
        self.slots.len() - 1
    }

    /// The ledger of a slot.
    pub(super) fn of_slot(&mut self, slot: usize) -> &mut StreamLedger {
        &mut self.slots[slot].1
    }

    /// The ledger of a stream, or the shared ledger if the stream has none of the others.
    pub(super) fn ledger(&self, stream: StreamId) -> Option<StreamLedger> {
        let own = self.slots.iter().find(|slot| slot.0 == stream);
        own.or(self.slots.last().filter(|_| self.is_shared)).map(|slot| slot.1)
    }
}

impl fmt::Display for StreamLedger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StreamLedger { references, misses, saved, lost } = self;
        write!(formatter, "{misses} of {references} missed, {saved} saved and {lost} lost against LRU")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_is_difference_to_lru() {
        let mut ledger = StreamLedger::default();
        for (is_hit, is_lru_hit, times) in [(true, true, 5), (true, false, 4), (false, true, 3), (false, false, 2)] {
            (0..times).for_each(|_| ledger.count(is_hit, is_lru_hit));
        }
        assert_eq!(ledger, StreamLedger { references: 14, misses: 5, saved: 4, lost: 3 });
        assert_eq!(ledger.misses_lru(), 6);
        assert_eq!(ledger.to_string(), "5 of 14 missed, 4 saved and 3 lost against LRU");
    }

    #[test]
    fn excess_streams_share_one_ledger() {
        let mut ledgers = LedgerTable::default();
        let count = |ledgers: &mut LedgerTable, stream| {
            let slot = ledgers.slot(StreamId(stream));
            ledgers.of_slot(slot).count(false, false);
        };
        (0..16).for_each(|stream| count(&mut ledgers, stream));
        assert_eq!(ledgers.ledger(StreamId(16)), None);
        (16..40).for_each(|stream| count(&mut ledgers, stream));
        let references = |stream| ledgers.ledger(StreamId(stream)).map(|ledger| ledger.references);
        assert_eq!([0, 15, 20, 39].map(references), [Some(1), Some(25), Some(25), Some(25)]);
    }
}
