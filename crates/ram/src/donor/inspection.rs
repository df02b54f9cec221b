//! A read-only view of a device with redundancy, for checks: its blocks, and the address range of its metadata.
//!
//! Promises: it takes nothing from the owner, waits for nobody, and changes nothing. What it reads beside an owner is
//! of one moment within a request alone. Leaves to others: to see whether there is an owner, and what that means
//! (`check`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nectary_block::{
    BlockDevice, Buffer, Context, ErrorKind, Extent, Geometry, IoFuture, Operation, Request, Survives, WriteFlags,
    exact_size,
};

use super::UNIT_BYTES;
use super::metadata::has_owner;
use super::tenant::Tenant;
use crate::format::{WINDOW_BYTES, WindowState};

/// The preferred length of requests; longer ones are not faster. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The memory of a device, for reading only.
pub(super) struct Inspection {
    pub tenant: Arc<Tenant>,
    /// The size of the device when the session began, in bytes.
    pub size_bytes: u64,
}

impl Inspection {
    fn refused<T: Send + 'static>(&self, operation: Operation, offset: u64, length: u64) -> IoFuture<T> {
        let request = Request::new(operation, offset, length, Context::default());
        let detail = "this session only reads".to_owned();
        Box::pin(std::future::ready(Err(request.error(ErrorKind::Unsupported, || self.spec(), detail))))
    }

    fn window(&self) -> Vec<u8> {
        let gate = self.tenant.gate();
        WindowState { is_owner: false, is_owned: has_owner(&gate), record: gate.record.clone() }.encode()
    }
}

impl BlockDevice for Inspection {
    fn spec(&self) -> String {
        format!("memory:{}", exact_size(self.size_bytes))
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            size_bytes: self.size_bytes + WINDOW_BYTES as u64,
            block_bytes: UNIT_BYTES,
            atomic_bytes: 512,
            read_bytes_preferred: PREFERRED_BYTES,
            write_bytes_preferred: PREFERRED_BYTES,
            write_survives: Survives::Nothing,
            flush_survives: Survives::Nothing,
        }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: Context) -> IoFuture<Vec<Buffer>> {
        let checked = Request::vectored(Operation::Read, offset, &buffers, context, || self.spec(), &self.geometry());
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

    fn write_at(&self, offset: u64, buffers: Vec<Buffer>, _: WriteFlags, _: Context) -> IoFuture<Vec<Buffer>> {
        self.refused(Operation::Write, offset, buffers.iter().map(|buffer| buffer.len() as u64).sum())
    }

    fn flush(&self, _: Context) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, offset: u64, length: u64, _: Context) -> IoFuture<()> {
        self.refused(Operation::Discard, offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _: Context) -> IoFuture<()> {
        self.refused(Operation::WriteZeroes, offset, length)
    }

    fn allocation(&self, offset: u64, length: u64, _: Context) -> IoFuture<Vec<Extent>> {
        Box::pin(std::future::ready(Ok(vec![Extent { offset, length, mapped: true }])))
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        self.refused(Operation::Grow, 0, size_bytes)
    }

    fn close(&self) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }
}
