//! The running fills, and the state of each.
//!
//! Owns: the running fills, the versions that are committed while they run, the memory of a fill, and the state that its
//! leader and followers share. Promises: a fill knows of each newer version of the object that it stores, also if later
//! requests cannot join the fill, and if it began under another variant. Leaves to others: the two sides of a fill
//! (`leader`, `reader`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::get::object::StoredObject;
use crate::names::key::{KeyHash, PrimaryHash};
use crate::names::tag::EntryTags;
use crate::purge::rules::PurgeVerdict;
use crate::state::SpanState;

/// The largest distance between a fill that is not stored and its slowest follower, in bytes.
pub const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// The number of variants of a key that are noted one by one, if they are committed while fills of the key run.
const VARIANTS_MAX: usize = 16;

/// The table of the running fills.
pub struct FillTable {
    fills: Mutex<HashMap<KeyHash, Arc<FillUnderWay>>>,
    /// All running fills, including those that later requests cannot join.
    running: Mutex<RunningFills>,
    /// The memory of all fills, in bytes.
    bytes: AtomicU64,
    pub bytes_max: u64,
}

/// The running fills, by their generations, and what is known of their primary keys.
#[derive(Default)]
struct RunningFills {
    fills: BTreeMap<u64, RunningFill>,
    keys: HashMap<PrimaryHash, RunningKey>,
}

struct RunningFill {
    primary: PrimaryHash,
    /// Whether it is a put of a long body, which may replace a version that was put meanwhile.
    is_put: bool,
}

/// A primary key that is being filled.
#[derive(Default)]
struct RunningKey {
    /// The number of its fills.
    count: u64,
    /// The newest version of each variant that was committed since the oldest of these fills began.
    newest: Vec<(KeyHash, u64)>,
    /// The newest version of all variants for which `newest` has no room.
    newest_of_others: u64,
}

impl RunningKey {
    fn note(&mut self, hash: KeyHash, generation: u64) {
        let has_room = self.newest.len() < VARIANTS_MAX;
        match self.newest.iter_mut().find(|(noted, _)| *noted == hash) {
            Some((_, newest)) => *newest = generation.max(*newest),
            None if has_room => self.newest.push((hash, generation)),
            None => self.newest_of_others = generation.max(self.newest_of_others),
        }
    }

    /// The newest version of a variant, or a newer one of another variant.
    fn newest(&self, hash: KeyHash) -> u64 {
        let noted = self.newest.iter().find(|(noted, _)| *noted == hash);
        noted.map_or(self.newest_of_others, |(_, generation)| *generation)
    }
}

impl FillTable {
    pub fn new(bytes_max: u64) -> FillTable {
        FillTable { fills: Mutex::default(), running: Mutex::default(), bytes: AtomicU64::new(0), bytes_max }
    }

    /// The generation of the oldest running fill; `u64::MAX` if no fill is running.
    pub fn generation_min(&self) -> u64 {
        self.running().fills.first_key_value().map_or(u64::MAX, |(generation, _)| *generation)
    }

    /// Whether a fill of a primary key is running.
    pub fn is_running(&self, primary: PrimaryHash) -> bool {
        self.running().keys.contains_key(&primary)
    }

    /// Registers a fill and draws its generation. Both happen under one lock, so that no purge that affects the fill is
    /// forgotten between the two steps.
    pub fn begin(&self, primary: PrimaryHash, is_put: bool, draw: impl FnOnce() -> u64) -> u64 {
        let mut running = self.running();
        let generation = draw();
        running.fills.insert(generation, RunningFill { primary, is_put });
        running.keys.entry(primary).or_default().count += 1;
        generation
    }

    pub fn end(&self, generation: u64) {
        let mut running = self.running();
        let Some(RunningFill { primary, .. }) = running.fills.remove(&generation) else { return };
        if let Some(key) = running.keys.get_mut(&primary) {
            key.count -= 1;
            if key.count == 0 {
                running.keys.remove(&primary);
            }
        }
    }

    fn running(&self) -> MutexGuard<'_, RunningFills> {
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

    /// Whether the fill of a generation must not store an object, because a newer version of the object was committed
    /// after the fill began. If very many variants of its key were committed, a newer version of another variant may
    /// count too. Call it under the lock that orders sequences.
    pub fn is_superseded(&self, hash: KeyHash, generation: u64) -> bool {
        let running = self.running();
        let Some(fill) = running.fills.get(&generation).filter(|fill| !fill.is_put) else { return false };
        running.keys.get(&fill.primary).is_some_and(|key| key.newest(hash) > generation)
    }

    /// Notes that a version of `generation` is committed: an older fill must not replace it. Call it under the lock that
    /// orders sequences.
    pub fn supersede_older(&self, primary: PrimaryHash, hash: KeyHash, generation: u64) {
        if let Some(key) = self.running().keys.get_mut(&primary) {
            key.note(hash, generation);
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
    pub state: Mutex<FillState>,
    pub changed: Notify,
}

#[derive(Default)]
pub struct FillState {
    pub phase: FillPhase,
    pub head: Option<BodyHead>,
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
    pub tags: EntryTags,
    pub followers: HashMap<u64, u64>,
    pub follower_next: u64,
}

#[derive(Clone)]
pub struct BodyHead {
    pub variant: Bytes,
    pub metadata: Bytes,
    pub body_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub enum FillPhase {
    #[default]
    Waiting,
    Streaming,
    Done,
    Object(StoredObject),
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

    /// Whether a purge, also a soft one, that came after the fill began may match the object that is being fetched. A
    /// fill without a head may still get any tag.
    pub fn is_purged(&self, of: &SpanState, primary_hash: PrimaryHash, primary: &[u8]) -> bool {
        let state = self.lock();
        let tags = state.tags.hashes();
        of.purges.verdict(primary_hash, self.generation, primary, tags) != PurgeVerdict::Live
            || (state.head.is_none() && of.purges.may_be_purged_by_tag(self.generation))
    }

    pub fn enter(&self, phase: FillPhase) {
        self.lock().phase = phase;
        self.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_newer_versions_supersede_fills() {
        let table = FillTable::new(0);
        let (key, other) = (PrimaryHash(1), PrimaryHash(2));
        let hash = |number: usize| KeyHash(number as u128);
        table.supersede_older(key, hash(0), 9);
        for (generation, is_put) in [(10, false), (20, false), (25, true)] {
            assert_eq!(table.begin(key, is_put, || generation), generation);
        }
        assert!(!table.is_superseded(hash(0), 10));
        table.supersede_older(key, hash(0), 20);
        table.supersede_older(other, hash(0), 30);
        assert_eq!([10, 20, 25].map(|fill| table.is_superseded(hash(0), fill)), [true, false, false]);
        assert!(!table.is_superseded(hash(1), 10), "another variant");
        (1..=VARIANTS_MAX).for_each(|variant| table.supersede_older(key, hash(variant), 30));
        let superseded =
            |fill| (0..VARIANTS_MAX + 2).filter(|variant| table.is_superseded(hash(*variant), fill)).count();
        assert_eq!([10, 20, 25].map(superseded), [VARIANTS_MAX + 2, VARIANTS_MAX + 1, 0]);
        [10, 20, 25].into_iter().for_each(|fill| table.end(fill));
        assert!(table.running().keys.is_empty() && table.running().fills.is_empty());
    }
}
