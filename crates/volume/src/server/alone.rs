//! Checks that this is the only server with its number on this host.
//!
//! Owns: the lock on the lease sectors of that number, held by the descriptor of the disk. Promises: once the lock is
//! taken, no process of this host that held it before writes any more, whatever namespaces it is in. Leaves to others:
//! servers on other hosts, or with another path to the disk (excluded by the lease sectors).

use nectary_block::{Error, SharedDevice};

use crate::format::{BLOCK_BYTES, SECTORS_OF_SERVER, SERVERS, lease_block};

/// Takes the lock of a server's number, for as long as the device is open. Returns `false` if the device has no
/// descriptor to lock, or if another host keeps its locks; the start must then wait for the lease of an earlier server.
///
/// *Errors*: `Busy` if another process of this host serves with that number.
pub async fn alone(device: &SharedDevice, number: u32) -> Result<bool, Error> {
    if number >= SERVERS {
        return Ok(false);
    }
    let block = BLOCK_BYTES as u64;
    let is_locked = device.lock(lease_block(number, 0) * block, u64::from(SECTORS_OF_SERVER) * block).await?;
    Ok(is_locked && device.lock_domain().is_some())
}
