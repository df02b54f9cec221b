//! The writer: the only part of the store that writes a span's segments.
//!
//! Owns: the decisions when and in which segment waiting entries are written, which segment is reclaimed for them, and
//! when the index is checkpointed; and all other background work. The writer has its own thread, runtime and io_uring,
//! so nothing here delays a hit. The writer stops when the store is closed or dropped.
//!
//! *Circle*: the files here implement methods of one [`SpanWriter`], one file per duty. Each duty has its own fields
//! ([`AppendWrites`], [`PurgeWrites`], [`FlushWrites`], [`CheckpointWrites`], …), and only its own file sees them.
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

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::checkpoint::CheckpointSources;
use crate::checkpoint::warm::WarmSources;
use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::{LogPosition, PurgeRecord};
use crate::get::lookup::ObjectLookup;
use crate::intake::SpanIntake;
use crate::purge::log::{PurgeLog, PurgeOrder};
use crate::put::commit::PutCommitter;
use crate::recover::loading::IndexRemainder;
use crate::recover::replay::SuspectLocation;
use crate::recover::{IndexReadLimits, RecoveryReport, SpanMembership};
use crate::rewrite::ObjectRewriter;
use crate::state::SpanState;
use appends::AppendWrites;
use budget::MemoryDivision;
use checkpoints::CheckpointWrites;
use closing::MembershipWrites;
use index::WriterOpening;
use purges::PurgeWrites;
use segments::ReclaimAhead;
use syncs::FlushWrites;
use trouble::WriterTrouble;

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
    commands: mpsc::Receiver<WriterCommand>,
    opening: WriterOpening,
    appends: AppendWrites,
    purges: PurgeWrites,
    syncs: FlushWrites,
    checkpoints: CheckpointWrites,
    reclaim: ReclaimAhead,
    members: MembershipWrites,
    memory: MemoryDivision,
    /// Possible older versions of written objects, whose keys are compared on disk.
    suspects: Vec<SuspectLocation>,
    /// What must be done before the next write, after failures.
    trouble: WriterTrouble,
    /// The caller that closes the store, until the writer begins to close.
    closing: Option<Reply>,
    is_closing: bool,
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
            commands,
            appends: AppendWrites::new(&start),
            checkpoints: CheckpointWrites::new(checkpoints, &start),
            purges: PurgeWrites::new(start.purge_log),
            syncs: FlushWrites::new(start.flush_interval),
            reclaim: ReclaimAhead::default(),
            members: MembershipWrites::new(start.open_count, start.membership),
            memory: MemoryDivision::new(start.memory_bytes, start.objects_bytes_max),
            opening: WriterOpening::new(start.rest, start.opening, start.warm),
            suspects: Vec::new(),
            trouble: WriterTrouble::default(),
            closing: None,
            is_closing: false,
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
        if self.opening.is_left_as_found() {
            return self.leave();
        }
        self.opening.early().into_iter().for_each(|command| self.accept(command));
        let names_begin = self.begin_warming();
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
            for change in self.members.changes() {
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
            let idle = self.appends.is_idle() && !self.suspects.is_empty() && self.opening.is_warm();
            tokio::select! {
                biased;
                Some(written) = self.appends.next_written(), if !self.appends.is_idle() => self.complete(written).await,
                Some(ended) = self.purges.next_ended(), if !self.purges.is_idle() => self.purges_written(ended),
                Some(ended) = self.syncs.next_ended(), if !self.syncs.is_idle() => self.flush_ended(ended),
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
                Some(ended) = self.checkpoints.ended(), if !self.checkpoints.is_idle() => {
                    drop(self.checkpoint_ended(ended));
                }
                _ = queue.wake.notified() => {}
                _ = tokio::time::sleep_until(deadline) => {}
                _ = std::future::ready(()), if idle => self.compare_suspects().await,
            }
            if self.syncs.interval_is_over() {
                self.flush_if_written();
            }
        }
    }

    /// Takes a request; the writer's loop serves it.
    fn accept(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Sync(reply) => self.syncs.ask(self.intake.queue.last_sequence(), reply),
            WriterCommand::Purge(purge, reply) => self.purges.ask((purge, reply)),
            WriterCommand::PurgeRoom(reply) => self.purges.ask_room(reply),
            WriterCommand::Checkpoint(reply) => self.checkpoints.ask(reply),
            WriterCommand::Membership(change) => self.members.ask(change),
            WriterCommand::Close(reply) => self.closing = Some(reply),
        }
    }

    /// Ends a store that was closed or dropped before its index was loaded; the device stays as it was found.
    fn leave(mut self) {
        self.intake.stop("it was closed");
        for command in self.opening.early() {
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
        let write = oldest.filter(|_| self.may_append()).map(|oldest| self.appends.due(oldest));
        let flush = self.syncs.due_at().filter(|_| !self.span.health.is_latched());
        let hot = self.checkpoints.hot_due_at();
        let far = Instant::now() + Duration::from_secs(3600);
        let checkpoint = self.checkpoints.retry_at().filter(|_| !self.trouble.is_on());
        let times = [write, flush, hot, self.purges.room_at(), self.trouble.retry_at(), checkpoint];
        times.into_iter().flatten().fold(far, Instant::min)
    }

    /// Gives the memory tier the memory that the index and other tables do not use.
    fn divide_memory(&mut self) {
        let index_bytes = self.state.index.bytes()
            + self.lookup.groups.bytes().next_multiple_of(GROUPS_BYTES_STEP)
            + self.state.purges.bytes().next_multiple_of(PURGES_BYTES_STEP);
        if self.memory.is_changed(index_bytes) {
            let fixed = index_bytes
                + self.state.referenced.bytes()
                + self.rewriting.hints.bytes()
                + self.intake.admission.bytes()
                + self.state.names.bytes();
            let reinserts = self.rewriting.reinsert_percent > 0;
            let fixed = fixed + self.tables_bytes_max();
            let budget = self.memory.divide(fixed, &self.span.layout, reinserts);
            self.state.memory.set_capacity(budget.tier_bytes);
        }
    }

    fn fail(&mut self, error: &Error) {
        self.intake.stop(error.message.clone());
        self.trouble.end().iter().for_each(|item| self.intake.give_up(item));
        self.checkpoints.give_up();
        let stopped = self.state.stopped_error();
        self.syncs.refuse_waiting(&stopped);
        self.purges.refuse_waiting(&stopped);
        self.purges.refuse_room(&stopped);
    }
}
