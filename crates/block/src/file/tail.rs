//! The last block of a file whose size is no multiple of a block, if the file is used to its last byte.
//!
//! Promises: the bytes behind the end of the file read as zeroes, take nothing but zeroes, and never make the file
//! longer. The functions block, so they run on the pool. Leaves to others: choosing these functions, and refusing
//! requests beyond the last block.

use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::transfer::SharedFileState;
use crate::buffer::Buffer;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::total;

/// The part of a range that the file has. *Units*: bytes.
pub(super) fn within(shared: &SharedFileState, offset: u64, length: u64) -> u64 {
    length.min(shared.exact_bytes.load(Ordering::Acquire).saturating_sub(offset))
}

/// Reads into `buffers`, and zeroes what lies behind the end of the file.
pub(super) fn read(shared: &SharedFileState, offset: u64, mut buffers: Vec<Buffer>) -> Result<Vec<Buffer>, Error> {
    let length = total(&buffers);
    let failed = |error| Error::from_os(&error, &shared.spec, DeviceOperation::Read).at(offset, length);
    let mut at = offset;
    for buffer in &mut buffers {
        let length = buffer.len() as u64;
        let (stored, padding) = buffer.split_at_mut(within(shared, at, length) as usize);
        shared.file.read_exact_at(stored, at).map_err(failed)?;
        padding.fill(0);
        at += length;
    }
    Ok(buffers)
}

/// Writes `buffers`. *Errors*: [`DeviceErrorKind::Full`] if something else than zeroes lies behind the end of the file;
/// nothing is written then.
pub(super) fn write(
    shared: &SharedFileState,
    offset: u64,
    buffers: Vec<Buffer>,
    fua: bool,
) -> Result<Vec<Buffer>, Error> {
    let length = total(&buffers);
    let failed = |error| Error::from_os(&error, &shared.spec, DeviceOperation::Write).at(offset, length);
    let pieces = || {
        buffers.iter().scan(offset, |at, buffer| {
            let start = *at;
            *at += buffer.len() as u64;
            Some((start, buffer.split_at(within(shared, start, buffer.len() as u64) as usize)))
        })
    };
    if pieces().any(|(_, (_, padding))| padding.iter().any(|&byte| byte != 0)) {
        return Err(beyond(&shared.spec, shared.exact_bytes.load(Ordering::Acquire)).at(offset, length));
    }
    for (at, (stored, _)) in pieces() {
        shared.file.write_all_at(stored, at).map_err(failed)?;
    }
    if fua {
        shared.file.sync_data().map_err(failed)?;
    }
    Ok(buffers)
}

/// The error of a write of something else than zeroes behind the end of the file.
fn beyond(spec: &str, exact_bytes: u64) -> Error {
    let detail = format!("it has {exact_bytes} bytes; the rest of its last block takes nothing but zeroes");
    Error::new(DeviceErrorKind::Full, spec, DeviceOperation::Write, detail)
}
