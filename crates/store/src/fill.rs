//! Fills: one fetch of a key, read by everybody who waits for it while it comes in.
//!
//! Owns: who leads, what followers see, the window of bytes kept for them, and how a body becomes an entry (or fragments
//! and a head). Leaves to others: where the bytes come from, and whether they may be stored.
//!
//! # States
//! | state | entered by | followers see |
//! |---|---|---|
//! | waiting | `begin_fill` | nothing yet |
//! | streaming | `start` | head, then bytes as they come |
//! | done | `finish` | the rest, then the end |
//! | object | `refresh` | a whole object |
//! | declined | `decline`, or `start` over budget | they go on their own |
//! | failed | the `Fill` dropped | an error, before or in the body |
//!
//! # The window
//! Chunks are kept until they are in fragments that the store has, and every follower that stands behind reads those. Where
//! the store cannot keep up, the fill is no longer stored: chunks then stay until the slowest follower has them, and
//! `write` waits for it. Either way a fill holds at most [`WINDOW_BYTES_MAX`] and a fragment.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::Notify;

use crate::entry::{EntryParts, Piece};
use crate::error::{Error, ErrorKind};
use crate::key::{Key, KeyHash, KeyRef, PrimaryHash, hash_fragment};
use crate::object::Object;
use crate::shared::Shared;
use crate::stat::{Counters, Sequence};

/// How far a fill runs ahead of its slowest follower when it is not stored, in bytes.
const WINDOW_BYTES_MAX: u64 = 2 << 20;
/// How long a fill waits for room in the store before it goes on without being stored.
const ROOM_WAIT: Duration = Duration::from_millis(200);

/// The fills under way.
pub(crate) struct FillTable {
    fills: Mutex<HashMap<KeyHash, Arc<FillShared>>>,
    /// Bytes that all fills hold.
    bytes: AtomicU64,
    bytes_max: u64,
}

impl FillTable {
    pub fn new(bytes_max: u64) -> FillTable {
        FillTable { fills: Mutex::default(), bytes: AtomicU64::new(0), bytes_max }
    }

    /// The generation of the oldest fill under way.
    pub fn generation_min(&self) -> u64 {
        self.lock().values().map(|fill| fill.generation).min().unwrap_or(u64::MAX)
    }

    /// Bytes that fills hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a newer version of the key was committed after this generation's fill began.
    pub fn is_superseded(&self, hash: KeyHash, generation: u64) -> bool {
        self.lock()
            .get(&hash)
            .is_some_and(|fill| fill.generation == generation && fill.superseded.load(Ordering::Acquire))
    }

    /// Notes that a version of `generation` was committed: an older fill of the key must not replace it.
    pub fn supersede_older(&self, hash: KeyHash, generation: u64) {
        if let Some(fill) = self.lock().get(&hash).filter(|fill| fill.generation < generation) {
            fill.superseded.store(true, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, Arc<FillShared>>> {
        self.fills.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn remove(&self, fill: &Arc<FillShared>) {
        let mut fills = self.lock();
        if fills.get(&fill.hash).is_some_and(|current| Arc::ptr_eq(current, fill)) {
            fills.remove(&fill.hash);
        }
    }
}

struct FillShared {
    hash: KeyHash,
    generation: u64,
    superseded: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    phase: Phase,
    head: Option<Head>,
    chunks: VecDeque<Bytes>,
    /// Where the first chunk begins in the body.
    base: u64,
    received: u64,
    /// Bytes from the start that the store has as fragments.
    stored: u64,
    /// The hash under which fragments stand.
    stored_hash: Option<KeyHash>,
    not_stored: bool,
    followers: HashMap<u64, u64>,
    follower_next: u64,
}

#[derive(Clone)]
struct Head {
    variant: Bytes,
    metadata: Bytes,
    body_bytes: Option<u64>,
}

#[derive(Default, Clone)]
enum Phase {
    #[default]
    Waiting,
    Streaming,
    Done,
    Object(Object),
    Declined,
    Failed,
}

impl FillShared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn enter(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_waiters();
    }
}

/// What the caller of `begin_fill` is to do.
pub enum FillRole {
    /// Fetch it.
    Leader(Fill),
    /// Somebody does: read along.
    Follower(FillReader),
    /// Somebody just did.
    Resident(Object),
}

/// What a follower sees first.
#[derive(Debug)]
pub enum FillHead {
    /// The response is being stored: read its body along.
    Streaming {
        /// The variant part of the key under which it will be found.
        variant: Bytes,
        /// Its metadata.
        metadata: Bytes,
        /// Length of the body, where it is known.
        body_bytes: Option<u64>,
    },
    /// What was stale has been confirmed.
    Object(Object),
    /// It is not storable: go on your own.
    Declined,
    /// The fetch failed: go on your own, or fail too.
    Failed,
}

/// Joins or begins the fill of a key.
pub(crate) fn begin(shared: &Arc<Shared>, key: KeyRef<'_>, stale: Option<&Object>) -> FillRole {
    let (primary_hash, hash) = shared.hash(key);
    let mut fills = shared.fills.lock();
    if let Some(fill) = fills.get(&hash)
        && !shared.purges.is_purged(primary_hash, fill.generation)
        && let Some(reader) = FillReader::join(shared, fill)
    {
        return FillRole::Follower(reader);
    }
    if let Some(entry) =
        shared.find_resident(key).filter(|entry| stale.is_none_or(|stale| stale.entry.sequence != entry.sequence))
    {
        return FillRole::Resident(Object::new(entry, shared));
    }
    let fill = Fill::new(shared, key, primary_hash, hash);
    fills.insert(hash, Arc::clone(&fill.fill));
    FillRole::Leader(fill)
}

/// Begins a fill that nobody joins: a put of a long body.
pub(crate) fn begin_alone(shared: &Arc<Shared>, key: KeyRef<'_>) -> Fill {
    let (primary_hash, hash) = shared.hash(key);
    Fill::new(shared, key, primary_hash, hash)
}

struct Target {
    key: Key,
    hash: KeyHash,
    metadata: Bytes,
    body_bytes: Option<u64>,
}

/// The right and the duty to fetch a key. Dropped unfinished, it fails: nothing is stored.
pub struct Fill {
    shared: Arc<Shared>,
    fill: Arc<FillShared>,
    primary: Bytes,
    primary_hash: PrimaryHash,
    target: Option<Target>,
    fragments: u32,
    ended: bool,
}

impl Fill {
    fn new(shared: &Arc<Shared>, key: KeyRef<'_>, primary_hash: PrimaryHash, hash: KeyHash) -> Fill {
        let fill = FillShared {
            hash,
            generation: shared.draw(),
            superseded: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Notify::new(),
        };
        Fill {
            shared: Arc::clone(shared),
            fill: Arc::new(fill),
            primary: Bytes::copy_from_slice(key.primary),
            primary_hash,
            target: None,
            fragments: 0,
            ended: false,
        }
    }

    /// The generation under which it runs: a purge with a higher one voids it.
    pub fn generation(&self) -> u64 {
        self.fill.generation
    }

    /// A reader for the leader's own client.
    pub fn reader(&self) -> FillReader {
        FillReader::attach(&self.shared, &self.fill)
    }

    /// Says that the response is storable, under this variant, and shows its head to all followers.
    ///
    /// Returns false where the store cannot take it (budgets, size, a key or metadata out of bounds): followers are then
    /// told to go on their own, and so must the caller.
    pub fn start(&mut self, variant: &[u8], metadata: Bytes, body_bytes: Option<u64>) -> bool {
        let key = KeyRef::new(&self.primary, variant);
        let layout = &self.shared.layout;
        let fits = key.is_bounded()
            && metadata.len() <= crate::format::METADATA_BYTES_MAX
            && body_bytes.is_none_or(|bytes| bytes <= layout.object_bytes_max())
            && (key.primary.len() + variant.len() + metadata.len()) as u64 + layout.whole_bytes_max + 256
                <= layout.record_bytes_max();
        let over_budget = self.shared.fills.bytes() >= self.shared.fills.bytes_max;
        if !fits || over_budget || self.shared.stopped().is_some() {
            if over_budget {
                Counters::add(&self.shared.counters.puts_refused, 1);
            }
            self.end(Phase::Declined);
            return false;
        }
        let (_, hash) = self.shared.hash(key);
        let mut state = self.fill.lock();
        state.head = Some(Head { variant: Bytes::copy_from_slice(variant), metadata: metadata.clone(), body_bytes });
        state.stored_hash = Some(hash);
        state.phase = Phase::Streaming;
        drop(state);
        self.target = Some(Target { key: key.to_owned(), hash, metadata, body_bytes });
        self.fill.changed.notify_waiters();
        true
    }

    /// Passes on the next piece of the body.
    ///
    /// Waits while the disk or, where the fill is not stored, the slowest follower is too far behind.
    /// *Errors*: more bytes than were announced; or nobody reads and nothing is stored any more.
    pub async fn write(&mut self, chunk: Bytes) -> Result<(), Error> {
        let body_bytes = self.target.as_ref().and_then(|target| target.body_bytes);
        let (due, not_stored) = {
            let mut state = self.fill.lock();
            if body_bytes.is_some_and(|bytes| state.received + chunk.len() as u64 > bytes) {
                return Err(Error::invalid(format!(
                    "the body is longer than the {} bytes announced",
                    body_bytes.unwrap_or(0)
                )));
            }
            state.received += chunk.len() as u64;
            self.shared.fills.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            state.chunks.push_back(chunk);
            if state.received > self.shared.layout.object_bytes_max() {
                state.not_stored = true;
            }
            (state.received - state.stored >= self.shared.layout.fragment_bytes, state.not_stored)
        };
        self.fill.changed.notify_waiters();
        if due && !not_stored {
            self.store_fragments(false).await;
        }
        self.make_window().await
    }

    /// Ends the body and stores the object; returns the sequence of its put.
    ///
    /// *Errors*: fewer bytes than announced (nothing is stored, followers see an error); or the store did not take it
    /// (followers see a good end all the same).
    pub async fn finish(mut self) -> Result<Sequence, Error> {
        let Some(target) = &self.target else {
            return Err(Error::invalid("a fill was finished that was never started"));
        };
        let received = self.fill.lock().received;
        if target.body_bytes.is_some_and(|bytes| bytes != received) {
            let expected = target.body_bytes.unwrap_or(0);
            return Err(Error::invalid(format!("the body has {received} bytes, {expected} were announced")));
        }
        let whole = received <= self.shared.layout.whole_bytes_max && self.fragments == 0;
        if !whole && !self.fill.lock().not_stored {
            self.store_fragments(true).await;
        }
        let not_stored = self.fill.lock().not_stored;
        let stored = if not_stored {
            Err(Error::new(ErrorKind::Busy, "the store could not keep up with this body; it is not stored"))
        } else {
            let piece = if whole {
                Piece::Whole
            } else {
                Piece::Head { generation: self.fill.generation, count: self.fragments }
            };
            let body = if whole { self.gather(0, received) } else { Bytes::new() };
            self.commit(piece, body, received)
        };
        self.end(Phase::Done);
        stored
    }

    /// Confirms a stale object with new metadata (after a 304); its body stays as it is.
    pub async fn refresh(mut self, stale: &Object, metadata: Bytes) -> Result<Object, Error> {
        let entry = &stale.entry;
        let parts = EntryParts {
            key: entry.key.clone(),
            primary_hash: entry.primary_hash,
            hash: entry.hash,
            piece: entry.piece,
            metadata,
            body: entry.body.clone(),
            object_bytes: entry.object_bytes,
            generation: self.fill.generation,
        };
        let entry = self.shared.commit(parts)?;
        let object = Object::new(entry, &self.shared);
        self.end(Phase::Object(object.clone()));
        Ok(object)
    }

    /// Says that the response is not storable: followers go on their own.
    pub fn decline(mut self) {
        self.end(Phase::Declined);
    }

    fn end(&mut self, phase: Phase) {
        self.ended = true;
        // The entry is in memory by now, so that whoever no longer finds the fill finds the object.
        self.shared.fills.remove(&self.fill);
        self.fill.enter(phase);
    }

    /// Copies `start..end` of the body out of the chunks.
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

    fn commit(&self, piece: Piece, body: Bytes, object_bytes: u64) -> Result<Sequence, Error> {
        let Some(target) = &self.target else { return Err(Error::invalid("a fill was never started")) };
        let generation = self.fill.generation;
        let (hash, key, metadata) = match piece {
            Piece::Fragment { number, .. } => {
                (hash_fragment(target.hash, generation, number), KeyRef::new(b"", b"").to_owned(), Bytes::new())
            }
            _ => (target.hash, target.key.clone(), target.metadata.clone()),
        };
        let parts =
            EntryParts { key, primary_hash: self.primary_hash, hash, piece, metadata, body, object_bytes, generation };
        self.shared.commit(parts).map(|entry| Sequence(entry.sequence))
    }

    /// Stores what has come in as fragments; the last, short one only at the end.
    async fn store_fragments(&mut self, at_end: bool) {
        let fragment_bytes = self.shared.layout.fragment_bytes;
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
            let piece = Piece::Fragment { generation: self.fill.generation, number: self.fragments };
            let mut result = self.commit(piece, body.clone(), length);
            if matches!(&result, Err(error) if error.kind == ErrorKind::Busy) {
                let _ = tokio::time::timeout(ROOM_WAIT, self.shared.queue.room.notified()).await;
                result = self.commit(piece, body, length);
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

    /// Drops chunks that nobody needs, and waits where too many remain.
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
                    self.shared.fills.bytes.fetch_sub(chunk.len() as u64, Ordering::Relaxed);
                }
                if !state.not_stored || state.received - state.base <= WINDOW_BYTES_MAX {
                    if state.not_stored && state.followers.is_empty() {
                        return Err(Error::new(ErrorKind::Busy, "nobody reads this body and the store cannot take it"));
                    }
                    return Ok(());
                }
            }
            changed.await;
        }
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        if !self.ended {
            self.end(Phase::Failed);
        }
        // Followers hold the chunks they still need through the state; the budget counts what runs, not what drains.
        let state = self.fill.lock();
        let held: u64 = state.chunks.iter().map(|chunk| chunk.len() as u64).sum();
        self.shared.fills.bytes.fetch_sub(held, Ordering::Relaxed);
    }
}

/// Reads a fill along while it comes in.
pub struct FillReader {
    shared: Arc<Shared>,
    fill: Arc<FillShared>,
    id: u64,
    position: u64,
}

impl FillReader {
    /// Joins a fill from the start of its body, unless bytes of it are gone already.
    fn join(shared: &Arc<Shared>, fill: &Arc<FillShared>) -> Option<FillReader> {
        {
            let state = fill.lock();
            if (state.not_stored && state.base > 0) || matches!(state.phase, Phase::Failed | Phase::Declined) {
                return None;
            }
        }
        Some(FillReader::attach(shared, fill))
    }

    fn attach(shared: &Arc<Shared>, fill: &Arc<FillShared>) -> FillReader {
        let mut state = fill.lock();
        let id = state.follower_next;
        state.follower_next += 1;
        state.followers.insert(id, 0);
        drop(state);
        FillReader { shared: Arc::clone(shared), fill: Arc::clone(fill), id, position: 0 }
    }

    /// Waits for the head. *Cancel safety*: can be called again.
    pub async fn head(&mut self) -> FillHead {
        loop {
            let changed = self.fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.fill.lock();
                match (&state.phase, &state.head) {
                    (Phase::Object(object), _) => return FillHead::Object(object.clone()),
                    (Phase::Declined, _) => return FillHead::Declined,
                    (Phase::Streaming | Phase::Done, Some(head)) => {
                        return FillHead::Streaming {
                            variant: head.variant.clone(),
                            metadata: head.metadata.clone(),
                            body_bytes: head.body_bytes,
                        };
                    }
                    (Phase::Failed | Phase::Done, _) => return FillHead::Failed,
                    (Phase::Waiting | Phase::Streaming, _) => {}
                }
            }
            changed.await;
        }
    }

    /// Leaves out the body up to `offset`; before the first [`next`](Self::next).
    pub fn skip_to(&mut self, offset: u64) {
        self.moved_to(offset);
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// *Errors*: the fetch failed or bytes are gone; whoever passes the body on must break off. *Cancel safety*: nothing
    /// is lost.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            let fill = Arc::clone(&self.fill);
            let changed = fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let behind = {
                let state = fill.lock();
                if self.position < state.base {
                    Some(state.stored_hash)
                } else if let Some(piece) = piece_at(&state, self.position) {
                    drop(state);
                    self.moved_to(self.position + piece.len() as u64);
                    return Some(Ok(piece));
                } else {
                    match &state.phase {
                        Phase::Done => return None,
                        Phase::Failed | Phase::Declined | Phase::Object(_) => return Some(Err(broken(self.position))),
                        Phase::Waiting | Phase::Streaming => None,
                    }
                }
            };
            if let Some(hash) = behind {
                return Some(self.next_stored(hash).await);
            }
            changed.await;
        }
    }

    /// Reads what has left the window from the fragments that were stored.
    async fn next_stored(&mut self, hash: Option<KeyHash>) -> Result<Bytes, Error> {
        let fragment_bytes = self.shared.layout.fragment_bytes;
        let (number, skip) = ((self.position / fragment_bytes) as u32, (self.position % fragment_bytes) as usize);
        let Some(hash) = hash else { return Err(broken(self.position)) };
        match self.shared.find_fragment(hash, self.fill.generation, number).await {
            Some(entry) if entry.body.len() > skip => {
                let piece = entry.body.slice(skip..);
                self.moved_to(self.position + piece.len() as u64);
                Ok(piece)
            }
            _ => Err(broken(self.position)),
        }
    }

    fn moved_to(&mut self, position: u64) {
        self.position = position;
        let mut state = self.fill.lock();
        state.followers.insert(self.id, position);
        let wake = state.not_stored;
        drop(state);
        if wake {
            self.fill.changed.notify_waiters();
        }
    }
}

impl Drop for FillReader {
    fn drop(&mut self) {
        let mut state = self.fill.lock();
        state.followers.remove(&self.id);
        drop(state);
        self.fill.changed.notify_waiters();
    }
}

fn piece_at(state: &State, position: u64) -> Option<Bytes> {
    let mut start = state.base;
    for chunk in &state.chunks {
        let end = start + chunk.len() as u64;
        if position < end {
            return Some(chunk.slice((position - start) as usize..));
        }
        start = end;
    }
    None
}

fn broken(position: u64) -> Error {
    Error::new(ErrorKind::Io, format!("the fetch broke off at byte {position} of the body"))
}
