//! Reads under way: one read for all waiters for the same record.
//!
//! Owns: which caller reads and which ones wait, by key hash. Promises: waiting ends with the read, for any reason; the
//! waiters get what the reader found. Leaves to others: whether that is still right for a later caller (`lookup`).
//!
//! *Cost*: a lock, and no allocation for a read that nobody shares.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::memory::entry::Entry;
use crate::names::key::KeyHash;

/// Reads are shared out to this many lists by their hashes.
const LISTS: usize = 64;

/// The reads under way.
pub struct Reads {
    lists: [List; LISTS],
}

#[derive(Default)]
struct List {
    reads: Mutex<Numbered>,
    ended: Notify,
}

#[derive(Default)]
struct Numbered {
    begun: u64,
    reads: Vec<Read>,
}

struct Read {
    hash: KeyHash,
    number: u64,
    waiting: u32,
    /// After its end: the result.
    found: Option<Option<ReadEntry>>,
}

/// What a read found.
#[derive(Clone)]
pub struct ReadEntry {
    pub entry: Arc<Entry>,
    /// The epoch of the segment that it was read from.
    pub epoch: u64,
}

/// The task of a caller.
pub enum Turn<'a> {
    /// Read, and report the result.
    Read(Reading<'a>),
    /// Nothing: another caller has read, and found this.
    Shared(Option<ReadEntry>),
}

impl Reads {
    /// Nothing is read yet.
    pub fn new() -> Reads {
        Reads { lists: std::array::from_fn(|_| List::default()) }
    }

    /// Waits for the read of a hash that is under way, or begins one. *Cancel safety*: nothing is lost.
    pub async fn join(&self, hash: KeyHash) -> Turn<'_> {
        let list = &self.lists[hash.0 as usize % LISTS];
        let waiter = {
            let mut numbered = list.lock();
            match numbered.reads.iter_mut().find(|read| read.hash == hash && read.found.is_none()) {
                Some(read) => {
                    read.waiting += 1;
                    Waiter { list, number: read.number }
                }
                None => {
                    numbered.begun += 1;
                    let number = numbered.begun;
                    numbered.reads.push(Read { hash, number, waiting: 0, found: None });
                    return Turn::Read(Reading { list, number });
                }
            }
        };
        loop {
            let ended = list.ended.notified();
            tokio::pin!(ended);
            // From here on no end is missed.
            ended.as_mut().enable();
            let found = list.lock().get(waiter.number).and_then(|read| read.found.clone());
            match found {
                Some(found) => return Turn::Shared(found),
                None => ended.await,
            }
        }
    }
}

impl List {
    fn lock(&self) -> MutexGuard<'_, Numbered> {
        self.reads.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn end(&self, number: u64, found: Option<ReadEntry>) {
        let mut numbered = self.lock();
        let Some(read) = numbered.get(number).filter(|read| read.found.is_none()) else { return };
        if read.waiting == 0 {
            numbered.remove(number);
            return;
        }
        read.found = Some(found);
        drop(numbered);
        self.ended.notify_waiters();
    }
}

impl Numbered {
    fn get(&mut self, number: u64) -> Option<&mut Read> {
        self.reads.iter_mut().find(|read| read.number == number)
    }

    fn remove(&mut self, number: u64) {
        self.reads.retain(|read| read.number != number);
    }
}

/// The duty to read. Dropped without [`end`](Reading::end), nothing was found.
pub struct Reading<'a> {
    list: &'a List,
    number: u64,
}

impl Reading<'_> {
    /// Gives the result to the waiters.
    pub fn end(self, found: Option<ReadEntry>) {
        self.list.end(self.number, found);
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.list.end(self.number, None);
    }
}

/// A waiter; the last of them forgets the read.
struct Waiter<'a> {
    list: &'a List,
    number: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut numbered = self.list.lock();
        let Some(read) = numbered.get(self.number) else { return };
        read.waiting -= 1;
        if read.waiting == 0 && read.found.is_some() {
            numbered.remove(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn waiting_ends_with_the_read_also_where_it_is_broken_off_or_nobody_waits() {
        let reads = Reads::new();
        let count = || reads.lists.iter().map(|list| list.lock().reads.len()).sum::<usize>();
        let Turn::Read(reading) = reads.join(KeyHash(1)).await else { panic!("nobody reads yet") };
        let mut waiting = Box::pin(reads.join(KeyHash(1)));
        let mut leaving = Box::pin(reads.join(KeyHash(1)));
        assert!(matches!(poll!(&mut waiting), Poll::Pending) && matches!(poll!(&mut leaving), Poll::Pending));
        assert!(matches!(reads.join(KeyHash(65)).await, Turn::Read(_)), "another hash of the same list");
        drop(leaving);
        drop(reading);
        assert!(matches!(poll!(&mut waiting), Poll::Ready(Turn::Shared(None))));
        drop(waiting);
        assert_eq!(count(), 0);
        let Turn::Read(reading) = reads.join(KeyHash(1)).await else { panic!("nobody reads any more") };
        let mut waiting = Box::pin(reads.join(KeyHash(1)));
        assert!(matches!(poll!(&mut waiting), Poll::Pending));
        drop(waiting);
        reading.end(None);
        assert_eq!(count(), 0);
    }
}
