//! The index after a restart: shard by shard out of the checkpoint, those first that somebody waits for.
//!
//! Owns: which shards of the index are there, who waits for one, and bringing them. A shard is there when its slots were
//! read and checked and what the log has for it was replayed; from then on it is like any other. So a get waits for its own
//! shard and not for the others. Leaves to others: how far the log goes, which is settled before anything is served
//! (`recovery`), and the shards themselves (`index`, `checkpoint`, `replay`).
//!
//! # Invariants
//! 1. Nobody looks into the index for a hash before its shard is there, but for those to whom "nothing" is a safe answer.
//! 2. The writer brings the shards before it writes anything. So what the disk holds is what recovery found, and where a chunk
//!    turns out to be damaged the shards that are missing are made anew: from the other checkpoint, or from all segments.
//! 3. Whatever happens, waiting ends: where the writer is gone, what is missing stays empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{OptionFuture, join};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nectary_block::SharedDevice;
use tokio::sync::{Notify, mpsc};

use crate::checkpoint::{CheckpointHeader, read_shard};
use crate::format::INDEX_SHARDS;
use crate::index::{Index, Kept, Slots, shard_of};
use crate::key::KeyHash;
use crate::layout::Layout;
use crate::read_ahead;
use crate::replay::Replay;

/// Shards that are read at the same time: one is worked on while the next is read.
const SHARDS_AT_ONCE: usize = 2;

/// Which shards of the index are there.
pub struct Presence {
    /// One bit a shard.
    present: AtomicU64,
    /// The shards that somebody asked for, one bit each.
    wanted: Arc<AtomicU64>,
    arrived: Notify,
}

impl Presence {
    /// None are there where they are still loaded, or else all.
    pub fn new(loading: Option<&Loading>) -> Presence {
        let present = AtomicU64::new(if loading.is_some() { 0 } else { u64::MAX });
        let wanted = loading.map(|loading| Arc::clone(&loading.wanted)).unwrap_or_default();
        Presence { present, wanted, arrived: Notify::new() }
    }

    /// Whether the shard of a hash is there.
    pub fn has(&self, hash: KeyHash) -> bool {
        self.present.load(Ordering::Acquire) & bit(shard_of(hash)) != 0
    }

    /// Whether all shards are there.
    pub fn is_whole(&self) -> bool {
        self.present.load(Ordering::Acquire) == u64::MAX
    }

    /// Waits until the shard of a hash is there. *Cost*: one load where it is.
    pub async fn wait(&self, hash: KeyHash) {
        if !self.has(hash) {
            self.wanted.fetch_or(bit(shard_of(hash)), Ordering::AcqRel);
            self.wait_for(bit(shard_of(hash))).await;
        }
    }

    /// Waits until all shards are there.
    pub async fn wait_for_all(&self) {
        self.wait_for(u64::MAX).await;
    }

    /// Says that shards are there, one bit each.
    pub fn arrive(&self, shards: u64) {
        self.present.fetch_or(shards, Ordering::AcqRel);
        self.arrived.notify_waiters();
    }

    /// Makes as if no shard had come yet.
    #[cfg(test)]
    pub fn begin_again(&self) {
        self.present.store(0, Ordering::Release);
    }

    async fn wait_for(&self, shards: u64) {
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if self.present.load(Ordering::Acquire) & shards == shards {
                return;
            }
            arrived.await;
        }
    }
}

fn bit(shard: usize) -> u64 {
    1 << shard
}

/// The slots of a shard, or none where they are damaged.
type ReadShard = (usize, Option<Slots>);

/// A checkpoint whose shards are not all in the index yet.
pub struct Loading {
    header: CheckpointHeader,
    kept: Kept,
    /// Shards whose slots are in the index, one bit each.
    loaded: u64,
    wanted: Arc<AtomicU64>,
    /// Where shards are read on another thread: what comes from there.
    arriving: Option<mpsc::UnboundedReceiver<ReadShard>>,
}

impl Loading {
    /// Nothing of a checkpoint that fits the index is loaded yet.
    pub fn of(header: CheckpointHeader, kept: Kept) -> Loading {
        Loading { header, kept, loaded: 0, wanted: Arc::default(), arriving: None }
    }

    /// The checkpoint's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Begins to read the index on another thread.
    pub fn read_ahead(&mut self, device: &SharedDevice, layout: &Layout) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let shards = Shards { header: self.header, left: u64::MAX, wanted: Arc::clone(&self.wanted) };
        let (device, layout) = (device.clone(), *layout);
        let is_spawned = read_ahead::spawn(move || async move { shards.read(&device, &layout, sender).await });
        self.arriving = is_spawned.then_some(receiver);
    }

    /// Loads the slots of one shard, without what was replayed; false where they, or others that came first, are damaged.
    pub async fn load_one(&mut self, device: &SharedDevice, layout: &Layout, index: &Index, shard: usize) -> bool {
        self.wanted.fetch_or(bit(shard), Ordering::AcqRel);
        while self.loaded & bit(shard) == 0 {
            let (shard, slots) = match &mut self.arriving {
                Some(arriving) => match arriving.recv().await {
                    Some(arrived) => arrived,
                    None => return false,
                },
                None => {
                    let room = Slots::rooms(&[self.header.slots_bytes(shard)]).pop().expect("one for each size");
                    (shard, read_shard(device, layout, &self.header, shard, room, &mut None).await)
                }
            };
            if !self.put(index, shard, slots) {
                return false;
            }
        }
        true
    }

    /// Loads what is not loaded; tells `arrived` of each shard. Returns those that are not there, one bit each.
    async fn load_all(
        &mut self,
        device: &SharedDevice,
        layout: &Layout,
        index: &Index,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let (mut arriving, here) = match self.arriving.take() {
            Some(arriving) => (arriving, None),
            None => {
                let (sender, arriving) = mpsc::unbounded_channel();
                let shards = Shards { header: self.header, left: !self.loaded, wanted: Arc::clone(&self.wanted) };
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

    fn put(&mut self, index: &Index, shard: usize, slots: Option<Slots>) -> bool {
        let homes = self.header.homes(shard);
        let is_right = slots.is_some_and(|slots| index.load(shard, homes, slots, &self.kept));
        self.loaded |= if is_right { bit(shard) } else { 0 };
        is_right
    }
}

/// Shards of a checkpoint to be read.
struct Shards {
    header: CheckpointHeader,
    /// One bit each.
    left: u64,
    /// Those that are read first, one bit each.
    wanted: Arc<AtomicU64>,
}

impl Shards {
    /// Reads and checks them, until all are read or nobody takes them any more.
    async fn read(mut self, device: &SharedDevice, layout: &Layout, sender: mpsc::UnboundedSender<ReadShard>) {
        let is_left = |shard: usize| self.left & bit(shard) != 0;
        let size = |shard| if is_left(shard) { self.header.slots_bytes(shard) } else { 0 };
        let mut rooms = Slots::rooms(&(0..INDEX_SHARDS).map(size).collect::<Vec<_>>());
        let mut spares = Vec::new();
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < SHARDS_AT_ONCE && self.left != 0 {
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

/// What is left to do to an index: shards to be loaded, and records to be replayed.
pub struct Rest {
    /// Where some shards are not loaded: what they are loaded from.
    pub loading: Option<Loading>,
    pub replay: Replay,
    /// Up to here no record may be missing.
    pub recovered_sequence: u64,
}

impl Rest {
    /// Does all of it, those shards first that are waited for; `arrived` is told of each and says whether to go on. Returns the
    /// shards that are not there as one is damaged, or nobody wants to go on; one bit each.
    pub async fn bring(
        &mut self,
        device: &SharedDevice,
        layout: &Layout,
        index: &Index,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let Rest { loading, replay, recovered_sequence } = self;
        let mut settled = |shard: usize| {
            replay.settle(shard, index);
            replay.forget_replaced(shard, index, *recovered_sequence);
            arrived(shard)
        };
        match loading {
            Some(loading) => loading.load_all(device, layout, index, settled).await,
            None => (0..INDEX_SHARDS).filter(|&shard| !settled(shard)).fold(0, |left, shard| left | bit(shard)),
        }
    }
}

const _: () = assert!(INDEX_SHARDS == u64::BITS as usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(shard: u64) -> KeyHash {
        KeyHash(u128::from(shard << 58))
    }

    #[tokio::test]
    async fn a_get_waits_for_its_own_shard_alone_and_never_for_ever() {
        let presence = Arc::new(Presence::new(None));
        presence.begin_again();
        let waiting = [3, 5].map(|shard| {
            let presence = Arc::clone(&presence);
            tokio::spawn(async move { presence.wait(hash(shard)).await })
        });
        while presence.wanted.load(Ordering::Acquire) != bit(3) | bit(5) {
            tokio::task::yield_now().await;
        }
        let [third, fifth] = waiting;
        presence.arrive(bit(3));
        third.await.unwrap();
        presence.wait(hash(3)).await;
        assert!(!fifth.is_finished() && !presence.has(hash(5)));
        presence.arrive(u64::MAX);
        fifth.await.unwrap();
        presence.wait_for_all().await;
    }
}
