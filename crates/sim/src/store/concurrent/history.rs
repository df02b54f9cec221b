//! Records the calls and answers of clients, and decides whether a store that does one call at a time could have given
//! these answers.
//!
//! A key is a register: puts and purges change it, gets read it, and a cache may lose it. Each version is written once,
//! and the store gives each accepted version a sequence, so the order of a key's versions is known. A get is explained
//! by a possible position in that order. Each operation has a start and an end, numbered by one counter; an operation
//! that a crash interrupted has no end.
//!
//! | rule | a get of version `v` is a violation if |
//! |---|---|
//! | future | the get ended before `v` began |
//! | refused | the store had answered that `v` is not stored |
//! | replaced | a version with a higher sequence was accepted before the get began, and no crash can have lost it |
//! | order | an earlier get saw a version with a higher sequence, and no crash can have lost it |
//! | came back | an earlier get showed that a crash had lost `v`: a lost version must stay lost |
//! | purged | a purge that covers `v` began after `v` and returned before the get began |
//!
//! A fill stores what was fetched after it began, so it must not replace a version that began after the fill, although
//! the two overlap. A sync that returned has flushed everything that was accepted before it began.
//!
//! A miss is explained by a purge, a newer version, a refusal, a crash, admission, or the ring: the ring may have
//! reclaimed the segment of a version that was written long ago. Any other miss is also a violation.

/// A moment: the number of events before it.
pub type Time = u64;

/// The fate of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionFate {
    /// The caller got no answer.
    Unknown,
    /// It was accepted.
    Accepted { sequence: u64, is_admitted: bool },
    /// It was refused, or its writer abandoned it.
    Refused,
}

/// A version of a key.
#[derive(Debug, Clone)]
pub struct KeyVersion {
    pub key: u32,
    /// Its unique number.
    pub number: u32,
    /// The number of the version whose body it has, and the length of that body in bytes.
    pub content: u32,
    pub length: usize,
    /// One bit per tag.
    pub tags: u32,
    pub began: Time,
    pub ended: Option<Time>,
    pub outcome: VersionFate,
    /// Whether a fill stores it.
    pub is_fill: bool,
    /// The life in which its put or fill began.
    pub life: usize,
    /// The segment epoch that was being written when it began; `None` if part of it is older.
    pub head: Option<u64>,
}

/// The objects that a purge covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgedObjects {
    /// All variants of a name.
    Name(u32),
    /// All names that begin with this one.
    Prefix(u32),
    Tag(u32),
    All,
}

#[derive(Debug, Clone)]
pub struct RecordedPurge {
    pub scope: PurgedObjects,
    pub began: Time,
    pub ended: Option<Time>,
    /// Whether the purge was made durable.
    pub is_good: bool,
}

/// The version that a get saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedVersion {
    pub version: u32,
    pub sequence: u64,
}

#[derive(Debug, Clone)]
pub struct RecordedGet {
    pub key: u32,
    pub began: Time,
    pub ended: Time,
    pub life: usize,
    pub seen: Option<ObservedVersion>,
    /// Whether it read a fill in progress, whose object need not be stored.
    pub follows: bool,
    /// Whether a miss needs no explanation, because the get looked only in memory.
    pub may_miss: bool,
    /// The segment epoch that was being written when it ended.
    pub head: u64,
}

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeEnd {
    /// The process was killed, or stopped.
    Process,
    /// The process was killed, and then the purge log was truncated.
    LogCut,
    Power,
}

/// The time from one opening of the store to the next.
#[derive(Debug, Clone)]
pub struct StoreLife {
    pub began: Time,
    /// The end of the previous life.
    pub after: LifeEnd,
    /// The sequence up to which the store reports that it has recovered everything.
    pub recovered: u64,
    /// Whether the store reports lost purge records. If so, all objects put before this life count as purged.
    pub purges_lost: bool,
    pub segment_count: u64,
    pub whole_bytes_max: u64,
}

/// The sequences that the store reported at a moment.
#[derive(Debug, Clone, Copy)]
pub struct ReportedSequences {
    pub at: Time,
    pub written: u64,
    pub flushed: u64,
}

/// A sync that returned.
#[derive(Debug, Clone, Copy)]
pub struct RecordedSync {
    pub at: Time,
    /// The highest sequence that was accepted before the sync began.
    pub wanted: u64,
    /// The flushed sequence that the sync returned.
    pub flushed: u64,
}

/// Everything that happened.
#[derive(Debug, Clone, Default)]
pub struct StoreHistory {
    pub now: Time,
    pub versions: Vec<KeyVersion>,
    pub purges: Vec<RecordedPurge>,
    pub gets: Vec<RecordedGet>,
    pub lives: Vec<StoreLife>,
    pub told: Vec<ReportedSequences>,
    pub syncs: Vec<RecordedSync>,
}

/// The outcome of a check.
#[derive(Debug, Default, Clone)]
pub struct HistoryCheck {
    /// Gets that hit.
    pub hits: u64,
    /// Gets that had to hit.
    pub demanded: u64,
    /// The answers that cannot be explained.
    pub broken: Vec<String>,
}

/// The name of a key: two keys are variants of one name.
pub fn name_of(key: u32) -> u32 {
    key / 2
}

impl PurgedObjects {
    /// Whether a purge of this scope covers a version.
    pub fn covers(self, version: &KeyVersion) -> bool {
        match self {
            PurgedObjects::Name(name) => name_of(version.key) == name,
            PurgedObjects::Prefix(prefix) => name_of(version.key).to_string().starts_with(&prefix.to_string()),
            PurgedObjects::Tag(tag) => version.tags & 1 << tag != 0,
            PurgedObjects::All => true,
        }
    }
}

impl StoreHistory {
    /// Advances the time by one event; returns the new time.
    pub fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// Returns the history up to a moment, as a crash at that moment leaves it.
    pub fn until(&self, moment: Time) -> StoreHistory {
        let ended = |ended: Option<Time>| ended.filter(|&ended| ended <= moment);
        let versions = self.versions.iter().filter(|version| version.began <= moment).map(|version| {
            let ended = ended(version.ended);
            let outcome = if ended.is_some() { version.outcome } else { VersionFate::Unknown };
            KeyVersion { ended, outcome, ..version.clone() }
        });
        let purges = self.purges.iter().filter(|purge| purge.began <= moment);
        let purges = purges.map(|purge| RecordedPurge { ended: ended(purge.ended), ..purge.clone() });
        StoreHistory {
            now: moment,
            versions: versions.collect(),
            purges: purges.collect(),
            gets: self.gets.iter().filter(|get| get.ended <= moment).cloned().collect(),
            lives: self.lives.iter().filter(|life| life.began <= moment).cloned().collect(),
            told: self.told.iter().filter(|told| told.at <= moment).copied().collect(),
            syncs: self.syncs.iter().filter(|synced| synced.at <= moment).copied().collect(),
        }
    }

    /// Compares every answer with the possible ones.
    pub fn check(&self) -> HistoryCheck {
        self.check_from(0)
    }

    /// Compares only the answers after a moment with the possible ones.
    pub fn check_from(&self, moment: Time) -> HistoryCheck {
        let mut checked = HistoryCheck::default();
        for (number, life) in self.lives.iter().enumerate().skip(1).filter(|(_, life)| life.began > moment) {
            // A power cut since then may have lost a written version, but not a flushed one.
            let before = self.lives[number - 1].began;
            let survives = |told: &ReportedSequences| match life.after != LifeEnd::Power && told.at > before {
                true => told.written,
                false => told.flushed,
            };
            if life.purges_lost && life.after != LifeEnd::LogCut {
                checked.broken.push(format!("life {number} says that purges were lost, and none were"));
            }
            let promised = self.told.iter().filter(|told| told.at < life.began).map(survives).max().unwrap_or(0);
            if life.recovered < promised {
                let recovered = life.recovered;
                checked
                    .broken
                    .push(format!("life {number} recovered up to {recovered:#x}, {promised:#x} was promised"));
            }
        }
        let is_short = |synced: &&RecordedSync| synced.at > moment && synced.flushed < synced.wanted;
        for RecordedSync { at, wanted, flushed } in self.syncs.iter().filter(is_short) {
            checked.broken.push(format!("a sync ended at {at} with {flushed:#x} flushed, not {wanted:#x}"));
        }
        let gets = self.gets.iter().map(|get| get.key);
        let mut keys: Vec<u32> = gets.chain(self.versions.iter().map(|version| version.key)).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            KeyRegister::of(self, key).check(moment, &mut checked);
        }
        checked
    }
}

/// The history of one key.
struct KeyRegister<'a> {
    history: &'a StoreHistory,
    versions: Vec<&'a KeyVersion>,
    gets: Vec<&'a RecordedGet>,
}

impl<'a> KeyRegister<'a> {
    fn of(history: &'a StoreHistory, key: u32) -> KeyRegister<'a> {
        let versions = history.versions.iter().filter(|version| version.key == key).collect();
        let gets = history.gets.iter().filter(|get| get.key == key).collect();
        KeyRegister { history, versions, gets }
    }

    fn check(&self, moment: Time, checked: &mut HistoryCheck) {
        for version in self.versions.iter().filter(|version| version.ended.is_some_and(|ended| ended > moment)) {
            if let Some(newer) = self.replaced_newer(version) {
                checked.broken.push(format!(
                    "key {}, fill from {} to {:?} in life {}: version {} replaced {}, which began later",
                    version.key, version.began, version.ended, version.life, version.number, newer.number
                ));
            }
        }
        for (at, get) in self.gets.iter().enumerate().filter(|(_, get)| get.began > moment) {
            let broken = match get.seen {
                Some(seen) => {
                    checked.hits += 1;
                    self.hit(at, get, seen)
                }
                None => {
                    let demanded = self.must_hit(get);
                    checked.demanded += u64::from(demanded.is_some());
                    demanded.map(|version| format!("missed, version {} should be there", version.number))
                }
            };
            if get.seen.is_some() && self.must_hit(get).is_some() {
                checked.demanded += 1;
            }
            if let Some(broken) = broken {
                checked.broken.push(format!(
                    "key {}, get from {} to {} in life {}: {broken}",
                    get.key, get.began, get.ended, get.life
                ));
            }
        }
    }

    /// The version that a fill replaced although that version began after the fill; both are in the same life, because
    /// a fill ends with its life.
    fn replaced_newer(&self, fill: &KeyVersion) -> Option<&'a KeyVersion> {
        let VersionFate::Accepted { sequence, .. } = fill.outcome else { return None };
        let is_replaced = |other: &&&KeyVersion| {
            other.began > fill.began
                && matches!(other.outcome, VersionFate::Accepted { sequence: own, .. } if own < sequence)
        };
        self.versions.iter().filter(|_| fill.is_fill).find(is_replaced).copied()
    }

    fn version(&self, number: u32) -> Option<&'a KeyVersion> {
        self.versions.iter().copied().find(|version| version.number == number)
    }

    /// A version's position in the order of all versions, if known.
    fn sequence(&self, version: &KeyVersion) -> Option<u64> {
        match version.outcome {
            VersionFate::Accepted { sequence, .. } => Some(sequence),
            // A rewritten object has a higher sequence, but a lower one than all later puts.
            _ => self
                .gets
                .iter()
                .filter_map(|get| get.seen)
                .filter(|seen| seen.version == version.number)
                .map(|seen| seen.sequence)
                .min(),
        }
    }

    /// Whether a version is certain to be on the disk in a life: it was written, and no crash up to that life lost it.
    fn survives(&self, version: &KeyVersion, life: usize) -> bool {
        version.life == life
            || (!matches!(version.outcome, VersionFate::Accepted { is_admitted: false, .. })
                && self.hides(version, life))
    }

    /// Whether the version that `newer` replaced stays hidden in a life: no crash up to that life lost `newer`. If
    /// `newer` was not admitted, it replaced nothing on the disk; then an already reclaimed version can reappear if the
    /// segment that was going to overwrite it was not written before a crash.
    fn hides(&self, newer: &KeyVersion, life: usize) -> bool {
        let Some(sequence) = self.sequence(newer) else { return newer.life == life };
        let lives = self.history.lives.get(newer.life + 1..=life).unwrap_or_default();
        lives.iter().all(|life| sequence <= life.recovered)
    }

    fn hit(&self, at: usize, get: &RecordedGet, seen: ObservedVersion) -> Option<String> {
        let Some(version) = self.version(seen.version) else {
            return Some(format!("version {} was never put", seen.version));
        };
        let number = version.number;
        if get.ended < version.began {
            return Some(format!("version {number} had not begun"));
        }
        let is_purge = |purge: &&RecordedPurge| purge.is_good && purge.scope.covers(version);
        let was_before =
            |purge: &&RecordedPurge| version.began < purge.began && purge.ended.is_some_and(|end| end < get.began);
        if let Some(purge) = self.history.purges.iter().filter(is_purge).find(was_before) {
            return Some(format!("version {number} was purged ({:?}) from {} on", purge.scope, purge.began));
        }
        let lost_purges = |life: &&StoreLife| life.purges_lost && version.began < life.began && life.began < get.began;
        if self.history.lives.iter().any(|life| lost_purges(&life)) {
            return Some(format!("version {number} is older than purges that were lost"));
        }
        if get.follows {
            return None;
        }
        if version.outcome == VersionFate::Refused {
            return Some(format!("version {number} was refused"));
        }
        let own = self.sequence(version).unwrap_or(seen.sequence);
        for newer in &self.versions {
            let is_newer = matches!(newer.outcome, VersionFate::Accepted { sequence, .. } if sequence > own);
            if is_newer && newer.ended.is_some_and(|ended| ended < get.began) && self.hides(newer, get.life) {
                return Some(format!("version {number} had been replaced by {}", newer.number));
            }
        }
        let earlier = self.gets.iter().enumerate().filter(|(other, earlier)| *other != at && earlier.ended < get.began);
        for (_, earlier) in earlier.filter(|(_, earlier)| !earlier.follows) {
            let Some(other) = earlier.seen.filter(|other| other.version != number) else { continue };
            let Some(other) = self.version(other.version) else { continue };
            let order = self.sequence(other).unwrap_or(0);
            if order > own && self.hides(other, get.life) {
                return Some(format!("version {number} came after {} was seen", other.number));
            }
            let life = self.history.lives.get(earlier.life).map_or(0, |life| life.began);
            if order < own && other.began < life && version.began < life {
                return Some(format!("version {number} came back, {} had been seen since", other.number));
            }
        }
        None
    }

    /// The version that a get must find, if any.
    fn must_hit(&self, get: &RecordedGet) -> Option<&'a KeyVersion> {
        if get.may_miss || get.follows {
            return None;
        }
        let before = |version: &&&KeyVersion| {
            matches!(version.outcome, VersionFate::Accepted { .. })
                && version.ended.is_some_and(|ended| ended < get.began)
        };
        let newest = self.versions.iter().filter(before).max_by_key(|version| self.sequence(version)).copied()?;
        let VersionFate::Accepted { sequence, is_admitted: true } = newest.outcome else { return None };
        let is_settled = |other: &&&KeyVersion| {
            other.number == newest.number
                || other.began > get.ended
                || match other.outcome {
                    VersionFate::Accepted { sequence: older, .. } => {
                        older < sequence && other.ended.is_some_and(|ended| ended < get.began)
                    }
                    VersionFate::Refused => true,
                    VersionFate::Unknown => false,
                }
        };
        let may_purge = |purge: &&RecordedPurge| {
            // A purge of a tag that the newest version does not have does not explain the miss.
            purge.scope.covers(newest)
                && purge.began < get.ended
                && purge.ended.is_none_or(|ended| ended > newest.began)
        };
        let lost_purges = |life: &&StoreLife| life.purges_lost && newest.began < life.began && life.began < get.ended;
        let life = self.history.lives.get(get.life)?;
        let leaving = if newest.length as u64 > life.whole_bytes_max { life.segment_count / 4 } else { 0 };
        let stays = newest.head? + life.segment_count > get.head + 3 + leaving;
        let is_there = stays
            && self.survives(newest, get.life)
            && self.versions.iter().all(|other| is_settled(&other))
            && !self.history.purges.iter().any(|purge| may_purge(&purge))
            && !self.history.lives.iter().any(|life| lost_purges(&life));
        is_there.then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(began: Time, recovered: u64) -> StoreLife {
        let (purges_lost, segment_count, whole_bytes_max) = (false, 10, 4096);
        StoreLife { began, after: LifeEnd::Process, recovered, purges_lost, segment_count, whole_bytes_max }
    }

    fn put(history: &mut StoreHistory, number: u32, began: Time, ended: Time, sequence: u64) {
        let outcome = VersionFate::Accepted { sequence, is_admitted: true };
        let life = history.lives.len() - 1;
        history.versions.push(KeyVersion {
            key: 1,
            number,
            content: number,
            length: 10,
            tags: 1,
            began,
            ended: Some(ended),
            outcome,
            is_fill: false,
            life,
            head: Some(1),
        });
    }

    fn get(history: &mut StoreHistory, began: Time, ended: Time, seen: Option<(u32, u64)>) {
        let life = history.lives.len() - 1;
        let seen = seen.map(|(version, sequence)| ObservedVersion { version, sequence });
        history.gets.push(RecordedGet { key: 1, began, ended, life, seen, follows: false, may_miss: false, head: 1 });
    }

    fn purge(history: &mut StoreHistory, scope: PurgedObjects, began: Time, ended: Time) {
        history.purges.push(RecordedPurge { scope, began, ended: Some(ended), is_good: true });
    }

    /// A history of two versions, of which the second replaced the first.
    fn replaced() -> StoreHistory {
        let mut history = StoreHistory { lives: vec![life(0, 0)], ..StoreHistory::default() };
        put(&mut history, 1, 1, 2, 5);
        put(&mut history, 2, 3, 4, 6);
        history
    }

    fn broken(history: &StoreHistory) -> String {
        history.check().broken.join("; ")
    }

    /// A get that began before the replacement may still see the old version.
    #[test]
    fn replaced_version_is_detected() {
        let mut history = replaced();
        get(&mut history, 3, 9, Some((1, 5)));
        assert_eq!(broken(&history), "");
        get(&mut history, 10, 11, Some((1, 5)));
        assert!(broken(&history).contains("replaced by 2"), "{}", broken(&history));
    }

    #[test]
    fn fill_that_replaces_newer_is_noticed() {
        let mut history = replaced();
        history.versions[0].ended = Some(9);
        history.versions[0].outcome = VersionFate::Accepted { sequence: 7, is_admitted: true };
        assert_eq!(broken(&history), "", "puts that overlap have any order");
        history.versions[0].is_fill = true;
        assert!(broken(&history).contains("version 1 replaced 2"), "{}", broken(&history));
        history.versions[0].began = 3;
        assert_eq!(broken(&history), "", "version 2 did not begin later");
    }

    #[test]
    fn consecutive_gets_never_go_back() {
        let mut history = replaced();
        history.versions[1].ended = None;
        history.versions[1].outcome = VersionFate::Unknown;
        get(&mut history, 5, 6, Some((2, 6)));
        get(&mut history, 7, 8, Some((1, 5)));
        assert!(broken(&history).contains("after 2 was seen"), "{}", broken(&history));
    }

    /// A crash may lose what came after the recovered sequence; what is lost once stays lost.
    #[test]
    fn crash_loss_is_permanent() {
        let mut history = replaced();
        history.lives.push(life(10, 5));
        get(&mut history, 11, 12, Some((1, 5)));
        assert_eq!(broken(&history), "");
        get(&mut history, 13, 14, Some((2, 6)));
        assert!(broken(&history).contains("came back"), "{}", broken(&history));
        history.lives[1].recovered = 6;
        assert!(broken(&history).contains("replaced by 2"), "{}", broken(&history));
        history.told.push(ReportedSequences { at: 9, written: 7, flushed: 0 });
        assert!(broken(&history).contains("was promised"), "{}", broken(&history));
        history.lives[1].after = LifeEnd::Power;
        assert!(!broken(&history).contains("was promised"), "{}", broken(&history));
    }

    /// An unadmitted version hides the one it replaced, unless a crash recovered to before it.
    #[test]
    fn unadmitted_version_hides_replaced_one() {
        let mut history = replaced();
        history.versions[1].outcome = VersionFate::Accepted { sequence: 6, is_admitted: false };
        history.lives.push(life(10, 5));
        get(&mut history, 11, 12, Some((1, 5)));
        assert_eq!(broken(&history), "", "the segment of version 1 was reclaimed, and not overwritten yet");
        history.lives[1].recovered = 6;
        assert!(broken(&history).contains("replaced by 2"), "{}", broken(&history));
        history.gets[0].seen = None;
        assert_eq!(broken(&history), "", "version 2 was in memory alone");
    }

    /// A get that returns a purged, refused or unknown version is an error.
    #[test]
    fn purged_or_unknown_versions_detected() {
        for scope in [PurgedObjects::Name(0), PurgedObjects::Tag(0), PurgedObjects::Prefix(0), PurgedObjects::All] {
            let mut history = replaced();
            purge(&mut history, scope, 5, 6);
            get(&mut history, 5, 9, Some((2, 6)));
            assert_eq!(broken(&history), "");
            get(&mut history, 7, 9, Some((2, 6)));
            assert!(broken(&history).contains("was purged"), "{}", broken(&history));
        }
        let mut history = replaced();
        history.versions[1].outcome = VersionFate::Refused;
        get(&mut history, 7, 8, Some((2, 6)));
        get(&mut history, 7, 8, Some((3, 6)));
        get(&mut history, 1, 2, Some((2, 6)));
        let broken = broken(&history);
        assert!(broken.contains("was refused") && broken.contains("never put") && broken.contains("not begun"));
    }

    #[test]
    fn a_miss_needs_a_reason() {
        let mut history = replaced();
        get(&mut history, 5, 6, None);
        assert!(broken(&history).contains("version 2 should be there"));
        let mut purged = history.clone();
        purge(&mut purged, PurgedObjects::Tag(0), 5, 9);
        assert_eq!(broken(&purged), "");
        purge(&mut history, PurgedObjects::Tag(3), 5, 9);
        assert!(!broken(&history).is_empty(), "no version has that tag");
        history.gets[0].head = 8;
        assert_eq!(broken(&history), "", "the ring came by");
        let mut lost = replaced();
        lost.lives.push(life(10, 5));
        get(&mut lost, 11, 12, None);
        assert_eq!(broken(&lost), "", "a crash took version 2");
    }

    #[test]
    fn insufficient_sync_is_detected() {
        let mut history = replaced();
        history.syncs.push(RecordedSync { at: 5, wanted: 6, flushed: 6 });
        assert_eq!(broken(&history), "");
        history.syncs.push(RecordedSync { at: 6, wanted: 6, flushed: 5 });
        assert!(broken(&history).contains("0x5 flushed, not 0x6"), "{}", broken(&history));
    }

    #[test]
    fn cut_history_leaves_operations_open() {
        let history = replaced().until(3);
        assert_eq!((history.versions[0].ended, history.versions[1].ended), (Some(2), None));
        assert_eq!(history.versions[1].outcome, VersionFate::Unknown);
    }
}
