//! A store's counters, and the sequences of its puts.
//!
//! Owns: every counter and its meaning. All counters are 0 when the store is opened.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// The number of a put, higher than the numbers of all earlier puts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct PutSequence(pub u64);

/// The sequences that puts have reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PutSequences {
    /// The sequence of the latest put that was admitted to the disk.
    pub last: PutSequence,
    /// Every admitted put up to this sequence is on the device: it survives the end of this process.
    pub written: PutSequence,
    /// The device was flushed after every admitted put up to this sequence: these puts survive a power cut if the
    /// device keeps its flushed data.
    pub flushed: PutSequence,
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
            /// Adds the counters of another span.
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
    /// Accepted puts of objects; a fragmented object counts once.
    puts,
    /// Bytes of the bodies of accepted puts.
    put_bytes,
    /// Puts admitted to the disk, at once or later.
    admitted,
    /// Bytes of the bodies of admitted puts.
    admitted_bytes,
    /// Puts admitted against the rules, because an older version of the object is or may be on the disk.
    admitted_replacing,
    /// Bytes of the bodies of the puts in `admitted_replacing`.
    admitted_replacing_bytes,
    /// Objects that were not admitted at their put, and were admitted later, when they were requested again in memory.
    /// Each counts both as unadmitted and as admitted.
    admitted_later,
    /// Puts not admitted because their key was not requested before.
    unadmitted_first,
    /// Bytes of the bodies of the puts in `unadmitted_first`.
    unadmitted_first_bytes,
    /// Puts not admitted because their body is too short or too long.
    unadmitted_size,
    /// Bytes of the bodies of the puts in `unadmitted_size`.
    unadmitted_size_bytes,
    /// Puts not admitted because of the write budget.
    unadmitted_budget,
    /// Bytes of the bodies of the puts in `unadmitted_budget`.
    unadmitted_budget_bytes,
    /// Puts that were kept in memory alone, as the caller has the objects elsewhere.
    unadmitted_copies,
    /// Bytes of the bodies of the puts in `unadmitted_copies`.
    unadmitted_copies_bytes,
    /// Puts refused because the disk was too slow or budgets were used up.
    puts_refused,
    /// Fills and puts refused because a purge or a newer version came after they began.
    puts_stale,
    /// Purges that returned without an error.
    purges,
    /// Purges that wrote nothing, because the store had no object of the key.
    purges_absent,
    /// Purges that waited until older purges were forgotten.
    purges_waited,
    /// The total time that purges waited, in microseconds.
    purges_waited_us,
    /// Segments that were reclaimed so that purges could be forgotten.
    purge_segments_reclaimed,
    /// Gets that found only a purged object.
    hits_purged,
    /// Records that were found damaged when they were read. The object of each such record becomes a miss.
    damaged,
    /// Reads that found the record of another key, or a reclaimed record, where the index pointed.
    reads_wasted,
    /// Records read from the device.
    device_reads,
    /// Bytes read from the device for records.
    device_read_bytes,
    /// Gets answered by a read that another get had begun; they also count in `hits_disk`.
    reads_shared,
    /// Reads that failed on the device.
    device_read_errors,
    /// Reads of the whole cluster of an object.
    cluster_reads,
    /// Bytes that cluster reads read beyond the requested objects.
    cluster_read_bytes,
    /// Neighbours (other objects in the same cluster) that entered memory together with a requested object.
    neighbours_taken,
    /// Bytes of the bodies of the neighbours in `neighbours_taken`.
    neighbours_taken_bytes,
    /// Neighbours that were requested while they were in memory: each saved a read.
    neighbours_hit,
    /// Objects that were read into memory again after a restart, without a request.
    warmed,
    /// Bytes of the bodies of the objects in `warmed`.
    warmed_bytes,
    /// Chunks of the hot list that were damaged.
    hot_chunks_damaged,
    /// Calls that gave a hint: the hint says that two objects belong together.
    hints,
    /// Objects that were written next to the objects that hints tie them to.
    objects_tied,
    /// Appends written.
    appends,
    /// Bytes of appends written, headers and padding included.
    append_bytes,
    /// Bytes of the tags in written records; each tag has 8 bytes.
    tags_written_bytes,
    /// Bytes of checkpoints and purge blocks written.
    metadata_bytes,
    /// Segments overwritten.
    segments_reclaimed,
    /// Entries removed from the index because their segment was reclaimed.
    entries_reclaimed,
    /// Objects that were rewritten before their segment was overwritten, because they had been requested.
    reinserted,
    /// Bytes of the bodies of the objects in `reinserted`.
    reinserted_bytes,
    /// Objects chosen for rewriting and not rewritten, because their segment was overwritten first.
    reinsertions_refused,
    /// Objects that hints tie to a page, but that were not read together with the page: each cost a separate read.
    misplaced,
    /// Objects in memory that were rewritten next to the page with which they were requested.
    regrouped,
    /// Bytes of the bodies of the objects in `regrouped`.
    regrouped_bytes,
    /// Objects in memory that were rewritten before their segment was overwritten, because they had been requested.
    kept,
    /// Bytes of the bodies of the objects in `kept`.
    kept_bytes,
    /// Bodies that were partly overwritten while they were read.
    bodies_overtaken,
    /// Index checkpoints written.
    checkpoints,
    /// Reads that missed their deadline; they also count in `device_read_errors`.
    reads_late,
    /// Reads that were not tried, because the device did not answer the one before.
    reads_avoided,
    /// Writes and flushes that missed their deadline.
    writes_late,
    /// Flushes of the device.
    flushes,
    /// Flushes that failed. After each, everything written since the last good flush is rewritten.
    flushes_failed,
    /// Appends and other writes that failed on the device.
    writes_failed,
    /// Segments whose rest is not used until the ring reaches them again, because a write into them failed.
    segments_set_aside,
    /// Appends that were written a second time in their place after a failed flush.
    appends_rewritten,
}

impl Counts {
    /// The number of bytes written to the device, checkpoints and purges included, per byte of admitted bodies; `None`
    /// if nothing was admitted.
    pub fn written_per_admitted(&self) -> Option<f64> {
        let written = self.append_bytes + self.metadata_bytes;
        (self.admitted_bytes > 0).then(|| (written as f64 / self.admitted_bytes as f64 * 1000.0).round() / 1000.0)
    }

    /// The share of the put bytes that was admitted to the disk, from 0 to 1; `None` if nothing was put.
    pub fn admitted_share(&self) -> Option<f64> {
        let share = self.admitted_bytes as f64 / self.put_bytes.max(1) as f64;
        (self.put_bytes > 0).then(|| (share * 1000.0).round() / 1000.0)
    }
}

impl Counters {
    /// All bytes written to the device.
    pub fn written_bytes(&self) -> u64 {
        self.append_bytes.load(Ordering::Relaxed) + self.metadata_bytes.load(Ordering::Relaxed)
    }

    pub fn add(counter: &AtomicU64, amount: u64) {
        counter.fetch_add(amount, Ordering::Relaxed);
    }
}
