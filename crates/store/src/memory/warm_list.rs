//! The objects still to be read into memory after a restart.
//!
//! Owns: the list of these objects, and the number of objects that were already processed. Leaves to others: reading
//! the objects (`checkpoint/warm.rs`), and writing the rest of the list with the hot list of a checkpoint
//! (`checkpoint`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::SetOnce;

use crate::memory::hot::HotPlace;

/// The objects to read into memory, and the number of objects that were already processed.
#[derive(Default)]
pub(crate) struct WarmList {
    /// The objects, in the order of their locations on disk.
    list: Mutex<Arc<Vec<HotPlace>>>,
    /// At least this many objects at the front of the list were already processed: read into memory, or found invalid.
    done: AtomicUsize,
    is_known: SetOnce<()>,
    has_ended: AtomicBool,
}

impl WarmList {
    /// Waits until the list is known.
    pub async fn known(&self) {
        self.is_known.wait().await;
    }

    /// Returns at most `most` of the objects that are still to be read. Waits until the list is known.
    pub async fn left(&self, most: usize) -> Vec<HotPlace> {
        self.known().await;
        let list = Arc::clone(&self.lock());
        let done = self.done.load(Ordering::Acquire).min(list.len());
        list[done..].iter().copied().take(most).collect()
    }

    /// Whether objects are still being read.
    pub fn is_under_way(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire)
    }

    /// Notes that reading has ended, for any reason. Callers that wait for the list continue.
    pub fn end(&self) {
        let _ = self.is_known.set(());
        self.has_ended.store(true, Ordering::Release);
    }

    /// Sets the number of objects at the front of the list that were already processed.
    pub fn set_done(&self, done: usize) {
        self.done.store(done, Ordering::Release);
    }

    /// Sets the list.
    pub fn set(&self, list: Arc<Vec<HotPlace>>) {
        *self.lock() = list;
        let _ = self.is_known.set(());
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Vec<HotPlace>>> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
