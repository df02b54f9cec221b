//! Entries that wait to be written, in the order of their sequences.
//!
//! Owns: the order of sequences, the bound on waiting bytes, and when the writer wakes. An entry is packed as late as
//! the write delay allows; its bytes are not copied before that.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::format::RecordLocation;
use crate::index::held_names::SpanNames;
use crate::locality::hints::HintId;
use crate::memory::entry::MemoryEntry;
use crate::planted::{Bug, planted};

/// A waiting entry.
pub struct UnwrittenEntry {
    pub entry: Arc<MemoryEntry>,
    /// The sequence under which the entry will be written. It is higher than the entry's own sequence if the entry is
    /// rewritten.
    pub sequence: u64,
    /// The version of the same key that the entry replaces, if that version is in memory.
    pub previous: Option<Arc<MemoryEntry>>,
    /// The location on disk of an object that is being rewritten.
    pub moved_from: Option<RecordLocation>,
    /// The object next to which the entry is written; `None` if the hints decide this when the entry is packed.
    pub tie: Option<HintId>,
}

impl UnwrittenEntry {
    /// Makes the item of a new entry; `previous` is the entry that it replaces.
    pub fn of(entry: Arc<MemoryEntry>, previous: Option<Arc<MemoryEntry>>) -> UnwrittenEntry {
        UnwrittenEntry { sequence: entry.sequence, entry, previous, moved_from: None, tie: None }
    }
}

/// Reserved room in the queue; dropping it releases the room.
pub struct QueueReservation {
    queue: Arc<WriteQueue>,
    bytes: u64,
}

impl QueueReservation {
    /// Returns the bytes without releasing them: the caller, who has the queue's lock, releases them.
    fn give_up(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for QueueReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.queue.lock().reserved_bytes -= self.bytes;
            self.queue.room.notify_waiters();
        }
    }
}

#[derive(Default)]
struct QueueItems {
    /// The entries, and when each was queued.
    items: VecDeque<(UnwrittenEntry, Instant)>,
    bytes: u64,
    /// The room reserved for entries that will be pushed, in bytes.
    reserved_bytes: u64,
    closed: bool,
}

impl QueueItems {
    /// Whether another entry fits. An entry larger than the whole queue fits if the queue is empty.
    fn has_room(&self, weight: u64, bytes_max: u64) -> bool {
        let used = self.bytes + self.reserved_bytes;
        used + weight <= bytes_max || (self.items.is_empty() && self.reserved_bytes == 0)
    }
}

/// The queue of unwritten entries.
pub struct WriteQueue {
    waiting: Mutex<QueueItems>,
    bytes_max: u64,
    wake_bytes: u64,
    last_sequence: AtomicU64,
    /// The table in which the names of all waiting entries are noted.
    names: Arc<SpanNames>,
    /// Wakes the writer.
    pub wake: Notify,
    /// Wakes the callers that wait for room.
    pub room: Notify,
}

/// Why an entry was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The queue is full.
    Full,
    /// The store takes no more writes.
    Closed,
}

impl WriteQueue {
    /// Makes an empty queue that holds at most `bytes_max` bytes, and wakes the writer at once when `wake_bytes` bytes
    /// wait.
    pub fn new(bytes_max: u64, wake_bytes: u64, last_sequence: u64, names: Arc<SpanNames>) -> WriteQueue {
        WriteQueue {
            waiting: Mutex::default(),
            bytes_max,
            wake_bytes,
            last_sequence: AtomicU64::new(last_sequence),
            names,
            wake: Notify::new(),
            room: Notify::new(),
        }
    }

    /// Adds the entry that `make` builds. `make` is called under the lock that orders sequences.
    pub fn push<E: From<QueueRefusal>>(
        &self,
        weight: u64,
        make: impl FnOnce() -> Result<UnwrittenEntry, E>,
    ) -> Result<Arc<MemoryEntry>, E> {
        let waiting = self.lock();
        if waiting.closed {
            return Err(QueueRefusal::Closed.into());
        }
        if !waiting.has_room(weight, self.bytes_max) {
            return Err(QueueRefusal::Full.into());
        }
        Ok(self.add(waiting, make()?))
    }

    /// Adds the entry that `make` builds, in room that was [reserved](Self::reserve).
    pub fn push_reserved<E: From<QueueRefusal>>(
        &self,
        reserved: QueueReservation,
        make: impl FnOnce() -> Result<UnwrittenEntry, E>,
    ) -> Result<Arc<MemoryEntry>, E> {
        let mut waiting = self.lock();
        if waiting.closed {
            drop(waiting);
            return Err(QueueRefusal::Closed.into());
        }
        waiting.reserved_bytes -= reserved.give_up();
        Ok(self.add(waiting, make()?))
    }

    /// Reserves room for an entry of `weight`; `None` if there is no room now, or the queue is closed.
    pub fn reserve(self: &Arc<WriteQueue>, weight: u64) -> Option<QueueReservation> {
        let mut waiting = self.lock();
        if waiting.closed || !waiting.has_room(weight, self.bytes_max) {
            return None;
        }
        waiting.reserved_bytes += weight;
        Some(QueueReservation { queue: Arc::clone(self), bytes: weight })
    }

    /// Reserves room for an object that need not be stored. Returns `None` if the entries and reservations, this one
    /// included, would take more than half of the queue.
    pub fn reserve_if_idle(self: &Arc<WriteQueue>, weight: u64) -> Option<QueueReservation> {
        let mut waiting = self.lock();
        if waiting.closed || waiting.bytes + waiting.reserved_bytes + weight > self.bytes_max / 2 {
            return None;
        }
        waiting.reserved_bytes += weight;
        Some(QueueReservation { queue: Arc::clone(self), bytes: weight })
    }

    /// Waits for room for an entry of `weight`, at most for `patience`, and reserves it.
    pub async fn wait_to_reserve(self: &Arc<WriteQueue>, weight: u64, patience: Duration) -> Option<QueueReservation> {
        let deadline = Instant::now() + patience;
        loop {
            let room = self.room.notified();
            let mut room = std::pin::pin!(room);
            // No notification after this call is missed.
            room.as_mut().enable();
            let reserved = self.reserve(weight);
            if reserved.is_some() || self.lock().closed || tokio::time::timeout_at(deadline, room).await.is_err() {
                return reserved;
            }
        }
    }

    /// Runs `act` under the lock that orders sequences, without adding an entry. *Errors*: the queue is closed, or the
    /// error of `act`.
    pub fn in_order<T, E: From<QueueRefusal>>(&self, act: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let waiting = self.lock();
        if waiting.closed {
            return Err(QueueRefusal::Closed.into());
        }
        let result = act();
        drop(waiting);
        result
    }

    /// Runs `act` under the lock that orders sequences, even if the queue is closed. `act` receives the number of
    /// waiting bytes.
    pub fn ordered<T>(&self, act: impl FnOnce(u64) -> T) -> T {
        let waiting = self.lock();
        act(waiting.bytes)
    }

    /// Begins the era of names in which `epoch` will be written. The names of waiting entries are noted in the new era.
    pub fn begin_era(&self, epoch: u64) {
        let waiting = self.lock();
        self.names.begin_era(epoch);
        if !planted(Bug::EraForgetsWaiting) {
            waiting.items.iter().for_each(|(item, _)| self.names.note(item.entry.primary_hash));
        }
    }

    /// Adds an entry that need not be written. *Errors*: [`QueueRefusal::Full`] if the entries take half of the queue or
    /// more; [`QueueRefusal::Closed`].
    pub fn push_if_idle<E: From<QueueRefusal>>(
        &self,
        make: impl FnOnce() -> Result<UnwrittenEntry, E>,
    ) -> Result<Arc<MemoryEntry>, E> {
        let waiting = self.lock();
        if waiting.closed {
            return Err(QueueRefusal::Closed.into());
        }
        if waiting.bytes >= self.bytes_max / 2 {
            return Err(QueueRefusal::Full.into());
        }
        Ok(self.add(waiting, make()?))
    }

    fn add(&self, mut waiting: MutexGuard<'_, QueueItems>, item: UnwrittenEntry) -> Arc<MemoryEntry> {
        let entry = Arc::clone(&item.entry);
        self.names.note(entry.primary_hash);
        self.last_sequence.store(item.sequence, Ordering::Release);
        let was_empty = waiting.items.is_empty();
        let was_due = waiting.bytes >= self.wake_bytes;
        waiting.bytes += entry.weight();
        waiting.items.push_back((item, Instant::now()));
        let is_due = waiting.bytes >= self.wake_bytes;
        drop(waiting);
        // Only two entries wake the writer: the first one, and the one that brings the waiting bytes to `wake_bytes`.
        // If the writer does not react at once, it is waiting for an append in flight, and checks the queue after that.
        if was_empty || (is_due && !was_due) {
            self.wake.notify_one();
        }
        entry
    }

    /// Puts back entries that were taken and not written, in front of all others. `draw` gives every waiting entry a new
    /// sequence, in the same order: an entry after a failed one may be on the disk already under its old sequence, and
    /// sequences in the log only rise. Returns the sequence of the last entry, and the lowest generation of all.
    pub fn put_back(&self, items: Vec<UnwrittenEntry>, mut draw: impl FnMut() -> u64) -> (u64, u64) {
        let mut waiting = self.lock();
        let now = Instant::now();
        for item in items.into_iter().rev() {
            self.names.note(item.entry.primary_hash);
            waiting.bytes += item.entry.weight();
            waiting.items.push_front((item, now));
        }
        let (mut last, mut generation) = (self.last_sequence(), u64::MAX);
        for (item, _) in &mut waiting.items {
            last = draw();
            item.sequence = last;
            generation = generation.min(item.entry.generation);
        }
        self.last_sequence.store(last, Ordering::Release);
        (last, generation)
    }

    /// Takes entries from the front as long as `fits` accepts them.
    pub fn take(&self, mut fits: impl FnMut(&MemoryEntry) -> bool) -> Vec<UnwrittenEntry> {
        let mut waiting = self.lock();
        let mut taken = Vec::new();
        while waiting.items.front().is_some_and(|(item, _)| fits(&item.entry)) {
            let Some((item, _)) = waiting.items.pop_front() else { break };
            waiting.bytes -= item.entry.weight();
            taken.push(item);
        }
        drop(waiting);
        self.room.notify_waiters();
        taken
    }

    /// Whether the item with this sequence still waits.
    pub fn waits(&self, sequence: u64) -> bool {
        self.lock().items.front().is_some_and(|(item, _)| item.sequence <= sequence)
    }

    /// Refuses further entries; waiting entries stay queued.
    pub fn refuse_more(&self) {
        self.lock().closed = true;
    }

    /// Takes all entries and refuses further ones.
    pub fn close(&self) -> Vec<UnwrittenEntry> {
        self.lock().closed = true;
        self.take(|_| true)
    }

    /// Waits until at most half of the queue is used, or the queue is closed.
    pub async fn wait_for_room(&self) {
        loop {
            let room = self.room.notified();
            let mut room = std::pin::pin!(room);
            // No notification after this call is missed.
            room.as_mut().enable();
            {
                let waiting = self.lock();
                if waiting.closed || waiting.bytes <= self.bytes_max / 2 {
                    return;
                }
            }
            room.await;
        }
    }

    /// The number of waiting bytes, and since when the oldest entry has waited.
    pub fn backlog(&self) -> (u64, Option<Instant>) {
        let waiting = self.lock();
        (waiting.bytes, waiting.items.front().map(|(_, since)| *since))
    }

    /// The sequence of the latest entry.
    pub fn last_sequence(&self) -> u64 {
        self.last_sequence.load(Ordering::Acquire)
    }

    /// The number of waiting bytes that wakes the writer at once.
    pub fn wake_bytes(&self) -> u64 {
        self.wake_bytes
    }

    fn lock(&self) -> MutexGuard<'_, QueueItems> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::SpanLayout;
    use crate::memory::entry::{EntryKind, EntryParts};
    use crate::names::key::{KeyRef, hash_key};
    use crate::names::tag::EntryTags;

    fn push(queue: &WriteQueue, sequence: u64) {
        let key = KeyRef::new(b"name", b"");
        let (primary_hash, hash) = hash_key(7, key);
        let parts = EntryParts {
            key: key.to_owned(),
            primary_hash,
            hash,
            kind: EntryKind::Whole,
            metadata: bytes::Bytes::new(),
            body: bytes::Bytes::from(vec![0; 100]),
            object_bytes: 100,
            generation: sequence,
            tags: EntryTags::default(),
        };
        let item = UnwrittenEntry::of(Arc::new(MemoryEntry::new(parts, sequence)), None);
        queue.push::<QueueRefusal>(200, || Ok(item)).unwrap();
    }

    /// An entry that does not fit in an append has waited since it was queued.
    #[test]
    fn oversized_entry_waits_from_queueing() {
        let layout = SpanLayout::plan(64 << 20, None, 1, 2, 3).unwrap();
        let queue = WriteQueue::new(1 << 20, 1 << 20, 0, Arc::new(SpanNames::new(&layout, 1, 32 << 20)));
        push(&queue, 1);
        let between = Instant::now();
        push(&queue, 2);
        let after = Instant::now();
        assert!(queue.backlog().1.is_some_and(|oldest| oldest <= between));
        let mut is_first = true;
        assert_eq!(queue.take(|_| std::mem::take(&mut is_first)).len(), 1);
        assert!(queue.backlog().1.is_some_and(|oldest| between <= oldest && oldest <= after));
        assert_eq!(queue.take(|_| true).len(), 1);
        assert_eq!(queue.backlog(), (0, None));
    }
}
