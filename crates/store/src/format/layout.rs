//! The locations of a span's areas.
//!
//! Owns: the superblock, the division of a span of a given size into areas, and address arithmetic. The layout of a
//! store never changes.

use nectary_block::{Buffer, SharedDevice};

use crate::error::{Error, StoreErrorKind};
use crate::format::{
    self, APPEND_HEADER_BYTES, BLOCK_BYTES, FEATURE_TAGS, FrameMagic, FrameMismatch, FramePlace, GRANULE_BYTES,
    HEADER_BYTES, SuperblockBody, VERSION,
};
use zerocopy::IntoBytes;

/// The segment size if none is requested, in bytes.
const SEGMENT_BYTES_DEFAULT: u64 = 16 << 20;
/// The smallest and largest segment, in bytes.
const SEGMENT_BYTES_MIN: u64 = 32 << 10;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// A store has at least this many segments.
const SEGMENT_COUNT_MIN: u64 = 4;
/// The largest body that is stored as one record, in bytes.
const WHOLE_BYTES_MAX: u64 = 256 << 10;
/// The size of the fragments of longer bodies, in bytes.
const FRAGMENT_BYTES: u64 = 1 << 20;
/// A copy of the purge log has 1/`PURGE_LOG_SHARE` of the span, within the limits below.
const PURGE_LOG_SHARE: u64 = 64;
/// The smallest and the largest copy of the purge log, in bytes.
const PURGE_LOG_BYTES_MIN: u64 = 32 << 10;
const PURGE_LOG_BYTES_MAX: u64 = 16 << 20;
/// The oldest 1/`LEAVING_SHARE` of the segments counts as about to be overwritten.
const LEAVING_SHARE: u64 = 32;
/// The largest span, in bytes: as many granules as 36 bits can count.
pub const SPAN_BYTES_MAX: u64 = GRANULE_BYTES << 36;
/// The smallest span, in bytes.
pub const SPAN_BYTES_MIN: u64 = 512 << 10;
/// The largest number of spans of a store.
pub const SPANS_MAX: u32 = 16;

/// The areas of a span, and its other fixed properties.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanLayout {
    /// Random identity of the store.
    pub identity: u128,
    /// The random seed of the key hashes.
    pub hash_seed: u64,
    /// Size of the span in bytes.
    pub span_bytes: u64,
    /// Size of a segment in bytes.
    pub segment_bytes: u64,
    /// The number of segments.
    pub segment_count: u64,
    /// The offset of the first segment, in bytes.
    pub segments_offset: u64,
    /// The offsets of the two copies of the purge log, in bytes.
    pub purge_log_offset: [u64; 2],
    /// Size of one copy of the purge log, with both halves, in bytes.
    pub purge_log_bytes: u64,
    /// The offsets of the two checkpoint areas, in bytes.
    pub checkpoint_offset: [u64; 2],
    /// Size of one checkpoint area in bytes.
    pub checkpoint_bytes: u64,
    /// Size of a fragment in bytes.
    pub fragment_bytes: u64,
    /// The largest body that is stored as one record, in bytes.
    pub whole_bytes_max: u64,
    /// The base-2 logarithm of the number of home slots of an index shard when it is created.
    pub index_home_bits: u32,
    /// The features that a program must know to read the store.
    pub features: u64,
    /// The time when the store was made, in seconds since 1970.
    pub created_s: u64,
    /// The place of the span among the spans of its store.
    pub member: SpanMember,
}

/// The place of a span among the spans of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanMember {
    /// Random identity of a store of several spans; 0 for a store of one span.
    pub set: u128,
    /// The number of this span, from 0.
    pub number: u32,
    /// The number of spans of the store.
    pub count: u32,
    /// The weight of each span, indexed by the span's number: its size when the store was made, in units of
    /// [`SPAN_BYTES_MIN`]. Keys are distributed over the spans in proportion to these weights.
    pub weights: [u32; SPANS_MAX as usize],
}

impl SpanMember {
    /// The only span of its store.
    pub const SOLE: SpanMember = SpanMember { set: 0, number: 0, count: 1, weights: [0; SPANS_MAX as usize] };

    /// The seed with which all spans of a store hash keys; `None` for the only span of a store. The seed is the same on
    /// all spans, so that a span can use the purge records of another one.
    pub fn hash_seed(&self) -> Option<u64> {
        // This seed differs from the seed of the placement, so that the two hashes of a key are independent.
        let seed = (self.set as u64).rotate_left(32).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (self.set >> 64) as u64;
        (self.count > 1).then_some(seed)
    }

    /// Whether the fields are consistent.
    fn is_valid(self) -> bool {
        match self.count {
            1 => self == SpanMember::SOLE,
            count if count > SPANS_MAX => false,
            count => {
                let (spans, others) = self.weights.split_at(count as usize);
                let are_weighed = spans.iter().all(|weight| *weight > 0) && others.iter().all(|weight| *weight == 0);
                self.set != 0 && self.number < count && are_weighed
            }
        }
    }
}

/// The offset of the first state slot, in bytes.
pub const STATE_OFFSET: u64 = 2 * BLOCK_BYTES;

impl SpanLayout {
    /// Plans the areas of a span of `span_bytes`. *Errors*: `Invalid` if a size is out of bounds.
    pub fn plan(
        span_bytes: u64,
        segment_bytes: Option<u64>,
        identity: u128,
        hash_seed: u64,
        created_s: u64,
    ) -> Result<SpanLayout, Error> {
        let purge_log_bytes = (span_bytes / PURGE_LOG_SHARE).clamp(PURGE_LOG_BYTES_MIN, PURGE_LOG_BYTES_MAX);
        let purge_log_bytes = purge_log_bytes.next_multiple_of(2 * BLOCK_BYTES);
        SpanLayout::plan_with_log(span_bytes, segment_bytes, purge_log_bytes, identity, hash_seed, created_s)
    }

    /// Plans the areas of a span whose copies of the purge log have this size.
    fn plan_with_log(
        span_bytes: u64,
        segment_bytes: Option<u64>,
        purge_log_bytes: u64,
        identity: u128,
        hash_seed: u64,
        created_s: u64,
    ) -> Result<SpanLayout, Error> {
        let span_bytes = span_bytes / BLOCK_BYTES * BLOCK_BYTES;
        if span_bytes < SPAN_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a store needs at least {SPAN_BYTES_MIN} bytes, {span_bytes} were given; choose a larger size"
            )));
        }
        if span_bytes > SPAN_BYTES_MAX {
            return Err(Error::invalid(format!(
                "a store has at most {SPAN_BYTES_MAX} bytes, {span_bytes} were given; choose a smaller size"
            )));
        }
        let checkpoint_bytes =
            ((span_bytes / 128).max(64 << 10) + (span_bytes / 128) / 32).next_multiple_of(BLOCK_BYTES);
        let areas_offset = STATE_OFFSET + 2 * BLOCK_BYTES;
        let areas_end = areas_offset + 2 * purge_log_bytes + 2 * checkpoint_bytes;
        let room = span_bytes.saturating_sub(areas_end);
        let wanted = segment_bytes.unwrap_or_else(|| {
            let shrunk = (room / 32).max(1).next_power_of_two() / 2;
            SEGMENT_BYTES_DEFAULT.min(shrunk.max(SEGMENT_BYTES_MIN))
        });
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&wanted) || !wanted.is_multiple_of(BLOCK_BYTES) {
            return Err(Error::invalid(format!(
                "a segment has {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} bytes, a multiple of {BLOCK_BYTES}; {wanted} were given"
            )));
        }
        let alignment = wanted.min(1 << 20).next_power_of_two().min(room / 16).max(BLOCK_BYTES);
        let alignment = if alignment.is_power_of_two() { alignment } else { alignment.next_power_of_two() / 2 };
        let segments_offset = areas_end.next_multiple_of(alignment.max(BLOCK_BYTES));
        let segment_count = span_bytes.saturating_sub(segments_offset) / wanted;
        if segment_count < SEGMENT_COUNT_MIN {
            return Err(Error::invalid(format!(
                "{span_bytes} bytes hold {segment_count} segments of {wanted} bytes, a store needs {SEGMENT_COUNT_MIN}; \
                 choose a larger size or smaller segments"
            )));
        }
        let fragment_max = (wanted / 4).next_multiple_of(BLOCK_BYTES);
        let homes = checkpoint_bytes.saturating_sub(BLOCK_BYTES) / 8 / format::INDEX_SHARDS as u64;
        Ok(SpanLayout {
            identity,
            hash_seed,
            span_bytes,
            segment_bytes: wanted,
            segment_count,
            segments_offset,
            purge_log_offset: [areas_offset, areas_offset + purge_log_bytes],
            purge_log_bytes,
            checkpoint_offset: [
                areas_offset + 2 * purge_log_bytes,
                areas_offset + 2 * purge_log_bytes + checkpoint_bytes,
            ],
            checkpoint_bytes,
            fragment_bytes: FRAGMENT_BYTES.min(fragment_max),
            whole_bytes_max: WHOLE_BYTES_MAX.min(fragment_max / 2),
            // At first, the index has 1/16 of the slots that a checkpoint can hold, so it takes little memory. An entry
            // still has enough bits of its hash: in a full index, only about one lookup in a few thousand finds an
            // entry of another key.
            index_home_bits: (homes / 16).max(16).ilog2(),
            features: FEATURE_TAGS,
            created_s,
            member: SpanMember::SOLE,
        })
    }

    /// Encodes the superblock for its copy at `address`.
    pub fn encode(&self, address: u64) -> Buffer {
        let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
        let body = SuperblockBody {
            span_bytes: self.span_bytes.into(),
            hash_seed: self.hash_seed.into(),
            segment_bytes: (self.segment_bytes as u32).into(),
            segment_count: (self.segment_count as u32).into(),
            segments_offset: self.segments_offset.into(),
            purge_log_offset: self.purge_log_offset.map(Into::into),
            purge_log_bytes: self.purge_log_bytes.into(),
            checkpoint_offset: self.checkpoint_offset.map(Into::into),
            checkpoint_bytes: self.checkpoint_bytes.into(),
            fragment_bytes: (self.fragment_bytes as u32).into(),
            whole_bytes_max: (self.whole_bytes_max as u32).into(),
            index_home_bits: self.index_home_bits.into(),
            span_count: self.member.count.into(),
            features: self.features.into(),
            created_s: self.created_s.into(),
            set: self.member.set.into(),
            span_number: self.member.number.into(),
            reserved: 0.into(),
            weights: self.member.weights.map(Into::into),
        };
        buffer[HEADER_BYTES..HEADER_BYTES + size_of::<SuperblockBody>()].copy_from_slice(body.as_bytes());
        let place = FramePlace { identity: self.identity, epoch: 0, address };
        format::seal(&mut buffer, FrameMagic::Superblock, place, BLOCK_BYTES as usize);
        buffer
    }

    /// Decodes the superblock copy at `address`. *Errors*: `Corrupt`, with the reason.
    pub fn decode(bytes: &[u8], address: u64) -> Result<SpanLayout, Error> {
        let corrupt = |message: String| Error::new(StoreErrorKind::Corrupt, message);
        let header = format::open_unplaced(bytes, FrameMagic::Superblock).map_err(|mismatch| match mismatch {
            FrameMismatch::Magic => {
                let found: Vec<u8> = bytes.iter().copied().take(4).collect();
                corrupt(format!(
                    "offset {address}: this is not a Nectary store: expected the magic NSUP, found {}",
                    found.escape_ascii()
                ))
            }
            FrameMismatch::Version(version) => corrupt(format!(
                "offset {address}: the store has format version {version}, this program knows version {VERSION}; use the \
                 program it was made with, or make a new store"
            )),
            other => corrupt(format!("offset {address}: the superblock is damaged ({other:?})")),
        })?;
        let body: SuperblockBody =
            format::body(bytes).map_err(|_| corrupt(format!("offset {address}: the superblock is cut short")))?;
        let layout = SpanLayout {
            identity: header.identity.get(),
            hash_seed: body.hash_seed.get(),
            span_bytes: body.span_bytes.get(),
            segment_bytes: body.segment_bytes.get().into(),
            segment_count: body.segment_count.get().into(),
            segments_offset: body.segments_offset.get(),
            purge_log_offset: body.purge_log_offset.map(|offset| offset.get()),
            purge_log_bytes: body.purge_log_bytes.get(),
            checkpoint_offset: body.checkpoint_offset.map(|offset| offset.get()),
            checkpoint_bytes: body.checkpoint_bytes.get(),
            fragment_bytes: body.fragment_bytes.get().into(),
            whole_bytes_max: body.whole_bytes_max.get().into(),
            index_home_bits: body.index_home_bits.get(),
            features: body.features.get(),
            created_s: body.created_s.get(),
            member: SpanMember {
                set: body.set.get(),
                number: body.span_number.get(),
                count: body.span_count.get(),
                weights: body.weights.map(|weight| weight.get()),
            },
        };
        if header.address.get() != address {
            return Err(corrupt(format!(
                "offset {address}: the superblock says that it belongs at offset {}; was the image moved or cut?",
                header.address.get()
            )));
        }
        if body.features.get() & !FEATURE_TAGS != 0 || !layout.member.is_valid() {
            return Err(corrupt(format!(
                "offset {address}: the store uses features {:#x} and says that this is span {} of {}, which this program \
                 does not know",
                body.features.get(),
                body.span_number.get(),
                body.span_count.get()
            )));
        }
        // Earlier programs made smaller purge logs, so the size of the log is read; the locations of the other areas
        // follow from it.
        let log_bytes = layout.purge_log_bytes;
        if !(PURGE_LOG_BYTES_MIN..=PURGE_LOG_BYTES_MAX).contains(&log_bytes)
            || !log_bytes.is_multiple_of(2 * BLOCK_BYTES)
        {
            return Err(corrupt(format!("offset {address}: the superblock says a purge log of {log_bytes} bytes")));
        }
        let planned = SpanLayout::plan_with_log(
            layout.span_bytes,
            Some(layout.segment_bytes),
            log_bytes,
            layout.identity,
            layout.hash_seed,
            layout.created_s,
        )?;
        if planned != (SpanLayout { features: planned.features, member: planned.member, ..layout }) {
            return Err(corrupt(format!("offset {address}: the superblock's areas do not fit each other")));
        }
        Ok(layout)
    }

    /// Sets the feature "records have tags" in the superblocks if it is not set. The change is durable when this
    /// returns.
    pub async fn with_tags(self, device: &SharedDevice) -> Result<SpanLayout, Error> {
        if self.features & FEATURE_TAGS != 0 {
            return Ok(self);
        }
        let layout = SpanLayout { features: self.features | FEATURE_TAGS, ..self };
        // At every moment one copy of the superblock is intact, and both copies have the feature before the first tag
        // is written.
        for address in [BLOCK_BYTES, 0] {
            nectary_block::write(&**device, address, layout.encode(address)).await?;
            device.flush(Default::default()).await?;
        }
        Ok(layout)
    }

    /// The number of the segment that holds `epoch`.
    pub fn segment_of(&self, epoch: u64) -> u64 {
        epoch % self.segment_count
    }

    /// The start of the segment that holds `epoch`, in bytes.
    pub fn segment_start(&self, epoch: u64) -> u64 {
        self.segments_offset + self.segment_of(epoch) * self.segment_bytes
    }

    /// The epoch of segment `segment` while `head` is the epoch being written; 0 if the segment has no epoch yet.
    pub fn epoch_of(&self, segment: u64, head: u64) -> u64 {
        let behind = (self.segment_of(head) + self.segment_count - segment) % self.segment_count;
        head.saturating_sub(behind)
    }

    /// Returns false if an epoch's segment is about to be overwritten while `head` is being written. This is so for the
    /// oldest 1/32 of the segments, and at least for the oldest three (the oldest quarter if there are fewer than
    /// twelve segments).
    pub fn stays(&self, epoch: u64, head: u64) -> bool {
        epoch + self.segment_count > head + (self.segment_count / LEAVING_SHARE).max((self.segment_count / 4).min(3))
    }

    /// The oldest epoch that is still on the disk while `head` is being written.
    pub fn tail(&self, head: u64) -> u64 {
        (head + 1).saturating_sub(self.segment_count).max(1)
    }

    /// Whether the segment of an epoch is the next one to be overwritten after `head`.
    pub fn is_next(&self, epoch: u64, head: u64) -> bool {
        epoch + self.segment_count == head + 1
    }

    /// The largest append, in bytes: half of a segment and at most 2 MiB, but always enough for a fragment.
    pub fn append_bytes_max(&self) -> u64 {
        (self.segment_bytes / 2).min(2 << 20).max(self.fragment_bytes + 2 * BLOCK_BYTES) / BLOCK_BYTES * BLOCK_BYTES
    }

    /// The longest record, in bytes: it fills the largest append.
    pub fn record_bytes_max(&self) -> u64 {
        self.append_bytes_max() - (APPEND_HEADER_BYTES as u64 + 64)
    }

    /// The longest body that can be stored, in bytes: a quarter of the bytes of all segments.
    pub fn object_bytes_max(&self) -> u64 {
        self.segment_count * self.segment_bytes / 4
    }

    /// The largest total size of the index's slots that fits into a checkpoint, in bytes.
    pub fn index_bytes_max(&self) -> u64 {
        (self.checkpoint_bytes - BLOCK_BYTES) / 65 * 64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_never_overlap() {
        for size in [SPAN_BYTES_MIN, 600 << 10, 1 << 20, 3 << 20, 64 << 20, 1 << 30, 10 << 30, 1 << 40, SPAN_BYTES_MAX]
        {
            let layout = SpanLayout::plan(size, None, 1, 2, 3).unwrap();
            let mut areas = vec![(0, 4 * BLOCK_BYTES)];
            areas.extend(layout.purge_log_offset.map(|offset| (offset, layout.purge_log_bytes)));
            areas.extend(layout.checkpoint_offset.map(|offset| (offset, layout.checkpoint_bytes)));
            areas.push((layout.segments_offset, layout.segment_count * layout.segment_bytes));
            for pair in areas.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{size}: {areas:?}");
            }
            let last = areas.last().unwrap();
            assert!(last.0 + last.1 <= size, "{size}: {layout:?}");
            assert!(layout.append_bytes_max() <= layout.segment_bytes);
            assert!(layout.record_bytes_max() > layout.fragment_bytes + 1024);
            assert_eq!(SpanLayout::decode(&layout.encode(0), 0).unwrap(), layout);
        }
    }

    /// Spans with the smaller purge logs of earlier programs are read.
    #[test]
    fn smaller_old_logs_are_read() {
        for size in [SPAN_BYTES_MIN, 3 << 20, 64 << 20, 256 << 20, 10 << 30, 1 << 40] {
            let log_bytes = (size / 1024).clamp(32 << 10, 16 << 20).next_multiple_of(2 * BLOCK_BYTES);
            let wanted = SpanLayout::plan(size, None, 1, 2, 3).unwrap().segment_bytes;
            let earlier = SpanLayout::plan_with_log(size, Some(wanted), log_bytes, 1, 2, 3).unwrap();
            assert_eq!(SpanLayout::decode(&earlier.encode(0), 0).unwrap(), earlier);
            for wrong in [0, 32 << 9, (32 << 10) + BLOCK_BYTES, 32 << 20, u64::MAX / 4096 * 4096] {
                let wrong = SpanLayout { purge_log_bytes: wrong, ..earlier };
                assert!(SpanLayout::decode(&wrong.encode(0), 0).is_err(), "{wrong:?}");
            }
        }
    }

    #[tokio::test]
    async fn smaller_purge_log_opens_unchanged() {
        use std::sync::Arc;

        use crate::purge::log::PurgeLog;
        use crate::{KeyRef, OpenOptions, Store};

        let bytes = 64 << 20;
        let wanted = SpanLayout::plan(bytes, None, 1, 2, 3).unwrap();
        let earlier = SpanLayout::plan_with_log(bytes, Some(wanted.segment_bytes), bytes / 1024, 1, 2, 3).unwrap();
        assert!(earlier.purge_log_bytes < wanted.purge_log_bytes && earlier.segments_offset < wanted.segments_offset);
        let device: SharedDevice = Arc::new(nectary_block::MemoryDevice::new(bytes));
        PurgeLog::create(&device, &earlier).await.unwrap();
        for address in [BLOCK_BYTES, 0] {
            nectary_block::write(&*device, address, earlier.encode(address)).await.unwrap();
        }
        let options = OpenOptions { memory_bytes: 32 << 20, ..OpenOptions::default() };
        for opened in 0..2 {
            let store = Store::open(device.clone(), options.clone()).await.unwrap();
            assert_eq!(store.span().layout, earlier);
            if opened == 0 {
                for name in ["purged", "kept"] {
                    store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), "body".into()).await.unwrap();
                }
                store.sync().await.unwrap();
                store.purge_key(b"purged").await.unwrap();
            }
            assert!(store.get(KeyRef::new(b"purged", b"")).await.is_none());
            assert!(store.get(KeyRef::new(b"kept", b"")).await.is_some());
        }
    }

    #[test]
    fn size_outside_bounds_names_bound() {
        assert!(SpanLayout::plan(SPAN_BYTES_MIN - 4096, None, 1, 2, 3).unwrap_err().message.contains("at least"));
        assert!(SpanLayout::plan(SPAN_BYTES_MAX + 4096, None, 1, 2, 3).unwrap_err().message.contains("at most"));
    }

    #[test]
    fn epochs_map_to_ring_segments() {
        let layout = SpanLayout::plan(1 << 20, Some(64 << 10), 1, 2, 3).unwrap();
        let count = layout.segment_count;
        let head = 5 * count + 2;
        for epoch in layout.tail(head)..=head {
            assert_eq!(layout.epoch_of(layout.segment_of(epoch), head), epoch);
        }
        assert_eq!(layout.epoch_of(3, 2), 0);
    }
}
