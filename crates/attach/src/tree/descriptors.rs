//! The open descriptors of the tree: a table of bounded size.
//!
//! Owns: every descriptor of a node, reader, writer and directory that stays open between two requests. If the table is
//! full, a descriptor that was not used lately is closed (CLOCK); its owner opens it again when it needs it. Promises:
//! no more descriptors are open than the table has places, and those that requests use at this moment; a kept
//! descriptor stays open until it is released, and at most half of the places are kept. Leaves to others: opening
//! (`nodes`, `source`).
//!
//! A [`DescriptorTicket`] names a place and the serial number of its descriptor. A ticket whose descriptor was closed has another
//! serial number than its place, so it finds nothing. A node has only the 8 bytes of its ticket.

use std::fs::File;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest number of places.
const PLACES_MAX: u64 = 16 << 10;
/// The smallest number of places, even if the process may have fewer descriptors.
const PLACES_MIN: u64 = 16;
/// The bits of a ticket that hold the index of its place.
const INDEX_BITS: u32 = 16;

/// The name of a descriptor in a table; it may have been closed.
#[derive(Debug, Default)]
pub struct DescriptorTicket(AtomicU64);

#[derive(Default)]
struct DescriptorSlot {
    /// The number of descriptors that this place has had.
    serial: u64,
    descriptor: Option<Arc<File>>,
    /// Whether the descriptor was used since the hand last passed.
    is_used: bool,
    is_kept: bool,
}

/// A table of open descriptors.
pub struct DescriptorTable {
    places: Box<[Mutex<DescriptorSlot>]>,
    /// The number of places that the hand has passed.
    hand: AtomicUsize,
    kept: AtomicUsize,
}

impl DescriptorTable {
    /// Makes a table for a process that may have `room` descriptors for it.
    pub fn new(room: u64) -> DescriptorTable {
        let places = room.clamp(PLACES_MIN, PLACES_MAX);
        let places = (0..places).map(|_| Mutex::default()).collect();
        DescriptorTable { places, hand: AtomicUsize::new(0), kept: AtomicUsize::new(0) }
    }

    /// The number of places.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The largest number of kept descriptors.
    pub fn kept_max(&self) -> usize {
        self.places.len() / 2
    }

    /// The number of kept descriptors.
    pub fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// The number of descriptors in the table.
    pub fn count(&self) -> usize {
        let is_open = |place: &&Mutex<DescriptorSlot>| lock(place).descriptor.is_some();
        self.places.iter().filter(is_open).count()
    }

    /// The place of a ticket, locked, if it still has the ticket's descriptor.
    fn place(&self, ticket: u64) -> Option<MutexGuard<'_, DescriptorSlot>> {
        let index = (ticket & ((1 << INDEX_BITS) - 1)) as usize;
        let place = lock(self.places.get(index)?);
        (ticket != 0 && place.serial == ticket >> INDEX_BITS && place.descriptor.is_some()).then_some(place)
    }

    /// Returns a descriptor, if it is open. *Cost*: one mutex that other descriptors do not use.
    pub fn get(&self, ticket: &DescriptorTicket) -> Option<Arc<File>> {
        let mut place = self.place(ticket.0.load(Ordering::Acquire))?;
        place.is_used = true;
        place.descriptor.clone()
    }

    /// Stores a descriptor under a ticket, which loses the descriptor that it had. If the table is full, another
    /// descriptor is closed.
    pub fn put(&self, ticket: &DescriptorTicket, descriptor: Arc<File>) {
        let (index, mut place) = self.vacate();
        place.serial += 1;
        let closed = place.descriptor.replace(descriptor);
        (place.is_used, place.is_kept) = (false, false);
        let number = place.serial << INDEX_BITS | index as u64;
        drop(place);
        drop(closed);
        self.clear(ticket.0.swap(number, Ordering::AcqRel));
    }

    /// Finds a place whose descriptor may be closed: the next one behind the hand that was not used since the hand
    /// passed it.
    fn vacate(&self) -> (usize, MutexGuard<'_, DescriptorSlot>) {
        loop {
            let index = self.hand.fetch_add(1, Ordering::Relaxed) % self.places.len();
            let mut place = lock(&self.places[index]);
            if place.descriptor.is_none() || !(place.is_kept || place.is_used) {
                return (index, place);
            }
            place.is_used = false;
        }
    }

    /// Closes a descriptor. A request that uses it at this moment can end.
    pub fn close(&self, ticket: &DescriptorTicket) {
        self.clear(ticket.0.swap(0, Ordering::AcqRel));
    }

    fn clear(&self, ticket: u64) {
        let Some(mut place) = self.place(ticket) else { return };
        if std::mem::take(&mut place.is_kept) {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
        let closed = place.descriptor.take();
        drop(place);
        drop(closed);
    }

    /// Keeps a descriptor open until [`release`](Self::release) or [`close`](Self::close), if fewer than `kept_max`
    /// are kept; returns whether it is kept.
    pub fn keep(&self, ticket: &DescriptorTicket, descriptor: &Arc<File>, kept_max: usize) -> bool {
        loop {
            let Some(mut place) = self.place(ticket.0.load(Ordering::Acquire)) else {
                self.put(ticket, descriptor.clone());
                continue;
            };
            if place.is_kept {
                return true;
            }
            let kept_max = kept_max.min(self.kept_max());
            let counted = self
                .kept
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |kept| (kept < kept_max).then_some(kept + 1));
            place.is_kept = counted.is_ok();
            return place.is_kept;
        }
    }

    /// Ends the keeping of a descriptor.
    pub fn release(&self, ticket: &DescriptorTicket) {
        if let Some(mut place) = self.place(ticket.0.load(Ordering::Acquire))
            && std::mem::take(&mut place.is_kept)
        {
            self.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Closes up to a quarter of the descriptors, because the process or the machine has no more.
    pub fn shrink(&self) {
        for _ in 0..self.places.len().div_ceil(4) {
            let (_, mut place) = self.vacate();
            let closed = place.descriptor.take();
            drop(place);
            drop(closed);
        }
    }
}

fn lock(place: &Mutex<DescriptorSlot>) -> MutexGuard<'_, DescriptorSlot> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> Arc<File> {
        Arc::new(File::open("/dev/null").unwrap())
    }

    #[test]
    fn full_table_closes_what_is_unused() {
        let table = DescriptorTable::new(0);
        let tickets: Vec<DescriptorTicket> = (0..100).map(|_| DescriptorTicket::default()).collect();
        let used = &tickets[0];
        let descriptor = null();
        table.put(used, descriptor.clone());
        for ticket in &tickets[1..] {
            table.put(ticket, null());
            assert!(table.get(used).is_some_and(|found| Arc::ptr_eq(&found, &descriptor)));
            assert!(table.count() <= table.places());
        }
        let open = tickets.iter().filter(|ticket| table.get(ticket).is_some()).count();
        assert_eq!((open, table.count(), table.places()), (16, 16, 16));
        // The last user of a closed descriptor closes it.
        assert_eq!(Arc::strong_count(&descriptor), 2);
        table.close(used);
        assert!(table.get(used).is_none() && Arc::strong_count(&descriptor) == 1);
        table.shrink();
        assert!(table.count() <= 12, "{}", table.count());
    }

    #[test]
    fn kept_descriptors_stay_and_are_bounded() {
        let table = DescriptorTable::new(16);
        let kept: Vec<DescriptorTicket> = (0..8).map(|_| DescriptorTicket::default()).collect();
        for ticket in &kept {
            assert!(table.keep(ticket, &null(), usize::MAX) && table.keep(ticket, &null(), usize::MAX));
        }
        let other = DescriptorTicket::default();
        assert!(!table.keep(&other, &null(), usize::MAX), "half of the places");
        for _ in 0..100 {
            table.put(&DescriptorTicket::default(), null());
        }
        assert!(kept.iter().all(|ticket| table.get(ticket).is_some()) && table.get(&other).is_none());
        table.release(&kept[0]);
        table.release(&kept[0]);
        table.close(&kept[1]);
        table.put(&kept[2], null());
        assert_eq!(table.kept(), 5);
        for _ in 0..100 {
            table.put(&DescriptorTicket::default(), null());
        }
        assert!(table.get(&kept[0]).is_none() && table.get(&kept[3]).is_some());
        assert!(!table.keep(&other, &null(), 5) && table.keep(&other, &null(), 6));
    }

    #[test]
    fn threads_find_their_own_descriptors() {
        let table = DescriptorTable::new(32);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let (ticket, own) = (DescriptorTicket::default(), null());
                    for round in 0..2000 {
                        match table.get(&ticket) {
                            Some(found) => assert!(Arc::ptr_eq(&found, &own)),
                            None => table.put(&ticket, own.clone()),
                        }
                        if round % 7 == 0 && table.keep(&ticket, &own, 4) {
                            table.put(&DescriptorTicket::default(), null());
                            assert!(table.get(&ticket).is_some_and(|found| Arc::ptr_eq(&found, &own)));
                            table.release(&ticket);
                        }
                    }
                });
            }
        });
        assert_eq!(table.kept(), 0);
        assert!(table.count() <= 32);
    }
}
