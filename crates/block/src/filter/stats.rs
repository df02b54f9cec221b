//! `stats(A)`: counts the operations.
//!
//! Promises: an operation is counted when it ends. If its future is dropped before the end, it is counted as dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::Filter;
use crate::device::{IoFuture, SharedDevice};
use crate::error::Operation;
use crate::figures::Figures;
use crate::request::Request;

/// The counters of one kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
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
pub struct Stats {
    /// Reads.
    pub reads: Count,
    /// Writes.
    pub writes: Count,
    /// Flushes.
    pub flushes: Count,
    /// Discards.
    pub discards: Count,
    /// Writes of zeroes.
    pub zeroes: Count,
}

#[derive(Default)]
struct Counter {
    begun: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    elapsed_us: AtomicU64,
}

impl Counter {
    fn read(&self) -> Count {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Count {
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
struct Pending {
    counter: Arc<Counter>,
    began: Instant,
    is_ended: bool,
}

impl Pending {
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

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_ended {
            self.counter.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct Counters {
    reads: Arc<Counter>,
    writes: Arc<Counter>,
    flushes: Arc<Counter>,
    discards: Arc<Counter>,
    zeroes: Arc<Counter>,
}

/// The `stats` filter; see the comment at the head of this file.
pub struct StatsFilter {
    inner: SharedDevice,
    counters: Counters,
}

impl StatsFilter {
    /// Makes a filter that counts the operations on `inner`.
    pub fn new(inner: SharedDevice) -> StatsFilter {
        StatsFilter { inner, counters: Counters::default() }
    }

    /// The counters of the operations so far.
    pub fn snapshot(&self) -> Stats {
        let Counters { reads, writes, flushes, discards, zeroes } = &self.counters;
        Stats {
            reads: reads.read(),
            writes: writes.read(),
            flushes: flushes.read(),
            discards: discards.read(),
            zeroes: zeroes.read(),
        }
    }

    fn counter(&self, operation: Operation) -> Option<&Arc<Counter>> {
        match operation {
            Operation::Read => Some(&self.counters.reads),
            Operation::Write => Some(&self.counters.writes),
            Operation::Flush => Some(&self.counters.flushes),
            Operation::Discard => Some(&self.counters.discards),
            Operation::WriteZeroes => Some(&self.counters.zeroes),
            Operation::Open | Operation::Allocation | Operation::Grow | Operation::Close => None,
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
    fn own_figures(&self) -> Option<Figures> {
        let Stats { reads, writes, flushes, discards, zeroes } = self.snapshot();
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
        Some(Figures { device: "stats", values })
    }
    fn around<T: Send + 'static>(
        &self,
        request: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let operation = operation(&self.inner);
        let Some(counter) = self.counter(request.operation) else { return operation };
        counter.begun.fetch_add(1, Ordering::Relaxed);
        let pending = Pending { counter: counter.clone(), began: Instant::now(), is_ended: false };
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
    use crate::{BlockDevice, Buffer, Context, MemoryDevice, read, write};

    #[tokio::test]
    async fn operations_bytes_failures_and_drops_are_counted() {
        let device = StatsFilter::new(Arc::new(MemoryDevice::new(1 << 20)));
        write(&device, 0, Buffer::zeroed(8192)).await.unwrap();
        read(&device, 0, 4096).await.unwrap();
        assert!(read(&device, 1, 4096).await.is_err());
        drop(BlockDevice::read_at(&device, 0, vec![Buffer::zeroed(4096)], Context::default()));
        BlockDevice::flush(&device, Context::default()).await.unwrap();
        let stats = device.snapshot();
        let figures = device.figures();
        assert_eq!((figures[0].get("reads"), figures[0].get("write_bytes")), (Some(1), Some(8192)));
        let reads = Count { begun: 3, done: 1, failed: 1, dropped: 1, bytes: 4096, ..stats.reads };
        assert_eq!((stats.reads, stats.writes.bytes, stats.flushes.done), (reads, 8192, 1));
    }
}
