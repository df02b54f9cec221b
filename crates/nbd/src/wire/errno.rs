//! The error values of replies, and the mapping between them and the errors of a device.

use nectary_block::{DeviceErrorKind, Error};

pub(crate) const EPERM: u32 = 1;
pub(crate) const EIO: u32 = 5;
pub(crate) const ENOMEM: u32 = 12;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const ENOSPC: u32 = 28;
pub(crate) const EOVERFLOW: u32 = 75;
pub(crate) const ENOTSUP: u32 = 95;
pub(crate) const ESHUTDOWN: u32 = 108;

/// The error value for a failure of a device.
pub(crate) fn of_device(error: &Error) -> u32 {
    match error.kind {
        DeviceErrorKind::Full => ENOSPC,
        // The protocol reserves ENOTSUP for requests of fast zeroes.
        DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported => EINVAL,
        // `Busy` means that another process uses the device.
        DeviceErrorKind::Busy => EPERM,
        DeviceErrorKind::Absent | DeviceErrorKind::TimedOut | DeviceErrorKind::Io | DeviceErrorKind::Latched => EIO,
    }
}

/// The kind of error for a server's error value. Unknown values count as EINVAL, as the protocol document requires.
pub(crate) fn to_kind(value: u32) -> DeviceErrorKind {
    match value {
        ENOSPC => DeviceErrorKind::Full,
        EIO | ENOMEM | ESHUTDOWN => DeviceErrorKind::Io,
        EPERM | ENOTSUP => DeviceErrorKind::Unsupported,
        _ => DeviceErrorKind::Invalid,
    }
}

/// The name of an error value.
pub(crate) fn name(value: u32) -> &'static str {
    match value {
        EPERM => "EPERM",
        EIO => "EIO",
        ENOMEM => "ENOMEM",
        EINVAL => "EINVAL",
        ENOSPC => "ENOSPC",
        EOVERFLOW => "EOVERFLOW",
        ENOTSUP => "ENOTSUP",
        ESHUTDOWN => "ESHUTDOWN",
        _ => "an unknown error",
    }
}
