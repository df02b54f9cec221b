//! A store's counters, and the sequences of its puts.
//!
//! Owns: every counter and its meaning. All of them begin at 0 when the store is opened.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Sequences of puts: each put has one, later ones are higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Sequence(pub u64);

/// How far puts have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sequences {
    /// The latest put that was admitted to the disk.
    pub last: Sequence,
    /// Every admitted put up to here is on the device: it survives the end of this process.
    pub written: Sequence,
    /// Every admitted put up to here was followed by a completed flush: it survives what a flush survives on this
    /// device.
    pub flushed: Sequence,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the store was opened.
        #[derive(Debug, Default)]
        pub(crate) struct Counters { $($(#[$doc])* pub $name: AtomicU64),* }

        /// A snapshot of the counters since the store was opened.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counts {
            /// Adds those of another span.
            pub(crate) fn add(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }

        impl Counters {
            pub fn snapshot(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
    /// Gets answered from memory.
    hits_memory,
    /// Gets answered from disk.
    hits_disk,
    /// Gets that found nothing.
    misses,
    /// Puts accepted (whole objects and heads).
    puts,
    /// Bytes of bodies accepted.
    put_bytes,
    /// Of these puts: admitted to the disk, at once or later.
    admitted,
    /// Bytes of their bodies.
    admitted_bytes,
    /// The part admitted despite the rules, because an older version is or may be on the disk.
    admitted_replacing,
    /// Bytes of their bodies.
    admitted_replacing_bytes,
    /// Of the admitted: later, when they were requested again in memory; they count as not admitted too.
    admitted_later,
    /// Puts not admitted because their key was not requested before.
    unadmitted_first,
    /// Bytes of their bodies.
    unadmitted_first_bytes,
    /// Puts not admitted because their body is too short or too long.
    unadmitted_size,
    /// Bytes of their bodies.
    unadmitted_size_bytes,
    /// Puts not admitted because of the write budget.
    unadmitted_budget,
    /// Bytes of their bodies.
    unadmitted_budget_bytes,
    /// Puts refused because the disk was too slow or budgets were used up.
    puts_refused,
    /// Fills and puts refused because a purge or a newer version came after they began.
    puts_stale,
    /// Purges that returned.
    purges,
    /// Of these: of a key that the store could not hold, so that nothing was written.
    purges_absent,
    /// Purges that waited until others were forgotten.
    purges_waited,
    /// How long they waited together, in microseconds.
    purges_waited_us,
    /// Segments that were reclaimed so that purges could be forgotten.
    purge_segments_reclaimed,
    /// Gets of an object that had been purged.
    hits_purged,
    /// Records found damaged when read; each costs its object.
    damaged,
    /// Reads that found another key or a reclaimed record where the index pointed.
    reads_wasted,
    /// Records read from the device.
    device_reads,
    /// Bytes read from the device for records.
    device_read_bytes,
    /// Gets that were answered by a read that another get had begun; they count as answered from disk, too.
    reads_shared,
    /// Reads that the device failed.
    device_read_errors,
    /// Reads that took the cluster around an object.
    cluster_reads,
    /// Bytes that they read beyond the objects'.
    cluster_read_bytes,
    /// Neighbours that went into memory with an object.
    neighbours_taken,
    /// Bytes of their bodies.
    neighbours_taken_bytes,
    /// Of these, how many were requested while they were in memory: each saved a read.
    neighbours_hit,
    /// Objects that came back into memory after a restart without being requested.
    warmed,
    /// Bytes of their bodies.
    warmed_bytes,
    /// Chunks of the hot list that were damaged.
    hot_chunks_damaged,
    /// Hints that two objects belong together.
    hints,
    /// Objects that were written beside those that hints tie them to.
    objects_tied,
    /// Appends written.
    appends,
    /// Bytes of appends written, headers and padding included.
    append_bytes,
    /// The size of tags in the written records: 8 bytes a tag.
    tags_written_bytes,
    /// Bytes of checkpoints and purge blocks written.
    metadata_bytes,
    /// Segments overwritten.
    segments_reclaimed,
    /// Entries that left with a reclaimed segment.
    entries_reclaimed,
    /// Objects that were rewritten before their segment was overwritten, because they had been requested.
    reinserted,
    /// Bytes of their bodies.
    reinserted_bytes,
    /// Objects that were to be rewritten and were not, because the ring overtook the harvest.
    reinsertions_refused,
    /// Objects that hints tie to a page and that did not come with it: each cost a read.
    misplaced,
    /// Objects in memory that were rewritten beside the page they were wanted with.
    regrouped,
    /// Bytes of their bodies.
    regrouped_bytes,
    /// Objects in memory that were rewritten before their segment was overwritten, because they had been requested.
    kept,
    /// Bytes of their bodies.
    kept_bytes,
    /// Bodies of which a part was overwritten during the read.
    bodies_overtaken,
    /// Index checkpoints written.
    checkpoints,
    /// Flushes of the device.
    flushes,
}

impl Counts {
    /// Bytes written to the device, checkpoints and purges included, for each byte of a body that was admitted; `None`
    /// if nothing was.
    pub fn written_per_admitted(&self) -> Option<f64> {
        let written = self.append_bytes + self.metadata_bytes;
        (self.admitted_bytes > 0).then(|| (written as f64 / self.admitted_bytes as f64 * 1000.0).round() / 1000.0)
    }

    /// The share of the bytes put that was admitted to the disk; `None` if nothing was put.
    pub fn admitted_share(&self) -> Option<f64> {
        let share = self.admitted_bytes as f64 / self.put_bytes.max(1) as f64;
        (self.put_bytes > 0).then(|| (share * 1000.0).round() / 1000.0)
    }
}

impl Counters {
    /// All that was written to the device, in bytes.
    pub fn written_bytes(&self) -> u64 {
        self.append_bytes.load(Ordering::Relaxed) + self.metadata_bytes.load(Ordering::Relaxed)
    }

    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
