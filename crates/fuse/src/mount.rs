//! A FUSE mount, which may be attached to a directory.
//!
//! Owns: the calls that make, change and end a mount. A mount that is not attached has no path, and exists as long as one of
//! its files is open. It leaves nothing behind when its process dies.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags};

use crate::channel::FuseChannel;
use crate::error::Error;

/// The longest time in which somebody who only looks at a mount (`df`, `stat`) may keep it from being unmounted, and the
/// pause between two attempts.
const LOOK_MAX: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(20);
const READ_ONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;
const NO_SET_USER_ID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NO_DEVICES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NO_PROGRAMS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const NO_ACCESS_TIMES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOATIME;

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
    fn attributes(&self) -> MountAttrFlags {
        let attributes = [
            (self.read_only, READ_ONLY),
            (!self.set_user_id, NO_SET_USER_ID),
            (!self.devices, NO_DEVICES),
            (!self.programs, NO_PROGRAMS),
            (self.no_access_times, NO_ACCESS_TIMES),
        ];
        attributes.into_iter().filter(|(is_set, _)| *is_set).map(|(_, attribute)| attribute).collect()
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
        let mount = new_mount(channel, options);
        mount.map(|mount| FuseMount { mount }).map_err(|error| Error::os("mounting a FUSE file system", error.into()))
    }

    /// The path with which this process can open a file in the mount, even if the mount is not attached.
    pub fn path(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.mount.as_raw_fd())
    }

    /// The descriptor of the mount's root.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }

    /// Attaches the mount to a directory. The mount stays there until it is [unmounted](unmount).
    ///
    /// *Errors*: [`Error::NotPermitted`] if the process may not mount; otherwise [`Error::Os`] with the kernel's error
    /// about the directory.
    pub fn attach(&self, directory: &Path) -> Result<(), Error> {
        let moved =
            rustix::mount::move_mount(&self.mount, c"", CWD, directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        moved.map_err(|error| Error::os("attaching a mount to a directory", error.into()))
    }
}

/// Unmounts the topmost mount of a directory. If the mount is in use for longer than a moment ([`LOOK_MAX`]), the call
/// fails with `EBUSY`. If `lazily` is true, the call succeeds even then, and the mount ends with its last user.
pub fn unmount(directory: &Path, lazily: bool) -> io::Result<()> {
    let flags = UnmountFlags::NOFOLLOW | if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let until = Instant::now() + LOOK_MAX;
    loop {
        match rustix::mount::unmount(directory, flags) {
            Err(rustix::io::Errno::BUSY) if Instant::now() < until => std::thread::sleep(LOOK_PAUSE),
            unmounted => return Ok(unmounted?),
        }
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
    let all = READ_ONLY | NO_SET_USER_ID | NO_DEVICES | NO_PROGRAMS;
    let set = options.attributes() & all;
    let (set, clear) = (set.bits().into(), (all - set).bits().into());
    let change = MountAttributes { set, clear, propagation: 0, user_namespace: 0 };
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

fn new_mount(channel: &FuseChannel, options: &MountOptions) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(c"fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
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
        rustix::mount::fsconfig_set_string(&context, key, value)?;
    }
    let flags = [
        (options.for_all, c"allow_other"),
        (options.default_permissions, c"default_permissions"),
        (options.read_only, c"ro"),
    ];
    for (_, key) in flags.into_iter().filter(|flag| flag.0) {
        rustix::mount::fsconfig_set_flag(&context, key)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, options.attributes())
}
