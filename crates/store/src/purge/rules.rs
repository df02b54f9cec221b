//! The rules that say which objects have been purged. They are in memory, and are checked at every hit.
//!
//! Owns: a set of live purge records, and the check whether an object of a generation falls under one of them. Leaves
//! to others: the log on disk (`log`), and the two sets of a store, which are of purges and of soft purges
//! (`purge_table`). A rule is valid from the moment it is added. It is dropped when there can be no object to which it
//! applies.
//!
//! A hit costs four atomic loads in the set of purges, and one in that of soft purges. There are 16,384 floors, one per
//! hash slot; each is the highest generation purged by key in that slot. Three more values are the highest generations
//! of purges of everything, by prefix and by tag. Only an object whose generation is at or below one of these values is
//! looked up in the exact table. An object older than the latest purge by prefix costs one hash of its key's beginning
//! per live prefix length that its key has and that was purged after it. An object older than the latest purge by tag costs one lookup per tag.
//!
//! A purge that removes a version by its key also removes all older versions. A purge by tag may leave older versions,
//! since these may have other tags. So [`PurgeVerdict`] distinguishes the two. If the newest version was purged by tag, a
//! reader must not return an older version instead.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::PurgeRecord;
use crate::names::key::{KeyHasher, PrimaryHash, hash_prefix};
use crate::names::tag::TagHash;
use crate::purge::records::{RULE_ALL, RULE_PREFIX, RULE_TAG, all_record, key_record, prefix_record, tag_record};

const FLOORS: usize = 1 << 14;
/// The largest number of different prefix lengths in live rules. Each length up to that of the key costs one hash at every
/// hit of an object that is older than the newest purge by a prefix of that length.
pub const PREFIX_LENGTHS_MAX: usize = 256;

/// The memory of a rule, in bytes.
pub(super) const RULE_BYTES: u64 = 96;
/// Rules take at most 1/`MEMORY_SHARE` of the memory budget, unless this is less than `RULES_MIN` rules.
const MEMORY_SHARE: u64 = 8;
/// At least this many rules are allowed, even if the memory budget is small.
const RULES_MIN: u64 = 4096;

/// The largest number of live rules under a memory budget.
pub fn rules_max(memory_bytes: u64) -> usize {
    (memory_bytes / MEMORY_SHARE / RULE_BYTES).max(RULES_MIN) as usize
}

#[derive(Debug, Clone, Copy)]
struct PurgeRule {
    generation: u64,
    position: u64,
    /// For a soft purge: the time since which the objects are stale, in seconds since 1970.
    since_s: u32,
}

/// The effect of purges on a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurgeVerdict {
    /// The version is not purged.
    Live,
    /// The version was softly purged: it is found, and is stale since this time, in seconds since 1970.
    Stale(u32),
    /// The version and all older ones are purged: by key, by prefix, or by a purge of everything.
    Key,
    /// The version is purged by one of its tags, but not by its key.
    Tag,
}

impl PurgeVerdict {
    /// Whether a get must not find the version.
    pub fn is_gone(self) -> bool {
        matches!(self, PurgeVerdict::Key | PurgeVerdict::Tag)
    }
}

/// Live purge records that have one effect.
pub struct RuleSet {
    floors: Box<[AtomicU64]>,
    rules: RwLock<PurgeRules>,
    all_below: AtomicU64,
    prefixes_below: AtomicU64,
    tags_below: AtomicU64,
    /// The highest generation of all rules, of whatever kind.
    any_below: AtomicU64,
    hash_seed: u64,
}

/// The rules by prefixes of one length, by the hash of the prefix.
#[derive(Default)]
struct OfLength {
    rules: HashMap<u128, PurgeRule, BuildHasherDefault<KeyHasher>>,
    /// The highest generation of these rules.
    newest: u64,
}

#[derive(Default)]
struct PurgeRules {
    keys: HashMap<u128, PurgeRule>,
    /// The rules by prefix: by the length of the prefix, then by its hash.
    prefixes: BTreeMap<u16, OfLength>,
    tags: HashMap<u64, PurgeRule>,
    all: Option<PurgeRule>,
    /// Whether a floor may be above 0.
    has_floors: bool,
}

impl PurgeRules {
    fn len(&self) -> usize {
        let prefixes = self.prefixes.values().map(|of| of.rules.len()).sum::<usize>();
        self.keys.len() + prefixes + self.tags.len() + usize::from(self.all.is_some())
    }

    /// The rules by prefix that apply to an object of this generation with this name.
    fn by_prefix(&self, hash_seed: u64, generation: u64, name: &[u8]) -> impl Iterator<Item = PurgeRule> {
        let longest = u16::try_from(name.len()).unwrap_or(u16::MAX);
        let newer = self.prefixes.range(..=longest).filter(move |(_, of)| generation <= of.newest);
        let rules = newer.filter_map(move |(&length, of)| {
            let hash = hash_prefix(hash_seed, &name[..usize::from(length)]);
            of.rules.get(&hash.0).copied()
        });
        rules.filter(move |rule| generation <= rule.generation)
    }

    /// Drops the rules by prefix that are not needed.
    fn retain_prefixes(&mut self, needed: impl Fn(&PurgeRule) -> bool) {
        self.prefixes.retain(|_, of| {
            of.rules.retain(|_, rule| needed(rule));
            of.newest = of.rules.values().map(|rule| rule.generation).max().unwrap_or(0);
            !of.rules.is_empty()
        });
    }
}

impl RuleSet {
    /// Makes an empty set for a store whose keys are hashed with `hash_seed`.
    pub fn new(hash_seed: u64) -> RuleSet {
        RuleSet {
            floors: (0..FLOORS).map(|_| AtomicU64::new(0)).collect(),
            rules: RwLock::new(PurgeRules::default()),
            all_below: AtomicU64::new(0),
            prefixes_below: AtomicU64::new(0),
            tags_below: AtomicU64::new(0),
            any_below: AtomicU64::new(0),
            hash_seed,
        }
    }

    /// The effect of purges on an object of this generation with these tags. `name` is the primary part of its key, and
    /// `primary` is the hash of `name`.
    pub fn verdict(&self, primary: PrimaryHash, generation: u64, name: &[u8], tags: &[TagHash]) -> PurgeVerdict {
        if self.is_purged_by_key(primary, generation, name) {
            return PurgeVerdict::Key;
        }
        if tags.is_empty() || generation > self.tags_below.load(Ordering::Acquire) {
            return PurgeVerdict::Live;
        }
        let rules = self.read();
        if self.is_below_all(generation) {
            PurgeVerdict::Key
        } else if tags.iter().any(|tag| rules.tags.get(&tag.0).is_some_and(|rule| generation <= rule.generation)) {
            PurgeVerdict::Tag
        } else {
            PurgeVerdict::Live
        }
    }

    /// The earliest time of the rules under which an object of this generation falls, with this name and these tags;
    /// `None` if there is none. *Cost*: one atomic load for an object that is newer than all rules.
    pub fn earliest(&self, primary: PrimaryHash, generation: u64, name: &[u8], tags: &[TagHash]) -> Option<u32> {
        if generation > self.any_below.load(Ordering::Acquire) {
            return None;
        }
        // A rule for everything takes the place of the other rules, so it is looked at last.
        let may_be = generation <= self.prefixes_below.load(Ordering::Acquire)
            || (!tags.is_empty() && generation <= self.tags_below.load(Ordering::Acquire))
            || generation <= self.floors[slot(primary)].load(Ordering::Acquire)
            || self.is_below_all(generation);
        if !may_be {
            return None;
        }
        let rules = self.read();
        let prefixes = rules.by_prefix(self.hash_seed, generation, name);
        let tags = tags.iter().filter_map(|tag| rules.tags.get(&tag.0).copied());
        let others = rules.keys.get(&primary.0).copied().into_iter().chain(rules.all);
        let applies = |rule: &PurgeRule| generation <= rule.generation;
        prefixes.chain(tags).chain(others).filter(applies).map(|rule| rule.since_s).min()
    }

    /// Forgets the rules that a purge of everything of this generation makes useless.
    pub fn forget_through(&self, generation: u64) {
        Self::forget_older(&mut self.write(), generation);
    }

    fn forget_older(rules: &mut PurgeRules, generation: u64) {
        let is_newer = |older: &PurgeRule| older.generation > generation;
        rules.keys.retain(|_, older| is_newer(older));
        rules.retain_prefixes(is_newer);
        rules.tags.retain(|_, older| is_newer(older));
        rules.all = rules.all.filter(|all| all.generation >= generation);
    }

    /// Whether a purge by tag may match an object of this generation whose tags are not known yet.
    pub fn may_be_purged_by_tag(&self, generation: u64) -> bool {
        generation <= self.tags_below.load(Ordering::Acquire)
    }

    /// Whether a purge of everything applies to this generation. Such a purge also removes the rules that it replaces:
    /// so a caller that finds no rule must check this again while it still has the lock of the rules.
    fn is_below_all(&self, generation: u64) -> bool {
        generation <= self.all_below.load(Ordering::Acquire)
    }

    /// Whether an object is purged by key, by prefix, or by a purge of everything. If `name` is empty, purges by prefix
    /// are ignored.
    pub fn is_purged_by_key(&self, primary: PrimaryHash, generation: u64, name: &[u8]) -> bool {
        if generation <= self.prefixes_below.load(Ordering::Acquire) && self.is_prefix_purged(generation, name) {
            return true;
        }
        let floor = self.floors[slot(primary)].load(Ordering::Acquire);
        if self.is_below_all(generation) {
            return true;
        }
        if generation > floor {
            return false;
        }
        let rules = self.read();
        self.is_below_all(generation) || rules.keys.get(&primary.0).is_some_and(|rule| generation <= rule.generation)
    }

    fn is_prefix_purged(&self, generation: u64, name: &[u8]) -> bool {
        self.read().by_prefix(self.hash_seed, generation, name).next().is_some()
    }

    /// Whether a rule for a prefix of this length may be added.
    pub fn has_room_for_prefix(&self, length: u16) -> bool {
        let rules = self.read();
        rules.prefixes.contains_key(&length) || rules.prefixes.len() < PREFIX_LENGTHS_MAX
    }

    /// Adds a rule, which is valid from now on. Returns false and adds nothing if there are already `most` rules and
    /// this one replaces none of them. A purge of everything always has room, because it replaces all other rules.
    pub fn try_add(&self, record: &PurgeRecord, most: u64) -> bool {
        let mut rules = self.write();
        let (count, hash) = (rules.len() as u64, record.primary_hash.get());
        let is_known = match record.rule {
            RULE_PREFIX => {
                rules.prefixes.get(&record.prefix_bytes.get()).is_some_and(|of| of.rules.contains_key(&hash))
            }
            RULE_TAG => rules.tags.contains_key(&(hash as u64)),
            RULE_ALL => true,
            _ => rules.keys.contains_key(&hash),
        };
        let has_room = record.rule == RULE_ALL || count < most || (count == most && is_known);
        if has_room {
            self.add_to(&mut rules, record);
        }
        has_room
    }

    /// Adds a rule; it is valid from now on.
    pub fn add(&self, record: &PurgeRecord) {
        self.add_to(&mut self.write(), record);
    }

    fn add_to(&self, rules: &mut PurgeRules, record: &PurgeRecord) {
        let (generation, position) = (record.generation.get(), record.position.get());
        let rule = PurgeRule { generation, position, since_s: record.since_s.get() };
        self.any_below.fetch_max(generation, Ordering::AcqRel);
        if record.rule == RULE_PREFIX {
            let of = rules.prefixes.entry(record.prefix_bytes.get()).or_default();
            of.newest = of.newest.max(rule.generation);
            let known = of.rules.entry(record.primary_hash.get()).or_insert(rule);
            if known.generation <= rule.generation {
                *known = rule;
            }
            self.prefixes_below.fetch_max(rule.generation, Ordering::AcqRel);
            return;
        }
        if record.rule == RULE_TAG {
            let known = rules.tags.entry(record.primary_hash.get() as u64).or_insert(rule);
            if known.generation <= rule.generation {
                *known = rule;
            }
            self.tags_below.fetch_max(rule.generation, Ordering::AcqRel);
            return;
        }
        if record.rule == RULE_ALL {
            if rules.all.is_none_or(|all| all.generation <= rule.generation) {
                rules.all = Some(rule);
            }
            self.all_below.fetch_max(rule.generation, Ordering::AcqRel);
            // Older rules have no effect any more.
            Self::forget_older(rules, rule.generation);
            return;
        }
        let primary = PrimaryHash(record.primary_hash.get());
        let known = rules.keys.entry(primary.0).or_insert(rule);
        if known.generation <= rule.generation {
            *known = rule;
        }
        self.floors[slot(primary)].fetch_max(rule.generation, Ordering::AcqRel);
        rules.has_floors = true;
    }

    /// Drops the rules that cannot match any object any more. Returns their number.
    ///
    /// `tail` is the oldest epoch that is not overwritten; `fill_generation_min` is the generation of the oldest
    /// running fill. A rule is kept for two more epochs than its position says. This margin covers an append that was
    /// packed before the purge and written after it, and one damaged header in the newest segment.
    pub fn retire(&self, tail: u64, fill_generation_min: u64) -> usize {
        let needed = |rule: &PurgeRule| rule.position + 2 >= tail || rule.generation >= fill_generation_min;
        let mut rules = self.write();
        let before = rules.len();
        rules.keys.retain(|_, rule| needed(rule));
        if rules.keys.capacity() / 4 > rules.keys.len() {
            rules.keys.shrink_to_fit();
        }
        rules.retain_prefixes(needed);
        let highest = rules.prefixes.values().map(|of| of.newest).max();
        self.prefixes_below.store(highest.unwrap_or(0), Ordering::Release);
        rules.tags.retain(|_, rule| needed(rule));
        let highest = rules.tags.values().map(|rule| rule.generation).max();
        self.tags_below.store(highest.unwrap_or(0), Ordering::Release);
        rules.all = rules.all.filter(needed);
        if rules.has_floors && rules.keys.is_empty() {
            rules.has_floors = false;
            // Until this loop has reset a floor, the floor is too high. A hit then takes one more lookup, in the table.
            // Floors are never too low, because rules are added under the same lock.
            self.floors.iter().for_each(|floor| floor.store(0, Ordering::Release));
        }
        if rules.len() == 0 {
            self.any_below.store(0, Ordering::Release);
        }
        before - rules.len()
    }

    /// Raises the positions of all rules with a higher generation than `generation` to at least `position`: objects
    /// that these rules purge will be written later than expected. Returns whether a rule was changed.
    pub fn raise(&self, generation: u64, position: u64) -> bool {
        let mut rules = self.write();
        let PurgeRules { keys, prefixes, tags, all, .. } = &mut *rules;
        let prefixes = prefixes.values_mut().flat_map(|of| of.rules.values_mut());
        let all = keys.values_mut().chain(prefixes).chain(tags.values_mut()).chain(all);
        let low = all.filter(|rule| rule.generation > generation && rule.position < position);
        low.map(|rule| rule.position = position).count() > 0
    }

    /// The number of rules that are needed because a running fill began before the purge. These rules are needed even
    /// after the whole ring has been overwritten; `fill_generation_min` is the generation of the oldest running fill.
    pub fn count_from(&self, fill_generation_min: u64) -> usize {
        let rules = self.read();
        let needed = |rule: &&PurgeRule| rule.generation >= fill_generation_min;
        let prefixes = rules.prefixes.values().flat_map(|of| of.rules.values());
        let all = rules.keys.values().chain(prefixes).chain(rules.tags.values()).chain(&rules.all);
        all.filter(needed).count()
    }

    /// The records of all live rules, with which a new cycle of the log begins.
    pub fn records(&self) -> Vec<PurgeRecord> {
        let rules = self.read();
        let of = |rule: &PurgeRule, record: PurgeRecord| PurgeRecord { since_s: rule.since_s.into(), ..record };
        let keys = rules
            .keys
            .iter()
            .map(|(&primary, rule)| of(rule, key_record(PrimaryHash(primary), rule.generation, rule.position)));
        let prefixes = rules.prefixes.iter().flat_map(|(&length, prefixes)| {
            prefixes.rules.iter().map(move |(&hash, rule)| {
                of(rule, prefix_record(PrimaryHash(hash), length, rule.generation, rule.position))
            })
        });
        let tags =
            rules.tags.iter().map(|(&tag, rule)| of(rule, tag_record(TagHash(tag), rule.generation, rule.position)));
        let all = rules.all.iter().map(|rule| of(rule, all_record(rule.generation, rule.position)));
        let mut records: Vec<PurgeRecord> = keys.chain(prefixes).chain(tags).chain(all).collect();
        records.sort_unstable_by_key(|record| record.generation.get());
        records
    }

    /// The number of live rules.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    fn read(&self) -> RwLockReadGuard<'_, PurgeRules> {
        self.rules.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, PurgeRules> {
        self.rules.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn slot(primary: PrimaryHash) -> usize {
    primary.0 as usize & (FLOORS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::purge::records::{PurgeEffect, record_with};

    #[test]
    fn key_purge_kills_older_generations() {
        let table = RuleSet::new(7);
        let (a, same_slot) = (PrimaryHash(5), PrimaryHash(5 + FLOORS as u128));
        table.add(&key_record(a, 10, 1));
        assert!(
            table.is_purged_by_key(a, 9, b"")
                && table.is_purged_by_key(a, 10, b"")
                && !table.is_purged_by_key(a, 11, b"")
        );
        assert!(!table.is_purged_by_key(same_slot, 9, b""));
        table.add(&key_record(a, 7, 1));
        assert!(table.is_purged_by_key(a, 10, b""), "an older record does not weaken a newer one");
    }

    #[test]
    fn prefix_purge_kills_older_matches() {
        let table = RuleSet::new(7);
        let prefix =
            |text: &str, generation| prefix_record(hash_prefix(7, text.as_bytes()), text.len() as u16, generation, 5);
        let purged = |name: &str, generation| table.is_purged_by_key(PrimaryHash(1), generation, name.as_bytes());
        table.add(&prefix("http://a/", 10));
        table.add(&prefix("http://a/b", 20));
        assert!(purged("http://a/", 10) && purged("http://a/x", 9) && purged("http://a/bc", 20));
        assert!(!purged("http://a/", 11) && !purged("http://a", 9) && !purged("http://b/", 9) && !purged("", 9));
        assert_eq!(table.len(), 2);
        let copy = RuleSet::new(7);
        table.records().iter().for_each(|record| copy.add(record));
        assert!(
            copy.is_purged_by_key(PrimaryHash(1), 20, b"http://a/bc")
                && !copy.is_purged_by_key(PrimaryHash(1), 20, b"http://a/c")
        );
        assert_eq!(table.retire(8, 15), 1);
        assert!(!purged("http://a/x", 9) && purged("http://a/bc", 20));
        table.retire(8, 21);
        assert!(!purged("http://a/bc", 20) && table.len() == 0);
    }

    /// A tag purge kills older generations with the tag, and differs from a purge by key.
    #[test]
    fn tag_purge_kills_older_generations() {
        let table = RuleSet::new(7);
        let (a, b, c) = (TagHash(1), TagHash(2), TagHash(3));
        let verdict = |table: &RuleSet, generation, tags: &[TagHash]| {
            table.verdict(PrimaryHash(1), generation, b"http://a/", tags)
        };
        assert!(!table.may_be_purged_by_tag(1));
        table.add(&tag_record(a, 10, 5));
        table.add(&tag_record(b, 20, 5));
        table.add(&tag_record(b, 15, 5));
        let copy = RuleSet::new(7);
        table.records().iter().for_each(|record| copy.add(record));
        for table in [&table, &copy] {
            assert_eq!(verdict(table, 10, &[a]), PurgeVerdict::Tag);
            assert_eq!(verdict(table, 11, &[a]), PurgeVerdict::Live);
            assert_eq!(verdict(table, 20, &[a, b, c]), PurgeVerdict::Tag);
            assert_eq!((verdict(table, 1, &[c]), verdict(table, 1, &[])), (PurgeVerdict::Live, PurgeVerdict::Live));
            assert!(table.may_be_purged_by_tag(20) && !table.may_be_purged_by_tag(21));
            assert_eq!(table.len(), 2);
        }
        copy.add(&key_record(PrimaryHash(1), 12, 5));
        assert_eq!((verdict(&copy, 9, &[a]), verdict(&copy, 13, &[b])), (PurgeVerdict::Key, PurgeVerdict::Tag));
        table.retire(8, 15);
        assert_eq!((verdict(&table, 9, &[a]), verdict(&table, 9, &[b])), (PurgeVerdict::Live, PurgeVerdict::Tag));
        table.add(&all_record(100, 6));
        assert_eq!((verdict(&table, 9, &[c]), table.len()), (PurgeVerdict::Key, 1));
        assert!(!table.may_be_purged_by_tag(101));
    }

    #[test]
    fn prefixes_of_all_lengths_purge() {
        let (table, name) = (RuleSet::new(7), [b'a'; 300]);
        let is_purged = |generation, name: &[u8]| table.is_purged_by_key(PrimaryHash(1), generation, name);
        for length in 1..=200_u16 {
            let hash = hash_prefix(7, &name[..usize::from(length)]);
            table.add(&prefix_record(hash, length, 10 + u64::from(length), 5 + u64::from(length > 100)));
        }
        assert!(is_purged(210, &name) && !is_purged(211, &name));
        assert!(is_purged(60, &name[..50]) && !is_purged(61, &name[..50]), "a key has no longer prefix than itself");
        assert!(!is_purged(1, b"b") && !is_purged(1, b""));
        assert_eq!(table.retire(8, u64::MAX), 100);
        assert!(is_purged(210, &name) && !is_purged(1, &name[..100]) && is_purged(111, &name[..101]));
    }

    #[test]
    fn different_lengths_of_prefixes_are_bounded() {
        let table = RuleSet::new(7);
        for length in 1..=PREFIX_LENGTHS_MAX as u16 {
            assert!(table.has_room_for_prefix(length));
            table.add(&prefix_record(PrimaryHash(1), length, 10, 5));
        }
        assert!(table.has_room_for_prefix(1) && !table.has_room_for_prefix(1000));
    }

    /// A rule lives until its segments are overwritten and older fills have ended.
    #[test]
    fn rule_outlives_segments_and_fills() {
        let table = RuleSet::new(7);
        table.add(&key_record(PrimaryHash(1), 10, 5));
        assert_eq!(table.retire(7, u64::MAX), 0);
        assert_eq!(table.retire(8, 10), 0);
        assert!(table.is_purged_by_key(PrimaryHash(1), 3, b""));
        assert_eq!(table.retire(8, 11), 1);
        assert!(!table.is_purged_by_key(PrimaryHash(1), 3, b""));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn no_floor_outlives_key_rules() {
        let table = RuleSet::new(7);
        let floor = || table.floors.iter().map(|floor| floor.load(Ordering::Acquire)).max();
        table.add(&key_record(PrimaryHash(1), 10, 5));
        assert_eq!(floor(), Some(10));
        table.add(&all_record(20, 5));
        assert_eq!(table.retire(7, 30), 0);
        assert_eq!(floor(), Some(0));
        table.add(&tag_record(TagHash(1), 21, 5));
        table.add(&prefix_record(PrimaryHash(1), 9, 22, 5));
        table.add(&key_record(PrimaryHash(1), 23, 5));
        assert_eq!((table.retire(8, 23), table.len(), floor()), (3, 1, Some(23)), "rules of all kinds are counted");
        assert_eq!((table.retire(8, 30), table.len(), floor()), (1, 0, Some(0)));
    }

    /// Rules are bounded; one purge of everything replaces all of them.
    #[test]
    fn bounded_rules_become_purge_all() {
        let table = RuleSet::new(7);
        let add = |key: u128, generation| table.try_add(&key_record(PrimaryHash(key), generation, 5), 500);
        assert!((0..500).all(|key| add(key, 10 + key as u64)));
        assert!(!add(900, 600) && !table.try_add(&tag_record(TagHash(1), 600, 5), 500));
        assert!(!table.is_purged_by_key(PrimaryHash(900), 1, b""), "what is refused purges nothing");
        assert!(add(3, 700), "a rule that is there takes no more room");
        assert_eq!((table.len(), table.count_from(509), table.count_from(1000)), (500, 2, 0));
        assert!(!table.try_add(&key_record(PrimaryHash(3), 800, 5), 499), "unless there are too many");
        assert!(table.try_add(&all_record(1000, 6), 500));
        assert_eq!(table.len(), 1);
        assert!(table.is_purged_by_key(PrimaryHash(3), 13, b"") && table.is_purged_by_key(PrimaryHash(900), 1000, b""));
        assert!(!table.is_purged_by_key(PrimaryHash(3), 1001, b""));
    }

    /// A purged object stays purged while a purge of everything replaces its rule.
    #[test]
    fn purge_holds_during_rule_replacement() {
        let hash = hash_prefix(7, b"http://a/");
        let rules = [
            ("key", key_record(PrimaryHash(1), 10, 5), PurgeVerdict::Key),
            ("tag", tag_record(TagHash(1), 10, 5), PurgeVerdict::Tag),
            ("prefix", prefix_record(hash, 9, 10, 5), PurgeVerdict::Key),
        ];
        for (rule, record, before) in rules {
            for _ in 0..2000 {
                let table = RuleSet::new(7);
                table.add(&record);
                std::thread::scope(|scope| {
                    let looking = scope.spawn(|| {
                        loop {
                            match table.verdict(PrimaryHash(1), 9, b"http://a/b", &[TagHash(1)]) {
                                PurgeVerdict::Live => return false,
                                // Only the rules show whether this verdict is from the purge of everything.
                                PurgeVerdict::Key if table.len() == 1 && table.read().all.is_some() => return true,
                                verdict => assert!(verdict == before || verdict == PurgeVerdict::Key),
                            }
                        }
                    });
                    table.add(&all_record(20, 6));
                    assert!(looking.join().unwrap(), "purged by {rule}, and found");
                });
            }
        }
    }

    #[test]
    fn earliest_rule_that_applies_counts() {
        let table = RuleSet::new(7);
        let soft = |record, since_s| record_with(record, PurgeEffect::Soft { since_s });
        let earliest = |table: &RuleSet, generation, tags: &[TagHash]| {
            table.earliest(PrimaryHash(1), generation, b"http://a/b", tags)
        };
        assert_eq!(earliest(&table, 1, &[TagHash(1)]), None);
        table.add(&soft(key_record(PrimaryHash(1), 10, 5), 1000));
        table.add(&soft(tag_record(TagHash(1), 20, 5), 900));
        table.add(&soft(prefix_record(hash_prefix(7, b"http://a/"), 9, 30, 5), 1200));
        let copy = RuleSet::new(7);
        table.records().iter().for_each(|record| copy.add(record));
        for table in [&table, &copy] {
            assert_eq!(earliest(table, 10, &[]), Some(1000));
            assert_eq!(earliest(table, 10, &[TagHash(1)]), Some(900));
            assert_eq!((earliest(table, 11, &[TagHash(2)]), earliest(table, 31, &[TagHash(1)])), (Some(1200), None));
            assert_eq!(table.earliest(PrimaryHash(2), 9, b"http://b/", &[]), None);
        }
        table.add(&soft(all_record(40, 6), 1300));
        assert_eq!(
            (earliest(&table, 10, &[TagHash(1)]), earliest(&table, 41, &[]), table.len()),
            (Some(1300), None, 1)
        );
        assert_eq!((table.retire(9, 41), earliest(&table, 10, &[])), (1, None));
    }

    #[test]
    fn lost_records_purge_everything_older() {
        let table = RuleSet::new(7);
        table.add(&all_record(100, 1));
        assert_eq!(table.records().len(), 1);
        assert!(table.is_purged_by_key(PrimaryHash(1), 100, b"") && !table.is_purged_by_key(PrimaryHash(1), 101, b""));
    }
}
