//! Decides which answers a store must, may and must not give after a crash. It is a small model of the store's
//! promises.
//!
//! Events are reported in the order in which they happened. After a crash, the recovered store must keep all promises
//! made before it.
//!
//! | the key's history | the answer |
//! |---|---|
//! | a version up to the durable sequence, not purged since, not overwritten by the ring | must hit |
//! | the last version at or below the recovered sequence, or a later one | may be the hit |
//! | a version that was not admitted to the disk | may be the hit, and hides older ones |
//! | anything older, purged by its key or by one of its tags, or never put | must not hit |
//! | a version that was found after an earlier crash | must hit, or a later one |
//! | a version that was not found after an earlier crash | must not hit |
//!
//! A version that a soft purge came after is stale wherever it hits, and no other version is.
//!
//! A version that was purged by tag may still be in the index. There it hides the versions that it replaced, so these
//! need not be found.

use std::collections::HashMap;

use crate::crash::CrashModel;

/// One version of a key.
#[derive(Debug, Clone)]
pub struct ExpectedVersion {
    /// Its number, from which its body is computed.
    pub number: u32,
    /// Length of its body in bytes.
    pub length: usize,
    /// The number of events before its put or fill began.
    pub began: usize,
    /// The segment epoch that was being written when it began.
    pub head: u64,
    /// Its tags, one bit each.
    pub tags: u32,
    /// Its sequence, once it was accepted.
    pub sequence: Option<u64>,
    /// Whether it was not admitted to the disk; it then hides the version that it replaced, and need not be found.
    pub in_memory_alone: bool,
    /// Whether a crash may have lost it.
    pub uncertain: bool,
    /// What a get after a crash said of it, if there was one.
    pub after_crash: Option<AfterCrash>,
}

/// What a get after a crash said of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterCrash {
    /// It was found, so it is on the disk.
    Found,
    /// Another version was found, or none: it must not reappear.
    Gone,
}

/// Something that happened.
#[allow(missing_docs)] // The names of the fields say what they are.
#[derive(Debug, Clone)]
pub enum StoreEvent {
    /// A put or fill began.
    Began { key: u32, version: u32, length: usize, head: u64, tags: u32 },
    /// A version was accepted with a sequence.
    Accepted { key: u32, version: u32, sequence: u64, admitted: bool },
    /// A purge began.
    PurgeBegan { key: u32 },
    /// A purge returned.
    PurgeReturned { key: u32 },
    /// A soft purge began.
    SoftPurgeBegan { key: u32 },
    /// A soft purge returned.
    SoftPurgeReturned { key: u32 },
    /// A purge of a tag began.
    TagPurgeBegan { tag: u32 },
    /// A purge of a tag returned.
    TagPurgeReturned { tag: u32 },
    /// The store reported its sequences.
    Sequences { written: u64, flushed: u64 },
    /// The store crashed; a loss of power may take what was written and not flushed.
    Crashed { model: CrashModel },
    /// The store was opened again after a crash, having recovered everything up to a sequence.
    Reopened { recovered: u64 },
    /// The first get of a key after a crash found this version, or none.
    Found { key: u32, version: Option<u32> },
}

#[derive(Debug, Clone, Default)]
struct KeyHistory {
    versions: Vec<ExpectedVersion>,
    /// For each purge of the key: the number of events before it began, and whether it returned.
    purges: Vec<(usize, bool)>,
    /// The same for each soft purge of the key.
    soft_purges: Vec<(usize, bool)>,
}

/// The history of each key, from which the allowed answers follow.
#[derive(Debug, Clone, Default)]
pub struct StoreExpectation {
    keys: HashMap<u32, KeyHistory>,
    /// For each purge of a tag: the tag, the number of events before it began, and whether it returned.
    tag_purges: Vec<(u32, usize, bool)>,
    events: usize,
    written: u64,
    flushed: u64,
}

/// The state that a recovered store reports.
#[derive(Debug, Clone, Copy)]
pub struct RecoveredStore {
    /// The recovered sequence.
    pub sequence: u64,
    /// The segment epoch being written.
    pub head: u64,
    /// The number of segments.
    pub segment_count: u64,
}

/// The answers that a key may give.
#[derive(Debug, Clone)]
pub struct AllowedAnswers {
    /// Versions that a hit may have.
    pub versions: Vec<ExpectedVersion>,
    /// Whether a get of the key must hit.
    pub must_hit: bool,
}

impl StoreExpectation {
    /// Reports an event.
    pub fn tell(&mut self, event: &StoreEvent) {
        self.events += 1;
        let now = self.events;
        match *event {
            StoreEvent::Began { key, version, length, head, tags } => {
                self.keys.entry(key).or_default().versions.push(ExpectedVersion {
                    number: version,
                    length,
                    began: now,
                    head,
                    tags,
                    sequence: None,
                    in_memory_alone: false,
                    uncertain: false,
                    after_crash: None,
                })
            }
            StoreEvent::Accepted { key, version, sequence, admitted } => {
                if let Some(history) = self.keys.get_mut(&key) {
                    if let Some(found) = history.versions.iter_mut().find(|candidate| candidate.number == version) {
                        found.sequence = Some(sequence);
                        found.in_memory_alone = !admitted;
                    }
                    // A version with a higher sequence is later, regardless of when its put began.
                    history.versions.sort_by_key(|version| version.sequence.unwrap_or(u64::MAX));
                }
            }
            StoreEvent::PurgeBegan { key } => self.keys.entry(key).or_default().purges.push((now, false)),
            StoreEvent::PurgeReturned { key } => {
                if let Some(purge) = self.keys.entry(key).or_default().purges.last_mut() {
                    purge.1 = true;
                }
            }
            StoreEvent::SoftPurgeBegan { key } => self.keys.entry(key).or_default().soft_purges.push((now, false)),
            StoreEvent::SoftPurgeReturned { key } => {
                if let Some(purge) = self.keys.entry(key).or_default().soft_purges.last_mut() {
                    purge.1 = true;
                }
            }
            StoreEvent::TagPurgeBegan { tag } => self.tag_purges.push((tag, now, false)),
            StoreEvent::TagPurgeReturned { tag } => {
                if let Some(purge) = self.tag_purges.iter_mut().rev().find(|purge| purge.0 == tag) {
                    purge.2 = true;
                }
            }
            StoreEvent::Sequences { written, flushed } => {
                self.written = self.written.max(written);
                self.flushed = self.flushed.max(flushed);
            }
            StoreEvent::Crashed { model } => self.written = self.durable(model),
            StoreEvent::Found { key, version } => {
                for known in self.keys.get_mut(&key).into_iter().flat_map(|history| &mut history.versions) {
                    let is_it = Some(known.number) == version;
                    known.after_crash = Some(if is_it { AfterCrash::Found } else { AfterCrash::Gone });
                    known.uncertain &= !is_it;
                }
            }
            StoreEvent::Reopened { recovered } => {
                for version in self.keys.values_mut().flat_map(|history| &mut history.versions) {
                    version.uncertain |= version.sequence.is_none_or(|sequence| sequence > recovered);
                }
                self.written = self.written.max(recovered);
            }
        }
    }

    /// The keys that were ever put or purged.
    pub fn keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.keys.keys().copied()
    }

    /// Whether a later version of a key was accepted than this one.
    pub fn is_followed(&self, key: u32, version: u32) -> bool {
        let versions = self.keys.get(&key).map_or(&[][..], |history| &history.versions);
        let accepted = |later: &ExpectedVersion| later.sequence.is_some() && later.after_crash.is_none();
        let at = versions.iter().position(|known| known.number == version);
        at.is_some_and(|at| versions[at + 1..].iter().any(accepted))
    }

    /// The sequence up to which everything must be recovered.
    pub fn durable(&self, crash: CrashModel) -> u64 {
        match crash {
            CrashModel::Process => self.written,
            CrashModel::Power => self.flushed,
        }
    }

    /// Whether a version of a key may be found with this staleness. A soft purge that did not return may have no
    /// effect.
    pub fn may_be_stale(&self, key: u32, version: &ExpectedVersion, is_stale: bool) -> bool {
        let purges = self.keys.get(&key).map_or(&[][..], |history| &history.soft_purges);
        let mut later = purges.iter().filter(|(began, _)| version.began < *began);
        if is_stale { later.next().is_some() } else { !later.any(|(_, returned)| *returned) }
    }

    /// The possible answers of `key` after a crash.
    pub fn allowed(&self, key: u32, crash: CrashModel, store: RecoveredStore) -> AllowedAnswers {
        let Some(history) = self.keys.get(&key) else {
            return AllowedAnswers { versions: Vec::new(), must_hit: false };
        };
        let tag_purged = |version: &ExpectedVersion, all: bool| {
            self.tag_purges.iter().any(|&(tag, began, returned)| {
                (returned || all) && version.tags & 1 << tag != 0 && version.began < began
            })
        };
        let key_purged = |version: &ExpectedVersion, all: bool| {
            history.purges.iter().any(|&(began, returned)| (returned || all) && version.began < began)
        };
        let purged = |version: &ExpectedVersion| key_purged(version, false) || tag_purged(version, false);
        let maybe_purged = |version: &ExpectedVersion| key_purged(version, true) || tag_purged(version, true);
        let is_written = |version: &ExpectedVersion, through: u64| {
            version.after_crash == Some(AfterCrash::Found) || version.sequence.is_some_and(|at| at <= through)
        };
        let is_gone = |version: &ExpectedVersion| version.after_crash == Some(AfterCrash::Gone);
        let certain = |version: &ExpectedVersion| !version.uncertain && is_written(version, store.sequence);
        let oldest = history.versions.iter().rposition(&certain).unwrap_or(0);
        let versions: Vec<ExpectedVersion> = history.versions[oldest.min(history.versions.len())..]
            .iter()
            .filter(|version| !purged(version) && !is_gone(version))
            .cloned()
            .collect();
        let durable = self.durable(crash).max(store.sequence);
        let candidates = &history.versions[oldest.min(history.versions.len())..];
        let must_hit = candidates.iter().enumerate().any(|(index, version)| {
            !version.uncertain
                && !is_gone(version)
                && !version.in_memory_alone
                && !candidates[index + 1..].iter().any(|later| tag_purged(later, true))
                && is_written(version, durable)
                && !maybe_purged(version)
                && version.head + store.segment_count > store.head + 3
        });
        AllowedAnswers { versions, must_hit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: RecoveredStore = RecoveredStore { sequence: 15, head: 1, segment_count: 10 };

    fn put(expectation: &mut StoreExpectation, version: u32, sequence: u64) {
        put_tagged(expectation, version, sequence, 0);
    }

    fn put_tagged(expectation: &mut StoreExpectation, version: u32, sequence: u64, tags: u32) {
        expectation.tell(&StoreEvent::Began { key: 1, version, length: 1, head: 1, tags });
        expectation.tell(&StoreEvent::Accepted { key: 1, version, sequence, admitted: true });
    }

    fn numbers(allowed: &AllowedAnswers) -> Vec<u32> {
        allowed.versions.iter().map(|version| version.number).collect()
    }

    /// The last version at or below the recovered sequence may hit, and each later one.
    #[test]
    fn recovered_or_later_version_may_hit() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        put(&mut expectation, 2, 10);
        put(&mut expectation, 3, 20);
        let allowed = expectation.allowed(1, CrashModel::Process, STORE);
        assert_eq!(numbers(&allowed), [2, 3]);
        assert!(allowed.must_hit);
    }

    /// An object that was not admitted need not hit, but what it replaced must not hit.
    #[test]
    fn unadmitted_put_hides_replaced_version() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        expectation.tell(&StoreEvent::Began { key: 1, version: 2, length: 1, head: 1, tags: 0 });
        expectation.tell(&StoreEvent::Accepted { key: 1, version: 2, sequence: 10, admitted: false });
        let allowed = expectation.allowed(1, CrashModel::Process, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![2], false));
    }

    /// A purge in progress may already have removed the object.
    #[test]
    fn purged_version_must_not_hit() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        expectation.tell(&StoreEvent::PurgeBegan { key: 1 });
        let allowed = expectation.allowed(1, CrashModel::Process, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![1], false));
        expectation.tell(&StoreEvent::PurgeReturned { key: 1 });
        let allowed = expectation.allowed(1, CrashModel::Process, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![], false));
    }

    #[test]
    fn soft_purges_make_earlier_versions_stale() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        expectation.tell(&StoreEvent::SoftPurgeBegan { key: 1 });
        let older = expectation.keys[&1].versions[0].clone();
        let may = |expectation: &StoreExpectation, version: &ExpectedVersion| {
            [false, true].map(|is_stale| expectation.may_be_stale(1, version, is_stale))
        };
        assert_eq!(may(&expectation, &older), [true, true]);
        expectation.tell(&StoreEvent::SoftPurgeReturned { key: 1 });
        put(&mut expectation, 2, 8);
        let newer = expectation.keys[&1].versions[1].clone();
        assert_eq!((may(&expectation, &older), may(&expectation, &newer)), ([false, true], [true, false]));
        assert_eq!(numbers(&expectation.allowed(1, CrashModel::Process, STORE)), [2]);
    }

    /// What an earlier crash may have lost need not be found after the next one.
    #[test]
    fn earlier_lost_version_not_demanded() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        put(&mut expectation, 2, 8);
        expectation.tell(&StoreEvent::Reopened { recovered: 6 });
        let allowed = expectation.allowed(1, CrashModel::Process, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![1, 2], true));
    }

    /// A version that was not found after a crash must not come back.
    #[test]
    fn found_version_stays_after_crash() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        put(&mut expectation, 2, 8);
        put(&mut expectation, 3, 9);
        expectation.tell(&StoreEvent::Sequences { written: 9, flushed: 5 });
        expectation.tell(&StoreEvent::Crashed { model: CrashModel::Power });
        assert_eq!(expectation.durable(CrashModel::Process), 5);
        expectation.tell(&StoreEvent::Reopened { recovered: 6 });
        expectation.tell(&StoreEvent::Found { key: 1, version: Some(2) });
        let later = RecoveredStore { sequence: 7, ..STORE };
        let allowed = expectation.allowed(1, CrashModel::Power, later);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![2], true));
        expectation.tell(&StoreEvent::Found { key: 1, version: None });
        let allowed = expectation.allowed(1, CrashModel::Power, later);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![], false));
    }

    /// An object need not hit if the ring may have overwritten it.
    #[test]
    fn overwritten_version_not_demanded() {
        let mut expectation = StoreExpectation::default();
        put(&mut expectation, 1, 5);
        let far = RecoveredStore { head: 9, ..STORE };
        assert!(!expectation.allowed(1, CrashModel::Process, far).must_hit);
    }

    /// Versions that a purged version had replaced neither may hit nor must hit.
    #[test]
    fn tag_purge_hides_tagged_versions() {
        let mut expectation = StoreExpectation::default();
        put_tagged(&mut expectation, 1, 5, 0b01);
        put_tagged(&mut expectation, 2, 10, 0b10);
        expectation.tell(&StoreEvent::Sequences { written: 12, flushed: 12 });
        expectation.tell(&StoreEvent::TagPurgeBegan { tag: 0 });
        expectation.tell(&StoreEvent::TagPurgeReturned { tag: 0 });
        let allowed = expectation.allowed(1, CrashModel::Power, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![2], true));
        put_tagged(&mut expectation, 3, 20, 0b10);
        expectation.tell(&StoreEvent::TagPurgeBegan { tag: 1 });
        let allowed = expectation.allowed(1, CrashModel::Power, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![2, 3], false));
        expectation.tell(&StoreEvent::TagPurgeReturned { tag: 1 });
        let allowed = expectation.allowed(1, CrashModel::Power, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![], false), "not even version 1, whose tag is another");
        // The version that was purged by tag may still exist, so the version that it replaced may hit, but need not.
        let mut expectation = StoreExpectation::default();
        put_tagged(&mut expectation, 1, 5, 0);
        put_tagged(&mut expectation, 2, 20, 0b10);
        expectation.tell(&StoreEvent::Sequences { written: 12, flushed: 12 });
        expectation.tell(&StoreEvent::TagPurgeBegan { tag: 1 });
        expectation.tell(&StoreEvent::TagPurgeReturned { tag: 1 });
        let allowed = expectation.allowed(1, CrashModel::Power, STORE);
        assert_eq!((numbers(&allowed), allowed.must_hit), (vec![1], false));
    }
}
