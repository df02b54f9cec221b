//! Watches a policy from outside: reports to a listener how the policy was accessed, and what it did.
//!
//! Owns: the verdict of each period of each stream (`verdict.rs`); the accesses saved and lost in comparison with LRU
//! (`ledger.rs`); after each window, the misses of the optimal policy that begins with the same contents (`window.rs`);
//! the events that report all this (`report.rs`). Promises: a watched policy decides as if it were not watched; summed
//! over all ledgers, `saved - lost` is exactly the number of LRU's misses minus the number of the policy's misses.
//! Leaves to others: all decisions.
//!
//! # Cost
//! If only periods are reported, each access causes one search in a table of at most 64 Ki blocks per stream.
//! Otherwise, an LRU of the same capacity is simulated too, and each access of a window takes up to 64 bytes.

mod ledger;
mod report;
#[cfg(test)]
mod tests;
mod verdict;
mod window;

pub use ledger::Ledger;
pub use report::{Event, EventSink, StreamPeriod};
pub use window::WindowReport;

use crate::detect::{PeriodEvent, PeriodSink};
use crate::{Access, LeaderChange, Lru, Policy, Stream};

use ledger::Ledgers;
use verdict::Detection;
use window::Window;

/// A policy with a listener.
///
/// ```
/// use nectary_cache::{Access, Lirs, Policy, Stream, Watched};
///
/// let mut cache = Watched::new(Box::new(Lirs::new(500)), Box::new(|event| println!("{event}")));
/// for step in 0..10_000 {
///     cache.reference(step % 1000, 1, Stream(7), &mut |_| true);
/// }
/// // Under LRU a loop of 1000 blocks in a cache of 500 never hits.
/// let ledger = cache.ledger(Stream(7)).expect("accessed");
/// assert_eq!((ledger.misses_lru(), ledger.lost), (10_000, 0));
/// ```
pub struct Watched {
    policy: Box<dyn Policy>,
    ledgers: Ledgers,
    /// The detectors, by slot of the stream.
    detections: Vec<Detection>,
    /// The LRU and the current window; `None` if only periods are reported.
    books: Option<(Lru, Window)>,
    sink: EventSink,
}

impl Watched {
    /// Watches `policy`, and reports all events to `sink`.
    pub fn new(policy: Box<dyn Policy>, sink: EventSink) -> Watched {
        let capacity = policy.capacity();
        let books = Some((Lru::new(capacity), Window::new(capacity)));
        Watched { policy, ledgers: Ledgers::default(), detections: Vec::new(), books, sink }
    }

    /// Watches `policy`, but reports only periods to `sink`; the ledgers then do not compare with LRU.
    pub fn periods(policy: Box<dyn Policy>, mut sink: PeriodSink) -> Watched {
        let sink: EventSink = Box::new(move |event| {
            if let Event::Period(period) = event {
                sink(period.period);
            }
        });
        Watched { books: None, ..Watched::new(policy, sink) }
    }

    /// The accesses of a stream that the policy saved and lost in comparison with LRU. The first fifteen streams have
    /// their own ledgers; all other streams share one ledger. *Returns* `None` if the stream has no ledger yet.
    pub fn ledger(&self, stream: Stream) -> Option<Ledger> {
        self.ledgers.ledger(stream)
    }

    fn count(&mut self, id: u64, weight: u64, stream: Stream, is_hit: bool) {
        let slot = self.ledgers.slot(stream);
        let is_lru_hit = match &mut self.books {
            Some((lru, _)) => lru.reference(id, weight, stream, &mut |_| true) == Access::Hit,
            None => is_hit,
        };
        self.ledgers.of_slot(slot).count(is_hit, is_lru_hit);
        if let Some(change) = self.policy.take_change() {
            (self.sink)(Event::Leader(change));
        }
        let capacity = self.policy.capacity();
        let window = self.books.as_mut().and_then(|(_, window)| window.count(id, weight, is_hit, capacity));
        if let Some(report) = window {
            (self.sink)(Event::Window(report));
        }
        if slot == self.detections.len() {
            self.detections.push(Detection::new());
        }
        if let Some(report) = self.detections[slot].count(id) {
            let replacement = self.policy.replacement(stream);
            let period = PeriodEvent { stream, report: &report, replacement };
            (self.sink)(Event::Period(StreamPeriod { period, ledger: *self.ledgers.of_slot(slot) }));
        }
    }
}

/// Offers a victim to `evict`, and records the eviction if `evict` gives the victim up.
fn evicts(id: u64, books: &mut Option<(Lru, Window)>, evict: &mut dyn FnMut(u64) -> bool) -> bool {
    let is_given_up = evict(id);
    if let Some((_, window)) = books.as_mut().filter(|_| is_given_up) {
        window.evict(id);
    }
    is_given_up
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let Watched { policy, books, .. } = self;
        let access = policy.reference(id, weight, stream, &mut |victim| evicts(victim, books, evict));
        self.count(id, weight.max(1), stream, access == Access::Hit);
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

    fn replacement(&self, stream: Stream) -> &'static str {
        self.policy.replacement(stream)
    }

    fn take_change(&mut self) -> Option<LeaderChange> {
        self.policy.take_change()
    }

    fn remove(&mut self, id: u64) -> bool {
        if let Some((lru, window)) = &mut self.books {
            lru.remove(id);
            window.remove(id);
        }
        self.policy.remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.policy.contains(id)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let Watched { policy, books, .. } = self;
        policy.set_capacity(capacity, &mut |victim| evicts(victim, books, evict));
        if let Some((lru, window)) = books {
            lru.set_capacity(capacity, &mut |_| true);
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
