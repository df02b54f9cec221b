//! The decision whether a read from disk reads only the object, or the whole cluster around it.
//!
//! Owns: this decision, and the counts on which it is based. Leaves to others: reading (`get/neighbours.rs`), and the
//! order of packing (`arrange`).
//!
//! # The choice
//! A cluster read costs the bytes beyond the object. Its gain is that each neighbour that is requested while it is in
//! memory saves a read. Costs and gains are counted. A read from disk is assumed to cost as much as reading
//! [`READ_WORTH_BYTES`] sequentially. So clusters are read while the saved reads, times that constant, are at least the
//! bytes beyond the objects. Otherwise only one eligible read (whose cluster is larger than the object) in
//! [`PROBE_EVERY`] reads the cluster, so that a change is noticed. The smaller the gain is, the rarer are these probes,
//! down to one in [`PROBE_EVERY_MAX`]. The counts are halved from time to time, so recent reads have more weight.
//! Neighbours that no hint ties to the object are judged separately: they are read with the cluster anyway, but they
//! take room in memory. So they enter memory only while at least one in [`UNTIED_PER_HIT_MAX`] of them is requested.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::memory::entry::NeighbourKind;

/// The cost of a random read, as the number of bytes that could be read sequentially in the same time: about 10 ms at
/// 20 MB/s on a disk of 1999, or 100 us at 1.3 GB/s on flash. On a hard disk of today this cost is ten times higher, so
/// there clusters are read too seldom rather than too often.
const READ_WORTH_BYTES: u64 = 128 << 10;
/// While clusters almost pay off, one of this many eligible reads reads the whole cluster.
const PROBE_EVERY: u64 = 16;
/// While clusters gain nothing, one of this many eligible reads reads the whole cluster: with clusters of 64 KiB, that
/// costs half a kilobyte per read.
const PROBE_EVERY_MAX: u64 = 128;
/// The counts are used when they have at least `ACCOUNT_MIN` reads or neighbours. They are halved at `ACCOUNT_MAX`, or
/// already at `PROBES_MAX` while clusters are only probed, because probes are rare.
const ACCOUNT_MIN: u64 = 64;
const ACCOUNT_MAX: u64 = 1024;
const PROBES_MAX: u64 = 128;
/// Untied neighbours are put into memory only while at least one of this many is requested.
const UNTIED_PER_HIT_MAX: u64 = 8;

/// The extent of a read from disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterRead {
    /// A read reads the whole cluster if that has paid off lately, otherwise only the object.
    #[default]
    Auto,
    /// A read reads the cluster around the object, if this is possible with one read.
    Cluster,
    /// A read reads only the object.
    Object,
}

impl ClusterRead {
    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            ClusterRead::Auto => "auto",
            ClusterRead::Cluster => "cluster",
            ClusterRead::Object => "object",
        }
    }
}

impl std::str::FromStr for ClusterRead {
    type Err = String;

    fn from_str(text: &str) -> Result<ClusterRead, String> {
        let all = [ClusterRead::Auto, ClusterRead::Cluster, ClusterRead::Object];
        let found = all.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of auto, cluster, object"))
    }
}

/// Counts that are halved together, so that old events lose weight.
#[derive(Default)]
struct DecayingCounts {
    /// Cluster reads, or neighbours that were put into memory.
    count: AtomicU64,
    /// Neighbours that were requested while they were in memory.
    hits: AtomicU64,
    /// Bytes read beyond the objects.
    bytes: AtomicU64,
}

impl DecayingCounts {
    fn add(&self, bytes: u64, count_max: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 >= count_max {
            for part in [&self.count, &self.hits, &self.bytes] {
                let _ = part.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |value| Some(value / 2));
            }
        }
    }

    fn get(&self) -> (u64, u64, u64) {
        let load = |part: &AtomicU64| part.load(Ordering::Relaxed);
        (load(&self.count), load(&self.hits), load(&self.bytes))
    }
}

/// The choice between objects and clusters.
pub struct ClusterChoice {
    mode: ClusterRead,
    /// The size of a cluster; 0 for no clusters.
    cluster_bytes: u64,
    /// The number of eligible reads so far.
    eligible: AtomicU64,
    reads: DecayingCounts,
    untied: DecayingCounts,
}

impl ClusterChoice {
    /// Starts without counts. Clusters are read until there are enough counts.
    pub fn new(mode: ClusterRead, cluster_bytes: u64) -> ClusterChoice {
        let (eligible, reads, untied) = Default::default();
        ClusterChoice { mode, cluster_bytes, eligible, reads, untied }
    }

    /// The size of a cluster, in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        self.cluster_bytes
    }

    /// The option that the caller set.
    pub fn mode(&self) -> ClusterRead {
        self.mode
    }

    /// Whether the next eligible read reads the cluster.
    pub fn read_cluster(&self) -> bool {
        match self.mode {
            _ if self.cluster_bytes == 0 => false,
            ClusterRead::Object => false,
            ClusterRead::Cluster => true,
            ClusterRead::Auto => {
                let every = self.probe_every();
                every == 1 || self.eligible.fetch_add(1, Ordering::Relaxed).is_multiple_of(every)
            }
        }
    }

    /// The number of eligible reads per cluster read: 1 if clusters pay off; the less they gain, the higher the number.
    fn probe_every(&self) -> u64 {
        let (count, hits, bytes) = self.reads.get();
        let saved = hits * READ_WORTH_BYTES;
        if count < ACCOUNT_MIN || saved >= bytes {
            return 1;
        }
        (PROBE_EVERY * bytes / saved.max(1)).min(PROBE_EVERY_MAX)
    }

    /// Whether neighbours that no hint ties to the object are put into memory too.
    pub fn takes_untied(&self) -> bool {
        if self.mode == ClusterRead::Cluster {
            return true;
        }
        let (count, hits, _) = self.untied.get();
        count < ACCOUNT_MIN
            || hits * UNTIED_PER_HIT_MAX >= count
            || self.eligible.fetch_add(1, Ordering::Relaxed) % PROBE_EVERY == 1
    }

    /// Notes a cluster read of this many bytes beyond the object.
    pub fn note_read(&self, bytes: u64) {
        self.reads.add(bytes, if self.probe_every() == 1 { ACCOUNT_MAX } else { PROBES_MAX });
    }

    /// Notes a neighbour that was put into memory.
    pub fn note_taken(&self, neighbour: NeighbourKind) {
        if neighbour == NeighbourKind::Untied {
            self.untied.add(0, ACCOUNT_MAX);
        }
    }

    /// Notes that a neighbour was requested while it was in memory.
    pub fn note_hit(&self, neighbour: NeighbourKind) {
        self.reads.hits.fetch_add(1, Ordering::Relaxed);
        if neighbour == NeighbourKind::Untied {
            self.untied.hits.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTRA: u64 = 56 << 10;

    /// Makes `count` eligible reads. One in `hit_every` of the resulting cluster reads saves a later read. Returns the
    /// number of cluster reads.
    fn cluster_reads(clusters: &ClusterChoice, count: u64, hit_every: u64) -> u64 {
        let mut taken = 0;
        for _ in 0..count {
            if clusters.read_cluster() {
                taken += 1;
                clusters.note_read(EXTRA);
                if taken % hit_every == 0 {
                    clusters.note_hit(NeighbourKind::Tied);
                }
            }
        }
        taken
    }

    #[test]
    fn clusters_are_read_while_profitable() {
        let clusters = ClusterChoice::new(ClusterRead::Auto, 65536);
        assert_eq!(cluster_reads(&clusters, 10_000, 2), 10_000);
        assert!((400..2_000).contains(&cluster_reads(&clusters, 100_000, 50)));
        assert!(cluster_reads(&clusters, 100_000, 1) > 90_000);
    }

    #[test]
    fn the_option_fixes_the_choice() {
        assert_eq!(cluster_reads(&ClusterChoice::new(ClusterRead::Cluster, 65536), 5_000, u64::MAX), 5_000);
        assert_eq!(cluster_reads(&ClusterChoice::new(ClusterRead::Object, 65536), 5_000, 1), 0);
        assert_eq!(cluster_reads(&ClusterChoice::new(ClusterRead::Cluster, 0), 5_000, 1), 0);
        for mode in [ClusterRead::Auto, ClusterRead::Cluster, ClusterRead::Object] {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("both".parse::<ClusterRead>().is_err());
    }

    #[test]
    fn unwanted_neighbours_are_sampled_rarely() {
        let clusters = ClusterChoice::new(ClusterRead::Auto, 65536);
        let mut taken = 0;
        for _ in 0..10_000 {
            if clusters.takes_untied() {
                taken += 1;
                clusters.note_taken(NeighbourKind::Untied);
            }
        }
        assert!((ACCOUNT_MIN..1000).contains(&taken), "{taken}");
        (0..1000).for_each(|_| clusters.note_hit(NeighbourKind::Untied));
        assert!((0..100).all(|_| clusters.takes_untied()));
    }
}
