//! `throttle(A,iops=150,bandwidth=20M)`: limits the rate of operations and bytes.
//!
//! Reads, writes, zeroings and discards count as operations; the bytes of reads and writes count against the bandwidth.
//! Each limit keeps the time at which the next operation may pass. An operation waits until that time and advances it
//! by its own cost. Up to [`BURST`] of unused time may be used later, so that the coarse timer costs no throughput.
//! Promises: over any longer time the rate is not exceeded, whatever the sizes of operations are and however many
//! operations wait. An operation whose future is dropped while it waits does not happen, but its cost still counts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::{Filter, options_text, wait_until};
use crate::device::{IoFuture, SharedDevice};
use crate::error::DeviceOperation;
use crate::request::DeviceRequest;
use crate::size::exact_size;

/// The maximum unused time that operations may later use at once.
const BURST: Duration = Duration::from_millis(10);

/// The limits of the `throttle` filter; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThrottleOptions {
    /// The maximum number of operations per second; at least 1.
    pub iops: Option<u64>,
    /// The maximum number of bytes per second; at least 1.
    pub bandwidth: Option<u64>,
}

/// The `throttle` filter; see the comment at the head of this file.
pub struct ThrottleFilter {
    inner: SharedDevice,
    options: ThrottleOptions,
    next: Mutex<Option<ThrottleTimes>>,
}

/// The time at which each limit lets the next operation pass.
#[derive(Debug, Clone, Copy)]
struct ThrottleTimes {
    operation: Instant,
    byte: Instant,
}

impl ThrottleFilter {
    /// Makes a filter that limits the operations on `inner` to the rates in `options`.
    pub fn new(inner: SharedDevice, options: ThrottleOptions) -> ThrottleFilter {
        ThrottleFilter { inner, options, next: Mutex::new(None) }
    }

    /// Counts an operation against the limits and returns the time at which it may pass. An operation whose deadline is
    /// earlier than this time is not counted.
    fn turn(&self, request: &DeviceRequest) -> Instant {
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let ThrottleTimes { operation, byte } = next.unwrap_or(ThrottleTimes { operation: now, byte: now });
        let pass = operation.max(byte);
        if request.deadline.is_some_and(|deadline| pass > deadline.into()) {
            // The operation will not happen, so it is not counted.
            return pass;
        }
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let bytes = if matches!(request.operation, DeviceOperation::Read | DeviceOperation::Write) {
            request.length
        } else {
            0
        };
        *next = Some(ThrottleTimes {
            operation: operation.max(earliest) + cost(1, self.options.iops),
            byte: byte.max(earliest) + cost(bytes, self.options.bandwidth),
        });
        pass
    }
}

/// The time that `amount` takes at a rate of `rate` per second.
fn cost(amount: u64, rate: Option<u64>) -> Duration {
    let Some(rate) = rate else { return Duration::ZERO };
    let nanoseconds = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanoseconds.min(u128::from(u64::MAX / 4)) as u64)
}

impl Filter for ThrottleFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let ThrottleOptions { iops, bandwidth } = self.options;
        let options =
            options_text([("iops", iops.map(|iops| iops.to_string())), ("bandwidth", bandwidth.map(exact_size))]);
        format!("throttle({}{options})", self.inner.spec())
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let counts = match request.operation {
            DeviceOperation::Read
            | DeviceOperation::Write
            | DeviceOperation::WriteZeroes
            | DeviceOperation::Discard => true,
            DeviceOperation::Open
            | DeviceOperation::Flush
            | DeviceOperation::Allocation
            | DeviceOperation::Grow
            | DeviceOperation::Close => false,
        };
        // An operation that the device below refuses has no cost.
        let spec = Filter::spec(self);
        if !counts || request.check(|| spec.clone(), &self.inner.geometry()).is_err() {
            return operation(&self.inner);
        }
        let pass = self.turn(&request);
        let inner = self.inner.clone();
        Box::pin(async move {
            if pass > Instant::now() {
                wait_until(pass, &request, || (spec, "the wait for its turn".to_owned())).await?;
            }
            operation(&inner).await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Buffer, DeviceErrorKind, IoContext, OpenOptions, open, read, write};

    async fn device(spec: &str) -> SharedDevice {
        open(spec, &OpenOptions::default()).await.unwrap()
    }

    /// The rate holds for operations one after the other and for many at once.
    #[tokio::test(start_paused = true)]
    async fn throttle_limits_operation_rate() {
        let device = device("throttle(memory:1M,iops=100)").await;
        assert_eq!(device.spec(), "throttle(memory:1M,iops=100)");
        let began = Instant::now();
        for _ in 0..50 {
            read(&*device, 0, 4096).await.unwrap();
        }
        let pending: Vec<_> =
            (0..50).map(|_| device.read_at(0, vec![Buffer::zeroed(4096)], IoContext::default())).collect();
        for read in pending {
            read.await.unwrap();
        }
        let elapsed = began.elapsed();
        assert!((980..=1010).contains(&elapsed.as_millis()), "{elapsed:?}");
    }

    /// Bytes pass at their rate, and flushes cost nothing.
    #[tokio::test(start_paused = true)]
    async fn throttle_limits_byte_rate() {
        let device = device("throttle(memory:4M,bandwidth=1M)").await;
        let began = Instant::now();
        for _ in 0..4 {
            write(&*device, 0, Buffer::zeroed(512 << 10)).await.unwrap();
            device.flush(IoContext::default()).await.unwrap();
        }
        let elapsed = began.elapsed();
        assert!((1480..=1520).contains(&elapsed.as_millis()), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn throttle_limits_burst() {
        let device = device("throttle(memory:1M,iops=1000)").await;
        read(&*device, 0, 4096).await.unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..100 {
            read(&*device, 0, 4096).await.unwrap();
        }
        let elapsed = began.elapsed();
        assert!((85..=100).contains(&elapsed.as_millis()), "{elapsed:?}");
    }

    /// An operation that cannot pass before its deadline fails and does not delay later ones.
    #[tokio::test]
    async fn timed_out_operation_costs_no_turn() {
        let device = device("throttle(memory:1M,iops=1)").await;
        read(&*device, 0, 4096).await.unwrap();
        for _ in 0..3 {
            let deadline = Some((Instant::now() + Duration::from_millis(2)).into());
            let context = IoContext { deadline, ..IoContext::default() };
            let error = device.read_at(0, vec![Buffer::zeroed(4096)], context).await.unwrap_err();
            assert_eq!(error.kind, DeviceErrorKind::TimedOut, "{error}");
        }
        let began = Instant::now();
        read(&*device, 0, 4096).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2));
        assert!(BlockDevice::geometry(&*device).size_bytes == 1 << 20);
    }
}
