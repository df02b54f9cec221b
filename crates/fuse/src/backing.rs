//! Files that the kernel reads and writes itself, without requests (passthrough, Linux 6.9 or later).
//!
//! Owns: the numbers under which the kernel knows such files. Promises: a failed call changes nothing. Leaves to others:
//! the rule of the kernel that all programs that have one file open must have it open in the same way.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::channel::FuseChannel;

/// `FUSE_DEV_IOC_BACKING_OPEN`.
const OPEN: libc::c_ulong = 0x4010_e501;
/// `FUSE_DEV_IOC_BACKING_CLOSE`.
const CLOSE: libc::c_ulong = 0x4004_e502;

/// The argument of the call that gives a file a number, as the kernel defines it.
#[repr(C)]
struct BackingMap {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

/// The numbers of backing files of a connection.
#[derive(Debug)]
pub struct BackingFiles {
    channel: FuseChannel,
}

impl BackingFiles {
    /// Makes a value that uses a descriptor of the connection. The file system must have agreed on
    /// [`PASSTHROUGH`](crate::features::PASSTHROUGH).
    pub fn new(channel: FuseChannel) -> BackingFiles {
        BackingFiles { channel }
    }

    /// Gives a regular file a number, for [`ReplyHandle::opened_backed`](crate::ReplyHandle::opened_backed). The descriptor may be
    /// one with `O_PATH`, and may be closed afterwards.
    ///
    /// *Errors*: those of the kernel: `EPERM` without the right to administer the system; `ELOOP` if the file is in a
    /// stacked file system, such as overlayfs.
    pub fn open(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let map = BackingMap { descriptor: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the kernel only reads the layout that the argument points to, which outlives the call.
        let number = unsafe { libc::ioctl(self.channel.as_raw_fd(), OPEN, &raw const map) };
        u32::try_from(number).map_err(|_| io::Error::last_os_error())
    }

    /// Ends the use of a number. Files that are open by it stay open.
    ///
    /// *Errors*: the number is unknown.
    pub fn close(&self, number: u32) -> io::Result<()> {
        // SAFETY: the kernel only reads the number that the argument points to, and the number outlives the call.
        match unsafe { libc::ioctl(self.channel.as_raw_fd(), CLOSE, &raw const number) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_calls() {
        let size_in = |call: libc::c_ulong| (call >> 16 & 0x3fff) as usize;
        assert_eq!((size_of::<BackingMap>(), size_of::<u32>()), (size_in(OPEN), size_in(CLOSE)));
    }

    #[test]
    fn unmounted_connection_gives_no_number() {
        let Ok(channel) = FuseChannel::open(true) else { return println!("NOT RUN: /dev/fuse cannot be opened") };
        let (files, null) = (BackingFiles::new(channel), std::fs::File::open("/dev/null").unwrap());
        assert!(files.open(std::os::fd::AsFd::as_fd(&null)).is_err() && files.close(1).is_err());
    }
}
