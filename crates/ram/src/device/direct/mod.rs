//! Requests to a device without redundancy, past the task that owns it.
//!
//! Owns: sending a request to the donors of its blocks while nothing else goes on: no donor is away, left, filled or
//! replaced. Promises: a request is one message to each donor that has a part of it, as if the machine had sent it; if a
//! session ends, or a donor refuses, the request goes to the machine, which waits for the donor and sends it again. Leaves
//! to others: everything else (`owner`, `in_place`).
//!
//! | file | what is in it |
//! |---|---|
//! | `parts` | the part of a range on each donor |
//! | `copy` | copying between the buffers of a request and one donor's part |
//! | `extents` | mapped extents |
//!
//! # Why the machine need not know of these requests
//! 1. A stripe is on one donor, so there is no copy that a request could change alone, and there are no marks.
//! 2. The machine changes blocks itself only while it fills a donor. Then there are no lanes, and the sessions with the
//!    donor's former memory have ended.
//! 3. A request belongs to one session. When the session ends, the donor refuses what arrives late, once the next session
//!    has sent its first request. So the request can be sent again by the machine.
//! 4. While another donor takes the place of one, what changes must be known. So the lanes are closed first, and the move
//!    begins when the last request on them has ended.
//! 5. The machine keeps no checksums of these devices. Damaged memory is found by the donor.
//!
//! *Cost*: against a request through the machine, four wake-ups of tasks less; a read in one part is not copied.

mod copy;
mod extents;
mod parts;

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Context, Waker};

use nectary_block::{BlockDevice, Buffer, DeviceExtent, Error, IoContext, IoFuture, WriteFlags};
use nectary_host::Shutdown;
use nectary_nbd::NbdDevice;
use tokio::sync::mpsc;

use self::copy::{gather, scatter};
use self::extents::merge;
use self::parts::DonorPart;
use crate::device::foreign::DonorExport;
use crate::device::owner::planted::{Bug, planted};
use crate::device::together::together;
use crate::format::{RecordGeometry, is_damaged};
use crate::in_place::is_lost;

pub use self::parts::{DeviceParts, more_shares, shares};

/// The longest part of a range for which donors are asked about allocation; the rest counts as mapped. *Units*: bytes.
const ALLOCATION_BYTES_MAX: u64 = 16 << 30;

/// The counters of a donor's lane.
#[derive(Debug, Default)]
pub struct LaneCounters {
    pub requests: AtomicU64,
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
}

/// The session with one donor.
pub struct DonorLane {
    pub device: Arc<DonorExport>,
    /// Set when the owner has given the session up.
    pub ended: Shutdown,
    pub counters: Arc<LaneCounters>,
}

/// A request on a lane whose caller does not wait any more.
type AbandonedRequest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests whose callers do not wait any more, and which may not have ended.
type AbandonedRequests = Arc<Mutex<Vec<AbandonedRequest>>>;

/// The sessions with all donors, by position.
pub struct DirectLanes {
    device: [u8; 16],
    block_bytes: u64,
    parts: DeviceParts,
    lanes: Vec<DonorLane>,
    abandoned: AbandonedRequests,
    /// Closed when the last request has ended.
    _alive: mpsc::Sender<()>,
}

/// A request on a lane; if it is dropped before it has ended, it is abandoned.
struct LaneRequest<'lanes, T: Send + 'static> {
    lanes: &'lanes DirectLanes,
    pending: Option<IoFuture<T>>,
}

/// The lanes, if requests may use them now; the device and its owner share it.
#[derive(Default)]
pub struct DirectPath {
    lanes: RwLock<Option<Arc<DirectLanes>>>,
}

/// Lanes that were opened, until the last request on them has ended.
struct UsedLanes {
    closed: mpsc::Receiver<()>,
    abandoned: AbandonedRequests,
}

/// All lanes that were closed, on which requests may not have ended.
pub struct LanesClosed(Vec<UsedLanes>);

impl LanesClosed {
    /// Whether there is nothing to wait for.
    pub fn is_unused(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until every request on them has ended.
    pub async fn wait(self) {
        for UsedLanes { mut closed, abandoned } in self.0 {
            let _ = closed.recv().await;
            let abandoned = std::mem::take(&mut *abandoned.lock().unwrap_or_else(PoisonError::into_inner));
            together(abandoned).await;
        }
    }
}

impl UsedLanes {
    fn is_in_use(&mut self) -> bool {
        let has_ended = matches!(self.closed.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        !has_ended || !unfinished(&self.abandoned).is_empty()
    }
}

/// Returns the abandoned requests that have not ended.
fn unfinished(abandoned: &AbandonedRequests) -> MutexGuard<'_, Vec<AbandonedRequest>> {
    let mut list = abandoned.lock().unwrap_or_else(PoisonError::into_inner);
    list.retain_mut(|request| request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    list
}

/// The owner's side of the path.
#[derive(Default)]
pub struct DirectGate {
    pub path: Arc<DirectPath>,
    is_open: bool,
    used: Vec<UsedLanes>,
}

impl DirectGate {
    /// Whether requests may use the lanes.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Lets requests use these sessions.
    pub fn open(&mut self, geometry: &RecordGeometry, lanes: Vec<DonorLane>) {
        let Some(zones) = geometry.zones() else { return };
        let (alive, closed) = mpsc::channel(1);
        let abandoned = AbandonedRequests::default();
        let lanes = DirectLanes {
            device: geometry.device,
            block_bytes: u64::from(geometry.block_bytes),
            parts: DeviceParts::new(geometry, &zones),
            lanes,
            abandoned: abandoned.clone(),
            _alive: alive,
        };
        *self.path.lanes.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(lanes));
        self.is_open = true;
        let is_in_use = |used: &mut UsedLanes| used.is_in_use();
        self.used.retain_mut(is_in_use);
        self.used.push(UsedLanes { closed, abandoned });
    }

    /// Lets no further request use the lanes. Those that use them go on.
    pub fn close(&mut self) {
        *self.path.lanes.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.is_open = false;
    }

    /// The same; *returns* what to wait for until the last request has ended, also on lanes that were closed before.
    pub fn close_for_good(&mut self) -> LanesClosed {
        self.close();
        let used = std::mem::take(&mut self.used);
        LanesClosed(if planted(Bug::LanesNotAwaited) { Vec::new() } else { used })
    }
}

impl DirectPath {
    /// Returns the lanes, if requests may use them now.
    pub fn lanes(&self) -> Option<Arc<DirectLanes>> {
        self.lanes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T: Send + 'static> LaneRequest<'_, T> {
    async fn answer(&mut self) -> Result<T, Error> {
        match &mut self.pending {
            Some(pending) => pending.await,
            None => std::future::pending().await,
        }
    }
}

impl<T: Send + 'static> Drop for LaneRequest<'_, T> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            unfinished(&self.lanes.abandoned).push(Box::pin(async move { _ = pending.await }));
        }
    }
}

/// The context of a request to a donor, without the deadline, which the caller enforces.
fn waiting(context: IoContext) -> IoContext {
    IoContext { deadline: None, ..context }
}

impl DirectLanes {
    /// Sends a request to a donor; `None`: the session has ended, or the donor refuses it.
    async fn send<T: Send + 'static>(&self, part: &DonorPart, send: impl FnOnce(&NbdDevice) -> IoFuture<T>) -> Option<T> {
        let lane = &self.lanes[part.donor];
        lane.counters.requests.fetch_add(1, Ordering::Relaxed);
        let mut request = LaneRequest { lanes: self, pending: Some(send(&lane.device)) };
        let done = tokio::select! {
            biased;
            answer = request.answer() => answer.ok(),
            () = lane.ended.requested() => None,
        };
        request.pending = None;
        done
    }

    fn count(&self, part: &DonorPart, of: fn(&LaneCounters) -> &AtomicU64) {
        of(&self.lanes[part.donor].counters).fetch_add(part.length, Ordering::Relaxed);
    }

    /// Reads into the buffers; on an error the machine must be asked. The buffers are whole blocks in total.
    pub async fn read(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> Result<Vec<Buffer>, Vec<Buffer>> {
        let lengths: Vec<usize> = buffers.iter().map(|buffer| buffer.len()).collect();
        let parts = self.parts.parts(offset, lengths.iter().sum());
        parts.iter().for_each(|part| self.count(part, |counters| &counters.read_bytes));
        if let [part] = parts.as_slice() {
            let read = self.send(part, |device| device.read_at(part.place, buffers, waiting(context))).await;
            return match read {
                Some(read) if self.is_right(offset, &read) => Ok(read),
                Some(read) => Err(read),
                None => Err(lengths.into_iter().map(Buffer::recycled).collect()),
            };
        }
        let of_part = |part: &DonorPart| {
            let (place, length) = (part.place, part.length as usize);
            let part = part.clone();
            async move {
                self.send(&part, |device| device.read_at(place, vec![Buffer::recycled(length)], waiting(context))).await
            }
        };
        let read = together(parts.iter().map(of_part).collect()).await;
        let Some(read) = read.into_iter().collect::<Option<Vec<_>>>() else { return Err(buffers) };
        for (part, read) in parts.iter().zip(&read) {
            read.iter().for_each(|bytes| scatter(&mut buffers, part, bytes));
        }
        if self.is_right(offset, &buffers) { Ok(buffers) } else { Err(buffers) }
    }

    /// Whether no block that was read is lost or damaged.
    fn is_right(&self, offset: u64, buffers: &[Buffer]) -> bool {
        if planted(Bug::LostReadDirectly) {
            return true;
        }
        let size = self.block_bytes as usize;
        let mut block = offset / self.block_bytes;
        let mut is_right = |bytes: &[u8]| {
            let is_bad = is_lost(&self.device, block, bytes) || is_damaged(bytes);
            block += 1;
            !is_bad
        };
        if buffers.iter().all(|buffer| buffer.len().is_multiple_of(size)) {
            return buffers.iter().all(|buffer| buffer.chunks(size).all(&mut is_right));
        }
        let joined: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        joined.chunks(size).all(is_right)
    }

    /// Writes; *returns* whether it is done, or else the machine must be asked.
    pub async fn write(&self, offset: u64, buffers: &[Buffer], flags: WriteFlags, context: IoContext) -> bool {
        let parts = self.parts.parts(offset, buffers.iter().map(|buffer| buffer.len()).sum());
        let of_part = |part: &DonorPart| {
            self.count(part, |counters| &counters.written_bytes);
            let part = part.clone();
            async move {
                // The session may keep its buffers when it ends, so the caller's buffers stay here for the machine.
                let data = gather(buffers, &part);
                self.send(&part, |device| device.write_at(part.place, vec![data], flags, waiting(context))).await
            }
        };
        together(parts.iter().map(of_part).collect()).await.iter().all(Option::is_some)
    }

    /// Sends a request without data for each donor's part of a range; *returns* whether all are done.
    pub async fn ranged(
        &self,
        offset: u64,
        length: u64,
        context: IoContext,
        send: fn(&NbdDevice, u64, u64, IoContext) -> IoFuture<()>,
    ) -> bool {
        let of_part = |part: DonorPart| async move {
            self.send(&part, |device| send(device, part.place, part.length, waiting(context))).await
        };
        let parts = self.parts.ranges(offset, length);
        together(parts.into_iter().map(of_part).collect()).await.iter().all(Option::is_some)
    }

    /// Returns the mapped extents of a range, by what the donors say.
    pub async fn allocation(&self, offset: u64, length: u64, context: IoContext) -> Option<Vec<DeviceExtent>> {
        let looked = length.min(ALLOCATION_BYTES_MAX);
        let parts = self.parts.ranges(offset, looked);
        let ask = |part: &DonorPart| {
            let part = part.clone();
            async move {
                self.send(&part, |device| device.allocation(part.place, part.length, waiting(context))).await
            }
        };
        let found: Option<Vec<_>> = together(parts.iter().map(ask).collect()).await.into_iter().collect();
        Some(merge(&self.parts, offset, length, looked, &parts, &found?))
    }
}
