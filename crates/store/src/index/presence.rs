//! The shards of the index that are loaded after a restart, and waiting for a shard.
//!
//! Owns: the waiting for shards. No caller searches the index for a hash before its shard is loaded, except callers for
//! which "not found" is a safe answer. Leaves to others: loading the shards (`recover/loading.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::shard_of;
use crate::names::key::KeyHash;

/// The shards of the index that are loaded.
pub struct ShardPresence {
    /// One bit per shard.
    present: AtomicU64,
    /// The shards for which callers wait or have waited, one bit per shard.
    wanted: Arc<AtomicU64>,
    arrived: Notify,
}

impl ShardPresence {
    /// Makes the state. With `wanted`, no shard is loaded yet, and the loader reads `wanted`; without it, all shards
    /// are loaded.
    pub fn new(wanted: Option<Arc<AtomicU64>>) -> ShardPresence {
        let present = AtomicU64::new(if wanted.is_some() { 0 } else { u64::MAX });
        ShardPresence { present, wanted: wanted.unwrap_or_default(), arrived: Notify::new() }
    }

    /// Whether the shard of a hash is loaded.
    pub fn has(&self, hash: KeyHash) -> bool {
        self.present.load(Ordering::Acquire) & bit(shard_of(hash)) != 0
    }

    /// Whether all shards are loaded.
    pub fn is_whole(&self) -> bool {
        self.present.load(Ordering::Acquire) == u64::MAX
    }

    /// Waits until the shard of a hash is loaded. *Cost*: one atomic load if the shard is loaded.
    pub async fn wait(&self, hash: KeyHash) {
        if !self.has(hash) {
            self.wanted.fetch_or(bit(shard_of(hash)), Ordering::AcqRel);
            self.wait_for(bit(shard_of(hash))).await;
        }
    }

    /// Waits until all shards are loaded.
    pub async fn wait_for_all(&self) {
        self.wait_for(u64::MAX).await;
    }

    /// Notes that more shards are loaded; `shards` has one bit per shard.
    pub fn arrive(&self, shards: u64) {
        self.present.fetch_or(shards, Ordering::AcqRel);
        self.arrived.notify_waiters();
    }

    /// Marks all shards as not loaded.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(shard: u64) -> KeyHash {
        KeyHash(u128::from(shard << 58))
    }

    /// A get waits for its own shard alone, and never for ever.
    #[tokio::test]
    async fn get_waits_for_own_shard() {
        let presence = Arc::new(ShardPresence::new(None));
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
