//! The disk as one session uses it: counts its writes.
//!
//! Owns: the number of changes of the disk in progress, and whether the disk failed one. Promises: after
//! [`drained`](SessionDevice::drained) has returned `true`, no write of this session is in progress and none begins.
//! Leaves to others: what follows from that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nectary_block::{
    Buffer, DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoContext, IoFuture, SharedDevice,
    WriteFlags,
};
use tokio::sync::Notify;

/// The state that all requests share.
#[derive(Default)]
struct DeviceWrites {
    in_progress: AtomicU64,
    /// No change of the disk begins any more.
    is_closed: AtomicBool,
    /// Nobody waited for the end of a change.
    is_lost: AtomicBool,
    /// The disk failed a change, and may still do it.
    has_failed: AtomicBool,
    changed: Notify,
}

impl DeviceWrites {
    /// Notes the failure of a request after which a change may still happen.
    fn note<T>(&self, ended: &Result<T, Error>) {
        if let Err(error) = ended
            && matches!(error.kind, DeviceErrorKind::Io | DeviceErrorKind::TimedOut)
        {
            self.has_failed.store(true, Ordering::SeqCst);
            self.changed.notify_waiters();
        }
    }
}

/// A change of the disk in progress.
struct WriteInProgress {
    writes: Arc<DeviceWrites>,
    is_done: bool,
}

impl Drop for WriteInProgress {
    fn drop(&mut self) {
        self.writes.is_lost.fetch_or(!self.is_done, Ordering::SeqCst);
        self.writes.in_progress.fetch_sub(1, Ordering::SeqCst);
        self.writes.changed.notify_waiters();
    }
}

/// The disk of a session.
pub(super) struct SessionDevice {
    inner: SharedDevice,
    writes: Arc<DeviceWrites>,
}

impl SessionDevice {
    /// Makes the disk of a new session.
    pub fn new(inner: SharedDevice) -> SessionDevice {
        SessionDevice { inner, writes: Arc::default() }
    }

    /// Refuses further changes, and waits until those in progress have ended. `false`: some may never have ended.
    pub async fn drained(&self) -> bool {
        self.writes.is_closed.store(true, Ordering::SeqCst);
        self.until(|writes| writes.in_progress.load(Ordering::SeqCst) == 0).await;
        !self.writes.is_lost.load(Ordering::SeqCst) && !self.writes.has_failed.load(Ordering::SeqCst)
    }

    /// Waits until the disk fails a change, and so may still do it at any time.
    pub async fn failed(&self) {
        self.until(|writes| writes.has_failed.load(Ordering::SeqCst)).await;
    }

    async fn until(&self, is_so: impl Fn(&DeviceWrites) -> bool) {
        loop {
            let changed = self.writes.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if is_so(&self.writes) {
                return;
            }
            changed.await;
        }
    }

    /// Runs a change of the disk.
    fn change<T: Send + 'static>(
        &self,
        operation: DeviceOperation,
        change: impl FnOnce(&SharedDevice) -> IoFuture<T>,
    ) -> IoFuture<T> {
        self.writes.in_progress.fetch_add(1, Ordering::SeqCst);
        let mut writing = WriteInProgress { writes: self.writes.clone(), is_done: false };
        if self.writes.is_closed.load(Ordering::SeqCst) {
            writing.is_done = true;
            let error = Error::new(DeviceErrorKind::Latched, &self.inner.spec(), operation, "its session has ended");
            return Box::pin(std::future::ready(Err(error)));
        }
        let changing = change(&self.inner);
        Box::pin(async move {
            let changed = changing.await;
            writing.is_done = true;
            writing.writes.note(&changed);
            changed
        })
    }
}

impl Filter for SessionDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        match request.operation {
            DeviceOperation::Read | DeviceOperation::Allocation | DeviceOperation::Open | DeviceOperation::Close => {
                operation(&self.inner)
            }
            // A flush changes nothing that was not written before, so it may be given up.
            DeviceOperation::Flush => {
                let (flushing, writes) = (operation(&self.inner), self.writes.clone());
                Box::pin(async move {
                    let flushed = flushing.await;
                    writes.note(&flushed);
                    flushed
                })
            }
            changes => self.change(changes, operation),
        }
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        self.change(DeviceOperation::Write, |inner| inner.write_at(offset, buffers, flags, context))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nectary_block::{BlockDevice, DelayFilter, DelayOptions, ErrorFilter, ErrorOptions, MemoryDevice, write};

    use super::*;

    fn slow() -> SessionDevice {
        let options = DelayOptions { write: Duration::from_millis(50), ..DelayOptions::default() };
        SessionDevice::new(Arc::new(DelayFilter::new(Arc::new(MemoryDevice::new(1 << 20)), options)))
    }

    /// Writes that come later are refused.
    #[tokio::test]
    async fn drain_waits_for_pending_writes() {
        let device = slow();
        let written =
            BlockDevice::write_at(&device, 0, vec![Buffer::zeroed(4096)], WriteFlags::default(), IoContext::default());
        let (ended, order) = (AtomicBool::new(false), Ordering::SeqCst);
        let written = async {
            written.await.expect("it is written");
            ended.store(true, order);
        };
        let drained = async {
            assert!(device.drained().await);
            assert!(ended.load(order), "the write has ended before");
        };
        tokio::join!(drained, written);
        let refused = write(&device, 0, Buffer::zeroed(4096)).await.expect_err("it is closed");
        assert_eq!(refused.kind, DeviceErrorKind::Latched);
        assert!(BlockDevice::discard(&device, 0, 4096, IoContext::default()).await.is_err());
        assert!(nectary_block::read(&device, 0, 4096).await.is_ok());
        assert!(device.drained().await, "a refused write was never in progress");
    }

    #[tokio::test]
    async fn abandoned_write_is_never_drained() {
        let device = slow();
        drop(BlockDevice::write_at(
            &device,
            0,
            vec![Buffer::zeroed(4096)],
            WriteFlags::default(),
            IoContext::default(),
        ));
        assert!(!device.drained().await);
    }

    #[tokio::test]
    async fn abandoned_flush_is_no_write() {
        let options = DelayOptions { flush: Duration::from_secs(60), ..DelayOptions::default() };
        let device = SessionDevice::new(Arc::new(DelayFilter::new(Arc::new(MemoryDevice::new(1 << 20)), options)));
        let flushed = tokio::time::timeout(Duration::from_millis(5), BlockDevice::flush(&device, IoContext::default()));
        assert!(flushed.await.is_err());
        assert!(device.drained().await);
    }

    #[tokio::test]
    async fn failed_write_reported_never_drained() {
        let options = ErrorOptions { rate: 1.0, ..ErrorOptions::default() };
        let device = SessionDevice::new(Arc::new(ErrorFilter::new(Arc::new(MemoryDevice::new(1 << 20)), options)));
        let (failed, ()) = tokio::join!(write(&device, 0, Buffer::zeroed(4096)), device.failed());
        assert!(failed.is_err() && !device.drained().await);
    }
}
