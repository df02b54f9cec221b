//! Reading a cluster: an object and its neighbours in one read.
//!
//! Owns: which bytes are read for an object (its group's where `groups` knows them, else the aligned window around it), and
//! which of its neighbours go into memory with it. Leaves to others: when (`clusters`), and what an object's own bytes must
//! pass (`shared`).
//!
//! # Invariants
//! A neighbour is an entry that nobody asked for, so it has to pass more than one that somebody did:
//! 1. It is a whole object whose header and body have their checksums, at its own address, in the incarnation that the
//!    segment had before the read began.
//! 2. The index leads to this very place, and to no other for its hash: so no newer version of it is on disk. Or it leads to
//!    one other place, at which the very same version was written anew (`twins`); the neighbour is then known by that place.
//!    And memory has no entry under its id: so none waits to be written.
//! 3. No purge kills it. One that comes later finds it like anything else in memory: purges are compared at every hit.
//! 4. The second and the state of the segment are looked at again under the lock under which entries enter memory, so what
//!    is replaced or reclaimed meanwhile does not come back.
//!
//! Anything else in the window (older versions, a former lap, what is being written) is passed over.
//!
//! *Cost*: one read of at most a cluster; a neighbour that goes into memory is copied out of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use nectary_block::Buffer;

use crate::clusters::ClusterRead;
use crate::entry::{Entry, EntryParts, Neighbour, Piece};
use crate::format::{self, Magic, Place, Record, RecordKind, UNIT_BYTES};
use crate::groups::Extents;
use crate::index::Location;
use crate::key::{KeyHash, KeyRef};
use crate::planted::{Bug, planted};
use crate::purges::Verdict;
use crate::shared::{Extent, Found, Shared};
use crate::stat::Counters;
use crate::twins::Version;

/// Neighbours of one read take at most this share of the memory tier.
const MEMORY_SHARE: u64 = 32;

/// A cluster that was read, and the record for which it was.
pub(crate) struct Window {
    buffer: Buffer,
    extent: Extent,
    location: Location,
}

impl Shared {
    /// Reads what stands at a location, with the cluster around it where that pays.
    pub async fn read_near(
        &self,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
        location: Location,
    ) -> (Found, Option<Window>) {
        let window = match self.extent(location) {
            // Fragments are asked for by their reader, one after the other.
            Some(own) if key.is_some() => self.cluster(own, location).map(|window| (own, window)),
            _ => None,
        };
        let Some((own, extent)) = window.filter(|_| self.clusters.read_cluster()) else {
            return (self.read_record(hash, key, location).await, None);
        };
        // What cannot be read beside the object must not cost the object.
        let Some(buffer) = self.read_extent(extent).await else {
            return (self.read_record(hash, key, location).await, None);
        };
        let beyond = (extent.end - extent.start) - (own.end - own.start);
        Counters::add(&self.counters.cluster_reads, 1);
        Counters::add(&self.counters.cluster_read_bytes, beyond);
        self.clusters.note_read(beyond);
        let (found, buffer) = self.decode(hash, key, location, extent, buffer);
        (found, buffer.map(|buffer| Window { buffer, extent, location }))
    }

    /// What to read for a record beside it: its group, where that is known, else the window around it.
    fn cluster(&self, own: Extent, location: Location) -> Option<Extent> {
        let segment_units = self.layout.segment_bytes / UNIT_BYTES;
        let (segment, unit) = (location.unit / segment_units, location.unit % segment_units);
        match self.groups.find(segment, own.incarnation, unit) {
            Extents::Alone if self.clusters.mode() == ClusterRead::Auto => None,
            Extents::Group(units) if (units.end - units.start) * UNIT_BYTES <= self.clusters.cluster_bytes() => {
                let segment = self.layout.segments_offset + segment * self.layout.segment_bytes;
                let block = u64::from(self.device.geometry().block_bytes);
                let start = (segment + units.start * UNIT_BYTES) / block * block;
                let end = (segment + units.end * UNIT_BYTES).next_multiple_of(block);
                // The class of a length is at least the length: the last record may seem to end behind its group.
                let group = Extent { start: start.min(own.start), end: end.max(own.end), ..own };
                (group.end - group.start > own.end - own.start).then_some(group)
            }
            _ => self.window(own),
        }
    }

    /// The aligned window around a record, where one has all of it and more.
    fn window(&self, own: Extent) -> Option<Extent> {
        let cluster_bytes = self.clusters.cluster_bytes();
        if cluster_bytes == 0 {
            return None;
        }
        let segment_bytes = self.layout.segment_bytes;
        let offset = own.start - self.layout.segments_offset;
        let segment = offset / segment_bytes * segment_bytes;
        let start = segment + (offset - segment) / cluster_bytes * cluster_bytes;
        let end = (start + cluster_bytes).min(segment + segment_bytes);
        let (start, end) = (start + self.layout.segments_offset, end + self.layout.segments_offset);
        // Sizes are known by class, so the last record of a cluster may seem to be longer than it is.
        let fits = own.end <= end || own.end - end < (own.end - own.start) / 4;
        let block = u64::from(self.device.geometry().block_bytes);
        let (start, end) = (start / block * block, end.max(own.end).next_multiple_of(block));
        (fits && end - start > own.end - own.start).then_some(Extent { start, end, ..own })
    }

    /// Takes the neighbours of `entry` in a window into memory; tells those that are tied to it.
    pub fn take_neighbours(&self, window: &Window, entry: &Entry) -> Vec<KeyHash> {
        let mut tied = Vec::new();
        let bytes: &[u8] = &window.buffer;
        let base = window.extent.start;
        let takes_near = self.clusters.takes_near();
        let mut left = self.memory.capacity() / MEMORY_SHARE;
        let mut at = base.next_multiple_of(UNIT_BYTES) - base;
        while let Some(rest) = bytes.get(at as usize..).filter(|rest| rest.len() >= format::RECORD_HEADER_BYTES) {
            let place =
                Place { identity: self.layout.identity, incarnation: window.extent.incarnation, address: base + at };
            let apparent = format::apparent_bytes(rest, Magic::Record, place.identity, place.address);
            let record = apparent.and_then(|_| Record::decode(rest, place).ok());
            let Some(record) = record else {
                at += UNIT_BYTES;
                continue;
            };
            let unit = (place.address - self.layout.segments_offset) / UNIT_BYTES;
            let location = Location::new(unit, record.bytes() as u64);
            at += (record.bytes() as u64).next_multiple_of(UNIT_BYTES);
            let number = record.fields.cluster.get();
            let neighbour = match entry.cluster != 0 && entry.cluster == number {
                true => Neighbour::Tied,
                false => Neighbour::Near,
            };
            let wanted = location.unit != window.location.unit
                && record.kind == RecordKind::Whole
                && (neighbour == Neighbour::Tied || takes_near);
            if wanted && neighbour == Neighbour::Tied {
                tied.push(KeyHash(record.fields.key_hash.get()));
            }
            if wanted {
                self.take_neighbour(rest, &record, location, window.extent.incarnation, neighbour, &mut left);
            }
        }
        tied
    }

    /// Takes one neighbour into memory, if it passes; `left` is the room there is.
    fn take_neighbour(
        &self,
        bytes: &[u8],
        record: &Record,
        location: Location,
        incarnation: u64,
        neighbour: Neighbour,
        left: &mut u64,
    ) {
        let hash = KeyHash(record.fields.key_hash.get());
        let generation = record.fields.generation.get();
        if self.memory.contains(hash) {
            return;
        }
        let Some(current) = self.current_place(hash, generation, location) else { return };
        let Some(entry) = self.unasked(bytes, record, current, planted(Bug::NeighbourIgnoresPurge)) else { return };
        if entry.weight() > *left {
            return;
        }
        entry.set_neighbour(neighbour);
        let entry = Arc::new(entry);
        let taken = self.memory.put_neighbour(&entry, || {
            self.current_place(hash, generation, location) == Some(current)
                && self.incarnation_at(location, self.head.load(Ordering::Acquire)) == incarnation
        });
        if taken {
            *left -= entry.weight();
            self.clusters.note_taken(neighbour);
            Counters::add(&self.counters.neighbours_taken, 1);
            Counters::add(&self.counters.neighbours_taken_bytes, entry.body.len() as u64);
            Counters::add(&self.counters.copies_taken, u64::from(current != location));
        }
    }

    /// The entry of a whole object at a location that nobody requested, unless it is damaged, or purged where `purged_too` is not set.
    pub fn unasked(&self, bytes: &[u8], record: &Record, location: Location, purged_too: bool) -> Option<Entry> {
        let fields = &record.fields;
        let hash = KeyHash(fields.key_hash.get());
        let key = KeyRef::new(record.primary(bytes), record.variant(bytes));
        let (primary_hash, key_hash) = self.hash(key);
        let tags = self.tags_of(record, bytes);
        let verdict = self.purges.verdict(primary_hash, fields.generation.get(), key.primary, tags.hashes());
        let purged = verdict != Verdict::Live;
        if key_hash != hash || (purged && !purged_too) || !record.body_is_whole(bytes) {
            return None;
        }
        let generation = match purged {
            // The bug: it is taken as if it had been put now.
            true => self.draw(),
            false => fields.generation.get(),
        };
        let copy = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&bytes[range]);
        let parts = EntryParts {
            key: key.to_owned(),
            primary_hash,
            hash,
            piece: Piece::Whole,
            metadata: copy(record.metadata_range()),
            body: copy(record.body_start..record.bytes()),
            object_bytes: fields.object_bytes.get(),
            generation,
            tags,
        };
        let mut entry = Entry::new(parts, fields.sequence.get());
        entry.cluster = fields.cluster.get();
        entry.set_location(location);
        Some(entry)
    }

    /// Where the index leads for a hash, to one place alone, where that is the one given or a copy of what stands there.
    fn current_place(&self, hash: KeyHash, generation: u64, location: Location) -> Option<Location> {
        if planted(Bug::NeighbourIgnoresReplacement) {
            return Some(location);
        }
        // Until its shard is there, the index may lead to what was replaced.
        let candidates = if self.presence.has(hash) { self.index.candidates(hash) } else { Vec::new() };
        let [current] = candidates[..] else { return None };
        let version = || {
            let incarnation = self.incarnation_at(current, self.head.load(Ordering::Acquire));
            Version { hash, generation, location: current, incarnation }
        };
        let is_copy = || self.twins.has(&version()) || planted(Bug::CopyIgnoresReplacement);
        (current == location || is_copy()).then_some(current)
    }
}
