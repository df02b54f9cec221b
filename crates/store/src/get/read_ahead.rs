//! Reading the fragments of a body before its reader needs them.
//!
//! Owns: how many fragments a reader reads ahead, and the memory that all readers of a span use for this. Leaves to
//! others: finding a fragment (`lookup`), and a body's ranges (`object`).
//!
//! A reader begins with one fragment ahead. Each time it has to wait for a fragment that is being read, the number
//! doubles, up to [`FRAGMENTS_MAX`]; so a reader that is slower than the device stays at one. Each read runs in a task:
//! another reader may wait for its result, so it has to end even if its own reader pauses.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::error::Error;
use crate::get::lookup::ObjectLookup;
use crate::memory::entry::MemoryEntry;
use crate::names::key::KeyHash;

/// The largest number of fragments that one reader reads ahead.
const FRAGMENTS_MAX: usize = 4;

/// The fragments that were read ahead and not used yet have at most this part of the memory tier's bytes.
const MEMORY_SHARE: u64 = 32;

type Found = Result<Option<Arc<MemoryEntry>>, Error>;

/// Makes the permits that the readers of a span share, one for each fragment that they may read ahead. If the memory
/// tier is too small, no reader reads ahead.
pub(crate) fn permits(tier_bytes: u64, fragment_bytes: u64) -> Arc<Semaphore> {
    let fragments = usize::try_from(tier_bytes / MEMORY_SHARE / fragment_bytes).unwrap_or(usize::MAX);
    Arc::new(Semaphore::new(fragments.min(Semaphore::MAX_PERMITS)))
}

/// A body's fragments, which are numbered from 0.
#[derive(Clone, Copy)]
pub(crate) struct BodyFragments {
    pub key: KeyHash,
    pub generation: u64,
    /// The number of the last fragment to read.
    pub last: u32,
}

/// The reads that one reader has begun.
pub(crate) struct ReadAhead {
    /// The number of fragments to read ahead.
    window: usize,
    /// Consecutive fragments.
    running: VecDeque<FragmentRead>,
}

/// A fragment that is being read or waits for its reader.
struct FragmentRead {
    number: u32,
    task: AbortOnDropHandle<Found>,
    _permit: OwnedSemaphorePermit,
}

impl ReadAhead {
    /// Begins nothing.
    pub fn new() -> ReadAhead {
        ReadAhead { window: 1, running: VecDeque::new() }
    }

    /// Returns fragment `number`, and begins to read those after it. Call it with increasing numbers.
    ///
    /// *Errors*: the read failed on the device. *Cancel safety*: a cancelled call can be repeated.
    pub async fn next(&mut self, lookup: &Arc<ObjectLookup>, fragments: BodyFragments, number: u32) -> Found {
        while self.running.front().is_some_and(|first| first.number < number) {
            self.running.pop_front();
        }
        self.begin(lookup, fragments, number);
        let Some(first) = self.running.front_mut().filter(|first| first.number == number) else {
            return lookup.find_fragment(fragments.key, fragments.generation, number).await;
        };
        if !first.task.is_finished() {
            self.window = (self.window * 2).min(FRAGMENTS_MAX);
        }
        let found = (&mut first.task).await;
        self.running.pop_front();
        match found {
            Ok(found) => found,
            // The runtime of the task has ended.
            Err(_) => lookup.find_fragment(fragments.key, fragments.generation, number).await,
        }
    }

    /// Begins to read the fragments after `number` that the window has and that do not run yet.
    fn begin(&mut self, lookup: &Arc<ObjectLookup>, fragments: BodyFragments, number: u32) {
        let Ok(runtime) = Handle::try_current() else { return };
        let from = self.running.back().map_or(number, |last| last.number) + 1;
        let until = fragments.last.min(number.saturating_add(self.window as u32));
        for number in from..=until {
            let Ok(permit) = Arc::clone(&lookup.read_ahead).try_acquire_owned() else { return };
            let lookup = Arc::clone(lookup);
            let read = async move { lookup.find_fragment(fragments.key, fragments.generation, number).await };
            let task = AbortOnDropHandle::new(runtime.spawn(read));
            self.running.push_back(FragmentRead { number, task, _permit: permit });
        }
    }
}
