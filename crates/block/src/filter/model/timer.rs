//! A wait that is exact to tens of microseconds: a millisecond, the runtime's unit, is the whole life of a fast disk's request.
//!
//! Owns: a timer descriptor of the kernel for the last stretch, watched by the runtime. Without one the runtime's own timer
//! serves, rounded up.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

/// The stretch for which the runtime's timer is too coarse.
const LAST_STRETCH: Duration = Duration::from_millis(2);

/// Waits until `end`. *Cost*: two system calls where it is far from a whole number of milliseconds.
pub(super) async fn sleep_until(end: Instant) {
    if let Some(early) = end.checked_sub(LAST_STRETCH)
        && early > Instant::now()
    {
        tokio::time::sleep_until(early).await;
    }
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return;
    }
    match timer(left) {
        // It is readable once it has gone off; what it says does not matter.
        Ok(timer) if timer.readable().await.is_ok() => {}
        _ => tokio::time::sleep_until(end).await,
    }
}

/// A timer that goes off once after `left`.
fn timer(left: Duration) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the call takes numbers.
    let descriptor = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave a new descriptor, which nobody else has.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
    let when = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: both pointers are null or to a value that outlives the call.
    if unsafe { libc::timerfd_settime(descriptor.as_raw_fd(), 0, &raw const when, std::ptr::null_mut()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the `OwnedFd` keeps its descriptor open and the same until the `AsyncFd` is dropped with it.
    Ok(unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? })
}
