//! A store of several spans (devices), which continues to serve after the loss of a span.
//!
//! Owns: serving from several spans, and handling the loss of a span (`open`: whether a returning span is trusted;
//! `placement`: the span of a key; `membership`: which spans were present). Promises: those of [`Store`], for all spans
//! together. The loss of a span only makes the span's objects misses. A purge that returned is valid on every span,
//! even on a span that was absent during the purge. Leaves to others: each single span (`api/store.rs`).
//!
//! # Idea
//! A key belongs to one span, by a hash of its primary part (rendezvous hashing, weighted by size). So spans need only
//! agree on which spans are present. If the span of a key is absent, the next span in the key's order stands in for it.
//!
//! *Membership* is the only state that spans share. Each span records durably the number of the last change, the spans
//! present since then (`present`), and its own clock when a span last returned (`since`). A change is committed when
//! all present spans have flushed it. Before that, no span stands in for an absent one, and no purge that an absent
//! span missed returns. So
//! - a returning span is trusted only if the last change names it, and it has recorded that change or the one before;
//!   otherwise the span may have missed something, and begins empty;
//! - a store is not opened if a missing span may have served without the others (that is, if the last known change
//!   names it), except if the caller allows the store to forget all objects. A span that was lost while the store
//!   served is no obstacle, because all other spans have recorded its loss;
//! - an older copy of a span is noticed if another span was present since the copy was made. Each open makes two
//!   changes before it serves: a span that has recorded neither change of the last open is a copy from before that
//!   open. A copy from after it is noticed if it lacks a purge that all spans had; purges are numbered in one order for
//!   all spans (`open`);
//! - an object on a span that stands in for an absent one is valid only if it was put after a span last returned: an
//!   object from an earlier absence may have been replaced on the returned span since.
//!
//! # Cost
//! With one span, there is no cost: each call goes directly to the span. With several spans, each call costs one hash
//! of the key, and some nanoseconds per span.

mod membership;
mod open;
mod placement;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use nectary_block::{DeviceErrorKind as DeviceError, SharedDevice};
use nectary_host::fleet::AppliedMark;
use tokio::sync::OwnedMutexGuard;
use tokio_util::task::AbortOnDropHandle;

use crate::api::check::CheckReport;
use crate::api::purging::PurgeTurn;
use crate::api::stat::{SpanStat, StoreStat};
use crate::api::store::Store;
use crate::counters::PutSequence;
use crate::error::Error;
use crate::format::layout::{SPANS_MAX, SpanMember};
use crate::get::object::StoredObject;
use crate::names::key::KeyRef;
use crate::planted::{Bug, planted};
use crate::purge::log::PurgeOrder;
use crate::purge::records::PurgeEffect;
use crate::put::fill::FillRole;
use crate::random::random_u64;
use crate::recover::{PendingRepair, SpanMembership};
use crate::write::trouble::FAILURES_MAX;

use placement::SpanPlacement;

/// A device of a store, or the reason why the device could not be opened.
pub struct SpanDevice {
    /// The name that the user gave.
    pub spec: String,
    /// The opened device, or the error from opening it.
    pub device: Result<SharedDevice, Error>,
    /// If the device is blank: the size of the span to be made on it, in bytes; 0 for the whole device.
    pub size_bytes: u64,
}

/// One span of an open store.
struct OpenSpan {
    spec: String,
    /// The store on this span; `None` if it could not be opened.
    store: Option<Store>,
    /// Why the span is absent; `None` if it is present.
    lost: Mutex<Option<String>>,
}

struct SpanSetInner {
    /// The spans, in the order of their numbers.
    spans: Vec<OpenSpan>,
    /// The store on one of the spans that could be opened.
    any: Store,
    placement: SpanPlacement,
    /// The present spans, one bit per span.
    present: AtomicU64,
    /// Whether the store was closed. After that, a span that takes no more writes does not count as lost.
    is_closed: AtomicBool,
    /// The number of the last change, and the number and identity of the last committed change. This is locked while
    /// the next change is made.
    membership: tokio::sync::Mutex<(u64, (u64, u64))>,
    /// The number of the last purge. This is locked until the writers of all spans have received that purge.
    purge_turn: Arc<tokio::sync::Mutex<u64>>,
    notes: Mutex<Vec<String>>,
}

/// An open store of one or several spans. Clones share it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_store::{KeyRef, OpenOptions, SpanDevice, SpanSet};
/// let span = |name: &str| SpanDevice {
///     spec: name.to_owned(),
///     device: Ok(std::sync::Arc::new(nectary_block::MemoryDevice::new(64 << 20))),
///     size_bytes: 0,
/// };
/// let store = SpanSet::open(vec![span("one"), span("two")], OpenOptions::default()).await.unwrap();
/// let key = KeyRef::new(b"http://example.com/", b"");
/// store.put(key, "metadata".into(), "body".into()).await.unwrap();
/// assert_eq!(store.get(key).await.unwrap().whole().unwrap(), "body");
/// store.purge_all().await.unwrap();
/// assert!(store.get(key).await.is_none());
/// store.close().await.unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct SpanSet {
    inner: Arc<SpanSetInner>,
}

impl SpanSet {
    /// The only span of a store of one span; `None` if the store has several.
    #[inline]
    fn sole(&self) -> Option<&Store> {
        match &self.inner.spans[..] {
            [only] => only.store.as_ref(),
            _ => None,
        }
    }

    /// The present span of a key, and whether it stands in for another one.
    fn place(&self, primary: &[u8]) -> Option<(&Store, bool)> {
        let inner = &*self.inner;
        let present = inner.present.load(Ordering::Acquire);
        let (number, stands_in) = inner.placement.place(primary, present)?;
        Some((inner.spans[number].store.as_ref()?, stands_in))
    }

    /// The number of the present span of a key; `None` if no span is present.
    pub fn span_of(&self, primary: &[u8]) -> Option<u32> {
        let present = self.inner.present.load(Ordering::Acquire);
        self.inner.placement.place(primary, present).map(|(number, _)| number as u32)
    }

    /// The longest body that can be stored under a key, in bytes; `None` if no span is present.
    pub fn object_bytes_max(&self, primary: &[u8]) -> Option<u64> {
        self.place(primary).map(|(store, _)| store.puts().span.layout.object_bytes_max())
    }

    /// Whether an object of a key has none but these tags. It may have more than the last response that confirmed it named.
    pub fn has_only_tags<'a>(
        &self,
        primary: &[u8],
        object: &StoredObject,
        tags: impl IntoIterator<Item = &'a [u8]>,
    ) -> bool {
        let own = object.entry.tags.hashes();
        let Some((store, _)) = self.place(primary).filter(|_| !own.is_empty()) else { return own.is_empty() };
        let named = store.puts().span.tags(tags);
        named.is_ok_and(|named| own.iter().all(|tag| named.hashes().contains(tag)))
    }

    /// The present spans.
    fn present(&self) -> impl Iterator<Item = (usize, &Store)> {
        let present = self.inner.present.load(Ordering::Acquire);
        let spans = self.inner.spans.iter().enumerate();
        spans
            .filter(move |(number, _)| present >> number & 1 == 1)
            .filter_map(|(number, span)| Some((number, span.store.as_ref()?)))
    }

    /// Finds an object in memory, like [`Store::get_resident`].
    #[inline]
    pub fn get_resident(&self, key: KeyRef<'_>) -> Option<StoredObject> {
        if let Some(only) = self.sole() {
            return only.get_resident(key);
        }
        let (store, stands_in) = self.place(key.primary)?;
        store.get_resident(key).filter(|object| is_current(store, stands_in, object))
    }

    /// Finds an object in memory or on disk, like [`Store::get`]. The first caller that meets a failed span records its
    /// loss on the other spans.
    pub async fn get(&self, key: KeyRef<'_>) -> Option<StoredObject> {
        if let Some(only) = self.sole() {
            return only.get(key).await;
        }
        self.notice_losses().await;
        let (store, stands_in) = self.place(key.primary)?;
        store.get(key).await.filter(|object| is_current(store, stands_in, object))
    }

    /// Finds an object in memory or on disk, and distinguishes a failed device from a miss, like [`Store::try_get`].
    ///
    /// *Errors*: those of the device; `Stopped` if no span is present.
    pub async fn try_get(&self, key: KeyRef<'_>) -> Result<Option<StoredObject>, Error> {
        if let Some(only) = self.sole() {
            return only.try_get(key).await;
        }
        self.notice_losses().await;
        let (store, stands_in) = self.place(key.primary).ok_or_else(all_lost)?;
        let stands_in = stands_in && !planted(Bug::StandInFoundByTry);
        Ok(store.try_get(key).await?.filter(|object| is_current(store, stands_in, object)))
    }

    /// Joins the running fill of a key, or begins one, like [`Store::begin_fill`].
    ///
    /// *Errors*: `Stopped` if no span is present.
    pub fn begin_fill(&self, key: KeyRef<'_>, stale: Option<&StoredObject>) -> Result<FillRole, Error> {
        if let Some(only) = self.sole() {
            return Ok(only.begin_fill(key, stale));
        }
        let (store, stands_in) = self.place(key.primary).ok_or_else(all_lost)?;
        match store.begin_fill(key, stale) {
            FillRole::Resident(object) if !is_current(store, stands_in, &object) && !planted(Bug::StandInJoined) => {
                Ok(store.begin_fill(key, Some(&object)))
            }
            role => Ok(role),
        }
    }

    /// Puts a whole object, like [`Store::put`]. The returned sequence belongs to the span of the object.
    pub async fn put(&self, key: KeyRef<'_>, metadata: Bytes, body: Bytes) -> Result<PutSequence, Error> {
        self.put_tagged(key, &[], metadata, body).await
    }

    /// Puts a whole object with tags, like [`Store::put_tagged`].
    pub async fn put_tagged(
        &self,
        key: KeyRef<'_>,
        tags: &[&[u8]],
        metadata: Bytes,
        body: Bytes,
    ) -> Result<PutSequence, Error> {
        if self.sole().is_none() {
            self.notice_losses().await;
        }
        let (store, _) = self.place(key.primary).ok_or_else(all_lost)?;
        store.put_tagged(key, tags, metadata, body).await
    }

    /// Hints that objects of the primary key `object` will be requested with those of `seed`, like
    /// [`Store::collocate`]. A hint about keys of different spans has no effect.
    pub fn collocate(&self, object: &[u8], seed: &[u8]) {
        if let (Some((store, _)), Some((other, _))) = (self.place(object), self.place(seed))
            && Arc::ptr_eq(store.puts(), other.puts())
        {
            store.collocate(object, seed);
        }
    }

    /// Purges a key with all its variants, like [`Store::purge_key`].
    pub async fn purge_key(&self, primary: &[u8]) -> Result<(), Error> {
        self.purge_key_as(primary, PurgeEffect::Hard).await
    }

    /// The same, hard or softly, like [`Store::purge_key_as`].
    pub async fn purge_key_as(&self, primary: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        if let Some(only) = self.sole() {
            return only.purge_key_as(primary, effect).await;
        }
        // All spans are purged, not only the key's span: another span may have stood in for that span, and callers may
        // still be using the other span.
        let primary = Bytes::copy_from_slice(primary);
        let purge = move |store: Store, turn| {
            let primary = primary.clone();
            async move { store.purge_key_in(&primary, effect, turn).await }
        };
        self.purge(purge).await
    }

    /// Purges everything, like [`Store::purge_all`].
    pub async fn purge_all(&self) -> Result<(), Error> {
        self.purge_all_as(PurgeEffect::Hard).await
    }

    /// The same, hard or softly, like [`Store::purge_all_as`].
    pub async fn purge_all_as(&self, effect: PurgeEffect) -> Result<(), Error> {
        if let Some(only) = self.sole() {
            return only.purge_all_as(effect).await;
        }
        self.purge(move |store: Store, turn| async move { store.purge_all_in(effect, turn).await }).await
    }

    /// Purges every key that begins with `prefix`, like [`Store::purge_prefix`].
    pub async fn purge_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        self.purge_prefix_as(prefix, PurgeEffect::Hard).await
    }

    /// The same, hard or softly, like [`Store::purge_prefix_as`].
    pub async fn purge_prefix_as(&self, prefix: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        if let Some(only) = self.sole() {
            return only.purge_prefix_as(prefix, effect).await;
        }
        let prefix = Bytes::copy_from_slice(prefix);
        let purge = move |store: Store, turn| {
            let prefix = prefix.clone();
            async move { store.purge_prefix_in(&prefix, effect, turn).await }
        };
        self.purge(purge).await
    }

    /// Purges all objects with a tag, like [`Store::purge_tag`].
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), Error> {
        self.purge_tag_as(tag, PurgeEffect::Hard).await
    }

    /// The same, hard or softly, like [`Store::purge_tag_as`].
    pub async fn purge_tag_as(&self, tag: &[u8], effect: PurgeEffect) -> Result<(), Error> {
        if let Some(only) = self.sole() {
            return only.purge_tag_as(tag, effect).await;
        }
        let tag = Bytes::copy_from_slice(tag);
        let purge = move |store: Store, turn| {
            let tag = tag.clone();
            async move { store.purge_tag_in(&tag, effect, turn).await }
        };
        self.purge(purge).await
    }

    /// What the store has applied of its fleet's purges; [`AppliedMark::NONE`] if it is of no fleet. After a crash or a
    /// loss it may be less than was said, and never more than is durable.
    pub fn applied_mark(&self) -> AppliedMark {
        self.present().map(|(_, store)| store.applied_mark()).next().unwrap_or_default()
    }

    /// Says what the store has applied of its fleet's purges. Call it when all of them have returned without an error.
    /// *Durability*: the mark is durable with the next purge, or with
    /// [`flush_applied_mark`](SpanSet::flush_applied_mark).
    pub fn set_applied_mark(&self, mark: AppliedMark) {
        self.present().for_each(|(_, store)| store.set_applied_mark(mark));
    }

    /// Makes the mark durable. *Cost*: that of a purge. *Errors*: those of [`purge_all`](SpanSet::purge_all).
    pub async fn flush_applied_mark(&self) -> Result<(), Error> {
        if let Some(only) = self.sole() {
            return only.flush_applied_mark_in(PurgeTurn::default()).await;
        }
        self.purge(move |store: Store, turn| async move { store.flush_applied_mark_in(turn).await }).await
    }

    /// Purges on every present span, in a task: the next purge waits for this one's turn, so this one goes on even if its
    /// caller is not polled. If the caller gives up, the task ends.
    async fn purge<F, R>(&self, purge: F) -> Result<(), Error>
    where
        F: Fn(Store, PurgeTurn) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let spans = self.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move { spans.purge_here(purge).await }));
        task.await.unwrap_or_else(|error| Err(Error::stopped(format!("the purge's task failed: {error}"))))
    }

    /// Purges on every present span. If a span fails, all others record its loss before this returns.
    async fn purge_here<F, R>(&self, purge: F) -> Result<(), Error>
    where
        F: Fn(Store, PurgeTurn) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), Error>> + Send + 'static,
    {
        // A purge whose write fails on a span is repeated, until it succeeds or the span counts as lost.
        let mut attempts = 0;
        loop {
            self.notice_losses().await;
            let asked = self.inner.present.load(Ordering::Acquire);
            if asked == 0 {
                return Err(all_lost());
            }
            let (order, guard) = self.purge_turn().await;
            let turn = || PurgeTurn { order, guard: Some(Arc::clone(&guard)) };
            let purges = join_all(self.present().map(|(_, store)| purge(store.clone(), turn())));
            drop(guard);
            let results = purges.await;
            if planted(Bug::LossDuringPurgeIgnored) && results.iter().any(Result::is_ok) {
                return Ok(());
            }
            self.notice_losses().await;
            let present = self.inner.present.load(Ordering::Acquire);
            if let Some(error) = results.into_iter().find_map(Result::err)
                && present == asked
            {
                attempts += 1;
                let is_transient = matches!(error.device_kind(), Some(DeviceError::Io | DeviceError::Full));
                if is_transient && attempts <= FAILURES_MAX {
                    continue;
                }
                return Err(error);
            }
            // All spans that are present now have made the purge, because no span returns while the store is open, and
            // failed spans are recorded as absent.
            if present != 0 && present == asked {
                return Ok(());
            }
        }
    }

    /// The turn of the next purge; it ends when all clones of the guard are dropped. A number may be missing on some or
    /// all spans; if so, the purge with this number never returned.
    async fn purge_turn(&self) -> (PurgeOrder, Arc<OwnedMutexGuard<u64>>) {
        let mut last = Arc::clone(&self.inner.purge_turn).lock_owned().await;
        *last += 1;
        let numbers = || self.present().map(|(_, store)| store.purge_number());
        let held = if planted(Bug::HeldByOneSpan) { numbers().max() } else { numbers().min() }.unwrap_or(0);
        (PurgeOrder { number: *last, held, ..PurgeOrder::default() }, Arc::new(last))
    }

    /// Writes all admitted objects that were put before this call, and flushes every present span.
    pub async fn sync(&self) -> Result<(), Error> {
        self.notice_losses().await;
        let synced = join_all(self.present().map(|(_, store)| store.sync())).await;
        synced.into_iter().collect::<Result<Vec<_>, Error>>().map(drop)
    }

    /// Writes all waiting objects and marks every present span as cleanly closed, like [`Store::close`].
    pub async fn close(&self) -> Result<(), Error> {
        self.notice_losses().await;
        self.inner.is_closed.store(true, Ordering::Release);
        let closed = join_all(self.present().map(|(_, store)| store.close())).await;
        closed.into_iter().collect()
    }

    /// Reads and verifies every record, like [`Store::check`], one span after another.
    pub async fn check(&self, mut progress: impl FnMut(u64, u64)) -> CheckReport {
        let mut report = CheckReport::default();
        let all: u64 = self.present().map(|(_, store)| store.stat().entries).sum();
        for (_, store) in self.present() {
            let before = report.entries;
            report.add(store.check(|done, total| progress(before + done, all.max(before + total))).await);
        }
        report
    }

    /// The variants of a primary key on its span, like [`Store::variants`].
    pub async fn variants(&self, primary: &[u8], progress: impl FnMut(u64, u64)) -> Vec<Bytes> {
        match self.place(primary) {
            Some((store, _)) => store.variants(primary, progress).await,
            None => Vec::new(),
        }
    }

    /// Returns the notes for the operator that were added since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        let mut notes = std::mem::take(&mut *lock(&self.inner.notes));
        self.inner
            .spans
            .iter()
            .filter_map(|span| span.store.as_ref())
            .for_each(|store| notes.extend(store.take_notes()));
        notes
    }

    /// What the open found on the spans, like [`Store::repairs`]; with several spans, each entry begins with the name of
    /// its device.
    pub fn repairs(&self) -> Vec<PendingRepair> {
        let mut repairs = Vec::new();
        for span in &self.inner.spans {
            let found = span.store.as_ref().map(Store::repairs).unwrap_or_default();
            repairs.extend(found.iter().map(|repair| match self.sole() {
                Some(_) => repair.clone(),
                None => PendingRepair { what: format!("{}: {}", span.spec, repair.what), is_damage: repair.is_damage },
            }));
        }
        repairs
    }

    /// The state of the store. For several spans, these are sums over the present spans, and `spans` has the state of
    /// each span.
    pub fn stat(&self) -> StoreStat {
        let inner = &*self.inner;
        let first = self.present().map(|(_, store)| store).next();
        let first = first.unwrap_or(&inner.any).stat();
        if inner.spans.len() == 1 {
            return first;
        }
        let present = inner.present.load(Ordering::Acquire);
        let spans = inner.spans.iter().enumerate().map(|(number, span)| SpanStat {
            number: number as u32,
            spec: span.spec.clone(),
            lost: (present >> number & 1 == 0).then(|| lock(&span.lost).clone().unwrap_or_default()),
            stat: span.store.as_ref().map(Store::stat),
        });
        StoreStat::sum(first, spans.collect())
    }

    /// If a present span has failed, records its loss on all other spans.
    async fn notice_losses(&self) {
        if !self.inner.is_closed.load(Ordering::Acquire) && self.present().any(|(_, store)| store.stopped().is_some()) {
            let present = self.inner.present.load(Ordering::Acquire);
            // This runs in a task, because other callers wait for it, and this caller may not be polled. If no span is
            // left, each call reports this itself.
            let spans = self.clone();
            let settled = tokio::spawn(async move { spans.settle(present, false).await });
            let _ = AbortOnDropHandle::new(settled).await;
        }
    }

    /// Makes a new membership durable, and then uses it. The membership names the spans in `wanted` that have not
    /// failed, and is recorded on all of these. If no span has failed since the last change, a new change is made only
    /// if `is_open` is set.
    async fn settle(&self, wanted: u64, is_open: bool) -> Result<(), Error> {
        let inner = &*self.inner;
        let mut last = inner.membership.lock().await;
        let mut wanted = match inner.present.load(Ordering::Acquire) {
            0 => wanted,
            present => present,
        };
        loop {
            let spans: Vec<(usize, &Store)> = (inner.spans.iter().enumerate())
                .filter(|(index, _)| wanted >> index & 1 == 1)
                .filter_map(|(index, span)| Some((index, span.store.as_ref()?)))
                .collect();
            let (failed, there): (Vec<_>, Vec<_>) = spans.into_iter().partition(|(_, store)| store.stopped().is_some());
            for (index, store) in failed {
                wanted &= !(1 << index);
                let reason = store.stopped().unwrap_or_default();
                lock(&inner.notes).push(format!("span {index} is lost, and what it held: {reason}"));
                *lock(&inner.spans[index].lost) = Some(reason);
            }
            if there.is_empty() {
                inner.present.store(0, Ordering::Release);
                return Err(all_lost());
            }
            if inner.present.load(Ordering::Acquire) == wanted && !is_open {
                return Ok(());
            }
            let (number, (before_number, before)) = *last;
            let (number, id) = (number + 1, random_u64());
            let next = SpanMembership { number, id, before, before_number, since: 0, present: wanted };
            let told = join_all(there.iter().map(|(_, store)| store.set_membership(next))).await;
            last.0 = number;
            let is_lost = there.iter().any(|(_, store)| store.stopped().is_some());
            if let Some(error) = told.iter().find_map(|told| told.as_ref().err()).filter(|_| !is_lost) {
                // A device that does not answer is not lost, and is not waited for.
                return Err(error.clone());
            }
            if told.iter().all(Result::is_ok) {
                last.1 = (number, id);
                inner.present.store(wanted, Ordering::Release);
                return Ok(());
            }
        }
    }
}

impl From<Store> for SpanSet {
    fn from(store: Store) -> SpanSet {
        let stat = store.stat();
        let span = OpenSpan { spec: stat.device, store: Some(store.clone()), lost: Mutex::default() };
        let inner = SpanSetInner {
            spans: vec![span],
            any: store,
            placement: SpanPlacement::new(&SpanMember { weights: [1; SPANS_MAX as usize], ..SpanMember::SOLE }),
            present: AtomicU64::new(1),
            is_closed: AtomicBool::new(false),
            membership: tokio::sync::Mutex::default(),
            purge_turn: Arc::default(),
            notes: Mutex::default(),
        };
        SpanSet { inner: Arc::new(inner) }
    }
}

/// Whether an object is valid. An object on a span that stands in for an absent one is valid only if it was put after
/// the last return of any span.
fn is_current(store: &Store, stands_in: bool, object: &StoredObject) -> bool {
    !stands_in || object.generation() > store.since() || planted(Bug::StandInTrusted)
}

fn all_lost() -> Error {
    Error::stopped("no span of the store is there any more; replace the devices and open it again")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
