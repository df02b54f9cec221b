//! Reading ahead on a thread of its own while a store is opened, as decoding what is read takes longer than reading it.
//!
//! Owns: the thread. It ends when its work is done, or at the next thing that it has for a receiver who is gone.

use std::future::Future;

/// Does `work`, which sends what it reads to somebody, on a thread of its own; false where there is none to be had.
pub fn spawn<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) -> bool {
    // As the writer's, it has timers and I/O of its own: nobody else has to be polled for it to go on.
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return false };
    let thread = std::thread::Builder::new().name("nectary-ahead".into());
    thread.spawn(move || runtime.block_on(work())).is_ok()
}
