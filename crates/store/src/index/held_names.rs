//! The names (primary keys) of the objects that the ring may have. The purge of any other name needs no record.
//!
//! Owns: the bits of the filters, and how long a name is remembered. Promises: a name is never reported absent if a
//! version of it is in memory, waits to be written, or could be found by a scan of all segments. A name may be reported
//! present although it is absent.
//!
//! # Idea
//! Time is divided into eras of some segments each. Each era has a Bloom filter of the primary keys that were written
//! in it. There is one more filter than there are eras in a cycle: a new era reuses the filter of an era whose segments
//! have all been overwritten. The newest era that has a name bounds the position of the name's newest version, and so
//! the time for which the record of a purge is needed.
//!
//! # Invariants
//! 1. A put notes its name before it draws its generation. A fill draws its generation while it enters the table of
//!    running fills. A purge draws its generation first, and then checks the fills and the names. If it finds the name
//!    in neither, no older version can appear later.
//! 2. The name of a queued entry is noted in the current era, under the lock of the queue. An era begins under the same
//!    lock, and notes the names of all waiting entries. The name of a packed object is noted in the era of its segment.
//! 3. The names of objects that are only in memory (not admitted to the disk) are noted again before each era begins.
//! 4. An era's filter is emptied after its last segment was overwritten, with the same margin as for records of purges.
//! 5. After an open, every name counts as present until the tables of all segments have been read. If damage was found,
//!    every name counts as present until the damaged segments have been overwritten.
//!
//! *Cost*: at most 1/[`MEMORY_SHARE`] of the memory budget. A put touches one or two cache lines, a purge one per era.
//! With [`BITS_PER_NAME`] bits per name, a few of 100 purges of absent names get a record that they do not need. More
//! of them get one if the store has more names than the filters have room for.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::layout::SpanLayout;
use crate::names::key::PrimaryHash;

/// The filters take at most 1/`MEMORY_SHARE` of the memory budget.
const MEMORY_SHARE: u64 = 64;
/// The size of a filter, in bits per name that it can hold.
const BITS_PER_NAME: u64 = 12;
/// The number of bits that a name sets.
const PROBES: u32 = 6;
/// The number of filters; each belongs to one era.
const ERAS: u64 = 8;
/// The size of a cache line, in words of 64 bits.
const LINE_WORDS: usize = 8;
const LINE_BITS_LOG: u32 = 9;
/// After the last segment with a name was overwritten, the name counts as present until this many more segments were
/// opened; the records of purges are kept for the same time.
pub const MARGIN_SEGMENTS: u64 = 2;

/// The places where versions of a name may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamePresence {
    /// There is no version.
    Absent,
    /// Versions may be in segments up to this epoch.
    Through(u64),
    /// Versions may be anywhere, also in memory and among waiting objects.
    Anywhere,
}

/// The names of a span.
pub struct SpanNames {
    filters: Box<[Box<[AtomicU64]>]>,
    /// The number of segments per era.
    era_segments: u64,
    segment_count: u64,
    /// The era of the segment that is being written.
    era: AtomicU64,
    /// Every name counts as present until this epoch has been overwritten.
    unknown_through: AtomicU64,
}

impl SpanNames {
    /// Makes the table of a span whose epoch `head` is being written, within its share of the memory budget. At first,
    /// every name counts as present.
    pub fn new(layout: &SpanLayout, head: u64, memory_bytes: u64) -> SpanNames {
        // The index bounds the number of names whose objects can be found.
        let names_max = layout.index_bytes_max().min(memory_bytes / 2) / 8;
        let wanted = names_max * BITS_PER_NAME / 8 * ERAS / (ERAS - 1);
        let words = wanted.min(memory_bytes / MEMORY_SHARE) as usize / ERAS as usize / 8;
        let words = (words / LINE_WORDS).max(1) * LINE_WORDS;
        // A filter is emptied `ERAS - 1` eras after its era ended; by then all segments of the era are overwritten, and
        // the margin has passed.
        let era_segments = (layout.segment_count + MARGIN_SEGMENTS + 1).div_ceil(ERAS - 1);
        SpanNames {
            filters: (0..ERAS).map(|_| (0..words).map(|_| AtomicU64::new(0)).collect()).collect(),
            era_segments,
            segment_count: layout.segment_count,
            era: AtomicU64::new(head / era_segments),
            unknown_through: AtomicU64::new(head),
        }
    }

    /// The memory of the filters, in bytes.
    pub fn bytes(&self) -> u64 {
        self.filters.iter().map(|filter| filter.len() as u64 * 8).sum()
    }

    /// Notes a name in the current era.
    pub fn note(&self, primary: PrimaryHash) {
        self.note_in(primary, self.era.load(Ordering::Acquire));
    }

    /// Notes a name of a record that is, or will be, in the segment of an epoch.
    pub fn note_at(&self, primary: PrimaryHash, epoch: u64) {
        let era = epoch / self.era_segments;
        if era + ERAS > self.era.load(Ordering::Acquire) {
            self.note_in(primary, era);
        }
    }

    fn note_in(&self, primary: PrimaryHash, era: u64) {
        let (line, mask) = self.bits(primary);
        for (word, mask) in self.filter(era)[line..].iter().zip(mask) {
            if word.load(Ordering::Relaxed) & mask != mask {
                word.fetch_or(mask, Ordering::Relaxed);
            }
        }
    }

    /// Returns where versions of a name may be while the epoch `head` is being written. Call it under the lock of the
    /// queue.
    pub fn standing(&self, primary: PrimaryHash, head: u64) -> NamePresence {
        if !self.are_known(head) {
            return NamePresence::Anywhere;
        }
        let (line, mask) = self.bits(primary);
        let has = |era: &u64| {
            let words = self.filter(*era)[line..].iter().zip(mask);
            words.into_iter().all(|(word, mask)| word.load(Ordering::Relaxed) & mask == mask)
        };
        let current = self.era.load(Ordering::Acquire);
        match (current.saturating_sub(ERAS - 1)..=current).rev().find(has) {
            None => NamePresence::Absent,
            Some(era) if era == current => NamePresence::Anywhere,
            Some(era) => NamePresence::Through((era + 1) * self.era_segments - 1),
        }
    }

    /// Whether the filters know all names while the epoch `head` is being written.
    pub fn are_known(&self, head: u64) -> bool {
        let unknown = self.unknown_through.load(Ordering::Acquire);
        unknown == 0 || unknown.saturating_add(MARGIN_SEGMENTS + self.segment_count) <= head
    }

    /// Notes that the names in all segments that existed at the open are in the filters, except names in damaged
    /// segments, which have epochs up to `damaged_through`; 0 if no segment is damaged.
    pub fn are_read(&self, damaged_through: u64) {
        self.unknown_through.store(damaged_through, Ordering::Release);
    }

    /// Whether this epoch begins a new era.
    pub fn begins_era(&self, epoch: u64) -> bool {
        epoch / self.era_segments != self.era.load(Ordering::Acquire)
    }

    /// Begins the era of an epoch that is about to be written. Call it under the lock of the queue; then note the names
    /// of all waiting entries.
    pub fn begin_era(&self, epoch: u64) {
        let (last, next) = (self.era.load(Ordering::Acquire), epoch / self.era_segments);
        for era in last + 1..=next {
            self.filter(era).iter().for_each(|word| word.store(0, Ordering::Relaxed));
            self.era.store(era, Ordering::Release);
        }
    }

    fn filter(&self, era: u64) -> &[AtomicU64] {
        &self.filters[(era % ERAS) as usize]
    }

    /// Returns the line of a filter that has a name's bits, and these bits.
    fn bits(&self, primary: PrimaryHash) -> (usize, [u64; LINE_WORDS]) {
        let lines = self.filters[0].len() / LINE_WORDS;
        // The upper half of the hash chooses the line, the lower half the bits in it.
        let upper = (primary.0 >> 64) as u64;
        let line = ((u128::from(upper) * lines as u128) >> 64) as usize * LINE_WORDS;
        let mut mask = [0_u64; LINE_WORDS];
        for probe in 0..PROBES {
            let bit = (primary.0 as u64 >> (probe * LINE_BITS_LOG)) as usize % (LINE_WORDS * 64);
            mask[bit / 64] |= 1 << (bit % 64);
        }
        (line, mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::key::{KeyRef, hash_key};

    fn name(number: u64) -> PrimaryHash {
        hash_key(5, KeyRef::new(&number.to_le_bytes(), b"")).0
    }

    fn names(head: u64) -> (SpanLayout, SpanNames) {
        let layout = SpanLayout::plan(64 << 20, None, 1, 2, 3).unwrap();
        let names = SpanNames::new(&layout, head, 32 << 20);
        (layout, names)
    }

    #[test]
    fn name_known_until_segment_overwritten() {
        for written_at in [1, 5, 6, 7, 100] {
            let (layout, names) = names(written_at);
            names.are_read(0);
            assert_eq!(names.standing(name(1), written_at), NamePresence::Absent);
            names.note(name(1));
            assert_eq!(names.standing(name(1), written_at), NamePresence::Anywhere);
            let mut forgotten_at = None;
            for head in written_at + 1..written_at + 2 * layout.segment_count {
                if names.begins_era(head) {
                    names.begin_era(head);
                }
                match names.standing(name(1), head) {
                    NamePresence::Absent => forgotten_at = forgotten_at.or(Some(head)),
                    NamePresence::Through(last) => assert!(written_at <= last && last < head, "{last} {head}"),
                    NamePresence::Anywhere => {}
                }
            }
            let forgotten_at = forgotten_at.expect("it is forgotten");
            // The name is known at least as long as a record of its purge would be needed.
            assert!(written_at + MARGIN_SEGMENTS < layout.tail(forgotten_at), "{written_at} {forgotten_at}");
            assert!(forgotten_at < written_at + layout.segment_count + 2 * names.era_segments, "{forgotten_at}");
        }
    }

    /// No name is known until segments were read and damaged ones overwritten.
    #[test]
    fn names_unknown_until_segments_read() {
        let (layout, names) = names(50);
        assert!(!names.are_known(50) && names.standing(name(1), 50) == NamePresence::Anywhere);
        names.are_read(45);
        let known_from = 45 + MARGIN_SEGMENTS + layout.segment_count;
        assert!(!names.are_known(known_from - 1) && names.are_known(known_from));
        names.are_read(0);
        assert!(names.are_known(50));
    }

    /// Names of segments that existed at the open bound where versions may be.
    #[test]
    fn old_segments_bound_name_places() {
        let (layout, names) = names(1000);
        names.are_read(0);
        for epoch in layout.tail(1000) - MARGIN_SEGMENTS..=1000 {
            names.note_at(name(epoch), epoch);
            let standing = names.standing(name(epoch), 1000);
            match standing {
                NamePresence::Through(last) => assert!(last >= epoch && last < epoch + names.era_segments),
                NamePresence::Anywhere => assert_eq!(epoch / names.era_segments, 1000 / names.era_segments),
                NamePresence::Absent => panic!("{epoch} is absent"),
            }
        }
        names.note_at(name(1), 1);
        assert_eq!(names.standing(name(1), 1000), NamePresence::Absent, "what was overwritten long ago is not noted");
    }

    /// Few absent names are mistaken for present ones, and memory is bounded.
    #[test]
    fn false_positives_are_few() {
        let (layout, names) = names(1);
        assert!(names.bytes() <= (32 << 20) / MEMORY_SHARE);
        names.are_read(0);
        let count = layout.index_bytes_max() / 8 * 9 / 10;
        for number in 0..count {
            let epoch = 1 + number * layout.segment_count / count;
            if names.begins_era(epoch) {
                names.begin_era(epoch);
            }
            names.note(name(number));
        }
        let head = layout.segment_count;
        assert!((0..count).all(|number| names.standing(name(number), head) != NamePresence::Absent));
        let wrong =
            (0..10_000).filter(|number| names.standing(name(1 << 40 | number), head) != NamePresence::Absent).count();
        println!("{wrong} of 10000 mistaken for present, among {count}");
        assert!(wrong < 600, "{wrong} of 10000");
        assert!(SpanNames::new(&layout, 1, 8 << 20).bytes() <= (8 << 20) / MEMORY_SHARE);
    }
}
