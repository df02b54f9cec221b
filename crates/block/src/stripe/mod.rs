//! `stripe(A,B,…[,unit=64K])`: one device made of several devices, which hold its units in turn.
//!
//! With `n` devices, unit `u` of the stripe is unit `u / n` of device `u % n`. So a range of the stripe is one
//! contiguous range on each device, and an operation needs at most one operation per device. The size of the stripe is
//! `n` times the size of all whole units on the smallest device. Promises: an operation inside one unit goes to its
//! device unchanged, without a copy. A longer operation begins on all its devices at once, and its data are copied
//! once. A flush covers all devices. The stripe survives the same events as its weakest device, and its atomic unit is
//! the smallest of its devices. The order of the devices is that of the SPEC and is not stored on them, so a SPEC with
//! another order returns wrong bytes. Leaves to others: redundancy, so the loss of one device is the loss of the
//! stripe.

mod map;

#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use self::map::{StripeMap, StripePart};
use crate::allocation::ExtentList;
use crate::buffer::Buffer;
use crate::device::{
    BlockDevice, DeviceExtent, DeviceGeometry, IoContext, IoFuture, SECTOR_BYTES, SharedDevice, WriteFlags,
};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::figures::DeviceCounters;
use crate::request::{DeviceRequest, ready};
use crate::size::exact_size;

/// The default unit of a stripe. *Units*: bytes.
pub const STRIPE_UNIT_BYTES: u64 = 64 << 10;

/// The maximum number of devices of one stripe.
pub const STRIPE_DEVICES_MAX: usize = 256;

/// The geometry of a device without a padded last block, whose padding would lie in the middle of the stripe.
fn unpadded(device: &SharedDevice) -> DeviceGeometry {
    let geometry = device.geometry();
    let exact_bytes = device.exact_bytes().min(geometry.size_bytes);
    DeviceGeometry { size_bytes: exact_bytes - exact_bytes % u64::from(geometry.block_bytes), ..geometry }
}

/// The `stripe` device; see the comment at the head of this file.
pub struct StripeDevice {
    devices: Vec<SharedDevice>,
    unit_bytes: u64,
}

impl StripeDevice {
    /// Makes one device of several.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] if there are no devices or more than [`STRIPE_DEVICES_MAX`], if the unit is not
    /// a multiple of every device's block, or if a device is smaller than one unit.
    pub fn new(devices: Vec<SharedDevice>, unit_bytes: u64) -> Result<StripeDevice, Error> {
        let stripe = StripeDevice { devices, unit_bytes };
        let invalid =
            |detail: String| Error::new(DeviceErrorKind::Invalid, &stripe.spec(), DeviceOperation::Open, detail);
        if stripe.devices.is_empty() || stripe.devices.len() > STRIPE_DEVICES_MAX {
            return Err(invalid(format!("{} devices; 1 to {STRIPE_DEVICES_MAX} are taken", stripe.devices.len())));
        }
        for device in &stripe.devices {
            let DeviceGeometry { block_bytes, size_bytes, .. } = unpadded(device);
            if unit_bytes == 0 || !unit_bytes.is_multiple_of(u64::from(block_bytes)) {
                let blocks = format!("the blocks of {block_bytes} bytes of {}", device.spec());
                return Err(invalid(format!("a unit of {unit_bytes} bytes is not a multiple of {blocks}")));
            }
            if size_bytes < unit_bytes {
                return Err(invalid(format!("{} is smaller than a unit of {unit_bytes} bytes", device.spec())));
            }
        }
        Ok(stripe)
    }

    fn map(&self) -> StripeMap {
        StripeMap { devices: self.devices.len() as u64, unit_bytes: self.unit_bytes }
    }

    fn check(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<DeviceRequest, Error> {
        let request = DeviceRequest::new(operation, offset, length, context);
        request.check(|| self.spec(), &self.geometry())?;
        Ok(request)
    }

    /// Runs an operation without data on every device that a range touches.
    fn ranged<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl Fn(&SharedDevice, StripePart) -> IoFuture<T>,
    ) -> IoFuture<Vec<T>> {
        let parts = self.map().parts(request.offset, request.length);
        let operations = parts.into_iter().map(|part| operation(&self.devices[part.device], part)).collect();
        self.together(request, operations)
    }

    /// Waits for all operations, and reports the first failure as an error of this device.
    fn together<T: Send + 'static>(&self, request: DeviceRequest, operations: Vec<IoFuture<T>>) -> IoFuture<Vec<T>> {
        let spec = self.spec();
        Box::pin(async move {
            let results = ConcurrentOperations::new(operations).await;
            results.into_iter().collect::<Result<Vec<T>, Error>>().map_err(|error| {
                let kind = error.kind;
                request.error(kind, || spec, error.to_string())
            })
        })
    }
}

impl BlockDevice for StripeDevice {
    fn spec(&self) -> String {
        let devices: Vec<String> = self.devices.iter().map(|device| device.spec()).collect();
        let unit = match self.unit_bytes {
            STRIPE_UNIT_BYTES => String::new(),
            unit => format!(",unit={}", exact_size(unit)),
        };
        format!("stripe({}{unit})", devices.join(","))
    }

    fn geometry(&self) -> DeviceGeometry {
        let count = self.devices.len() as u32;
        let all = self.devices.iter().map(unpadded);
        let one = all.reduce(|a, b| DeviceGeometry {
            size_bytes: a.size_bytes.min(b.size_bytes),
            block_bytes: a.block_bytes.max(b.block_bytes),
            atomic_bytes: a.atomic_bytes.min(b.atomic_bytes),
            read_bytes_preferred: a.read_bytes_preferred.max(b.read_bytes_preferred),
            write_bytes_preferred: a.write_bytes_preferred.max(b.write_bytes_preferred),
            write_survives: a.write_survives.min(b.write_survives),
            flush_survives: a.flush_survives.min(b.flush_survives),
        });
        let one = one.expect("a stripe has at least one device");
        let units = one.size_bytes / self.unit_bytes;
        let preferred = |bytes: u32| bytes.saturating_mul(count) / one.block_bytes * one.block_bytes;
        DeviceGeometry {
            size_bytes: units * self.unit_bytes * u64::from(count),
            read_bytes_preferred: preferred(one.read_bytes_preferred),
            write_bytes_preferred: preferred(one.write_bytes_preferred),
            ..one
        }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let geometry = self.geometry();
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &geometry);
        let request = match checked {
            Ok(request) => request,
            Err(error) => return ready(Err(error)),
        };
        let map = self.map();
        if let Some(part) = map.only(offset, request.length) {
            let read = self.devices[part.device].read_at(part.offset, buffers, context);
            let all = self.together(request, vec![read]);
            return Box::pin(async move { Ok(all.await?.pop().unwrap_or_default()) });
        }
        let parts = map.parts(offset, request.length);
        let reads = parts.iter().map(|part| {
            let buffer = vec![Buffer::zeroed(part.length as usize)];
            self.devices[part.device].read_at(part.offset, buffer, context)
        });
        let reads = self.together(request, reads.collect());
        Box::pin(async move {
            let read = reads.await?;
            let sources: Vec<&[u8]> =
                read.iter().filter_map(|buffers| buffers.first()).map(|buffer| &**buffer).collect();
            map.for_each_piece(offset, &parts, buffers.iter_mut(), |into, part, range| {
                into.copy_from_slice(&sources[part][range]);
            });
            Ok(buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        mut buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let geometry = self.geometry();
        let checked =
            DeviceRequest::vectored(DeviceOperation::Write, offset, &buffers, context, || self.spec(), &geometry);
        let request = match checked {
            Ok(request) => request,
            Err(error) => return ready(Err(error)),
        };
        let map = self.map();
        if let Some(part) = map.only(offset, request.length) {
            let written = self.devices[part.device].write_at(part.offset, buffers, flags, context);
            let all = self.together(request, vec![written]);
            return Box::pin(async move { Ok(all.await?.pop().unwrap_or_default()) });
        }
        let parts = map.parts(offset, request.length);
        let mut copies: Vec<Buffer> = parts.iter().map(|part| Buffer::zeroed(part.length as usize)).collect();
        map.for_each_piece(offset, &parts, buffers.iter_mut(), |from, part, range| {
            copies[part][range].copy_from_slice(from);
        });
        let writes = parts
            .iter()
            .zip(copies)
            .map(|(part, copy)| self.devices[part.device].write_at(part.offset, vec![copy], flags, context));
        let writes = self.together(request, writes.collect());
        Box::pin(async move { writes.await.map(|_| buffers) })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let flushes = self.devices.iter().map(|device| device.flush(context)).collect();
        let all = self.together(DeviceRequest::new(DeviceOperation::Flush, 0, 0, context), flushes);
        Box::pin(async move { all.await.map(drop) })
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Discard, offset, length, context) {
            Err(error) => ready(Err(error)),
            Ok(request) => {
                let all = self.ranged(request, |device, part| device.discard(part.offset, part.length, context));
                Box::pin(async move { all.await.map(drop) })
            }
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Err(error) => ready(Err(error)),
            Ok(request) => {
                let all = self.ranged(request, |device, part| device.write_zeroes(part.offset, part.length, context));
                Box::pin(async move { all.await.map(drop) })
            }
        }
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let request = match self.check(DeviceOperation::Allocation, offset, length, context) {
            Ok(request) => request,
            Err(error) => return ready(Err(error)),
        };
        let parts = self.map().parts(offset, length);
        let all = self.ranged(request, |device, part| device.allocation(part.offset, part.length, context));
        let map = self.map();
        Box::pin(async move {
            let found = all.await?;
            let mut list = ExtentList::new(offset, length);
            map.merge(offset, length, &parts, &found, &mut list);
            Ok(list.finish())
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        let row_bytes = self.unit_bytes * self.devices.len() as u64;
        let now = self.geometry().size_bytes;
        if size_bytes < now || !size_bytes.is_multiple_of(row_bytes) {
            let detail =
                format!("cannot become {size_bytes} bytes: it has {now}, grows only, by {row_bytes} at a time");
            return ready(Err(Error::new(DeviceErrorKind::Invalid, &self.spec(), DeviceOperation::Grow, detail)));
        }
        let each = size_bytes / self.devices.len() as u64;
        let smaller = self.devices.iter().filter(|device| device.geometry().size_bytes < each);
        let all = self.together(request, smaller.map(|device| device.grow(each)).collect());
        Box::pin(async move { all.await.map(drop) })
    }

    fn close(&self) -> IoFuture<()> {
        let closes = self.devices.iter().map(|device| device.close()).collect();
        let all = self.together(DeviceRequest::new(DeviceOperation::Close, 0, 0, IoContext::default()), closes);
        Box::pin(async move { all.await.map(drop) })
    }

    fn sector_bytes(&self) -> u32 {
        self.devices.iter().map(|device| device.sector_bytes()).max().unwrap_or(SECTOR_BYTES)
    }

    fn is_shared(&self) -> bool {
        self.devices.iter().any(|device| device.is_shared())
    }

    /// The range only identifies the lock, so each device locks the range with the same numbers. All of them have to,
    /// because each device has its own requests, which the lock outlasts.
    fn lock(&self, offset: u64, length: u64) -> IoFuture<bool> {
        let devices = self.devices.clone();
        Box::pin(async move {
            let mut all = true;
            for device in devices {
                all &= device.lock(offset, length).await?;
            }
            Ok(all)
        })
    }

    fn unlock(&self, offset: u64, length: u64) -> IoFuture<()> {
        let devices = self.devices.clone();
        Box::pin(async move {
            for device in devices {
                device.unlock(offset, length).await?;
            }
            Ok(())
        })
    }

    fn is_locked(&self, offset: u64, length: u64) -> IoFuture<bool> {
        let devices = self.devices.clone();
        Box::pin(async move {
            let mut any = false;
            for device in devices {
                any |= device.is_locked(offset, length).await?;
            }
            Ok(any)
        })
    }

    fn lock_domain(&self) -> Option<String> {
        let domains: Option<Vec<String>> = self.devices.iter().map(|device| device.lock_domain()).collect();
        domains.map(|domains| domains.join(","))
    }

    /// Every device that has the option changes it.
    fn set_option(&self, name: &str, value: &str) -> IoFuture<()> {
        let changes: Vec<_> = self.devices.iter().map(|device| device.set_option(name, value)).collect();
        let all = ConcurrentOperations::new(changes);
        Box::pin(async move {
            let changed = all.await;
            let is_done = changed.iter().any(Result::is_ok);
            let failed = |error: &Error| !(is_done && error.kind == DeviceErrorKind::Unsupported);
            changed.into_iter().filter_map(Result::err).find(failed).map_or(Ok(()), Err)
        })
    }

    fn figures(&self) -> Vec<DeviceCounters> {
        self.devices.iter().flat_map(|device| device.figures()).collect()
    }
}

/// Waits for several operations at once; all of them begin at the first poll.
struct ConcurrentOperations<T> {
    pending: Vec<Option<IoFuture<T>>>,
    results: Vec<Option<Result<T, Error>>>,
}

impl<T> ConcurrentOperations<T> {
    fn new(operations: Vec<IoFuture<T>>) -> ConcurrentOperations<T> {
        let results = operations.iter().map(|_| None).collect();
        ConcurrentOperations { pending: operations.into_iter().map(Some).collect(), results }
    }
}

// The fields need no pinning, because every operation has its own box.
impl<T> Unpin for ConcurrentOperations<T> {}

impl<T> Future for ConcurrentOperations<T> {
    type Output = Vec<Result<T, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let ConcurrentOperations { pending, results } = &mut *self;
        for (operation, result) in pending.iter_mut().zip(results.iter_mut()) {
            if let Some(running) = operation
                && let Poll::Ready(ended) = running.as_mut().poll(context)
            {
                (*operation, *result) = (None, Some(ended));
            }
        }
        match results.iter().all(Option::is_some) {
            true => Poll::Ready(results.iter_mut().filter_map(Option::take).collect()),
            false => Poll::Pending,
        }
    }
}
