//! Changes of a cache while it runs: its memory, its mode and its policy.
//!
//! Promises: operations go on meanwhile, and one change comes after another. Less memory is waited for:
//! blocks leave, what is dirty is written back first. When write-back ends, what is dirty is written back and flushed.

use nectary_block::{Context, Error, ErrorKind, Operation, format_size};
use nectary_cache::{Policy, explaining};

use crate::cache::{BufferCache, refused_shared};
use crate::names::FileId;
use crate::options::{Budget, Mode, Options};
use crate::state::State;
use crate::users::history::History;
use crate::users::pins::PIN_PERCENT_MAX;
use crate::wait::ended;

impl BufferCache {
    /// Changes the memory of a cache that runs, and ends when it has no more than that.
    ///
    /// *Errors*: [`ErrorKind::Invalid`] for less than a cache needs, or than what is pinned needs.
    pub async fn set_memory(&self, memory_bytes: u64) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let options = Options { memory_bytes, ..self.options() };
        options.check()?;
        self.adopt(options).await
    }

    /// Changes the policy of a cache that runs. Blocks stay in memory: the new policy hears of them as if each had been
    /// referenced once, in the order of files and places, by a stream that nobody is (0); what streams were found to do
    /// is forgotten. The policies' tables differ in size, so blocks may leave.
    ///
    /// *Errors*: [`ErrorKind::Invalid`] for a policy that there is not, or memory that is too little for it. *Cost*: a
    /// reference for each block in memory, under the mutex.
    pub async fn set_policy(&self, policy: &str) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let options = Options { policy: policy.to_owned(), ..self.options() };
        options.check()?;
        self.adopt(options).await
    }

    /// Changes the memory of a cache that is so small that simulations meet every limit.
    #[cfg(feature = "planted")]
    pub async fn set_frames(&self, frames: u64) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        self.adopt(Options { frames: Some(frames), ..self.options() }).await
    }

    /// Changes the mode of a cache that runs. What is dirty is written back and flushed when write-back ends.
    ///
    /// *Errors*: [`ErrorKind::Unsupported`] for write-back where a source is shared; what the flush reports: the mode
    /// has changed all the same, and what could not be written stays dirty and readable.
    pub async fn set_mode(&self, mode: Mode) -> Result<(), Error> {
        let _one = self.shared.changes.lock().await;
        let files: Vec<FileId> = {
            let state = self.shared.lock();
            let shared = state.files.values().find(|file| mode == Mode::WriteBack && file.source.is_shared());
            if let Some(file) = shared {
                return Err(refused_shared(&*file.source));
            }
            let mut files: Vec<FileId> = state.files.keys().map(|&number| FileId(number)).collect();
            files.sort_unstable();
            files
        };
        let was_back = self.mode() == Mode::WriteBack;
        self.adopt(Options { mode, ..self.options() }).await?;
        if was_back && mode != Mode::WriteBack {
            for file in files {
                self.flush(file, Context::default()).await?;
            }
        }
        Ok(())
    }

    /// Divides memory again, and waits until what is too much is free.
    async fn adopt(&self, options: Options) -> Result<(), Error> {
        let budget = options.budget();
        let less = {
            let mut state = self.shared.lock();
            let most = State::pins_max(budget.capacity);
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
            state.shadow.set_capacity(budget.capacity, &mut |_| true);
            state.history = History::begun_late(budget.capacity, budget.history);
            state.trim_ahead();
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
        Error::new(ErrorKind::Invalid, "cache", Operation::Open, detail)
    }
}

impl State {
    /// Puts another policy in place, which takes over what is in memory; its name was checked.
    fn replace_policy(&mut self, name: &str, budget: &Budget) {
        let capacity = budget.capacity.saturating_sub(self.pins.len() as u64);
        let Some(policy) = explaining(name, capacity, self.verdicts.sink()) else { return };
        self.policy = policy;
        self.streams.forget_verdicts();
        let is_resident = |(&id, entry): (&u64, &crate::state::Entry)| entry.is_resident.then_some(id);
        let mut ids: Vec<u64> = self.entries.iter().filter_map(is_resident).collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.offer(id));
        // What it found in these is of no stream.
        let _ = self.verdicts.take();
    }
}
