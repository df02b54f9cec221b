//! The running fills, and the state of each.
//!
//! Owns: the running fills, the memory of a fill, and the state that its leader and followers share. Leaves to others:
//! the two sides of a fill (`leader`, `reader`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::get::object::Object;
use crate::names::key::{KeyHash, PrimaryHash};
use crate::names::tag::Tags;
use crate::purge::rules::Verdict;
use crate::state::State;

/// The largest distance between a fill that is not stored and its slowest follower, in bytes.
pub const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// The table of the running fills.
pub struct FillTable {
    fills: Mutex<HashMap<KeyHash, Arc<FillUnderWay>>>,
    /// All running fills, including those that later requests cannot join.
    running: Mutex<Running>,
    /// The memory of all fills, in bytes.
    bytes: AtomicU64,
    pub bytes_max: u64,
}

/// The running fills: a list by generation, and their number per key.
#[derive(Default)]
struct Running {
    /// The primary key of each fill, by the fill's generation.
    primaries: BTreeMap<u64, PrimaryHash>,
    /// The number of fills per primary key.
    counts: HashMap<PrimaryHash, u64>,
}

impl FillTable {
    pub fn new(bytes_max: u64) -> FillTable {
        FillTable { fills: Mutex::default(), running: Mutex::default(), bytes: AtomicU64::new(0), bytes_max }
    }

    /// The generation of the oldest running fill; `u64::MAX` if no fill is running.
    pub fn generation_min(&self) -> u64 {
        self.running().primaries.first_key_value().map_or(u64::MAX, |(generation, _)| *generation)
    }

    /// Whether a fill of a primary key is running.
    pub fn is_running(&self, primary: PrimaryHash) -> bool {
        self.running().counts.contains_key(&primary)
    }

    /// Registers a fill and draws its generation. Both happen under one lock, so that no purge that affects the fill is
    /// forgotten between the two steps.
    pub fn begin(&self, primary: PrimaryHash, draw: impl FnOnce() -> u64) -> u64 {
        let mut running = self.running();
        let generation = draw();
        running.primaries.insert(generation, primary);
        *running.counts.entry(primary).or_default() += 1;
        generation
    }

    pub fn end(&self, generation: u64) {
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

    /// The memory of all fills, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds `bytes` to the memory of all fills; returns the new total, in bytes.
    pub fn add(&self, bytes: u64) -> u64 {
        self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Subtracts `bytes` from the memory of all fills; returns the new total, in bytes.
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

    pub fn lock(&self) -> MutexGuard<'_, HashMap<KeyHash, Arc<FillUnderWay>>> {
        self.fills.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn remove(&self, fill: &Arc<FillUnderWay>) {
        let mut fills = self.lock();
        if fills.get(&fill.hash).is_some_and(|current| Arc::ptr_eq(current, fill)) {
            fills.remove(&fill.hash);
        }
    }
}

pub struct FillUnderWay {
    pub hash: KeyHash,
    pub generation: u64,
    pub superseded: AtomicBool,
    pub state: Mutex<FillState>,
    pub changed: Notify,
}

#[derive(Default)]
pub struct FillState {
    pub phase: Phase,
    pub head: Option<Head>,
    pub chunks: VecDeque<Bytes>,
    /// The offset in the body at which the first kept chunk begins, in bytes.
    pub base: u64,
    pub received: u64,
    /// The number of bytes, from the start of the body, that are stored as fragments.
    pub stored: u64,
    /// The hash of the object's key, from which the hashes of its fragments are computed.
    pub stored_hash: Option<KeyHash>,
    pub not_stored: bool,
    /// Whether the object will be written to the disk.
    pub is_admitted: bool,
    /// Whether readers may tell clients that the object will be on the disk.
    pub is_promised: bool,
    /// The tags of the object, set with the head.
    pub tags: Tags,
    pub followers: HashMap<u64, u64>,
    pub follower_next: u64,
}

#[derive(Clone)]
pub struct Head {
    pub variant: Bytes,
    pub metadata: Bytes,
    pub body_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub enum Phase {
    #[default]
    Waiting,
    Streaming,
    Done,
    Object(Object),
    Declined,
    Failed,
}

impl FillState {
    /// Drops the slowest followers, if another one waits for bytes that do not come because of them. Their readers get an
    /// error.
    pub fn leave_behind(&mut self) {
        let slowest = self.followers.values().copied().min().unwrap_or(self.received);
        let waits = slowest < self.received && self.followers.values().any(|&position| position >= self.received);
        self.followers.retain(|_, position| !waits || *position > slowest);
    }
}

impl FillUnderWay {
    pub fn lock(&self) -> MutexGuard<'_, FillState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether a purge that came after the fill began may match the object that is being fetched. A fill without a head
    /// may still get any tag.
    pub fn is_purged(&self, of: &State, primary_hash: PrimaryHash, primary: &[u8]) -> bool {
        let state = self.lock();
        let tags = state.tags.hashes();
        of.purges.verdict(primary_hash, self.generation, primary, tags) != Verdict::Live
            || (state.head.is_none() && of.purges.may_be_purged_by_tag(self.generation))
    }

    pub fn enter(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_waiters();
    }
}
