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
pub enum Outcome {
    /// The caller got no answer.
    Unknown,
    /// It was accepted.
    Accepted { sequence: u64, is_admitted: bool },
    /// It was refused, or its writer abandoned it.
    Refused,
}

/// A version of a key.
#[derive(Debug, Clone)]
pub struct Version {
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
    pub outcome: Outcome,
    /// Whether a fill stores it.
    pub is_fill: bool,
    /// The life in which its put or fill began.
    pub life: usize,
    /// The segment epoch that was being written when it began; `None` if part of it is older.
    pub head: Option<u64>,
}

/// The objects that a purge covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// All variants of a name.
    Name(u32),
    /// All names that begin with this one.
    Prefix(u32),
    Tag(u32),
    All,
}

#[derive(Debug, Clone)]
pub struct Purge {
    pub scope: Scope,
    pub began: Time,
    pub ended: Option<Time>,
    /// Whether the purge was made durable.
    pub is_good: bool,
}

/// The version that a get saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub version: u32,
    pub sequence: u64,
}

#[derive(Debug, Clone)]
pub struct Get {
    pub key: u32,
    pub began: Time,
    pub ended: Time,
    pub life: usize,
    pub seen: Option<Seen>,
    /// Whether it read a fill in progress, whose object need not be stored.
    pub follows: bool,
    /// Whether a miss needs no explanation, because the get looked only in memory.
    pub may_miss: bool,
    /// The segment epoch that was being written when it ended.
    pub head: u64,
}

/// The end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process was killed, or stopped.
    Process,
    /// The process was killed, and then the purge log was truncated.
    LogCut,
    Power,
}

/// The time from one opening of the store to the next.
#[derive(Debug, Clone)]
pub struct Life {
    pub began: Time,
    /// The end of the previous life.
    pub after: End,
    /// The sequence up to which the store reports that it has recovered everything.
    pub recovered: u64,
    /// Whether the store reports lost purge records. If so, all objects put before this life count as purged.
    pub purges_lost: bool,
    pub segment_count: u64,
    pub whole_bytes_max: u64,
}

/// The sequences that the store reported at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    pub at: Time,
    pub written: u64,
    pub flushed: u64,
}

/// A sync that returned.
#[derive(Debug, Clone, Copy)]
pub struct Synced {
    pub at: Time,
    /// The highest sequence that was accepted before the sync began.
    pub wanted: u64,
    /// The flushed sequence that the sync returned.
    pub flushed: u64,
}

/// Everything that happened.
#[derive(Debug, Clone, Default)]
pub struct History {
    pub now: Time,
    pub versions: Vec<Version>,
    pub purges: Vec<Purge>,
    pub gets: Vec<Get>,
    pub lives: Vec<Life>,
    pub told: Vec<Told>,
    pub syncs: Vec<Synced>,
}

/// The outcome of a check.
#[derive(Debug, Default, Clone)]
pub struct Checked {
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

impl Scope {
    /// Whether a purge of this scope covers a version.
    pub fn covers(self, version: &Version) -> bool {
        match self {
            Scope::Name(name) => name_of(version.key) == name,
            Scope::Prefix(prefix) => name_of(version.key).to_string().starts_with(&prefix.to_string()),
            Scope::Tag(tag) => version.tags & 1 << tag != 0,
            Scope::All => true,
        }
    }
}

impl History {
    /// Advances the time by one event; returns the new time.
    pub fn tick(&mut self) -> Time {
        self.now += 1;
        self.now
    }

    /// Returns the history up to a moment, as a crash at that moment leaves it.
    pub fn until(&self, moment: Time) -> History {
        let ended = |ended: Option<Time>| ended.filter(|&ended| ended <= moment);
        let versions = self.versions.iter().filter(|version| version.began <= moment).map(|version| {
            let ended = ended(version.ended);
            let outcome = if ended.is_some() { version.outcome } else { Outcome::Unknown };
            Version { ended, outcome, ..version.clone() }
        });
        let purges = self.purges.iter().filter(|purge| purge.began <= moment);
        let purges = purges.map(|purge| Purge { ended: ended(purge.ended), ..purge.clone() });
        History {
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
    pub fn check(&self) -> Checked {
        self.check_from(0)
    }

    /// Compares only the answers after a moment with the possible ones.
    pub fn check_from(&self, moment: Time) -> Checked {
        let mut checked = Checked::default();
        for (number, life) in self.lives.iter().enumerate().skip(1).filter(|(_, life)| life.began > moment) {
            // A power cut since then may have lost a written version, but not a flushed one.
            let before = self.lives[number - 1].began;
            let survives = |told: &Told| match life.after != End::Power && told.at > before {
                true => told.written,
                false => told.flushed,
            };
            if life.purges_lost && life.after != End::LogCut {
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
        let is_short = |synced: &&Synced| synced.at > moment && synced.flushed < synced.wanted;
        for Synced { at, wanted, flushed } in self.syncs.iter().filter(is_short) {
            checked.broken.push(format!("a sync ended at {at} with {flushed:#x} flushed, not {wanted:#x}"));
        }
        let gets = self.gets.iter().map(|get| get.key);
        let mut keys: Vec<u32> = gets.chain(self.versions.iter().map(|version| version.key)).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            Register::of(self, key).check(moment, &mut checked);
        }
        checked
    }
}

/// The history of one key.
struct Register<'a> {
    history: &'a History,
    versions: Vec<&'a Version>,
    gets: Vec<&'a Get>,
}

impl<'a> Register<'a> {
    fn of(history: &'a History, key: u32) -> Register<'a> {
        let versions = history.versions.iter().filter(|version| version.key == key).collect();
        let gets = history.gets.iter().filter(|get| get.key == key).collect();
        Register { history, versions, gets }
    }

    fn check(&self, moment: Time, checked: &mut Checked) {
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
    fn replaced_newer(&self, fill: &Version) -> Option<&'a Version> {
        let Outcome::Accepted { sequence, .. } = fill.outcome else { return None };
        let is_replaced = |other: &&&Version| {
            other.began > fill.began
                && matches!(other.outcome, Outcome::Accepted { sequence: own, .. } if own < sequence)
        };
        self.versions.iter().filter(|_| fill.is_fill).find(is_replaced).copied()
    }

    fn version(&self, number: u32) -> Option<&'a Version> {
        self.versions.iter().copied().find(|version| version.number == number)
    }

    /// A version's position in the order of all versions, if known.
    fn sequence(&self, version: &Version) -> Option<u64> {
        match version.outcome {
            Outcome::Accepted { sequence, .. } => Some(sequence),
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
    fn survives(&self, version: &Version, life: usize) -> bool {
        version.life == life
            || (!matches!(version.outcome, Outcome::Accepted { is_admitted: false, .. }) && self.hides(version, life))
    }

    /// Whether the version that `newer` replaced stays hidden in a life: no crash up to that life lost `newer`. If
    /// `newer` was not admitted, it replaced nothing on the disk; then an already reclaimed version can reappear if the
    /// segment that was going to overwrite it was not written before a crash.
    fn hides(&self, newer: &Version, life: usize) -> bool {
        let Some(sequence) = self.sequence(newer) else { return newer.life == life };
        let lives = self.history.lives.get(newer.life + 1..=life).unwrap_or_default();
        lives.iter().all(|life| sequence <= life.recovered)
    }

    fn hit(&self, at: usize, get: &Get, seen: Seen) -> Option<String> {
        let Some(version) = self.version(seen.version) else {
            return Some(format!("version {} was never put", seen.version));
        };
        let number = version.number;
        if get.ended < version.began {
            return Some(format!("version {number} had not begun"));
        }
        let is_purge = |purge: &&Purge| purge.is_good && purge.scope.covers(version);
        let was_before = |purge: &&Purge| version.began < purge.began && purge.ended.is_some_and(|end| end < get.began);
        if let Some(purge) = self.history.purges.iter().filter(is_purge).find(was_before) {
            return Some(format!("version {number} was purged ({:?}) from {} on", purge.scope, purge.began));
        }
        let lost_purges = |life: &&Life| life.purges_lost && version.began < life.began && life.began < get.began;
        if self.history.lives.iter().any(|life| lost_purges(&life)) {
            return Some(format!("version {number} is older than purges that were lost"));
        }
        if get.follows {
            return None;
        }
        if version.outcome == Outcome::Refused {
            return Some(format!("version {number} was refused"));
        }
        let own = self.sequence(version).unwrap_or(seen.sequence);
        for newer in &self.versions {
            let is_newer = matches!(newer.outcome, Outcome::Accepted { sequence, .. } if sequence > own);
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
    fn must_hit(&self, get: &Get) -> Option<&'a Version> {
        if get.may_miss || get.follows {
            return None;
        }
        let before = |version: &&&Version| {
            matches!(version.outcome, Outcome::Accepted { .. }) && version.ended.is_some_and(|ended| ended < get.began)
        };
        let newest = self.versions.iter().filter(before).max_by_key(|version| self.sequence(version)).copied()?;
        let Outcome::Accepted { sequence, is_admitted: true } = newest.outcome else { return None };
        let is_settled = |other: &&&Version| {
            other.number == newest.number
                || other.began > get.ended
                || match other.outcome {
                    Outcome::Accepted { sequence: older, .. } => {
                        older < sequence && other.ended.is_some_and(|ended| ended < get.began)
                    }
                    Outcome::Refused => true,
                    Outcome::Unknown => false,
                }
        };
        let may_purge = |purge: &&Purge| {
            // A purge of a tag that the newest version does not have does not explain the miss.
            purge.scope.covers(newest)
                && purge.began < get.ended
                && purge.ended.is_none_or(|ended| ended > newest.began)
        };
        let lost_purges = |life: &&Life| life.purges_lost && newest.began < life.began && life.began < get.ended;
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

    fn life(began: Time, recovered: u64) -> Life {
        let (purges_lost, segment_count, whole_bytes_max) = (false, 10, 4096);
        Life { began, after: End::Process, recovered, purges_lost, segment_count, whole_bytes_max }
    }

    fn put(history: &mut History, number: u32, began: Time, ended: Time, sequence: u64) {
        let outcome = Outcome::Accepted { sequence, is_admitted: true };
        let life = history.lives.len() - 1;
        history.versions.push(Version {
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

    fn get(history: &mut History, began: Time, ended: Time, seen: Option<(u32, u64)>) {
        let life = history.lives.len() - 1;
        let seen = seen.map(|(version, sequence)| Seen { version, sequence });
        history.gets.push(Get { key: 1, began, ended, life, seen, follows: false, may_miss: false, head: 1 });
    }

    fn purge(history: &mut History, scope: Scope, began: Time, ended: Time) {
        history.purges.push(Purge { scope, began, ended: Some(ended), is_good: true });
    }

    /// A history of two versions, of which the second replaced the first.
    fn replaced() -> History {
        let mut history = History { lives: vec![life(0, 0)], ..History::default() };
        put(&mut history, 1, 1, 2, 5);
        put(&mut history, 2, 3, 4, 6);
        history
    }

    fn broken(history: &History) -> String {
        history.check().broken.join("; ")
    }

    #[test]
    fn what_was_replaced_is_found_out_unless_the_get_began_before() {
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
        history.versions[0].outcome = Outcome::Accepted { sequence: 7, is_admitted: true };
        assert_eq!(broken(&history), "", "puts that overlap have any order");
        history.versions[0].is_fill = true;
        assert!(broken(&history).contains("version 1 replaced 2"), "{}", broken(&history));
        history.versions[0].began = 3;
        assert_eq!(broken(&history), "", "version 2 did not begin later");
    }

    #[test]
    fn gets_one_after_the_other_do_not_go_back() {
        let mut history = replaced();
        history.versions[1].ended = None;
        history.versions[1].outcome = Outcome::Unknown;
        get(&mut history, 5, 6, Some((2, 6)));
        get(&mut history, 7, 8, Some((1, 5)));
        assert!(broken(&history).contains("after 2 was seen"), "{}", broken(&history));
    }

    #[test]
    fn a_crash_may_lose_what_came_after_the_recovered_sequence_for_good() {
        let mut history = replaced();
        history.lives.push(life(10, 5));
        get(&mut history, 11, 12, Some((1, 5)));
        assert_eq!(broken(&history), "");
        get(&mut history, 13, 14, Some((2, 6)));
        assert!(broken(&history).contains("came back"), "{}", broken(&history));
        history.lives[1].recovered = 6;
        assert!(broken(&history).contains("replaced by 2"), "{}", broken(&history));
        history.told.push(Told { at: 9, written: 7, flushed: 0 });
        assert!(broken(&history).contains("was promised"), "{}", broken(&history));
        history.lives[1].after = End::Power;
        assert!(!broken(&history).contains("was promised"), "{}", broken(&history));
    }

    #[test]
    fn what_was_not_admitted_hides_what_it_replaced_unless_a_crash_went_back_before_it() {
        let mut history = replaced();
        history.versions[1].outcome = Outcome::Accepted { sequence: 6, is_admitted: false };
        history.lives.push(life(10, 5));
        get(&mut history, 11, 12, Some((1, 5)));
        assert_eq!(broken(&history), "", "the segment of version 1 was reclaimed, and not overwritten yet");
        history.lives[1].recovered = 6;
        assert!(broken(&history).contains("replaced by 2"), "{}", broken(&history));
        history.gets[0].seen = None;
        assert_eq!(broken(&history), "", "version 2 was in memory alone");
    }

    #[test]
    fn purged_refused_and_unknown_versions_are_found_out() {
        for scope in [Scope::Name(0), Scope::Tag(0), Scope::Prefix(0), Scope::All] {
            let mut history = replaced();
            purge(&mut history, scope, 5, 6);
            get(&mut history, 5, 9, Some((2, 6)));
            assert_eq!(broken(&history), "");
            get(&mut history, 7, 9, Some((2, 6)));
            assert!(broken(&history).contains("was purged"), "{}", broken(&history));
        }
        let mut history = replaced();
        history.versions[1].outcome = Outcome::Refused;
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
        purge(&mut purged, Scope::Tag(0), 5, 9);
        assert_eq!(broken(&purged), "");
        purge(&mut history, Scope::Tag(3), 5, 9);
        assert!(!broken(&history).is_empty(), "no version has that tag");
        history.gets[0].head = 8;
        assert_eq!(broken(&history), "", "the ring came by");
        let mut lost = replaced();
        lost.lives.push(life(10, 5));
        get(&mut lost, 11, 12, None);
        assert_eq!(broken(&lost), "", "a crash took version 2");
    }

    #[test]
    fn sync_that_flushed_too_little_is_found_out() {
        let mut history = replaced();
        history.syncs.push(Synced { at: 5, wanted: 6, flushed: 6 });
        assert_eq!(broken(&history), "");
        history.syncs.push(Synced { at: 6, wanted: 6, flushed: 5 });
        assert!(broken(&history).contains("0x5 flushed, not 0x6"), "{}", broken(&history));
    }

    #[test]
    fn a_history_that_is_cut_leaves_operations_open() {
        let history = replaced().until(3);
        assert_eq!((history.versions[0].ended, history.versions[1].ended), (Some(2), None));
        assert_eq!(history.versions[1].outcome, Outcome::Unknown);
    }
}
