//! Settings of this process in the kernel, so that it can serve a disk while memory is full of that disk's pages.
//!
//! Owns: the calls. Why each:
//! - `PR_SET_IO_FLUSHER`: an allocation of this process never waits for writeback that may end here, and its own writes
//!   are not throttled behind the dirty pages that it is there to write. Threads inherit it, so it comes first.
//! - `mlockall`: no page of the program or of its buffers is dropped and read again, which would need memory; and a
//!   heap with a reserve that is mapped before the first request, so that none waits for more of it.
//! - `oom_score_adj`: among the processes that could be killed for memory this one is nearly the last. Not excluded,
//!   since a device in memory may itself be what is too large.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// The reserve of the heap, in bytes.
const HEAP_RESERVE_BYTES: usize = 8 << 20;

/// How unwilling the kernel is made to kill this process for its memory, from -1000 to 1000.
const OOM_SCORE_ADJUSTMENT: &str = "-900";

/// The result of the preparation.
pub(crate) struct Prepared {
    /// Whether allocations in the kernel wait for nothing that only this process could end.
    pub is_flusher: bool,
    /// The refusals, in words: without it the device works, but may stop when memory is short.
    pub refused: Vec<String>,
}

/// Prepares the calling thread, and all threads that it starts from now on, for serving a disk.
pub(crate) fn prepare() -> Prepared {
    let (mut refused, mut is_flusher) = (Vec::new(), true);
    // SAFETY: the call takes numbers only.
    if unsafe {
        libc::prctl(PR_SET_IO_FLUSHER, 1 as libc::c_long, 0 as libc::c_long, 0 as libc::c_long, 0 as libc::c_long)
    } != 0
    {
        is_flusher = false;
        refused.push(format!("PR_SET_IO_FLUSHER: {}", io::Error::last_os_error()));
    }
    // SAFETY: the call takes numbers only and changes no memory's contents.
    if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
        refused.push(format!("mlockall: {}", io::Error::last_os_error()));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT) {
        refused.push(format!("oom_score_adj: {error}"));
    }
    Prepared { is_flusher, refused }
}

/// Lets every later allocation come from one heap that only grows. To be called before there are threads that allocate.
pub(crate) fn keep_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls take numbers, and only change where later allocations come from.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Grows the heap by what requests will need at most, now: growing it under pressure would wait for memory.
pub(crate) fn reserve_heap() {
    let reserve: Vec<u8> = Vec::with_capacity(HEAP_RESERVE_BYTES);
    // Locked memory is there once it is mapped; given back, it stays with the heap.
    drop(std::hint::black_box(reserve));
}

/// Makes this process the leader of a new session: no terminal reaches it any more.
pub fn leave_terminal() -> io::Result<()> {
    // SAFETY: the call takes nothing.
    if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends what this process writes to standard output and standard error to the end of a file.
pub fn redirect_output(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    for descriptor in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both descriptors are open numbers; the old one is closed by the call.
        if unsafe { libc::dup2(file.as_raw_fd(), descriptor) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
