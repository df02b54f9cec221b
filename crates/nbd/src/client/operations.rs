//! Operations that can need more than one command: flushes, discards and zeroing of ranges, long reads and writes, and
//! queries of allocated ranges.
//!
//! Promises: an operation has a limited number of pieces in flight, and succeeds only if all of its pieces succeed.

use std::collections::VecDeque;
use std::sync::Arc;

use nectary_block::{Buffer, DEVICE_BYTES_MAX, DeviceErrorKind, DeviceExtent, DeviceRequest, Error};

use super::connection::{ClientCommand, LONG_RANGE_BYTES, RANGE_BYTES};
use super::extents::ExtentList;
use super::pool::NbdDeviceState;
use super::replies::CommandOutcome;
use crate::wire::command_flag::{FAST_ZERO, FUA};
use crate::wire::{flag, request};

/// The size of the pieces in which zeroes are written as data, if the server has no command for zeroes. *Units*: bytes.
const ZEROES_BYTES: u64 = 1 << 20;
/// The maximum number of pieces of a long operation that are in flight at once.
const PIECES_IN_FLIGHT: usize = 4;

/// Makes all writes that were answered before the call durable.
pub(super) async fn flush(inner: &Arc<NbdDeviceState>, request: &DeviceRequest) -> Result<(), Error> {
    let covered =
        inner.journal.begin_flush().map_err(|reason| inner.error(request, DeviceErrorKind::Latched, &reason))?;
    if inner.has(flag::SEND_FLUSH) {
        let command =
            ClientCommand { flags: 0, command: request::FLUSH, offset: 0, length: 0, buffers: Vec::new(), write: None };
        // If it fails, or the connection is lost, the journal knows whether anything may be lost with it.
        inner.outcome(request, inner.send(command).end(inner).await)?;
    }
    inner.journal.flushed(covered).map_err(|reason| inner.error(request, DeviceErrorKind::Latched, &reason))
}

/// The longest range of one discard or zeroing. *Units*: bytes.
fn range_bytes(inner: &NbdDeviceState) -> u64 {
    if inner.agreed.headers.is_extended() { LONG_RANGE_BYTES } else { RANGE_BYTES }
}

/// The longest range of one quick command: a query of allocated ranges, or a zeroing that has to be quick. *Units*:
/// bytes.
pub(super) fn quick_bytes(inner: &NbdDeviceState) -> u64 {
    if inner.agreed.headers.is_extended() { DEVICE_BYTES_MAX } else { RANGE_BYTES }
}

/// Sends a command without data over a range, piece by piece.
pub(super) async fn ranges(
    inner: &Arc<NbdDeviceState>,
    request: &DeviceRequest,
    command: u16,
    flags: u16,
) -> Result<(), Error> {
    let (mut offset, end) = (request.offset, request.offset + inner.stored(request));
    let step = if flags & FAST_ZERO == 0 { range_bytes(inner) } else { quick_bytes(inner) };
    while offset < end {
        let length = (end - offset).min(step);
        inner.check_writable(request)?;
        let sending =
            inner.send(ClientCommand { flags, command, offset, length, buffers: Vec::new(), write: Some(false) });
        inner.outcome(request, sending.end(inner).await)?;
        offset += length;
    }
    Ok(())
}

/// Writes zeroes as data, for a server that has no command for zeroes.
pub(super) async fn zeroes(inner: &Arc<NbdDeviceState>, request: &DeviceRequest) -> Result<(), Error> {
    let (mut offset, end) = (request.offset, request.offset + inner.stored(request));
    let step = ZEROES_BYTES.min(inner.payload_bytes_max);
    let mut buffers = vec![Buffer::zeroed(step.min(request.length) as usize)];
    while offset < end {
        let length = (end - offset).min(step);
        buffers.iter_mut().for_each(|buffer| buffer.set_len(length as usize));
        inner.check_writable(request)?;
        let sending = inner.send(ClientCommand {
            flags: 0,
            command: request::WRITE,
            offset,
            length,
            buffers,
            write: Some(false),
        });
        buffers = inner.outcome(request, sending.end(inner).await)?.1;
        offset += length;
    }
    Ok(())
}

/// The pieces of an operation, each no longer than the server accepts.
fn pieces(inner: &NbdDeviceState, request: &DeviceRequest) -> impl Iterator<Item = (u64, usize)> + use<> {
    let (offset, length, step) = (request.offset, inner.stored(request), inner.payload_bytes_max);
    (0..length).step_by(step as usize).map(move |at| (offset + at, step.min(length - at) as usize))
}

pub(super) async fn long_read(
    inner: Arc<NbdDeviceState>,
    request: DeviceRequest,
    mut buffers: Vec<Buffer>,
) -> Result<Vec<Buffer>, Error> {
    let mut pieces = pieces(&inner, &request);
    let mut sent = VecDeque::new();
    let mut into = BufferCursor::default();
    loop {
        while sent.len() < PIECES_IN_FLIGHT
            && let Some((offset, length)) = pieces.next()
        {
            let buffers = vec![Buffer::zeroed(length)];
            let length = length as u64;
            sent.push_back(inner.send(ClientCommand {
                flags: 0,
                command: request::READ,
                offset,
                length,
                buffers,
                write: None,
            }));
        }
        let Some(sending) = sent.pop_front() else {
            into.zero_rest(&mut buffers);
            return Ok(buffers);
        };
        let (_, found) = inner.outcome(&request, sending.end(&inner).await)?;
        found.iter().for_each(|piece| into.fill(&mut buffers, piece));
    }
}

pub(super) async fn long_write(
    inner: Arc<NbdDeviceState>,
    request: DeviceRequest,
    buffers: Vec<Buffer>,
) -> Result<Vec<Buffer>, Error> {
    let fua = request.fua && inner.has(flag::SEND_FUA);
    if inner.stored(&request) < request.length && has_bytes_after(&buffers, inner.stored(&request)) {
        let detail =
            format!("the export has {} bytes; the rest of its last block takes nothing but zeroes", inner.exact_bytes);
        return Err(inner.error(&request, DeviceErrorKind::Full, &detail));
    }
    let mut pieces = pieces(&inner, &request);
    let mut sent = VecDeque::new();
    let mut from = BufferCursor::default();
    loop {
        while sent.len() < PIECES_IN_FLIGHT
            && let Some((offset, length)) = pieces.next()
        {
            let mut piece = Buffer::zeroed(length);
            from.copy(&buffers, &mut piece);
            inner.check_writable(&request)?;
            let (flags, length) = (if fua { FUA } else { 0 }, length as u64);
            let command = ClientCommand {
                flags,
                command: request::WRITE,
                offset,
                length,
                buffers: vec![piece],
                write: Some(fua),
            };
            sent.push_back(inner.send(command));
        }
        let Some(sending) = sent.pop_front() else { break };
        inner.outcome(&request, sending.end(&inner).await)?;
    }
    if request.fua && !fua {
        flush(&inner, &request).await?;
    }
    Ok(buffers)
}

/// Whether something else than zeroes follows the first `stored` bytes of the buffers.
fn has_bytes_after(buffers: &[Buffer], stored: u64) -> bool {
    let mut skip = usize::try_from(stored).unwrap_or(usize::MAX);
    buffers.iter().any(|buffer| {
        let start = skip.min(buffer.len());
        skip -= start;
        buffer[start..].iter().any(|&byte| byte != 0)
    })
}

/// A position in a list of buffers.
#[derive(Default)]
struct BufferCursor {
    index: usize,
    at: usize,
}

impl BufferCursor {
    fn next(&mut self, length: usize, wanted: usize) -> std::ops::Range<usize> {
        let start = self.at;
        self.at += wanted.min(length - start);
        start..self.at
    }

    /// Copies all bytes of `piece` into the buffers.
    fn fill(&mut self, buffers: &mut [Buffer], mut piece: &[u8]) {
        while let Some(buffer) = buffers.get_mut(self.index).filter(|_| !piece.is_empty()) {
            let range = self.next(buffer.len(), piece.len());
            let (now, rest) = piece.split_at(range.len());
            buffer[range].copy_from_slice(now);
            piece = rest;
            if self.at == buffer.len() {
                *self = BufferCursor { index: self.index + 1, at: 0 };
            }
        }
    }

    /// Zeroes all buffers from this position on.
    fn zero_rest(&self, buffers: &mut [Buffer]) {
        let mut start = self.at;
        for buffer in buffers.iter_mut().skip(self.index) {
            buffer[start..].fill(0);
            start = 0;
        }
    }

    /// Fills all of `piece` with bytes from the buffers.
    fn copy(&mut self, buffers: &[Buffer], mut piece: &mut [u8]) {
        while let Some(buffer) = buffers.get(self.index).filter(|_| !piece.is_empty()) {
            let range = self.next(buffer.len(), piece.len());
            let (now, rest) = piece.split_at_mut(range.len());
            now.copy_from_slice(&buffer[range]);
            piece = rest;
            if self.at == buffer.len() {
                *self = BufferCursor { index: self.index + 1, at: 0 };
            }
        }
    }
}

pub(super) async fn allocation(inner: Arc<NbdDeviceState>, request: DeviceRequest) -> Result<Vec<DeviceExtent>, Error> {
    let stored = inner.stored(&request);
    let mut list = ExtentList::new(request.offset, stored, inner.geometry.block_bytes);
    while inner.agreed.allocation.is_some() && !list.is_full() {
        let Some((offset, length)) = list.left() else { break };
        let length = length.min(quick_bytes(&inner));
        let command = ClientCommand {
            flags: 0,
            command: request::BLOCK_STATUS,
            offset,
            length,
            buffers: Vec::new(),
            write: None,
        };
        let (outcome, _) = inner.outcome(&request, inner.send(command).end(&inner).await)?;
        if let CommandOutcome::Status(extents) = outcome {
            list.add(&extents);
        }
    }
    Ok(list.finish(request.length - stored))
}
