//! One session's view of a device with redundancy on a donor: its blocks, followed by the window to its metadata.
//!
//! Owns: the exchange of the record, which makes a session the owner. Promises: comparing the record, storing a new one
//! and changing the owner are one atomic step. The step waits until all requests in progress have ended; after it, the
//! donor refuses requests of the previous owner. When the owner changes, the connections of all other sessions are
//! ended, even if their clients read no answers. Leaves to others: the encoding (`format::window`), and the blocks
//! (`device`), which only the owner's session may use.

use std::sync::{Arc, PoisonError};

use nectary_block::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, DeviceRequest, Error,
    IoContext, IoFuture, WriteFlags,
};

use super::Lives;
use super::device::TenantDevice;
use super::tenant::{SessionLife, TenantGate};
use crate::device::owner::planted::{Bug, planted};
use crate::format::{DonorRecord, RecordStamp, RecordSwap, WINDOW_BYTES, WindowState};

/// The memory of a device with redundancy, for one session.
pub(super) struct MetadataDevice {
    pub blocks: TenantDevice,
    pub life: Arc<SessionLife>,
    /// The lives of all sessions of the device.
    pub lives: Lives,
}

impl MetadataDevice {
    /// Returns the offset of the window, in bytes.
    fn window(&self) -> u64 {
        self.blocks.size_bytes
    }

    fn error(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        kind: DeviceErrorKind,
        detail: &str,
    ) -> Error {
        let request = DeviceRequest::new(operation, offset, length, IoContext::default());
        request.error(kind, || self.spec(), detail.to_owned())
    }

    fn refused<T: Send + 'static>(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        detail: &str,
    ) -> IoFuture<T> {
        Box::pin(std::future::ready(Err(self.error(operation, offset, length, DeviceErrorKind::Invalid, detail))))
    }

    /// Returns the state of the donor's metadata.
    fn state(&self) -> WindowState {
        let gate = self.blocks.tenant.gate();
        let is_owner = gate.holder == self.blocks.holder;
        WindowState { is_owner, is_owned: !is_owner && has_owner(&gate), record: gate.record.clone() }
    }

    fn swap(&self, bytes: &[u8]) -> Result<(), (DeviceErrorKind, String)> {
        let swap = RecordSwap::decode(bytes).map_err(|error| (DeviceErrorKind::Invalid, error.to_string()))?;
        let mut gate = self.blocks.tenant.gate_alone();
        if RecordStamp::of(&gate.record) != swap.expected {
            return Err((DeviceErrorKind::Busy, "the donor has a record with another stamp".to_owned()));
        }
        gate.record = swap.record.to_vec();
        let tenant = &self.blocks.tenant;
        if !tenant.keeps_sums() && DonorRecord::decode(swap.record).is_ok_and(|record| !record.geometry.is_log()) {
            tenant.keep_sums();
        }
        if gate.holder != self.blocks.holder {
            (gate.holder, gate.owner) = (self.blocks.holder, Arc::downgrade(&self.life));
            let lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
            for life in lives.iter().filter_map(|life| life.upgrade()) {
                if !Arc::ptr_eq(&life, &self.life) && !planted(Bug::OldOwnerServed) {
                    life.ended.request();
                }
            }
        }
        Ok(())
    }
}

/// Whether a client has the device, with a living connection. A client that has detached is no owner, even if its
/// connection is not closed yet.
pub(super) fn has_owner(gate: &TenantGate) -> bool {
    let is_alive = gate.owner.upgrade().is_some_and(|owner| !owner.ended.is_requested());
    is_alive && RecordStamp::of(&gate.record).client != 0
}

/// Returns the bytes of all buffers; most requests have one buffer.
fn joined(buffers: &[Buffer]) -> std::borrow::Cow<'_, [u8]> {
    match buffers {
        [only] => std::borrow::Cow::Borrowed(only),
        several => std::borrow::Cow::Owned(several.iter().flat_map(|buffer| buffer.iter().copied()).collect()),
    }
}

const PARTLY: &str = "the window of the metadata is read whole, written from its beginning, and nothing else";

impl BlockDevice for MetadataDevice {
    fn spec(&self) -> String {
        self.blocks.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        let blocks = self.blocks.geometry();
        DeviceGeometry { size_bytes: blocks.size_bytes + WINDOW_BYTES as u64, ..blocks }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        match offset.saturating_add(length) <= self.window() {
            true => self.blocks.read_at(offset, buffers, context),
            false if (offset, length) != (self.window(), WINDOW_BYTES as u64) => {
                self.refused(DeviceOperation::Read, offset, length, PARTLY)
            }
            false => {
                let state = self.state().encode();
                let mut rest = &state[..];
                for buffer in &mut buffers {
                    let (part, others) = rest.split_at(buffer.len());
                    buffer.copy_from_slice(part);
                    rest = others;
                }
                Box::pin(std::future::ready(Ok(buffers)))
            }
        }
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        match offset.saturating_add(length) <= self.window() {
            true => self.blocks.write_at(offset, buffers, flags, context),
            false if offset != self.window() => self.refused(DeviceOperation::Write, offset, length, PARTLY),
            false => {
                let swapped = self.swap(&joined(&buffers));
                let refused = |(kind, detail): (DeviceErrorKind, String)| {
                    self.error(DeviceOperation::Write, offset, length, kind, &detail)
                };
                Box::pin(std::future::ready(swapped.map(|()| buffers).map_err(refused)))
            }
        }
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.blocks.flush(context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.blocks.discard(offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.blocks.write_zeroes(offset, length, context)
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        if offset.saturating_add(length) > self.window() {
            return Box::pin(std::future::ready(Ok(vec![DeviceExtent { offset, length, mapped: true }])));
        }
        self.blocks.allocation(offset, length, context)
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        if size_bytes == self.geometry().size_bytes {
            return Box::pin(std::future::ready(Ok(())));
        }
        self.refused(DeviceOperation::Grow, 0, size_bytes, "a device on a donor grows for sessions that begin later")
    }

    fn close(&self) -> IoFuture<()> {
        self.blocks.close()
    }
}
