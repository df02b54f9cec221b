//! Policies that keep one order of their ids and evict from one end of it.
//!
//! Owns: the ids, their order, and the execution of a reference. Leaves to others: which end gives victims and whether
//! a hit renews an id's place ([`OrderDiscipline`]; each policy has its own file).
//!
//! A hit touches one random cache line, that of the id's record. The order is a [`IdTimeline`]: it is written at its end,
//! and the bits of its gaps stay in the processor's cache. A miss touches a second random line, the victim's record,
//! which is prefetched because the next victim is known.
//!
//! Cost: 16 bytes per place of the table, 4/3 to 5/3 places per id, and the cost of a timeline.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::table::{RecordTable, TableRecord, hash};
use crate::structures::timeline::{IdTimeline, NOWHERE, TimelineOwner};

/// The rules in which the policies with one order differ.
pub trait OrderDiscipline: std::fmt::Debug + Send {
    /// The policy's name as users write it.
    const NAME: &'static str;
    /// Whether a hit makes an id the newest.
    const HIT_RENEWS: bool;
    /// Whether the newest id is the victim and a refused victim becomes the oldest; if not, the oldest id is the victim
    /// and a refused victim becomes the newest.
    const NEWEST_LEAVES: bool;
}

/// The record of one id.
#[derive(Debug, Clone, Copy)]
struct OrderedRecord {
    id: u64,
    /// The position of the id in the order; [`NOWHERE`] in a vacant record.
    position: u32,
}

impl TableRecord for OrderedRecord {
    const VACANT: OrderedRecord = OrderedRecord { id: 0, position: NOWHERE };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.position == NOWHERE
    }

    #[inline]
    fn hash(&self) -> u32 {
        hash(self.id)
    }
}

/// A policy that keeps weighted ids in one order.
#[derive(Debug, Clone)]
pub struct OrderedPolicy<D> {
    capacity: u64,
    residents: RecordTable<OrderedRecord>,
    order: IdTimeline,
    discipline: std::marker::PhantomData<D>,
}

impl<D: OrderDiscipline> OrderedPolicy<D> {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> OrderedPolicy<D> {
        OrderedPolicy {
            capacity,
            residents: RecordTable::new(),
            order: IdTimeline::default(),
            discipline: std::marker::PhantomData,
        }
    }

    #[inline]
    fn find(&self, id: u64) -> Option<usize> {
        find(&self.residents, id)
    }

    /// Makes room in the order for one more id; `false` at the limit of the order.
    #[inline]
    fn make_place(&mut self) -> bool {
        let OrderedPolicy { residents, order, .. } = self;
        !order.is_full() || order.make_room(residents)
    }

    /// Moves a resident to the newest or to the oldest end of the order.
    fn move_to(&mut self, is_newest: bool, id: u64) {
        if !self.make_place() {
            return;
        }
        let Some(place) = self.find(id) else { return };
        let resident = self.residents.get_mut(place);
        let weight = self.order.take(resident.position);
        resident.position =
            if is_newest { self.order.put_newest(id, weight) } else { self.order.put_oldest(id, weight) };
    }
}

/// The memory of `count` ids, with gaps in their order if hits renew places. *Units*: bytes.
pub(crate) fn bytes_of(count: usize, has_gaps: bool) -> u64 {
    let (with_gaps, without) = IdTimeline::bytes_of(count);
    RecordTable::<OrderedRecord>::bytes_of(count) + if has_gaps { with_gaps } else { without }
}

impl TimelineOwner for RecordTable<OrderedRecord> {
    #[inline]
    fn moved(&mut self, id: u64, position: u32) {
        if let Some(place) = find(self, id) {
            self.get_mut(place).position = position;
        }
    }

    #[inline]
    fn prepare(&self, id: u64) {
        RecordTable::prepare(self, hash(id));
    }
}

#[inline]
fn find(residents: &RecordTable<OrderedRecord>, id: u64) -> Option<usize> {
    residents.find(hash(id), |resident| resident.id == id)
}

impl<D: OrderDiscipline> StepwisePolicy for OrderedPolicy<D> {
    #[inline]
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let victim = if D::NEWEST_LEAVES { self.order.newest() } else { self.order.oldest() };
        let Some(position) = victim else { return EvictionStep::Nothing };
        let id = self.order.id(position);
        if !evict(id) {
            self.move_to(!D::NEWEST_LEAVES, id);
            return EvictionStep::Refused;
        }
        self.order.take(position);
        if let Some(place) = self.find(id) {
            self.residents.remove(place);
        }
        if !D::NEWEST_LEAVES {
            while let Some(soon) = self.order.next_ahead() {
                self.residents.prepare(hash(soon));
            }
        }
        EvictionStep::Done
    }
}

impl<D: OrderDiscipline> Policy for OrderedPolicy<D> {
    fn name(&self) -> &'static str {
        D::NAME
    }

    #[inline]
    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let has_place = self.make_place();
        if let Some(place) = self.find(id) {
            let resident = self.residents.get_mut(place);
            if D::HIT_RENEWS && has_place && !self.order.is_newest(resident.position) {
                let weight = self.order.take(resident.position);
                resident.position = self.order.put_newest(id, weight);
            }
            return AccessResult::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) || !self.make_place() {
            return AccessResult::Bypassed;
        }
        let position = self.order.put_newest(id, weight);
        self.residents.insert(OrderedRecord { id, position });
        AccessResult::Inserted
    }

    fn prepare(&self, id: u64) {
        self.residents.prepare(hash(id));
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(place) = self.find(id) else { return false };
        self.order.take(self.residents.get(place).position);
        self.residents.remove(place);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let refusals_max = self.len();
        make_room(self, 0, refusals_max, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.order.weight()
    }

    fn len(&self) -> usize {
        self.order.count()
    }
}
