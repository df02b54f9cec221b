//! A FUSE mount with one file that is attached nowhere.
//!
//! Owns: the calls that make it. Why so: the mount has no place in any directory, so nobody can come across it, nothing is
//! left of it when this process dies, and no mount point has to be found, made or cleaned. It lives as long as somebody
//! has the file open: the loop device. The file has a name that no other has, since tools take loop devices on files of
//! the same path for the same.

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;

use crate::Error;

const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
/// No set-user-id, no devices, no programs.
const MOUNT_ATTRIBUTES: libc::c_uint = 2 | 4 | 8;

/// The kernel's end of the protocol, and the mount that it serves.
pub struct Mount {
    mount: OwnedFd,
}

/// Opens the kernel's end of the protocol; nothing is served before [`Mount::new`].
///
/// *Errors*: [`Error::NoFuse`], [`Error::NotPermitted`].
pub fn open_channel() -> Result<File, Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    let opened = options.open("/dev/fuse");
    opened.map_err(|source| Error::opening("/dev/fuse", source, |source| Error::NoFuse { source }))
}

impl Mount {
    /// Mounts what `channel` serves. The kernel's first request waits in `channel` afterwards.
    ///
    /// *Errors*: [`Error::NotPermitted`] without the right to mount.
    pub fn new(channel: &File) -> Result<Mount, Error> {
        let context = fsopen().map_err(|source| Error::os("fsopen of a FUSE file system", source))?;
        let options: [(&CStr, String); 5] = [
            (c"source", "nectary-attach".to_owned()),
            (c"fd", channel.as_raw_fd().to_string()),
            (c"rootmode", "40500".to_owned()),
            (c"user_id", "0".to_owned()),
            (c"group_id", "0".to_owned()),
        ];
        for (key, value) in options {
            let value = CString::new(value).expect("numbers and names have no zero bytes");
            config(&context, FSCONFIG_SET_STRING, Some((key, &value)))
                .map_err(|source| Error::os("fsconfig of a FUSE file system", source))?;
        }
        config(&context, FSCONFIG_CMD_CREATE, None)
            .map_err(|source| Error::os("mount of a FUSE file system", source))?;
        let mount = fsmount(&context).map_err(|source| Error::os("fsmount of a FUSE file system", source))?;
        Ok(Mount { mount })
    }

    /// Opens the file by a name of its own; somebody has to serve the channel meanwhile.
    pub fn open(&self, name: &str, read_only: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(libc::O_DIRECT);
        let file = options.open(format!("/proc/self/fd/{}/{name}", self.mount.as_raw_fd()))?;
        // The kernel asks for the size now; the loop device may take what is known already.
        file.metadata()?;
        Ok(file)
    }
}

fn fsopen() -> io::Result<OwnedFd> {
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), FSOPEN_CLOEXEC) })
}

fn fsmount(context: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes an open descriptor and numbers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, MOUNT_ATTRIBUTES) })
}

fn config(context: &OwnedFd, command: libc::c_uint, pair: Option<(&CStr, &CStr)>) -> io::Result<()> {
    let (key, value) = pair.map_or((std::ptr::null(), std::ptr::null()), |(key, value)| (key.as_ptr(), value.as_ptr()));
    // SAFETY: key and value are null or strings that end with a zero byte and outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0 as libc::c_long) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}
