//! The checks that every device makes before an operation, and the limits of one request.
//!
//! Owns: [`DeviceRequest`], and the checks of alignment, bounds and deadline that the contract requires. So all devices
//! refuse the same requests with the same words.

use std::time::Instant;

use crate::buffer::Buffer;
use crate::device::{DeviceGeometry, IoContext, IoFuture};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};

/// The maximum number of buffers of one read or write (the kernel's limit for `preadv` and `pwritev`).
pub const BUFFERS_MAX: usize = 1024;

/// The maximum number of bytes of one read or write.
pub const OPERATION_BYTES_MAX: u64 = 1 << 30;

/// The parameters of an operation, before they are checked.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRequest {
    /// The kind of operation.
    pub operation: DeviceOperation,
    /// The offset of the operation's first byte; 0 for a flush and a growth.
    pub offset: u64,
    /// The length of the operation; 0 for a flush, and the new size for a growth. *Units*: bytes.
    pub length: u64,
    /// Whether the operation is durable when it completes ([`WriteFlags::fua`](crate::WriteFlags::fua)).
    pub fua: bool,
    /// The time at which the caller gives up.
    pub deadline: Option<Instant>,
}

impl DeviceRequest {
    /// Describes an operation without [`WriteFlags::fua`](crate::WriteFlags::fua).
    pub fn new(operation: DeviceOperation, offset: u64, length: u64, context: IoContext) -> DeviceRequest {
        DeviceRequest { operation, offset, length, fua: false, deadline: context.deadline }
    }

    /// Checks the alignment, the bounds and the deadline of a request.
    pub fn check(&self, spec: impl FnOnce() -> String, geometry: &DeviceGeometry) -> Result<(), Error> {
        let block = u64::from(geometry.block_bytes);
        let detail = if !self.offset.is_multiple_of(block) || !self.length.is_multiple_of(block) {
            format!("offset and length must be multiples of {block} bytes")
        } else if self.offset.checked_add(self.length).is_none_or(|end| end > geometry.size_bytes) {
            format!("it leaves the device, which has {} bytes", geometry.size_bytes)
        } else if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(self.error(
                DeviceErrorKind::TimedOut,
                spec,
                "the deadline had passed before it began".to_owned(),
            ));
        } else {
            return Ok(());
        };
        Err(self.error(DeviceErrorKind::Invalid, spec, detail))
    }

    /// Checks a vectored request and returns its parameters.
    pub fn vectored(
        operation: DeviceOperation,
        offset: u64,
        buffers: &[Buffer],
        context: IoContext,
        spec: impl Fn() -> String,
        geometry: &DeviceGeometry,
    ) -> Result<DeviceRequest, Error> {
        let request = DeviceRequest::new(operation, offset, total(buffers), context);
        let block = geometry.block_bytes as usize;
        if buffers.len() > BUFFERS_MAX {
            let detail = format!("{} buffers, at most {BUFFERS_MAX} are taken", buffers.len());
            return Err(request.error(DeviceErrorKind::Invalid, spec, detail));
        }
        if request.length > OPERATION_BYTES_MAX {
            let detail = format!("more than {OPERATION_BYTES_MAX} bytes in one operation");
            return Err(request.error(DeviceErrorKind::Invalid, spec, detail));
        }
        if let Some(buffer) = buffers.iter().find(|buffer| !buffer.len().is_multiple_of(block)) {
            let detail = format!("a buffer of {} bytes is not a multiple of {block} bytes", buffer.len());
            return Err(request.error(DeviceErrorKind::Invalid, spec, detail));
        }
        request.check(spec, geometry)?;
        Ok(request)
    }

    /// Makes an error about this request.
    pub fn error(&self, kind: DeviceErrorKind, spec: impl FnOnce() -> String, detail: String) -> Error {
        Error::new(kind, &spec(), self.operation, detail).at(self.offset, self.length)
    }
}

/// The total length of all buffers. *Units*: bytes.
pub(crate) fn total(buffers: &[Buffer]) -> u64 {
    buffers.iter().fold(0, |sum, buffer| sum.saturating_add(buffer.len() as u64))
}

/// A future that is ready with `result`.
pub(crate) fn ready<T: Send + 'static>(result: Result<T, Error>) -> IoFuture<T> {
    Box::pin(std::future::ready(result))
}

/// Waits for `work` until `deadline`. If the deadline passes, `work` is dropped; an operation that has begun continues
/// without its future.
pub(crate) fn within<T: Send + 'static>(
    deadline: Option<Instant>,
    work: IoFuture<T>,
    late: impl FnOnce() -> Error + Send + 'static,
) -> IoFuture<T> {
    match deadline {
        None => work,
        Some(deadline) => Box::pin(async move {
            match tokio::time::timeout_at(deadline.into(), work).await {
                Ok(result) => result,
                Err(_) => Err(late()),
            }
        }),
    }
}
