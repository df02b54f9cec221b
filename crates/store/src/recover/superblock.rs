//! The superblock: reading it from an intact copy, and repairing the other copy.

use nectary_block::{SharedDevice, read, write};

use crate::error::{Error, StoreErrorKind};
use crate::format::BLOCK_BYTES;
use crate::format::layout::SpanLayout;
use crate::recover::repairs::PendingRepair;

/// The addresses of the two copies, in bytes.
const COPIES: [u64; 2] = [0, BLOCK_BYTES];

/// Reads the superblock from the first intact copy. *Errors*: if no copy is intact: `Io` (or another kind of the device's
/// errors) if a copy cannot be read, otherwise `Corrupt`, with the reason why the first copy cannot be used.
pub async fn read_superblock(device: &SharedDevice) -> Result<SpanLayout, Error> {
    let spec = device.spec();
    let [first, second] = read_copies(device).await;
    match (first, second) {
        (Ok(layout), _) | (Err(_), Ok(layout)) => Ok(layout),
        (Err(first), Err(second)) => Err(match (first.device_kind(), second.device_kind()) {
            (None, None) => first.at(&spec),
            // A copy that cannot be read may be intact: it is not known whether this is a store.
            (Some(_), _) => first.and(&second).at(&spec),
            (None, Some(_)) => second.and(&first).at(&spec),
        }),
    }
}

/// Reads both copies: with one read, or with one each if that fails.
async fn read_copies(device: &SharedDevice) -> [Result<SpanLayout, Error>; 2] {
    let size = device.geometry().size_bytes;
    let both = match size >= 2 * BLOCK_BYTES {
        true => read(&**device, 0, 2 * BLOCK_BYTES as usize).await.ok(),
        false => None,
    };
    let mut copies = Vec::with_capacity(COPIES.len());
    for address in COPIES {
        copies.push(match &both {
            Some(bytes) => SpanLayout::decode(&bytes[address as usize..][..BLOCK_BYTES as usize], address),
            None if address + BLOCK_BYTES > size => {
                let message = format!("{size} bytes are too few for a store; was the device cut?");
                Err(Error::new(StoreErrorKind::Corrupt, message))
            }
            None => match read(&**device, address, BLOCK_BYTES as usize).await {
                Ok(bytes) => SpanLayout::decode(&bytes, address),
                Err(error) => Err(error.into()),
            },
        });
    }
    let [first, second] = copies.try_into().unwrap_or_else(|_| unreachable!("one for each copy"));
    [first, second]
}

/// Rewrites the copies of the superblock that are damaged, unreadable or outdated, without a flush. Returns what was
/// repaired; a copy that cannot be written stays as it is, because the other one is intact.
pub async fn repair_superblock(device: &SharedDevice, layout: &SpanLayout) -> Vec<PendingRepair> {
    let mut repairs = Vec::new();
    for (address, copy) in COPIES.into_iter().zip(read_copies(device).await) {
        let wrong = match copy {
            Ok(copy) if copy == *layout => continue,
            Err(error) if error.device_kind().is_some() => "cannot be read",
            Ok(_) | Err(_) => "is damaged",
        };
        let what = match write(&**device, address, layout.encode(address)).await {
            Ok(_) => "it is written again".to_owned(),
            Err(error) => format!("it cannot be written again: {error}"),
        };
        repairs
            .push(PendingRepair::of_damage(format!("the copy of the superblock at offset {address} {wrong}; {what}")));
    }
    repairs
}
