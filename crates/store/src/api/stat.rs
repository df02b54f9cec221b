//! The state of a store, for reports.
//!
//! Owns: the reported values, and the rules by which the states of several spans are added up. Leaves to others:
//! counting (`counters`).

use serde::{Deserialize, Serialize};

use crate::counters::{Counts, PutSequences};
use crate::intake::admission::AdmissionStat;
use crate::locality::clusters::ClusterRead;
use crate::recover::RecoveryReport;

/// State of a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoreStat {
    /// The SPEC of the device.
    pub device: String,
    /// The store's identity, in hexadecimal.
    pub identity: String,
    /// Size of the span in bytes.
    pub span_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// The number of segments.
    pub segment_count: u64,
    /// The epoch of the segment that is being written. Divided by the number of segments, it gives the cycle.
    pub head_epoch: u64,
    /// The largest body that is stored as one record, in bytes.
    pub whole_bytes_max: u64,
    /// Entries in the index (objects, and fragments of large ones); while the index is loading, the number of entries
    /// in its checkpoint.
    pub entries: u64,
    /// Whether the index is still being read. If so, the other figures of the index count only its loaded parts.
    #[serde(default)]
    pub index_loading: bool,
    /// An upper bound of the total size of the records to which the index points, in bytes.
    pub entries_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// The memory of the referenced bits, which tell which objects were requested since they were written. *Units*:
    /// bytes.
    pub referenced_bytes: u64,
    /// The largest part of a segment that may be re-inserted, in percent.
    pub reinsert_percent: u32,
    /// Size of a cluster in bytes; 0 if clusters are neither packed nor read.
    pub cluster_bytes: u64,
    /// Whether a read from disk reads the whole cluster, only the object, or whichever of the two has paid off lately.
    pub cluster_read: ClusterRead,
    /// Bytes of the table of pending hints.
    pub hints_bytes: u64,
    /// The memory of the extents of groups, in bytes.
    pub groups_bytes: u64,
    /// Entries dropped because the index was full.
    pub index_evictions: u64,
    /// The replacement policy of the memory tier.
    pub memory_policy: String,
    /// Capacity of the memory tier, for written entries and those not yet written. *Units*: bytes.
    pub memory_capacity_bytes: u64,
    /// Bytes of written entries in memory.
    pub memory_used_bytes: u64,
    /// Bytes of entries not yet written.
    pub memory_unwritten_bytes: u64,
    /// Entries in memory.
    pub memory_entries: u64,
    /// Memory of tags, which is a part of the memory of entries and fills. *Units*: bytes.
    pub memory_tags_bytes: u64,
    /// Memory of the running fills. *Units*: bytes.
    pub fill_bytes: u64,
    /// Whether the store is still warming up: it reads into memory the objects that were there before the restart.
    pub warming: bool,
    /// Live purge records.
    pub purge_records: u64,
    /// The largest number of live purge records; further purges wait while the oldest segments are reclaimed.
    #[serde(default)]
    pub purge_records_max: u64,
    /// Purges that wait now because `purge_records` has reached `purge_records_max`.
    #[serde(default)]
    pub purges_waiting: u64,
    /// Memory of the filters that tell which keys the store may have; the purge of any other key needs no record.
    /// *Units*: bytes.
    #[serde(default)]
    pub names_bytes: u64,
    /// Whether the filters know the keys of all objects in the store; until they do, each purge gets a record.
    #[serde(default)]
    pub names_known: bool,
    /// The sequences that puts have reached.
    pub sequences: PutSequences,
    /// The rules of admission to the disk.
    #[serde(default)]
    pub admission: AdmissionStat,
    /// Bytes written to the device per byte of admitted bodies, both since the store was opened.
    pub written_per_admitted: Option<f64>,
    /// Counters since the store was opened.
    pub counts: Counts,
    /// The report of the recovery that ran when the store was opened.
    pub recovery: RecoveryReport,
    /// Why nothing is written at present, although the store tries again by itself; `None` if the device takes writes.
    #[serde(default)]
    pub trouble: Option<String>,
    /// Why the store takes no more writes; `None` while it takes writes.
    pub stopped: Option<String>,
    /// The spans of a store of several spans; empty in a store of one span. If there are several, all other fields are
    /// sums, or the values of the first present span.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spans: Vec<SpanStat>,
}

/// State of one span of a store of several spans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpanStat {
    /// The number of the span, counted from 0.
    pub number: u32,
    /// The SPEC of the device.
    pub spec: String,
    /// Why the span is absent; `None` if it is present.
    pub lost: Option<String>,
    /// The state of the span; `None` if it could not be opened.
    pub stat: Option<StoreStat>,
}

impl StoreStat {
    /// Returns the sums over the present spans; `first` is the state of one of them.
    pub(crate) fn sum(first: StoreStat, spans: Vec<SpanStat>) -> StoreStat {
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
                (&mut sum.referenced_bytes, stat.referenced_bytes),
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
        StoreStat { spans, ..sum }
    }
}
