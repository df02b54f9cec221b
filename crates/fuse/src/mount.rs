//! A FUSE mount, which may be attached to a directory.
//!
//! Owns: the calls that make, change and end a mount. A mount that is not attached has no path, and exists as long as one of
//! its files is open. It leaves nothing behind when its process dies.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::channel::FuseChannel;
use crate::error::Error;

/// The longest time in which somebody who only looks at a mount (`df`, `stat`) may keep it from being unmounted, and the
/// pause between two attempts.
const LOOK_MAX: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_uint = 4;
const ATTRIBUTE_READ_ONLY: u64 = 1;
const ATTRIBUTE_NO_SET_USER_ID: u64 = 1 << 1;
const ATTRIBUTE_NO_DEVICES: u64 = 1 << 2;
const ATTRIBUTE_NO_PROGRAMS: u64 = 1 << 3;
const ATTRIBUTE_NO_ACCESS_TIMES: u64 = 1 << 4;

/// The options with which a file system is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MountOptions {
    /// The name of the source that lists of mounts show.
    pub source: String,
    /// The text that lists of mounts show after `fuse.`; may be empty.
    pub subtype: String,
    /// The kind and the permissions of the root, as in `st_mode`. The kernel uses them until it has requested the
    /// root's attributes.
    pub root_mode: u32,
    /// Whether all users may use the file system, and not only the user who mounts it.
    pub for_all: bool,
    /// Whether the kernel checks permissions from the mode and the owner of each file.
    pub default_permissions: bool,
    /// Whether the file system is mounted read-only.
    pub read_only: bool,
    /// Whether programs that are stored on the file system can be run.
    pub programs: bool,
    /// Whether set-user-ID and set-group-ID bits and capabilities of these programs take effect.
    pub set_user_id: bool,
    /// Whether device nodes can be opened.
    pub devices: bool,
    /// Whether lists of mounts show that reading changes no times of access. The file system itself changes these times.
    pub no_access_times: bool,
}

impl MountOptions {
    /// The attributes of the mount in the form of `mount_setattr`.
    fn attributes(&self) -> u64 {
        let attributes = [
            (self.read_only, ATTRIBUTE_READ_ONLY),
            (!self.set_user_id, ATTRIBUTE_NO_SET_USER_ID),
            (!self.devices, ATTRIBUTE_NO_DEVICES),
            (!self.programs, ATTRIBUTE_NO_PROGRAMS),
            (self.no_access_times, ATTRIBUTE_NO_ACCESS_TIMES),
        ];
        attributes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, attribute)| attribute).sum()
    }
}

/// A mount.
#[derive(Debug)]
pub struct FuseMount {
    mount: OwnedFd,
}

impl FuseMount {
    /// Mounts the file system that `channel` serves, without attaching it to a directory. Afterwards the kernel's first
    /// request can be read from `channel`.
    ///
    /// *Errors*: [`Error::NotPermitted`] if the process may not mount.
    pub fn new(channel: &FuseChannel, options: &MountOptions) -> Result<FuseMount, Error> {
        let failed = |source| Error::os("mounting a FUSE file system", source);
        let context = fsopen().map_err(failed)?;
        let text = |text: String| CString::new(text).map_err(|error| failed(error.into()));
        let mut strings = vec![
            (c"source", options.source.clone()),
            (c"fd", channel.as_raw_fd().to_string()),
            (c"rootmode", format!("{:o}", options.root_mode)),
            (c"user_id", "0".to_owned()),
            (c"group_id", "0".to_owned()),
        ];
        if !options.subtype.is_empty() {
            strings.push((c"subtype", options.subtype.clone()));
        }
        for (key, value) in strings {
            config(&context, FSCONFIG_SET_STRING, Some((key, Some(&text(value)?)))).map_err(failed)?;
        }
        let flags = [
            (options.for_all, c"allow_other"),
            (options.default_permissions, c"default_permissions"),
            (options.read_only, c"ro"),
        ];
        for (_, key) in flags.into_iter().filter(|flag| flag.0) {
            config(&context, FSCONFIG_SET_FLAG, Some((key, None))).map_err(failed)?;
        }
        config(&context, FSCONFIG_CMD_CREATE, None).map_err(failed)?;
        Ok(FuseMount { mount: fsmount(&context, options.attributes() as libc::c_uint).map_err(failed)? })
    }

    /// The path with which this process can open a file in the mount, even if the mount is not attached.
    pub fn path(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.mount.as_raw_fd())
    }

    /// Attaches the mount to a directory. The mount stays there until it is [unmounted](unmount).
    ///
    /// *Errors*: [`Error::NotPermitted`] if the process may not mount; otherwise [`Error::Os`] with the kernel's error
    /// about the directory.
    pub fn attach(&self, directory: &Path) -> Result<(), Error> {
        let failed = |source| Error::os("attaching a mount to a directory", source);
        let path = CString::new(directory.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        // SAFETY: both paths are strings that end with a zero byte and outlive the call; the rest are numbers.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_mount,
                self.mount.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_FDCWD,
                path.as_ptr(),
                MOVE_MOUNT_F_EMPTY_PATH,
            )
        };
        if result == 0 { Ok(()) } else { Err(failed(io::Error::last_os_error())) }
    }
}

/// Unmounts the topmost mount of a directory. If the mount is in use for longer than a moment ([`LOOK_MAX`]), the call
/// fails with `EBUSY`. If `lazily` is true, the call succeeds even then, and the mount ends with its last user.
pub fn unmount(directory: &Path, lazily: bool) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let flags = libc::UMOUNT_NOFOLLOW | if lazily { libc::MNT_DETACH } else { 0 };
    let until = Instant::now() + LOOK_MAX;
    loop {
        // SAFETY: the path is a string that ends with a zero byte and outlives the call.
        if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) || Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// The argument of `mount_setattr`.
#[repr(C)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Changes the topmost mount of a directory: from now on it allows changes, programs, set-user-ID bits and devices as
/// `options` say. A file system that was mounted read-only stays so.
pub fn remount(directory: &Path, options: &MountOptions) -> io::Result<()> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    let all = ATTRIBUTE_READ_ONLY | ATTRIBUTE_NO_SET_USER_ID | ATTRIBUTE_NO_DEVICES | ATTRIBUTE_NO_PROGRAMS;
    let set = options.attributes() & all;
    let change = MountAttributes { set, clear: all & !set, propagation: 0, user_namespace: 0 };
    // SAFETY: the path is a string that ends with a zero byte; it and the change, whose length the call gets, outlive
    // the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            &raw const change,
            size_of::<MountAttributes>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn fsopen() -> io::Result<OwnedFd> {
    // SAFETY: the name is a string that ends with a zero byte and outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_fsopen, c"fuse".as_ptr(), FSOPEN_CLOEXEC) })
}

fn fsmount(context: &OwnedFd, attributes: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the call takes an open descriptor and numbers.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) })
}

fn config(context: &OwnedFd, command: libc::c_uint, pair: Option<(&CStr, Option<&CStr>)>) -> io::Result<()> {
    let key = pair.map_or(std::ptr::null(), |(key, _)| key.as_ptr());
    let value = pair.and_then(|(_, value)| value).map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: key and value are null or strings that end with a zero byte and outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0 as libc::c_long) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor, which no other code owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as RawFd) })
}
