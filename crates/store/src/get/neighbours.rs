//! Reading a cluster: an object and its neighbours in one read.
//!
//! Owns: which bytes are read for an object (its group if `groups` knows the group, otherwise the aligned window around
//! the object), and which of its neighbours enter memory with it. Leaves to others: when a cluster is read
//! (`clusters`), and the checks of the requested object (`state/record.rs`).
//!
//! # Invariants
//! A neighbour is an entry that nobody requested, so it has to pass more checks than a requested one:
//! 1. The neighbour is a whole object. Its header and body match their checksums, its address, and the epoch that the
//!    segment had before the read began.
//! 2. The index has this location, and no other, for its hash: so no newer version is on disk. And memory has no entry
//!    under its id: so no newer version waits to be written.
//! 3. The neighbour is not purged. A later purge applies to it as to any other object in memory, because every hit is
//!    compared with the purges.
//! 4. Rule 2 and the epoch of the segment are checked again under the lock under which entries enter memory. So objects
//!    that were replaced or reclaimed during the read do not enter memory.
//!
//! All other bytes in the window (older versions, records of an earlier cycle, appends being written) are skipped.
//!
//! *Cost*: one read of at most a cluster; a neighbour that enters memory is copied.

use std::sync::Arc;

use nectary_block::Buffer;

use crate::counters::Counters;
use crate::disk::span::ReadExtent;
use crate::format::{self, DecodedRecord, FrameMagic, FramePlace, GRANULE_BYTES, RecordKind, RecordLocation};
use crate::get::lookup::ObjectLookup;
use crate::locality::clusters::ClusterRead;
use crate::locality::groups::GroupLocation;
use crate::memory::entry::{MemoryEntry, NeighbourKind};
use crate::names::key::{KeyHash, KeyRef};
use crate::planted::{Bug, planted};
use crate::state::record::{RecordLookup, decode, read_fragment, read_record, unasked};

/// Neighbours of one read take at most 1/`MEMORY_SHARE` of the memory tier.
const MEMORY_SHARE: u64 = 32;

/// A cluster that was read, and the location of the record for which it was read.
pub(crate) struct ClusterWindow {
    buffer: Buffer,
    extent: ReadExtent,
    location: RecordLocation,
}

impl ObjectLookup {
    /// Reads the record at a location; without `key`, that of a fragment. Reads the cluster around an object's record
    /// too, if that pays off.
    pub async fn read_with_neighbours(
        &self,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
        location: RecordLocation,
    ) -> (RecordLookup, Option<ClusterWindow>) {
        if key.is_none() {
            // A reader requests fragments one after the other, so they are read without neighbours.
            return (read_fragment(&self.state, hash, location).await, None);
        }
        let window = self.span.extent(location).and_then(|own| Some((own, self.cluster(own, location)?)));
        let Some((own, extent)) = window.filter(|_| self.clusters.read_cluster()) else {
            return (read_record(&self.state, hash, key, location).await, None);
        };
        // If reading the cluster fails, the object is read alone.
        let Ok(buffer) = self.span.read_extent(extent).await else {
            return (read_record(&self.state, hash, key, location).await, None);
        };
        let beyond = (extent.end - extent.start) - (own.end - own.start);
        Counters::add(&self.span.counters.cluster_reads, 1);
        Counters::add(&self.span.counters.cluster_read_bytes, beyond);
        self.clusters.note_read(beyond);
        let (found, buffer) = decode(&self.state, hash, key, location, extent, buffer);
        (found, buffer.map(|buffer| ClusterWindow { buffer, extent, location }))
    }

    /// The extent to read for a record and its neighbours: the record's group if it is known, otherwise the aligned
    /// window around the record.
    fn cluster(&self, own: ReadExtent, location: RecordLocation) -> Option<ReadExtent> {
        let segment_granules = self.span.layout.segment_bytes / GRANULE_BYTES;
        let (segment, granule) = (location.granule / segment_granules, location.granule % segment_granules);
        match self.groups.find(segment, own.epoch, granule) {
            GroupLocation::Alone if self.clusters.mode() == ClusterRead::Auto => None,
            GroupLocation::Group(granules)
                if (granules.end - granules.start) * GRANULE_BYTES <= self.clusters.cluster_bytes() =>
            {
                let segment = self.span.layout.segments_offset + segment * self.span.layout.segment_bytes;
                let block = u64::from(self.span.device.geometry().block_bytes);
                let start = (segment + granules.start * GRANULE_BYTES) / block * block;
                let end = (segment + granules.end * GRANULE_BYTES).next_multiple_of(block);
                // The index rounds lengths up to classes, so the last record may seem to end after its group.
                let group = ReadExtent { start: start.min(own.start), end: end.max(own.end), ..own };
                (group.end - group.start > own.end - own.start).then_some(group)
            }
            _ => self.window(own),
        }
    }

    /// The aligned window around a record; `None` if the window does not contain the whole record, or contains nothing
    /// else.
    fn window(&self, own: ReadExtent) -> Option<ReadExtent> {
        let cluster_bytes = self.clusters.cluster_bytes();
        if cluster_bytes == 0 {
            return None;
        }
        let segment_bytes = self.span.layout.segment_bytes;
        let offset = own.start - self.span.layout.segments_offset;
        let segment = offset / segment_bytes * segment_bytes;
        let start = segment + (offset - segment) / cluster_bytes * cluster_bytes;
        let end = (start + cluster_bytes).min(segment + segment_bytes);
        let (start, end) = (start + self.span.layout.segments_offset, end + self.span.layout.segments_offset);
        // The index rounds lengths up to classes, so the last record of a cluster may seem longer than it is.
        let fits = own.end <= end || own.end - end < (own.end - own.start) / 4;
        let block = u64::from(self.span.device.geometry().block_bytes);
        let (start, end) = (start / block * block, end.max(own.end).next_multiple_of(block));
        (fits && end - start > own.end - own.start).then_some(ReadExtent { start, end, ..own })
    }

    /// Puts the neighbours of `entry` that were read in `window` into memory. Returns the hashes of the neighbours that
    /// hints tie to `entry`.
    pub fn take_neighbours(&self, window: &ClusterWindow, entry: &MemoryEntry) -> Vec<KeyHash> {
        let mut tied = Vec::new();
        let bytes: &[u8] = &window.buffer;
        let base = window.extent.start;
        let takes_untied = self.clusters.takes_untied();
        let mut left = self.state.memory.capacity() / MEMORY_SHARE;
        let mut at = base.next_multiple_of(GRANULE_BYTES) - base;
        while let Some(rest) = bytes.get(at as usize..).filter(|rest| rest.len() >= format::RECORD_HEADER_BYTES) {
            let place =
                FramePlace { identity: self.span.layout.identity, epoch: window.extent.epoch, address: base + at };
            let apparent = format::apparent_bytes(rest, FrameMagic::Record, place.identity, place.address);
            let record = apparent.and_then(|_| DecodedRecord::decode(rest, place).ok());
            let Some(record) = record else {
                at += GRANULE_BYTES;
                continue;
            };
            let granule = (place.address - self.span.layout.segments_offset) / GRANULE_BYTES;
            let location = RecordLocation::new(granule, record.bytes() as u64);
            at += (record.bytes() as u64).next_multiple_of(GRANULE_BYTES);
            let number = record.fields.cluster.get();
            let neighbour = match entry.cluster != 0 && entry.cluster == number {
                true => NeighbourKind::Tied,
                false => NeighbourKind::Untied,
            };
            let wanted = location.granule != window.location.granule
                && record.kind == RecordKind::Whole
                && (neighbour == NeighbourKind::Tied || takes_untied);
            if wanted && neighbour == NeighbourKind::Tied {
                tied.push(KeyHash(record.fields.key_hash.get()));
            }
            if wanted {
                self.take_neighbour(rest, &record, location, window.extent.epoch, neighbour, &mut left);
            }
        }
        tied
    }

    /// Puts one neighbour into memory if it passes the checks. `left` is the memory that this read may still use for
    /// neighbours, in bytes.
    fn take_neighbour(
        &self,
        bytes: &[u8],
        record: &DecodedRecord,
        location: RecordLocation,
        epoch: u64,
        neighbour: NeighbourKind,
        left: &mut u64,
    ) {
        let hash = KeyHash(record.fields.key_hash.get());
        if self.state.memory.contains(hash) {
            return;
        }
        if !self.is_current(hash, location) {
            return;
        }
        let Some(entry) = unasked(&self.state, bytes, record, location, planted(Bug::NeighbourIgnoresPurge)) else {
            return;
        };
        if entry.weight() > *left {
            return;
        }
        entry.set_neighbour(neighbour);
        let entry = Arc::new(entry);
        let taken = self.state.memory.put_neighbour(&entry, || {
            self.is_current(hash, location) && self.span.epoch_at(location, self.span.head()) == epoch
        });
        if taken {
            *left -= entry.weight();
            self.clusters.note_taken(neighbour);
            Counters::add(&self.span.counters.neighbours_taken, 1);
            Counters::add(&self.span.counters.neighbours_taken_bytes, entry.body.len() as u64);
        }
    }

    /// Whether the index has this location for a hash, and no other.
    fn is_current(&self, hash: KeyHash, location: RecordLocation) -> bool {
        // Before the shard of the hash is loaded, the index may point to replaced versions.
        let is_loaded = self.state.presence.has(hash) || planted(Bug::NeighbourBeforeShard);
        (is_loaded && self.state.index.leads_only_to(hash, location)) || planted(Bug::NeighbourIgnoresReplacement)
    }
}
