//! The running views of pages. A view is the requests for a page and for the objects that it embeds.
//!
//! Owns: the running views, bounded in number, and the state of each. Leaves to others: the rewriting that a view
//! causes (`regroup`).

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard};

use crate::locality::hints::HintId;
use crate::names::key::{KeyHash, KeyHasher};

/// The limit on the number of views is the memory budget divided by this. *Units*: bytes.
const BYTES_PER_VIEW: u64 = 128 << 10;
/// The smallest and the largest value of this limit. If there are more views than the limit, the oldest are removed.
const VIEWS: (u64, u64) = (64, 1024);
/// A view of a page that was put or read from disk recently.
pub struct RunningView {
    pub page: HintId,
    pub hash: KeyHash,
    /// The objects that were read with the page's group, or put for the page since.
    pub members: Vec<KeyHash>,
    /// The sequence under which the page was queued in this view; `None` if it was not queued.
    pub sequence: Option<u64>,
    /// Whether the page was put in this view, and not read.
    pub was_put: bool,
    /// Whether the page was queued for rewriting in this view.
    pub was_gathered: bool,
    /// The number of the view; later views have higher numbers.
    number: u64,
}

impl RunningView {
    pub fn put(page: HintId, hash: KeyHash, sequence: u64) -> RunningView {
        let members = Vec::new();
        RunningView { page, hash, members, sequence: Some(sequence), was_put: true, was_gathered: false, number: 0 }
    }

    pub fn read(page: HintId, hash: KeyHash, members: Vec<KeyHash>) -> RunningView {
        RunningView { page, hash, members, sequence: None, was_put: false, was_gathered: false, number: 0 }
    }
}

/// The running views, by page.
#[derive(Default)]
pub struct ViewTable {
    pub views: HashMap<HintId, RunningView, BuildHasherDefault<KeyHasher>>,
    /// The order in which views began; a view that began again is in it twice.
    order: VecDeque<(HintId, u64)>,
    begun: u64,
}

/// The running views, and the limit on their number.
pub struct RunningViews {
    known: Mutex<ViewTable>,
    count_max: usize,
    /// Whether regrouping is on.
    pub regroups: bool,
}

impl RunningViews {
    /// Makes a list without views.
    pub fn new(memory_bytes: u64, regroups: bool) -> RunningViews {
        let count_max = (memory_bytes / BYTES_PER_VIEW).clamp(VIEWS.0, VIEWS.1) as usize;
        RunningViews { known: Mutex::default(), count_max, regroups }
    }

    pub fn begin(&self, mut view: RunningView) {
        let mut known = self.lock();
        known.begun += 1;
        view.number = known.begun;
        known.order.push_back((view.page, view.number));
        known.views.insert(view.page, view);
        // The order may have twice as many entries as there are views, because a view that began again is in it twice.
        while known.views.len() > self.count_max || known.order.len() > 2 * self.count_max {
            let Some((page, number)) = known.order.pop_front() else { return };
            if known.views.get(&page).is_some_and(|view| view.number == number) {
                known.views.remove(&page);
            }
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, ViewTable> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
