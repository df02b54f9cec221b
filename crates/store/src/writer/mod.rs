//! The writer: the one place from which a span's segments are written.
//!
//! Owns: when waiting entries are written, in which segment, what is reclaimed for it, when the index is checkpointed, and
//! everything else that runs in the background. It lives on a thread of its own with a runtime and a ring of its own, so
//! nothing here delays a hit. It stops when the store is closed or dropped.
//!
//! Appends in flight are completed in order, so "written" is a prefix of all sequences. A segment is flushed when it is
//! closed, so at most two are unflushed.

mod appends;
mod buffers;
mod index;
mod names;
mod publish;
mod purges;
mod segments;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::{FuturesOrdered, StreamExt};
use nectary_block::Buffer;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use crate::arrange::PackEnd;
use crate::budget::Budget;
use crate::checkpoint::{CheckpointHeader, Checkpoints, LogPosition, rewrite_hot, write_checkpoint};
use crate::commit::Puts;
use crate::error::Error;
use crate::format::PurgeRecord;
use crate::index::Location;
use crate::intake::Intake;
use crate::loading::Rest;
use crate::log::LIFE_SHIFT;
use crate::lookup::Lookup;
use crate::planted::{Bug, planted};
use crate::purge_log::{LogEnd, PurgeLog, PurgeOrder};
use crate::queue::Unwritten;
use crate::recovery::{Membership, Opening, StateSlot, write_state};
use crate::replay::Suspect;
use crate::rewriting::Rewriting;
use crate::span::Span;
use crate::stat::Recovery;
use crate::state::State;
use crate::warm::{Warm, warm_up};
use buffers::AppendBuffers;
use purges::PurgesWritten;
use segments::Tables;

/// The index is checkpointed when this many times its size was appended.
const CHECKPOINT_INDEX_FACTOR: u64 = 32;
/// … but at least and at most after this many bytes, and at most after this many appends.
const CHECKPOINT_BYTES_MIN: u64 = 64 << 20;
const CHECKPOINT_BYTES_MAX: u64 = 2 << 30;
const CHECKPOINT_APPENDS_MAX: u64 = 4096;
/// … and after so many records, which a restart has to replay, where that writes no more than this share of what was appended.
const CHECKPOINT_RECORDS_MAX: u64 = 1 << 18;
const CHECKPOINT_SHARE_MIN: u64 = 4;

/// The hot list is written anew this long after it was written last, …
const HOT_INTERVAL: Duration = Duration::from_secs(10);
/// … where this share of the memory tier was taken in since.
const HOT_SHARE: u64 = 16;

/// The memory tier makes room for the extents of groups in steps of so many bytes.
const GROUPS_BYTES_STEP: u64 = 16 << 10;
/// … and for purges in steps of so many.
const PURGES_BYTES_STEP: u64 = 64 << 10;

/// What the writer can be asked for.
pub(crate) enum Command {
    /// Write what waits now, flush, and say when.
    Sync(oneshot::Sender<Result<(), Error>>),
    /// Make a purge durable, and how far its store has come with it.
    Purge((PurgeRecord, PurgeOrder), oneshot::Sender<Result<(), Error>>),
    /// Say when there is room for another purge.
    PurgeRoom(oneshot::Sender<Result<(), Error>>),
    /// Write an index checkpoint.
    Checkpoint(oneshot::Sender<Result<(), Error>>),
    /// Remember durably which spans are there, under a number.
    Membership(MembershipChange),
    /// Write everything, checkpoint, and end.
    Close(oneshot::Sender<Result<(), Error>>),
}

/// A new membership to be remembered.
pub(crate) struct MembershipChange {
    /// Its `since` is found when it is written.
    pub membership: Membership,
    pub reply: oneshot::Sender<Result<(), Error>>,
}

/// What the writer starts with.
pub(crate) struct Start {
    /// From which end of what waits clusters are packed.
    pub pack_end: PackEnd,
    pub position: LogPosition,
    pub checkpoint_number: u64,
    pub life: u64,
    pub membership: Membership,
    /// Whether a crash cut the log before the end of what was found.
    pub is_cut: bool,
    /// How the index is read.
    pub opening: Opening,
    pub memory_bytes: u64,
    pub objects_bytes_max: Option<u64>,
    /// An append of several records has at most so many bytes …
    pub append_bytes: u64,
    /// … and the buffers of all in flight, where there are several.
    pub buffers_bytes: u64,
    pub purge_log: PurgeLog,
    /// What the index lacks yet.
    pub rest: Rest,
    /// What is taken into memory again.
    pub warm: Warm,
    /// What recovery replayed.
    pub replayed: Recovery,
    pub write_delay: Duration,
    pub flush_interval: Option<Duration>,
}

/// Who waits for an answer.
type Reply = oneshot::Sender<Result<(), Error>>;
/// A purge, how far its store has come with it, and who waits for it.
type WaitingPurge = ((PurgeRecord, PurgeOrder), oneshot::Sender<Result<(), Error>>);

type InFlight = FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = Written> + Send>>>;

struct Written {
    result: Result<Vec<Buffer>, nectary_block::Error>,
    items: Vec<(Unwritten, Location)>,
    last_sequence: u64,
    /// The size of its buffer.
    buffer_bytes: u64,
}

/// Begins what runs beside the writer, and ends with it at the latest.
fn task<F: Future<Output: Send> + Send + 'static>(future: F) -> AbortOnDropHandle<F::Output> {
    AbortOnDropHandle::new(tokio::spawn(future))
}

/// What a flush came to, and the syncs that it answers.
struct Flushed {
    result: Result<(), Error>,
    replies: Vec<Reply>,
}

/// The writer of a span.
pub(crate) struct Writer {
    span: Arc<Span>,
    state: Arc<State>,
    intake: Arc<Intake>,
    rewriting: Arc<Rewriting>,
    lookup: Arc<Lookup>,
    puts: Arc<Puts>,
    checkpoints: Checkpoints,
    pack_end: PackEnd,
    commands: mpsc::Receiver<Command>,
    position: LogPosition,
    in_flight: InFlight,
    buffers: AppendBuffers,
    suspects: Vec<Suspect>,
    /// `None` while some purges are being written.
    purge_log: Option<PurgeLog>,
    /// How far it is durable.
    purge_end: LogEnd,
    /// At most one task, which has the log.
    purging: JoinSet<PurgesWritten>,
    purges_waiting: Vec<WaitingPurge>,
    /// Empty lists for those that are written next.
    purge_lists: (Vec<PurgeRecord>, Vec<Reply>),
    /// Who waits for room among purges, and since when.
    room_waiting: Vec<(Instant, Reply)>,
    /// When room is looked for again.
    room_at: Option<Instant>,
    syncs_waiting: Vec<(u64, oneshot::Sender<Result<(), Error>>)>,
    /// Those that the next flush answers; empty while one is under way.
    syncs_due: Vec<Reply>,
    /// At most one flush, and the syncs that it answers.
    flushing: JoinSet<Flushed>,
    /// What stands in the segment that is overwritten next.
    tables: Option<AbortOnDropHandle<Tables>>,
    /// Re-insertion from it.
    harvest: Option<AbortOnDropHandle<()>>,
    /// What brings back into memory what was there in the life before.
    warming: Option<AbortOnDropHandle<()>>,
    warm: Option<Warm>,
    /// At most one task, which learns what the ring holds.
    names: JoinSet<()>,
    rest: Option<Rest>,
    checkpoint: Option<AbortOnDropHandle<Result<Option<CheckpointHeader>, Error>>>,
    /// The newest checkpoint, and what writes its hot list anew.
    newest_checkpoint: Option<CheckpointHeader>,
    hot: Option<AbortOnDropHandle<()>>,
    hot_at: Instant,
    /// How much the memory tier had taken in then, in bytes.
    hot_inserted_bytes: u64,
    checkpoint_number: u64,
    /// Who asked for a checkpoint since the last was begun, and who waits for that one.
    checkpoints_asked: Vec<oneshot::Sender<Result<(), Error>>>,
    checkpoint_waiting: Vec<oneshot::Sender<Result<(), Error>>>,
    closing: Option<oneshot::Sender<Result<(), Error>>>,
    appended_bytes: u64,
    appended_count: u64,
    appended_records: u64,
    /// The highest sequence in an append that was started; before the first, one below all of this life.
    appended_sequence: u64,
    /// Whether the log was found cut by a crash, and no checkpoint has been written since.
    is_cut: bool,
    /// The number of the state slot that was written last, and what it says of the spans.
    life: u64,
    membership: Membership,
    membership_changes: Vec<MembershipChange>,
    opening: Opening,
    memory_bytes: u64,
    objects_bytes_max: Option<u64>,
    append_bytes: u64,
    /// What waits has to wait for an append in flight.
    waits_for_append: bool,
    /// The index's size for which the memory tier's capacity was set.
    index_bytes: u64,
    write_delay: Duration,
    flush_interval: Option<Duration>,
    flushed_at: Instant,
}

impl Writer {
    pub fn new(puts: &Arc<Puts>, checkpoints: Checkpoints, commands: mpsc::Receiver<Command>, start: Start) -> Writer {
        Writer {
            span: Arc::clone(&puts.span),
            state: Arc::clone(&puts.state),
            intake: Arc::clone(&puts.intake),
            rewriting: Arc::clone(&puts.rewriting),
            lookup: Arc::clone(&puts.lookup),
            puts: Arc::clone(puts),
            checkpoints,
            pack_end: start.pack_end,
            commands,
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
            checkpoints_asked: Vec::new(),
            checkpoint_waiting: Vec::new(),
            closing: None,
            // What was replayed counts: the next restart would replay it again.
            appended_bytes: start.replayed.append_bytes,
            appended_count: start.replayed.appends,
            appended_records: start.replayed.records,
            appended_sequence: start.life << LIFE_SHIFT,
            is_cut: start.is_cut,
            life: start.life,
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

    /// Says that there is no runtime to run on.
    pub fn cannot_run(self, error: &std::io::Error) {
        self.intake.stop(format!("the writer cannot run: {error}"));
        self.state.presence.arrive(u64::MAX);
    }

    /// Runs until the store is closed or nobody holds it any more.
    pub async fn run(mut self) {
        // Gets wait for it.
        self.bring_index().await;
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
            if let Err(error) = self.write_due().await {
                self.fail(&error);
            }
            if let Err(error) = self.serve_purges().await {
                self.fail(&error);
            }
            if let Err(error) = self.make_purge_room().await {
                self.fail(&error);
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
                    Some(Command::Sync(reply)) => self.syncs_waiting.push((queue.last_sequence(), reply)),
                    Some(Command::Purge(record, reply)) => {
                        self.purges_waiting.push((record, reply));
                        self.gather_purges();
                    }
                    Some(Command::PurgeRoom(reply)) => self.ask_purge_room(reply),
                    Some(Command::Checkpoint(reply)) => self.checkpoints_asked.push(reply),
                    Some(Command::Membership(change)) => self.membership_changes.push(change),
                    Some(Command::Close(reply)) => self.closing = Some(reply),
                    // Nobody holds the store any more: what waits is lost, as in a crash.
                    None => {
                        self.intake.stop("it was dropped");
                        return;
                    }
                },
                Some(ended) = async { match self.checkpoint.as_mut() { Some(task) => Some(task.await), None => None } },
                    if self.checkpoint.is_some() => self.checkpoint_ended(ended),
                _ = queue.wake.notified() => {}
                _ = tokio::time::sleep_until(deadline) => {}
                _ = std::future::ready(()), if idle => self.compare_suspects().await,
            }
            if self.flush_interval.is_some_and(|interval| self.flushed_at.elapsed() >= interval) {
                self.flush_if_written();
            }
        }
    }

    /// When there will be something to do without being asked.
    fn deadline(&self) -> Instant {
        let (_, oldest) = self.intake.queue.backlog();
        let write = oldest.filter(|_| self.may_append()).map(|oldest| oldest + self.write_delay);
        let flush = self.flush_interval.filter(|_| self.flushing.is_empty());
        let flush = flush.map(|interval| self.flushed_at + interval);
        let hot = self.newest_checkpoint.map(|_| self.hot_at + HOT_INTERVAL);
        let far = Instant::now() + Duration::from_secs(3600);
        [write, flush, hot, self.room_at].into_iter().flatten().fold(far, Instant::min)
    }

    /// Gives the memory tier what the index leaves.
    fn divide_memory(&mut self) {
        let index_bytes = self.state.index.bytes()
            + self.lookup.groups.bytes().next_multiple_of(GROUPS_BYTES_STEP)
            + self.state.purges.bytes().next_multiple_of(PURGES_BYTES_STEP);
        if index_bytes != self.index_bytes {
            self.index_bytes = index_bytes;
            let fixed = index_bytes
                + self.state.marks.bytes()
                + self.rewriting.hints.bytes()
                + self.lookup.twins.bytes()
                + self.intake.admission.bytes()
                + self.state.names.bytes();
            let reinserts = self.rewriting.reinsert_percent > 0;
            let fixed = fixed + self.tables_bytes_max();
            let budget = Budget::of(self.memory_bytes, fixed, &self.span.layout, reinserts);
            self.state.memory.set_capacity(budget.with_objects_bytes_max(self.objects_bytes_max).tier_bytes);
        }
    }

    fn fail(&mut self, error: &Error) {
        self.intake.stop(error.message.clone());
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

    /// Begins the flush for syncs whose entries are all written, unless another is under way: what was written since that
    /// began is not flushed by it.
    fn serve_syncs(&mut self) {
        if self.state.stopped().is_some() {
            for (_, reply) in self.syncs_waiting.drain(..) {
                let _ = reply.send(Err(self.state.stopped_error()));
            }
            return;
        }
        if !self.flushing.is_empty() {
            return;
        }
        let written = self.state.progress.written.load(Ordering::Acquire);
        let due = self.syncs_waiting.extract_if(.., |(sequence, _)| *sequence <= written);
        self.syncs_due.extend(due.map(|(_, reply)| reply));
        if !self.syncs_due.is_empty() {
            self.begin_flush();
        }
    }

    fn flush_if_written(&mut self) {
        if !self.flushing.is_empty() {
            return;
        }
        self.flushed_at = Instant::now();
        if self.state.progress.written.load(Ordering::Acquire) > self.state.progress.flushed.load(Ordering::Acquire) {
            self.begin_flush();
        }
    }

    /// Flushes beside appends, and answers the syncs that are due when that is done.
    fn begin_flush(&mut self) {
        self.flushed_at = Instant::now();
        let (state, replies) = (Arc::clone(&self.state), std::mem::take(&mut self.syncs_due));
        self.flushing.spawn(async move { Flushed { result: state.flush().await, replies } });
    }

    fn flush_ended(&mut self, ended: Result<Flushed, JoinError>) {
        let (result, mut replies) = match ended {
            Ok(flushed) => (flushed.result, flushed.replies),
            Err(error) => (Err(Error::stopped(format!("the flush's task failed: {error}"))), Vec::new()),
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        for reply in replies.drain(..) {
            let _ = reply.send(result.clone());
        }
        // Kept for the next flush, which then allocates no list.
        self.syncs_due = replies;
    }

    async fn end_flushing(&mut self) {
        while let Some(ended) = self.flushing.join_next().await {
            self.flush_ended(ended);
        }
    }

    /// Starts a checkpoint where enough was appended since the last, or one was asked for.
    async fn checkpoint_if_due(&mut self) {
        if self.state.stopped().is_some() {
            for reply in self.checkpoints_asked.drain(..) {
                let _ = reply.send(Err(self.state.stopped_error()));
            }
            return;
        }
        let index_bytes = self.state.index.bytes();
        let bytes_due = (index_bytes * CHECKPOINT_INDEX_FACTOR).clamp(CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES_MAX);
        let due = self.appended_bytes >= bytes_due
            || self.appended_count >= CHECKPOINT_APPENDS_MAX
            || (self.appended_records >= CHECKPOINT_RECORDS_MAX
                && self.appended_bytes >= index_bytes * CHECKPOINT_SHARE_MIN)
            || self.is_cut
            || !self.checkpoints_asked.is_empty();
        if !due || self.checkpoint.is_some() {
            return;
        }
        while let Some(written) = self.in_flight.next().await {
            self.complete(written).await;
        }
        // It may be on its way into the area that is written next.
        self.end_hot().await;
        let checkpoints = self.checkpoints.clone();
        let (position, purge_end) = (self.position, self.purge_end);
        let last_sequence = self.state.progress.written.load(Ordering::Acquire);
        self.checkpoint_number += 1;
        let number = self.checkpoint_number;
        self.appended_bytes = 0;
        self.appended_count = 0;
        self.appended_records = 0;
        self.checkpoint_waiting = std::mem::take(&mut self.checkpoints_asked);
        self.checkpoint =
            Some(task(async move { write_checkpoint(&checkpoints, number, position, last_sequence, purge_end).await }));
    }

    /// Waits until a checkpoint has what was found of a log that a crash had cut: what it lacks is looked for in the last two segments
    /// alone, so before there is another, later recoveries must not need to.
    pub(super) async fn settle_cut(&mut self) {
        while self.is_cut && self.state.stopped().is_none() {
            self.checkpoint_if_due().await;
            if let Some(task) = self.checkpoint.as_mut() {
                let ended = task.await;
                self.checkpoint_ended(ended);
            }
        }
    }

    /// Starts to write the hot list anew where memory has changed since.
    fn rewrite_hot_if_due(&mut self) {
        if self.hot_at.elapsed() < HOT_INTERVAL {
            return;
        }
        self.hot_at = Instant::now();
        let inserted_bytes = self.state.memory.inserted_bytes();
        let is_changed = inserted_bytes - self.hot_inserted_bytes >= self.state.memory.capacity() / HOT_SHARE;
        let is_busy = self.checkpoint.is_some() || self.hot.as_ref().is_some_and(|task| !task.is_finished());
        let is_warm = self.warming.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        let Some(header) = self.newest_checkpoint.filter(|_| is_changed && !is_busy && is_warm) else { return };
        if self.state.stopped().is_some() {
            return;
        }
        self.hot_inserted_bytes = inserted_bytes;
        let checkpoints = self.checkpoints.clone();
        self.hot = Some(task(async move {
            if let Err(error) = rewrite_hot(&checkpoints, &header).await {
                let span = &checkpoints.state.span;
                span.note(format!("{}: the hot list is not written: {error}", span.device.spec()));
            }
        }));
    }

    async fn end_hot(&mut self) {
        if let Some(task) = self.hot.take() {
            let _ = task.await;
        }
    }

    fn checkpoint_ended(&mut self, ended: Result<Result<Option<CheckpointHeader>, Error>, tokio::task::JoinError>) {
        self.checkpoint = None;
        self.is_cut = false;
        let result = match ended {
            Ok(Ok(written)) => {
                match written {
                    Some(header) => {
                        self.newest_checkpoint = Some(header);
                        self.hot_at = Instant::now();
                        self.hot_inserted_bytes = self.state.memory.inserted_bytes();
                    }
                    None => self
                        .span
                        .note("the index does not fit its checkpoint area; a restart will scan the store".into()),
                }
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(error) => Err(Error::stopped(format!("the checkpoint task failed: {error}"))),
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        for reply in self.checkpoint_waiting.drain(..) {
            let _ = reply.send(result.clone());
        }
    }

    /// Remembers which spans are there. The slot that is not the newest is written, so that a torn write leaves that one.
    async fn change_membership(&mut self, change: MembershipChange) {
        // By what this span knows itself: the change by which another came back may have ended before it came here.
        let has_missed = change.membership.number > self.membership.number + 1;
        let is_return =
            change.membership.present & !self.membership.present != 0 && !(has_missed && planted(Bug::ReturnMissed));
        let since = if is_return { self.state.draw() } else { self.membership.since };
        let membership = Membership { since, ..change.membership };
        let state = StateSlot { life: self.life + 1, is_clean: false, membership };
        let result = match self.state.stopped() {
            Some(_) => Err(self.state.stopped_error()),
            None => match write_state(&self.span.device, &self.span.layout, &state).await {
                Ok(()) => self.state.flush().await,
                Err(error) => Err(error),
            },
        };
        match &result {
            Ok(()) => {
                (self.life, self.membership) = (state.life, membership);
                self.state.progress.since.store(since, Ordering::Release);
            }
            Err(error) => self.fail(error),
        }
        let _ = change.reply.send(result);
    }

    /// Writes everything that waits, a checkpoint and the clean mark.
    async fn close(&mut self) -> Result<(), Error> {
        // What is accepted before is written.
        self.intake.queue.refuse_more();
        self.end_harvest().await;
        self.names.shutdown().await;
        if let Some(task) = self.warming.take() {
            // What it has not done goes into the hot list.
            self.checkpoints.warm_list.known().await;
            task.abort();
            let _ = task.await;
        }
        while self.state.stopped().is_none() {
            if let Err(error) = self.serve_purges().await {
                self.fail(&error);
            }
            if self.intake.queue.backlog().1.is_some() && self.may_append() {
                if let Err(error) = self.append().await {
                    self.fail(&error);
                }
            } else if let Some(written) = self.in_flight.next().await {
                self.complete(written).await;
            } else if let Some(ended) = self.purging.join_next().await {
                self.purges_written(ended);
            } else {
                break;
            }
        }
        self.end_purging().await;
        self.end_flushing().await;
        if let Some(task) = self.checkpoint.take() {
            let _ = task.await;
        }
        self.end_hot().await;
        if self.state.stopped().is_some() {
            return Err(self.state.stopped_error());
        }
        let last_sequence = self.state.progress.written.load(Ordering::Acquire);
        let number = self.checkpoint_number + 1;
        write_checkpoint(&self.checkpoints, number, self.position, last_sequence, self.purge_end).await?;
        let state = StateSlot { life: self.life, is_clean: true, membership: self.membership };
        write_state(&self.span.device, &self.span.layout, &state).await?;
        self.state.flush().await?;
        self.intake.stop("it was closed");
        Ok(())
    }
}
