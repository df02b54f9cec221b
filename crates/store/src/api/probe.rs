//! Whether a device has a store.
//!
//! Owns: this decision. An intact copy of the superblock is enough for it, so damage elsewhere does not matter. Promises:
//! a device counts as blank only if all bytes that were looked at were read, and are zero.

use nectary_block::{SharedDevice, read};

use crate::api::store::Store;
use crate::error::{Error, StoreErrorKind};
use crate::format::BLOCK_BYTES;
use crate::recover;

/// The data of other programs begin in this many bytes at the start of a device, or have a copy in as many at its end.
const LOOKED_AT_BYTES: u64 = 1 << 20;

impl Store {
    /// Returns whether a device has a store; false if the device is blank.
    ///
    /// *Errors*: `Corrupt` if the device has other data, so that these are not overwritten by mistake; `Io` if it has no
    /// intact superblock, and a part cannot be read that may have data. *Cost*: one read if there is a store.
    pub async fn probe(device: &SharedDevice) -> Result<bool, Error> {
        let size = device.geometry().size_bytes;
        if size == 0 {
            return Ok(false);
        }
        let Err(no_store) = recover::read_superblock(device).await else { return Ok(true) };
        if no_store.device_kind().is_some() || size < 2 * BLOCK_BYTES {
            return Err(no_store);
        }
        let end = size / BLOCK_BYTES * BLOCK_BYTES;
        let length = LOOKED_AT_BYTES.min(end);
        let mut unreadable = None;
        for start in [0, end - length] {
            match look(device, start, length).await {
                ProbedContents::Zeroes => {}
                ProbedContents::Data => return Err(no_store),
                ProbedContents::Unknown(error) => unreadable = unreadable.or(Some(error)),
            }
        }
        match unreadable {
            None => Ok(false),
            Some(error) => Err(Error::new(
                StoreErrorKind::Io,
                format!(
                    "{error}; what can be read is blank, but this part may have data: force a new store if it has none"
                ),
            )),
        }
    }
}

/// What a part of a device has.
enum ProbedContents {
    Zeroes,
    Data,
    /// What can be read is zero, but not everything can be read.
    Unknown(nectary_block::Error),
}

/// Looks at a part of a device: with one read, or block by block if that fails.
async fn look(device: &SharedDevice, start: u64, length: u64) -> ProbedContents {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if let Ok(bytes) = read(&**device, start, length as usize).await {
        return if is_zero(&bytes) { ProbedContents::Zeroes } else { ProbedContents::Data };
    }
    let mut contents = ProbedContents::Zeroes;
    for block in (start..start + length).step_by(BLOCK_BYTES as usize) {
        match read(&**device, block, BLOCK_BYTES as usize).await {
            Ok(bytes) if is_zero(&bytes) => {}
            Ok(_) => return ProbedContents::Data,
            Err(error) => contents = ProbedContents::Unknown(error),
        }
    }
    contents
}
