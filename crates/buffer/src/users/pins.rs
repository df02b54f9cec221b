//! Pins ranges of a file in memory, and drops ranges from memory.
//!
//! Owns: the set of pinned blocks, and the bound on it. A pinned block is outside of the policy: its memory is
//! subtracted from the policy's capacity, and the policy does not see references to the block. So pins never take
//! memory that reads and writes need. A pin applies to a range, not to its contents: if others change the file, the
//! block is read again and stays pinned. Promises: at most [`PIN_PERCENT_MAX`] of the capacity is pinned; a pin that
//! fails pins nothing.

use std::ops::Range;
use std::sync::Arc;

use nectary_block::{AccessStream, DeviceErrorKind, DeviceOperation, Error, IoContext, format_size};
use nectary_cache::{AccessResult, Policy};

use crate::cache::BufferCache;
use crate::names::FileId;
use crate::options::READ_BLOCKS_MAX;
use crate::shared::{FileRange, SharedCache};
use crate::state::{AccessOutcome, BlockEntry, BlockLoad, CacheState, EntryContent};
use crate::users::history::ReferenceHistory;
use crate::wait::ended;

/// The largest share of the capacity that may be pinned. *Units*: percent.
pub const PIN_PERCENT_MAX: u64 = 50;

/// The result of [`BufferCache::drop_clean`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DropReport {
    /// The size of the blocks that were dropped. *Units*: bytes, whole blocks.
    pub bytes: u64,
    /// The size of the blocks that stayed because they are dirty. *Units*: bytes, whole blocks.
    pub dirty_bytes: u64,
    /// The size of the blocks that stayed because they are pinned. *Units*: bytes, whole blocks.
    pub pinned_bytes: u64,
}

impl CacheState {
    /// The maximum number of blocks that may be pinned in a budget with the capacity `capacity`.
    pub fn pins_max(capacity: u64) -> u64 {
        capacity * PIN_PERCENT_MAX / 100
    }

    pub fn is_pinned(&self, id: u64) -> bool {
        !self.pins.is_empty() && self.pins.contains(&id)
    }

    /// References a pinned block; the policy does not see it.
    pub fn refer_pinned(&mut self, id: u64, stream: AccessStream) -> AccessOutcome {
        let is_hit = self.entries.get(&id).is_some_and(|entry| entry.frame().is_some());
        let is_lru_hit =
            self.shadow.reference(id, 1, nectary_cache::StreamId(stream.0), &mut |_| true) == AccessResult::Hit;
        self.counts.refer(is_hit, is_lru_hit);
        self.counts.pinned_hits += u64::from(is_hit);
        self.streams.count(stream, is_hit, is_lru_hit);
        // The policy does not hold a pinned block.
        self.referenced(id, stream, false);
        AccessOutcome { is_hit, is_resident: true }
    }

    /// Sets the policy's capacity to the part that is not pinned. If the capacity changes, the history begins again,
    /// because references from a time with another capacity cannot be used for advice.
    pub fn fit_policy(&mut self) {
        let capacity = self.budget.capacity.saturating_sub(self.pins.len() as u64);
        if capacity != self.policy.capacity() {
            self.history = ReferenceHistory::begun_late(self.budget.capacity, self.budget.history);
        }
        let mut victims = Vec::new();
        self.policy.set_capacity(capacity, &mut |victim| {
            victims.push(victim);
            true
        });
        victims.into_iter().for_each(|victim| self.evicted(victim));
    }

    /// Pins blocks that are not pinned yet.
    fn pin(&mut self, ids: &[u64]) {
        for &id in ids {
            self.pins.insert(id);
            self.policy.remove(id);
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.is_resident = false;
            }
        }
        self.fit_policy();
    }

    /// Unpins the blocks of a range, and offers those in memory to the policy, as if they were referenced now.
    /// *Returns* the number of blocks that were pinned.
    pub fn unpin(&mut self, ids: Range<u64>) -> u64 {
        let pinned: Vec<u64> = self.pins.range(ids).copied().collect();
        if pinned.is_empty() {
            return 0;
        }
        for id in &pinned {
            self.pins.remove(id);
        }
        self.fit_policy();
        for &id in &pinned {
            if self.entries.get(&id).is_some_and(|entry| entry.frame().is_some()) {
                self.offer(id);
            }
        }
        pinned.len() as u64
    }

    /// Removes the pins of blocks that are about to be dropped.
    pub fn forget_pins(&mut self, ids: Range<u64>) {
        let pinned: Vec<u64> = self.pins.range(ids).copied().collect();
        if !pinned.is_empty() {
            for id in pinned {
                self.pins.remove(&id);
            }
            self.fit_policy();
        }
    }
}

impl BufferCache {
    /// Pins a range of a file in memory until it is unpinned, and reads the missing blocks. *Returns* the number of
    /// bytes that were not pinned before, in whole blocks. If the file grows later, the new part is not pinned. Pins of
    /// the same file take turns.
    ///
    /// *Errors*: [`DeviceErrorKind::Full`] if more than [`PIN_PERCENT_MAX`] of the capacity would be pinned;
    /// [`DeviceErrorKind::Invalid`] for a range outside the file; those of reading the range. After an error no more is
    /// pinned than before.
    pub async fn pin(&self, file: FileId, offset: u64, length: u64) -> Result<u64, Error> {
        let shared = self.shared.clone();
        // A pin that fails unpins the blocks that it has pinned. Until the pin has succeeded or failed, no other pin
        // may count these blocks as pinned already.
        let pinning = shared.lock().files.get(&file.0).map(|known| known.pinning.clone()).unwrap_or_default();
        let turn = pinning.lock_owned().await;
        let (span, fresh) = {
            let mut state = shared.lock();
            let span = shared.span(&state, file, DeviceOperation::Read, offset, length, IoContext::default())?;
            let most = CacheState::pins_max(state.budget.capacity);
            // The count is checked before a list of this length is built.
            let count = span.blocks.end - span.blocks.start;
            let known = state.pins.range(span.ids()).count() as u64;
            if state.pins.len() as u64 + (count - known) > most {
                return Err(self.too_many(&span, count - known, state.pins.len() as u64, most));
            }
            let fresh: Vec<u64> = span.ids().filter(|id| !state.pins.contains(id)).collect();
            state.pin(&fresh);
            (span, fresh)
        };
        let block = self.block_bytes() as u64;
        // A separate task loads the blocks, so that the pin succeeds or fails as a whole even if the caller is dropped.
        let task = self.spawn(async move {
            let loaded = shared.load(&span).await;
            if loaded.is_err() {
                let mut state = shared.lock();
                for &id in &fresh {
                    state.unpin(id..id + 1);
                }
            }
            drop(turn);
            loaded.map(|()| fresh.len() as u64 * block)
        });
        ended(task).await
    }

    fn too_many(&self, span: &FileRange, more: u64, pinned: u64, most: u64) -> Error {
        let size = |blocks: u64| format_size(blocks * self.block_bytes() as u64);
        let detail = format!(
            "it would pin {} more; {} are pinned, and at most {} may be, {PIN_PERCENT_MAX} % of what the cache holds: \
             unpin something, or give the cache more memory",
            size(more),
            size(pinned),
            size(most)
        );
        Error::new(DeviceErrorKind::Full, &span.source.name(), DeviceOperation::Read, detail)
            .at(span.offset, span.length)
    }

    /// Unpins a range, and offers its blocks in memory to the policy. *Returns* the number of bytes that were pinned,
    /// in whole blocks.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] for a file that is not in the cache.
    pub fn unpin(&self, file: FileId, offset: u64, length: u64) -> Result<u64, Error> {
        let mut state = self.shared.lock();
        let ids = self.clipped(&state, file, offset, length)?;
        Ok(state.unpin(ids) * self.block_bytes() as u64)
    }

    /// Drops a range from memory, except dirty and pinned blocks.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] for a file that is not in the cache.
    pub fn drop_clean(&self, file: FileId, offset: u64, length: u64) -> Result<DropReport, Error> {
        let mut state = self.shared.lock();
        let ids = self.clipped(&state, file, offset, length)?;
        let (mut dropped, block) = (DropReport::default(), self.block_bytes() as u64);
        for id in state.present(&ids) {
            if state.entries.get(&id).is_some_and(|entry| entry.dirty.is_some()) {
                dropped.dirty_bytes += block;
            } else if state.is_pinned(id) {
                dropped.pinned_bytes += block;
            } else {
                state.forget(id);
                dropped.bytes += block;
            }
        }
        Ok(dropped)
    }

    /// The ids of a range, which may go beyond the end of the file.
    pub(crate) fn clipped(
        &self,
        state: &CacheState,
        file: FileId,
        offset: u64,
        length: u64,
    ) -> Result<Range<u64>, Error> {
        let span = self.shared.span(state, file, DeviceOperation::Read, 0, 0, IoContext::default())?;
        // The range includes blocks that were pinned or cached before the file became shorter.
        Ok(crate::names::ids_of(span.file, offset, length, self.block_bytes() as u64))
    }
}

impl SharedCache {
    /// Reads the missing blocks of a range into memory, without counting references.
    async fn load(self: &Arc<SharedCache>, span: &FileRange) -> Result<(), Error> {
        let mut first = span.blocks.start;
        while first < span.blocks.end {
            let last = (first + READ_BLOCKS_MAX as u64).min(span.blocks.end);
            let places = self.places((last - first) as usize).await;
            let loads = {
                let mut state = self.lock();
                let (mut loads, mut missing) = (Vec::new(), Vec::new());
                for block in first..last {
                    let id = crate::names::id_of(span.file, block);
                    match state.entries.get(&id).map(|entry| &entry.content) {
                        Some(EntryContent::Ready(_)) => {}
                        Some(EntryContent::Loading(load)) => loads.push(load.clone()),
                        None => {
                            let load = Arc::new(BlockLoad::default());
                            state.entries.insert(id, BlockEntry::new(EntryContent::Loading(load.clone()), false));
                            loads.push(load.clone());
                            missing.push((block, load));
                        }
                    }
                }
                self.begin_loads(&mut state, span, missing, places);
                loads
            };
            for load in loads {
                load.wait().await?;
            }
            first = last;
        }
        Ok(())
    }
}
