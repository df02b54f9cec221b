//! Timed waits with an accuracy of tens of microseconds. The unit of the runtime's timers, a millisecond, is longer
//! than a request to a fast disk takes.
//!
//! Owns: the kernel's timer descriptors for the last part of each wait. The runtime watches these descriptors, and they
//! are kept for later waits. If the kernel gives no descriptor, the runtime's own timer is used, which rounds up to
//! milliseconds.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// The length of the last part of a wait, for which the timer of the runtime is too coarse.
const LAST_STRETCH: Duration = Duration::from_millis(2);

/// The number of timers that are made when none is left, which is the number of requests that an attached device has in
/// flight. The process of such a device should not make timers when memory is short, because the kernel charges each
/// timer to the process.
const MADE_TOGETHER: usize = 64;

/// The maximum number of timers that are kept.
const KEPT_MAX: usize = 256;

/// A timer, which belongs to one runtime. Once that runtime stops, no other runtime would see the timer fire.
struct KernelTimer {
    descriptor: AsyncFd<OwnedFd>,
    runtime: Id,
}

/// Timers without a waiter.
#[derive(Default)]
pub(super) struct TimerPool(Mutex<Vec<KernelTimer>>);

impl TimerPool {
    /// Waits until `end`.
    ///
    /// *Cancel safety*: a timer whose wait is dropped is closed. *Cost*: three system calls, and one descriptor for
    /// each concurrent wait. Descriptors are made in groups of 64.
    pub async fn sleep_until(&self, end: Instant) {
        if let Some(early) = end.checked_sub(LAST_STRETCH)
            && early > Instant::now()
        {
            tokio::time::sleep_until(early).await;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        match self.wait(left).await {
            Ok(timer) => self.keep(timer),
            Err(_) => tokio::time::sleep_until(end).await,
        }
    }

    async fn wait(&self, left: Duration) -> io::Result<KernelTimer> {
        let timer = self.take()?;
        set(&timer.descriptor, left)?;
        loop {
            let mut ready = timer.descriptor.readable().await?;
            // The readiness may be from the previous use of the timer; a timer that has not fired has no bytes to read.
            if let Ok(gone_off) = ready.try_io(read) {
                gone_off?;
                drop(ready);
                return Ok(timer);
            }
        }
    }

    fn take(&self) -> io::Result<KernelTimer> {
        let runtime = Handle::current().id();
        let mut kept = self.kept();
        if let Some(index) = kept.iter().rposition(|timer| timer.runtime == runtime) {
            return Ok(kept.swap_remove(index));
        }
        let first = new(runtime)?;
        let room = KEPT_MAX - kept.len().min(KEPT_MAX);
        for _ in 1..MADE_TOGETHER.min(room) {
            // The first timer is enough for this wait, so the others may be missing.
            let Ok(timer) = new(runtime) else { break };
            kept.push(timer);
        }
        Ok(first)
    }

    fn keep(&self, timer: KernelTimer) {
        let mut kept = self.kept();
        if kept.len() >= KEPT_MAX {
            // The oldest timer is removed. Timers of ended runtimes collect at the front, because no wait takes them.
            kept.remove(0);
        }
        kept.push(timer);
    }

    fn kept(&self) -> MutexGuard<'_, Vec<KernelTimer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a timer that is not set.
fn new(runtime: Id) -> io::Result<KernelTimer> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
    // SAFETY: the `OwnedFd` keeps its descriptor open and the same until the `AsyncFd` is dropped with it.
    let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? };
    Ok(KernelTimer { descriptor, runtime })
}

/// Makes a timer fire once after `left`.
fn set(timer: &AsyncFd<OwnedFd>, left: Duration) -> io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    let value = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
    let when = Itimerspec { it_interval: zero, it_value: value };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::empty(), &when)?;
    Ok(())
}

/// Reads the notice that a timer has fired.
fn read(timer: &AsyncFd<OwnedFd>) -> io::Result<()> {
    rustix::io::read(timer, &mut [0; size_of::<u64>()])?;
    Ok(())
}
