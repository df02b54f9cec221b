//! Locks on ranges of an export.
//!
//! Owns: the order between writes that change part of a block and all other writes of that block. A partial write reads
//! the block, changes it and writes it back. No other write may change the block between these steps, so a partial
//! write takes an exclusive lock. Whole blocks are written under a shared lock, which excludes only partial writes.
//! Promises: conflicting requests get their locks in the order of their arrival; a request whose wait is dropped leaves
//! the queue.
//!
//! *Cost*: a mutex, and a walk over all held locks and all waiting requests. Their number is limited by the limits on
//! requests in flight.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

/// The locks of one export. All clones share them.
#[derive(Clone, Default)]
pub(crate) struct RangeLocks {
    state: Arc<Mutex<RangeLockState>>,
}

#[derive(Default)]
struct RangeLockState {
    held: Vec<RangeClaim>,
    waiting: VecDeque<(RangeClaim, oneshot::Sender<()>)>,
    next: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RangeClaim {
    id: u64,
    start: u64,
    end: u64,
    exclusive: bool,
}

impl RangeClaim {
    fn conflicts(&self, other: &RangeClaim) -> bool {
        (self.exclusive || other.exclusive) && self.start < other.end && other.start < self.end
    }
}

impl RangeLockState {
    /// Grants the lock of each waiter that conflicts with no held lock and no earlier waiter.
    fn grant(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            let claim = self.waiting[index].0;
            let is_blocked = self.held.iter().any(|held| held.conflicts(&claim))
                || self.waiting.iter().take(index).any(|(earlier, _)| earlier.conflicts(&claim));
            if is_blocked {
                index += 1;
                continue;
            }
            let Some((claim, granted)) = self.waiting.remove(index) else { return };
            self.held.push(claim);
            // If the receiver was dropped, the guard in the same [`RangeLockFuture`] is dropped, too, and releases the lock.
            let _ = granted.send(());
        }
    }
}

impl RangeLocks {
    /// Locks the range `start..end`. The returned future waits until the lock is granted.
    pub fn lock(&self, start: u64, end: u64, exclusive: bool) -> RangeLockFuture {
        let mut state = self.lock_state();
        state.next += 1;
        let claim = RangeClaim { id: state.next, start, end, exclusive };
        let is_free = !state.held.iter().any(|held| held.conflicts(&claim))
            && !state.waiting.iter().any(|(earlier, _)| earlier.conflicts(&claim));
        let mut granted = None;
        if is_free {
            state.held.push(claim);
        } else {
            let (sender, receiver) = oneshot::channel();
            state.waiting.push_back((claim, sender));
            granted = Some(receiver);
        }
        drop(state);
        RangeLockFuture { guard: Some(RangeGuard { locks: self.clone(), id: claim.id }), granted }
    }

    fn lock_state(&self) -> MutexGuard<'_, RangeLockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A future that waits for a lock.
pub(crate) struct RangeLockFuture {
    guard: Option<RangeGuard>,
    granted: Option<oneshot::Receiver<()>>,
}

impl Future for RangeLockFuture {
    type Output = RangeGuard;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RangeGuard> {
        if let Some(granted) = &mut self.granted {
            // The sender is dropped only after the lock is granted.
            if Pin::new(granted).poll(context).is_pending() {
                return Poll::Pending;
            }
            self.granted = None;
        }
        match self.guard.take() {
            Some(guard) => Poll::Ready(guard),
            None => Poll::Pending,
        }
    }
}

/// A held lock, or a place in the queue. Dropping this value releases the lock or the place.
pub(crate) struct RangeGuard {
    locks: RangeLocks,
    id: u64,
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut state = self.locks.lock_state();
        if let Some(index) = state.held.iter().position(|claim| claim.id == self.id) {
            state.held.swap_remove(index);
        } else {
            state.waiting.retain(|(claim, _)| claim.id != self.id);
        }
        state.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(lock: &mut Pin<Box<RangeLockFuture>>) -> Option<RangeGuard> {
        match lock.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Ready(guard) => Some(guard),
            Poll::Pending => None,
        }
    }

    /// A partial write excludes all writes of its block; whole blocks exclude only partial writes.
    #[test]
    fn partial_lock_excludes_whole_blocks() {
        let locks = RangeLocks::default();
        let mut first = Box::pin(locks.lock(0, 4096, false));
        let mut second = Box::pin(locks.lock(0, 8192, false));
        let held = (is_ready(&mut first).unwrap(), is_ready(&mut second).unwrap());
        let mut part = Box::pin(locks.lock(4096, 8192, true));
        assert!(is_ready(&mut part).is_none());
        // This write arrived after the waiting partial write and needs the same block.
        let mut late = Box::pin(locks.lock(0, 8192, false));
        let mut elsewhere = Box::pin(locks.lock(8192, 12288, true));
        assert!(is_ready(&mut late).is_none() && is_ready(&mut elsewhere).is_some());
        drop(held.1);
        let part = is_ready(&mut part).unwrap();
        assert!(is_ready(&mut late).is_none());
        drop(part);
        assert!(is_ready(&mut late).is_some());
    }

    #[test]
    fn dropped_lock_wait_frees_next() {
        let locks = RangeLocks::default();
        let mut first = Box::pin(locks.lock(0, 10, true));
        let held = is_ready(&mut first).unwrap();
        let mut second = Box::pin(locks.lock(0, 10, true));
        let mut third = Box::pin(locks.lock(0, 10, true));
        assert!(is_ready(&mut second).is_none() && is_ready(&mut third).is_none());
        drop(held);
        // The lock was granted, and its future is dropped before it is polled.
        drop(second);
        assert!(is_ready(&mut third).is_some());
        let state = locks.lock_state();
        assert!(state.held.is_empty() && state.waiting.is_empty());
    }
}
