//! Fills: one fetch of a key, read by everybody who waits for it while it comes in.
//!
//! Owns: who leads, what followers see, and what both share. `leader` keeps the window of bytes and makes an entry (or
//! fragments and a head) of a body; `reader` reads along. Leaves to others: where the bytes come from, and whether they may
//! be stored.
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
//! `write` waits for it. The same goes for what is not admitted to the disk and too long for one record. Either way a fill
//! holds at most [`WINDOW_BYTES_MAX`] and a fragment.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::commit::Puts;
use crate::key::{KeyHash, KeyRef, PrimaryHash};
use crate::object::Object;
use crate::purges::Verdict;
use crate::state::State;
use crate::tags::Tags;

mod leader;
mod reader;

pub use leader::Fill;
pub use reader::FillReader;

/// How far a fill runs ahead of its slowest follower when it is not stored, in bytes.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// The fills under way.
pub(crate) struct FillTable {
    fills: Mutex<HashMap<KeyHash, Arc<FillShared>>>,
    /// All fills under way, also those that nobody can join any more.
    running: Mutex<Running>,
    /// Bytes that all fills hold.
    bytes: AtomicU64,
    bytes_max: u64,
}

/// Fills under way.
#[derive(Default)]
struct Running {
    /// By generation.
    primaries: BTreeMap<u64, PrimaryHash>,
    /// How many there are of each primary key.
    counts: HashMap<PrimaryHash, u64>,
}

impl FillTable {
    pub fn new(bytes_max: u64) -> FillTable {
        FillTable { fills: Mutex::default(), running: Mutex::default(), bytes: AtomicU64::new(0), bytes_max }
    }

    /// The generation of the oldest fill under way.
    pub fn generation_min(&self) -> u64 {
        self.running().primaries.first_key_value().map_or(u64::MAX, |(generation, _)| *generation)
    }

    /// Whether a fill of a primary key is under way.
    pub fn is_running(&self, primary: PrimaryHash) -> bool {
        self.running().counts.contains_key(&primary)
    }

    /// Draws the generation of a fill that begins: under the lock, so that no purge that it falls under is retired before it
    /// is known to run.
    fn begin(&self, primary: PrimaryHash, draw: impl FnOnce() -> u64) -> u64 {
        let mut running = self.running();
        let generation = draw();
        running.primaries.insert(generation, primary);
        *running.counts.entry(primary).or_default() += 1;
        generation
    }

    fn end(&self, generation: u64) {
        let mut running = self.running();
        let Some(primary) = running.primaries.remove(&generation) else { return };
        if let Some(count) = running.counts.get_mut(&primary) {
            *count -= 1;
            if *count == 0 {
                running.counts.remove(&primary);
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Bytes that fills hold.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts so many bytes more; tells how many there are.
    pub fn add(&self, bytes: u64) -> u64 {
        self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Counts so many bytes less; tells how many are left.
    pub fn sub(&self, bytes: u64) -> u64 {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes
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
    state: Mutex<FillState>,
    changed: Notify,
}

#[derive(Default)]
struct FillState {
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
    /// Whether it is to be written to the disk.
    is_admitted: bool,
    /// Whether readers may say so.
    is_promised: bool,
    /// Those of the head.
    tags: Tags,
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
    fn lock(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether a purge that came since may be meant for what is being fetched. What has no head yet may get any tag.
    fn is_purged(&self, of: &State, primary_hash: PrimaryHash, primary: &[u8]) -> bool {
        let state = self.lock();
        let tags = state.tags.hashes();
        of.purges.verdict(primary_hash, self.generation, primary, tags) != Verdict::Live
            || (state.head.is_none() && of.purges.may_be_purged_by_tag(self.generation))
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
pub(crate) fn begin(puts: &Arc<Puts>, key: KeyRef<'_>, stale: Option<&Object>) -> FillRole {
    let (primary_hash, hash) = puts.span.hash(key);
    let mut fills = puts.fills.lock();
    if let Some(fill) = fills.get(&hash)
        && !fill.is_purged(&puts.state, primary_hash, key.primary)
        && let Some(reader) = FillReader::join(&puts.lookup, fill)
    {
        return FillRole::Follower(reader);
    }
    if let Some(entry) = puts
        .lookup
        .find_resident(key)
        .live()
        .filter(|entry| stale.is_none_or(|stale| stale.entry.generation != entry.generation))
    {
        return FillRole::Resident(Object::new(entry, &puts.lookup));
    }
    let fill = Fill::new(puts, key, primary_hash, hash);
    fills.insert(hash, Arc::clone(&fill.fill));
    FillRole::Leader(fill)
}

/// Begins a fill that nobody joins: a put of a long body.
pub(crate) fn begin_alone(puts: &Arc<Puts>, key: KeyRef<'_>) -> Fill {
    let (primary_hash, hash) = puts.span.hash(key);
    Fill::new(puts, key, primary_hash, hash)
}
