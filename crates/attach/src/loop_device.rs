//! Makes, names and releases loop devices.
//!
//! Owns: the ioctls and their layouts (`linux/loop.h`), the reading of loop devices' names, and the search for the
//! users of a loop device. Leaves to others: the layers below it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Error;

const LOOP_CLR_FD: libc::c_ulong = 0x4c01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// The longest name of a loop device's file, without its terminating zero.
const NAME_BYTES_MAX: usize = 63;

/// The largest number of attempts to take a free number, which another process may take first.
const ATTEMPTS_MAX: usize = 64;

const CONTROL: &str = "/dev/loop-control";

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: u32,
    key_bytes: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    file: u32,
    block_bytes: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

impl LoopInfo {
    fn empty() -> LoopInfo {
        LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encryption: 0,
            key_bytes: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            key: [0; 32],
            init: [0; 2],
        }
    }
}

/// A loop device that this process made.
///
/// The kernel may reuse its number as soon as it is released, so its name identifies it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    name: String,
}

impl LoopDevice {
    /// Checks whether this machine has loop devices.
    ///
    /// *Errors*: [`Error::NoLoop`].
    pub fn check() -> Result<(), Error> {
        control().map(drop)
    }

    /// Makes a loop device with direct I/O on `file`.
    ///
    /// *Errors*: [`Error::NoLoop`], [`Error::NotPermitted`], or [`Error::Os`] with the kernel's error.
    pub fn new(file: &File, block_bytes: u32, read_only: bool, name: &str) -> Result<LoopDevice, Error> {
        let control = control()?;
        let mut config =
            LoopConfig { file: file.as_raw_fd() as u32, block_bytes, info: LoopInfo::empty(), reserved: [0; 8] };
        config.info.flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        let bytes = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
        config.info.file_name[..bytes.len()].copy_from_slice(bytes);
        for _ in 0..ATTEMPTS_MAX {
            // SAFETY: the request takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(Error::os("asking for a free loop device", io::Error::last_os_error()));
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(!read_only).open(&path);
            let device = device.map_err(|source| Error::NoLoop { path: path.clone(), source })?;
            // SAFETY: the argument has the layout that the request reads, and outlives the call.
            if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(LoopDevice { path, name: String::from_utf8_lossy(bytes).into_owned() });
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(Error::os("configuring a loop device", error));
            }
        }
        let busy = io::Error::from_raw_os_error(libc::EBUSY);
        Err(Error::os("configuring a loop device: others took each free one first", busy))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the device still exists, and its number is not reused.
    pub fn is_attached(&self) -> bool {
        File::open(&self.path).is_ok_and(|device| self.is_own(&device))
    }

    fn is_own(&self, device: &File) -> bool {
        name(device.as_raw_fd()).is_some_and(|name| name == self.name)
    }

    /// Writes back the kernel's cached data and releases the device, unless it is open exclusively. It also succeeds if
    /// the device no longer exists.
    ///
    /// *Errors*: [`Error::InUse`] if it is in use; [`Error::WriteBack`] if writing back fails. In both cases it is not
    /// released.
    pub fn release(&self) -> Result<(), Error> {
        self.release_if(false)
    }

    /// As [`release`](Self::release), but data that cannot be written back are lost, and this is no error.
    pub fn release_or_lose(&self) -> Result<(), Error> {
        self.release_if(true)
    }

    fn release_if(&self, may_lose: bool) -> Result<(), Error> {
        if !self.is_attached() {
            return Ok(());
        }
        // The device is opened exclusively, so that it cannot be mounted before it is released.
        let device = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.path);
        let device = device.map_err(|error| match error.raw_os_error() {
            Some(libc::EBUSY) => Error::InUse { path: self.path.clone(), users: holders(&self.path) },
            _ => Error::os("opening the loop device", error),
        })?;
        if !self.is_own(&device) {
            return Ok(());
        }
        match device.sync_all() {
            Err(source) if !may_lose => return Err(Error::WriteBack { path: self.path.clone(), source }),
            _ => {}
        }
        clear(&device).map_err(|error| Error::os("releasing the loop device", error))
    }

    /// Releases the device as soon as its last user has closed it, or at once if it has no user.
    pub fn release_when_unused(&self) -> Result<(), Error> {
        let failed = |error| Error::os("releasing the loop device", error);
        let device = File::open(&self.path).map_err(failed)?;
        if self.is_own(&device) { clear(&device).map_err(failed) } else { Ok(()) }
    }
}

fn control() -> Result<File, Error> {
    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    control.map_err(|source| {
        Error::opening(CONTROL, source, |source| Error::NoLoop { path: PathBuf::from(CONTROL), source })
    })
}

/// Releases a loop device as soon as its last user has closed it.
pub(crate) fn release_when_unused(path: &Path) -> io::Result<()> {
    clear(&File::open(path)?)
}

fn clear(device: &File) -> io::Result<()> {
    // SAFETY: the request takes no argument.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The loop devices that have a backing file, each with its name.
pub(crate) fn named() -> Vec<(PathBuf, String)> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let bound = entries.flatten().filter(|entry| entry.path().join("loop/backing_file").exists());
    let mut list = Vec::new();
    for entry in bound {
        let path = Path::new("/dev").join(entry.file_name());
        let Ok(device) = File::open(&path) else { continue };
        if let Some(name) = name(device.as_raw_fd()) {
            list.push((path, name));
        }
    }
    list.sort();
    list
}

fn name(device: RawFd) -> Option<String> {
    let mut info = LoopInfo::empty();
    // SAFETY: the argument has the layout that the request writes, and outlives the call.
    if unsafe { libc::ioctl(device, LOOP_GET_STATUS64, &raw mut info) } < 0 {
        return None;
    }
    let end = info.file_name.iter().position(|&byte| byte == 0).unwrap_or(info.file_name.len());
    Some(String::from_utf8_lossy(&info.file_name[..end]).into_owned())
}

/// Whether a text is the path of a loop device.
pub fn is_loop_path(text: &str) -> bool {
    let number = text.strip_prefix("/dev/loop");
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Describes the users of a block device: its mounts, or else the devices on top of it.
pub fn holders(path: &Path) -> String {
    let mounts = mounts(path);
    if !mounts.is_empty() {
        return format!("it is mounted on {}", mounts.join(", "));
    }
    let name = path.file_name().unwrap_or_default();
    let holders = fs::read_dir(Path::new("/sys/block").join(name).join("holders"));
    let holders: Vec<String> = holders
        .map(|entries| entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    match holders.is_empty() {
        true => "by another mount namespace, or a process that has it for itself".to_owned(),
        false => format!("{} stands on it", holders.join(", ")),
    }
}

/// The mount points of a block device in this process's mount namespace, the latest mount first.
pub(crate) fn mounts(path: &Path) -> Vec<String> {
    let Ok(text) = fs::read_to_string("/proc/self/mountinfo") else { return Vec::new() };
    let number = fs::metadata(path).map_or(0, |metadata| metadata.rdev());
    let number = format!("{}:{}", libc::major(number), libc::minor(number));
    let mut places = mounts_in(&text, &number, &path.to_string_lossy());
    places.reverse();
    places
}

/// The mount points of a device in a list of mounts. The device is found by its number or its name, because btrfs
/// reports other numbers.
fn mounts_in(text: &str, number: &str, name: &str) -> Vec<String> {
    let mut places = Vec::new();
    for line in text.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<&str> = left.split(' ').collect();
        let source = right.split(' ').nth(1);
        if let (Some(found), Some(place)) = (left.get(2), left.get(4))
            && (*found == number || source == Some(name))
        {
            places.push(unescape(place));
        }
    }
    places
}

/// Replaces the octal escapes in the kernel's lists.
pub(crate) fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_structs_match_kernel_sizes() {
        assert_eq!((size_of::<LoopInfo>(), size_of::<LoopConfig>()), (232, 304));
    }

    #[test]
    fn mount_found_by_number_or_name() {
        let text = "36 25 7:3 / /mnt/a\\040b rw - ext4 /dev/loop3 rw\n\
                    37 25 0:44 / /mnt/c rw shared:1 - btrfs /dev/loop3 rw\n\
                    38 25 7:4 / /mnt/d rw - xfs /dev/loop4 rw\nnonsense\n";
        assert_eq!(mounts_in(text, "7:3", "/dev/loop3"), ["/mnt/a b", "/mnt/c"]);
        assert!(mounts_in(text, "7:5", "/dev/loop5").is_empty());
    }

    #[test]
    fn loop_paths_are_recognised() {
        assert!(is_loop_path("/dev/loop0") && is_loop_path("/dev/loop12"));
        assert!(!is_loop_path("/dev/loop") && !is_loop_path("/dev/loop0p1") && !is_loop_path("/data/a.img"));
    }
}
