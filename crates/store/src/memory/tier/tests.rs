//! Tests of the memory tier: which entries stay, which are evicted, and that its bound is kept.

use nectary_cache::Gdsf;

use super::*;
use crate::memory::entry::{EntryKind, EntryParts};
use crate::names::key::hash_key;
use crate::names::tag::EntryTags;

fn entry(number: u64) -> Arc<MemoryEntry> {
    let name = number.to_string();
    let key = KeyRef::new(name.as_bytes(), b"");
    let (primary_hash, hash) = hash_key(7, key);
    let body = bytes::Bytes::from(vec![0; 4000]);
    let (metadata, object_bytes) = (bytes::Bytes::new(), body.len() as u64);
    let (kind, generation) = (EntryKind::Whole, number);
    let parts = EntryParts {
        key: key.to_owned(),
        primary_hash,
        hash,
        kind,
        metadata,
        body,
        object_bytes,
        generation,
        tags: EntryTags::default(),
    };
    Arc::new(MemoryEntry::new(parts, number))
}

#[test]
fn unwritten_entries_use_policy_room() {
    let capacity = 1 << 20;
    let tier = MemoryTier::new(Box::new(Gdsf::new(capacity)));
    (0..1000).for_each(|number| drop(tier.put_read(&entry(number), || true)));
    let (_, full, ..) = tier.usage();
    assert!(full > capacity * 9 / 10, "{full}");
    let waiting: Vec<_> = (1000..1100).map(entry).collect();
    for entry in &waiting {
        tier.put_unwritten(entry);
        tier.settle(entry);
        let (_, used, unwritten, _) = tier.usage();
        assert!(used + unwritten <= capacity, "{used} + {unwritten}");
    }
    assert!(waiting.iter().all(|entry| tier.contains(entry.hash)), "what waits is found");
    for entry in &waiting {
        tier.admit(std::slice::from_ref(entry));
        let (_, used, unwritten, _) = tier.usage();
        assert!(used + unwritten <= capacity, "{used} + {unwritten}");
    }
    (2000..3000).for_each(|number| drop(tier.put_read(&entry(number), || true)));
    let (_, used, unwritten, _) = tier.usage();
    assert!(unwritten == 0 && used > capacity * 9 / 10, "{used}");
}

/// Version `sequence` of the entry of key `number`; only in memory if `alone` is set.
fn version(number: u64, sequence: u64, alone: bool) -> Arc<MemoryEntry> {
    let of = entry(number);
    let parts = EntryParts {
        key: of.key.clone(),
        primary_hash: of.primary_hash,
        hash: of.hash,
        kind: of.kind,
        metadata: of.metadata.clone(),
        body: of.body.clone(),
        object_bytes: of.object_bytes,
        generation: sequence,
        tags: EntryTags::default(),
    };
    Arc::new(if alone { MemoryEntry::in_memory_alone(parts, sequence) } else { MemoryEntry::new(parts, sequence) })
}

/// Checks that the policy has exactly the objects that are on disk or only in memory, with their weights, within its
/// capacity.
fn assert_policy_is_right(tier: &MemoryTier) {
    let pinned = tier.map.pin();
    let mut replacement = tier.lock();
    let mut bytes = 0;
    for entry in pinned.values() {
        let is_waiting = entry.location().is_none() && !entry.is_in_memory_alone();
        assert_eq!(replacement.policy.contains(entry.id()), !is_waiting, "{}", entry.sequence);
        bytes += if is_waiting { 0 } else { entry.weight() };
    }
    assert_eq!(replacement.policy.used(), bytes);
    assert!(bytes <= replacement.capacity - replacement.ceded);
    replacement.policy.set_capacity(0, &mut |id| pinned.evict(id));
    drop(replacement);
    let left = pinned.values().filter(|entry| entry.location().is_some() || entry.is_in_memory_alone()).count();
    assert_eq!(left, 0, "entries that nothing would ever evict");
}

/// Entries are committed without the lock while others are read, evicted and removed.
#[test]
fn commit_without_lock_survives_concurrency() {
    const KEYS: u64 = 24;
    const COMMITS: u64 = 20_000;
    // The tier has room for half of the keys.
    let tier = MemoryTier::new(Box::new(Gdsf::new(KEYS / 2 * entry(0).weight())));
    let sequence = Mutex::new(0u64);
    let (written, ended) = (AtomicU64::new(0), std::sync::atomic::AtomicBool::new(false));
    let (to_writer, to_write) = std::sync::mpsc::channel::<Arc<MemoryEntry>>();
    std::thread::scope(|scope| {
        let (tier, sequence, written, ended) = (&tier, &sequence, &written, &ended);
        // The writer gives each entry a location, and then hands the entry to the policy. It also removes some entries.
        scope.spawn(move || {
            for (at, entry) in to_write.iter().enumerate() {
                assert!(entry.location().is_none() && !entry.is_in_memory_alone());
                entry.set_location(RecordLocation::new(at as u64 + 1, 64));
                tier.admit(std::slice::from_ref(&entry));
                if at % 7 == 0 {
                    tier.remove_same(&entry);
                }
                written.fetch_add(1, Ordering::Relaxed);
            }
            ended.store(true, Ordering::Relaxed);
        });
        // A reader puts an old version of a key if there is no entry of the key, and removes it again.
        scope.spawn(move || {
            let mut at = 0;
            while !ended.load(Ordering::Relaxed) {
                at += 1;
                let old = version(at % KEYS, 0, false);
                old.set_location(RecordLocation::new((1 << 20) + at % KEYS, 64));
                tier.put_read(&old, || true);
                tier.get_hashed(old.hash);
                tier.remove_at(&[(old.hash, RecordLocation::new((1 << 20) + at % KEYS, 64))]);
            }
        });
        for of in 0..2 {
            let to_writer = to_writer.clone();
            scope.spawn(move || {
                for at in 0..COMMITS {
                    let number = (at * 7 + of * 3) % KEYS;
                    let (entry, is_queued) = {
                        let mut sequence = sequence.lock().unwrap();
                        *sequence += 1;
                        let present = tier.peek(entry(number).hash);
                        let is_alone = present.as_ref().is_some_and(|present| present.is_in_memory_alone());
                        match at % 3 {
                            0 if present.is_none() || is_alone => {
                                let kept = version(number, *sequence, true);
                                tier.put_kept(&kept);
                                (kept, false)
                            }
                            1 if is_alone => {
                                let present = present.unwrap();
                                let is_queued = tier.pin_kept(&present);
                                (present, is_queued)
                            }
                            _ => {
                                let new = version(number, *sequence, false);
                                let previous = tier.put_unwritten(&new);
                                assert!(previous.is_none_or(|previous| previous.sequence < new.sequence));
                                (new, true)
                            }
                        }
                    };
                    if is_queued {
                        to_writer.send(Arc::clone(&entry)).unwrap();
                    }
                    tier.settle(&entry);
                }
            });
        }
        drop(to_writer);
    });
    assert!(written.load(Ordering::Relaxed) > COMMITS / 2);
    assert_eq!(tier.unwritten_bytes(), 0);
    assert_policy_is_right(&tier);
}

/// An entry that waits to be written is not evicted though the policy knows its id.
#[test]
fn unwritten_entry_is_not_evicted() {
    let tier = MemoryTier::new(Box::new(Gdsf::new(4 * entry(0).weight())));
    let old = entry(0);
    old.set_location(RecordLocation::new(1, 64));
    tier.put_read(&old, || true);
    let new = version(0, 1, false);
    tier.put_unwritten(&new);
    (1..20).for_each(|number| {
        let other = entry(number);
        other.set_location(RecordLocation::new(1 + number, 64));
        tier.put_read(&other, || true);
    });
    assert!(tier.peek(new.hash).is_some_and(|there| Arc::ptr_eq(&there, &new)));
    tier.put_read(&old, || true);
    assert!(tier.peek(new.hash).is_some_and(|there| Arc::ptr_eq(&there, &new)), "what was read replaces nothing");
    tier.settle(&new);
    new.set_location(RecordLocation::new(100, 64));
    tier.admit(std::slice::from_ref(&new));
    assert_policy_is_right(&tier);
}
