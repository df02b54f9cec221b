//! Operations on ranges of a file or disk: discard, zero, list mapped parts, grow. The functions block, so they run on
//! the pool.
//!
//! Promises: a discarded range reads as its old contents or as zeroes. A disk's plain discard (`BLKDISCARD`) does not
//! promise this, so files and disks use a mode of `fallocate` in which the kernel unmaps the range, which then reads as
//! zeroes. If the kernel does not support this, no block is discarded.

use std::sync::atomic::Ordering;

use rustix::fs::SeekFrom;

use super::open;
use super::sys;
use super::transfer::SharedFileState;
use crate::allocation::ExtentList;
use crate::buffer::Buffer;
use crate::device::{DeviceExtent, SLOW_ZEROES};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};

/// The size of one write of zeroes, if zeroes must be written. *Units*: bytes.
const ZEROES_BYTES: usize = 1 << 20;

fn is_unsupported(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL | libc::ENODEV))
}

/// Unmaps a range if possible; the caller must not rely on the unmapping.
pub(super) fn discard(shared: &SharedFileState, offset: u64, length: u64) -> Result<(), Error> {
    match sys::fallocate(&shared.file, PUNCH, offset, length) {
        Err(error) if !is_unsupported(&error) => {
            Err(Error::from_os(&error, &shared.spec, DeviceOperation::Discard).at(offset, length))
        }
        _ => Ok(()),
    }
}

/// The mode of `fallocate` that zeroes a range and keeps its blocks.
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
/// The mode of `fallocate` that zeroes a range and frees its blocks.
const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Zeroes a range with the first of these modes of `fallocate` that is supported. *Returns* `false` if the kernel
/// supports none of them.
fn zero_by(shared: &SharedFileState, modes: &[i32], offset: u64, length: u64) -> Result<bool, Error> {
    for &mode in modes {
        match sys::fallocate(&shared.file, mode, offset, length) {
            Err(error) if is_unsupported(&error) => {}
            Err(error) => {
                return Err(Error::from_os(&error, &shared.spec, DeviceOperation::WriteZeroes).at(offset, length));
            }
            Ok(()) => return Ok(true),
        }
    }
    Ok(false)
}

/// Zeroes a range only if the kernel need not write data for it.
pub(super) fn zero_quickly(shared: &SharedFileState, is_disk: bool, offset: u64, length: u64) -> Result<(), Error> {
    // If a disk cannot zero a range, the kernel writes the zeroes itself for `ZERO`, but fails for `PUNCH`.
    let modes: &[i32] = if is_disk { &[PUNCH] } else { &[ZERO, PUNCH] };
    if zero_by(shared, modes, offset, length)? {
        return Ok(());
    }
    let slow = Error::new(DeviceErrorKind::Unsupported, &shared.spec, DeviceOperation::WriteZeroes, SLOW_ZEROES);
    Err(slow.at(offset, length))
}

/// Makes a range read as zeroes in the cheapest possible way.
pub(super) fn write_zeroes(shared: &SharedFileState, offset: u64, length: u64) -> Result<(), Error> {
    let failed = |error| Error::from_os(&error, &shared.spec, DeviceOperation::WriteZeroes).at(offset, length);
    if zero_by(shared, &[ZERO, PUNCH], offset, length)? {
        return Ok(());
    }
    let mut buffers = [Buffer::zeroed(ZEROES_BYTES.min(length as usize))];
    let mut done = 0;
    while done < length {
        buffers[0].set_len(ZEROES_BYTES.min((length - done) as usize));
        let written = sys::write(&shared.file, offset + done, &buffers, 0, false).map_err(failed)?;
        if written == 0 {
            let detail = format!("expected to write {length} bytes, wrote {done}");
            return Err(
                Error::new(DeviceErrorKind::Io, &shared.spec, DeviceOperation::WriteZeroes, detail).at(offset, length)
            );
        }
        done += written - written % u64::from(shared.block_bytes).min(written);
    }
    Ok(())
}

/// Lists the mapped parts of a range. If the kernel does not know them, the whole range is reported as mapped.
pub(super) fn allocation(shared: &SharedFileState, offset: u64, length: u64) -> Result<Vec<DeviceExtent>, Error> {
    let failed = |error| Error::from_os(&error, &shared.spec, DeviceOperation::Allocation).at(offset, length);
    let (mut position, end) = (offset, offset + length);
    let exact = shared.exact_bytes.load(Ordering::Acquire);
    let mut list = ExtentList::new(offset, length);
    while position < end && !list.is_full() {
        let data = match sys::seek(&shared.file, SeekFrom::Data(position)) {
            Ok(data) => data,
            // From this position on, the file has no data.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(error) if is_unsupported(&error) => position,
            Err(error) => return Err(failed(error)),
        };
        if data >= end {
            break;
        }
        let hole = match sys::seek(&shared.file, SeekFrom::Hole(data)) {
            Ok(hole) => hole,
            Err(error) if is_unsupported(&error) || error.raw_os_error() == Some(libc::ENXIO) => end,
            Err(error) => return Err(failed(error)),
        };
        // The padding of the last block belongs to the block.
        let hole = if hole == exact { hole.max(end) } else { hole };
        list.mapped(data, hole.saturating_sub(data));
        position = hole.max(data + 1);
    }
    Ok(list.finish())
}

/// Makes a file longer; the new length is durable. For a disk that has become larger, starts to use the new size.
pub(super) fn grow(shared: &SharedFileState, is_disk: bool, size_bytes: u64) -> Result<(), Error> {
    let failed = |error| Error::from_os(&error, &shared.spec, DeviceOperation::Grow).at(0, size_bytes);
    if size_bytes == shared.size_bytes.load(Ordering::Acquire) {
        return Ok(());
    }
    if is_disk {
        let found = sys::seek(&shared.file, SeekFrom::End(0)).map_err(failed)?;
        if found < size_bytes {
            let detail = format!("the disk has {found} bytes and cannot be made larger from here");
            return Err(
                Error::new(DeviceErrorKind::Unsupported, &shared.spec, DeviceOperation::Grow, detail).at(0, size_bytes)
            );
        }
    } else {
        open::allocate(&shared.file, size_bytes).map_err(failed)?;
        // The kernel reports lost writes here as in a flush.
        shared.file.sync_all().map_err(failed).inspect_err(|error| shared.latch(error))?;
    }
    shared.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    shared.exact_bytes.fetch_max(size_bytes, Ordering::AcqRel);
    Ok(())
}
