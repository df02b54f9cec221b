//! The runtime of background work (work that no call waits for).
//!
//! Owns: the choice of the runtime, and the threads that read and decode data ahead while a store is opened. Such a
//! thread ends when its work is done, or when it sends a result whose receiver is gone.

use std::future::Future;

/// The runtime of a store's background work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundRuntime {
    /// Background work runs on its own threads, so that it delays no hit.
    #[default]
    Threads,
    /// Background work runs on the runtime that opens the store. This is for programs with one thread, and for
    /// simulations. That runtime needs timers, and the store makes progress only while the runtime is polled.
    Caller,
}

/// Runs `work` on its own thread; returns false if no thread could be started. `work` sends its results through a
/// channel.
pub(crate) fn spawn<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) -> bool {
    // Like the writer's runtime, this one has its own timers and I/O: it makes progress without any other runtime.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return false };
    let thread = std::thread::Builder::new().name("nectary-ahead".into());
    thread.spawn(move || runtime.block_on(work())).is_ok()
}
