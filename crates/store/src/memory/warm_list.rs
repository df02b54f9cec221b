//! The objects still to be taken into memory after a restart.
//!
//! Owns: the list, and how far it was read. Leaves to others: reading (`warm`), and writing the rest of it with the hot
//! list of a checkpoint (`checkpoint`).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::SetOnce;

use crate::memory::hot::HotPlace;

/// The objects to take into memory, and how much of the list was looked at.
#[derive(Default)]
pub(crate) struct WarmList {
    /// In the order of the disk.
    list: Mutex<Arc<Vec<HotPlace>>>,
    /// At least this many of them are not to be taken any more.
    done: AtomicUsize,
    is_known: SetOnce<()>,
    has_ended: AtomicBool,
}

impl WarmList {
    /// Waits until it is known.
    pub async fn known(&self) {
        self.is_known.wait().await;
    }

    /// At most `most` places that are still to be taken; waits until they are known.
    pub async fn left(&self, most: usize) -> Vec<HotPlace> {
        self.known().await;
        let list = Arc::clone(&self.lock());
        let done = self.done.load(Ordering::Acquire).min(list.len());
        list[done..].iter().copied().take(most).collect()
    }

    /// Whether it is still being read.
    pub fn is_under_way(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire)
    }

    /// Reading has ended, for any reason: nobody waits for the list any more.
    pub fn end(&self) {
        let _ = self.is_known.set(());
        self.has_ended.store(true, Ordering::Release);
    }

    /// The number of those that are done.
    pub fn set_done(&self, done: usize) {
        self.done.store(done, Ordering::Release);
    }

    /// Says what it is.
    pub fn set(&self, list: Arc<Vec<HotPlace>>) {
        *self.lock() = list;
        let _ = self.is_known.set(());
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Vec<HotPlace>>> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
