//! The guard: a small process that lets recorded programs continue after the recorder has ended.
//!
//! The kernel reports filtered calls on a descriptor, the *listener*. If no process holds the listener, every filtered
//! call fails permanently with "function not implemented", and a program whose writes fail may lose data. So the guard,
//! a child process, also holds the listener. It sleeps until the recorder ends. If programs still run then (the
//! recorder was killed, or stopped by its user), the guard answers their calls, without recording them, until the last
//! program has ended.
//!
//! Promises: the guard also answers a call that the recorder received but did not answer. Calls are numbered
//! consecutively, and the recorder receives one at a time. So the number of the last received call, kept in a shared
//! page, is enough to find the unanswered call.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::sys;

/// The number of calls that the guard tries to answer, from the last call that the recorder received on. It must exceed
/// the number of calls in progress, because calls that end before they are received also use up numbers.
const TRIED: u64 = 4096;

/// The recorder's handle of the guard.
#[derive(Debug)]
pub(super) struct RecordingGuard {
    pid: i32,
    /// The writing end of a pipe. The guard sleeps until this end is closed.
    wire: Option<io::PipeWriter>,
    page: GuardWord,
}

/// A number in memory that this process shares with the guard.
#[derive(Debug)]
struct GuardWord(*const AtomicU64);

// SAFETY: the pointer is to an atomic number in a mapping that lives as long as this value.
unsafe impl Send for GuardWord {}

const PAGE_BYTES: usize = 4096;

impl GuardWord {
    fn new() -> io::Result<GuardWord> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this makes a new mapping, at an address that the kernel chooses.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
        };
        if address == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(GuardWord(address.cast())) }
    }

    fn number(&self) -> &AtomicU64 {
        // SAFETY: the mapping starts as zeroes, is aligned, and lives as long as `self`.
        unsafe { &*self.0 }
    }
}

impl Drop for GuardWord {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.0.cast_mut().cast(), PAGE_BYTES) };
    }
}

impl RecordingGuard {
    /// Starts the guard of a listener. The calling thread must not be under the filter.
    pub(super) fn begin(listener: BorrowedFd<'_>) -> io::Result<RecordingGuard> {
        let page = GuardWord::new()?;
        let (reader, writer) = io::pipe()?;
        // SAFETY: the child calls only what is safe after the fork of a process with threads, and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => watch(listener.as_raw_fd(), reader.as_raw_fd(), &page),
            pid => Ok(RecordingGuard { pid, wire: Some(writer), page }),
        }
    }

    /// Stores the number of a call that the recorder received.
    pub(super) fn note(&self, id: u64) {
        self.page.number().store(id, Ordering::Release);
    }

    /// Lets the guard take over. If `is_nothing_left`, no program runs any more, and this function waits until the
    /// guard has ended.
    pub(super) fn end(mut self, is_nothing_left: bool) {
        drop(self.wire.take());
        if is_nothing_left {
            let mut status = 0;
            // SAFETY: `status` outlives the call. The guard ends at once, because the last filtered process has ended.
            while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
        }
    }
}

/// The guard's main function. It must not allocate, lock or panic, because it runs in a fork of a process with threads.
fn watch(listener: RawFd, wire: RawFd, page: &GuardWord) -> ! {
    // SAFETY: the arguments are numbers and memory of this function. Every call is safe in a signal handler, and so
    // also after this fork.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        libc::prctl(libc::PR_SET_NAME, c"nectary-guard".as_ptr());
        // Close all other descriptors, so that pipes end and disks can be unmounted.
        let listener = libc::fcntl(listener, libc::F_DUPFD_CLOEXEC, 10);
        let wire = libc::fcntl(wire, libc::F_DUPFD_CLOEXEC, 10);
        if listener < 0 || wire < 0 {
            libc::_exit(1);
        }
        let (low, high) = (listener.min(wire), listener.max(wire));
        close_all(0, low - 1);
        close_all(low + 1, high - 1);
        close_all(high + 1, i32::MAX);
        let mut byte = 0_u8;
        while libc::read(wire, (&raw mut byte).cast(), 1) > 0 {}
        libc::close(wire);
        answer(BorrowedFd::borrow_raw(listener), page.number().load(Ordering::Acquire));
        libc::_exit(0);
    }
}

fn close_all(first: i32, last: i32) {
    if first <= last {
        // SAFETY: the arguments are numbers; no code in this process owns the descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}

/// Answers the call that the recorder left unanswered, then answers every call until the last recorded process has
/// ended.
fn answer(listener: BorrowedFd<'_>, taken: u64) {
    for distance in 0..TRIED {
        let _ = sys::proceed(listener, taken.wrapping_add(distance));
    }
    loop {
        match sys::wait_for([listener.as_raw_fd()], -1) {
            Ok([events]) if events & libc::POLLIN != 0 => match sys::receive(listener) {
                Ok(Some(notification)) => {
                    let _ = sys::proceed(listener, notification.id);
                }
                Ok(None) => {}
                Err(_) => return,
            },
            Ok([0]) => {}
            Ok(_) | Err(_) => return,
        }
    }
}
