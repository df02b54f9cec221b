//! The purges of a store that still matter: those after which objects are gone, and soft ones, after which they are
//! stale.
//!
//! Owns: the two sets of rules, and what both together mean for an object. Leaves to others: finding the rules under
//! which an object falls (`rules`), and where records are kept (`log`).
//!
//! # Invariants
//! 1. Both sets together have at most as many rules as the log has room for. Only a purge of everything needs no room:
//!    it takes the place of all other rules, also of the soft ones.
//! 2. A softly purged version is found, but never written again: neither is it rewritten, nor is a fill committed that
//!    began before the purge. So the position of its rule says, as for other rules, where the version can be, and the
//!    rule may be forgotten when the ring has passed that position.

use crate::format::PurgeRecord;
use crate::names::key::PrimaryHash;
use crate::names::tag::TagHash;
use crate::purge::records::{EFFECT_SOFT, RULE_ALL};
use crate::purge::rules::{PurgeVerdict, RULE_BYTES, RuleSet};

/// The live purge records.
pub struct PurgeTable {
    hard: RuleSet,
    soft: RuleSet,
}

impl PurgeTable {
    /// Makes an empty table of a store whose keys are hashed with `hash_seed`.
    pub fn new(hash_seed: u64) -> PurgeTable {
        PurgeTable { hard: RuleSet::new(hash_seed), soft: RuleSet::new(hash_seed) }
    }

    /// The effect of purges on an object of this generation with these tags. `name` is the primary part of its key, and
    /// `primary` is the hash of `name`.
    pub fn verdict(&self, primary: PrimaryHash, generation: u64, name: &[u8], tags: &[TagHash]) -> PurgeVerdict {
        // A purge of everything forgets the soft rules that it replaces, so these are looked at first.
        let since_s = self.soft.earliest(primary, generation, name, tags);
        match self.hard.verdict(primary, generation, name, tags) {
            PurgeVerdict::Live => since_s.map_or(PurgeVerdict::Live, PurgeVerdict::Stale),
            gone => gone,
        }
    }

    /// Whether a purge by tag, also a soft one, may match an object of this generation whose tags are not known yet.
    pub fn may_be_purged_by_tag(&self, generation: u64) -> bool {
        self.hard.may_be_purged_by_tag(generation) || self.soft.may_be_purged_by_tag(generation)
    }

    /// Whether an object is gone because of a purge by key, by prefix, or of everything. If `name` is empty, purges by
    /// prefix are ignored.
    pub fn is_purged_by_key(&self, primary: PrimaryHash, generation: u64, name: &[u8]) -> bool {
        self.hard.is_purged_by_key(primary, generation, name)
    }

    /// Whether a rule for a prefix of this length may be added to the rules of the same effect.
    pub fn has_room_for_prefix(&self, length: u16, is_soft: bool) -> bool {
        if is_soft { self.soft.has_room_for_prefix(length) } else { self.hard.has_room_for_prefix(length) }
    }

    /// Adds a rule, which is valid from now on. Returns false and adds nothing if there are already `most` rules and
    /// this one replaces none of them. A purge of everything always has room, because it replaces all other rules. A
    /// soft purge of everything replaces the other soft rules alone, so it has room if there are fewer than `most`
    /// others.
    pub fn try_add(&self, record: &PurgeRecord, most: u64) -> bool {
        let (hard, soft) = (self.hard.len() as u64, self.soft.len() as u64);
        let is_all = record.rule == RULE_ALL;
        match record.effect == EFFECT_SOFT {
            true if is_all && hard >= most => false,
            true => self.soft.try_add(record, most.saturating_sub(hard)),
            false => {
                let has_room = self.hard.try_add(record, most.saturating_sub(soft));
                if has_room && is_all {
                    self.soft.forget_through(record.generation.get());
                }
                has_room
            }
        }
    }

    /// Adds a rule; it is valid from now on.
    pub fn add(&self, record: &PurgeRecord) {
        if record.effect == EFFECT_SOFT {
            return self.soft.add(record);
        }
        self.hard.add(record);
        if record.rule == RULE_ALL {
            self.soft.forget_through(record.generation.get());
        }
    }

    /// Drops the rules that cannot match any object any more, as [`RuleSet::retire`] does. Returns their number.
    pub fn retire(&self, tail: u64, fill_generation_min: u64) -> usize {
        self.hard.retire(tail, fill_generation_min) + self.soft.retire(tail, fill_generation_min)
    }

    /// Raises the positions of rules, as [`RuleSet::raise`] does. Returns whether a rule was changed.
    pub fn raise(&self, generation: u64, position: u64) -> bool {
        let is_raised = self.hard.raise(generation, position);
        self.soft.raise(generation, position) || is_raised
    }

    /// The number of rules that are needed because a running fill began before the purge, as [`RuleSet::count_from`]
    /// says.
    pub fn count_from(&self, fill_generation_min: u64) -> usize {
        self.hard.count_from(fill_generation_min) + self.soft.count_from(fill_generation_min)
    }

    /// The records of all live rules, with which a new cycle of the log begins.
    pub fn records(&self) -> Vec<PurgeRecord> {
        // Purges go on meanwhile. One of everything takes the place of soft rules, which are therefore looked at first:
        // so the cycle has them, or that purge.
        let soft = self.soft.records();
        let mut records = self.hard.records();
        records.extend(soft.into_iter().map(|record| PurgeRecord { effect: EFFECT_SOFT, ..record }));
        records.sort_unstable_by_key(|record| record.generation.get());
        records
    }

    /// The number of live rules.
    pub fn len(&self) -> usize {
        self.hard.len() + self.soft.len()
    }

    /// The memory of the rules, in bytes.
    pub fn bytes(&self) -> u64 {
        self.len() as u64 * RULE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::purge::records::{PurgeEffect, all_record, key_record, record_with, tag_record};

    const KEY: PrimaryHash = PrimaryHash(1);

    fn soft(record: PurgeRecord, since_s: u32) -> PurgeRecord {
        record_with(record, PurgeEffect::Soft { since_s })
    }

    fn verdict(table: &PurgeTable, generation: u64) -> PurgeVerdict {
        table.verdict(KEY, generation, b"http://a/", &[TagHash(1)])
    }

    #[test]
    fn verdicts_tell_stale_from_gone() {
        let table = PurgeTable::new(7);
        table.add(&soft(tag_record(TagHash(1), 20, 5), 1000));
        assert_eq!((verdict(&table, 20), verdict(&table, 21)), (PurgeVerdict::Stale(1000), PurgeVerdict::Live));
        assert!(table.may_be_purged_by_tag(20) && !table.may_be_purged_by_tag(21));
        table.add(&key_record(KEY, 10, 5));
        assert_eq!((verdict(&table, 10), verdict(&table, 11)), (PurgeVerdict::Key, PurgeVerdict::Stale(1000)));
        assert!(table.is_purged_by_key(KEY, 10, b"") && !table.is_purged_by_key(KEY, 11, b""));
        assert!(PurgeVerdict::Key.is_gone() && PurgeVerdict::Tag.is_gone() && !verdict(&table, 11).is_gone());
    }

    #[test]
    fn records_keep_effect_and_time() {
        let table = PurgeTable::new(7);
        table.add(&soft(key_record(KEY, 10, 5), 900));
        table.add(&key_record(PrimaryHash(2), 11, 5));
        table.add(&soft(all_record(8, 5), 800));
        let copy = PurgeTable::new(7);
        table.records().iter().for_each(|record| copy.add(record));
        for table in [&table, &copy] {
            assert_eq!(
                (verdict(table, 9), verdict(table, 8), table.len()),
                (PurgeVerdict::Stale(900), PurgeVerdict::Stale(800), 3)
            );
            assert!(table.is_purged_by_key(PrimaryHash(2), 9, b""));
        }
    }

    /// Without the rule, or the one that took its place, what was softly purged would be fresh after a crash.
    #[test]
    fn records_have_rules_being_replaced() {
        let table = PurgeTable::new(7);
        for round in 1..2000 {
            let generation = 2 * round;
            table.add(&soft(key_record(KEY, generation, 5), 900));
            let barrier = std::sync::Barrier::new(2);
            let records = std::thread::scope(|scope| {
                scope.spawn(|| {
                    barrier.wait();
                    table.add(&all_record(generation + 1, 6));
                });
                barrier.wait();
                table.records()
            });
            let has_it = records.iter().any(|record| record.generation.get() >= generation);
            assert!(has_it, "round {round}: {} records", records.len());
        }
    }

    #[test]
    fn purge_of_everything_replaces_soft_rules() {
        let table = PurgeTable::new(7);
        table.add(&soft(key_record(KEY, 10, 5), 900));
        table.add(&soft(all_record(12, 5), 950));
        table.add(&soft(tag_record(TagHash(1), 40, 5), 980));
        table.add(&all_record(30, 6));
        assert_eq!(
            (table.len(), verdict(&table, 30), verdict(&table, 31)),
            (2, PurgeVerdict::Key, PurgeVerdict::Stale(980))
        );
    }

    #[test]
    fn both_sets_share_one_bound() {
        let table = PurgeTable::new(7);
        let hard = |key: u128, generation| table.try_add(&key_record(PrimaryHash(key), generation, 5), 4);
        let softly = |key: u128, generation| table.try_add(&soft(key_record(PrimaryHash(key), generation, 5), 1), 4);
        assert!(hard(1, 10) && softly(1, 11) && hard(2, 12) && softly(2, 13));
        assert!(!hard(3, 14) && !softly(3, 15), "there is no room");
        assert!(hard(2, 16) && softly(2, 17), "rules that are there take no more room");
        assert!(table.try_add(&soft(all_record(18, 5), 1), 4), "it replaces the soft ones");
        assert_eq!(table.len(), 3);
        assert!(hard(3, 19) && !hard(4, 20));
        assert!(table.try_add(&all_record(21, 5), 4));
        assert_eq!(table.len(), 1);
        assert!(hard(1, 22) && hard(2, 23) && hard(3, 24));
        assert!(!table.try_add(&soft(all_record(25, 5), 1), 4), "no other soft one makes room for it");
        assert_eq!(table.len(), 4);
    }

    #[test]
    fn soft_rules_are_forgotten_like_others() {
        let table = PurgeTable::new(7);
        table.add(&soft(key_record(KEY, 10, 5), 900));
        table.add(&soft(tag_record(TagHash(1), 11, 5), 950));
        assert_eq!((table.retire(7, u64::MAX), table.retire(8, 10), table.count_from(11)), (0, 0, 1));
        assert!(table.raise(10, 6));
        assert_eq!(
            (table.retire(8, 20), verdict(&table, 3)),
            (1, PurgeVerdict::Stale(950)),
            "the raised one is needed"
        );
        assert_eq!((table.retire(9, 20), verdict(&table, 3), table.bytes()), (1, PurgeVerdict::Live, 0));
    }
}
