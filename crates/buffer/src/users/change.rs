//! Changes a cache while it runs: its memory, mode and policy.
//!
//! Promises: operations continue during a change, and changes are made one after another. A change to less memory waits
//! until enough blocks are evicted; dirty blocks are written back first. When write-back mode ends, dirty blocks are
//! written back and flushed.

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, IoContext, format_size};
use nectary_cache::{Policy, explaining};

use crate::cache::{BufferCache, refused_shared};
use crate::names::FileId;
use crate::options::{BlockBudget, CacheOptions, WriteMode};
use crate::state::CacheState;
use crate::users::history::ReferenceHistory;
use crate::users::pins::PIN_PERCENT_MAX;
use crate::wait::ended;

impl BufferCache {
    /// Changes the memory of a running cache. The call returns when the cache uses no more than the new memory.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] if the memory is less than a cache needs, or less than the pinned blocks need, or
    /// more than the machine has.
    pub async fn set_memory(&self, memory_bytes: u64) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let options = CacheOptions { memory_bytes, ..self.options() };
        options.check()?;
        options.check_machine()?;
        self.adopt(options).await
    }

    /// Changes the policy of a running cache. Blocks stay in memory: the new policy sees one reference to each of them,
    /// in the order of files and offsets, by stream 0, which no caller uses. All verdicts on streams are dropped. Some
    /// blocks may be evicted, because the tables of policies differ in size.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] if the policy is unknown, or needs more memory than the cache has. *Cost*: one
    /// reference per block in memory, under the mutex.
    pub async fn set_policy(&self, policy: &str) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let options = CacheOptions { policy: policy.to_owned(), ..self.options() };
        options.check()?;
        self.adopt(options).await
    }

    /// Sets the number of frames, for caches so small that simulations reach every limit.
    #[cfg(feature = "planted")]
    pub async fn set_frames(&self, frames: u64) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        self.adopt(CacheOptions { frames: Some(frames), ..self.options() }).await
    }

    /// Changes the mode of a running cache. If the old mode is write-back, dirty blocks are written back and flushed.
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`] for write-back if a source is shared; those of the flush. If the flush
    /// fails, the mode has changed nevertheless, and blocks that could not be written stay dirty and readable.
    pub async fn set_mode(&self, mode: WriteMode) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let files: Vec<FileId> = {
            let state = self.shared.lock();
            let shared = state.files.values().find(|file| mode == WriteMode::WriteBack && file.source.is_shared());
            if let Some(file) = shared {
                return Err(refused_shared(&*file.source));
            }
            let mut files: Vec<FileId> = state.files.keys().map(|&number| FileId(number)).collect();
            files.sort_unstable();
            files
        };
        let was_back = self.mode() == WriteMode::WriteBack;
        self.adopt(CacheOptions { mode, ..self.options() }).await?;
        if was_back && mode != WriteMode::WriteBack {
            for file in files {
                self.flush(file, IoContext::default()).await?;
            }
        }
        Ok(())
    }

    /// Divides memory as the new options require, and waits until the excess frames are free.
    async fn adopt(&self, options: CacheOptions) -> Result<(), Error> {
        let budget = options.budget();
        let less = {
            let mut state = self.shared.lock();
            let most = CacheState::pins_max(budget.capacity);
            if state.pins.len() as u64 > most {
                return Err(self.pinned_more(state.pins.len() as u64, most));
            }
            let is_other = options.policy != self.shared.options().policy;
            let less = state.budget.frames.saturating_sub(budget.frames);
            self.shared.memory.add_permits(budget.frames.saturating_sub(state.budget.frames) as usize);
            state.budget = budget;
            state.mode = options.mode;
            if is_other {
                state.replace_policy(&options.policy, &budget);
            }
            state.fit_policy();
            state.shadow.set_capacity(budget.capacity_lru, &mut |_| true);
            state.history = ReferenceHistory::begun_late(budget.capacity, budget.history);
            state.trim_ahead();
            state.entries.shrink();
            *self.shared.options() = options;
            less
        };
        self.shared.changed.notify_waiters();
        self.shared.nudge.notify_one();
        let shared = self.shared.clone();
        let freed = self.spawn(async move {
            let mut less = less;
            while less > 0 {
                let part = less.min(1 << 16);
                shared.places(part as usize).await.forget();
                less -= part;
            }
            Ok(())
        });
        ended(freed).await
    }

    fn pinned_more(&self, pinned: u64, most: u64) -> Error {
        let size = |blocks: u64| format_size(blocks * self.block_bytes() as u64);
        let detail = format!(
            "{} are pinned, and of so much memory at most {} may be, {PIN_PERCENT_MAX} % of what the cache holds: \
             unpin something first",
            size(pinned),
            size(most)
        );
        Error::new(DeviceErrorKind::Invalid, "cache", DeviceOperation::Open, detail)
    }
}

impl CacheState {
    /// Replaces the policy. The new policy takes over the blocks in memory. The caller has checked the name.
    fn replace_policy(&mut self, name: &str, budget: &BlockBudget) {
        let capacity = budget.capacity.saturating_sub(self.pins.len() as u64);
        let Some(policy) = explaining(name, capacity, self.verdicts.sink()) else { return };
        self.policy = policy;
        self.streams.forget_verdicts();
        let is_resident = |(&id, entry): (&u64, &crate::state::BlockEntry)| entry.is_resident.then_some(id);
        let mut ids: Vec<u64> = self.entries.iter().filter_map(is_resident).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.offer(id));
        // The verdicts on these references are dropped, because the references belong to no stream.
        let _ = self.verdicts.take();
    }
}
