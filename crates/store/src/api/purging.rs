//! The public purges: of a key, by prefix, by tag, of everything.
//!
//! Owns: the four calls, each for a purge and with any effect. Each waits until there is room for another purge rule.
//! Leaves to others: the order of purges among puts (`put/purge.rs`), the rules (`purge/purge_table.rs`), and writing
//! purges to disk and making room for more rules (`write/purges.rs`).
//!
//! A *soft purge* leaves its objects where they are. Later gets find them as stale
//! ([`stale_since_s`](crate::StoredObject::stale_since_s)) until they are replaced, or their metadata are. In all else it is
//! a purge: it costs the same, it is durable when it returns, and fills that began before it store nothing. The store
//! does not rewrite softly purged objects, so the ring overwrites those that nobody replaces.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_host::fleet::AppliedMark;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

use crate::api::store::Store;
use crate::counters::Counters;
use crate::error::{Error, StoreErrorKind};
use crate::format::PurgeRecord;
use crate::names::key::{KeyRef, PRIMARY_BYTES_MAX, hash_prefix};
use crate::names::tag::hash_tag;
use crate::purge::log::PurgeOrder;
use crate::purge::records::PurgeEffect;
use crate::purge::rules::PREFIX_LENGTHS_MAX;
use crate::put::commit::PutCommitter;
use crate::put::purge::{PurgeStart, PurgeTarget};
use crate::write::WriterCommand;

/// Counts one waiting purge until this value is dropped.
struct PurgeWaitGuard<'a>(&'a AtomicU64);

impl Drop for PurgeWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The turn of a purge in a store of several spans. In such a store, all spans receive the purges in the same order. So
/// the next purge waits until the writer of each span has received this purge, or until the caller of this purge has
/// given up.
#[derive(Default)]
pub(crate) struct PurgeTurn {
    /// The number of this purge, and the number of the last purge that is known to be durable on every present span.
    pub order: PurgeOrder,
    /// The lock that makes later purges wait; each span's part of this purge holds a clone. `None` in a store of one
    /// span.
    pub guard: Option<Arc<OwnedMutexGuard<u64>>>,
}

impl Store {
    /// Purges a key with all its variants.
    ///
    /// *Durability*: when this returns, no later get finds an object that was put before the purge, or whose fill began
    /// before it, not even after a crash or a power cut. *Cost*: nothing is written if it is certain that the store has
    /// no object of the key; otherwise one block is written to both copies of the purge log, and the device is flushed
    /// once. Concurrent purges share the block and the flush. If the store remembers as many purges as it may
    /// ([`purge_records_max`](crate::StoreStat::purge_records_max)), the call waits: the oldest segments are reclaimed, and
    /// older purges are forgotten with them. *Errors*: `Busy` if fills that began long ago prevent the store from
    /// forgetting older purges; then nothing is purged. Any other error means that the purge could not be made durable;
    /// it is still valid in memory.
    pub async fn purge_key(&self, primary: &[u8]) -> Result<(), Error> {
        self.purge_key_as(primary, PurgeEffect::Hard).await
    }

    /// Purges a key with all its variants as [`purge_key`](Store::purge_key) does, hard or softly.
    pub async fn purge_key_as(&self, primary: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        self.purge_key_in(primary, effect, PurgeTurn::default()).await
    }

    /// Purges a key on this span. In a store of several spans, one purge calls this on every present span.
    pub(crate) async fn purge_key_in(&self, primary: &[u8], effect: PurgeEffect, turn: PurgeTurn) -> Result<(), Error> {
        let puts = self.puts();
        let key = KeyRef::new(primary, b"");
        let (primary_hash, hash) = puts.span.hash(key);
        let drop_resident = |generation| {
            if effect != PurgeEffect::Hard {
                return;
            }
            let resident = puts.state.memory.get(hash, key);
            if let Some(entry) = resident.filter(|entry| entry.generation <= generation)
                && let Some(location) = entry.location()
            {
                puts.state.forget_purged(hash, location);
                puts.state.memory.remove_same(&entry);
            }
        };
        self.purge(PurgeTarget::Key(primary_hash), effect, turn, drop_resident).await
    }

    /// Purges everything.
    ///
    /// *Durability*: when this returns, no later get finds an object that was put before the purge, or whose fill began
    /// before it, not even after a crash or a power cut. *Cost*: one block is written to both copies of the purge log,
    /// and the device is flushed once. Concurrent purges share the block and the flush. A purged object leaves memory
    /// and the index when it is requested or reclaimed. This purge replaces all other remembered purges. *Errors*: an
    /// error means that the purge could not be made durable; it is still valid in memory.
    pub async fn purge_all(&self) -> Result<(), Error> {
        self.purge_all_as(PurgeEffect::Hard).await
    }

    /// Purges everything as [`purge_all`](Store::purge_all) does, hard or softly. A soft purge of everything replaces
    /// only the other remembered soft purges; it waits for room, and *Errors* are those of
    /// [`purge_key`](Store::purge_key).
    pub async fn purge_all_as(&self, effect: PurgeEffect) -> Result<(), Error> {
        self.purge_all_in(effect, PurgeTurn::default()).await
    }

    /// Purges everything on this span. In a store of several spans, one purge calls this on every present span.
    pub(crate) async fn purge_all_in(&self, effect: PurgeEffect, turn: PurgeTurn) -> Result<(), Error> {
        self.purge(PurgeTarget::All, effect, turn, |_| ()).await
    }

    /// Purges every key whose primary part begins with `prefix`, with all its variants.
    ///
    /// *Durability* and *Cost* are those of [`purge_key`](Store::purge_key) for a key that the store has. *Errors*:
    /// those of `purge_key`; also `Busy` if purges by prefixes of too many different lengths are remembered, and
    /// `Invalid` if no key can be as long as the prefix (nothing is purged in either case). While the purge is
    /// remembered, each hit of an older object hashes the beginning of its key.
    pub async fn purge_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        self.purge_prefix_as(prefix, PurgeEffect::Hard).await
    }

    /// Purges every key that begins with `prefix` as [`purge_prefix`](Store::purge_prefix) does, hard or softly.
    pub async fn purge_prefix_as(&self, prefix: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        self.purge_prefix_in(prefix, effect, PurgeTurn::default()).await
    }

    /// Purges a prefix on this span. In a store of several spans, one purge calls this on every present span.
    pub(crate) async fn purge_prefix_in(
        &self,
        prefix: &[u8],
        effect: PurgeEffect,
        turn: PurgeTurn,
    ) -> Result<(), Error> {
        let puts = self.puts();
        let length = match prefix.len() {
            0 => return self.purge_all_in(effect, turn).await,
            length if length <= PRIMARY_BYTES_MAX => length as u16,
            length => {
                return Err(Error::invalid(format!(
                    "a prefix has 1 to {PRIMARY_BYTES_MAX} bytes, as a key has; this one has {length}"
                )));
            }
        };
        if !puts.state.purges.has_room_for_prefix(length, effect != PurgeEffect::Hard) {
            return Err(Error::new(
                StoreErrorKind::Busy,
                format!(
                    "{PREFIX_LENGTHS_MAX} purges by prefixes of different lengths are remembered until what they purged is \
                     overwritten; use a prefix of a length that was used, or purge everything"
                ),
            ));
        }
        let hash = hash_prefix(puts.span.layout.hash_seed, prefix);
        self.purge(PurgeTarget::Prefix(hash, length), effect, turn, |_| ()).await
    }

    /// Purges every object with this tag, whatever its key.
    ///
    /// *Durability* and *Cost* are those of [`purge_key`](Store::purge_key) for a key that the store has. *Errors*:
    /// those of `purge_key`; also `Invalid` for a tag that no object can have (nothing is purged). Versions that a
    /// purged object had replaced stay hidden. While the purge is remembered, each hit of an older object looks up each
    /// of its tags.
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), Error> {
        self.purge_tag_as(tag, PurgeEffect::Hard).await
    }

    /// Purges every object with this tag as [`purge_tag`](Store::purge_tag) does, hard or softly.
    pub async fn purge_tag_as(&self, tag: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        self.purge_tag_in(tag, effect, PurgeTurn::default()).await
    }

    /// Purges a tag on this span. In a store of several spans, one purge calls this on every present span.
    pub(crate) async fn purge_tag_in(&self, tag: &[u8], effect: PurgeEffect, turn: PurgeTurn) -> Result<(), Error> {
        let hash = hash_tag(self.span().layout.hash_seed, tag)?;
        self.purge(PurgeTarget::Tag(hash), effect, turn, |_| ()).await
    }

    /// What this span has applied of its fleet's purges.
    pub(crate) fn applied_mark(&self) -> AppliedMark {
        self.state().progress.mark()
    }

    /// Says what the store has applied of its fleet's purges, all of which are durable. The next block of the log has it.
    pub(crate) fn set_applied_mark(&self, mark: AppliedMark) {
        self.state().progress.set_mark(mark);
    }

    /// Writes a block without a purge, so that the mark is durable.
    pub(crate) async fn flush_applied_mark_in(&self, turn: PurgeTurn) -> Result<(), Error> {
        self.ask_in_turn(None, turn).await
    }

    /// Purges `target`. As soon as the purge is valid in memory, calls `then` with the purge's generation.
    async fn purge(
        &self,
        target: PurgeTarget,
        effect: PurgeEffect,
        turn: PurgeTurn,
        then: impl FnOnce(u64),
    ) -> Result<(), Error> {
        let puts = self.puts();
        // In a store of several spans, each span records every purge, so that a span that missed purges can get them
        // from another span.
        let may_leave_out = turn.guard.is_none();
        let record = loop {
            match puts.begin_purge(target, effect, may_leave_out) {
                PurgeStart::Absent => {
                    Counters::add(&puts.span.counters.purges, 1);
                    Counters::add(&puts.span.counters.purges_absent, 1);
                    return Ok(());
                }
                PurgeStart::Holds(record) => break record,
                PurgeStart::Full => self.wait_for_rules(puts).await?,
            }
        };
        then(record.generation.get());
        self.ask_in_turn(Some(record), turn).await?;
        Counters::add(&puts.span.counters.purges, 1);
        Ok(())
    }

    /// Makes the record of a purge durable, or only the mark. The purge's turn ends when the writer has received the record.
    async fn ask_in_turn(&self, record: Option<PurgeRecord>, turn: PurgeTurn) -> Result<(), Error> {
        let PurgeTurn { order, guard } = turn;
        let answer = self.send(|reply| WriterCommand::Purge((record, order), reply)).await;
        drop(guard);
        self.answer(answer?).await
    }

    /// Waits until there is room for another purge rule. Another caller may use the room first.
    async fn wait_for_rules(&self, puts: &PutCommitter) -> Result<(), Error> {
        puts.purges_waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = PurgeWaitGuard(&puts.purges_waiting);
        let begun = Instant::now();
        let result = self.ask(WriterCommand::PurgeRoom).await;
        Counters::add(&puts.span.counters.purges_waited, 1);
        Counters::add(&puts.span.counters.purges_waited_us, begun.elapsed().as_micros() as u64);
        result
    }
}
