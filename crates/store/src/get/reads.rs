//! Running reads: one read for all callers that need the same record.
//!
//! Owns: which caller reads and which callers wait, for each key hash. Promises: waiting ends when the read ends, for
//! any reason; waiters get the result of the read. Nobody waits for the task of another caller for longer than
//! [`PATIENCE`]. Leaves to others: whether the result is still valid for a later caller (`lookup`).
//!
//! The first caller reads in its own future, so that a read without waiters costs nothing more. But that future goes on
//! only while its task polls it. So waiters that have waited for `PATIENCE` begin a second read, which all of them drive
//! together: whichever task is polled takes it a step further. There are at most two reads of a record at a time.
//!
//! *Cost*: a lock; no allocation for a read that has no waiters.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::Notify;

use crate::memory::entry::MemoryEntry;
use crate::names::key::KeyHash;

/// How long a caller waits for the read of another caller, which may not be polled, before it reads itself.
const PATIENCE: Duration = Duration::from_millis(50);

/// A read that several callers drive together; `None` if it failed or found nothing.
pub type SecondRead = BoxFuture<'static, Option<ReadEntry>>;

/// Reads are distributed over this many lists by their hashes.
const LISTS: usize = 64;

/// The running reads.
pub struct RunningReads {
    lists: [ReadList; LISTS],
}

#[derive(Default)]
struct ReadList {
    reads: Mutex<NumberedReads>,
    ended: Notify,
}

#[derive(Default)]
struct NumberedReads {
    begun: u64,
    reads: Vec<RunningRead>,
}

struct RunningRead {
    hash: KeyHash,
    number: u64,
    waiting: u32,
    /// The result, after the read has ended.
    found: Option<Option<ReadEntry>>,
    /// The read that the waiters drive, after they have waited for long.
    second: Option<Shared<SecondRead>>,
}

/// The entry that a read found.
#[derive(Clone)]
pub struct ReadEntry {
    pub entry: Arc<MemoryEntry>,
    /// The epoch of the segment from which it was read.
    pub epoch: u64,
}

/// The next step of a caller of [`RunningReads::join`].
pub enum ReadTurn<'a> {
    /// The caller reads the record, and reports the result.
    Read(ReadLeader<'a>),
    /// The caller uses this result of another caller's read.
    Shared(Option<ReadEntry>),
}

impl RunningReads {
    /// Makes a table without reads.
    pub fn new() -> RunningReads {
        RunningReads { lists: std::array::from_fn(|_| ReadList::default()) }
    }

    /// Waits for the running read of a hash, or begins one. `read` makes a second read, if the running one takes long.
    /// *Cancel safety*: a cancelled wait affects no other caller.
    pub async fn join(&self, hash: KeyHash, read: impl FnOnce() -> SecondRead) -> ReadTurn<'_> {
        let list = &self.lists[hash.0 as usize % LISTS];
        let waiter = {
            let mut numbered = list.lock();
            match numbered.reads.iter_mut().find(|read| read.hash == hash && read.found.is_none()) {
                Some(read) => {
                    read.waiting += 1;
                    ReadWaiter { list, number: read.number }
                }
                None => {
                    numbered.begun += 1;
                    let number = numbered.begun;
                    numbered.reads.push(RunningRead { hash, number, waiting: 0, found: None, second: None });
                    return ReadTurn::Read(ReadLeader { list, number });
                }
            }
        };
        if let Ok(found) = tokio::time::timeout(PATIENCE, waiter.found()).await {
            return ReadTurn::Shared(found);
        }
        let second = {
            let mut numbered = list.lock();
            let running = numbered.get(waiter.number);
            running.map(|running| running.second.get_or_insert_with(|| read().shared()).clone())
        };
        let Some(second) = second else { return ReadTurn::Shared(None) };
        tokio::select! {
            biased;
            found = waiter.found() => ReadTurn::Shared(found),
            found = second => {
                // Later callers begin a new read.
                list.end(waiter.number, found.clone());
                ReadTurn::Shared(found)
            }
        }
    }
}

impl ReadList {
    fn lock(&self) -> MutexGuard<'_, NumberedReads> {
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

impl NumberedReads {
    fn get(&mut self, number: u64) -> Option<&mut RunningRead> {
        self.reads.iter_mut().find(|read| read.number == number)
    }

    fn remove(&mut self, number: u64) {
        self.reads.retain(|read| read.number != number);
    }
}

/// The caller that reads keeps this during its read. If it is dropped without [`end`](ReadLeader::end), the waiters'
/// result is that nothing was found.
pub struct ReadLeader<'a> {
    list: &'a ReadList,
    number: u64,
}

impl ReadLeader<'_> {
    /// Gives the result to the waiters.
    pub fn end(self, found: Option<ReadEntry>) {
        self.list.end(self.number, found);
    }
}

impl Drop for ReadLeader<'_> {
    fn drop(&mut self) {
        self.list.end(self.number, None);
    }
}

/// A caller that waits for a read. The last waiter removes the read from the table.
struct ReadWaiter<'a> {
    list: &'a ReadList,
    number: u64,
}

impl ReadWaiter<'_> {
    /// Waits for the result.
    async fn found(&self) -> Option<ReadEntry> {
        loop {
            let ended = self.list.ended.notified();
            tokio::pin!(ended);
            // If a read ends after this call, this waiter is notified.
            ended.as_mut().enable();
            let found = self.list.lock().get(self.number).and_then(|read| read.found.clone());
            match found {
                Some(found) => return found,
                None => ended.await,
            }
        }
    }
}

impl Drop for ReadWaiter<'_> {
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

    fn none() -> SecondRead {
        Box::pin(std::future::pending())
    }

    /// Waiting ends with the read, also if the read is aborted or nobody waits.
    #[tokio::test]
    async fn waiting_ends_with_the_read() {
        let reads = RunningReads::new();
        let count = || reads.lists.iter().map(|list| list.lock().reads.len()).sum::<usize>();
        let ReadTurn::Read(reading) = reads.join(KeyHash(1), none).await else { panic!("nobody reads yet") };
        let mut waiting = Box::pin(reads.join(KeyHash(1), none));
        let mut leaving = Box::pin(reads.join(KeyHash(1), none));
        assert!(matches!(poll!(&mut waiting), Poll::Pending) && matches!(poll!(&mut leaving), Poll::Pending));
        assert!(matches!(reads.join(KeyHash(65), none).await, ReadTurn::Read(_)), "another hash of the same list");
        drop(leaving);
        drop(reading);
        assert!(matches!(poll!(&mut waiting), Poll::Ready(ReadTurn::Shared(None))));
        drop(waiting);
        assert_eq!(count(), 0);
        let ReadTurn::Read(reading) = reads.join(KeyHash(1), none).await else { panic!("nobody reads any more") };
        let mut waiting = Box::pin(reads.join(KeyHash(1), none));
        assert!(matches!(poll!(&mut waiting), Poll::Pending));
        drop(waiting);
        reading.end(None);
        assert_eq!(count(), 0);
    }
}
