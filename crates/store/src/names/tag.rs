//! Tags: names under which many objects are purged at once.
//!
//! Owns: the bounds and hashes of tags, and the account of their memory. A tag is kept as a seeded hash of 64 bits. Two
//! tags with the same hash are purged together, which costs misses but never gives a wrong answer. Leaves to others:
//! which tags have been purged (`purge`), and their place on disk (`format`).
//!
//! *Cost*: 8 bytes per tag on disk and in memory; also [`HELD_BYTES`] of memory per object with tags; nothing in the
//! index.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::Error;

/// The largest number of tags of an object.
pub const TAGS_MAX: usize = 1024;
/// The longest tag, in bytes.
pub const TAG_BYTES_MAX: usize = 1024;
/// The memory of an object's tags in addition to their hashes, in bytes.
const HELD_BYTES: usize = 64;
/// Distinguishes the hashes of tags from those of keys.
const SEED: u64 = 0x7461_675f_6861_736b;

/// The hash of a tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TagHash(pub u64);

/// Hashes a tag with the store's seed. *Errors*: `Invalid` if the tag is empty or too long.
pub fn hash_tag(seed: u64, tag: &[u8]) -> Result<TagHash, Error> {
    if !(1..=TAG_BYTES_MAX).contains(&tag.len()) {
        return Err(Error::invalid(format!("a tag has 1 to {TAG_BYTES_MAX} bytes, one of {} was given", tag.len())));
    }
    Ok(TagHash(xxh3_64_with_seed(tag, seed ^ SEED)))
}

/// The memory of all tags of a store, in bytes.
pub type TagLedger = Arc<AtomicU64>;

/// The tags of an entry, ascending and without duplicates. *Cost*: a clone copies no tags.
#[derive(Debug, Clone, Default)]
pub struct EntryTags(Option<Arc<TagSet>>);

#[derive(Debug)]
struct TagSet {
    hashes: Box<[TagHash]>,
    ledger: TagLedger,
}

impl EntryTags {
    /// Makes tags from hashes, which may be in any order. *Errors*: `Invalid` if there are too many different hashes.
    pub fn new(mut hashes: Vec<TagHash>, ledger: &TagLedger) -> Result<EntryTags, Error> {
        hashes.sort_unstable();
        hashes.dedup();
        if hashes.len() > TAGS_MAX {
            return Err(Error::invalid(format!(
                "an object has at most {TAGS_MAX} tags, {} were given; use fewer or broader ones",
                hashes.len()
            )));
        }
        if hashes.is_empty() {
            return Ok(EntryTags::default());
        }
        let held = TagSet { hashes: hashes.into(), ledger: Arc::clone(ledger) };
        ledger.fetch_add(held.bytes(), Ordering::Relaxed);
        Ok(EntryTags(Some(Arc::new(held))))
    }

    /// The union of these tags and others. *Errors*: `Invalid` if the union has too many.
    pub fn with(&self, others: &EntryTags) -> Result<EntryTags, Error> {
        match (&self.0, &others.0) {
            (_, None) => Ok(self.clone()),
            (None, _) => Ok(others.clone()),
            (Some(held), Some(_)) => EntryTags::new([self.hashes(), others.hashes()].concat(), &held.ledger),
        }
    }

    /// The hashes of the tags.
    pub fn hashes(&self) -> &[TagHash] {
        self.0.as_ref().map_or(&[], |held| &held.hashes)
    }

    /// The number of tags.
    pub fn len(&self) -> usize {
        self.hashes().len()
    }

    /// The size of the tags in a record, in bytes.
    pub fn record_bytes(&self) -> usize {
        size_of_val(self.hashes())
    }

    /// The memory of the tags, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |held| held.bytes())
    }
}

impl TagSet {
    fn bytes(&self) -> u64 {
        (size_of_val(&*self.hashes) + HELD_BYTES) as u64
    }
}

impl Drop for TagSet {
    fn drop(&mut self) {
        self.ledger.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(numbers: impl IntoIterator<Item = u64>, ledger: &TagLedger) -> Result<EntryTags, Error> {
        EntryTags::new(numbers.into_iter().map(TagHash).collect(), ledger)
    }

    /// Tags are bounded in number and length.
    #[test]
    fn tag_limits_hold() {
        let ledger = TagLedger::default();
        let most = tags(0..TAGS_MAX as u64, &ledger).expect("at the bound");
        assert_eq!((most.len(), most.record_bytes()), (TAGS_MAX, 8 * TAGS_MAX));
        assert!(tags(0..=TAGS_MAX as u64, &ledger).unwrap_err().message.contains("at most 1024"));
        assert!(most.with(&tags([1 << 40], &ledger).expect("one")).is_err());
        assert_eq!(most.with(&tags([5], &ledger).expect("one")).expect("it has that already").len(), TAGS_MAX);
        assert!(hash_tag(1, &[b'x'; TAG_BYTES_MAX]).is_ok());
        assert!(hash_tag(1, &[b'x'; TAG_BYTES_MAX + 1]).unwrap_err().message.contains("1025"));
        assert!(hash_tag(1, b"").is_err());
        assert_ne!(hash_tag(1, b"a").ok(), hash_tag(2, b"a").ok());
    }

    /// The memory of tags is counted until their last holder is gone.
    #[test]
    fn tag_memory_counts_all_holders() {
        let ledger = TagLedger::default();
        let bytes = || ledger.load(Ordering::Relaxed);
        let none = tags([], &ledger).expect("none");
        assert_eq!((none.len(), none.memory_bytes(), bytes()), (0, 0, 0));
        let some = tags([3, 1, 3], &ledger).expect("two");
        assert_eq!((some.hashes(), bytes()), (&[TagHash(1), TagHash(3)][..], 80));
        let copy = some.clone();
        drop(some);
        assert_eq!((copy.memory_bytes(), bytes()), (80, 80));
        drop(copy);
        assert_eq!(bytes(), 0);
    }
}
