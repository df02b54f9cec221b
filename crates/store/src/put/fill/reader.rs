//! The followers' side of a fill: readers of a body while it arrives.
//!
//! Owns: a follower's position in the body. If the fill is not stored, its window of chunks keeps the bytes from this
//! position on. Promises: the bytes in order, or an error; never a gap.

use std::sync::Arc;

use bytes::Bytes;

use super::FillHead;
use super::table::{FillPhase, FillState, FillUnderWay};
use crate::counters::Counters;
use crate::error::{Error, StoreErrorKind};
use crate::get::lookup::ObjectLookup;
use crate::names::key::KeyHash;

/// Reads the body of a fill while it arrives.
pub struct FillReader {
    lookup: Arc<ObjectLookup>,
    fill: Arc<FillUnderWay>,
    id: u64,
    position: u64,
}

impl FillReader {
    /// Joins a fill at the start of its body; `None` if the first bytes are already dropped, or the fill has failed or
    /// was declined.
    pub(super) fn join(lookup: &Arc<ObjectLookup>, fill: &Arc<FillUnderWay>) -> Option<FillReader> {
        {
            let state = fill.lock();
            if (state.not_stored && state.base > 0) || matches!(state.phase, FillPhase::Failed | FillPhase::Declined) {
                return None;
            }
        }
        Some(FillReader::attach(lookup, fill))
    }

    pub(super) fn attach(lookup: &Arc<ObjectLookup>, fill: &Arc<FillUnderWay>) -> FillReader {
        let mut state = fill.lock();
        let id = state.follower_next;
        state.follower_next += 1;
        state.followers.insert(id, 0);
        drop(state);
        FillReader { lookup: Arc::clone(lookup), fill: Arc::clone(fill), id, position: 0 }
    }

    /// Waits for the head. *Cancel safety*: this can be called again.
    pub async fn head(&mut self) -> FillHead {
        loop {
            let changed = self.fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.fill.lock();
                match (&state.phase, &state.head) {
                    (FillPhase::Object(object), _) => return FillHead::Object(object.clone()),
                    (FillPhase::Declined, _) => return FillHead::Declined,
                    (FillPhase::Streaming | FillPhase::Done, Some(head)) => {
                        return FillHead::Streaming {
                            variant: head.variant.clone(),
                            metadata: head.metadata.clone(),
                            body_bytes: head.body_bytes,
                        };
                    }
                    (FillPhase::Failed | FillPhase::Done, _) => return FillHead::Failed,
                    (FillPhase::Waiting | FillPhase::Streaming, _) => {}
                }
            }
            changed.await;
        }
    }

    /// Whether a client may be told that the object will be on the disk, as in
    /// [`Fill::is_promised`](super::Fill::is_promised). The answer is valid after [`head`](Self::head) has returned.
    /// *Cost*: a lock.
    pub fn is_promised(&self) -> bool {
        self.fill.lock().is_promised
    }

    /// The length of the whole body in bytes, if it was announced or the body has ended. *Cost*: a lock.
    pub fn body_bytes(&self) -> Option<u64> {
        let state = self.fill.lock();
        let announced = state.head.as_ref().and_then(|head| head.body_bytes);
        announced.or_else(|| matches!(state.phase, FillPhase::Done).then_some(state.received))
    }

    /// Whether the reader surely gets every byte unless the fetch fails, because a body of this length is kept in memory
    /// until it has ended.
    pub fn is_kept(&self, body_bytes: u64) -> bool {
        body_bytes <= self.lookup.span.layout.whole_bytes_max
    }

    /// Whether the fetch ended without the whole body. If it did not, an error of [`next`](Self::next) says that the store
    /// does not have the next bytes, or that this reader was too slow. *Cost*: a lock.
    pub fn has_failed(&self) -> bool {
        matches!(self.fill.lock().phase, FillPhase::Failed | FillPhase::Declined | FillPhase::Object(_))
    }

    /// Skips the body up to `offset`; call it before the first [`next`](Self::next).
    pub fn skip_to(&mut self, offset: u64) {
        self.moved_to(offset);
    }

    /// The next chunk of the body; `None` at its end.
    ///
    /// *Errors*: the fetch failed, or the next bytes are no longer available; a caller that forwards the body must
    /// abort. *Cancel safety*: a cancelled call loses no chunk.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            let fill = Arc::clone(&self.fill);
            let changed = fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let behind = {
                let state = fill.lock();
                if !state.followers.contains_key(&self.id) {
                    return Some(Err(left_behind(self.position)));
                }
                if self.position < state.base {
                    Some(state.stored_hash)
                } else if let Some(chunk) = chunk_at(&state, self.position) {
                    drop(state);
                    self.moved_to(self.position + chunk.len() as u64);
                    return Some(Ok(chunk));
                } else {
                    match &state.phase {
                        FillPhase::Done => return None,
                        FillPhase::Failed | FillPhase::Declined | FillPhase::Object(_) => {
                            return Some(Err(broken(self.position)));
                        }
                        FillPhase::Waiting | FillPhase::Streaming => None,
                    }
                }
            };
            if let Some(hash) = behind {
                return Some(self.next_stored(hash).await);
            }
            changed.await;
        }
    }

    /// Reads bytes that are no longer in the window from the stored fragments.
    async fn next_stored(&mut self, hash: Option<KeyHash>) -> Result<Bytes, Error> {
        let fragment_bytes = self.lookup.span.layout.fragment_bytes;
        let (number, skip) = ((self.position / fragment_bytes) as u32, (self.position % fragment_bytes) as usize);
        let Some(hash) = hash else { return Err(broken(self.position)) };
        match self.lookup.find_fragment(hash, self.fill.generation, number).await {
            Ok(Some(entry)) if entry.body.len() > skip => {
                let chunk = entry.body.slice(skip..);
                self.moved_to(self.position + chunk.len() as u64);
                Ok(chunk)
            }
            Err(failed) => Err(failed),
            Ok(_) => {
                Counters::add(&self.lookup.span.counters.bodies_overtaken, 1);
                Err(broken(self.position))
            }
        }
    }

    fn moved_to(&mut self, position: u64) {
        self.position = position;
        let mut state = self.fill.lock();
        // A follower that was left behind stays out.
        state.followers.entry(self.id).and_modify(|own| *own = position);
        let wake = state.not_stored;
        drop(state);
        if wake {
            self.fill.changed.notify_waiters();
        }
    }
}

impl Drop for FillReader {
    fn drop(&mut self) {
        let mut state = self.fill.lock();
        state.followers.remove(&self.id);
        drop(state);
        self.fill.changed.notify_waiters();
    }
}

fn chunk_at(state: &FillState, position: u64) -> Option<Bytes> {
    let mut start = state.base;
    for chunk in &state.chunks {
        let end = start + chunk.len() as u64;
        if position < end {
            return Some(chunk.slice((position - start) as usize..));
        }
        start = end;
    }
    None
}

fn left_behind(position: u64) -> Error {
    Error::new(
        StoreErrorKind::Busy,
        format!(
            "nothing was read after byte {position} of the body while other readers waited; ask for the object again"
        ),
    )
}

fn broken(position: u64) -> Error {
    Error::new(StoreErrorKind::Io, format!("the fetch broke off at byte {position} of the body"))
}
