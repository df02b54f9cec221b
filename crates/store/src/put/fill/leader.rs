//! The leader's side of a fill: the caller that fetches a key.
//!
//! Owns: the head, the window of chunks, and how a body becomes an entry, or fragments and a head. Promises: an
//! unfinished fill stores no object.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use super::FillReader;
use super::table::{BodyHead, FillPhase, FillState, FillUnderWay, WINDOW_BYTES_MAX};
use crate::counters::{Counters, PutSequence};
use crate::error::{Error, StoreErrorKind};
use crate::format::RECORD_HEADER_BYTES;
use crate::get::object::StoredObject;
use crate::intake::admission::AdmissionDecision;
use crate::intake::queue::QueueReservation;
use crate::memory::entry::{EntryKind, EntryParts};
use crate::names::key::{KeyHash, KeyRef, ObjectKey, PrimaryHash, hash_fragment};
use crate::names::tag::EntryTags;
use crate::put::commit::PutCommitter;

/// The longest time for which a fill waits for room in the store. After that, the fill continues without being stored.
const ROOM_WAIT: Duration = Duration::from_millis(500);

/// The longest time for which a follower that reads nothing keeps other followers, which have read everything, waiting.
const FOLLOWER_WAIT: Duration = Duration::from_secs(5);

struct FillTarget {
    key: ObjectKey,
    hash: KeyHash,
    metadata: Bytes,
    body_bytes: Option<u64>,
}

/// The right and the duty to fetch a key. If it is dropped before its end, the fill fails and nothing is stored.
pub struct Fill {
    puts: Arc<PutCommitter>,
    pub(super) fill: Arc<FillUnderWay>,
    primary: Bytes,
    primary_hash: PrimaryHash,
    target: Option<FillTarget>,
    tags: EntryTags,
    fragments: u32,
    decision: AdmissionDecision,
    /// The room reserved for the object, if it is, or may become, one record.
    reserved: Option<QueueReservation>,
    /// Whether the wait for this room timed out.
    has_no_room: bool,
    /// Whether the object is a copy of what the caller has elsewhere.
    is_copy: bool,
    ended: bool,
}

impl Fill {
    /// Makes a fill; `is_put` says that it is a put of a long body.
    pub(super) fn new(puts: &Arc<PutCommitter>, key: KeyRef<'_>, is_put: bool) -> Fill {
        let (primary_hash, hash) = puts.span.hash(key);
        let fill = FillUnderWay {
            hash,
            generation: puts.fills.begin(primary_hash, is_put, || puts.state.draw()),
            state: Mutex::new(FillState::default()),
            changed: Notify::new(),
        };
        Fill {
            puts: Arc::clone(puts),
            fill: Arc::new(fill),
            primary: Bytes::copy_from_slice(key.primary),
            primary_hash,
            target: None,
            tags: EntryTags::default(),
            fragments: 0,
            decision: AdmissionDecision::Admitted,
            reserved: None,
            has_no_room: false,
            is_copy: false,
            ended: false,
        }
    }

    /// The generation of the fill: a purge with a higher generation invalidates it.
    pub fn generation(&self) -> u64 {
        self.fill.generation
    }

    /// A reader for the leader's own client.
    pub fn reader(&self) -> FillReader {
        FillReader::attach(&self.puts.lookup, &self.fill)
    }

    /// Says that the object is a copy of what the caller has elsewhere, and stays in memory alone however often it is
    /// requested. Call this before [`start`](Self::start) or [`refresh`](Self::refresh). An object that replaces one on the
    /// disk is written nevertheless, and so is every object of a store without
    /// [`has_copies`](crate::AdmissionOptions::has_copies).
    pub fn keep_in_memory(&mut self) {
        self.is_copy = true;
    }

    /// Decides whether an object is written.
    fn decide(&self, hash: KeyHash, bytes: Option<u64>) -> AdmissionDecision {
        if self.is_copy { self.puts.intake.decide_on_copy(hash) } else { self.puts.intake.decide(hash, bytes) }
    }

    /// Adds tags to the object. Call this before [`start`](Self::start) or [`refresh`](Self::refresh); `refresh` also
    /// keeps the tags of the stale object.
    ///
    /// *Errors*: `Invalid` if a tag is empty or longer than [`TAG_BYTES_MAX`](crate::TAG_BYTES_MAX), or there are more
    /// than [`TAGS_MAX`](crate::TAGS_MAX) different tags. Then none of the new tags is kept, so the caller must not
    /// store the object.
    pub fn tag<'a>(&mut self, tags: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Error> {
        self.tags = self.tags.with(&self.puts.span.tags(tags)?)?;
        Ok(())
    }

    /// Waits, for a bounded time, for room for an object with this variant, metadata and length, so that
    /// [`is_promised`](Self::is_promised) is correct after [`start`](Self::start). If the length is unknown, room for
    /// the longest body of one record is reserved, provided that half of the queue stays free. Call it before `start`.
    /// Without this call, the caller may learn only at the end that the disk is too slow for the body. *Cancel safety*:
    /// this can be called again.
    pub async fn wait_for_room(&mut self, variant: &[u8], metadata: &Bytes, body_bytes: Option<u64>) {
        let whole_bytes_max = self.puts.span.layout.whole_bytes_max;
        let described = self.primary.len() + variant.len() + metadata.len() + self.tags.record_bytes();
        let weight = (RECORD_HEADER_BYTES + described) as u64 + body_bytes.unwrap_or(whole_bytes_max);
        match body_bytes {
            None => self.reserved = self.puts.intake.queue.reserve_if_idle(weight),
            Some(bytes) if bytes <= whole_bytes_max => {
                self.reserved = self.puts.intake.queue.wait_to_reserve(weight, ROOM_WAIT).await;
                self.has_no_room = self.reserved.is_none();
            }
            Some(_) => {}
        }
    }

    /// The longest body that can be stored, in bytes: a quarter of the total size of the segments of the key's span.
    pub fn object_bytes_max(&self) -> u64 {
        self.puts.span.layout.object_bytes_max()
    }

    /// Declares the response storable under this variant, and shows its head to all followers.
    ///
    /// Returns false if the store cannot take the response: a budget is used up, or the size, the key or the metadata
    /// is out of bounds. Followers are then told to fetch by themselves, and the caller must serve its own client
    /// without the store.
    pub fn start(&mut self, variant: &[u8], metadata: Bytes, body_bytes: Option<u64>) -> bool {
        let key = KeyRef::new(&self.primary, variant);
        let layout = &self.puts.span.layout;
        let fits = key.is_bounded()
            && metadata.len() <= crate::format::METADATA_BYTES_MAX
            && body_bytes.is_none_or(|bytes| bytes <= layout.object_bytes_max())
            && (key.primary.len() + variant.len() + self.tags.record_bytes() + metadata.len()) as u64
                + layout.whole_bytes_max
                + 256
                <= layout.record_bytes_max();
        let over_budget = self.puts.fills.bytes() >= self.puts.fills.bytes_max;
        if !fits || over_budget || self.puts.state.stopped().is_some() {
            if over_budget {
                Counters::add(&self.puts.span.counters.puts_refused, 1);
            }
            self.end(FillPhase::Declined);
            return false;
        }
        let (_, hash) = self.puts.span.hash(key);
        self.decision = self.decide(hash, body_bytes);
        if !self.decision.is_admitted() {
            (self.reserved, self.has_no_room) = (None, false);
        }
        let mut state = self.fill.lock();
        state.is_admitted = self.is_admitted();
        state.is_promised = self.is_admitted() && (body_bytes.is_some() || self.reserved.is_some());
        state.not_stored =
            self.has_no_room || (!state.is_admitted && body_bytes.is_some_and(|bytes| bytes > layout.whole_bytes_max));
        state.head =
            Some(BodyHead { variant: Bytes::copy_from_slice(variant), metadata: metadata.clone(), body_bytes });
        state.stored_hash = Some(hash);
        state.tags = self.tags.clone();
        state.phase = FillPhase::Streaming;
        drop(state);
        self.target = Some(FillTarget { key: key.to_owned(), hash, metadata, body_bytes });
        self.fill.changed.notify_waiters();
        true
    }

    /// Whether the started object will be written to the disk. If not, the fill only serves its followers; if the
    /// object is one record and there is room, it also stays in memory. The caller makes the same calls in all cases.
    /// For a body of unknown length the answer may change while the body arrives.
    pub fn is_admitted(&self) -> bool {
        self.decision.is_admitted() && !self.has_no_room
    }

    /// Whether a client may be told that the object will be on the disk: it is admitted and, if its length is unknown,
    /// room is reserved. A body of several records is also promised, although it is not stored if the disk is too slow.
    pub fn is_promised(&self) -> bool {
        self.fill.lock().is_promised
    }

    /// Passes on the next chunk of the body.
    ///
    /// If the fill is stored, waits while too many bytes still wait for the disk. Otherwise waits while the slowest
    /// follower is too far behind. *Errors*: more bytes than were announced; or the fill is not stored and has no
    /// reader any more.
    pub async fn write(&mut self, chunk: Bytes) -> Result<(), Error> {
        let body_bytes = self.target.as_ref().and_then(|target| target.body_bytes);
        let chunk_bytes = chunk.len() as u64;
        let (due, not_stored) = {
            let mut state = self.fill.lock();
            if body_bytes.is_some_and(|bytes| state.received + chunk.len() as u64 > bytes) {
                return Err(Error::invalid(format!(
                    "the body is longer than the {} bytes announced",
                    body_bytes.unwrap_or(0)
                )));
            }
            state.received += chunk.len() as u64;
            state.chunks.push_back(chunk);
            let is_unbounded = body_bytes.is_none() && self.decision == AdmissionDecision::Admitted;
            if is_unbounded && self.puts.intake.admission.is_too_long(state.received) {
                (self.decision, state.is_admitted) = (AdmissionDecision::Size, false);
            }
            let layout = &self.puts.span.layout;
            state.not_stored |= state.received > layout.object_bytes_max()
                || (!state.is_admitted && state.received > layout.whole_bytes_max);
            (state.received - state.stored >= self.puts.span.layout.fragment_bytes, state.not_stored)
        };
        self.puts.fills_grow(chunk_bytes);
        self.fill.changed.notify_waiters();
        if due && !not_stored {
            self.store_fragments(false).await;
        }
        self.make_window().await
    }

    /// Ends the body and stores the object; returns the sequence of its put.
    ///
    /// *Errors*: fewer bytes than announced (nothing is stored, followers see an error); or the store did not accept
    /// the object (followers still see the complete body).
    pub async fn finish(mut self) -> Result<PutSequence, Error> {
        let Some(target) = &self.target else {
            return Err(Error::invalid("a fill was finished that was never started"));
        };
        let received = self.fill.lock().received;
        if target.body_bytes.is_some_and(|bytes| bytes != received) {
            let expected = target.body_bytes.unwrap_or(0);
            return Err(Error::invalid(format!("the body has {received} bytes, {expected} were announced")));
        }
        let whole = received <= self.puts.span.layout.whole_bytes_max && self.fragments == 0;
        if !whole && !self.fill.lock().not_stored {
            self.store_fragments(true).await;
        }
        if whole && self.decision == AdmissionDecision::Admitted && !self.puts.intake.admission.has_size(received) {
            self.decision = AdmissionDecision::Size;
        }
        if !whole && !self.decision.is_admitted() {
            return self.let_go_by(received);
        }
        let not_stored = self.fill.lock().not_stored;
        let stored = if not_stored {
            Err(Error::new(StoreErrorKind::Busy, "the store could not keep up with this body; it is not stored"))
        } else {
            let kind = if whole {
                EntryKind::Whole
            } else {
                EntryKind::Head { generation: self.fill.generation, count: self.fragments }
            };
            let body = if whole { self.gather(0, received) } else { Bytes::new() };
            if whole && self.reserved.is_none() && self.decision.is_admitted() {
                let weight = self.weight(body.len() as u64);
                self.reserved = self.puts.intake.queue.wait_to_reserve(weight, ROOM_WAIT).await;
            }
            self.commit(kind, body, received)
        };
        self.end(FillPhase::Done);
        stored
    }

    /// Confirms a stale object with new metadata (after a 304). The object keeps its body and tags, and gets the tags
    /// that [`tag`](Self::tag) added.
    ///
    /// *Errors*: the store did not accept the metadata, for example because the object was purged meanwhile. Followers are
    /// then told to fetch by themselves.
    pub async fn refresh(mut self, stale: &StoredObject, metadata: Bytes) -> Result<StoredObject, Error> {
        let refreshed = self.commit_refreshed(stale, metadata);
        self.end(refreshed.as_ref().map_or(FillPhase::Declined, |object| FillPhase::Object(object.clone())));
        refreshed
    }

    fn commit_refreshed(&self, stale: &StoredObject, metadata: Bytes) -> Result<StoredObject, Error> {
        let entry = &stale.entry;
        if entry.primary_hash != self.primary_hash {
            return Err(Error::invalid("the object to be confirmed is not of this key and span"));
        }
        let parts = EntryParts {
            key: entry.key.clone(),
            primary_hash: entry.primary_hash,
            hash: entry.hash,
            kind: entry.kind,
            metadata,
            body: entry.body.clone(),
            object_bytes: entry.object_bytes,
            generation: self.fill.generation,
            tags: entry.tags.with(&self.tags)?,
        };
        // The fragments of a head are on the disk, so the head is always written too.
        let decision = match parts.kind {
            EntryKind::Whole => self.decide(parts.hash, Some(parts.object_bytes)),
            _ => AdmissionDecision::Replaces,
        };
        let entry = self.puts.commit(parts, decision, None)?;
        Ok(StoredObject::new(entry, &self.puts.lookup))
    }

    /// Ends a body that is neither admitted nor kept in memory. *Errors*: `Busy` if an object of its key was written in
    /// the meantime; that object stays.
    pub(crate) fn let_go_by(mut self, body_bytes: u64) -> Result<PutSequence, Error> {
        let decision = self.decision;
        let gone = self.parts(EntryKind::Whole, Bytes::new(), body_bytes).and_then(|parts| {
            let sequence = self.puts.let_go_by(parts).map_err(|refused| self.puts.refusal(refused))?;
            self.puts.accepted(decision, body_bytes);
            Ok(PutSequence(sequence))
        });
        self.end(FillPhase::Done);
        gone
    }

    /// Declares the response not storable: followers fetch by themselves.
    pub fn decline(mut self) {
        self.end(FillPhase::Declined);
    }

    fn end(&mut self, phase: FillPhase) {
        self.ended = true;
        // At this point the entry is already in memory, so a caller that no longer finds the fill finds the object.
        self.puts.fills.remove(&self.fill);
        self.fill.enter(phase);
    }

    /// Copies the range `start..end` of the body from the chunks.
    fn gather(&self, start: u64, end: u64) -> Bytes {
        let state = self.fill.lock();
        let mut body = BytesMut::with_capacity((end - start) as usize);
        let mut position = state.base;
        for chunk in &state.chunks {
            let (from, to) = (start.max(position), end.min(position + chunk.len() as u64));
            if from < to {
                body.extend_from_slice(&chunk[(from - position) as usize..(to - position) as usize]);
            }
            position += chunk.len() as u64;
        }
        body.freeze()
    }

    fn parts(&self, kind: EntryKind, body: Bytes, object_bytes: u64) -> Result<EntryParts, Error> {
        let Some(target) = &self.target else { return Err(Error::invalid("a fill was never started")) };
        let generation = self.fill.generation;
        let primary_hash = self.primary_hash;
        let (hash, key, metadata, tags) = match kind {
            EntryKind::Fragment { number, .. } => {
                let hash = hash_fragment(target.hash, generation, number);
                (hash, KeyRef::new(b"", b"").to_owned(), Bytes::new(), EntryTags::default())
            }
            _ => (target.hash, target.key.clone(), target.metadata.clone(), self.tags.clone()),
        };
        Ok(EntryParts { key, primary_hash, hash, kind, metadata, body, object_bytes, generation, tags })
    }

    /// The room that an object of one record takes in the queue, in bytes.
    fn weight(&self, body_bytes: u64) -> u64 {
        let target = self.target.as_ref().map_or(0, |target| target.key.len() + target.metadata.len());
        let described = target + self.tags.record_bytes();
        (RECORD_HEADER_BYTES + described) as u64 + body_bytes
    }

    fn commit(&mut self, kind: EntryKind, body: Bytes, object_bytes: u64) -> Result<PutSequence, Error> {
        let parts = self.parts(kind, body, object_bytes)?;
        let reserved = self.reserved.take();
        self.puts.commit(parts, self.decision, reserved).map(|entry| PutSequence(entry.sequence))
    }

    /// Stores the bytes received so far as fragments. The last, shorter fragment is stored only if `at_end` is set.
    async fn store_fragments(&mut self, at_end: bool) {
        // The room was reserved for an object of one record, but this object has several.
        self.reserved = None;
        let fragment_bytes = self.puts.span.layout.fragment_bytes;
        loop {
            let (stored, received) = {
                let state = self.fill.lock();
                (state.stored, state.received)
            };
            let length = (received - stored).min(fragment_bytes);
            if length == 0 || (length < fragment_bytes && !at_end) {
                return;
            }
            let body = self.gather(stored, stored + length);
            let kind = EntryKind::Fragment { generation: self.fill.generation, number: self.fragments };
            let mut result = self.commit(kind, body.clone(), length);
            if matches!(&result, Err(error) if error.kind == StoreErrorKind::Busy) {
                let _ = tokio::time::timeout(ROOM_WAIT, self.puts.intake.queue.room.notified()).await;
                result = self.commit(kind, body, length);
            }
            let mut state = self.fill.lock();
            if result.is_err() {
                state.not_stored = true;
                return;
            }
            self.fragments += 1;
            state.stored += length;
        }
    }

    /// Drops the chunks that no reader needs any more, and waits if too many bytes remain.
    async fn make_window(&mut self) -> Result<(), Error> {
        loop {
            let changed = self.fill.changed.notified();
            let fill = Arc::clone(&self.fill);
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = fill.lock();
                let limit = if state.not_stored {
                    state.followers.values().copied().min().unwrap_or(state.received)
                } else {
                    state.stored
                };
                while state.chunks.front().is_some_and(|chunk| state.base + chunk.len() as u64 <= limit) {
                    let Some(chunk) = state.chunks.pop_front() else { break };
                    state.base += chunk.len() as u64;
                    self.puts.fills_shrink(chunk.len() as u64);
                }
                if !state.not_stored || state.received - state.base <= WINDOW_BYTES_MAX {
                    if state.not_stored && state.followers.is_empty() {
                        return Err(Error::new(
                            StoreErrorKind::Busy,
                            "nobody reads this body and the store cannot take it",
                        ));
                    }
                    return Ok(());
                }
            }
            if tokio::time::timeout(FOLLOWER_WAIT, changed).await.is_err() {
                fill.lock().leave_behind();
                fill.changed.notify_waiters();
            }
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.ended {
            self.end(FillPhase::Failed);
        }
        self.puts.fills.end(self.fill.generation);
        // Followers can still read the remaining chunks, which the shared state keeps. The budget counts only running
        // fills, not ended fills that followers still read.
        let state = self.fill.lock();
        let held: u64 = state.chunks.iter().map(|chunk| chunk.len() as u64).sum();
        self.puts.fills_shrink(held);
    }
}
