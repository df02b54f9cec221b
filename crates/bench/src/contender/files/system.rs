//! The file systems: how each is made and mounted, and which file system of the paper it replaces.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::sys::{self, MountSyncMode};
use crate::{Error, ExperimentErrorKind};

/// A file system; some replace a file system of the paper that Linux does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContenderFileSystem {
    /// XFS with its defaults.
    Xfs,
    /// ext4 with its defaults, including a journal. Replaces UFS with soft updates.
    Ext4,
    /// btrfs with its defaults, except that it stores metadata once.
    Btrfs,
    /// ext4 without a journal, mounted `dirsync`. Replaces EFS and UFS, which write metadata synchronously.
    Ext4Dirsync,
    /// ext4 without a journal. Replaces asynchronous UFS.
    Ext4Async,
}

impl ContenderFileSystem {
    /// All file systems.
    pub const ALL: [ContenderFileSystem; 5] = [
        ContenderFileSystem::Xfs,
        ContenderFileSystem::Ext4,
        ContenderFileSystem::Btrfs,
        ContenderFileSystem::Ext4Dirsync,
        ContenderFileSystem::Ext4Async,
    ];

    /// Its name in reports and figures.
    pub fn name(self) -> &'static str {
        match self {
            ContenderFileSystem::Xfs => "xfs",
            ContenderFileSystem::Ext4 => "ext4",
            ContenderFileSystem::Btrfs => "btrfs",
            ContenderFileSystem::Ext4Dirsync => "ext4-dirsync",
            ContenderFileSystem::Ext4Async => "ext4-async",
        }
    }

    /// The kernel's name of the file system.
    pub fn kernel_name(self) -> &'static str {
        match self {
            ContenderFileSystem::Xfs => "xfs",
            ContenderFileSystem::Btrfs => "btrfs",
            ContenderFileSystem::Ext4 | ContenderFileSystem::Ext4Dirsync | ContenderFileSystem::Ext4Async => "ext4",
        }
    }

    /// The program that makes the file system, and the Debian package of that program.
    pub fn maker(self) -> (&'static str, &'static str) {
        match self {
            ContenderFileSystem::Xfs => ("mkfs.xfs", "xfsprogs"),
            ContenderFileSystem::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
            ContenderFileSystem::Ext4 | ContenderFileSystem::Ext4Dirsync | ContenderFileSystem::Ext4Async => {
                ("mkfs.ext4", "e2fsprogs")
            }
        }
    }

    /// The reason why this machine cannot use the file system; `None` if it can.
    pub fn missing(self) -> Option<String> {
        let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !known.lines().any(|line| line.trim() == self.kernel_name()) {
            return Some(format!("the kernel has no {}", self.kernel_name()));
        }
        let (program, package) = self.maker();
        let is_there =
            ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|folder| Path::new(folder).join(program).is_file());
        (!is_there).then(|| format!("{program} is not installed (Debian package {package})"))
    }

    /// The size of a device for files of `disk_bytes` in total, in bytes: it has room for the file system itself, and
    /// at least the smallest size that mkfs accepts. This is more than contenders without a file system get, which
    /// favours the file systems.
    pub fn device_bytes(self, disk_bytes: u64) -> u64 {
        ((disk_bytes / 10 * 11) + (96 << 20)).max(320 << 20).next_multiple_of(1 << 20)
    }

    /// Makes the file system. Nothing is initialised lazily, because that would happen during the measurement.
    pub(super) fn make(self, device: &Path) -> Result<(), Error> {
        let eager = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        let arguments: &[&str] = match self {
            ContenderFileSystem::Xfs => &["-q", "-f", "-K"],
            ContenderFileSystem::Btrfs => &["-q", "-f", "-K", "-m", "single"],
            ContenderFileSystem::Ext4 => &["-q", "-F", "-E", eager],
            ContenderFileSystem::Ext4Dirsync | ContenderFileSystem::Ext4Async => {
                &["-q", "-F", "-O", "^has_journal", "-E", eager]
            }
        };
        let (program, package) = self.maker();
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.args(arguments).arg(device).env("PATH", path).stdin(Stdio::null());
        let output = command.output().map_err(|error| {
            Error::new(
                ExperimentErrorKind::Missing,
                format!("{program}: {error}; install the Debian package {package}"),
            )
        })?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::failed(
                format!("{program} {}", device.display()),
                String::from_utf8_lossy(&output.stderr).trim(),
            )),
        }
    }

    /// Mounts the file system; uses its synchronous mode only if `is_measured`.
    pub(super) fn mount(self, device: &Path, root: &Path, is_measured: bool) -> Result<(), Error> {
        let writing = match is_measured && self == ContenderFileSystem::Ext4Dirsync {
            true => MountSyncMode::DirectoriesAtOnce,
            false => MountSyncMode::Later,
        };
        sys::mount(device, root, self.kernel_name(), writing)
    }
}

/// Unmounts the file system at a path.
pub(super) fn unmount(root: &Path) -> Result<(), Error> {
    sys::unmount(root)
}
