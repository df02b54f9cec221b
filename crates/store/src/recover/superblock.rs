//! The superblock: reading it from an intact copy, and repairing the other copy.

use nectary_block::{SharedDevice, read, write};

use crate::error::{Error, ErrorKind};
use crate::format::BLOCK_BYTES;
use crate::format::layout::Layout;
use crate::recover::repairs::Repair;

/// Reads the superblock from the first intact copy. *Errors*: if no copy is intact, `Corrupt` or `Io`, with the reason
/// why the first copy cannot be used.
pub async fn read_superblock(device: &SharedDevice) -> Result<Layout, Error> {
    let size = device.geometry().size_bytes;
    let mut failure: Option<Error> = None;
    for address in [0, BLOCK_BYTES] {
        if address + BLOCK_BYTES > size {
            failure.get_or_insert(Error::new(
                ErrorKind::Corrupt,
                format!("{size} bytes are too few for a store; was the device cut?"),
            ));
            continue;
        }
        let found = match read(&**device, address, BLOCK_BYTES as usize).await {
            Ok(bytes) => Layout::decode(&bytes, address),
            Err(error) => Err(error.into()),
        };
        match found {
            Ok(layout) => return Ok(layout),
            Err(error) => {
                failure.get_or_insert(error);
            }
        }
    }
    let error = failure.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, "no superblock"));
    Err(error.at(&device.spec()))
}

/// Rewrites the copies of the superblock that are damaged or outdated, without a flush. Returns what was repaired.
pub async fn repair_superblock(device: &SharedDevice, layout: &Layout) -> Result<Vec<Repair>, Error> {
    let mut repairs = Vec::new();
    for address in [0, BLOCK_BYTES] {
        let whole = match read(&**device, address, BLOCK_BYTES as usize).await {
            Ok(bytes) => Layout::decode(&bytes, address).is_ok_and(|copy| copy == *layout),
            Err(_) => false,
        };
        if !whole {
            write(&**device, address, layout.encode(address)).await?;
            repairs.push(Repair::of_damage(format!(
                "the copy of the superblock at offset {address} is damaged; it is written again"
            )));
        }
    }
    Ok(repairs)
}
