//! `stats(A)`: counts the operations.
//!
//! Promises: an operation is counted when it ends. If its future is dropped before the end, it is counted as dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Filter;
use crate::device::{IoFuture, SharedDevice};
use crate::error::DeviceOperation;
use crate::figures::DeviceCounters;
use crate::request::DeviceRequest;

/// The counters of one kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperationCount {
    /// The number of operations that have begun.
    pub begun: u64,
    /// The number of operations that succeeded.
    pub done: u64,
    /// The number of operations that failed.
    pub failed: u64,
    /// The number of operations whose future was dropped before their end was reported.
    pub dropped: u64,
    /// The total number of bytes of the operations that succeeded.
    pub bytes: u64,
    /// The total time of the operations that succeeded or failed. *Units*: microseconds.
    pub elapsed_us: u64,
}

/// The operations so far, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OperationStats {
    /// Reads.
    pub reads: OperationCount,
    /// Writes.
    pub writes: OperationCount,
    /// Flushes.
    pub flushes: OperationCount,
    /// Discards.
    pub discards: OperationCount,
    /// Writes of zeroes.
    pub zeroes: OperationCount,
}

#[derive(Default)]
struct OperationCounter {
    begun: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    elapsed_us: AtomicU64,
}

impl OperationCounter {
    fn read(&self) -> OperationCount {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        OperationCount {
            begun: get(&self.begun),
            done: get(&self.done),
            failed: get(&self.failed),
            dropped: get(&self.dropped),
            bytes: get(&self.bytes),
            elapsed_us: get(&self.elapsed_us),
        }
    }
}

/// Counts an operation as dropped if its end was not reported.
struct CountedOperation {
    counter: Arc<OperationCounter>,
    began: Instant,
    is_ended: bool,
}

impl CountedOperation {
    fn end(mut self, bytes: u64, succeeded: bool) {
        self.is_ended = true;
        let elapsed_us = self.began.elapsed().as_micros().min(u128::from(u64::MAX)) as u64;
        self.counter.elapsed_us.fetch_add(elapsed_us, Ordering::Relaxed);
        if succeeded {
            self.counter.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.counter.done.fetch_add(1, Ordering::Relaxed);
        } else {
            self.counter.failed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for CountedOperation {
    fn drop(&mut self) {
        if !self.is_ended {
            self.counter.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct OperationCounters {
    reads: Arc<OperationCounter>,
    writes: Arc<OperationCounter>,
    flushes: Arc<OperationCounter>,
    discards: Arc<OperationCounter>,
    zeroes: Arc<OperationCounter>,
}

/// The `stats` filter; see the comment at the head of this file.
pub struct StatsFilter {
    inner: SharedDevice,
    counters: OperationCounters,
}

impl StatsFilter {
    /// Makes a filter that counts the operations on `inner`.
    pub fn new(inner: SharedDevice) -> StatsFilter {
        StatsFilter { inner, counters: OperationCounters::default() }
    }

    /// The counters of the operations so far.
    pub fn snapshot(&self) -> OperationStats {
        let OperationCounters { reads, writes, flushes, discards, zeroes } = &self.counters;
        OperationStats {
            reads: reads.read(),
            writes: writes.read(),
            flushes: flushes.read(),
            discards: discards.read(),
            zeroes: zeroes.read(),
        }
    }

    fn counter(&self, operation: DeviceOperation) -> Option<&Arc<OperationCounter>> {
        match operation {
            DeviceOperation::Read => Some(&self.counters.reads),
            DeviceOperation::Write => Some(&self.counters.writes),
            DeviceOperation::Flush => Some(&self.counters.flushes),
            DeviceOperation::Discard => Some(&self.counters.discards),
            DeviceOperation::WriteZeroes => Some(&self.counters.zeroes),
            DeviceOperation::Open | DeviceOperation::Allocation | DeviceOperation::Grow | DeviceOperation::Close => {
                None
            }
        }
    }
}

impl Filter for StatsFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        format!("stats({})", self.inner.spec())
    }
    fn own_figures(&self) -> Option<DeviceCounters> {
        let OperationStats { reads, writes, flushes, discards, zeroes } = self.snapshot();
        let values = vec![
            ("reads", reads.done),
            ("read_bytes", reads.bytes),
            ("read_us", reads.elapsed_us),
            ("writes", writes.done),
            ("write_bytes", writes.bytes),
            ("write_us", writes.elapsed_us),
            ("flushes", flushes.done),
            ("flush_us", flushes.elapsed_us),
            ("discards", discards.done),
            ("zeroes", zeroes.done),
            ("failed", reads.failed + writes.failed + flushes.failed + discards.failed + zeroes.failed),
        ];
        Some(DeviceCounters { device: "stats", values })
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let operation = operation(&self.inner);
        let Some(counter) = self.counter(request.operation) else { return operation };
        counter.begun.fetch_add(1, Ordering::Relaxed);
        let pending = CountedOperation { counter: counter.clone(), began: Instant::now(), is_ended: false };
        Box::pin(async move {
            let result = operation.await;
            pending.end(request.length, result.is_ok());
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Buffer, IoContext, MemoryDevice, read, write};

    #[tokio::test]
    async fn stats_count_every_outcome() {
        let device = StatsFilter::new(Arc::new(MemoryDevice::new(1 << 20)));
        write(&device, 0, Buffer::zeroed(8192)).await.unwrap();
        read(&device, 0, 4096).await.unwrap();
        assert!(read(&device, 1, 4096).await.is_err());
        drop(BlockDevice::read_at(&device, 0, vec![Buffer::zeroed(4096)], IoContext::default()));
        BlockDevice::flush(&device, IoContext::default()).await.unwrap();
        let stats = device.snapshot();
        let figures = device.figures();
        assert_eq!((figures[0].get("reads"), figures[0].get("write_bytes")), (Some(1), Some(8192)));
        let reads = OperationCount { begun: 3, done: 1, failed: 1, dropped: 1, bytes: 4096, ..stats.reads };
        assert_eq!((stats.reads, stats.writes.bytes, stats.flushes.done), (reads, 8192, 1));
    }
}
