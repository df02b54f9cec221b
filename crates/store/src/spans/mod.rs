//! The spans of one store: several devices that serve as one, and the loss of one of them.
//!
//! Owns: serving from several spans, and the loss of one (`open`: whether a returning span is believed; `placement`:
//! the span of a key; `membership`: which spans were present). Promises: those of [`Store`], for the spans together;
//! the loss of a span only makes its objects misses; a purge that returned holds on every span, even on one that was
//! away then. Leaves to others: each span (`store`).
//!
//! # Idea
//! A key belongs to one span, by a hash of its primary part (rendezvous hashing, weighted by size): so spans need to
//! agree only on which of them are present. If a key's span is away, the next one of the key's order stands in for it.
//!
//! *Membership* is the one thing that spans share: each remembers, durably, the number of the last change, which spans
//! are present since (`present`), and its own clock when a span last came back (`since`). A change is committed when
//! all present spans have flushed it. Before that no object is put in place of an absent span, and no purge returns
//! that it missed. So
//! - a span that comes back is believed only if it knows the last change, or is named by it: else it missed something,
//!   and begins empty;
//! - a store is not opened while missing spans may have served without the others (those named by the last known
//!   change), unless all is to be forgotten. A span that was lost while the store served is not missed so: all others
//!   know;
//! - a span that is put back as it was earlier is noticed if another was present all the time: each open is a change
//!   (two, so that a span which knows the one before the last is not of an earlier open), and purges are numbered in
//!   one order for all spans (`open`);
//! - an object that stands in for one of an absent span is believed only if it was put since a span last came back: one
//!   from an earlier absence may have been replaced on the returned span since.
//!
//! # Cost
//! With one span nothing: each call goes straight to it. With several, one hash of the key a call and some nanoseconds
//! a span.

mod membership;
mod open;
mod placement;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use nectary_block::SharedDevice;
use tokio::sync::OwnedMutexGuard;

use crate::api::check::CheckReport;
use crate::api::purging::Turn;
use crate::api::stat::{SpanStat, Stat};
use crate::api::store::Store;
use crate::counters::Sequence;
use crate::error::Error;
use crate::format::layout::{Member, SPANS_MAX};
use crate::get::object::Object;
use crate::names::key::KeyRef;
use crate::planted::{Bug, planted};
use crate::purge::log::PurgeOrder;
use crate::put::fill::FillRole;
use crate::random::random_u64;
use crate::recover::Membership;

use placement::Placement;

/// A device of a store, or why it could not be opened.
pub struct SpanDevice {
    /// How the user names it.
    pub spec: String,
    /// The device.
    pub device: Result<SharedDevice, Error>,
    /// How large the span is made if there is none, in bytes; 0 for the whole device.
    pub size_bytes: u64,
}

/// One span of an open store.
struct Span {
    spec: String,
    /// `None` if it could not be opened.
    store: Option<Store>,
    /// Why it is not there.
    lost: Mutex<Option<String>>,
}

struct Inner {
    /// By number.
    spans: Vec<Span>,
    /// One that could be opened.
    any: Store,
    placement: Placement,
    /// The spans that are there, one bit each.
    present: AtomicU64,
    /// Whether it was closed: then nothing is lost that takes no more writes.
    is_closed: AtomicBool,
    /// The number of the last change, and number and identity of the last that was committed; held while the next one
    /// is made.
    membership: tokio::sync::Mutex<(u64, (u64, u64))>,
    /// The number of the last purge; held until the writers of all spans have it.
    purge_turn: Arc<tokio::sync::Mutex<u64>>,
    notes: Mutex<Vec<String>>,
}

/// An open store of one or several spans. Clones share it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_store::{KeyRef, OpenOptions, SpanDevice, Spans};
/// let span = |name: &str| SpanDevice {
///     spec: name.to_owned(),
///     device: Ok(std::sync::Arc::new(nectary_block::MemoryDevice::new(64 << 20))),
///     size_bytes: 0,
/// };
/// let store = Spans::open(vec![span("one"), span("two")], OpenOptions::default()).await.unwrap();
/// let key = KeyRef::new(b"http://example.com/", b"");
/// store.put(key, "metadata".into(), "body".into()).await.unwrap();
/// assert_eq!(store.get(key).await.unwrap().whole().unwrap(), "body");
/// store.purge_all().await.unwrap();
/// assert!(store.get(key).await.is_none());
/// store.close().await.unwrap();
/// # });
/// ```
#[derive(Clone)]
pub struct Spans {
    inner: Arc<Inner>,
}

impl Spans {
    /// The only span, if there is one.
    #[inline]
    fn sole(&self) -> Option<&Store> {
        match &self.inner.spans[..] {
            [only] => only.store.as_ref(),
            _ => None,
        }
    }

    /// The span that a key belongs to now, and whether it stands in for another.
    fn place(&self, primary: &[u8]) -> Option<(&Store, bool)> {
        let inner = &*self.inner;
        let present = inner.present.load(Ordering::Acquire);
        let (number, stands_in) = inner.placement.place(primary, present)?;
        Some((inner.spans[number].store.as_ref()?, stands_in))
    }

    /// The number of the span that a key belongs to now; `None` if none is there.
    pub fn span_of(&self, primary: &[u8]) -> Option<u32> {
        let present = self.inner.present.load(Ordering::Acquire);
        self.inner.placement.place(primary, present).map(|(number, _)| number as u32)
    }

    /// The spans that are there.
    fn present(&self) -> impl Iterator<Item = (usize, &Store)> {
        let present = self.inner.present.load(Ordering::Acquire);
        let spans = self.inner.spans.iter().enumerate();
        spans
            .filter(move |(number, _)| present >> number & 1 == 1)
            .filter_map(|(number, span)| Some((number, span.store.as_ref()?)))
    }

    /// Finds an object in memory, as [`Store::get_resident`].
    #[inline]
    pub fn get_resident(&self, key: KeyRef<'_>) -> Option<Object> {
        if let Some(only) = self.sole() {
            return only.get_resident(key);
        }
        let (store, stands_in) = self.place(key.primary)?;
        store.get_resident(key).filter(|object| is_current(store, stands_in, object))
    }

    /// Finds an object in memory or on disk, as [`Store::get`]. The first to meet a span that has failed sees to it
    /// that the others know.
    pub async fn get(&self, key: KeyRef<'_>) -> Option<Object> {
        if let Some(only) = self.sole() {
            return only.get(key).await;
        }
        self.notice_losses().await;
        let (store, stands_in) = self.place(key.primary)?;
        store.get(key).await.filter(|object| is_current(store, stands_in, object))
    }

    /// Finds an object in memory or on disk, and tells a failed device from a miss, as [`Store::try_get`].
    ///
    /// *Errors*: those of the device; `Stopped` if no span is present.
    pub async fn try_get(&self, key: KeyRef<'_>) -> Result<Option<Object>, Error> {
        if let Some(only) = self.sole() {
            return only.try_get(key).await;
        }
        self.notice_losses().await;
        let (store, stands_in) = self.place(key.primary).ok_or_else(all_lost)?;
        Ok(store.try_get(key).await?.filter(|object| is_current(store, stands_in, object)))
    }

    /// Joins the fill of a key under way, or begins it, as [`Store::begin_fill`].
    ///
    /// *Errors*: `Stopped` if no span is there.
    pub fn begin_fill(&self, key: KeyRef<'_>, stale: Option<&Object>) -> Result<FillRole, Error> {
        if let Some(only) = self.sole() {
            return Ok(only.begin_fill(key, stale));
        }
        let (store, stands_in) = self.place(key.primary).ok_or_else(all_lost)?;
        match store.begin_fill(key, stale) {
            FillRole::Resident(object) if !is_current(store, stands_in, &object) => {
                Ok(store.begin_fill(key, Some(&object)))
            }
            role => Ok(role),
        }
    }

    /// Puts a whole object, as [`Store::put`]; its sequence counts on its span.
    pub async fn put(&self, key: KeyRef<'_>, metadata: Bytes, body: Bytes) -> Result<Sequence, Error> {
        self.put_tagged(key, &[], metadata, body).await
    }

    /// Puts a whole object under tags, as [`Store::put_tagged`].
    pub async fn put_tagged(
        &self,
        key: KeyRef<'_>,
        tags: &[&[u8]],
        metadata: Bytes,
        body: Bytes,
    ) -> Result<Sequence, Error> {
        if self.sole().is_none() {
            self.notice_losses().await;
        }
        let (store, _) = self.place(key.primary).ok_or_else(all_lost)?;
        store.put_tagged(key, tags, metadata, body).await
    }

    /// Says that objects of the primary key `object` will be wanted with those of `seed`, as [`Store::collocate`].
    /// Where the two belong to different spans the hint is of no use.
    pub fn collocate(&self, object: &[u8], seed: &[u8]) {
        if let (Some((store, _)), Some((other, _))) = (self.place(object), self.place(seed))
            && Arc::ptr_eq(store.puts(), other.puts())
        {
            store.collocate(object, seed);
        }
    }

    /// Purges a key with all its variants, as [`Store::purge_key`].
    pub async fn purge_key(&self, primary: &[u8]) -> Result<(), Error> {
        // The key's span is not enough: another may have stood in for it, and still do so for a caller that has just
        // looked.
        self.purge(|store, turn| async move { store.purge_key_in(primary, turn).await }).await
    }

    /// Purges everything, as [`Store::purge_all`].
    pub async fn purge_all(&self) -> Result<(), Error> {
        self.purge(|store, turn| async move { store.purge_all_in(turn).await }).await
    }

    /// Purges every key that begins with `prefix`, as [`Store::purge_prefix`].
    pub async fn purge_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        self.purge(|store, turn| async move { store.purge_prefix_in(prefix, turn).await }).await
    }

    /// Purges all that was put under a tag, as [`Store::purge_tag`].
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), Error> {
        self.purge(|store, turn| async move { store.purge_tag_in(tag, turn).await }).await
    }

    /// Purges on every present span; if one fails, all others have to know that it is away before this returns.
    async fn purge<'a, F, R>(&'a self, purge: F) -> Result<(), Error>
    where
        F: Fn(&'a Store, Turn) -> R,
        R: Future<Output = Result<(), Error>> + 'a,
    {
        if let Some(only) = self.sole() {
            return purge(only, Turn::default()).await;
        }
        loop {
            self.notice_losses().await;
            let asked = self.inner.present.load(Ordering::Acquire);
            if asked == 0 {
                return Err(all_lost());
            }
            let (order, guard) = self.purge_turn().await;
            let purges = self.present().map(|(_, store)| purge(store, Turn { order, guard: Some(Arc::clone(&guard)) }));
            let purges = join_all(purges);
            drop(guard);
            let results = purges.await;
            self.notice_losses().await;
            let present = self.inner.present.load(Ordering::Acquire);
            if let Some(error) = results.into_iter().find_map(Result::err)
                && present == asked
            {
                return Err(error);
            }
            // Present spans were asked, as no span comes back while the store is open; failed ones are known to be
            // away.
            if present != 0 && present == asked {
                return Ok(());
            }
        }
    }

    /// The turn of the next purge, which ends when all that hold it have let go. A number may stay unused, on some
    /// spans or all: then its purge never returned.
    async fn purge_turn(&self) -> (PurgeOrder, Arc<OwnedMutexGuard<u64>>) {
        let mut last = Arc::clone(&self.inner.purge_turn).lock_owned().await;
        *last += 1;
        let held = self.present().map(|(_, store)| store.purge_number()).min().unwrap_or(0);
        (PurgeOrder { number: *last, held }, Arc::new(last))
    }

    /// Writes all objects put before this call and flushes every span.
    pub async fn sync(&self) -> Result<(), Error> {
        self.notice_losses().await;
        let synced = join_all(self.present().map(|(_, store)| store.sync())).await;
        synced.into_iter().collect::<Result<Vec<_>, Error>>().map(drop)
    }

    /// Writes everything that waits and marks every span as clean, as [`Store::close`].
    pub async fn close(&self) -> Result<(), Error> {
        self.notice_losses().await;
        self.inner.is_closed.store(true, Ordering::Release);
        let closed = join_all(self.present().map(|(_, store)| store.close())).await;
        closed.into_iter().collect()
    }

    /// Reads and verifies every record, as [`Store::check`], one span after another.
    pub async fn check(&self, mut progress: impl FnMut(u64, u64)) -> CheckReport {
        let mut report = CheckReport::default();
        let all: u64 = self.present().map(|(_, store)| store.stat().entries).sum();
        for (_, store) in self.present() {
            let before = report.entries;
            report.add(store.check(|done, total| progress(before + done, all.max(before + total))).await);
        }
        report
    }

    /// Events since the last call that an operator should know.
    pub fn take_notes(&self) -> Vec<String> {
        let mut notes = std::mem::take(&mut *lock(&self.inner.notes));
        self.inner
            .spans
            .iter()
            .filter_map(|span| span.store.as_ref())
            .for_each(|store| notes.extend(store.take_notes()));
        notes
    }

    /// The state of the store: that of its span, or sums over the spans that are there and, in `spans`, each of them.
    pub fn stat(&self) -> Stat {
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
        Stat::sum(first, spans.collect())
    }

    /// Tells all other spans of a present one that has failed.
    async fn notice_losses(&self) {
        if !self.inner.is_closed.load(Ordering::Acquire) && self.present().any(|(_, store)| store.stopped().is_some()) {
            let present = self.inner.present.load(Ordering::Acquire);
            // If no span is left, each call reports that itself.
            let _ = self.settle(present, false).await;
        }
    }

    /// Makes the membership durable on all spans in `wanted` that have not failed, and then makes it valid. Unless a
    /// span has failed since the last change, there is a new one only if `is_open`.
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
            let next = Membership { number, id, before, before_number, since: 0, present: wanted };
            let told = join_all(there.iter().map(|(_, store)| store.set_membership(next))).await;
            last.0 = number;
            if told.iter().all(Result::is_ok) {
                last.1 = (number, id);
                inner.present.store(wanted, Ordering::Release);
                return Ok(());
            }
        }
    }
}

impl From<Store> for Spans {
    fn from(store: Store) -> Spans {
        let stat = store.stat();
        let span = Span { spec: stat.device, store: Some(store.clone()), lost: Mutex::default() };
        let inner = Inner {
            spans: vec![span],
            any: store,
            placement: Placement::new(&Member { weights: [1; SPANS_MAX as usize], ..Member::SOLE }),
            present: AtomicU64::new(1),
            is_closed: AtomicBool::new(false),
            membership: tokio::sync::Mutex::default(),
            purge_turn: Arc::default(),
            notes: Mutex::default(),
        };
        Spans { inner: Arc::new(inner) }
    }
}

/// Whether an object may be believed. One that another span holds in place of an absent one is believed only if it was
/// put after the last return of any span.
fn is_current(store: &Store, stands_in: bool, object: &Object) -> bool {
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
