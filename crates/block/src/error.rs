//! The errors of a block device. Each error names the device and the offset.
//!
//! Owns: the one error type of the crate. Errors that need different remedies have different kinds.

use std::fmt;

/// The kind of a failure. Each kind has its own remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceErrorKind {
    /// The named device, file or host does not exist.
    Absent,
    /// Another process has the device open.
    Busy,
    /// A mistake of the caller: the request is outside the device or misaligned, or the SPEC is not understood.
    Invalid,
    /// The device cannot do this.
    Unsupported,
    /// There is no room left: on the device, on its file system, or within a limit.
    Full,
    /// The deadline passed before the device answered.
    TimedOut,
    /// The device failed the operation.
    Io,
    /// An earlier flush failed, or writes were lost; the device refuses further writes, because it could not promise
    /// that they are stored.
    Latched,
}

impl DeviceErrorKind {
    /// The word that names this kind in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceErrorKind::Absent => "not found",
            DeviceErrorKind::Busy => "in use",
            DeviceErrorKind::Invalid => "invalid request",
            DeviceErrorKind::Unsupported => "unsupported",
            DeviceErrorKind::Full => "no space left",
            DeviceErrorKind::TimedOut => "timed out",
            DeviceErrorKind::Io => "I/O error",
            DeviceErrorKind::Latched => "stopped after an earlier failure",
        }
    }
}

/// An operation on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceOperation {
    /// Opening or constructing the device.
    Open,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// A write of zeroes.
    WriteZeroes,
    /// A query of allocated ranges.
    Allocation,
    /// A growth of the device.
    Grow,
    /// The end of the use of the device.
    Close,
}

impl DeviceOperation {
    /// The word that names this operation in messages and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceOperation::Open => "open",
            DeviceOperation::Read => "read",
            DeviceOperation::Write => "write",
            DeviceOperation::Flush => "flush",
            DeviceOperation::Discard => "discard",
            DeviceOperation::WriteZeroes => "write zeroes",
            DeviceOperation::Allocation => "allocation",
            DeviceOperation::Grow => "grow",
            DeviceOperation::Close => "close",
        }
    }
}

/// A failed operation: which operation failed, on which device, at which offset, and why.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    /// The kind, which decides the remedy.
    pub kind: DeviceErrorKind,
    /// The device's SPEC.
    pub device: String,
    /// The operation that failed.
    pub operation: DeviceOperation,
    /// The offset of the operation on the device; 0 if it has none. *Units*: bytes.
    pub offset: u64,
    /// The length of the operation; 0 if it has none. *Units*: bytes.
    pub length: u64,
    /// The expected and the found result in words, and the remedy if it is known.
    pub detail: String,
}

impl Error {
    /// Makes an error without offset and length.
    pub fn new(kind: DeviceErrorKind, device: &str, operation: DeviceOperation, detail: impl Into<String>) -> Error {
        Error { kind, device: device.to_owned(), operation, offset: 0, length: 0, detail: detail.into() }
    }

    /// Sets offset and length.
    pub fn at(mut self, offset: u64, length: u64) -> Error {
        self.offset = offset;
        self.length = length;
        self
    }

    /// Makes an error from an error of the operating system. The kind follows from the system's error number.
    pub fn from_os(error: &std::io::Error, device: &str, operation: DeviceOperation) -> Error {
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => DeviceErrorKind::Absent,
            Some(libc::EBUSY | libc::EAGAIN) => DeviceErrorKind::Busy,
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => DeviceErrorKind::Full,
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => DeviceErrorKind::Unsupported,
            Some(libc::EINVAL) => DeviceErrorKind::Invalid,
            Some(libc::ETIMEDOUT) => DeviceErrorKind::TimedOut,
            _ => DeviceErrorKind::Io,
        };
        Error::new(kind, device, operation, error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.operation.as_str())?;
        if self.length > 0 {
            write!(f, " of {} bytes at offset {}", self.length, self.offset)?;
        }
        write!(f, ": {}", self.kind.as_str())?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
