//! Watches a policy from outside: reports to a listener how the policy was accessed, and what it did.
//!
//! Owns: the verdict of each period of each stream (`verdict.rs`); the accesses saved and lost in comparison with LRU
//! (`ledger.rs`); after each window, the misses of the optimal policy that begins with the same contents (`window.rs`);
//! the events that report all this (`report.rs`). Promises: a watched policy decides as if it were not watched; summed
//! over all ledgers, `saved - lost` is exactly the number of LRU's misses minus the number of the policy's misses.
//! Leaves to others: all decisions.
//!
//! # Cost
//! If only periods are reported, each access touches one cache line of a table of at most 2 MiB (`histories.rs`).
//! Otherwise, an LRU is simulated too, and each access of a window takes up to 64 bytes.

mod histories;
mod ledger;
mod report;
#[cfg(test)]
mod tests;
mod verdict;
mod window;

pub use ledger::StreamLedger;
pub use report::{EventSink, PolicyEvent, StreamPeriod};
pub use window::WindowReport;

use crate::detect::{PeriodEvent, PeriodSink};
use crate::{AccessResult, LeaderChange, Lru, Policy, StreamId, table_bytes};

use histories::HistoryCache;
use ledger::LedgerTable;
use verdict::StreamDetection;
use window::OptimumWindow;

/// What decisions are compared with.
struct DecisionBaseline {
    lru: Lru,
    /// The size of a block, by which memory is computed. *Units*: bytes.
    block_bytes: u64,
    window: OptimumWindow,
}

/// The number of ids that an LRU holds in the memory of a policy of `capacity` ids: an LRU has smaller tables than most
/// policies, so it holds more blocks. *Units*: ids.
pub fn lru_capacity(policy: &str, capacity: u64, block_bytes: u64) -> u64 {
    let bytes =
        |policy, count: u64| u128::from(count) * u128::from(block_bytes) + u128::from(table_bytes(policy, count));
    let memory = bytes(policy, capacity);
    let most = memory / u128::from(block_bytes.max(1)) + 1;
    let (mut least, mut most) = (0, u64::try_from(most).unwrap_or(u64::MAX));
    while least + 1 < most {
        let middle = least + (most - least) / 2;
        if bytes("lru", middle) <= memory { least = middle } else { most = middle }
    }
    least
}

/// A policy with a listener.
///
/// ```
/// use nectary_cache::{AccessResult, Lirs, Policy, StreamId, WatchedPolicy};
///
/// let mut cache = WatchedPolicy::new(Box::new(Lirs::new(500)), 8192, Box::new(|event| println!("{event}")));
/// for step in 0..10_000 {
///     cache.reference(step % 1000, 1, StreamId(7), &mut |_| true);
/// }
/// // Under LRU a loop of 1000 blocks in a cache of 500 never hits.
/// let ledger = cache.ledger(StreamId(7)).expect("accessed");
/// assert_eq!((ledger.misses_lru(), ledger.lost), (10_000, 0));
/// ```
pub struct WatchedPolicy {
    policy: Box<dyn Policy>,
    ledgers: LedgerTable,
    /// The detectors, by slot of the stream.
    detections: Vec<StreamDetection>,
    histories: HistoryCache,
    /// `None` if only periods are reported.
    books: Option<DecisionBaseline>,
    sink: EventSink,
}

impl WatchedPolicy {
    /// Watches `policy`, and reports all events to `sink`. The ledgers compare with an LRU of as many ids as an LRU can
    /// hold in the memory of `policy`, for blocks of `block_bytes` bytes. *Units*: bytes.
    pub fn new(policy: Box<dyn Policy>, block_bytes: u64, sink: EventSink) -> WatchedPolicy {
        let capacity = policy.capacity();
        let lru = Lru::new(lru_capacity(policy.name(), capacity, block_bytes));
        let books = Some(DecisionBaseline { lru, block_bytes, window: OptimumWindow::new(capacity) });
        WatchedPolicy { books, ..WatchedPolicy::unbooked(policy, sink) }
    }

    /// Watches `policy`, but reports only periods to `sink`; the ledgers then do not compare with LRU.
    pub fn periods(policy: Box<dyn Policy>, mut sink: PeriodSink) -> WatchedPolicy {
        let sink: EventSink = Box::new(move |event| {
            if let PolicyEvent::Period(period) = event {
                sink(period.period);
            }
        });
        WatchedPolicy::unbooked(policy, sink)
    }

    /// The memory of [`WatchedPolicy::periods`] for a policy of `capacity` units of weight, besides the policy's own. *Units*:
    /// bytes.
    pub(crate) fn bytes_of(capacity: u64) -> u64 {
        HistoryCache::bytes_of(capacity) + StreamDetection::bytes_of() * ledger::STREAMS_MAX as u64
    }

    fn unbooked(policy: Box<dyn Policy>, sink: EventSink) -> WatchedPolicy {
        let histories = HistoryCache::new(policy.capacity());
        WatchedPolicy { policy, ledgers: LedgerTable::default(), detections: Vec::new(), histories, books: None, sink }
    }

    /// The accesses of a stream that the policy saved and lost in comparison with LRU. The first fifteen streams have
    /// their own ledgers; all other streams share one ledger. *Returns* `None` if the stream has no ledger yet.
    pub fn ledger(&self, stream: StreamId) -> Option<StreamLedger> {
        self.ledgers.ledger(stream)
    }

    fn count(&mut self, id: u64, weight: u64, stream: StreamId, is_hit: bool) {
        let slot = self.ledgers.slot(stream);
        let is_lru_hit = match &mut self.books {
            Some(books) => books.lru.reference(id, weight, stream, &mut |_| true) == AccessResult::Hit,
            None => is_hit,
        };
        self.ledgers.of_slot(slot).count(is_hit, is_lru_hit);
        if let Some(change) = self.policy.take_change() {
            (self.sink)(PolicyEvent::Leader(change));
        }
        let capacity = self.policy.capacity();
        let window = self.books.as_mut().and_then(|books| books.window.count(id, weight, is_hit, capacity));
        if let Some(report) = window {
            (self.sink)(PolicyEvent::Window(report));
        }
        if slot == self.detections.len() {
            self.detections.push(StreamDetection::new());
        }
        if let Some(report) = self.detections[slot].count(id, self.histories.refer(id, stream)) {
            let replacement = self.policy.replacement(stream);
            let period = PeriodEvent { stream, report: &report, replacement };
            (self.sink)(PolicyEvent::Period(StreamPeriod { period, ledger: *self.ledgers.of_slot(slot) }));
        }
    }
}

/// Offers a victim to `evict`, and records the eviction if `evict` gives the victim up.
fn evicts(id: u64, books: &mut Option<DecisionBaseline>, evict: &mut dyn FnMut(u64) -> bool) -> bool {
    let is_given_up = evict(id);
    if let Some(books) = books.as_mut().filter(|_| is_given_up) {
        books.window.evict(id);
    }
    is_given_up
}

impl Policy for WatchedPolicy {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: StreamId,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> AccessResult {
        let WatchedPolicy { policy, books, .. } = self;
        let access = policy.reference(id, weight, stream, &mut |victim| evicts(victim, books, evict));
        self.count(id, weight.max(1), stream, access == AccessResult::Hit);
        access
    }

    fn prepare(&self, id: u64) {
        self.policy.prepare(id);
    }

    fn references(&self, id: u64) -> u32 {
        self.policy.references(id)
    }

    fn credit(&mut self, id: u64, references: u32) {
        self.policy.credit(id, references);
    }

    fn replacement(&self, stream: StreamId) -> &'static str {
        self.policy.replacement(stream)
    }

    fn take_change(&mut self) -> Option<LeaderChange> {
        self.policy.take_change()
    }

    fn remove(&mut self, id: u64) -> bool {
        if let Some(books) = &mut self.books {
            books.lru.remove(id);
            books.window.remove(id);
        }
        self.policy.remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.policy.contains(id)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let WatchedPolicy { policy, books, histories, .. } = self;
        policy.set_capacity(capacity, &mut |victim| evicts(victim, books, evict));
        histories.set_capacity(capacity);
        if let Some(DecisionBaseline { lru, block_bytes, window }) = books {
            lru.set_capacity(lru_capacity(policy.name(), capacity, *block_bytes), &mut |_| true);
            window.resize();
        }
    }

    fn capacity(&self) -> u64 {
        self.policy.capacity()
    }

    fn used(&self) -> u64 {
        self.policy.used()
    }

    fn len(&self) -> usize {
        self.policy.len()
    }
}
