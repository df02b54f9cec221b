//! The writer: the only part of the store that writes a span's segments.
//!
//! Owns: the decisions when and in which segment waiting entries are written, which segment is reclaimed for them, and
//! when the index is checkpointed; and all other background work. The writer has its own thread, runtime and io_uring,
//! so nothing here delays a hit. The writer stops when the store is closed or dropped.
//!
//! *Circle*: the files here implement methods of one [`SpanWriter`], one file per duty, and share its fields.
//!
//! Appends in flight are completed in order, so the written sequences are a prefix of all sequences. A segment is
//! flushed before the next one is opened, so at most two segments are unflushed.

mod appends;
pub mod budget;
mod buffers;
mod checkpoints;
mod closing;
mod index;
mod names;
mod pack;
mod publish;
mod purges;
mod segments;
mod syncs;
pub mod trouble;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use nectary_block::Buffer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::checkpoint::warm::{WarmSources, warm_up};
use crate::checkpoint::{CheckpointHeader, CheckpointSources};
use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::{LogEnd, LogPosition, OPEN_COUNT_SHIFT, PurgeRecord, RecordLocation};
use crate::get::lookup::ObjectLookup;
use crate::intake::SpanIntake;
use crate::intake::queue::UnwrittenEntry;
use crate::purge::log::{PurgeLog, PurgeOrder};
use crate::put::commit::PutCommitter;
use crate::recover::loading::IndexRemainder;
use crate::recover::replay::SuspectLocation;
use crate::recover::{IndexReadLimits, RecoveryReport, SpanMembership};
use crate::rewrite::ObjectRewriter;
use crate::state::SpanState;
use crate::write::budget::MemoryBudget;
use buffers::AppendBuffers;
use checkpoints::HOT_INTERVAL;
use purges::PurgesWritten;
use segments::SegmentTables;
use syncs::FlushResult;
use trouble::{UnflushedAppend, WriterTrouble};

/// The memory of the extents of groups is rounded up to a multiple of this many bytes, so that the capacity of the
/// memory tier does not change at every append.
const GROUPS_BYTES_STEP: u64 = 16 << 10;
/// The memory of purge rules is rounded up to a multiple of this many bytes, for the same reason.
const PURGES_BYTES_STEP: u64 = 64 << 10;

/// The requests to the writer.
pub(crate) enum WriterCommand {
    /// Write the waiting objects now, flush, and reply.
    Sync(oneshot::Sender<Result<(), Error>>),
    /// Make a purge durable, with its position in the order of the store's purges; without a record only what the store
    /// has applied of its fleet's purges.
    Purge((Option<PurgeRecord>, PurgeOrder), oneshot::Sender<Result<(), Error>>),
    /// Reply when there is room for another purge.
    PurgeRoom(oneshot::Sender<Result<(), Error>>),
    /// Write an index checkpoint.
    Checkpoint(oneshot::Sender<Result<(), Error>>),
    /// Record durably which spans are present.
    Membership(MembershipChange),
    /// Write all waiting objects and a checkpoint, then end the writer.
    Close(oneshot::Sender<Result<(), Error>>),
}

/// A new membership to be recorded.
pub(crate) struct MembershipChange {
    /// The new membership. The writer decides its `since` when it writes the membership.
    pub membership: SpanMembership,
    pub reply: oneshot::Sender<Result<(), Error>>,
}

/// The parts that the writer starts with.
pub(crate) struct WriterStart {
    pub position: LogPosition,
    pub checkpoint_number: u64,
    pub open_count: u64,
    pub membership: SpanMembership,
    /// The last sequence in the log, found or lost.
    pub logged_sequence: u64,
    /// Whether a crash cut the log: records were found after a gap.
    pub is_cut: bool,
    /// The limits that decide how the index is read.
    pub opening: IndexReadLimits,
    pub memory_bytes: u64,
    pub objects_bytes_max: Option<u64>,
    /// An append of several records has at most this many bytes.
    pub append_bytes: u64,
    /// The buffers of all appends, in flight and spare, together have at most this many bytes; only a single larger
    /// append may exceed this.
    pub buffers_bytes: u64,
    pub purge_log: PurgeLog,
    /// The part of the index that is still to be loaded.
    pub rest: IndexRemainder,
    /// The sources of the list of objects that are read into memory after the open.
    pub warm: WarmSources,
    /// The report of recovery, with the numbers of appends, bytes and records that it replayed.
    pub replayed: RecoveryReport,
    pub write_delay: Duration,
    pub flush_interval: Option<Duration>,
}

/// The channel to a caller that waits for an answer.
type Reply = oneshot::Sender<Result<(), Error>>;
/// A purge, its position in the order of purges, and the channel to its caller.
type WaitingPurge = ((Option<PurgeRecord>, PurgeOrder), oneshot::Sender<Result<(), Error>>);

type InFlight = FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = WrittenAppend> + Send>>>;

struct WrittenAppend {
    result: Result<Vec<Buffer>, nectary_block::Error>,
    items: Vec<(UnwrittenEntry, RecordLocation)>,
    append: UnflushedAppend,
    /// The size of the append's buffer, in bytes.
    buffer_bytes: u64,
}

/// Starts a task on the writer's runtime. The task is aborted when the returned handle is dropped.
fn task<F: Future<Output: Send> + Send + 'static>(future: F) -> AbortOnDropHandle<F::Output> {
    AbortOnDropHandle::new(tokio::spawn(future))
}

/// The writer of a span.
pub(crate) struct SpanWriter {
    span: Arc<SpanDisk>,
    state: Arc<SpanState>,
    intake: Arc<SpanIntake>,
    rewriting: Arc<ObjectRewriter>,
    lookup: Arc<ObjectLookup>,
    puts: Arc<PutCommitter>,
    checkpoints: CheckpointSources,
    commands: mpsc::Receiver<WriterCommand>,
    /// Requests that came while the index was loaded.
    early: VecDeque<WriterCommand>,
    /// Whether the store was closed or dropped before the index was loaded, so that nothing may be written.
    is_left_as_found: bool,
    position: LogPosition,
    in_flight: InFlight,
    buffers: AppendBuffers,
    suspects: Vec<SuspectLocation>,
    /// The purge log; `None` while the task in `purging` has it.
    purge_log: Option<PurgeLog>,
    /// The durable end of the purge log.
    purge_end: LogEnd,
    /// The running write of purges: at most one task, which has the purge log.
    purging: JoinSet<PurgesWritten>,
    purges_waiting: Vec<WaitingPurge>,
    /// Empty lists, whose memory the next write of purges reuses.
    purge_lists: (Vec<PurgeRecord>, Vec<Reply>),
    /// The callers that wait for room for a purge, and since when they wait.
    room_waiting: Vec<(Instant, Reply)>,
    /// The time when the writer next tries to make room for purges; `None` if no caller waits for room.
    room_at: Option<Instant>,
    syncs_waiting: Vec<(u64, oneshot::Sender<Result<(), Error>>)>,
    /// The syncs that the next flush answers; empty while a flush is running.
    syncs_due: Vec<Reply>,
    /// The running flush, at most one, with the syncs that it answers.
    flushing: JoinSet<FlushResult>,
    /// The task that reads the tables of the segment that is overwritten next.
    tables: Option<AbortOnDropHandle<SegmentTables>>,
    /// The task that re-inserts objects from the segments that are overwritten next.
    harvest: Option<AbortOnDropHandle<()>>,
    /// The task that warms up: it reads into memory the objects that were there before the restart.
    warming: Option<AbortOnDropHandle<()>>,
    warm: Option<WarmSources>,
    /// At most one task, which reads the names in the ring.
    names: JoinSet<()>,
    rest: Option<IndexRemainder>,
    checkpoint: Option<AbortOnDropHandle<Result<Option<CheckpointHeader>, Error>>>,
    /// The newest checkpoint, and the task that rewrites its hot list.
    newest_checkpoint: Option<CheckpointHeader>,
    hot: Option<AbortOnDropHandle<()>>,
    hot_at: Instant,
    /// The number of bytes that the memory tier had inserted up to the time `hot_at`.
    hot_inserted_bytes: u64,
    checkpoint_number: u64,
    /// When a checkpoint that failed is tried again.
    checkpoint_at: Option<Instant>,
    /// The callers that requested a checkpoint after the running one had begun, and the callers that wait for the
    /// running one.
    checkpoints_asked: Vec<oneshot::Sender<Result<(), Error>>>,
    checkpoint_waiting: Vec<oneshot::Sender<Result<(), Error>>>,
    closing: Option<oneshot::Sender<Result<(), Error>>>,
    is_closing: bool,
    /// What must be done before the next write, after failures.
    trouble: WriterTrouble,
    appended_bytes: u64,
    appended_count: u64,
    appended_records: u64,
    /// The highest sequence in a started append. Before the first append, this is a sequence below all sequences drawn
    /// since the open.
    appended_sequence: u64,
    /// The last sequence that was in the log when the store was opened, found or lost.
    logged_sequence: u64,
    /// Whether recovery found that a crash had cut the log, and no checkpoint has been written since.
    is_cut: bool,
    /// The number of the last written state slot, and its membership.
    open_count: u64,
    membership: SpanMembership,
    membership_changes: Vec<MembershipChange>,
    opening: IndexReadLimits,
    memory_bytes: u64,
    objects_bytes_max: Option<u64>,
    append_bytes: u64,
    /// Whether waiting objects must wait for an append in flight.
    waits_for_append: bool,
    /// The size of the index and other tables when the memory tier's capacity was last set, in bytes.
    index_bytes: u64,
    write_delay: Duration,
    flush_interval: Option<Duration>,
    flushed_at: Instant,
}

impl SpanWriter {
    pub fn new(
        puts: &Arc<PutCommitter>,
        checkpoints: CheckpointSources,
        commands: mpsc::Receiver<WriterCommand>,
        start: WriterStart,
    ) -> SpanWriter {
        SpanWriter {
            span: Arc::clone(&puts.span),
            state: Arc::clone(&puts.state),
            intake: Arc::clone(&puts.intake),
            rewriting: Arc::clone(&puts.rewriting),
            lookup: Arc::clone(&puts.lookup),
            puts: Arc::clone(puts),
            checkpoints,
            commands,
            early: VecDeque::new(),
            is_left_as_found: false,
            position: start.position,
            in_flight: FuturesOrdered::new(),
            buffers: AppendBuffers::new(start.buffers_bytes),
            suspects: Vec::new(),
            rest: Some(start.rest),
            purge_end: start.purge_log.end(),
            purge_log: Some(start.purge_log),
            purging: JoinSet::new(),
            purges_waiting: Vec::new(),
            purge_lists: Default::default(),
            room_waiting: Vec::new(),
            room_at: None,
            syncs_waiting: Vec::new(),
            syncs_due: Vec::new(),
            flushing: JoinSet::new(),
            tables: None,
            harvest: None,
            warming: None,
            newest_checkpoint: start.warm.checkpoint,
            hot: None,
            hot_at: Instant::now(),
            hot_inserted_bytes: 0,
            warm: Some(start.warm),
            names: JoinSet::new(),
            checkpoint: None,
            checkpoint_number: start.checkpoint_number,
            checkpoint_at: None,
            checkpoints_asked: Vec::new(),
            checkpoint_waiting: Vec::new(),
            closing: None,
            is_closing: false,
            trouble: WriterTrouble::default(),
            // Replayed records count as appended, because the next restart would replay them again.
            appended_bytes: start.replayed.append_bytes,
            appended_count: start.replayed.appends,
            appended_records: start.replayed.records,
            appended_sequence: start.open_count << OPEN_COUNT_SHIFT,
            logged_sequence: start.logged_sequence,
            is_cut: start.is_cut,
            open_count: start.open_count,
            membership: start.membership,
            membership_changes: Vec::new(),
            opening: start.opening,
            memory_bytes: start.memory_bytes,
            objects_bytes_max: start.objects_bytes_max,
            append_bytes: start.append_bytes,
            waits_for_append: false,
            index_bytes: 0,
            write_delay: start.write_delay,
            flush_interval: start.flush_interval,
            flushed_at: Instant::now(),
        }
    }

    /// Stops the store, because there is no runtime for the writer.
    pub fn cannot_run(self, error: &std::io::Error) {
        self.intake.stop(format!("the writer cannot run: {error}"));
        self.state.presence.arrive(u64::MAX);
    }

    /// Runs until the store is closed or dropped.
    pub async fn run(mut self) {
        // Gets wait for the index, so it is loaded first.
        self.bring_index().await;
        self.span.health.arm();
        if self.is_left_as_found {
            return self.leave();
        }
        std::mem::take(&mut self.early).into_iter().for_each(|command| self.accept(command));
        let (warm_ended, names_begin) = oneshot::channel();
        self.warming = self.warm.take().map(|warm| {
            let warming = warm_up(Arc::clone(&self.state), Arc::clone(&self.checkpoints.warm_list), warm);
            task(async move {
                warming.await;
                let _ = warm_ended.send(());
            })
        });
        self.read_names(names_begin);
        loop {
            self.resume_if_due().await;
            if let Err(error) = self.write_due().await {
                self.in_trouble(&error);
            }
            if let Err(error) = self.serve_purges().await {
                self.in_trouble(&error);
            }
            if let Err(error) = self.make_purge_room().await {
                self.in_trouble(&error);
            }
            self.serve_syncs();
            for change in std::mem::take(&mut self.membership_changes) {
                self.change_membership(change).await;
            }
            if let Some(reply) = self.closing.take() {
                let result = self.close().await;
                let _ = reply.send(result);
                return;
            }
            self.checkpoint_if_due().await;
            self.rewrite_hot_if_due();
            let deadline = self.deadline();
            let queue = Arc::clone(&self.intake.queue);
            let warm = self.warming.as_ref().is_none_or(AbortOnDropHandle::is_finished);
            let idle = self.in_flight.is_empty() && !self.suspects.is_empty() && warm;
            tokio::select! {
                biased;
                Some(written) = self.in_flight.next(), if !self.in_flight.is_empty() => self.complete(written).await,
                Some(ended) = self.purging.join_next(), if !self.purging.is_empty() => self.purges_written(ended),
                Some(ended) = self.flushing.join_next(), if !self.flushing.is_empty() => self.flush_ended(ended),
                command = self.commands.recv() => match command {
                    Some(command @ WriterCommand::Purge(..)) => {
                        self.accept(command);
                        self.gather_purges();
                    }
                    Some(command) => self.accept(command),
                    // The store was dropped: waiting objects are lost, as in a crash.
                    None => {
                        self.intake.stop("it was dropped");
                        return;
                    }
                },
                Some(ended) = async { match self.checkpoint.as_mut() { Some(task) => Some(task.await), None => None } },
                    if self.checkpoint.is_some() => drop(self.checkpoint_ended(ended)),
                _ = queue.wake.notified() => {}
                _ = tokio::time::sleep_until(deadline) => {}
                _ = std::future::ready(()), if idle => self.compare_suspects().await,
            }
            if self.flush_interval.is_some_and(|interval| self.flushed_at.elapsed() >= interval) {
                self.flush_if_written();
            }
        }
    }

    /// Takes a request; the writer's loop serves it.
    fn accept(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Sync(reply) => self.syncs_waiting.push((self.intake.queue.last_sequence(), reply)),
            WriterCommand::Purge(record, reply) => self.purges_waiting.push((record, reply)),
            WriterCommand::PurgeRoom(reply) => self.ask_purge_room(reply),
            WriterCommand::Checkpoint(reply) => self.checkpoints_asked.push(reply),
            WriterCommand::Membership(change) => self.membership_changes.push(change),
            WriterCommand::Close(reply) => self.closing = Some(reply),
        }
    }

    /// Ends a store that was closed or dropped before its index was loaded; the device stays as it was found.
    fn leave(mut self) {
        self.intake.stop("it was closed");
        for command in std::mem::take(&mut self.early) {
            match command {
                WriterCommand::Close(reply) => drop(reply.send(Ok(()))),
                WriterCommand::Sync(reply)
                | WriterCommand::Purge(_, reply)
                | WriterCommand::PurgeRoom(reply)
                | WriterCommand::Checkpoint(reply)
                | WriterCommand::Membership(MembershipChange { reply, .. }) => {
                    let _ = reply.send(Err(self.state.stopped_error()));
                }
            }
        }
    }

    /// The time when the writer next has work, even if no command comes.
    fn deadline(&self) -> Instant {
        let (_, oldest) = self.intake.queue.backlog();
        let write = oldest.filter(|_| self.may_append()).map(|oldest| oldest + self.write_delay);
        let flush = self.flush_interval.filter(|_| self.flushing.is_empty() && !self.span.health.is_latched());
        let flush = flush.map(|interval| self.flushed_at + interval);
        let hot = self.newest_checkpoint.map(|_| self.hot_at + HOT_INTERVAL);
        let far = Instant::now() + Duration::from_secs(3600);
        let checkpoint = self.checkpoint_at.filter(|_| !self.trouble.is_on());
        let times = [write, flush, hot, self.room_at, self.trouble.retry_at(), checkpoint];
        times.into_iter().flatten().fold(far, Instant::min)
    }

    /// Gives the memory tier the memory that the index and other tables do not use.
    fn divide_memory(&mut self) {
        let index_bytes = self.state.index.bytes()
            + self.lookup.groups.bytes().next_multiple_of(GROUPS_BYTES_STEP)
            + self.state.purges.bytes().next_multiple_of(PURGES_BYTES_STEP);
        if index_bytes != self.index_bytes {
            self.index_bytes = index_bytes;
            let fixed = index_bytes
                + self.state.referenced.bytes()
                + self.rewriting.hints.bytes()
                + self.intake.admission.bytes()
                + self.state.names.bytes();
            let reinserts = self.rewriting.reinsert_percent > 0;
            let fixed = fixed + self.tables_bytes_max();
            let budget = MemoryBudget::of(self.memory_bytes, fixed, &self.span.layout, reinserts);
            self.state.memory.set_capacity(budget.with_objects_bytes_max(self.objects_bytes_max).tier_bytes);
        }
    }

    fn fail(&mut self, error: &Error) {
        self.intake.stop(error.message.clone());
        self.trouble.end().iter().for_each(|item| self.intake.give_up(item));
        self.checkpoint_at = None;
        for (_, reply) in self.syncs_waiting.drain(..) {
            let _ = reply.send(Err(self.state.stopped_error()));
        }
        for (_, reply) in self.purges_waiting.drain(..) {
            let _ = reply.send(Err(self.state.stopped_error()));
        }
        for (_, reply) in self.room_waiting.drain(..) {
            let _ = reply.send(Err(self.state.stopped_error()));
        }
    }
}
