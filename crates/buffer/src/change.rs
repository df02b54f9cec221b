//! Changes of a cache while it runs: its memory and its mode.
//!
//! Promises: operations go on during a change. Less memory is waited for: blocks leave, what is dirty is written back
//! first. When write-back ends, dirty blocks are written back and flushed.

use nectary_block::{Context, Error};
use nectary_cache::Policy;

use crate::cache::{BufferCache, refused_shared};
use crate::names::FileId;
use crate::options::{Mode, Options};
use crate::wait::ended;

impl BufferCache {
    /// Changes the memory of a running cache, and returns when the cache uses no more than that.
    ///
    /// *Errors*: [`ErrorKind::Invalid`] for less than a cache needs.
    pub async fn set_memory(&self, memory_bytes: u64) -> Result<(), Error> {
        let options = Options { memory_bytes, ..self.options() };
        options.check()?;
        self.adopt(options).await
    }

    /// Changes the memory of a cache that is so small that simulations meet every limit.
    #[cfg(feature = "planted")]
    pub async fn set_frames(&self, frames: u64) -> Result<(), Error> {
        self.adopt(Options { frames: Some(frames), ..self.options() }).await
    }

    /// Changes the mode of a cache that runs. Dirty blocks are written back and flushed when write-back ends.
    ///
    /// *Errors*: [`ErrorKind::Unsupported`] for write-back where a source is shared; what the flush reports: the mode
    /// has changed all the same, and what could not be written stays dirty and readable.
    pub async fn set_mode(&self, mode: Mode) -> Result<(), Error> {
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
            let less = state.budget.frames.saturating_sub(budget.frames);
            self.shared.memory.add_permits(budget.frames.saturating_sub(state.budget.frames) as usize);
            state.budget = budget;
            state.mode = options.mode;
            let mut victims = Vec::new();
            state.policy.set_capacity(budget.capacity, &mut |victim| {
                victims.push(victim);
                true
            });
            state.shadow.set_capacity(budget.capacity, &mut |_| true);
            for victim in victims {
                if let Some(entry) = state.entries.get_mut(&victim) {
                    entry.is_resident = false;
                }
                state.settle(victim);
            }
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
}
