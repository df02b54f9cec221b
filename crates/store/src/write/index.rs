//! Loading the index after a restart, before anything is written.
//!
//! Owns: the handling of a checkpoint that turns out to be damaged while it is loaded and already in use. Leaves to
//! others: loading (`recover/loading.rs`) and rebuilding an index (`recover`).

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::{SpanWriter, WriterCommand, task};
use crate::checkpoint::warm::{WarmSources, warm_up};
use crate::format::INDEX_SHARDS;
use crate::intake::queue::WriteQueue;
use crate::memory::warm_list::WarmList;
use crate::recover::loading::IndexRemainder;
use crate::recover::{IndexReadLimits, rebuild};
use crate::state::SpanState;

/// The largest number of replayed objects that are passed to warming up.
const NEWEST_MAX: usize = 1 << 18;

/// When this is dropped, it ends all waiting for the index, whatever happens to the thread that loads the index.
struct EndWaiting(Arc<SpanState>);

impl Drop for EndWaiting {
    fn drop(&mut self) {
        self.0.presence.arrive(u64::MAX);
    }
}

/// Whether a close is requested, and nothing waits to be written.
fn is_idle_close(early: &VecDeque<WriterCommand>, queue: &WriteQueue) -> bool {
    let closes = early.iter().any(|command| matches!(command, WriterCommand::Close(_)));
    let writes = early.iter().any(|command| matches!(command, WriterCommand::Purge(..) | WriterCommand::Membership(_)));
    closes && !writes && queue.backlog().1.is_none()
}

/// What the writer does before it writes, and what goes on in the background until all is known again.
pub(super) struct WriterOpening {
    /// The part of the index that is still to be loaded.
    rest: Option<IndexRemainder>,
    /// The limits that decide how the index is read.
    limits: IndexReadLimits,
    /// Requests that came while the index was loaded.
    early: VecDeque<WriterCommand>,
    /// Whether the store was closed or dropped before the index was loaded, so that nothing may be written.
    is_left_as_found: bool,
    warm: Option<WarmSources>,
    /// The task that warms up: it reads into memory the objects that were there before the restart.
    warming: Option<AbortOnDropHandle<()>>,
    /// At most one task, which reads the names in the ring.
    names: JoinSet<()>,
}

impl WriterOpening {
    pub fn new(rest: IndexRemainder, limits: IndexReadLimits, warm: WarmSources) -> WriterOpening {
        WriterOpening {
            rest: Some(rest),
            limits,
            early: VecDeque::new(),
            is_left_as_found: false,
            warm: Some(warm),
            warming: None,
            names: JoinSet::new(),
        }
    }

    /// Whether nothing may be written.
    pub fn is_left_as_found(&self) -> bool {
        self.is_left_as_found
    }

    /// Takes the requests that came while the index was loaded.
    pub fn early(&mut self) -> VecDeque<WriterCommand> {
        std::mem::take(&mut self.early)
    }

    /// Whether the objects that were in memory before the restart are there again, as far as they will be.
    pub fn is_warm(&self) -> bool {
        self.warming.as_ref().is_none_or(AbortOnDropHandle::is_finished)
    }

    /// Starts a task that reads names.
    pub fn read_names(&mut self, reading: impl Future<Output = ()> + Send + 'static) {
        self.names.spawn(reading);
    }

    /// Ends the tasks in the background. The objects that warming up has not read yet go into the hot list.
    pub async fn end(&mut self, warm_list: &WarmList) {
        self.names.shutdown().await;
        if let Some(task) = self.warming.take() {
            warm_list.known().await;
            task.abort();
            let _ = task.await;
        }
    }
}

impl SpanWriter {
    /// Starts warming up; what it returns resolves when that has ended.
    pub(super) fn begin_warming(&mut self) -> oneshot::Receiver<()> {
        let (warm_ended, ended) = oneshot::channel();
        let warm_list = Arc::clone(&self.checkpoints.sources().warm_list);
        self.opening.warming = self.opening.warm.take().map(|warm| {
            let warming = warm_up(Arc::clone(&self.state), warm_list, warm);
            task(async move {
                warming.await;
                let _ = warm_ended.send(());
            })
        });
        ended
    }

    /// Loads the missing part of the index. Then passes the newest replayed records to warming up, which reads their
    /// objects into memory first. The suspects (possible older versions) go to `compare_suspects`.
    ///
    /// If the store is closed meanwhile and nothing waits to be written, the rest is not loaded, and nothing is written:
    /// the next open finds the device as this one did.
    pub(super) async fn bring_index(&mut self) {
        let Some(mut rest) = self.opening.rest.take() else { return };
        let state = Arc::clone(&self.state);
        let _end_waiting = EndWaiting(Arc::clone(&state));
        let (commands, early, queue) = (&mut self.commands, &mut self.opening.early, &self.intake.queue);
        let arrived = |shard: usize| {
            state.presence.arrive(1 << shard);
            early.extend(std::iter::from_fn(|| commands.try_recv().ok()));
            // If the store was dropped, no caller waits for the remaining shards.
            !commands.is_closed() && !is_idle_close(early, queue)
        };
        let missing = rest.bring(&state.span.device, &state.span.layout, &state.index, arrived).await;
        if self.commands.is_closed() || missing != 0 && is_idle_close(&self.opening.early, &self.intake.queue) {
            self.opening.is_left_as_found = true;
            return;
        }
        if missing != 0 {
            self.bring_again(&rest, missing).await;
        }
        let IndexRemainder { replay, .. } = rest;
        if let Some(warm) = self.opening.warm.as_mut().filter(|warm| warm.is_wanted) {
            warm.newest = replay.newest(NEWEST_MAX);
        }
        self.suspects.extend(replay.suspects);
    }

    /// Rebuilds the shards that are missing because the checkpoint is damaged.
    async fn bring_again(&mut self, rest: &IndexRemainder, missing: u64) {
        let (span, state) = (&self.span, &self.state);
        // A rebuilt index may lack entries of the checkpoint, and nothing counts the entries that it dropped when it
        // was full. So every key may have a record that the index does not have.
        self.intake.admission.doubt.is_everywhere(span.head(), span.layout.segment_count);
        let number = rest.loading.as_ref().map_or(0, |loading| loading.number());
        span.note(format!(
            "{}: index checkpoint {number} is damaged; what it lacks is found in an older one or in the segments",
            span.device.spec()
        ));
        let bytes_max = self.memory.bytes() / 2;
        let (index, replay) =
            rebuild(&span.device, &span.layout, &state.purges, bytes_max, number, self.opening.limits).await;
        for shard in (0..INDEX_SHARDS).filter(|shard| missing & 1 << shard != 0) {
            state.index.adopt(shard, &index);
        }
        self.suspects.extend(replay.suspects);
    }
}
