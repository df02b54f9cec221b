//! The scout: streams, followers, ledger and windows put together; up to 16 Ki units of capacity it is the cache itself.
//!
//! Where the scout sees a sample, what it counts stands for 2^`shift` times as much.
//!
//! Owns: what is done at each reference and said at the end of each period. Promises: the invariants of
//! [`Policy`](crate::Policy). Leaves to others: a cache larger than itself (`large.rs`).

use super::follower::Follower;
use super::ghosts::LRU;
use super::guard::Reason;
use super::ledger::Ledger;
use super::report::{Event, EventSink, LeaderChange, StreamPeriod};
use super::streams::Streams;
use super::window::Window;
use crate::detect::PeriodEvent;
use crate::{Access, Policy, Stream};

/// Streams, ghosts, guard and books.
pub(super) struct Scout {
    follower: Follower,
    streams: Streams,
    /// By slot of the stream.
    ledgers: Vec<Ledger>,
    window: Window,
    /// One in 2^shift ids is seen.
    shift: u32,
    /// References, those that are not seen among them.
    references: u64,
    reason: Reason,
    pub(super) sink: Option<EventSink>,
}

impl Scout {
    /// An empty one for a cache of `capacity`, of which it sees one id in 2^`shift`.
    pub(super) fn new(capacity: u64, shift: u32) -> Scout {
        let capacity = capacity >> shift;
        Scout {
            follower: Follower::new(capacity, shift == 0),
            streams: Streams::new(capacity),
            ledgers: Vec::new(),
            window: Window::new(capacity),
            shift,
            references: 0,
            reason: Reason::Start,
            sink: None,
        }
    }

    /// Begins anew for a cache of another capacity and another sample; books and slots of the streams stay.
    pub(super) fn begin_anew(&mut self, capacity: u64, shift: u32) {
        let mut new = Scout::new(capacity, shift);
        for slot in self.streams.slots() {
            new.slot(slot.stream);
        }
        new.streams.share_like(&self.streams);
        new.ledgers.clone_from(&self.ledgers);
        new.references = self.references;
        new.sink = self.sink.take();
        *self = new;
    }

    /// What the ghosts missed that led, of what it sees.
    pub(super) fn misses_of_leaders(&self) -> u64 {
        self.follower.misses_of_leaders()
    }

    /// The residents with their weights, those worth least first.
    pub(super) fn residents(&self) -> Vec<(u64, u64)> {
        self.follower.residents()
    }

    /// The slot of a stream; with the second one the cache can be divided.
    pub(super) fn slot(&mut self, stream: Stream) -> usize {
        let slot = self.streams.slot(stream);
        while self.ledgers.len() <= slot {
            self.ledgers.push(Ledger::default());
            if self.ledgers.len() == 2 {
                self.follower.divide();
            }
        }
        slot
    }

    /// A whole reference, where the scout is the cache.
    pub(super) fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: Stream,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> Access {
        let slot = self.slot(stream);
        let Scout { follower, window, .. } = self;
        let access = follower.reference(id, weight, Stream(slot as u32), &mut |victim| {
            let is_given_up = evict(victim);
            if is_given_up {
                window.evict(victim);
            }
            is_given_up
        });
        self.settle(slot, id, weight, access == Access::Hit);
        access
    }

    /// The ghosts' and followers' part of a reference of the sample.
    pub(super) fn refer(&mut self, id: u64, weight: u64, slot: usize) {
        self.follower.reference(id, weight, Stream(slot as u32), &mut |_| true);
    }

    /// Says that the cache evicted an id of the sample.
    pub(super) fn evicted(&mut self, id: u64) {
        self.window.evict(id);
    }

    /// The books of a reference: what the cache itself did.
    pub(super) fn settle(&mut self, slot: usize, id: u64, weight: u64, is_hit: bool) {
        self.references += 1 << self.shift;
        let is_lru_hit = self.follower.ghosts().missed() >> LRU & 1 == 0;
        self.ledgers[slot].count(self.shift, is_hit, is_lru_hit);
        if let Some(deposed) = self.follower.deposed() {
            self.change_leader(deposed);
        }
        let window = self.window.count(id, weight, is_hit, self.follower.capacity());
        if let (Some(report), Some(sink)) = (window, &mut self.sink) {
            sink(Event::Window(report));
        }
        if self.streams.count(slot, id) {
            self.end_period(slot);
        }
    }

    fn change_leader(&mut self, deposed: usize) {
        self.reason = reason(&self.follower, deposed);
        let leader = LeaderChange { reference: self.references, leader: self.leader(), reason: self.reason };
        if let Some(sink) = &mut self.sink {
            sink(Event::Leader(leader));
        }
    }

    /// Draws the conclusions of a stream's period.
    fn end_period(&mut self, slot: usize) {
        let found = &self.streams.slots()[slot];
        self.follower.set_favourite_of(slot, found.favourite);
        self.follower.set_favourite(self.streams.favourite());
        let Some(sink) = &mut self.sink else { return };
        let guard = self.follower.guard();
        let partition = self.follower.ghosts().partition();
        let is_divided = guard.leader() >= super::ghosts::CANDIDATES.len();
        let part = partition.filter(|_| is_divided).and_then(|partition| partition.follower(slot));
        let replacement = part.map_or(self.follower.ghosts().name(guard.leader()), |follower| follower.name());
        sink(Event::Period(StreamPeriod {
            period: PeriodEvent { stream: found.stream, report: &found.report, replacement },
            reason: self.reason,
            share: partition.filter(|_| is_divided).map(|partition| partition.share(slot)),
            ledger: self.ledgers[slot],
        }));
    }

    /// The ledger of a stream.
    pub(super) fn ledger(&self, stream: Stream) -> Option<Ledger> {
        self.ledgers.get(self.streams.books(stream)?).copied()
    }

    /// The streams that are told apart.
    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> + '_ {
        self.streams.slots().iter().map(|slot| slot.stream)
    }

    /// The policy in force: a candidate's name, or `partition`.
    pub(super) fn leader(&self) -> &'static str {
        self.follower.name()
    }

    /// Whether the leader is ahead of the candidate called `name` in the window, clearly.
    pub(super) fn is_ahead_of(&self, name: &str) -> bool {
        let (guard, ghosts) = (self.follower.guard(), self.follower.ghosts());
        (0..ghosts.count()).find(|ghost| ghosts.name(*ghost) == name).is_none_or(|other| guard.is_clearly_behind(other))
    }

    /// Share and policy in force of each slot of the partition.
    pub(super) fn division(&self) -> impl Iterator<Item = (u64, &'static str)> + '_ {
        let partition = self.follower.ghosts().partition();
        (0..self.ledgers.len()).filter_map(move |slot| {
            let partition = partition?;
            Some((partition.share(slot), partition.follower(slot)?.name()))
        })
    }

    /// Forgets `id`; returns whether it was resident.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        self.window.remove(id);
        self.follower.remove(id)
    }

    /// Whether `id` is resident.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.follower.contains(id)
    }

    /// Sets the capacity of the whole cache and evicts down to what is seen of it.
    pub(super) fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let capacity = capacity >> self.shift;
        let Scout { follower, window, .. } = self;
        window.resize();
        follower.set_capacity(capacity, &mut |victim| {
            let is_given_up = evict(victim);
            if is_given_up {
                window.evict(victim);
            }
            is_given_up
        });
    }

    /// The weight of all residents.
    pub(super) fn used(&self) -> u64 {
        self.follower.used()
    }

    /// How many residents there are.
    pub(super) fn len(&self) -> usize {
        self.follower.len()
    }
}

/// Why the leader of a follower is the leader.
fn reason(follower: &Follower, deposed: usize) -> Reason {
    let guard = follower.guard();
    if guard.leads_by_verdict() {
        return Reason::Verdict;
    }
    let from = follower.ghosts().name(deposed);
    let (misses, misses_best) = (guard.misses(deposed), guard.misses(guard.leader()));
    let behind = follower.behind_when_smaller();
    if misses <= misses_best && behind[deposed] > behind[guard.leader()] {
        return Reason::Smaller { from };
    }
    Reason::Guard { from, misses, misses_best }
}
