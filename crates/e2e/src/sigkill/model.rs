//! The allowed answers of one key, derived from what its owner has seen: the oracle of the SIGKILL rounds.
//!
//! A key is used by one client at a time, so its history is a sequence. Each request has a version, which the origin
//! puts into its answer. So the version of an answer shows which request fetched it. The rules:
//! 1. An object counts as stored once a later request hit it.
//! 2. A poll that *began* after that hit and showed `last = L` proves that the object's sequence is at most L.
//! 3. A poll that *ended* before the object was requested and showed `head = H` proves that the object is in no epoch
//!    below H: the ring has not reached the object while the tail is at most H.
//! 4. After a kill, with `written = W` read just before it, the newest stored version with L <= W, or a newer one, must
//!    hit, if the ring has not reached it. No older version may answer, wherever the ring is.
//! 5. While the process runs, no version older than one that was a hit may answer. After a kill an older one may
//!    answer, unless rule 4 forbids it.
//! 6. Once a purge of any kind has returned, an object fetched before the purge was sent never answers again. While a
//!    purge is in flight, no object that it covers is required to hit.
//!
//! The model decides without a clock and without I/O; only the history in complaints uses the current time.

use super::purges::PurgeReach;
use crate::nectary::RingPosition;
use crate::origin::TargetAnswer;
use std::collections::VecDeque;
use std::time::Instant;

/// The largest number of events of a key that are kept for complaints.
const HISTORY_MAX: usize = 16;

/// A poll of the store's progress.
#[derive(Clone, Copy, Debug)]
pub struct SequencePoll {
    /// When the request was sent.
    pub began: Instant,
    /// The highest sequence in the answer.
    pub last: u64,
    /// The position of the ring.
    pub ring: RingPosition,
}

/// The end of the previous process. It decides which objects must still be found.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStop<'a> {
    /// The written sequence just before the kill, and the polls of the round; `None` after a clean stop.
    pub killed: Option<(u64, &'a [SequencePoll])>,
    /// The current position of the ring.
    pub ring: RingPosition,
}

/// A version that the origin returned.
#[derive(Clone, Copy, Debug)]
struct FetchedVersion {
    version: u64,
    asked_at: Instant,
    epoch_min: u64,
}

/// A version that was a hit.
#[derive(Clone, Copy, Debug)]
struct StoredVersion {
    version: u64,
    epoch_min: u64,
    /// The time at which the latest request that this version answered began.
    hit_began: Instant,
    /// The time at which the version was first a hit; `None` if it is certain to be on the device, because it was found
    /// after a restart.
    unproven_since: Option<Instant>,
}

/// The requirements on a key's next answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerExpectation {
    /// Whether it must be a hit.
    pub must_hit: bool,
    /// The version below which all versions are purged.
    pub purged_below: u64,
    /// The oldest version that may answer.
    pub version_min: u64,
}

/// The result of comparing an answer with the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerVerdict {
    /// The answer is as required.
    Right,
    /// The answer had to be a hit but was not.
    Missing,
    /// The object was purged, but the answer is a hit.
    Resurrected,
    /// The answer has a version that is not allowed.
    Stale {
        /// The version that answered.
        found: u64,
        /// The oldest allowed version.
        expected_min: u64,
    },
}

/// The history of one key, as far as it decides which answers are right.
#[derive(Clone, Debug)]
pub struct KeyModel {
    /// The target of the requests for this key.
    pub target: String,
    /// The size of its body, in bytes.
    bytes: u64,
    /// The number of its tag.
    pub tag: usize,
    /// The number of its prefix.
    pub prefix: usize,
    requested: u64,
    fetched: Vec<FetchedVersion>,
    stored: Vec<StoredVersion>,
    version_min_alive: u64,
    version_min_ever: u64,
    purged_below: u64,
    history: VecDeque<(Instant, KeyEvent)>,
}

/// An event in the history of a key, for its complaints.
#[derive(Clone, Copy, Debug)]
enum KeyEvent {
    /// It was requested when the origin had this version.
    Requested(u64),
    /// The origin returned this version.
    Fetched(u64),
    /// This version was a hit.
    Hit(u64),
    /// A purge has returned, which was sent at this time. It purged the versions that were fetched before.
    Purged(Instant),
    /// After a restart this version was found.
    Restarted(Option<u64>),
}

impl KeyModel {
    /// A key that was never requested.
    pub fn new(target: String, tag: usize, prefix: usize) -> Self {
        let (fetched, stored) = (Vec::new(), Vec::new());
        let (requested, purged_below, version_min_alive, version_min_ever) = (1, 1, 1, 1);
        let bytes = TargetAnswer::parse(&target).bytes;
        Self {
            target,
            bytes,
            tag,
            prefix,
            requested,
            fetched,
            stored,
            version_min_alive,
            version_min_ever,
            purged_below,
            history: VecDeque::new(),
        }
    }

    /// Describes the latest events of the key, with times in milliseconds before now.
    pub fn history(&self) -> String {
        let now = Instant::now();
        let ago = |at: Instant| now.saturating_duration_since(at).as_secs_f64() * 1e3;
        let tell = |(at, event): &(Instant, KeyEvent)| {
            let what = match event {
                KeyEvent::Requested(version) => format!("requested {version}"),
                KeyEvent::Fetched(version) => format!("fetched {version}"),
                KeyEvent::Hit(version) => format!("hit {version}"),
                KeyEvent::Purged(sent) => format!("knows of a purge sent {:.1} ms ago", ago(*sent)),
                KeyEvent::Restarted(version) => format!("restarted, found {version:?}"),
            };
            format!("{:.1} ms ago {what}", ago(*at))
        };
        self.history.iter().map(tell).collect::<Vec<_>>().join(", ")
    }

    fn note(&mut self, at: Instant, event: KeyEvent) {
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((at, event));
    }

    /// True if it is stored in several records, some of which the ring may overwrite during a read.
    pub fn has_fragments(&self, whole_bytes_max: u64) -> bool {
        self.bytes > whole_bytes_max
    }

    /// True if a version is known to have been stored; the ring may have overwritten it since then.
    pub fn is_stored(&self) -> bool {
        !self.stored.is_empty()
    }

    /// True if a version is stored that the ring has not reached.
    pub fn is_stored_in(&self, ring: RingPosition) -> bool {
        self.stored.last().is_some_and(|stored| stored.epoch_min >= ring.tail(self.bytes))
    }

    /// True if every version fetched so far is purged.
    pub fn is_purged(&self) -> bool {
        self.purged_below > self.requested
    }

    /// Applies the effects of purges. A version that was fetched before `reach.dead_before` may no longer answer. A
    /// version that a purge may have removed need not be a hit.
    pub fn purged(&mut self, reach: PurgeReach) {
        if let Some(before) = reach.dead_before {
            let count = self.fetched.len();
            self.fetched.retain(|fetched| fetched.asked_at >= before);
            if self.fetched.len() < count {
                self.note(Instant::now(), KeyEvent::Purged(before));
                self.purged_below = self.fetched.first().map_or(self.requested + 1, |fetched| fetched.version);
            }
        }
        let purged_below = self.purged_below;
        self.stored.retain(|stored| stored.version >= purged_below && reach.spares(stored.hit_began));
    }

    /// Records a request to which the origin would answer with `version`; returns the requirements on a hit while the
    /// process runs.
    pub fn asked(&mut self, version: u64) -> AnswerExpectation {
        self.requested = version;
        self.note(Instant::now(), KeyEvent::Requested(version));
        AnswerExpectation { must_hit: false, purged_below: self.purged_below, version_min: self.version_min_alive }
    }

    /// Records that the latest request reached the origin at `asked_at`; before this request the ring was at `head`.
    pub fn fetched(&mut self, asked_at: Instant, head: u64) {
        self.note(asked_at, KeyEvent::Fetched(self.requested));
        self.fetched.push(FetchedVersion { version: self.requested, asked_at, epoch_min: head });
    }

    /// Records that a request that began at `began` was answered at `at` as a hit.
    pub fn hit(&mut self, version: u64, began: Instant, at: Instant) {
        self.version_min_alive = self.version_min_alive.max(version);
        self.note(at, KeyEvent::Hit(version));
        match self.stored.last_mut() {
            Some(newest) if newest.version == version => newest.hit_began = began,
            Some(newest) if newest.version > version => {}
            _ => self.store(version, began, Some(at)),
        }
    }

    /// Returns the requirements on the key's answer after the process has ended.
    pub fn after(&self, stop: ProcessStop<'_>) -> AnswerExpectation {
        let is_proven = |stored: &&StoredVersion| match (stop.killed, stored.unproven_since) {
            (None, _) | (_, None) => true,
            (Some((written, polls)), Some(at)) => {
                polls.iter().find(|poll| poll.began > at).is_some_and(|poll| poll.last <= written)
            }
        };
        let proven = self.stored.iter().rev().find(is_proven);
        AnswerExpectation {
            must_hit: proven.is_some_and(|stored| stored.epoch_min >= stop.ring.tail(self.bytes)),
            purged_below: self.purged_below,
            version_min: proven.map_or(self.version_min_ever, |stored| stored.version.max(self.version_min_ever)),
        }
    }

    /// Records the first answer after a restart, to a request that began at `began`: the version that hit, if one did.
    pub fn restarted(&mut self, hit: Option<u64>, began: Instant) {
        self.note(began, KeyEvent::Restarted(hit));
        self.stored.clear();
        if let Some(version) = hit {
            self.fetched.retain(|fetched| fetched.version >= version);
            self.store(version, began, None);
            self.version_min_ever = version;
        }
        self.version_min_alive = self.version_min_ever;
    }

    /// Planted bug: adds a version that was never put.
    pub fn believe_in_a_version_never_put(&mut self, now: Instant) {
        self.store(self.requested + 1, now, None);
    }

    fn store(&mut self, version: u64, hit_began: Instant, unproven_since: Option<Instant>) {
        let fetched = self.fetched.iter().find(|fetched| fetched.version == version);
        let epoch_min = fetched.map_or(0, |fetched| fetched.epoch_min);
        self.stored.push(StoredVersion { version, epoch_min, hit_began, unproven_since });
    }
}

/// Compares an answer with the expectation; `hit` is the version that hit, or `None` for a miss.
pub fn judge(expected: AnswerExpectation, hit: Option<u64>) -> AnswerVerdict {
    match hit {
        None if expected.must_hit => AnswerVerdict::Missing,
        None => AnswerVerdict::Right,
        Some(found) if found < expected.purged_below => AnswerVerdict::Resurrected,
        Some(found) if found < expected.version_min => {
            AnswerVerdict::Stale { found, expected_min: expected.version_min }
        }
        Some(_) => AnswerVerdict::Right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const RING: RingPosition = RingPosition { head: 3, segment_count: 40, whole_bytes_max: 1000 };
    const ALL_WRITTEN: ProcessStop<'_> = ProcessStop { killed: None, ring: RING };

    fn at(ms: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_millis(ms)
    }

    fn killed(written: u64, polls: &[SequencePoll]) -> ProcessStop<'_> {
        ProcessStop { killed: Some((written, polls)), ring: RING }
    }

    /// Records a fetch at `ms` milliseconds, when the ring was at `head`, and a hit two milliseconds later.
    fn store(key: &mut KeyModel, ms: u64, head: u64) -> u64 {
        let version = key.requested + 1;
        key.asked(version);
        key.fetched(at(ms), head);
        key.asked(version + 1);
        key.hit(version, at(ms + 1), at(ms + 2));
        version
    }

    fn stored(ms: u64, head: u64) -> (KeyModel, u64) {
        let mut key = KeyModel::new("/k?size=1000".to_owned(), 0, 0);
        let version = store(&mut key, ms, head);
        (key, version)
    }

    fn returned(sent_ms: u64, returned_ms: u64) -> PurgeReach {
        PurgeReach { dead_before: Some(at(sent_ms)), doubt_until: Some(at(returned_ms)), under_way: 0 }
    }

    /// An object must be a hit only if a poll that began after it was stored proves that it was written.
    #[test]
    fn only_polled_objects_must_hit() {
        let (key, version) = stored(10, 0);
        let polls = [(5, 1), (20, 7)].map(|(ms, last)| SequencePoll { began: at(ms), last, ring: RING });
        assert!(key.after(killed(7, &polls)).must_hit);
        assert!(!key.after(killed(6, &polls)).must_hit);
        assert!(!key.after(killed(7, &polls[..1])).must_hit, "the poll began before the hit");
        assert_eq!(judge(key.after(killed(7, &polls)), None), AnswerVerdict::Missing);
        assert_eq!(judge(key.after(killed(7, &polls)), Some(version)), AnswerVerdict::Right);
    }

    /// The ring may have overwritten the object, but the version that it replaced must not return.
    #[test]
    fn overwritten_object_may_miss() {
        let (mut key, old) = stored(10, 3);
        let new = store(&mut key, 20, 5);
        let stop = |head| ProcessStop { killed: None, ring: RingPosition { head, ..RING } };
        assert!(key.after(stop(43)).must_hit && !key.after(stop(44)).must_hit);
        assert_eq!(judge(key.after(stop(44)), None), AnswerVerdict::Right);
        assert_eq!(judge(key.after(stop(44)), Some(old)), AnswerVerdict::Stale { found: old, expected_min: new });
        let mut long = KeyModel::new("/k?size=1001".to_owned(), 0, 0);
        store(&mut long, 10, 5);
        assert!(
            long.after(stop(33)).must_hit && !long.after(stop(34)).must_hit,
            "its fragments may be too old to read"
        );
    }

    /// The replaced version may return only if the new one was not written.
    #[test]
    fn unwritten_replacement_may_revert() {
        let (mut key, old) = stored(10, 0);
        let new = store(&mut key, 30, 0);
        let asked = key.asked(9);
        assert_eq!(judge(asked, Some(old)), AnswerVerdict::Stale { found: old, expected_min: new });
        let polls = [(20, 5), (40, 9)].map(|(ms, last)| SequencePoll { began: at(ms), last, ring: RING });
        let before = key.after(killed(5, &polls));
        assert!(before.must_hit && before.version_min == old);
        assert_eq!(key.after(killed(9, &polls)).version_min, new);
    }

    /// Versions that were fetched before the purge stay forbidden.
    #[test]
    fn returned_purge_forbids_older_versions() {
        let (mut key, old) = stored(10, 0);
        key.purged(PurgeReach { under_way: 1, ..PurgeReach::default() });
        let expected = key.after(ALL_WRITTEN);
        assert_eq!((judge(expected, None), judge(expected, Some(old))), (AnswerVerdict::Right, AnswerVerdict::Right));
        key.purged(returned(20, 25));
        assert!(key.is_purged());
        assert_eq!(judge(key.after(ALL_WRITTEN), Some(key.requested)), AnswerVerdict::Resurrected);
        let new = store(&mut key, 30, 0);
        key.purged(returned(20, 25));
        assert!(!key.is_purged() && key.after(ALL_WRITTEN).must_hit);
        assert_eq!(judge(key.after(ALL_WRITTEN), Some(old)), AnswerVerdict::Resurrected);
        key.restarted(Some(new), at(50));
        assert!(key.after(ALL_WRITTEN).must_hit);
        assert_eq!(judge(key.asked(99), Some(old)), AnswerVerdict::Resurrected);
    }

    /// What was fetched during a purge may be gone until it is a hit again.
    #[test]
    fn fetch_during_purge_may_vanish() {
        let (mut key, version) = stored(10, 0);
        key.purged(returned(9, 40));
        let expected = key.after(ALL_WRITTEN);
        assert_eq!(
            (judge(expected, None), judge(expected, Some(version))),
            (AnswerVerdict::Right, AnswerVerdict::Right)
        );
        key.hit(version, at(50), at(51));
        key.purged(returned(9, 40));
        assert!(key.after(ALL_WRITTEN).must_hit);
    }

    #[test]
    fn a_version_never_put_is_missed() {
        let (mut key, version) = stored(10, 0);
        key.believe_in_a_version_never_put(at(20));
        assert!(matches!(judge(key.after(ALL_WRITTEN), Some(version)), AnswerVerdict::Stale { .. }));
    }
}
