//! One session's view of a device on a donor, in the form that an export needs.
//!
//! Owns: the checks of a request, and the refusal of an outdated session. Every operation is already complete when the
//! call returns its future. Nothing survives the end of the donor's process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, DeviceRequest, Error,
    IoContext, IoFuture, SurvivalLevel, WriteFlags, exact_size,
};

use super::BLOCK_BYTES;
use super::tenant::{SessionHolder, Tenant};

/// The preferred length of requests; longer ones are not faster. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The memory of a device, for one session.
pub(super) struct TenantDevice {
    pub tenant: Arc<Tenant>,
    pub holder: SessionHolder,
    /// The number of requests to the device.
    pub requests: Arc<AtomicU64>,
    /// The unit of offsets and lengths, in bytes.
    pub unit_bytes: u32,
    /// The size of the device when the session began, in bytes.
    pub size_bytes: u64,
}

impl TenantDevice {
    /// Does one request, if the session may use the device.
    fn run<T: Send + 'static>(
        &self,
        checked: Result<DeviceRequest, Error>,
        work: impl FnOnce(&Tenant) -> T,
    ) -> IoFuture<T> {
        let result = checked.and_then(|request| {
            self.requests.fetch_add(1, Ordering::Relaxed);
            match self.tenant.pass(self.holder) {
                Some(_pass) => Ok(work(&self.tenant)),
                None => {
                    let (kind, detail) = match self.tenant.has_metadata() {
                        true => (DeviceErrorKind::Busy, "this session is not the owner of the device"),
                        false => (DeviceErrorKind::Io, "a later session of this device has begun: connect again"),
                    };
                    Err(request.error(kind, || self.spec(), detail.to_owned()))
                }
            }
        });
        Box::pin(std::future::ready(result))
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

    fn zero(&self, operation: DeviceOperation, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.run(self.check(operation, offset, length, context), |tenant| {
            tenant.changed_bytes.fetch_add(length, Ordering::Relaxed);
            tenant.zero(offset, length);
        })
    }
}

impl BlockDevice for TenantDevice {
    fn spec(&self) -> String {
        format!("memory:{}", exact_size(self.size_bytes))
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.size_bytes,
            block_bytes: self.unit_bytes,
            atomic_bytes: self.unit_bytes.min(512),
            read_bytes_preferred: PREFERRED_BYTES,
            write_bytes_preferred: PREFERRED_BYTES,
            write_survives: SurvivalLevel::Nothing,
            flush_survives: SurvivalLevel::Nothing,
        }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &self.geometry());
        self.run(checked, |tenant| {
            let mut at = offset;
            for buffer in &mut buffers {
                tenant.read(at, buffer);
                at += buffer.len() as u64;
            }
            tenant.read_bytes.fetch_add(at - offset, Ordering::Relaxed);
            buffers
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        _flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let checked = DeviceRequest::vectored(
            DeviceOperation::Write,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        );
        self.run(checked, |tenant| {
            let mut at = offset;
            for buffer in &buffers {
                tenant.write(at, buffer);
                at += buffer.len() as u64;
            }
            tenant.changed_bytes.fetch_add(at - offset, Ordering::Relaxed);
            buffers
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.run(self.check(DeviceOperation::Flush, 0, 0, context), |_| ())
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.zero(DeviceOperation::Discard, offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.zero(DeviceOperation::WriteZeroes, offset, length, context)
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        self.run(self.check(DeviceOperation::Allocation, offset, length, context), |tenant| {
            let block = u64::from(BLOCK_BYTES);
            let (start, end) = (offset / block * block, (offset + length).next_multiple_of(block));
            let inside = |extent: DeviceExtent| {
                let (first, last) = (extent.offset.max(offset), (extent.offset + extent.length).min(offset + length));
                DeviceExtent { offset: first, length: last - first, ..extent }
            };
            tenant.extents(start, end - start).into_iter().map(inside).collect()
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let now = self.size_bytes;
        let (kind, detail) = match size_bytes {
            bytes if bytes == now => return Box::pin(std::future::ready(Ok(()))),
            bytes if bytes < now || !bytes.is_multiple_of(u64::from(BLOCK_BYTES)) => {
                (DeviceErrorKind::Invalid, format!("it has {now} bytes, grows only, by blocks of {BLOCK_BYTES}"))
            }
            _ => (DeviceErrorKind::Unsupported, "a device on a donor grows for sessions that begin later".to_owned()),
        };
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        let error = request.error(kind, || self.spec(), detail);
        Box::pin(std::future::ready(Err(error)))
    }

    fn close(&self) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
