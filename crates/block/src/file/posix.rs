//! The POSIX engine: `preadv`, `pwritev2` and `fdatasync` on tokio's pool of blocking threads.
//!
//! Promises: an operation that has begun runs to its end and keeps its buffers until then, even if its future is
//! dropped. At most [`THREADS_MAX`] operations of one device run at a time and [`WAITING_MAX`] wait; further operations
//! are refused as busy. Leaves to others: the meaning of a count or an error from the kernel (`transfer`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Semaphore;

use super::sys;
use super::transfer::{DeviceTransfer, TransferProgress};
use crate::buffer::Buffer;
use crate::device::IoFuture;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::ready;

/// The maximum number of operations of one device that hold a thread at a time.
pub(super) const THREADS_MAX: usize = 32;

/// The maximum number of operations of one device that wait for a thread.
pub(super) const WAITING_MAX: usize = 65536;

/// The threads that one device may use.
pub(super) struct DeviceThreads {
    threads: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
}

/// One of the places for waiting operations; dropping this value frees the place.
struct WaitingPermit(Arc<AtomicUsize>);

impl Drop for WaitingPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DeviceThreads {
    pub fn new(threads_max: usize, waiting_max: usize) -> DeviceThreads {
        DeviceThreads { threads: Arc::new(Semaphore::new(threads_max)), waiting: Arc::default(), waiting_max }
    }

    /// Runs `work` on a thread: at once if a thread is free, otherwise when a thread becomes free. Work that must wait
    /// for a thread begins only if the future is polled.
    ///
    /// `fail` makes the error if the work cannot run because too many operations wait or the runtime has ended.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
        fail: impl Fn(DeviceErrorKind, String) -> Error + Send + Sync + 'static,
    ) -> IoFuture<T> {
        let ended = |error: tokio::task::JoinError| format!("the runtime ended before the operation: {error}");
        if let Ok(permit) = self.threads.clone().try_acquire_owned() {
            let task = tokio::task::spawn_blocking(move || {
                let result = work();
                drop(permit);
                result
            });
            return Box::pin(
                async move { task.await.unwrap_or_else(|error| Err(fail(DeviceErrorKind::Io, ended(error)))) },
            );
        }
        let place = WaitingPermit(self.waiting.clone());
        if self.waiting.fetch_add(1, Ordering::AcqRel) >= self.waiting_max {
            let detail = format!("{} operations wait for a thread already; try again later", self.waiting_max);
            return ready(Err(fail(DeviceErrorKind::Busy, detail)));
        }
        let threads = self.threads.clone();
        Box::pin(async move {
            let permit = threads.acquire_owned().await;
            drop(place);
            let task = tokio::task::spawn_blocking(move || {
                let result = work();
                drop(permit);
                result
            });
            task.await.unwrap_or_else(|error| Err(fail(DeviceErrorKind::Io, ended(error))))
        })
    }

    /// Runs a read, write or flush.
    pub fn transfer(&self, transfer: DeviceTransfer) -> IoFuture<Vec<Buffer>> {
        let (shared, operation) = (transfer.shared.clone(), transfer.operation);
        let (offset, length) = (transfer.offset, transfer.length);
        self.run(
            move || run(transfer),
            move |kind, detail| Error::new(kind, &shared.spec, operation, detail).at(offset, length),
        )
    }
}

/// Runs a whole operation on this thread.
fn run(mut transfer: DeviceTransfer) -> Result<Vec<Buffer>, Error> {
    let result = match transfer.operation {
        DeviceOperation::Flush => transfer.shared.file.sync_data().map_err(|error| transfer.os_error(&error)),
        _ => move_all(&mut transfer),
    };
    transfer.end(result)
}

fn move_all(transfer: &mut DeviceTransfer) -> Result<(), Error> {
    loop {
        let (position, done) = (transfer.position(), transfer.done as usize);
        let file = &transfer.shared.file;
        let moved = match transfer.operation {
            DeviceOperation::Read => sys::read(file, position, &mut transfer.buffers, done),
            _ => sys::write(file, position, &transfer.buffers, done, transfer.fua),
        };
        match moved {
            Ok(moved) => match transfer.advance(moved)? {
                TransferProgress::Ended => return Ok(()),
                TransferProgress::More => {}
            },
            Err(error) => return Err(transfer.os_error(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Operations wait up to the limit; one more is refused as busy until a waiting one is dropped.
    #[tokio::test]
    async fn operation_past_waiting_limit_is_refused() {
        let pool = DeviceThreads::new(1, 2);
        let fail = |kind, detail: String| Error::new(kind, "test", DeviceOperation::Read, detail);
        let (release, wait) = mpsc::channel::<()>();
        let first = pool.run(move || Ok(wait.recv().is_ok()), fail);
        let second = pool.run(|| Ok(true), fail);
        let third = pool.run(|| Ok(true), fail);
        assert_eq!(pool.run(|| Ok(true), fail).await.unwrap_err().kind, DeviceErrorKind::Busy);
        drop(third);
        let fourth = pool.run(|| Ok(true), fail);
        release.send(()).unwrap();
        assert!(first.await.unwrap() && second.await.unwrap() && fourth.await.unwrap());
    }
}
