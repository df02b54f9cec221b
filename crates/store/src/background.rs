//! The runtime of background work (work that no call waits for).
//!
//! Owns: the choice of the runtime, and the threads that read ahead while a store is opened (decoding takes longer than
//! reading). Such a thread ends when its work is done, or when it sends a result whose receiver is gone.

use std::future::Future;

/// The runtime of a store's background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Background {
    /// On its own threads, so that nothing delays a hit.
    #[default]
    Threads,
    /// On the runtime that opens the store: for programs of one thread, and for simulations. That runtime needs timers,
    /// and the store makes progress only while the runtime is polled.
    Caller,
}

/// Runs `work`, which sends its results, on its own thread; returns false if no thread could be started.
pub(crate) fn spawn<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) -> bool {
    // Like the writer's runtime, this one has its own timers and I/O: it makes progress without any other runtime.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return false };
    let thread = std::thread::Builder::new().name("nectary-ahead".into());
    thread.spawn(move || runtime.block_on(work())).is_ok()
}
