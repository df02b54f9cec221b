//! The device.
//!
//! Owns: the translation of operations on buffers to requests of the machine and back, and the limit of requests in
//! progress. Without redundancy, a request goes past the machine if it can (`crate::device::direct`). Promises: if a future is dropped, its operation is still done; a deadline ends only the wait. When the
//! device is closed, donors are told; when it is only dropped, they are not, and the next client finds the state of a
//! crash.
//!
//! *Cost*: a write in one buffer is not copied before the owner; a read is copied once into the caller's buffers.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nectary_block::{
    BlockDevice, Buffer, DeviceCounters, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, Error,
    IoContext, IoFuture, WriteFlags,
};
use nectary_nbd::NbdDevice;
use tokio::sync::{OnceCell, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::client::{donor_bytes, machine};
use super::device_owner::{DeviceOwner, OwnerCommand, OwnerHandle};
use super::moving::MoveError;
use super::planted::times;
use super::remote::DeviceController;
use super::report::DeviceReport;
use super::session::SessionTarget;
use super::spares::SpareDonors;
use super::survey::{self, DeviceDonors, EPOCHS, SurveyResult, describe, error, look_patiently, owned, place};
use super::unfinished::finish;
use crate::device::RamOptions;
use crate::device::address::DonorAddress;
use crate::device::direct::DirectPath;
use crate::donor::{BLOCK_BYTES, random};
use crate::group::{DeviceError, MachineIntent, MachineTimes, OPERATIONS_MAX, REQUEST_BYTES_MAX, UserRequest};
use crate::scrub::ScrubFindings;

/// The maximum number of callers' requests in progress; further requests wait. The machine's own copies, and changes
/// that continue after their callers gave up, are not counted.
const REQUESTS_MAX: usize = OPERATIONS_MAX * 3 / 4;
/// The preferred length of requests; longer ones are not faster. *Units*: bytes.
const PREFERRED_BYTES: u32 = 1 << 20;
/// Attaching may take twice the patience, after which the machine itself gives up, plus this.
const OPENING_SLACK: Duration = Duration::from_secs(30);
/// The assumed minimum speed of a recovery, in bytes read each second; applies to devices that log parity. *Units*:
/// bytes.
const RECOVERY_BYTES_PER_SECOND: u64 = 16 << 20;
/// The maximum number of bytes of one read or write for a machine that logs parity, because that machine handles each
/// block.
const LOG_REQUEST_BYTES_MAX: u64 = 1 << 20;

/// A device in the memory of donors.
pub struct RamDevice {
    inner: Arc<RamDeviceState>,
    /// The owner task, which ends with the device.
    _owner: JoinSet<()>,
}

struct RamDeviceState {
    geometry: DeviceGeometry,
    /// The maximum number of bytes of one read or write that is passed to the machine.
    request_bytes_max: u64,
    commands: mpsc::Sender<OwnerCommand>,
    direct: Arc<DirectPath>,
    places: Arc<Semaphore>,
    reports: watch::Receiver<DeviceReport>,
    detached: OnceCell<Result<(), Error>>,
}

/// Returns the pace of a scrub that compares this many bytes each second; 0: it runs only when requested.
fn scrub_us(bytes_per_second: u64) -> u64 {
    const MIB_US: u64 = 1_000_000 << 20;
    MIB_US.checked_div(bytes_per_second).map_or(0, |pace| pace.max(1))
}

/// Draws a random number for a client.
pub(crate) fn draw_client(options: &RamOptions) -> Result<u64, Error> {
    let bytes = random().map_err(|source| Error::from_os(&source, &options.spec(), DeviceOperation::Open))?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

/// Starts an owner and waits until its machine has attached or created the device.
pub(super) async fn start(
    options: &RamOptions,
    client: u64,
    intent: MachineIntent,
    placed: DeviceDonors,
    seen: Vec<SurveyResult>,
) -> Result<(OwnerHandle, JoinSet<()>), Error> {
    let spares = placed.spares(&seen);
    let is_used = |(at, _): &(usize, &DonorAddress)| placed.places.contains(&(options.donors.len() + at));
    let used = options.spares.iter().enumerate().filter(is_used).map(|(_, spare)| spare.text.clone()).collect();
    let answers = |seen: &&SurveyResult| seen.page().is_some();
    let answering = seen.iter().filter(answers).map(|seen| seen.name().to_owned()).collect();
    let DeviceDonors { geometry, places } = placed;
    let labels: Vec<String> = places.iter().map(|place| seen[*place].label()).collect();
    let patience_us = options.patience.as_micros() as u64;
    let times = MachineTimes { patience_us, scrub_us: scrub_us(options.scrub_bytes), ..times() };
    let targets: Vec<(SessionTarget, u64)> = places.iter().map(|place| (seen[*place].target.clone(), EPOCHS)).collect();
    let names: Vec<String> = places.iter().map(|place| seen[*place].name().to_owned()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    // The sessions of the survey are not needed any more.
    drop(seen);
    let refuse = |refusal: &crate::group::AttachRefusal| {
        let (kind, detail) = describe(refusal, &names);
        (kind, detail)
    };
    let machine = machine(geometry, labels.clone(), client, intent, times, 0)
        .map_err(|refusal| refuse(&refusal))
        .map_err(|(kind, detail)| error(options, kind, detail))?;
    let (mut owner, mut handle) = DeviceOwner::new(options, machine, targets, places, labels, geometry, REQUESTS_MAX);
    owner.spares = SpareDonors::new(spares, used, answering);
    let recovered_bytes = if geometry.is_log() { donor_bytes(&geometry, 0) * u64::from(geometry.members) } else { 0 };
    let recovery = Duration::from_secs(recovered_bytes / RECOVERY_BYTES_PER_SECOND);
    let mut tasks = JoinSet::new();
    tasks.spawn(owner.run());
    match tokio::time::timeout(2 * options.patience + OPENING_SLACK + recovery, &mut handle.opened).await {
        Ok(Ok(Ok(()))) => Ok((handle, tasks)),
        Ok(Ok(Err((refusal, reasons)))) => {
            let (kind, detail) = refuse(&refusal);
            let why = |(name, reason): (&&str, Option<String>)| reason.map(|reason| format!("{name}: {reason}"));
            let mut parts: Vec<String> = names.iter().zip(reasons).filter_map(why).collect();
            parts.push(detail);
            Err(error(options, kind, parts.join("; ")))
        }
        Ok(Err(_)) => Err(error(options, DeviceErrorKind::Io, "it was given up".to_owned())),
        Err(_) => Err(error(options, DeviceErrorKind::TimedOut, "its donors do not answer in time".to_owned())),
    }
}

/// Has an owner detach the device, and waits until it has ended. *Returns* whether every donor that counts was told;
/// also `true` if another client has the device, as then there is nothing to tell.
pub(super) async fn give_up(commands: &mpsc::Sender<OwnerCommand>, mut reports: watch::Receiver<DeviceReport>) -> bool {
    let (reply, end) = oneshot::channel();
    let is_told = match commands.send(OwnerCommand::Detach { reply }).await {
        Ok(()) => end.await.ok(),
        Err(_) => None,
    };
    let has_ended = reports.wait_for(|report| report.ended.is_some()).await.is_ok();
    is_told.unwrap_or(has_ended)
}

impl RamDevice {
    /// Opens a device that was made before. Its connections run in the tokio runtime from which this is called.
    ///
    /// *Errors*: donors that do not answer, are empty, or belong to another device, which are all named; another client
    /// that has the device. *Cost*: if every donor is present, a few requests to each; with logged parity, also a read
    /// of the areas before the slots. If a donor is missing, up to ten seconds more.
    pub async fn open(options: RamOptions) -> Result<RamDevice, Error> {
        let client = draw_client(&options)?;
        let seen = look_patiently(&options, client, false).await;
        let seen = finish(&options, client, seen).await;
        let placed = place(&options, &seen)?;
        if let Some(other) = survey::owner(&seen).filter(|_| !options.take_over) {
            return Err(error(&options, DeviceErrorKind::Busy, owned(&other)));
        }
        let intent = MachineIntent::Attach { take_over: options.take_over, trust_remaining: options.trust_remaining };
        let preferred = PREFERRED_BYTES.saturating_mul(u32::from(placed.geometry.members));
        let (size_bytes, is_log) = (placed.geometry.bytes, placed.geometry.is_log());
        let (handle, owner) = start(&options, client, intent, placed, seen).await?;
        let (write_survives, flush_survives) = handle.reports.borrow().survives();
        let request_bytes_max = if is_log { LOG_REQUEST_BYTES_MAX } else { REQUEST_BYTES_MAX };
        let geometry = DeviceGeometry {
            size_bytes,
            block_bytes: BLOCK_BYTES,
            atomic_bytes: 512,
            read_bytes_preferred: preferred,
            write_bytes_preferred: preferred,
            write_survives,
            flush_survives,
        };
        let OwnerHandle { commands, reports, direct, .. } = handle;
        let places = Arc::new(Semaphore::new(REQUESTS_MAX));
        let detached = OnceCell::new();
        let inner = RamDeviceState { geometry, request_bytes_max, commands, direct, places, reports, detached };
        Ok(RamDevice { inner: Arc::new(inner), _owner: owner })
    }

    /// Returns the device's report.
    pub fn report(&self) -> DeviceReport {
        self.inner.reports.borrow().clone()
    }

    /// Puts another donor in the place of one, which goes on to serve until the other one has everything. `old` is its
    /// address in the SPEC, or its number there; `new` is an address as a SPEC has it.
    ///
    /// *Errors*: why the other donor cannot take the place. *Cost*: one copy of what a donor holds.
    pub async fn replace(&self, old: &str, new: &str) -> Result<(), MoveError> {
        self.remote().replace(old, new).await
    }

    /// Moves what a donor has to a spare, and returns the spare's address. The donor goes on to serve until the spare has
    /// everything; then it has nothing of the device any more. `old` as for [`Self::replace`].
    ///
    /// *Errors*: why no spare can take the place. *Cost*: one copy of what a donor holds.
    pub async fn drain(&self, old: &str) -> Result<String, MoveError> {
        self.remote().drain(old).await
    }

    /// Compares all copies now and repairs wrong ones; returns what was found when everything was compared. While a donor
    /// is not trusted, this waits.
    ///
    /// *Errors*: in words, that the device was given up. *Cost*: everything that the donors have is read once.
    pub async fn scrub(&self) -> Result<ScrubFindings, String> {
        self.remote().scrub().await
    }

    /// Controls the device for as long as it is there, and does not keep it.
    pub fn remote(&self) -> DeviceController {
        DeviceController::new(self.inner.reports.clone(), self.inner.commands.downgrade())
    }

    /// Detaches the device after requests in progress and a last flush, and tells the donors. A second call returns
    /// what the first one did.
    ///
    /// *Errors*: donors with all data do not answer within `patience`. They go on to count the device as attached, so
    /// the next client begins as after a crash. A device that another client has taken over has nothing to tell.
    pub async fn detach(&self) -> Result<(), Error> {
        self.inner.detach().await
    }

    fn request(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<nectary_block::DeviceRequest, Error> {
        let request = nectary_block::DeviceRequest::new(operation, offset, length, context);
        request.check(|| self.spec(), &self.inner.geometry)?;
        Ok(request)
    }

    /// Does a request without data, in parts that are short enough for the machine.
    fn ranged(
        &self,
        checked: Result<nectary_block::DeviceRequest, Error>,
        direct: fn(&NbdDevice, u64, u64, IoContext) -> IoFuture<()>,
        part: impl Fn(u64, u64) -> UserRequest + Send + 'static,
    ) -> IoFuture<()> {
        let request = match checked {
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            let (mut offset, length) = (request.offset, request.length);
            if let Some(lanes) = inner.direct.lanes().filter(|_| length > 0)
                && inner.in_time(&request, lanes.ranged(offset, length, IoContext::default(), direct)).await?
            {
                return Ok(());
            }
            let end = offset + length;
            while offset < end {
                let bytes = REQUEST_BYTES_MAX.min(end - offset);
                inner.submit(&request, part(offset, bytes)).await?;
                offset += bytes;
            }
            Ok(())
        })
    }
}

impl RamDeviceState {
    /// Returns the SPEC that names the present donors.
    fn spec(&self) -> String {
        self.reports.borrow().spec.to_string()
    }

    /// Passes a request to the machine and waits for its result.
    async fn submit(&self, of: &nectary_block::DeviceRequest, request: UserRequest) -> Result<Bytes, Error> {
        let work = async {
            let _place = self.places.acquire().await.map_err(|_| self.ended(of))?;
            let (reply, end) = oneshot::channel();
            self.commands.send(OwnerCommand::Submit { request, reply }).await.map_err(|_| self.ended(of))?;
            end.await.map_err(|_| self.ended(of))?.map_err(|error| self.failed(of, &error))
        };
        self.in_time(of, work).await?
    }

    /// Waits for work on a request, up to its deadline.
    async fn in_time<T>(&self, of: &nectary_block::DeviceRequest, work: impl Future<Output = T>) -> Result<T, Error> {
        match of.deadline {
            None => Ok(work.await),
            Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.map_err(|_| {
                let detail = "the deadline passed before the donors answered".to_owned();
                of.error(DeviceErrorKind::TimedOut, || self.spec(), detail)
            }),
        }
    }

    async fn detach(&self) -> Result<(), Error> {
        let detach = async {
            if give_up(&self.commands, self.reports.clone()).await {
                return Ok(());
            }
            let detail = "not every donor could be told that it is detached: the next client begins as after a crash";
            Err(Error::new(DeviceErrorKind::TimedOut, &self.spec(), DeviceOperation::Close, detail))
        };
        self.detached.get_or_init(|| detach).await.clone()
    }

    fn ended(&self, of: &nectary_block::DeviceRequest) -> Error {
        let reason = self.reports.borrow().ended.clone().unwrap_or_else(|| "the device was given up".into());
        of.error(DeviceErrorKind::Latched, || self.spec(), reason.to_string())
    }

    fn failed(&self, of: &nectary_block::DeviceRequest, error: &DeviceError) -> Error {
        let kind = match error {
            DeviceError::Patience { .. } | DeviceError::Lost { .. } => DeviceErrorKind::Io,
            DeviceError::Corrupt { .. } | DeviceError::Busy => DeviceErrorKind::Io,
            DeviceError::NotAttached => return self.ended(of),
            DeviceError::Superseded => DeviceErrorKind::Latched,
            DeviceError::Range { .. } => DeviceErrorKind::Invalid,
        };
        of.error(kind, || self.spec(), error.to_string())
    }
}

fn refused<T: Send + 'static>(error: Error) -> IoFuture<T> {
    Box::pin(std::future::ready(Err(error)))
}

/// The caller's buffers while the machine uses them; the caller gets them back.
struct CallerBuffers(Arc<Vec<Buffer>>);

impl AsRef<[u8]> for CallerBuffers {
    fn as_ref(&self) -> &[u8] {
        self.0.first().map_or(&[], |buffer| buffer)
    }
}

/// Returns the data of a write, and the handle by which the caller's buffers are returned later.
fn lend(buffers: Vec<Buffer>) -> (Bytes, Arc<Vec<Buffer>>) {
    let joined = (buffers.len() > 1).then(|| {
        let mut joined = Vec::with_capacity(buffers.iter().map(|buffer| buffer.len()).sum());
        buffers.iter().for_each(|buffer| joined.extend_from_slice(buffer));
        Bytes::from(joined)
    });
    let buffers = Arc::new(buffers);
    (joined.unwrap_or_else(|| Bytes::from_owner(CallerBuffers(buffers.clone()))), buffers)
}

/// Returns the buffers, or copies of them if a request to a donor still uses them.
fn take_back(lent: Arc<Vec<Buffer>>) -> Vec<Buffer> {
    Arc::try_unwrap(lent).unwrap_or_else(|lent| lent.iter().map(|buffer| Buffer::copy_of(buffer)).collect())
}

impl BlockDevice for RamDevice {
    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        let (write_survives, flush_survives) = self.inner.reports.borrow().survives();
        DeviceGeometry { write_survives, flush_survives, ..self.inner.geometry }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let geometry = &self.inner.geometry;
        let checked = nectary_block::DeviceRequest::vectored(
            DeviceOperation::Read,
            offset,
            &buffers,
            context,
            || self.spec(),
            geometry,
        );
        let request = match checked {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            if let Some(lanes) = inner.direct.lanes() {
                match inner.in_time(&request, lanes.read(offset, buffers, context)).await? {
                    Ok(read) => return Ok(read),
                    Err(unread) => buffers = unread,
                }
            }
            let (mut done, mut into) = (0, 0..0);
            let mut at = 0;
            while done < request.length {
                let bytes = inner.request_bytes_max.min(request.length - done);
                let data = inner.submit(&request, UserRequest::Read { offset: offset + done, bytes }).await?;
                let mut rest = &data[..];
                while !rest.is_empty() {
                    if into.is_empty() {
                        into = 0..buffers[at].len();
                        at += 1;
                        continue;
                    }
                    let count = into.len().min(rest.len());
                    let (part, others) = rest.split_at(count);
                    buffers[at - 1][into.start..into.start + count].copy_from_slice(part);
                    into.start += count;
                    rest = others;
                }
                done += bytes;
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
        let geometry = &self.inner.geometry;
        let checked = nectary_block::DeviceRequest::vectored(
            DeviceOperation::Write,
            offset,
            &buffers,
            context,
            || self.spec(),
            geometry,
        );
        let request = match checked {
            Ok(request) if request.length == 0 => return Box::pin(std::future::ready(Ok(buffers))),
            Ok(request) => nectary_block::DeviceRequest { fua: flags.fua, ..request },
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            if let Some(lanes) = inner.direct.lanes()
                && inner.in_time(&request, lanes.write(offset, &buffers, flags, context)).await?
            {
                return Ok(buffers);
            }
            let (mut data, lent) = lend(buffers);
            let mut at = offset;
            while !data.is_empty() {
                let part = data.split_to(data.len().min(inner.request_bytes_max as usize));
                let next = at + part.len() as u64;
                inner.submit(&request, UserRequest::Write { offset: at, data: part, force: flags.fua }).await?;
                at = next;
            }
            drop(data);
            Ok(take_back(lent))
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let request = match self.request(DeviceOperation::Flush, 0, 0, context) {
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move { inner.submit(&request, UserRequest::Flush).await.map(drop) })
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let checked = self.request(DeviceOperation::Discard, offset, length, context);
        let direct = |device: &NbdDevice, offset, length, context| device.discard(offset, length, context);
        self.ranged(checked, direct, |offset, bytes| UserRequest::Trim { offset, bytes })
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let checked = self.request(DeviceOperation::WriteZeroes, offset, length, context);
        let direct = |device: &NbdDevice, offset, length, context| device.write_zeroes(offset, length, context);
        self.ranged(checked, direct, |offset, bytes| UserRequest::WriteZeroes { offset, bytes, force: false })
    }

    /// With redundancy the whole range counts as mapped, because the copies are not compared.
    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let request = match self.request(DeviceOperation::Allocation, offset, length, context) {
            Ok(_) if length == 0 => return Box::pin(std::future::ready(Ok(Vec::new()))),
            Ok(request) => request,
            Err(error) => return refused(error),
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            let found = match inner.direct.lanes() {
                Some(lanes) => inner.in_time(&request, lanes.allocation(offset, length, context)).await?,
                None => None,
            };
            Ok(found.unwrap_or_else(|| vec![DeviceExtent { offset, length, mapped: true }]))
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
        let request = nectary_block::DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        refused(request.error(kind, || self.spec(), detail))
    }

    fn close(&self) -> IoFuture<()> {
        let inner = self.inner.clone();
        Box::pin(async move { inner.detach().await })
    }

    fn figures(&self) -> Vec<DeviceCounters> {
        self.inner.reports.borrow().numbers()
    }
}
