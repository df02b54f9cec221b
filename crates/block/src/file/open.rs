//! Opens files and disks: creation, exclusive ownership, and the units that the kernel reports.
//!
//! Promises: a file (`flock`) or disk (`O_EXCL`) has at most one owner on this host, or any number of processes that
//! share it, or any number of readers. A created file gets its name only when it is complete and its blocks are
//! allocated. The functions block, so they are called on the blocking pool.

use std::fs::{File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;

use super::{holder, sys};
use crate::device::SECTOR_BYTES;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::registry::OpenOptions;
use crate::size::format_size;

/// The unit to which the sizes of created files are rounded up. *Units*: bytes.
const CREATE_UNIT_BYTES: u64 = 4096;

/// The alignment that direct I/O is assumed to need if the kernel does not report it. *Units*: bytes.
const ALIGNMENT_ASSUMED: u32 = 4096;

/// The longest wait for a lock that no living process holds.
const LEAVING_MAX: Duration = Duration::from_secs(2);

/// The time between two attempts to take a lock that no living process holds.
const LEAVING_INTERVAL: Duration = Duration::from_millis(2);

/// An open file or disk and its properties.
pub(super) struct BackingFile {
    pub file: File,
    pub size_bytes: u64,
    /// The length of a file whose last block is padded; otherwise the size.
    pub exact_bytes: u64,
    pub block_bytes: u32,
    pub direct: bool,
    pub in_memory: bool,
}

/// Opens a regular file, and creates it if it is absent and a size is given.
pub(super) fn open_file(spec: &str, path: &Path, options: &OpenOptions) -> Result<BackingFile, Error> {
    let OpenOptions { create_bytes, direct, is_shared, is_read_only, pads_tail, .. } = *options;
    let create_bytes = create_bytes.filter(|_| !is_read_only);
    let fail = |kind, detail: String| Error::new(kind, spec, DeviceOperation::Open, detail);
    match std::fs::metadata(path) {
        Ok(status) if status.file_type().is_block_device() => {
            let detail = format!("it is a block device; name it disk:{}", path.display());
            return Err(fail(DeviceErrorKind::Invalid, detail));
        }
        Ok(status) if !status.is_file() => {
            return Err(fail(DeviceErrorKind::Invalid, "it is not a regular file".to_owned()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let Some(bytes) = create_bytes else {
                let detail = "there is no such file; give a size to have it created".to_owned();
                return Err(fail(DeviceErrorKind::Absent, detail));
            };
            match create(path, created_bytes(bytes).map_err(|detail| fail(DeviceErrorKind::Invalid, detail))?) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(creation_failed(spec, path, bytes, &error));
                }
                _ => {}
            }
        }
        Err(error) => return Err(Error::from_os(&error, spec, DeviceOperation::Open)),
    }
    let open = |flags| FileOptions::new().read(true).write(!is_read_only).custom_flags(flags).open(path);
    let mut file = open(0).map_err(|error| Error::from_os(&error, spec, DeviceOperation::Open))?;
    let in_memory = sys::is_in_memory(&file).unwrap_or(false);
    let mut block_bytes = SECTOR_BYTES;
    let mut is_direct = false;
    if direct
        && !in_memory
        && let alignment = sys::direct_alignment(&file).unwrap_or(ALIGNMENT_ASSUMED)
        && (1..=4096).contains(&alignment)
        && let Ok(opened) = open(libc::O_DIRECT)
    {
        (file, is_direct, block_bytes) = (opened, true, alignment.max(512));
    }
    let busy = |error: &io::Error| error.raw_os_error() == Some(libc::EWOULDBLOCK);
    let lock = if is_shared || is_read_only { sys::lock_shared } else { sys::lock_exclusive };
    once_left(path, busy, || lock(&file)).map_err(|error| match busy(&error) {
        true => fail(DeviceErrorKind::Busy, holder::describe(path)),
        false => Error::from_os(&error, spec, DeviceOperation::Open),
    })?;
    let length = |file: &File| file.metadata().map(|status| status.size());
    let mut size_bytes = length(&file).map_err(|error| Error::from_os(&error, spec, DeviceOperation::Open))?;
    if let (0, Some(bytes)) = (size_bytes, create_bytes) {
        size_bytes = created_bytes(bytes).map_err(|detail| fail(DeviceErrorKind::Invalid, detail))?;
        allocate(&file, size_bytes)
            .and_then(|()| file.sync_all())
            .map_err(|error| creation_failed(spec, path, bytes, &error))?;
    }
    if pads_tail && !size_bytes.is_multiple_of(u64::from(block_bytes)) {
        // Direct I/O cannot write a part of a block.
        sys::use_page_cache(&file).map_err(|error| Error::from_os(&error, spec, DeviceOperation::Open))?;
        (is_direct, block_bytes) = (false, SECTOR_BYTES);
        let exact_bytes = size_bytes;
        size_bytes = size_bytes.next_multiple_of(u64::from(block_bytes));
        return Ok(BackingFile { file, size_bytes, exact_bytes, block_bytes, direct: is_direct, in_memory });
    }
    size_bytes -= size_bytes % u64::from(block_bytes);
    Ok(BackingFile { file, size_bytes, exact_bytes: size_bytes, block_bytes, direct: is_direct, in_memory })
}

/// Tries to take ownership of a file or disk. If another process seems to own it, but no living process holds it, tries
/// again for up to [`LEAVING_MAX`].
///
/// After a process has ended, for example by SIGKILL, the kernel still needs time to remove its ring. During that time
/// the file stays open and locked, and writes in flight may still reach it. The next process that opens the file must
/// wait until this time is over.
fn once_left<T>(
    path: &Path,
    busy: impl Fn(&io::Error) -> bool,
    mut take: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let deadline = Instant::now() + LEAVING_MAX;
    loop {
        match take() {
            Err(error) if busy(&error) && !holder::is_known(path) && Instant::now() < deadline => {
                std::thread::sleep(LEAVING_INTERVAL);
            }
            taken => return taken,
        }
    }
}

/// Takes the lock of a range. The lock of a killed process is held until its last request has ended, and `/proc/locks`
/// does not name the holder of such a lock. So if the lock is busy, this function tries again for up to
/// [`LEAVING_MAX`].
pub(super) fn lock_range(spec: &str, file: &File, offset: u64, length: u64, is_read_only: bool) -> Result<(), Error> {
    let deadline = Instant::now() + LEAVING_MAX;
    loop {
        match sys::lock_range(file, offset, length, is_read_only) {
            Ok(()) => return Ok(()),
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                return Err(Error::from_os(&error, spec, DeviceOperation::Open));
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(LEAVING_INTERVAL),
            Err(_) => {
                let detail = format!("another process has the lock of {length} bytes at {offset}");
                return Err(Error::new(DeviceErrorKind::Busy, spec, DeviceOperation::Open, detail));
            }
        }
    }
}

/// Opens a whole disk or partition.
pub(super) fn open_disk(spec: &str, path: &Path, options: &OpenOptions) -> Result<BackingFile, Error> {
    let OpenOptions { direct, is_shared, is_read_only, .. } = *options;
    let fail = |kind, detail: String| Error::new(kind, spec, DeviceOperation::Open, detail);
    let os = |error: io::Error| Error::from_os(&error, spec, DeviceOperation::Open);
    let status = std::fs::metadata(path).map_err(os)?;
    if !status.file_type().is_block_device() {
        let detail = format!("it is not a block device; name a file file:{}", path.display());
        return Err(fail(DeviceErrorKind::Invalid, detail));
    }
    let exclusive = if is_shared || is_read_only { 0 } else { libc::O_EXCL };
    let open = |flags| FileOptions::new().read(true).write(!is_read_only).custom_flags(exclusive | flags).open(path);
    let busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    let (opened, direct) = match once_left(path, busy, || open(if direct { libc::O_DIRECT } else { 0 })) {
        Err(error) if direct && error.raw_os_error() == Some(libc::EINVAL) => (open(0), false),
        opened => (opened, direct),
    };
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => fail(DeviceErrorKind::Busy, holder::describe(path)),
        _ => os(error),
    })?;
    // O_EXCL excludes a second owner. The lock excludes an owner and sharing processes from each other, and lets the
    // next process find the holder of the disk. Tools that inspect disks may hold a lock for a moment.
    let lock = if is_shared || is_read_only { sys::lock_shared } else { sys::lock_exclusive };
    let is_locked = |error: &io::Error| error.raw_os_error() == Some(libc::EWOULDBLOCK);
    once_left(path, is_locked, || lock(&file)).map_err(|_| fail(DeviceErrorKind::Busy, holder::describe(path)))?;
    let block_bytes = sys::sector_bytes(&file).map_err(os)?;
    if !block_bytes.is_power_of_two() || !(512..=4096).contains(&block_bytes) {
        let detail = format!("its sectors have {block_bytes} bytes; 512 to 4096 are supported");
        return Err(fail(DeviceErrorKind::Unsupported, detail));
    }
    let size_bytes = sys::seek(&file, SeekFrom::End(0)).map_err(os)?;
    let size_bytes = size_bytes - size_bytes % u64::from(block_bytes);
    Ok(BackingFile { file, size_bytes, exact_bytes: size_bytes, block_bytes, direct, in_memory: false })
}

/// The size of a file that is created: whole units, and no more than a file can have.
fn created_bytes(bytes: u64) -> Result<u64, String> {
    let rounded = bytes.checked_next_multiple_of(CREATE_UNIT_BYTES).filter(|&rounded| rounded <= i64::MAX as u64);
    rounded.ok_or_else(|| format!("no file can have {}; give a smaller size", format_size(bytes)))
}

/// Creates a file without a name, allocates its blocks, and only then gives the file its name.
fn create(path: &Path, size_bytes: u64) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let unnamed = FileOptions::new().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(parent);
    match unnamed {
        Ok(file) => {
            allocate(&file, size_bytes)?;
            file.sync_all()?;
            sys::link(&file, path)?;
        }
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let file = FileOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            let allocated = allocate(&file, size_bytes).and_then(|()| file.sync_all());
            if let Err(error) = allocated {
                let _ = std::fs::remove_file(path);
                return Err(error);
            }
        }
        Err(error) => return Err(error),
    }
    File::open(parent)?.sync_all()
}

/// Makes a file `size_bytes` long. If the file system supports it, the blocks are allocated, so that no later write
/// runs out of room.
pub(super) fn allocate(file: &File, size_bytes: u64) -> io::Result<()> {
    let length = file.metadata()?.size();
    if size_bytes <= length {
        return Ok(());
    }
    match sys::fallocate(file, 0, length, size_bytes - length) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => file.set_len(size_bytes),
        Err(error) => {
            // Frees the blocks that were allocated before the room ran out. A failure to free them is ignored.
            let _ = file.set_len(length);
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}

fn creation_failed(spec: &str, path: &Path, bytes: u64, error: &io::Error) -> Error {
    let mut failed = Error::from_os(error, spec, DeviceOperation::Open);
    let what = match failed.kind {
        DeviceErrorKind::Full => "make room or give a smaller size",
        DeviceErrorKind::Absent => "create its directory first",
        _ => "check the directory's owner and mode",
    };
    failed.detail = format!("cannot create {} with {}: {error}; {what}", path.display(), format_size(bytes));
    failed
}
