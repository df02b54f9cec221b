//! Which objects have been purged: the rules in memory, asked at every hit.
//!
//! Owns: the table of live purge records and the question "is an object of this generation gone?". Leaves to others: the
//! log on disk (`purge_log`). A rule holds from the moment it is added, and is dropped when nothing it could apply to can
//! exist any more.
//!
//! A hit costs one atomic load: 16,384 floors, one for each hash slot, hold the highest generation purged there, and only
//! an object below its floor looks into the exact table.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::PurgeRecord;
use crate::key::PrimaryHash;

const FLOORS: usize = 1 << 14;
/// The rule "purge by key" on disk.
pub const RULE_KEY: u8 = 1;
/// The rule "purge everything" on disk.
pub const RULE_ALL: u8 = 4;

#[derive(Debug, Clone, Copy)]
struct Rule {
    generation: u64,
    position: u64,
}

/// The live purge records.
pub struct PurgeTable {
    floors: Box<[AtomicU64]>,
    rules: Mutex<Rules>,
    all_below: AtomicU64,
}

#[derive(Default)]
struct Rules {
    keys: HashMap<u128, Rule>,
    all: Option<Rule>,
}

impl PurgeTable {
    /// Makes an empty table.
    pub fn new() -> PurgeTable {
        PurgeTable {
            floors: (0..FLOORS).map(|_| AtomicU64::new(0)).collect(),
            rules: Mutex::new(Rules::default()),
            all_below: AtomicU64::new(0),
        }
    }

    /// Whether an object under `primary` whose fill began at `generation` has been purged.
    pub fn is_purged(&self, primary: PrimaryHash, generation: u64) -> bool {
        let floor = self.floors[slot(primary)].load(Ordering::Acquire);
        if generation > floor && generation > self.all_below.load(Ordering::Acquire) {
            return false;
        }
        generation <= self.all_below.load(Ordering::Acquire)
            || self.lock().keys.get(&primary.0).is_some_and(|rule| generation <= rule.generation)
    }

    /// Adds a rule; it holds from now on.
    pub fn add(&self, record: &PurgeRecord) {
        let rule = Rule { generation: record.generation.get(), position: record.position.get() };
        let mut rules = self.lock();
        if record.rule == RULE_ALL {
            if rules.all.is_none_or(|all| all.generation <= rule.generation) {
                rules.all = Some(rule);
            }
            self.all_below.fetch_max(rule.generation, Ordering::AcqRel);
            return;
        }
        let primary = PrimaryHash(record.primary_hash.get());
        let known = rules.keys.entry(primary.0).or_insert(rule);
        if known.generation <= rule.generation {
            *known = rule;
        }
        self.floors[slot(primary)].fetch_max(rule.generation, Ordering::AcqRel);
    }

    /// Drops rules that nothing on disk can fall under any more.
    ///
    /// `tail` is the oldest incarnation not overwritten; `fill_generation_min` the generation of the oldest fill under
    /// way. The margin of two incarnations covers an append packed before a purge and written after it, and one damaged
    /// header in the newest segment.
    pub fn retire(&self, tail: u64, fill_generation_min: u64) -> usize {
        let needed = |rule: &Rule| rule.position + 2 >= tail || rule.generation >= fill_generation_min;
        let mut rules = self.lock();
        let before = rules.keys.len();
        rules.keys.retain(|_, rule| needed(rule));
        let retired = before - rules.keys.len();
        rules.all = rules.all.filter(needed);
        if retired > 0 && rules.keys.is_empty() {
            // Floors may stay too high for a moment (a look into the table), never too low: rules are added under the
            // same lock.
            self.floors.iter().for_each(|floor| floor.store(0, Ordering::Release));
        }
        retired
    }

    /// Replaces all rules by one that purges everything up to `generation`, which is above all of theirs.
    pub fn collapse(&self, generation: u64, position: u64) {
        self.add(&all_record(generation, position));
        self.lock().keys.retain(|_, rule| rule.generation > generation);
    }

    /// The live records, for a snapshot of the log.
    pub fn records(&self) -> Vec<PurgeRecord> {
        let rules = self.lock();
        let keys = rules.keys.iter().map(|(&primary, rule)| record(RULE_KEY, primary, rule.generation, rule.position));
        let all = rules.all.iter().map(|rule| record(RULE_ALL, 0, rule.generation, rule.position));
        let mut records: Vec<PurgeRecord> = keys.chain(all).collect();
        records.sort_unstable_by_key(|record| record.generation.get());
        records
    }

    /// How many rules are live.
    pub fn len(&self) -> usize {
        let rules = self.lock();
        rules.keys.len() + usize::from(rules.all.is_some())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The record of a purge by key.
pub fn key_record(primary: PrimaryHash, generation: u64, position: u64) -> PurgeRecord {
    record(RULE_KEY, primary.0, generation, position)
}

/// The record of a purge of everything up to `generation`: asked for, or what is right when records were lost.
pub fn all_record(generation: u64, position: u64) -> PurgeRecord {
    record(RULE_ALL, 0, generation, position)
}

fn record(rule: u8, primary: u128, generation: u64, position: u64) -> PurgeRecord {
    PurgeRecord {
        rule,
        reserved: [0; 7],
        generation: generation.into(),
        position: position.into(),
        primary_hash: primary.into(),
    }
}

fn slot(primary: PrimaryHash) -> usize {
    primary.0 as usize & (FLOORS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_kills_older_generations_of_its_key_alone() {
        let table = PurgeTable::new();
        let (a, same_slot) = (PrimaryHash(5), PrimaryHash(5 + FLOORS as u128));
        table.add(&key_record(a, 10, 1));
        assert!(table.is_purged(a, 9) && table.is_purged(a, 10) && !table.is_purged(a, 11));
        assert!(!table.is_purged(same_slot, 9));
        table.add(&key_record(a, 7, 1));
        assert!(table.is_purged(a, 10), "an older record does not weaken a newer one");
    }

    #[test]
    fn rule_is_kept_until_its_segments_are_overwritten_and_older_fills_have_ended() {
        let table = PurgeTable::new();
        table.add(&key_record(PrimaryHash(1), 10, 5));
        assert_eq!(table.retire(7, u64::MAX), 0);
        assert_eq!(table.retire(8, 10), 0);
        assert!(table.is_purged(PrimaryHash(1), 3));
        assert_eq!(table.retire(8, 11), 1);
        assert!(!table.is_purged(PrimaryHash(1), 3));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn rules_that_no_log_has_room_for_become_a_purge_of_everything() {
        let table = PurgeTable::new();
        (0..500).for_each(|key| table.add(&key_record(PrimaryHash(key), 10 + key as u64, 5)));
        table.collapse(1000, 6);
        assert_eq!(table.len(), 1);
        assert!(table.is_purged(PrimaryHash(3), 13) && table.is_purged(PrimaryHash(900), 1000));
        assert!(!table.is_purged(PrimaryHash(3), 1001));
    }

    #[test]
    fn lost_records_count_as_purges_of_everything_older() {
        let table = PurgeTable::new();
        table.add(&all_record(100, 1));
        assert_eq!(table.records().len(), 1);
        assert!(table.is_purged(PrimaryHash(1), 100) && !table.is_purged(PrimaryHash(1), 101));
    }
}
