//! What calls in progress wait for, so that a status can say it.
//!
//! Owns: when a call began, and the kind of its present wait. Promises: no lock; a wait costs two stores. Leaves to
//! others: lists of calls, the kinds of waits, and the words for them.
//!
//! The task of a call runs [`of`](CallProgress::of) its [`CallProgress`]. The code that waits on behalf of the call says so by
//! [`waiting`], however deep in the call it is. Outside of such a task `waiting` does nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::since_boot;

/// The number of bits of a [`WaitState::number`].
const NUMBER_BITS: u32 = 56;

tokio::task_local! {
    static CURRENT: Arc<CallProgress>;
}

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitState {
    /// The kind, which only the crate that waits can interpret; 0: it waits for nothing.
    pub kind: u8,
    /// What the wait is about, such as the number of an inode; only the low 56 bits are kept.
    pub number: u64,
}

impl WaitState {
    fn packed(self) -> u64 {
        u64::from(self.kind) << NUMBER_BITS | self.number & ((1 << NUMBER_BITS) - 1)
    }

    fn unpacked(packed: u64) -> WaitState {
        WaitState { kind: (packed >> NUMBER_BITS) as u8, number: packed & ((1 << NUMBER_BITS) - 1) }
    }
}

/// A call in progress.
#[derive(Debug, Default)]
pub struct CallProgress {
    /// When the call began, or last went on: see [`went_on`]. *Units*: nanoseconds since the host's start.
    since_ns: AtomicU64,
    wait: AtomicU64,
    name: OnceLock<Box<[u8]>>,
}

impl CallProgress {
    /// A call that begins at this time since the host's start.
    pub fn begin(now: Duration) -> Arc<CallProgress> {
        Arc::new(CallProgress { since_ns: AtomicU64::new(ns(now)), ..CallProgress::default() })
    }

    /// Runs the call.
    pub fn of<F: Future>(self: Arc<Self>, call: F) -> impl Future<Output = F::Output> {
        CURRENT.scope(self, call)
    }

    /// Returns the time since the call began, or last went on.
    pub fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_nanos(self.since_ns.load(Ordering::Relaxed)))
    }

    /// Returns what the call waits for.
    pub fn wait(&self) -> WaitState {
        WaitState::unpacked(self.wait.load(Ordering::Relaxed))
    }

    /// Notes the name that the call is about, once.
    pub fn set_name(&self, name: &[u8]) {
        let _ = self.name.set(name.into());
    }

    /// Returns the name that the call is about, if there is one.
    pub fn name(&self) -> Option<&[u8]> {
        self.name.get().map(|name| &**name)
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Ends a wait when it is dropped: then the call waits for what it waited for before.
#[derive(Debug)]
pub struct CallWaitGuard {
    before: u64,
}

impl Drop for CallWaitGuard {
    fn drop(&mut self) {
        let _ = CURRENT.try_with(|progress| progress.wait.store(self.before, Ordering::Relaxed));
    }
}

/// Notes that the running call waits, until the result is dropped.
pub fn waiting(wait: WaitState) -> CallWaitGuard {
    let before = CURRENT.try_with(|progress| progress.wait.swap(wait.packed(), Ordering::Relaxed));
    CallWaitGuard { before: before.unwrap_or_default() }
}

/// Notes that the running call went on. A call that does much counts from here, so that it does not seem to hang.
pub fn went_on() {
    let _ = CURRENT.try_with(|progress| progress.since_ns.store(ns(since_boot()), Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: WaitState = WaitState { kind: 3, number: 7 };

    #[tokio::test]
    async fn innermost_wait_is_shown() {
        let progress = CallProgress::begin(Duration::from_secs(5));
        let seen = progress.clone();
        progress
            .clone()
            .of(async move {
                assert_eq!(seen.wait(), WaitState::default());
                let outer = waiting(DISK);
                let inner = waiting(WaitState { kind: u8::MAX, number: u64::MAX });
                assert_eq!(seen.wait(), WaitState { kind: u8::MAX, number: (1 << 56) - 1 });
                drop(inner);
                assert_eq!(seen.wait(), DISK);
                drop(outer);
                assert_eq!(seen.wait(), WaitState::default());
            })
            .await;
        assert_eq!(progress.age(Duration::from_secs(8)), Duration::from_secs(3));
        assert_eq!(progress.age(Duration::from_secs(4)), Duration::ZERO);
    }

    /// A call that went on is young, and other tasks note nothing.
    #[tokio::test]
    async fn resumed_call_is_young() {
        let progress = CallProgress::begin(Duration::ZERO);
        progress.clone().of(async { tokio::spawn(async { drop(waiting(DISK)) }).await.unwrap() }).await;
        went_on();
        assert_eq!(progress.age(Duration::from_secs(9)), Duration::from_secs(9));
        progress.clone().of(async { went_on() }).await;
        assert!(progress.age(since_boot()) < Duration::from_secs(1));
        progress.set_name(b"a");
        progress.set_name(b"b");
        assert_eq!(progress.name(), Some(&b"a"[..]));
    }
}
