//! The device `ram(DONOR,…,id=…)`: blocks in the memory of other machines.
//!
//! Owns: the SPEC, and the commands that make, grow and delete a device. Promises: requests to several donors are in flight
//! at the same time; a request fails at the latest when a donor has been missing for `patience`; when more donors are lost
//! than the redundancy survives, blocks on the others stay readable and writable, and those that are lost give errors, never
//! other bytes. Leaves to others: memory and its users (`donor`); the protocol (`nectary-nbd`).
//!
//! | file | what is in it |
//! |---|---|
//! | `options` | the options in a SPEC |
//! | `address` | a donor in a SPEC |
//! | `redundancy` | the kinds of redundancy |
//! | `owner` | the device, and the task that owns it |
//! | `direct` | requests past that task, without redundancy |
//! | `foreign` | NBD servers of other makes as donors |
//! | `deleting` | deleting what an earlier version has made, and the result of deleting any device |
//! | `moves` | another donor takes the place of one: the plan |
//! | `together` | waiting for several futures |

pub(crate) mod address;
pub(crate) mod deleting;
mod direct;
pub(crate) mod foreign;
pub mod moves;
mod options;
pub mod owner;
mod redundancy;
pub(crate) mod together;

use std::sync::{Arc, Mutex, PoisonError};

use nectary_block::{DeviceErrorKind, DeviceOperation, DeviceRegistry, Error, SharedDevice};

use self::owner::DeviceController;

pub use self::options::{OVERFLOW_PERCENT, PATIENCE, RamOptions};
pub use self::owner::RamDevice;
pub use self::redundancy::Redundancy;

/// Adds the SPEC `ram(…)` to a registry.
pub fn register(registry: &mut DeviceRegistry) {
    register_listing(registry, &OpenDevices::default());
}

/// The devices that a registry has opened; clones share the list.
#[derive(Clone, Default)]
pub struct OpenDevices {
    list: Arc<Mutex<Vec<DeviceController>>>,
}

impl OpenDevices {
    /// Controls each of them.
    pub fn all(&self) -> Vec<DeviceController> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// As [`register`]; devices that it opens are added to `opened`.
pub fn register_listing(registry: &mut DeviceRegistry, opened: &OpenDevices) {
    let opened = opened.clone();
    registry.register("ram", move |arguments| {
        let opened = opened.clone();
        async move {
            let options = RamOptions::parse(arguments)?;
            let device = RamDevice::open(options).await?;
            opened.list.lock().unwrap_or_else(PoisonError::into_inner).push(device.remote());
            Ok(Arc::new(device) as SharedDevice)
        }
    });
}

/// A device that was made or has grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceShares {
    /// The id of the device.
    pub id: String,
    /// The size of the device, in bytes.
    pub size_bytes: u64,
    /// The redundancy of the device.
    pub redundancy: Redundancy,
    /// The bytes that each donor holds for the device, in the order of the SPEC.
    pub shares: Vec<u64>,
}

/// Makes the device that `options` describe; the size must be given. `force` overwrites data on NBD servers that are no
/// Nectary donors.
///
/// *Errors*: a donor does not answer, has the device already, or has too little memory.
pub async fn create(options: &RamOptions, force: bool) -> Result<DeviceShares, Error> {
    owner::create(options, force).await
}

/// Makes a device that no client has larger. What it has stays.
///
/// *Durability*: when this returns, every donor knows the new size. A client that dies meanwhile leaves a device of the
/// former or of the new size. *Errors*: a client has the device; a donor is missing; the size is smaller than the
/// present one; [`DeviceErrorKind::Full`] names the donors that have too little memory, and how much they lack.
pub async fn grow(options: &RamOptions, size_bytes: u64) -> Result<DeviceShares, Error> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(u64::from(crate::donor::BLOCK_BYTES)) {
        let detail = format!("a size is a multiple of {} bytes, above 0", crate::donor::BLOCK_BYTES);
        return Err(Error::new(DeviceErrorKind::Invalid, &options.spec(), DeviceOperation::Grow, detail));
    }
    let options = &RamOptions { size_bytes: None, ..options.clone() };
    owner::grow(options, size_bytes).await
}

/// Deletes a device, and gives its memory back to the donors; returns the number of donors that had a part of it.
///
/// *Errors*: [`DeviceErrorKind::Absent`] if a donor does not answer, or parts are missing, and [`DeviceErrorKind::Io`] if a donor
/// fails; the parts on the other donors are deleted. [`DeviceErrorKind::Busy`] if a client uses the device and `options` do not
/// take it over; [`DeviceErrorKind::Unsupported`] or [`DeviceErrorKind::Invalid`] if the SPEC names
/// another redundancy or other donors than the device has; then nothing is deleted.
pub async fn delete(options: &RamOptions) -> Result<usize, Error> {
    owner::delete(options).await
}

/// Deletes what the only donor of `options` has of a device, and leaves the other donors alone.
///
/// *Errors*: [`DeviceErrorKind::Absent`] if it does not answer or has nothing. [`DeviceErrorKind::Busy`] if a client has it; without
/// `is_forced` also if its record says that it has a place in the device, or is damaged. Nothing is deleted
/// then.
pub async fn delete_part(options: &RamOptions, is_forced: bool) -> Result<(), Error> {
    if options.donors.len() != 1 || !options.spares.is_empty() {
        let detail = "--part deletes what one donor has: name only this one, as ram(h1:7070,id=disk)".to_owned();
        return Err(Error::new(DeviceErrorKind::Invalid, &options.spec(), DeviceOperation::Open, detail));
    }
    owner::delete_part(options, is_forced).await
}
