//! What a store counts and reports.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::admission::AdmissionStat;
use crate::clusters::ClusterRead;

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
    /// Every admitted put up to here was followed by a completed flush: it survives what a flush survives on this device.
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
            fn add(&mut self, other: &Counts) {
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
    /// Of the admitted: whatever the rules say, because something older is or may be on the disk.
    admitted_replacing,
    /// Bytes of their bodies.
    admitted_replacing_bytes,
    /// Of the admitted: later, when they were asked for again in memory; they count as not admitted too.
    admitted_later,
    /// Puts not admitted because their key was not asked for before.
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
    /// Gets whose object had been purged.
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
    /// Of these, how many were asked for while they were in memory: each saved a read.
    neighbours_hit,
    /// Neighbours taken of which the index leads to a copy elsewhere.
    copies_taken,
    /// Objects that came back into memory after a restart without being asked for.
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
    /// Bytes of tags in what was written: 8 a tag.
    tags_written_bytes,
    /// Bytes of checkpoints and purge blocks written.
    metadata_bytes,
    /// Segments overwritten.
    segments_reclaimed,
    /// Entries that left with a reclaimed segment.
    entries_reclaimed,
    /// Objects that were written anew before their segment was overwritten, because they had been asked for.
    reinserted,
    /// Bytes of their bodies.
    reinserted_bytes,
    /// Objects that were to be written anew and were not, because the ring overtook the harvest.
    reinsertions_refused,
    /// Objects that hints tie to a page and that did not come with it: each cost a read.
    strays,
    /// Objects in memory that were written anew beside the page they were wanted with.
    regrouped,
    /// Bytes of their bodies.
    regrouped_bytes,
    /// Objects in memory that were written anew before their segment was overwritten, because they had been asked for.
    kept,
    /// Bytes of their bodies.
    kept_bytes,
    /// Bodies of which a part was overwritten while they were read.
    bodies_overtaken,
    /// Index checkpoints written.
    checkpoints,
    /// Flushes of the device.
    flushes,
}

impl Counts {
    /// Bytes written to the device, checkpoints and purges included, for each byte of a body that was admitted; `None`
    /// where nothing was.
    pub fn written_per_admitted(&self) -> Option<f64> {
        let written = self.append_bytes + self.metadata_bytes;
        (self.admitted_bytes > 0).then(|| (written as f64 / self.admitted_bytes as f64 * 1000.0).round() / 1000.0)
    }

    /// The share of the bytes put that was admitted to the disk; `None` where nothing was put.
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

/// How the store came up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// Opens of this store so far, this one included.
    pub life: u64,
    /// Whether it had been stopped cleanly.
    pub clean: bool,
    /// Whether an index checkpoint was used; if not, every segment was scanned.
    pub checkpoint: bool,
    /// Appends replayed.
    pub appends: u64,
    /// Their bytes.
    pub append_bytes: u64,
    /// Records replayed.
    pub records: u64,
    /// Records found one by one where an append's header was damaged.
    pub salvaged: u64,
    /// Whether purge records were missing, so that everything older counts as purged.
    pub purges_lost: bool,
    /// How long it took, in microseconds.
    pub duration_us: u64,
}

/// State of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stat {
    /// The device's SPEC.
    pub device: String,
    /// The store's identity, in hexadecimal.
    pub identity: String,
    /// Size of the span in bytes.
    pub span_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// How many segments there are.
    pub segment_count: u64,
    /// The segment incarnation being written; the lap is its quotient by the count.
    pub head_incarnation: u64,
    /// Bodies up to this size are one record, in bytes.
    pub whole_bytes_max: u64,
    /// Entries in the index (objects, and fragments of large ones); while it is loading, what its checkpoint says.
    pub entries: u64,
    /// Whether the index is still being read. Then other figures of the index count the parts that are there.
    #[serde(default)]
    pub index_loading: bool,
    /// What the index's entries may take on disk, in bytes.
    pub entries_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes of the marks that say what was asked for since it was written.
    pub marks_bytes: u64,
    /// The share of a segment that may be written anew, in percent.
    pub reinsert_percent: u32,
    /// Size of a cluster in bytes; 0: none are packed and none read.
    pub cluster_bytes: u64,
    /// What a read from disk takes: the cluster, the object, or what has paid.
    pub cluster_read: ClusterRead,
    /// Bytes of the table of pending hints.
    pub hints_bytes: u64,
    /// Bytes of the extents of groups.
    pub groups_bytes: u64,
    /// Entries given up because the index was at its bound.
    pub index_evictions: u64,
    /// The replacement policy of the memory tier.
    pub memory_policy: String,
    /// Capacity of the memory tier in bytes, what is not yet written included.
    pub memory_capacity_bytes: u64,
    /// Bytes of written entries in memory.
    pub memory_used_bytes: u64,
    /// Bytes of entries not yet written.
    pub memory_unwritten_bytes: u64,
    /// Entries in memory.
    pub memory_entries: u64,
    /// Bytes that tags take in memory, as a part of what entries and fills take.
    pub memory_tags_bytes: u64,
    /// Bytes that fills under way hold.
    pub fill_bytes: u64,
    /// Whether what was in memory before the store was opened is still being read into it.
    pub warming: bool,
    /// Live purge records.
    pub purge_records: u64,
    /// How many of them there may be; purges beyond wait while the oldest segments are reclaimed.
    #[serde(default)]
    pub purge_records_max: u64,
    /// Purges that wait so now.
    #[serde(default)]
    pub purges_waiting: u64,
    /// Bytes of the names that tell whether a purge needs a record.
    #[serde(default)]
    pub names_bytes: u64,
    /// Whether all names are known; before, each purge gets a record.
    #[serde(default)]
    pub names_known: bool,
    /// How far puts have come.
    pub sequences: Sequences,
    /// What is admitted to the disk.
    #[serde(default)]
    pub admission: AdmissionStat,
    /// Bytes written to the device for each byte of a body that was admitted, both since the store was opened.
    pub written_per_admitted: Option<f64>,
    /// Counters since the store was opened.
    pub counts: Counts,
    /// How the store came up.
    pub recovery: Recovery,
    /// Why the store takes no more writes, where that is so.
    pub stopped: Option<String>,
    /// Each span of a store of several; then all else here are sums, or the values of the first that is there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanStat>,
}

/// State of one span of a store of several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpanStat {
    /// Its number, from 0.
    pub number: u32,
    /// The device's SPEC.
    pub spec: String,
    /// Why it is not there, where that is so.
    pub lost: Option<String>,
    /// Its state; `None` where it could not be opened.
    pub stat: Option<Stat>,
}

impl Stat {
    /// Adds the spans that are there to one of them, `first`.
    pub(crate) fn sum(first: Stat, spans: Vec<SpanStat>) -> Stat {
        let mut sum = first;
        let identity = sum.identity.clone();
        let others = spans.iter().filter(|span| span.lost.is_none()).filter_map(|span| span.stat.as_ref());
        for stat in others.filter(|stat| stat.identity != identity) {
            sum.device = format!("{} {}", sum.device, stat.device);
            for (total, part) in [
                (&mut sum.span_bytes, stat.span_bytes),
                (&mut sum.segment_count, stat.segment_count),
                (&mut sum.entries, stat.entries),
                (&mut sum.entries_bytes, stat.entries_bytes),
                (&mut sum.index_bytes, stat.index_bytes),
                (&mut sum.marks_bytes, stat.marks_bytes),
                (&mut sum.hints_bytes, stat.hints_bytes),
                (&mut sum.groups_bytes, stat.groups_bytes),
                (&mut sum.index_evictions, stat.index_evictions),
                (&mut sum.memory_capacity_bytes, stat.memory_capacity_bytes),
                (&mut sum.memory_used_bytes, stat.memory_used_bytes),
                (&mut sum.memory_unwritten_bytes, stat.memory_unwritten_bytes),
                (&mut sum.memory_entries, stat.memory_entries),
                (&mut sum.fill_bytes, stat.fill_bytes),
                (&mut sum.memory_tags_bytes, stat.memory_tags_bytes),
                (&mut sum.purge_records, stat.purge_records),
                (&mut sum.purge_records_max, stat.purge_records_max),
                (&mut sum.purges_waiting, stat.purges_waiting),
                (&mut sum.names_bytes, stat.names_bytes),
            ] {
                *total += part;
            }
            sum.index_loading |= stat.index_loading;
            sum.warming |= stat.warming;
            sum.names_known &= stat.names_known;
            sum.admission.add(&stat.admission);
            sum.counts.add(&stat.counts);
            let (all, one) = (&mut sum.recovery, &stat.recovery);
            all.clean &= one.clean;
            all.checkpoint &= one.checkpoint;
            all.purges_lost |= one.purges_lost;
            all.append_bytes += one.append_bytes;
            all.appends += one.appends;
            all.records += one.records;
            all.salvaged += one.salvaged;
            all.duration_us += one.duration_us;
        }
        sum.admission.admitted_share = sum.counts.admitted_share();
        sum.written_per_admitted = sum.counts.written_per_admitted();
        Stat { spans, ..sum }
    }
}
