//! Filters: devices on top of another device, each of which changes one aspect of that device. Each filter has one
//! small file.
//!
//! Owns: the [`Filter`] trait, which forwards all operations that a filter does not change, and the parts that several
//! filters share: a random generator with a seed, and a trigger file. Filters compose:
//! `stats(error(memory:1G,rate=1%))`.

pub mod corrupt;
pub mod delay;
pub mod error;
pub mod log;
pub mod model;
pub mod record;
pub mod stats;
pub mod throttle;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::buffer::Buffer;
use crate::device::{BlockDevice, DeviceExtent, DeviceGeometry, IoContext, IoFuture, SharedDevice, WriteFlags};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::figures::DeviceCounters;
use crate::request::{DeviceRequest, total};

/// A device on top of one other device; every operation goes to the other device unless the filter overrides it.
///
/// A filter that treats all kinds of operations alike overrides only [`around`](Filter::around). A filter that changes
/// one kind overrides the method of that kind, which then does not use `around`.
pub trait Filter: Send + Sync + Sized + 'static {
    /// The device below.
    fn inner(&self) -> &SharedDevice;

    /// See [`BlockDevice::spec`].
    fn spec(&self) -> String;

    /// See [`BlockDevice::geometry`].
    fn geometry(&self) -> DeviceGeometry {
        self.inner().geometry()
    }

    /// This filter's counters; see [`BlockDevice::figures`].
    fn own_figures(&self) -> Option<DeviceCounters> {
        None
    }

    /// Applies this filter to an operation; `operation` runs the operation on the given device.
    ///
    /// The request is not checked yet; the device below refuses invalid requests.
    fn around<T: Send + 'static>(
        &self,
        _request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        operation(self.inner())
    }

    /// See [`BlockDevice::read_at`].
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let request = DeviceRequest::new(DeviceOperation::Read, offset, total(&buffers), context);
        self.around(request, move |inner| inner.read_at(offset, buffers, context))
    }

    /// See [`BlockDevice::write_at`].
    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let request = DeviceRequest::new(DeviceOperation::Write, offset, total(&buffers), context);
        let request = DeviceRequest { fua: flags.fua, ..request };
        self.around(request, move |inner| inner.write_at(offset, buffers, flags, context))
    }

    /// See [`BlockDevice::flush`].
    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.around(DeviceRequest::new(DeviceOperation::Flush, 0, 0, context), move |inner| inner.flush(context))
    }

    /// See [`BlockDevice::discard`].
    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Discard, offset, length, context);
        self.around(request, move |inner| inner.discard(offset, length, context))
    }

    /// See [`BlockDevice::write_zeroes`].
    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::WriteZeroes, offset, length, context);
        self.around(request, move |inner| inner.write_zeroes(offset, length, context))
    }

    /// See [`BlockDevice::zero_quickly`].
    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::WriteZeroes, offset, length, context);
        self.around(request, move |inner| inner.zero_quickly(offset, length, context))
    }

    /// See [`BlockDevice::allocation`].
    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let request = DeviceRequest::new(DeviceOperation::Allocation, offset, length, context);
        self.around(request, move |inner| inner.allocation(offset, length, context))
    }

    /// See [`BlockDevice::grow`].
    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        self.around(request, move |inner| inner.grow(size_bytes))
    }

    /// See [`BlockDevice::close`]. It does not use [`around`](Filter::around): a filter that holds operations up, or
    /// fails them, does not keep the end from the device below.
    fn close(&self) -> IoFuture<()> {
        self.inner().close()
    }

    /// See [`BlockDevice::release`].
    fn release(&self) -> IoFuture<bool> {
        self.inner().release()
    }
}

impl<F: Filter> BlockDevice for F {
    fn spec(&self) -> String {
        Filter::spec(self)
    }
    fn geometry(&self) -> DeviceGeometry {
        Filter::geometry(self)
    }
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        Filter::read_at(self, offset, buffers, context)
    }
    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        Filter::write_at(self, offset, buffers, flags, context)
    }
    fn flush(&self, context: IoContext) -> IoFuture<()> {
        Filter::flush(self, context)
    }
    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        Filter::discard(self, offset, length, context)
    }
    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        Filter::write_zeroes(self, offset, length, context)
    }
    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        Filter::zero_quickly(self, offset, length, context)
    }
    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        Filter::allocation(self, offset, length, context)
    }
    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        Filter::grow(self, size_bytes)
    }
    fn close(&self) -> IoFuture<()> {
        Filter::close(self)
    }
    fn release(&self) -> IoFuture<bool> {
        Filter::release(self)
    }
    fn exact_bytes(&self) -> u64 {
        self.inner().exact_bytes()
    }
    fn sector_bytes(&self) -> u32 {
        self.inner().sector_bytes()
    }
    fn is_shared(&self) -> bool {
        self.inner().is_shared()
    }
    fn lock(&self, offset: u64, length: u64) -> IoFuture<bool> {
        self.inner().lock(offset, length)
    }
    fn unlock(&self, offset: u64, length: u64) -> IoFuture<()> {
        self.inner().unlock(offset, length)
    }
    fn is_locked(&self, offset: u64, length: u64) -> IoFuture<bool> {
        self.inner().is_locked(offset, length)
    }
    fn lock_domain(&self) -> Option<String> {
        self.inner().lock_domain()
    }
    fn set_option(&self, name: &str, value: &str) -> IoFuture<()> {
        self.inner().set_option(name, value)
    }
    fn figures(&self) -> Vec<DeviceCounters> {
        self.own_figures().into_iter().chain(self.inner().figures()).collect()
    }
}

/// Makes random decisions from a seed, so that the same operations in the same order have the same results.
pub(crate) struct SeededChance {
    rate: f64,
    seed: u64,
    drawn: AtomicU64,
}

impl SeededChance {
    pub fn new(rate: f64, seed: u64) -> SeededChance {
        SeededChance { rate, seed, drawn: AtomicU64::new(0) }
    }

    /// Makes one random decision. With the probability `rate` this returns random bits, from which the filter chooses
    /// the effect on the operation.
    pub fn draw(&self) -> Option<u64> {
        let index = self.drawn.fetch_add(1, Ordering::Relaxed);
        let bits = mix(self.seed ^ mix(index));
        // 53 bits fill the fraction of a double exactly. So a draw with a rate of 0 never succeeds, and a draw with a
        // rate of 1 always does.
        let share = (bits >> 11) as f64 / (1u64 << 53) as f64;
        (share < self.rate).then(|| mix(bits))
    }
}

/// Spreads the bits of a number over all bits of the result (SplitMix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Decides whether a filter is active. A filter is always active, or only while a file exists.
pub(crate) struct TriggerFile(pub Option<PathBuf>);

impl TriggerFile {
    pub fn is_on(&self) -> bool {
        self.0.as_ref().is_none_or(|path| path.exists())
    }
}

/// Waits until `end`. If the deadline of the request is earlier, waits until the deadline and fails; the operation then
/// does not happen.
///
/// `why` returns the filter's SPEC and the reason for the wait.
pub(crate) async fn wait_until(
    end: Instant,
    request: &DeviceRequest,
    why: impl FnOnce() -> (String, String),
) -> Result<(), Error> {
    match request.deadline {
        Some(deadline) if end > deadline.into() => {
            tokio::time::sleep_until(deadline.into()).await;
            let (spec, reason) = why();
            let detail = format!("the deadline passed during {reason}; it did not happen");
            Err(request.error(DeviceErrorKind::TimedOut, || spec, detail))
        }
        _ => {
            tokio::time::sleep_until(end).await;
            Ok(())
        }
    }
}

/// Writes `,key=value` for every option that has a value.
pub(crate) fn options_text<const N: usize>(options: [(&str, Option<String>); N]) -> String {
    let given = options.into_iter().filter_map(|(key, value)| Some(format!(",{key}={}", value?)));
    given.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_follows_rate_and_seed() {
        let hits = |rate, seed| {
            let chance = SeededChance::new(rate, seed);
            (0..10_000).filter(|_| chance.draw().is_some()).count()
        };
        assert_eq!((hits(0.0, 1), hits(1.0, 1)), (0, 10_000));
        assert!((50..200).contains(&hits(0.01, 7)));
        assert_eq!(hits(0.5, 3), hits(0.5, 3));
        assert_ne!(hits(0.5, 3), hits(0.5, 4));
    }
}
