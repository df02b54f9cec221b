//! The device `ram(DONOR,…,id=…)`: blocks in the memory of other machines.
//!
//! Owns: the donor of each block, requests that involve several donors, and the labels that identify devices. Promises:
//! requests to several donors are in flight at the same time; a request fails at the latest when a donor has been
//! missing for `patience`; when a donor is lost, blocks on the others stay readable and writable, and its own blocks
//! give errors, never other bytes. A flush fails while a donor is lost, because data written there is lost. Leaves to
//! others: devices with redundancy (`owner`); memory and its users (`donor`); the protocol (`nectary-nbd`).
//!
//! | file | what is in it |
//! |---|---|
//! | `options` | the options in a SPEC |
//! | `address` | a donor in a SPEC |
//! | `label` | the label, which says which device a donor belongs to |
//! | `layout` | the donor of each byte |
//! | `connect` | from an address to a session |
//! | `opening` | judging what the donors have; opening and making a device |
//! | `deleting` | deleting a device, or what one donor has of it |
//! | `growing` | a device gets larger |
//! | `link` | sessions with one donor, and requests that outlive them |
//! | `copy` | copying between the buffers of a request and one donor's part |
//! | `extents` | mapped extents |
//! | `owner` | devices with redundancy |
//! | `moves` | another donor takes the place of one: the plan |
//! | `together` | waiting for several futures |

pub(crate) mod address;
mod connect;
mod copy;
pub(crate) mod deleting;
mod extents;
mod growing;
mod label;
mod layout;
mod link;
pub mod moves;
mod opening;
mod options;
pub mod owner;
pub(crate) mod together;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nectary_block::{
    BlockDevice, Buffer, DeviceCounters, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation,
    DeviceRegistry, DeviceRequest, Error, IoContext, IoFuture, SharedDevice, SurvivalLevel, WriteFlags,
};
use tokio::task::JoinSet;

use self::connect::survives;
use self::copy::{gather, scatter};
use self::extents::merge;
use self::label::LABEL_AREA_BYTES;
use self::layout::{DonorPart, ShareLayout};
use self::link::{DonorFailure, DonorLink};
use self::owner::planted::{Bug, planted};
use self::owner::{DeviceController, RedundantDevice};
use self::together::together;

pub use self::label::{DONORS_MAX, DonorLabel, LabelContent, Redundancy, read as read_label};
pub use self::options::{OVERFLOW_PERCENT, PATIENCE, RamOptions};

/// The preferred length of requests for each donor; longer ones are not faster. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;
/// The longest part of a range for which donors are asked about allocation; the rest counts as mapped. *Units*: bytes.
const ALLOCATION_BYTES_MAX: u64 = 16 << 30;

/// Adds the SPEC `ram(…)` to a registry.
pub fn register(registry: &mut DeviceRegistry) {
    register_listing(registry, &OpenDevices::default());
}

/// The devices with redundancy that a registry has opened; clones share the list.
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

/// As [`register`]; devices with redundancy that it opens are added to `opened`.
pub fn register_listing(registry: &mut DeviceRegistry, opened: &OpenDevices) {
    let opened = opened.clone();
    registry.register("ram", move |arguments| {
        let opened = opened.clone();
        async move {
            let options = RamOptions::parse(arguments)?;
            if options.redundancy == Redundancy::None {
                return Ok(Arc::new(RamDevice::open(options).await?) as SharedDevice);
            }
            let device = RedundantDevice::open(options).await?;
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
    if options.redundancy != Redundancy::None {
        return owner::create(options).await;
    }
    let DonorLabel { id, size_bytes, redundancy, shares, .. } = opening::create(options, force).await?;
    Ok(DeviceShares { id, size_bytes, redundancy, shares })
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
    if options.redundancy != Redundancy::None {
        return owner::grow(options, size_bytes).await;
    }
    let DonorLabel { id, size_bytes, redundancy, shares, .. } = growing::grow(options, size_bytes).await?;
    Ok(DeviceShares { id, size_bytes, redundancy, shares })
}

/// Deletes a device, and gives its memory back to the donors; returns the number of donors that had a part of it.
///
/// *Errors*: [`DeviceErrorKind::Absent`] if a donor does not answer, or parts are missing, and [`DeviceErrorKind::Io`] if a donor
/// fails; the parts on the other donors are deleted. [`DeviceErrorKind::Busy`] if a client uses the device and `options` do not
/// take it over, which only redundancy allows; [`DeviceErrorKind::Unsupported`] or [`DeviceErrorKind::Invalid`] if the SPEC names
/// another redundancy or other donors than the device has; then nothing is deleted.
pub async fn delete(options: &RamOptions) -> Result<usize, Error> {
    match options.redundancy {
        Redundancy::None => deleting::delete(options).await,
        _ => owner::delete(options).await,
    }
}

/// Deletes what the only donor of `options` has of a device, and leaves the other donors alone.
///
/// *Errors*: [`DeviceErrorKind::Absent`] if it does not answer or has nothing. [`DeviceErrorKind::Busy`] if a client has it; without
/// `is_forced` also if its record or label says that it has a place in the device, or is damaged. Nothing is deleted
/// then.
pub async fn delete_part(options: &RamOptions, is_forced: bool) -> Result<(), Error> {
    if options.donors.len() != 1 || !options.spares.is_empty() {
        let detail = "--part deletes what one donor has: name only this one, as ram(h1:7070,id=disk)".to_owned();
        return Err(Error::new(DeviceErrorKind::Invalid, &options.spec(), DeviceOperation::Open, detail));
    }
    match owner::delete_part(options, is_forced).await? {
        true => Ok(()),
        false => deleting::delete_part(options, is_forced).await,
    }
}

/// A device in the memory of donors.
pub struct RamDevice {
    inner: Arc<RamDeviceState>,
    /// The tasks that reconnect; they end with the device.
    _keepers: JoinSet<()>,
}

struct RamDeviceState {
    spec: String,
    geometry: DeviceGeometry,
    layout: ShareLayout,
    links: Vec<Arc<DonorLink>>,
}

impl RamDevice {
    /// Opens a device that was made before. Its sessions run in the tokio runtime from which this is called.
    ///
    /// *Errors*: donors that do not answer, are empty, or belong to another device; all of them are named.
    pub async fn open(options: RamOptions) -> Result<RamDevice, Error> {
        let opening::ReadyDonors { label, donors } = opening::open(&options).await?;
        let (mut write, mut flush) = (SurvivalLevel::Power, SurvivalLevel::Power);
        let (mut links, mut keepers) = (Vec::new(), JoinSet::new());
        for (target, label, reached) in donors {
            let of_donor = survives(&target, &reached.device);
            (write, flush) = (write.min(of_donor.0), flush.min(of_donor.1));
            let can_return = target.can_return();
            let link = Arc::new(DonorLink::new(target, label, reached, options.patience));
            if can_return {
                keepers.spawn(link.clone().keep());
            }
            links.push(link);
        }
        let preferred = PREFERRED_BYTES.saturating_mul(links.len() as u32);
        let geometry = DeviceGeometry {
            size_bytes: label.size_bytes,
            block_bytes: crate::donor::BLOCK_BYTES,
            atomic_bytes: 512,
            read_bytes_preferred: preferred,
            write_bytes_preferred: preferred,
            write_survives: write,
            flush_survives: flush,
        };
        let formers = if planted(Bug::FormersIgnored) { &[][..] } else { &label.formers };
        let layout = ShareLayout::new(formers, &label.shares);
        let inner = RamDeviceState { spec: options.spec(), geometry, layout, links };
        Ok(RamDevice { inner: Arc::new(inner), _keepers: keepers })
    }

    fn vectored(
        &self,
        operation: DeviceOperation,
        offset: u64,
        buffers: &[Buffer],
        context: IoContext,
    ) -> Result<DeviceRequest, Error> {
        DeviceRequest::vectored(operation, offset, buffers, context, || self.spec(), &self.inner.geometry)
    }

    /// Sends a request without data for each donor's part of a range.
    fn ranged(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
        send: impl Fn(&dyn BlockDevice, u64, u64, IoContext) -> IoFuture<()> + Send + Sync + 'static,
    ) -> IoFuture<()> {
        let request = DeviceRequest::new(operation, offset, length, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let inner = self.inner.clone();
        Box::pin(async move {
            let parts = inner.layout.ranges(offset, length);
            let send = &send;
            let of_part = |part: DonorPart| {
                let link = &inner.links[part.donor];
                link.run(context.deadline, move |device| {
                    send(device, LABEL_AREA_BYTES + part.place, part.length, waiting(context))
                })
            };
            let donors: Vec<usize> = parts.iter().map(|part| part.donor).collect();
            let done = together(parts.into_iter().map(of_part).collect()).await;
            inner.all(&request, donors, done).map(drop)
        })
    }
}

impl RamDeviceState {
    /// Returns all results, or the first failure as an error of this device.
    fn all<T>(
        &self,
        request: &DeviceRequest,
        donors: Vec<usize>,
        done: Vec<Result<T, DonorFailure>>,
    ) -> Result<Vec<T>, Error> {
        let results = donors.into_iter().zip(done).map(|(donor, result)| {
            result.map_err(|failed| {
                failed.of(self.links[donor].name(), |kind, detail| request.error(kind, || self.spec.clone(), detail))
            })
        });
        results.collect()
    }
}

/// Returns the context of a request to a donor, without the deadline, which the link enforces.
fn waiting(context: IoContext) -> IoContext {
    IoContext { deadline: None::<Instant>, ..context }
}

fn refused<T: Send + 'static>(error: Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

impl BlockDevice for RamDevice {
    fn spec(&self) -> String {
        self.inner.spec.clone()
    }

    fn geometry(&self) -> DeviceGeometry {
        self.inner.geometry
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let request = match self.vectored(DeviceOperation::Read, offset, &buffers, context) {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            let parts = inner.layout.parts(offset, request.length as usize);
            if let [part] = parts.as_slice() {
                let link = &inner.links[part.donor];
                let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.len()).collect();
                let mut first = Some(buffers);
                let read = link.run(context.deadline, |device| {
                    let fresh = || lengths.iter().map(|&length| Buffer::recycled(length)).collect();
                    let buffers = first.take().unwrap_or_else(fresh);
                    device.read_at(LABEL_AREA_BYTES + part.place, buffers, waiting(context))
                });
                let read = read.await;
                link.count(part.length, 0);
                return inner.all(&request, vec![part.donor], vec![read]).map(|mut all| all.pop().unwrap_or_default());
            }
            let of_part = |part: &DonorPart| {
                let (place, length) = (LABEL_AREA_BYTES + part.place, part.length as usize);
                inner.links[part.donor].count(part.length, 0);
                inner.links[part.donor].run(context.deadline, move |device| {
                    device.read_at(place, vec![Buffer::recycled(length)], waiting(context))
                })
            };
            let donors = parts.iter().map(|part| part.donor).collect();
            let read = together(parts.iter().map(of_part).collect()).await;
            let read = inner.all(&request, donors, read)?;
            for (part, read) in parts.iter().zip(&read) {
                read.iter().for_each(|bytes| scatter(&mut buffers, part, bytes));
            }
            Ok(buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let request = match self.vectored(DeviceOperation::Write, offset, &buffers, context) {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => DeviceRequest { fua: flags.fua, ..request },
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            let parts = inner.layout.parts(offset, request.length as usize);
            let buffers_of = &buffers;
            let mut writes = Vec::with_capacity(parts.len());
            for part in &parts {
                let (link, place) = (&inner.links[part.donor], LABEL_AREA_BYTES + part.place);
                link.count(0, part.length);
                // A session may keep its buffers when it ends, so the caller's buffers stay here for the next session.
                writes.push(link.run(context.deadline, move |device| {
                    device.write_at(place, vec![gather(buffers_of, part)], flags, waiting(context))
                }));
            }
            let donors = parts.iter().map(|part| part.donor).collect();
            let done = together(writes).await;
            inner.all(&request, donors, done)?;
            Ok(buffers)
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::Flush, 0, 0, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let inner = self.inner.clone();
        Box::pin(async move {
            let flush = |link: &Arc<DonorLink>| {
                let link = link.clone();
                async move { link.run(context.deadline, |device| device.flush(waiting(context))).await }
            };
            let done = together(inner.links.iter().map(flush).collect()).await;
            inner.all(&request, (0..inner.links.len()).collect(), done).map(drop)
        })
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.ranged(DeviceOperation::Discard, offset, length, context, |device, offset, length, context| {
            device.discard(offset, length, context)
        })
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.ranged(DeviceOperation::WriteZeroes, offset, length, context, |device, offset, length, context| {
            device.write_zeroes(offset, length, context)
        })
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let request = DeviceRequest::new(DeviceOperation::Allocation, offset, length, context);
        if let Err(error) = request.check(|| self.spec(), &self.inner.geometry) {
            return refused(error);
        }
        let inner = self.inner.clone();
        Box::pin(async move {
            let looked = length.min(ALLOCATION_BYTES_MAX);
            let parts = inner.layout.ranges(offset, looked);
            let ask = |part: &DonorPart| {
                let (link, place, length) = (&inner.links[part.donor], LABEL_AREA_BYTES + part.place, part.length);
                link.run(context.deadline, move |device| device.allocation(place, length, waiting(context)))
            };
            let donors = parts.iter().map(|part| part.donor).collect();
            let found = together(parts.iter().map(ask).collect()).await;
            let found = inner.all(&request, donors, found)?;
            Ok(merge(&inner.layout, offset, length, looked, &parts, &found))
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let DeviceGeometry { size_bytes: now, block_bytes, .. } = self.inner.geometry;
        let (kind, detail) = match size_bytes {
            bytes if bytes == now => return Box::pin(std::future::ready(Ok(()))),
            bytes if bytes < now || !bytes.is_multiple_of(u64::from(block_bytes)) => {
                (DeviceErrorKind::Invalid, format!("it has {now} bytes, grows only, by blocks of {block_bytes}"))
            }
            _ => (DeviceErrorKind::Unsupported, "detach it, and grow it with `nectary ram grow`".to_owned()),
        };
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        refused(request.error(kind, || self.spec(), detail))
    }

    /// Donors of a device without redundancy keep no record of its client.
    fn close(&self) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn figures(&self) -> Vec<DeviceCounters> {
        let links = &self.inner.links;
        let count = |is: fn((bool, bool)) -> bool| links.iter().filter(|link| is(link.condition())).count() as u64;
        let values =
            vec![("donors", links.len() as u64), ("donors_up", count(|is| is.0)), ("donors_lost", count(|is| is.1))];
        let own = DeviceCounters { device: "ram", values };
        std::iter::once(own).chain(links.iter().map(|link| link.figures())).collect()
    }
}
