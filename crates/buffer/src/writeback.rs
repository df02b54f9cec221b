//! Write-back: dirty blocks are written to the source, when they are old or too many, and at a flush.
//!
//! Promises: two write-backs of a block never overlap, so an older version never overwrites a newer one; a block
//! becomes clean only when a write of its newest version has succeeded; a block that could not be written stays dirty,
//! readable and counted, and the next flush reports the failure. Adjacent dirty blocks are written together, in
//! ascending order. The background task runs while there are dirty blocks.
//!
//! A flush writes back all blocks that were dirty when it was called, waits for write-backs of these blocks that are in
//! flight (they hold the range lock), and then flushes the source.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{Buffer, DeviceErrorKind, DeviceOperation, Error, IoContext, WriteFlags};
use tokio::time::Instant;

use crate::frame::BlockFrame;
use crate::names::{BLOCK_BITS, block_of, file_of, id_of};
use crate::planted::{Bug, planted};
use crate::shared::{IoTicket, SharedCache};
use crate::source::ByteSource;
use crate::state::CacheState;

/// The time after which the background task retries a failed write-back.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Versions of adjacent blocks that are written together.
struct WriteBackRun {
    first: u64,
    blocks: Vec<(u64, Arc<BlockFrame>)>,
}

/// The next work of the background task: blocks to write back, or the time at which to look again.
struct WriteBackWork {
    ids: Vec<u64>,
    wake: Option<Instant>,
}

/// When this value is dropped, it records that the background task has ended, even if the runtime ended the task.
struct TaskEndGuard(Arc<SharedCache>, bool);

impl Drop for TaskEndGuard {
    fn drop(&mut self) {
        if self.1 {
            self.0.lock().has_writer = false;
        }
    }
}

impl CacheState {
    /// The blocks to write back now: the oldest ones if too many blocks are dirty, and those that are too old. Blocks
    /// whose write-back failed recently are left out.
    fn due(&self, now: Instant, age: Duration) -> WriteBackWork {
        let most = self.budget.dirty_max;
        let dirty = self.dirty.len() as u64;
        let is_over = 2 * (dirty + self.dirty_reserved) > most;
        let mut excess = if is_over { dirty.saturating_sub(most / 4) } else { 0 };
        let mut due = WriteBackWork { ids: Vec::new(), wake: None };
        let mut wake = |at: Instant| due.wake = Some(due.wake.map_or(at, |wake| wake.min(at)));
        for id in self.dirty_by_age.values() {
            let Some(dirty) = self.entries.get(id).and_then(|entry| entry.dirty.as_deref()) else { continue };
            if dirty.is_writing {
                excess = excess.saturating_sub(1);
                continue;
            }
            if let Some(retry) = dirty.failed.map(|failed| failed + RETRY_AFTER).filter(|retry| *retry > now) {
                wake(retry);
                continue;
            }
            if excess > 0 || dirty.since + age <= now {
                excess = excess.saturating_sub(1);
                due.ids.push(*id);
            } else {
                wake(dirty.since + age);
                break;
            }
        }
        due
    }

    /// Ranges of adjacent dirty blocks that contain the blocks in `ids`; each range has at most `most` blocks.
    fn runs(&self, ids: &[u64], most: u64) -> Vec<Range<u64>> {
        let mut left: BTreeSet<u64> = ids.iter().copied().collect();
        let mut runs = Vec::new();
        while let Some(first) = left.pop_first() {
            let mut end = first + 1;
            while end - first < most && file_of(end) == file_of(first) && self.dirty.contains(&end) {
                left.remove(&end);
                end += 1;
            }
            runs.push(first..end);
        }
        runs
    }
}

impl SharedCache {
    /// Starts the background task if there are dirty blocks and the task does not run.
    pub(crate) fn ensure_writer(self: &Arc<SharedCache>, state: &mut CacheState) {
        if !state.has_writer && !state.dirty.is_empty() {
            state.has_writer = true;
            self.tasks.spawn(self.clone().write_in_background());
        }
    }

    async fn write_in_background(self: Arc<SharedCache>) {
        let mut alive = TaskEndGuard(self.clone(), true);
        loop {
            let age = self.options().dirty_age;
            let due = {
                let mut state = self.lock();
                if state.dirty.is_empty() {
                    (state.has_writer, alive.1) = (false, false);
                    return;
                }
                state.due(Instant::now(), age)
            };
            if self.stop.is_cancelled() {
                // The last handle was dropped, so this is the last attempt. Blocks that cannot be written are lost with
                // the cache.
                let _ = self.write_back_range(0..u64::MAX).await;
                return;
            }
            if !due.ids.is_empty() {
                let _ = self.write_back_ids(&due.ids).await;
                continue;
            }
            let wake = due.wake.unwrap_or_else(|| Instant::now() + age.max(RETRY_AFTER));
            tokio::select! {
                () = tokio::time::sleep_until(wake) => {}
                () = self.nudge.notified() => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Writes back the dirty blocks in a range of ids.
    pub(crate) async fn write_back_range(self: &Arc<SharedCache>, ids: Range<u64>) -> Result<(), Error> {
        let ids: Vec<u64> = {
            let state = self.lock();
            let is_missed = |id: &&u64| {
                let is_writing = state
                    .entries
                    .get(id)
                    .and_then(|entry| entry.dirty.as_deref())
                    .is_some_and(|dirty| dirty.is_writing);
                is_writing && planted(Bug::FlushMissesWriteBack)
            };
            state.dirty.range(ids).filter(|id| !is_missed(id)).copied().collect()
        };
        self.write_back_ids(&ids).await
    }

    async fn write_back_ids(self: &Arc<SharedCache>, ids: &[u64]) -> Result<(), Error> {
        let runs = {
            let state = self.lock();
            state.runs(ids, state.budget.run_max)
        };
        let tasks: Vec<_> = runs.into_iter().map(|run| self.tasks.spawn(self.clone().write_back_run(run))).collect();
        let mut result = Ok(());
        for task in tasks {
            let ended = task.await.unwrap_or_else(|error| {
                let detail = format!("the task that wrote back ended early: {error}");
                Err(Error::new(DeviceErrorKind::Io, "cache", DeviceOperation::Write, detail))
            });
            result = result.and(ended);
        }
        result
    }

    /// Waits for the range lock, and then writes back the blocks of a range that are still dirty.
    async fn write_back_run(self: Arc<SharedCache>, ids: Range<u64>) -> Result<(), Error> {
        let _slot = self.write_backs.acquire().await;
        let is_ordered = !planted(Bug::WriteBackUnordered);
        let mut ticket = is_ordered.then(|| IoTicket::draw(&self, &mut self.lock(), ids.clone()));
        if let Some(ticket) = &mut ticket {
            ticket.granted().await;
        }
        let (segments, source) = {
            let mut state = self.lock();
            let Some(source) = state.files.get(&file_of(ids.start)).map(|file| file.source.clone()) else {
                return Ok(());
            };
            (state.begin_segments(ids), source)
        };
        let mut result = Ok(());
        for segment in segments {
            let written = self.write_segment(&*source, &segment).await;
            let mut state = self.lock();
            state.end_segment(&segment, &written);
            drop(state);
            self.changed.notify_waiters();
            result = result.and(written);
        }
        result
    }

    async fn write_segment(&self, source: &dyn ByteSource, segment: &WriteBackRun) -> Result<(), Error> {
        let block = self.block_bytes as u64;
        let offset = block_of(segment.first) * block;
        let whole = segment.blocks.len() as u64 * block;
        let length = whole.min(source.size_bytes().saturating_sub(offset)) as usize;
        if length == 0 {
            return Ok(());
        }
        let mut buffer = Buffer::recycled(length);
        for (index, (_, frame)) in segment.blocks.iter().enumerate() {
            let start = index * self.block_bytes;
            let end = (start + self.block_bytes).min(length);
            if start < end {
                buffer[start..end].copy_from_slice(&frame.bytes[..end - start]);
            }
        }
        let written = source.write_at(offset, vec![buffer], WriteFlags::default(), IoContext::default()).await;
        written.map(drop)
    }

    /// Writes back the dirty blocks of a file, and flushes its source.
    pub(crate) async fn flush(self: Arc<SharedCache>, file: u32, source: Arc<dyn ByteSource>) -> Result<(), Error> {
        let ids = id_of(file, 0)..id_of(file, 0) + (1 << BLOCK_BITS);
        let written = self.write_back_range(ids).await;
        let failed = self.lock().files.get_mut(&file).and_then(|file| file.failed.take());
        let as_flush = |error: Error| {
            let detail = format!(
                "not written back: {} of {} bytes at {}: {}",
                error.operation.as_str(),
                error.length,
                error.offset,
                error.detail
            );
            Err(Error { operation: DeviceOperation::Flush, offset: 0, length: 0, detail, ..error })
        };
        match (written, failed) {
            (Err(error), _) | (Ok(()), Some(error)) => as_flush(error),
            (Ok(()), None) => source.flush(IoContext::default()).await,
        }
    }
}

impl CacheState {
    /// Takes the newest versions of the dirty blocks in a range, and marks the blocks as being written.
    fn begin_segments(&mut self, ids: Range<u64>) -> Vec<WriteBackRun> {
        let mut segments: Vec<WriteBackRun> = Vec::new();
        let dirty: Vec<u64> = self.dirty.range(ids).copied().collect();
        for id in dirty {
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            let Some(frame) = entry.frame().cloned() else { continue };
            let Some(dirty) = &mut entry.dirty else { continue };
            dirty.is_writing = true;
            let version = dirty.version;
            match segments.last_mut() {
                Some(last) if last.first + last.blocks.len() as u64 == id => last.blocks.push((version, frame)),
                _ => segments.push(WriteBackRun { first: id, blocks: vec![(version, frame)] }),
            }
            if planted(Bug::CleanTooEarly) {
                self.clean(id);
                self.settle(id);
            }
        }
        segments
    }

    /// Records the result of writing a segment.
    fn end_segment(&mut self, segment: &WriteBackRun, written: &Result<(), Error>) {
        let now = Instant::now();
        for (id, (version, _)) in (segment.first..).zip(&segment.blocks) {
            let Some(dirty) = self.entries.get_mut(&id).and_then(|entry| entry.dirty.as_mut()) else { continue };
            dirty.is_writing = false;
            match written {
                Ok(()) => dirty.failed = None,
                Err(_) => dirty.failed = Some(now),
            }
            let is_clean = dirty.version == *version && (written.is_ok() || planted(Bug::FailureForgotten));
            if is_clean {
                self.clean(id);
                self.settle(id);
            }
        }
        match written {
            Ok(()) => {
                self.counts.written_back += segment.blocks.len() as u64;
                self.write_error = None;
            }
            Err(error) => {
                self.counts.write_back_errors += 1;
                self.write_error = Some(error.clone());
                if let Some(file) = self.files.get_mut(&file_of(segment.first)) {
                    file.failed.get_or_insert_with(|| error.clone());
                }
            }
        }
    }
}
