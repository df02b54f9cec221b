//! The followers' side of a fill: readers of a body while it arrives.
//!
//! Owns: a position in the body; the window of a fill that is not stored waits for it. Promises: the bytes in their
//! order, or an error; never a gap.

use std::sync::Arc;

use bytes::Bytes;

use super::FillHead;
use super::table::{FillState, FillUnderWay, Phase};
use crate::counters::Counters;
use crate::error::{Error, ErrorKind};
use crate::get::lookup::Lookup;
use crate::names::key::KeyHash;

/// Reads a fill along while it comes in.
pub struct FillReader {
    lookup: Arc<Lookup>,
    fill: Arc<FillUnderWay>,
    id: u64,
    position: u64,
}

impl FillReader {
    /// Joins a fill from the start of its body, unless bytes of it have been dropped already.
    pub(super) fn join(lookup: &Arc<Lookup>, fill: &Arc<FillUnderWay>) -> Option<FillReader> {
        {
            let state = fill.lock();
            if (state.not_stored && state.base > 0) || matches!(state.phase, Phase::Failed | Phase::Declined) {
                return None;
            }
        }
        Some(FillReader::attach(lookup, fill))
    }

    pub(super) fn attach(lookup: &Arc<Lookup>, fill: &Arc<FillUnderWay>) -> FillReader {
        let mut state = fill.lock();
        let id = state.follower_next;
        state.follower_next += 1;
        state.followers.insert(id, 0);
        drop(state);
        FillReader { lookup: Arc::clone(lookup), fill: Arc::clone(fill), id, position: 0 }
    }

    /// Waits for the head. *Cancel safety*: can be called again.
    pub async fn head(&mut self) -> FillHead {
        loop {
            let changed = self.fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.fill.lock();
                match (&state.phase, &state.head) {
                    (Phase::Object(object), _) => return FillHead::Object(object.clone()),
                    (Phase::Declined, _) => return FillHead::Declined,
                    (Phase::Streaming | Phase::Done, Some(head)) => {
                        return FillHead::Streaming {
                            variant: head.variant.clone(),
                            metadata: head.metadata.clone(),
                            body_bytes: head.body_bytes,
                        };
                    }
                    (Phase::Failed | Phase::Done, _) => return FillHead::Failed,
                    (Phase::Waiting | Phase::Streaming, _) => {}
                }
            }
            changed.await;
        }
    }

    /// Whether a client may be told that the object will be on the disk, as
    /// [`Fill::is_promised`](super::Fill::is_promised) has it; known once the head is. *Cost*: a lock.
    pub fn is_promised(&self) -> bool {
        self.fill.lock().is_promised
    }

    /// Leaves out the body up to `offset`; before the first [`next`](Self::next).
    pub fn skip_to(&mut self, offset: u64) {
        self.moved_to(offset);
    }

    /// The next chunk of the body; `None` at its end.
    ///
    /// *Errors*: the fetch failed or bytes are gone; a caller that passes the body on must break off. *Cancel safety*:
    /// nothing is lost.
    pub async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        loop {
            let fill = Arc::clone(&self.fill);
            let changed = fill.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let behind = {
                let state = fill.lock();
                if self.position < state.base {
                    Some(state.stored_hash)
                } else if let Some(chunk) = chunk_at(&state, self.position) {
                    drop(state);
                    self.moved_to(self.position + chunk.len() as u64);
                    return Some(Ok(chunk));
                } else {
                    match &state.phase {
                        Phase::Done => return None,
                        Phase::Failed | Phase::Declined | Phase::Object(_) => return Some(Err(broken(self.position))),
                        Phase::Waiting | Phase::Streaming => None,
                    }
                }
            };
            if let Some(hash) = behind {
                return Some(self.next_stored(hash).await);
            }
            changed.await;
        }
    }

    /// Reads what has left the window from the fragments that were stored.
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
        state.followers.insert(self.id, position);
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

fn broken(position: u64) -> Error {
    Error::new(ErrorKind::Io, format!("the fetch broke off at byte {position} of the body"))
}
