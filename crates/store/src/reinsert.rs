//! Re-insertion: what has proved itself is written anew before its segment is overwritten.
//!
//! # What happens
//! When a segment is opened, the *next* one to be overwritten is harvested, beside everything else that the writer does: its
//! tables are read, and of the whole objects in it that were asked for since they were written ([`Marks`](crate::marks)) the
//! smallest are taken, up to a share of the segment. Each is read (from memory where it is there) and queued like a put, under
//! its old generation and a new sequence. When its segment's turn comes, the harvest ends, wherever it stands: what it
//! did not get to is dropped as if there were no re-insertion. So nothing ever waits for it.
//!
//! # Invariants
//! 1. Nothing purged comes back: purges are compared under the lock that orders sequences, with the old generation; and the
//!    old generation goes with the record, so a purge that comes later kills it like any other.
//! 2. Nothing replaced comes back: under the same lock, the harvested place must be the only one that the index has for the
//!    hash, and memory must not hold another version. A put that comes later has a higher sequence.
//! 3. Puts go first: where more waits to be written than the queue's half, the harvest goes without.
//! 4. What is read and queued here is at most the share of a segment, in bytes.
//!
//! Fragmented objects are not re-inserted: they would need all of their fragments, which lie in other segments.
//!
//! *Cost*: the tables of each segment are read once more, and of each object re-insertion one read at most. Bytes written
//! grow by at most 1 / (1 - share).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::entry::{Entry, Piece};
use crate::index::Location;
use crate::key::KeyHash;
use crate::log::{Care, SegmentReader};
use crate::planted::{Bug, planted};
use crate::queue::{Refused, Unwritten};
use crate::shared::{Found, Shared};
use crate::stat::Counters;

/// The largest share of a segment that may be re-inserted, in percent: beyond, the ring would carry itself around.
pub const REINSERT_PERCENT_MAX: u32 = 50;

/// Re-inserts what has proved itself in the segment that will be overwritten after the one that is being written.
pub async fn harvest(shared: Arc<Shared>) {
    let head = shared.head.load(Ordering::Acquire);
    let Some(old) = (head + 1).checked_sub(shared.layout.segment_count).filter(|&old| old > 0) else { return };
    let mut found: Vec<(KeyHash, Location)> = Vec::new();
    let mut reader = SegmentReader::new(&shared.device, &shared.layout, old);
    reader
        .scan(0, 0, Care::Search, |record| {
            let proved = record.whole && shared.marks.has(record.location);
            if proved && is_current(&shared, record.hash, record.location) {
                found.push((record.hash, record.location));
            }
        })
        .await;
    for (hash, location) in chosen(found, shared.reinsert_bytes_max()) {
        if shared.head.load(Ordering::Acquire) != head || shared.stopped().is_some() {
            return;
        }
        if !is_current(&shared, hash, location) {
            continue;
        }
        let entry = match shared.memory.get_at(hash, location) {
            Some(entry) => entry,
            None => match shared.read_record(hash, None, location).await {
                Found::Entry(entry) => entry,
                _ => continue,
            },
        };
        if entry.piece == Piece::Whole {
            shared.reinsert(entry, location);
        }
    }
}

/// Whether the index still leads there; purges are compared later, with the entry.
fn is_current(shared: &Shared, hash: KeyHash, location: Location) -> bool {
    let purged = planted(Bug::ReinsertionIgnoresPurge) && shared.index.candidates(hash).is_empty();
    shared.index.contains(hash, location) || planted(Bug::ReinsertionIgnoresReplacement) || purged
}

/// The smallest first, as a miss costs a fetch whatever its size, up to `bytes_max`; then in the order in which they lie.
fn chosen(mut found: Vec<(KeyHash, Location)>, bytes_max: u64) -> Vec<(KeyHash, Location)> {
    found.sort_unstable_by_key(|(_, location)| (location.bytes_max(), location.unit));
    let mut bytes = 0;
    found.retain(|(_, location)| {
        bytes += location.bytes_max();
        bytes <= bytes_max
    });
    found.sort_unstable_by_key(|(_, location)| location.unit);
    found
}

enum Refusal {
    Outdated,
    Busy,
}

impl From<Refused> for Refusal {
    fn from(_: Refused) -> Refusal {
        Refusal::Busy
    }
}

impl Shared {
    /// The most that is re-inserted of a segment, in bytes.
    fn reinsert_bytes_max(&self) -> u64 {
        self.layout.segment_bytes * u64::from(self.reinsert_percent) / 100
    }

    /// Queues an entry that lies at `from` to be written anew, unless it has been purged or replaced.
    fn reinsert(&self, entry: Arc<Entry>, from: Location) {
        let bytes = entry.body.len() as u64;
        let queued = self.queue.push_if_idle(|| {
            let purged = self.is_purged(&entry);
            if planted(Bug::ReinsertionIgnoresPurge) && purged {
                // The bug: it is written as if it had been put now.
                let parts = crate::entry::EntryParts {
                    key: entry.key.clone(),
                    primary_hash: entry.primary_hash,
                    hash: entry.hash,
                    piece: entry.piece,
                    metadata: entry.metadata.clone(),
                    body: entry.body.clone(),
                    object_bytes: entry.object_bytes,
                    generation: self.draw(),
                };
                let entry = Arc::new(Entry::new(parts, self.draw()));
                let previous = self.memory.put_unwritten(&entry);
                return Ok(Unwritten::of(entry, previous));
            }
            let alone = self.index.candidates(entry.hash).iter().all(|other| other.unit == from.unit)
                && self.index.contains(entry.hash, from);
            let replaced = !alone || self.memory.has_other_version(&entry);
            if purged || (replaced && !planted(Bug::ReinsertionIgnoresReplacement)) {
                return Err(Refusal::Outdated);
            }
            Ok(Unwritten { sequence: self.draw(), entry, previous: None, moved_from: Some(from) })
        });
        match queued {
            Ok(_) => {
                Counters::add(&self.counters.reinserted, 1);
                Counters::add(&self.counters.reinserted_bytes, bytes);
            }
            Err(Refusal::Busy) => Counters::add(&self.counters.reinsertions_refused, 1),
            Err(Refusal::Outdated) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_are_chosen_up_to_the_share_and_read_in_order() {
        let place = |unit: u64, bytes: u64| (KeyHash(unit.into()), Location::new(unit, bytes));
        let found = vec![place(1, 4096), place(100, 1024), place(200, 8192), place(300, 1024)];
        let units = |bytes_max| -> Vec<u64> {
            chosen(found.clone(), bytes_max).into_iter().map(|(_, location)| location.unit).collect()
        };
        assert_eq!(units(0), []);
        assert_eq!(units(2047), [100]);
        assert_eq!(units(6144), [1, 100, 300]);
        assert_eq!(units(1 << 20), [1, 100, 200, 300]);
    }
}
