//! Streams: who accesses, and the ledger of each: reads saved and lost against LRU, counted live.
//!
//! Owns: the slots of the streams that are told apart. Promises: at most [`STREAMS_MAX`] are; the last slot is shared
//! by all others. A stream that ended is forgotten: its slot goes to the next stream that finds none, and its sums to
//! the shared one. After each access `saved - lost` of all ledgers is the misses of one LRU over all streams, of the
//! same capacity, less those of the cache.

use std::fmt;

use crate::Stream;

/// How many streams are told apart: what the curves of one cost in memory is bounded by it.
pub(super) const STREAMS_MAX: usize = 16;
/// What the cache did for one stream; an estimate where ids are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Accesses.
    pub references: u64,
    /// Misses among them.
    pub misses: u64,
    /// Hits that LRU would have missed.
    pub saved: u64,
    /// Misses that LRU would have hit.
    pub lost: u64,
}

impl Ledger {
    /// The misses of LRU over the same accesses.
    pub fn misses_lru(&self) -> u64 {
        self.misses + self.saved - self.lost
    }

    /// Counts an access that stands for 2^`shift`.
    pub(super) fn count(&mut self, shift: u32, is_hit: bool, is_lru_hit: bool) {
        self.references += 1 << shift;
        self.misses += u64::from(!is_hit) << shift;
        self.saved += u64::from(is_hit && !is_lru_hit) << shift;
        self.lost += u64::from(!is_hit && is_lru_hit) << shift;
    }

    fn add(&mut self, other: &Ledger) {
        self.references += other.references;
        self.misses += other.misses;
        self.saved += other.saved;
        self.lost += other.lost;
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ledger { references, misses, saved, lost } = self;
        write!(formatter, "{misses} of {references} missed, {saved} saved and {lost} lost against LRU")
    }
}

/// One stream.
pub(super) struct Slot {
    /// Who it is; of the shared slot who came last.
    pub(super) stream: Stream,
    /// Its last access, by the clock of the sample.
    last: u64,
    pub(super) ledger: Ledger,
}

/// The streams that are told apart.
#[derive(Default)]
pub(super) struct Streams {
    pub(super) slots: Vec<Slot>,
    /// The slot of the last access, which is often the next one's.
    last: usize,
    /// Accesses so far.
    now: u64,
    is_shared: bool,
    /// A slot whose stream was forgotten by the last access.
    pub(super) forgotten: Option<usize>,
}

impl Streams {
    /// The slot of a stream of which an access is counted; it is given one where there is one. A stream ended that made
    /// none of the last `ended` accesses.
    pub(super) fn access(&mut self, stream: Stream, ended: u64) -> usize {
        self.now += 1;
        self.forgotten = None;
        let found = self.slots.get(self.last).is_some_and(|slot| slot.stream == stream);
        if !found {
            let known = self.slots.iter().position(|slot| slot.stream == stream);
            self.last = known.unwrap_or_else(|| self.admit(stream, ended));
        }
        self.slots[self.last].last = self.now;
        self.last
    }

    fn admit(&mut self, stream: Stream, ended: u64) -> usize {
        let slot = Slot { stream, last: self.now, ledger: Ledger::default() };
        if self.slots.len() < STREAMS_MAX {
            self.slots.push(slot);
            return self.slots.len() - 1;
        }
        self.is_shared = true;
        let shared = STREAMS_MAX - 1;
        let idle = (0..shared).min_by_key(|slot| self.slots[*slot].last).unwrap_or(shared);
        if self.slots[idle].last + ended > self.now {
            self.slots[shared].stream = stream;
            return shared;
        }
        let ended = std::mem::replace(&mut self.slots[idle], slot);
        self.slots[shared].ledger.add(&ended.ledger);
        self.forgotten = Some(idle);
        idle
    }

    /// A stream's ledger: its own, or the shared one once there is one; `None` where it has none.
    pub(super) fn ledger(&self, stream: Stream) -> Option<Ledger> {
        let own = self.slots.iter().find(|slot| slot.stream == stream);
        own.or(self.slots.last().filter(|_| self.is_shared)).map(|slot| slot.ledger)
    }
}
