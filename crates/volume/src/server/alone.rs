//! Whether this is the only server of its number on this host.
//!
//! Owns: the lock that says so, on the lease sectors of that number, of the disk's own descriptor. Promises: once it is
//! taken, no process of this host that held it before writes any more, whatever its namespaces. Leaves to others:
//! servers on other hosts (the lease sectors).

use nectary_block::{Error, SharedDevice};

use crate::format::{BLOCK_BYTES, SECTORS_OF_SERVER, SERVERS, lease_block};

/// Takes the lock of a server's number, for as long as the device is open. `false`: the device has no descriptor to lock,
/// so an earlier server must be waited for.
///
/// *Errors*: `Busy` if another process of this host serves with that number.
pub async fn alone(device: &SharedDevice, number: u32) -> Result<bool, Error> {
    if number >= SERVERS {
        return Ok(false);
    }
    let block = BLOCK_BYTES as u64;
    device.lock(lease_block(number, 0) * block, u64::from(SECTORS_OF_SERVER) * block).await
}
