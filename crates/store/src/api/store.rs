//! An open store: get, put, fill, sync, close.
//!
//! Owns: the public interface. The doc comment of each call states its promises; `docs/semantics.md` lists each promise
//! with its test.

use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::api::check::{self, CheckReport};
use crate::api::stat::StoreStat;
use crate::counters::{Counters, PutSequence, PutSequences};
use crate::disk::span::SpanDisk;
use crate::error::{Error, StoreErrorKind};
use crate::get::lookup::{MemoryLookup, ObjectLookup};
use crate::get::object::StoredObject;
use crate::memory::entry::{EntryKind, EntryParts};
use crate::memory::warm_list::WarmList;
use crate::names::key::KeyRef;
use crate::put::commit::PutCommitter;
use crate::put::fill::{self, FillRole};
use crate::recover::{PendingRepair, RecoveryReport, SpanMembership};
use crate::rewrite::ObjectRewriter;
use crate::state::SpanState;
use crate::write::{MembershipChange, WriterCommand};

/// The interval at which the end of a store checks whether its device still answers.
const SILENCE_STEP: Duration = Duration::from_millis(50);

/// The state that the clones of an open store share.
pub(crate) struct StoreInner {
    pub puts: Arc<PutCommitter>,
    pub warm_list: Arc<WarmList>,
    /// The number of entries in the checkpoint from which the index is loaded.
    pub checkpoint_entries: u64,
    pub recovery: RecoveryReport,
    pub repairs: Vec<PendingRepair>,
    pub is_read_only: bool,
    pub commands: Option<mpsc::Sender<WriterCommand>>,
    pub writer: Mutex<Option<WriterHandle>>,
}

/// The runtime of the writer.
pub(crate) enum WriterHandle {
    /// The thread, and the channel that is closed when it ends.
    Thread(std::thread::JoinHandle<()>, std::sync::mpsc::Receiver<()>),
    /// The task is aborted when its handle is dropped.
    Task(#[expect(dead_code, reason = "held for its drop")] AbortOnDropHandle<()>),
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        // The writer ends when nobody can send it commands any more.
        self.commands = None;
        let writer = self.writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        let Some(WriterHandle::Thread(thread, ended)) = writer else { return };
        let health = &self.puts.span.health;
        while matches!(ended.recv_timeout(SILENCE_STEP), Err(RecvTimeoutError::Timeout)) {
            // The thread of a device that does not answer ends with the process.
            if health.is_silent() {
                return;
            }
        }
        let _ = thread.join();
    }
}

/// An open store. Clones share it.
///
/// A store that is dropped without [`close`](Store::close) leaves the device as a crash would: after the next open,
/// written objects are found, and objects that still waited in memory are lost.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store};
/// let device: nectary_block::SharedDevice = std::sync::Arc::new(nectary_block::MemoryDevice::new(64 << 20));
/// Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
/// let store = Store::open(device, OpenOptions::default()).await.unwrap();
/// let key = KeyRef::new(b"http://example.com/", b"");
/// store.put(key, "metadata".into(), "body".into()).await.unwrap();
/// assert_eq!(store.get(key).await.unwrap().whole().unwrap(), "body");
/// store.purge_key(key.primary).await.unwrap();
/// assert!(store.get(key).await.is_none());
/// store.close().await.unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
}

impl Store {
    /// Records durably which spans of the store are present.
    pub(crate) async fn set_membership(&self, membership: SpanMembership) -> Result<(), Error> {
        self.ask(|reply| WriterCommand::Membership(MembershipChange { membership, reply })).await
    }

    /// Writes all waiting objects and an index checkpoint, records that the span was closed, and flushes. Later puts
    /// are refused; gets still work. A store that is opened only for reading has nothing to write.
    pub async fn close(&self) -> Result<(), Error> {
        if self.inner.is_read_only {
            return Ok(());
        }
        self.ask(WriterCommand::Close).await
    }

    /// Finds an object in memory. *Cost*: no I/O, no allocation, and no lock for which other threads wait. If the
    /// object is only in memory, its first hit may queue it for writing.
    pub fn get_resident(&self, key: KeyRef<'_>) -> Option<StoredObject> {
        let lookup = self.lookup();
        let entry = lookup.find_resident(key).live()?;
        lookup.intake.note_hit(&entry);
        Some(StoredObject::new(entry, lookup))
    }

    /// Finds an object in memory or on disk.
    ///
    /// The object has exactly the bytes of one completed put of this key that no purge before this call removed. A
    /// damaged object is a miss, and so is an object whose read fails on the device; both are counted.
    /// [`try_get`](Store::try_get) reports a failed read. *Cost*: at most one read, and one more for each fragment of
    /// the body that the caller reads.
    pub async fn get(&self, key: KeyRef<'_>) -> Option<StoredObject> {
        self.try_get(key).await.ok().flatten()
    }

    /// Finds an object as [`get`](Store::get) does, and distinguishes a failed device from a miss.
    ///
    /// *Errors*: the read failed on the device, so it is not known whether the store has the object. The source of the
    /// error is the device's error. The call counts as a miss and in `device_read_errors`.
    pub async fn try_get(&self, key: KeyRef<'_>) -> Result<Option<StoredObject>, Error> {
        let lookup = self.lookup();
        let found = match lookup.find_resident(key) {
            MemoryLookup::Live(entry) => {
                lookup.intake.note_hit(&entry);
                Ok(Some(entry))
            }
            MemoryLookup::Absent if key.is_bounded() => lookup.find_on_disk(lookup.span.hash(key).1, Some(key)).await,
            MemoryLookup::Purged | MemoryLookup::Absent => Ok(None),
        };
        let object = found.map(|entry| entry.map(|entry| StoredObject::new(entry, lookup)));
        let object = object.map(|object| object.filter(|object| self.is_complete(object)));
        if !matches!(object, Ok(Some(_))) {
            Counters::add(&lookup.span.counters.misses, 1);
        }
        object
    }

    /// Joins the running fill of a key, or begins one.
    ///
    /// `stale` is the object that the caller found to be out of date. If the store has a newer object, that object is
    /// returned and no fill begins. A fill that began before a purge of the key is not joined.
    pub fn begin_fill(&self, key: KeyRef<'_>, stale: Option<&StoredObject>) -> FillRole {
        fill::begin(self.puts(), key, stale)
    }

    /// Puts a whole object without tags.
    ///
    /// *Errors*: `Busy` if the disk is too slow for the puts (nothing is stored), `Invalid` if the object is out of
    /// bounds, `Stopped`. *Durability*: none when this returns. An object that is [admitted](crate::AdmissionOptions)
    /// is written within the write delay; then `written` in [`sequences`](Store::sequences) includes the object. It is
    /// no error if an object is not admitted. If such an object is one record, a get finds it as long as memory keeps
    /// it, and does not find the version that it replaces. After the end of the process, such an object is a miss.
    /// *Cost*: a put of several records waits for the disk whenever there is no room for the next one.
    pub async fn put(&self, key: KeyRef<'_>, metadata: Bytes, body: Bytes) -> Result<PutSequence, Error> {
        self.put_tagged(key, &[], metadata, body).await
    }

    /// Puts a whole object with tags. It can be [purged](Store::purge_tag) by each of its tags.
    ///
    /// Otherwise like [`put`](Store::put). *Errors*: also `Invalid` if a tag is empty or longer than
    /// [`TAG_BYTES_MAX`](crate::TAG_BYTES_MAX), or there are more than [`TAGS_MAX`](crate::TAGS_MAX) different ones
    /// (nothing is stored). *Cost*: 8 bytes per tag on disk and in memory, none in the index.
    pub async fn put_tagged(
        &self,
        key: KeyRef<'_>,
        tags: &[&[u8]],
        metadata: Bytes,
        body: Bytes,
    ) -> Result<PutSequence, Error> {
        let puts = self.puts();
        if !key.is_bounded() || metadata.len() > crate::format::METADATA_BYTES_MAX {
            return Err(Error::invalid(format!(
                "key of {} + {} bytes or metadata of {} bytes is out of bounds",
                key.primary.len(),
                key.variant.len(),
                metadata.len()
            )));
        }
        if body.len() as u64 <= puts.span.layout.whole_bytes_max {
            let (primary_hash, hash) = puts.span.hash(key);
            // The name is noted before the generation is drawn, so that a later purge finds the name.
            puts.state.names.note(primary_hash);
            let parts = EntryParts {
                key: key.to_owned(),
                primary_hash,
                hash,
                kind: EntryKind::Whole,
                metadata,
                object_bytes: body.len() as u64,
                body,
                generation: puts.state.draw(),
                tags: puts.span.tags(tags.iter().copied())?,
            };
            let decision = puts.intake.decide(hash, Some(parts.object_bytes));
            return puts.commit(parts, decision, None).map(|entry| PutSequence(entry.sequence));
        }
        let mut fill = fill::begin_alone(puts, key);
        fill.tag(tags.iter().copied())?;
        let length = body.len() as u64;
        if length > puts.span.layout.object_bytes_max() {
            return Err(Error::invalid(format!(
                "a body of {length} bytes is too long: this store takes {} at most",
                puts.span.layout.object_bytes_max()
            )));
        }
        if !fill.start(key.variant, metadata, Some(length)) {
            return Err(Error::new(StoreErrorKind::Busy, "the store cannot take this object now; nothing is stored"));
        }
        if !fill.is_admitted() {
            return fill.let_go_by(length);
        }
        let step = puts.span.layout.fragment_bytes as usize;
        for start in (0..body.len()).step_by(step) {
            // From the second fragment on, the put waits for room and is not refused: the fragments written so far have
            // already used room on the disk, for which other objects were overwritten.
            if start > 0 {
                self.wait_for_room().await;
            }
            fill.write(body.slice(start..(start + step).min(body.len()))).await?;
        }
        fill.finish().await
    }

    /// Waits until there is room for another put, the store takes no more writes, or the device does not answer.
    ///
    /// This is for callers that can wait; a proxy should rather not store the object. Another caller may use the room
    /// first.
    pub async fn wait_for_room(&self) {
        tokio::select! {
            biased;
            () = self.puts().intake.queue.wait_for_room() => {}
            _ = self.span().health.silent() => {}
        }
    }

    /// Hints that objects of the primary key `object` will be requested together with those of `seed`, like an image
    /// with its page.
    ///
    /// Such objects are written side by side if they are put now or still wait to be written, and they are read
    /// together if that pays off. Give the hint before or right after the put, and before each get: an object that was
    /// stored away from its page is then moved next to it ([`rewrite_percent`](crate::OpenOptions::rewrite_percent)). A
    /// hint changes no answer. *Durability*: none; a hint is kept until another hint needs its place in the table.
    /// *Cost*: two hashes and one atomic store; no lock, no allocation.
    pub fn collocate(&self, object: &[u8], seed: &[u8]) {
        let (span, rewriting) = (self.span(), self.rewriting());
        let hash = |primary| span.hash(KeyRef::new(primary, b"")).0;
        rewriting.hints.add(hash(object), hash(seed));
        Counters::add(&span.counters.hints, 1);
    }

    /// Writes all admitted objects that were put before this call, and flushes the device.
    pub async fn sync(&self) -> Result<PutSequences, Error> {
        self.ask(WriterCommand::Sync).await?;
        Ok(self.sequences())
    }

    /// Writes an index checkpoint now. The checkpoint covers everything that was written before this call.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        self.ask(WriterCommand::Checkpoint).await
    }

    /// Reads and verifies every record that the index points to; changes nothing. *Cost*: reads the whole store once.
    ///
    /// `progress` receives the number of checked entries and the number of all entries.
    pub async fn check(&self, progress: impl FnMut(u64, u64)) -> CheckReport {
        self.state().presence.wait_for_all().await;
        check::check(self.state(), progress, |_, _| ()).await
    }

    /// The variants of a primary key that are on the disk, in no order. *Cost*: reads the whole store once, because no
    /// table has the keys.
    ///
    /// `progress` receives the number of entries read and the number of all entries.
    pub async fn variants(&self, primary: &[u8], progress: impl FnMut(u64, u64)) -> Vec<Bytes> {
        self.state().presence.wait_for_all().await;
        let mut variants = Vec::new();
        let keep = |found: &[u8], variant: &[u8]| {
            if found == primary {
                variants.push(Bytes::copy_from_slice(variant));
            }
        };
        check::check(self.state(), progress, keep).await;
        variants
    }

    /// The sequences that puts have reached.
    pub fn sequences(&self) -> PutSequences {
        self.puts().intake.sequences()
    }

    /// Returns the notes for the operator that were added since the last call, for example about damaged records and
    /// failed reads.
    pub fn take_notes(&self) -> Vec<String> {
        self.span().take_notes()
    }

    /// What the open found that is not as a clean close leaves it. An open for writing has repaired it on the device.
    pub fn repairs(&self) -> &[PendingRepair] {
        &self.inner.repairs
    }

    /// The state of the store.
    pub fn stat(&self) -> StoreStat {
        let puts = self.puts();
        let PutCommitter { span, state, intake, lookup, rewriting, .. } = &**puts;
        let layout = &span.layout;
        let (capacity, used, unwritten, entries) = state.memory.usage();
        let index_loading = !state.presence.is_whole();
        let counts = span.counters.snapshot();
        let admission = intake.admission.stat(span.counters.written_bytes(), &counts);
        StoreStat {
            device: span.device.spec(),
            identity: format!("{:032x}", layout.identity),
            span_bytes: layout.span_bytes,
            segment_bytes: layout.segment_bytes,
            segment_count: layout.segment_count,
            head_epoch: span.head(),
            whole_bytes_max: layout.whole_bytes_max,
            entries: if index_loading { self.inner.checkpoint_entries } else { state.index.len() },
            index_loading,
            entries_bytes: state.index.record_bytes(),
            index_bytes: state.index.bytes(),
            referenced_bytes: state.referenced.bytes(),
            reinsert_percent: rewriting.reinsert_percent,
            cluster_bytes: lookup.clusters.cluster_bytes(),
            cluster_read: lookup.clusters.mode(),
            hints_bytes: rewriting.hints.bytes(),
            groups_bytes: lookup.groups.bytes(),
            index_evictions: state.index.evictions(),
            memory_policy: state.memory.policy_name().to_owned(),
            memory_capacity_bytes: capacity,
            memory_used_bytes: used,
            memory_unwritten_bytes: unwritten,
            memory_entries: entries,
            memory_tags_bytes: span.tag_ledger.load(Ordering::Relaxed),
            fill_bytes: puts.fills.bytes(),
            warming: self.inner.warm_list.is_under_way(),
            purge_records: state.purges.len() as u64,
            purge_records_max: puts.purge_rules_max,
            purges_waiting: puts.purges_waiting.load(Ordering::Relaxed),
            names_bytes: state.names.bytes(),
            names_known: state.names.are_known(span.head()),
            sequences: intake.sequences(),
            admission,
            written_per_admitted: counts.written_per_admitted(),
            counts,
            recovery: self.inner.recovery,
            trouble: span.health.trouble(),
            stopped: state.stopped().filter(|_| !self.inner.is_read_only).map(str::to_owned),
            spans: Vec::new(),
        }
    }

    /// Why the store takes no more writes; `None` while it takes writes.
    pub(crate) fn stopped(&self) -> Option<String> {
        self.state().stopped().map(str::to_owned)
    }

    /// The value of the generation clock when a span of the store last returned after an absence.
    pub(crate) fn since(&self) -> u64 {
        self.state().progress.since.load(Ordering::Acquire)
    }

    /// The number of the store's last purge that is durable on this span.
    pub(crate) fn purge_number(&self) -> u64 {
        self.state().progress.purge_number.load(Ordering::Acquire)
    }

    pub(crate) fn puts(&self) -> &Arc<PutCommitter> {
        &self.inner.puts
    }

    pub(crate) fn lookup(&self) -> &Arc<ObjectLookup> {
        &self.puts().lookup
    }

    pub(crate) fn rewriting(&self) -> &ObjectRewriter {
        &self.puts().rewriting
    }

    pub(crate) fn state(&self) -> &SpanState {
        &self.puts().state
    }

    pub(crate) fn span(&self) -> &SpanDisk {
        &self.puts().span
    }

    /// Whether the store seems to have all fragments of an object. If fragments are missing, the object leaves memory,
    /// because its head is useless without them.
    fn is_complete(&self, object: &StoredObject) -> bool {
        let entry = &object.entry;
        let EntryKind::Head { generation, count } = entry.kind else { return true };
        let complete = (0..count).all(|number| self.lookup().has_fragment(entry.hash, generation, number));
        if let Some(location) = entry.location().filter(|_| !complete) {
            // Older versions of the key are removed from the index too, so that none is found instead. If admission
            // rules are set, the index keeps the head, so that the next version is written to the disk and does not
            // stay only in memory.
            if self.puts().intake.admission.is_open() {
                self.state().forget_from(entry.hash, location);
            }
            self.state().memory.remove_same(entry);
        }
        complete
    }

    pub(crate) async fn ask(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> WriterCommand,
    ) -> Result<(), Error> {
        let answer = self.send(command).await?;
        self.answer(answer).await
    }

    /// Sends the writer a command; returns when the command is in the writer's queue.
    pub(crate) async fn send(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> WriterCommand,
    ) -> Result<oneshot::Receiver<Result<(), Error>>, Error> {
        let (reply, answer) = oneshot::channel();
        let ended = || self.state().stopped_error();
        let commands = self.inner.commands.as_ref().ok_or_else(ended)?;
        // Nobody waits for a device that does not answer.
        tokio::select! {
            biased;
            sent = commands.send(command(reply)) => sent.map_err(|_| ended())?,
            error = self.span().health.silent() => return Err(error),
        }
        Ok(answer)
    }

    /// Waits for the writer's reply.
    pub(crate) async fn answer(&self, answer: oneshot::Receiver<Result<(), Error>>) -> Result<(), Error> {
        tokio::select! {
            biased;
            answer = answer => answer.map_err(|_| self.state().stopped_error())?,
            error = self.span().health.silent() => Err(error),
        }
    }
}
