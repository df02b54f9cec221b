//! Loading the index after a restart: shard by shard from the checkpoint, shards with waiters first.
//!
//! Owns: the loading of the shards. A shard is loaded when its slots were read and checked and the log was replayed for
//! it. So a get waits only for the shard of its key. Leaves to others: where the log ends, which is decided before
//! anything is served (`roll_forward`), the waiters (`index/presence.rs`), and the shards themselves (`index`).
//!
//! # Invariants
//! 1. The writer loads the shards before it writes anything. So the loaded index has exactly the entries that recovery
//!    found. If a chunk turns out to be damaged, the missing shards are rebuilt from the other checkpoint, or from all
//!    segments.
//! 2. Waiting always ends: if the writer is gone, missing shards stay empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{OptionFuture, join};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nectary_block::SharedDevice;
use tokio::sync::mpsc;

use crate::background;
use crate::checkpoint::{CheckpointHeader, HeldChunks, read_shard};
use crate::format::INDEX_SHARDS;
use crate::format::layout::SpanLayout;
use crate::index::{ObjectIndex, SlotTable, ValidLocations};
use crate::recover::replay::IndexReplay;

/// The number of shards that are read at the same time: one is processed while the next one is read.
const SHARDS_AT_ONCE: usize = 2;
/// If a shard has at least this many bytes, shards are read at the same time. Smaller ones share reads, one after the
/// other.
const AT_ONCE_BYTES_MIN: usize = 512 << 10;

fn bit(shard: usize) -> u64 {
    1 << shard
}

/// The number of a shard, and its slots; `None` if the slots are damaged.
type ReadShard = (usize, Option<SlotTable>);

/// A checkpoint whose shards are not all in the index yet.
pub struct CheckpointLoading {
    header: CheckpointHeader,
    kept: ValidLocations,
    /// The shards whose slots are in the index, one bit per shard.
    loaded: u64,
    wanted: Arc<AtomicU64>,
    /// If shards are read on another thread: the channel from that thread.
    arriving: Option<mpsc::UnboundedReceiver<ReadShard>>,
    /// What was read last, except by another thread.
    held: Option<HeldChunks>,
}

impl CheckpointLoading {
    /// Starts with no shard loaded; the checkpoint must fit the index.
    pub fn of(header: CheckpointHeader, kept: ValidLocations) -> CheckpointLoading {
        CheckpointLoading { header, kept, loaded: 0, wanted: Arc::default(), arriving: None, held: None }
    }

    /// The checkpoint's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// The shards with waiters, one bit per shard.
    pub fn wanted(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.wanted)
    }

    /// Starts reading the index on another thread.
    pub fn read_ahead(&mut self, device: &SharedDevice, layout: &SpanLayout) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let shards = UnreadShards { header: self.header, left: u64::MAX, wanted: Arc::clone(&self.wanted), held: None };
        let (device, layout) = (device.clone(), *layout);
        let is_spawned = background::spawn(move || async move { shards.read(&device, &layout, sender).await });
        self.arriving = is_spawned.then_some(receiver);
    }

    /// Loads the slots of one shard, without replayed records. Returns false if these slots, or slots read before them,
    /// are damaged.
    pub async fn load_one(
        &mut self,
        device: &SharedDevice,
        layout: &SpanLayout,
        index: &ObjectIndex,
        shard: usize,
    ) -> bool {
        self.wanted.fetch_or(bit(shard), Ordering::AcqRel);
        while self.loaded & bit(shard) == 0 {
            let (shard, slots) = match &mut self.arriving {
                Some(arriving) => match arriving.recv().await {
                    Some(arrived) => arrived,
                    None => return false,
                },
                None => {
                    let room = SlotTable::rooms(&[self.header.slots_bytes(shard)]).pop().expect("one for each size");
                    (shard, read_shard(device, layout, &self.header, shard, room, &mut self.held).await)
                }
            };
            if !self.put(index, shard, slots) {
                return false;
            }
        }
        true
    }

    /// Loads the remaining shards and calls `arrived` for each. Returns the shards that are still missing, one bit per
    /// shard.
    async fn load_all(
        &mut self,
        device: &SharedDevice,
        layout: &SpanLayout,
        index: &ObjectIndex,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let (mut arriving, here) = match self.arriving.take() {
            Some(arriving) => (arriving, None),
            None => {
                let (sender, arriving) = mpsc::unbounded_channel();
                let (wanted, held) = (Arc::clone(&self.wanted), self.held.take());
                let shards = UnreadShards { header: self.header, left: !self.loaded, wanted, held };
                (arriving, Some(shards.read(device, layout, sender)))
            }
        };
        let load = async move {
            let mut missing = u64::MAX;
            for shard in (0..INDEX_SHARDS).filter(|&shard| self.loaded & bit(shard) != 0) {
                missing &= !bit(shard);
                if !arrived(shard) {
                    return missing;
                }
            }
            let mut waiting: Vec<ReadShard> = Vec::new();
            while missing != 0 {
                while let Ok(read) = arriving.try_recv() {
                    waiting.push(read);
                }
                let wanted = self.wanted.load(Ordering::Acquire);
                let first = waiting.iter().position(|(shard, _)| wanted & bit(*shard) != 0).unwrap_or(0);
                let next = match waiting.is_empty() {
                    true => arriving.recv().await,
                    false => Some(waiting.swap_remove(first)),
                };
                let Some((shard, slots)) = next else { break };
                if !self.put(index, shard, slots) {
                    break;
                }
                missing &= !bit(shard);
                if !arrived(shard) {
                    break;
                }
            }
            missing
        };
        join(OptionFuture::from(here), load).await.1
    }

    fn put(&mut self, index: &ObjectIndex, shard: usize, slots: Option<SlotTable>) -> bool {
        let homes = self.header.homes(shard);
        let is_right = slots.is_some_and(|slots| index.load(shard, homes, slots, &self.kept));
        self.loaded |= if is_right { bit(shard) } else { 0 };
        is_right
    }
}

/// Shards of a checkpoint to be read.
struct UnreadShards {
    header: CheckpointHeader,
    /// The shards still to read, one bit per shard.
    left: u64,
    /// The shards to read first, one bit per shard.
    wanted: Arc<AtomicU64>,
    /// What was already read.
    held: Option<HeldChunks>,
}

impl UnreadShards {
    /// Reads and checks the shards, until all are read or the receiver is gone.
    async fn read(mut self, device: &SharedDevice, layout: &SpanLayout, sender: mpsc::UnboundedSender<ReadShard>) {
        let is_left = |shard: usize| self.left & bit(shard) != 0;
        let size = |shard| if is_left(shard) { self.header.slots_bytes(shard) } else { 0 };
        let mut rooms = SlotTable::rooms(&(0..INDEX_SHARDS).map(size).collect::<Vec<_>>());
        let mut spares: Vec<HeldChunks> = self.held.take().into_iter().collect();
        let largest = (0..INDEX_SHARDS).map(|shard| self.header.slots_bytes(shard)).max().unwrap_or(0);
        let at_once = if largest < AT_ONCE_BYTES_MIN { 1 } else { SHARDS_AT_ONCE };
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < at_once && self.left != 0 {
                let wanted = self.left & self.wanted.load(Ordering::Acquire);
                let shard = if wanted != 0 { wanted } else { self.left }.trailing_zeros() as usize;
                self.left &= !bit(shard);
                let (header, room, mut spare) = (self.header, rooms[shard].take(), spares.pop());
                reads.push(async move {
                    let slots = read_shard(device, layout, &header, shard, room, &mut spare).await;
                    (shard, slots, spare)
                });
            }
            let Some((shard, slots, spare)) = reads.next().await else { return };
            spares.extend(spare);
            if sender.send((shard, slots)).is_err() {
                return;
            }
        }
    }
}

/// The remaining work on an index: shards to load, and records to replay.
pub struct IndexRemainder {
    /// The source of the shards that are not loaded; `None` if all shards are loaded.
    pub loading: Option<CheckpointLoading>,
    pub replay: IndexReplay,
    /// A missing record was damaged if its sequence is at most this one; a missing record with a higher sequence was
    /// cut off by a crash.
    pub recovered_sequence: u64,
}

impl IndexRemainder {
    /// Loads all shards, those with waiters first. `arrived` is called for each and returns whether to continue.
    /// Returns the shards that are still missing (because of damage, or because `arrived` ended the loading), one bit
    /// per shard.
    pub async fn bring(
        &mut self,
        device: &SharedDevice,
        layout: &SpanLayout,
        index: &ObjectIndex,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let IndexRemainder { loading, replay, recovered_sequence } = self;
        let mut settled = |shard: usize| {
            replay.settle(shard, index);
            replay.forget_replaced(shard, index, *recovered_sequence);
            arrived(shard)
        };
        match loading {
            Some(loading) => loading.load_all(device, layout, index, settled).await,
            None => {
                // All shards are loaded already, so nothing is missing, even if the store is being closed.
                (0..INDEX_SHARDS).for_each(|shard| _ = settled(shard));
                0
            }
        }
    }
}

const _: () = assert!(INDEX_SHARDS == u64::BITS as usize);
