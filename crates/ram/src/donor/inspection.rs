//! A read-only view of a device with redundancy, for checks: its blocks, and the address range of its metadata.
//!
//! Promises: it takes nothing from the owner, waits for nobody, and changes nothing. What it reads beside an owner is
//! of one moment within a request alone. Leaves to others: to see whether there is an owner, and what that means
//! (`check`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nectary_block::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, DeviceRequest, IoContext,
    IoFuture, SurvivalLevel, WriteFlags, exact_size,
};

use super::UNIT_BYTES;
use super::metadata::has_owner;
use super::tenant::Tenant;
use crate::format::{WINDOW_BYTES, WindowState};

/// The preferred length of requests; longer ones are not faster. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The memory of a device, for reading only.
pub(super) struct TenantInspection {
    pub tenant: Arc<Tenant>,
    /// The size of the device when the session began, in bytes.
    pub size_bytes: u64,
}

impl TenantInspection {
    fn refused<T: Send + 'static>(&self, operation: DeviceOperation, offset: u64, length: u64) -> IoFuture<T> {
        let request = DeviceRequest::new(operation, offset, length, IoContext::default());
        let detail = "this session only reads".to_owned();
        Box::pin(std::future::ready(Err(request.error(DeviceErrorKind::Unsupported, || self.spec(), detail))))
    }

    fn window(&self) -> Vec<u8> {
        let gate = self.tenant.gate();
        WindowState { is_owner: false, is_owned: has_owner(&gate), record: gate.record.clone() }.encode()
    }
}

impl BlockDevice for TenantInspection {
    fn spec(&self) -> String {
        format!("memory:{}", exact_size(self.size_bytes))
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.size_bytes + WINDOW_BYTES as u64,
            block_bytes: UNIT_BYTES,
            atomic_bytes: 512,
            read_bytes_preferred: PREFERRED_BYTES,
            write_bytes_preferred: PREFERRED_BYTES,
            write_survives: SurvivalLevel::Nothing,
            flush_survives: SurvivalLevel::Nothing,
        }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &self.geometry());
        let request = match checked {
            Ok(request) => request,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let end = self.size_bytes;
        let window = (offset + request.length > end).then(|| self.window());
        let mut at = offset;
        for buffer in &mut buffers {
            let inside = end.saturating_sub(at).min(buffer.len() as u64) as usize;
            self.tenant.read(at, &mut buffer[..inside]);
            if let Some(window) = &window
                && inside < buffer.len()
            {
                let from = (at + inside as u64 - end) as usize;
                let count = buffer.len() - inside;
                buffer[inside..].copy_from_slice(&window[from..from + count]);
            }
            at += buffer.len() as u64;
        }
        self.tenant.read_bytes.fetch_add(at - offset, Ordering::Relaxed);
        Box::pin(std::future::ready(Ok(buffers)))
    }

    fn write_at(&self, offset: u64, buffers: Vec<Buffer>, _: WriteFlags, _: IoContext) -> IoFuture<Vec<Buffer>> {
        self.refused(DeviceOperation::Write, offset, buffers.iter().map(|buffer| buffer.len() as u64).sum())
    }

    fn flush(&self, _: IoContext) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, offset: u64, length: u64, _: IoContext) -> IoFuture<()> {
        self.refused(DeviceOperation::Discard, offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _: IoContext) -> IoFuture<()> {
        self.refused(DeviceOperation::WriteZeroes, offset, length)
    }

    fn allocation(&self, offset: u64, length: u64, _: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        Box::pin(std::future::ready(Ok(vec![DeviceExtent { offset, length, mapped: true }])))
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        self.refused(DeviceOperation::Grow, 0, size_bytes)
    }

    fn close(&self) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
