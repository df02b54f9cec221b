//! The io_uring engine: one ring for each thread that runs a current-thread runtime.
//!
//! There is one ring per thread so that an operation costs no thread switch and no contended lock: the operation goes
//! into the ring of the calling thread, and the event loop of that thread sees its end. The steps are:
//!
//! 1. An operation goes into a slot of the ring (or a bounded queue) and wakes the *driver*, a task of the same
//!    runtime.
//! 2. The driver is polled after the ready tasks. It submits all operations that have gathered in the ring with one
//!    call.
//! 3. The runtime watches the ring's descriptor like a socket. When the descriptor is readable, the driver collects the
//!    ended operations and wakes the tasks that wait for them.
//!
//! A ring belongs to one thread and one runtime. The runtime owns the driver. When the runtime is dropped, the driver
//! waits at most [`CLOSE_PATIENCE`] for the operations that the kernel has, reports all results, and closes the ring.
//! If the thread ends first, the driver stops as soon as the ring is idle. Runtimes with several threads have no ring;
//! their operations use the pool of the POSIX engine.

mod core;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio::sync::oneshot;

use self::core::{Ended, EnqueueResult, RingCore, RingJob};
use super::transfer::DeviceTransfer;
use crate::buffer::Buffer;
use crate::device::IoFuture;
use crate::error::{DeviceErrorKind, Error};
use crate::request::ready;

/// The maximum number of operations of one ring that the kernel has at a time.
const DEPTH: u32 = 256;

/// The maximum number of operations that wait for a slot of one ring; further operations are refused as busy.
const WAITING_MAX: usize = 65536;

/// The longest time for which an ending runtime waits for the operations that the kernel has.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

/// Whether this host allows io_uring; this is tested once per process.
pub(super) fn available() -> Result<(), &'static str> {
    static ANSWER: OnceLock<Option<String>> = OnceLock::new();
    match ANSWER.get_or_init(|| RingCore::new(8, 0).err().map(|error| error.to_string())) {
        None => Ok(()),
        Some(reason) => Err(reason),
    }
}

/// Begins an operation on this thread's ring. *Returns* the transfer as the error if the thread has no ring.
pub(super) fn transfer(handle: &Handle, transfer: DeviceTransfer) -> Result<IoFuture<Vec<Buffer>>, DeviceTransfer> {
    if handle.runtime_flavor() != RuntimeFlavor::CurrentThread {
        return Err(transfer);
    }
    match RINGS.try_with(|rings| ring_of(handle, &mut rings.borrow_mut())) {
        Ok(Some(ring)) => begin(&ring, transfer),
        // The kernel refused to make a ring, or the thread is ending.
        _ => Err(transfer),
    }
}

fn begin(ring: &SharedRing, transfer: DeviceTransfer) -> Result<IoFuture<Vec<Buffer>>, DeviceTransfer> {
    let (shared, operation) = (transfer.shared.clone(), transfer.operation);
    let (offset, length) = (transfer.offset, transfer.length);
    let (reply, answer) = oneshot::channel();
    let mut state = ring.lock();
    match state.core.accept(RingJob::new(transfer, reply)) {
        EnqueueResult::Yes => {}
        EnqueueResult::Closed(job) => return Err(job.into_transfer()),
        EnqueueResult::Full(job) => {
            let detail = format!("{} operations wait for the ring already; try again later", state.core.waiting_max());
            return Ok(ready(Err(job.into_transfer().error(DeviceErrorKind::Busy, detail))));
        }
    }
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
    Ok(Box::pin(async move {
        answer.await.unwrap_or_else(|_| {
            let detail = "the ring was lost before the operation ended";
            Err(Error::new(DeviceErrorKind::Io, &shared.spec, operation, detail).at(offset, length))
        })
    }))
}

thread_local! {
    /// The rings of this thread, one for each live runtime that has used a ring on this thread.
    static RINGS: RefCell<Vec<ThreadRing>> = const { RefCell::new(Vec::new()) };
}

/// A thread's reference to a ring. When the thread ends, this value is dropped and tells the driver to stop.
struct ThreadRing {
    runtime: Id,
    /// The ring; `None` if the kernel refused to make one.
    ring: Option<Arc<SharedRing>>,
}

impl Drop for ThreadRing {
    fn drop(&mut self) {
        let Some(ring) = &self.ring else { return };
        let mut state = ring.lock();
        state.is_orphan = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Finds this thread's ring for the runtime, or makes a ring and starts its driver.
fn ring_of(handle: &Handle, rings: &mut Vec<ThreadRing>) -> Option<Arc<SharedRing>> {
    let runtime = handle.id();
    if let Some(local) = rings.iter().find(|local| local.runtime == runtime) {
        match &local.ring {
            Some(ring) if ring.lock().core.is_closed() => {}
            ring => return ring.clone(),
        }
    }
    rings.retain(|local| match &local.ring {
        Some(ring) => !ring.lock().core.is_closed(),
        None => false,
    });
    let ring = start(handle, DEPTH, WAITING_MAX).ok();
    rings.push(ThreadRing { runtime, ring: ring.clone() });
    ring
}

/// Makes a ring and starts its driver in the runtime.
fn start(handle: &Handle, depth: u32, waiting_max: usize) -> io::Result<Arc<SharedRing>> {
    let core = RingCore::new(depth, waiting_max)?;
    let descriptor = RingDescriptor(core.uring().as_raw_fd());
    let ring = Arc::new(SharedRing { state: Mutex::new(RingState { core, waker: None, is_orphan: false }) });
    // SAFETY: the descriptor stays open as long as the ring. The driver holds the ring, and drops it after `readiness`.
    let readiness = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? };
    // The runtime owns the task, which stops with the runtime or with the thread (see the comment at the head of this
    // file).
    drop(handle.spawn(RingDriver { readiness, ring: ring.clone() }));
    Ok(ring)
}

/// A ring, shared by the driver and the thread that uses the ring.
struct SharedRing {
    state: Mutex<RingState>,
}

struct RingState {
    core: RingCore,
    /// The waker of the driver. The code that wakes the driver takes the waker out of this field.
    waker: Option<Waker>,
    /// The thread has ended, so no new operations arrive.
    is_orphan: bool,
}

impl SharedRing {
    fn lock(&self) -> MutexGuard<'_, RingState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The ring's descriptor, which the runtime watches. The ring owns the descriptor, and keeps it open until the runtime
/// no longer watches it.
struct RingDescriptor(RawFd);

impl AsRawFd for RingDescriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// The task that submits and collects operations. The order of the fields matters: `readiness` must be dropped before
/// `ring`.
struct RingDriver {
    readiness: AsyncFd<RingDescriptor>,
    ring: Arc<SharedRing>,
}

impl RingDriver {
    fn turn(&self, waker: &Waker) -> bool {
        let mut ended = Ended::new();
        let mut state = self.ring.lock();
        let is_busy = state.core.turn(&mut ended);
        let is_over = state.core.is_closed() || (state.is_orphan && state.core.is_idle());
        state.waker = Some(waker.clone());
        drop(state);
        tell(ended);
        if is_busy {
            waker.wake_by_ref();
        }
        is_over
    }
}

impl Future for RingDriver {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.turn(context.waker()) {
                return Poll::Ready(());
            }
            match self.readiness.poll_read_ready(context) {
                // Readiness is cleared before the next turn collects, so that the driver misses no operation that ends
                // in between.
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                // The runtime is ending and will drop this task.
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for RingDriver {
    fn drop(&mut self) {
        let mut ended = Ended::new();
        self.ring.lock().core.close(CLOSE_PATIENCE, &mut ended);
        tell(ended);
    }
}

fn tell(ended: Ended) {
    for (reply, result) in ended {
        // If the caller no longer waits, the buffers are freed here, after the kernel is done with them.
        let _ = reply.send(result);
    }
}
