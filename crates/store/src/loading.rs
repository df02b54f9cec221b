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

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{FuturesUnordered, StreamExt};
use nectary_block::{Buffer, SharedDevice};
use tokio::sync::Notify;

use crate::checkpoint::{CheckpointHeader, read_shard};
use crate::format::INDEX_SHARDS;
use crate::index::{Index, Kept, shard_of};
use crate::key::KeyHash;
use crate::layout::Layout;
use crate::replay::Replay;

/// Shards that are read at the same time: one is worked on while the next is read.
const SHARDS_AT_ONCE: usize = 2;

/// Which shards of the index are there.
pub struct Presence {
    /// One bit a shard.
    present: AtomicU64,
    wanted: AtomicU64,
    arrived: Notify,
}

impl Presence {
    /// All are there, or none.
    pub fn new(all: bool) -> Presence {
        let present = if all { u64::MAX } else { 0 };
        Presence { present: AtomicU64::new(present), wanted: AtomicU64::new(0), arrived: Notify::new() }
    }

    /// Whether the shard of a hash is there.
    pub fn has(&self, hash: KeyHash) -> bool {
        self.present.load(Ordering::Acquire) & bit(shard_of(hash)) != 0
    }

    /// Waits until the shard of a hash is there. *Cost*: one load where it is.
    pub async fn wait(&self, hash: KeyHash) {
        if !self.has(hash) {
            self.wanted.fetch_or(bit(shard_of(hash)), Ordering::AcqRel);
            self.wait_for(bit(shard_of(hash))).await;
        }
    }

    /// The shards that somebody asked for, one bit each.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Acquire)
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

/// A checkpoint whose shards are not all in the index yet.
pub struct Loading {
    header: CheckpointHeader,
    kept: Kept,
    /// Shards whose slots are in the index, one bit each.
    loaded: u64,
    spare: Vec<Buffer>,
}

impl Loading {
    /// Nothing of a checkpoint that fits the index is loaded yet.
    pub fn of(header: CheckpointHeader, kept: Kept) -> Loading {
        Loading { header, kept, loaded: 0, spare: Vec::new() }
    }

    /// The checkpoint's number.
    pub fn number(&self) -> u64 {
        self.header.number
    }

    /// Loads the slots of one shard, without what was replayed; false where they are damaged.
    pub async fn load_one(&mut self, device: &SharedDevice, layout: &Layout, index: &Index, shard: usize) -> bool {
        if self.loaded & bit(shard) != 0 {
            return true;
        }
        let mut spare = self.spare.pop();
        let slots = read_shard(device, layout, &self.header, shard, &mut spare).await;
        self.spare.extend(spare);
        self.put(index, shard, slots)
    }

    async fn load_all(
        &mut self,
        device: &SharedDevice,
        layout: &Layout,
        index: &Index,
        wanted: impl Fn() -> u64,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let mut left = u64::MAX;
        let mut missing = u64::MAX;
        let mut reads = FuturesUnordered::new();
        loop {
            while reads.len() < SHARDS_AT_ONCE && left != 0 {
                let first = Some(left & wanted()).filter(|&shards| shards != 0).unwrap_or(left);
                let shard = first.trailing_zeros() as usize;
                left &= !bit(shard);
                let is_loaded = self.loaded & bit(shard) != 0;
                let (header, mut spare) = (self.header, self.spare.pop());
                reads.push(async move {
                    let slots = match is_loaded {
                        true => None,
                        false => read_shard(device, layout, &header, shard, &mut spare).await,
                    };
                    (shard, slots, spare)
                });
            }
            let Some((shard, slots, spare)) = reads.next().await else { return missing };
            let shard: usize = shard;
            self.spare.extend(spare);
            if self.loaded & bit(shard) == 0 && !self.put(index, shard, slots) {
                return missing;
            }
            missing &= !bit(shard);
            if !arrived(shard) {
                return missing;
            }
        }
    }

    fn put(&mut self, index: &Index, shard: usize, slots: Option<Vec<u64>>) -> bool {
        let homes = self.header.homes(shard);
        let is_right = slots.is_some_and(|slots| index.load(shard, homes, slots, &self.kept));
        self.loaded |= if is_right { bit(shard) } else { 0 };
        is_right
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
    /// Does all of it, those shards first that `wanted` asks for; `arrived` is told of each and says whether to go on. Returns
    /// the shards that are not there as one is damaged, or nobody wants to go on; one bit each.
    pub async fn bring(
        &mut self,
        device: &SharedDevice,
        layout: &Layout,
        index: &Index,
        wanted: impl Fn() -> u64,
        mut arrived: impl FnMut(usize) -> bool,
    ) -> u64 {
        let Rest { loading, replay, recovered_sequence } = self;
        let mut settled = |shard: usize| {
            replay.apply(shard, index);
            replay.forget_replaced(shard, index, *recovered_sequence);
            arrived(shard)
        };
        match loading {
            Some(loading) => loading.load_all(device, layout, index, wanted, settled).await,
            None => (0..INDEX_SHARDS).filter(|&shard| !settled(shard)).fold(0, |left, shard| left | bit(shard)),
        }
    }
}

const _: () = assert!(INDEX_SHARDS == u64::BITS as usize);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn hash(shard: u64) -> KeyHash {
        KeyHash(u128::from(shard << 58))
    }

    #[tokio::test]
    async fn a_get_waits_for_its_own_shard_alone_and_never_for_ever() {
        let presence = Arc::new(Presence::new(false));
        let waiting = [3, 5].map(|shard| {
            let presence = Arc::clone(&presence);
            tokio::spawn(async move { presence.wait(hash(shard)).await })
        });
        while presence.wanted() != bit(3) | bit(5) {
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
