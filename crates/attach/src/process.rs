//! The kernel settings with which this process can serve a disk while memory is full of that disk's dirty pages.
//!
//! Owns: the calls that change these settings. The reason for each:
//! - `PR_SET_IO_FLUSHER`: an allocation of this process never waits for a writeback that this process itself must
//!   serve, and its own writes are not throttled because of the dirty pages that it must write. A new thread inherits
//!   this setting, so it is set before the threads that serve the disk start.
//! - `mlockall`: no page of the program or of its buffers is evicted, because reading it again would need memory. The
//!   heap has a reserve that is mapped before the first request, so that no request waits for a larger heap.
//! - `oom_score_adj`: when memory is short, nearly all other processes are killed before this one. This process can
//!   still be killed, because its own device may be what fills the memory.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::mm::MlockAllFlags;

/// The heap grows by this much at the start, in bytes, and need not grow while requests are served.
const HEAP_RESERVE_BYTES: usize = 8 << 20;

/// The process's `oom_score_adj`, from -1000 (never killed) to 1000.
const OOM_SCORE_ADJUSTMENT: &str = "-900";

/// The result of the preparation.
pub(crate) struct ProcessPreparation {
    /// Whether kernel allocations of this process never wait for I/O that only this process could complete.
    pub is_flusher: bool,
    /// Descriptions of the refused settings. Without these the device works, but may hang when memory is short.
    pub refused: Vec<String>,
}

/// Prepares the calling thread, and all threads that it starts later, for serving a disk.
pub(crate) fn prepare() -> ProcessPreparation {
    let (mut refused, mut is_flusher) = (Vec::new(), true);
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        is_flusher = false;
        refused.push(format!("PR_SET_IO_FLUSHER: {}", io::Error::from(error)));
    }
    if let Err(error) = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        refused.push(format!("mlockall: {}", io::Error::from(error)));
    }
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJUSTMENT) {
        refused.push(format!("oom_score_adj: {error}"));
    }
    ProcessPreparation { is_flusher, refused }
}

/// Makes every later allocation use one heap that only grows. Call it before other threads allocate.
pub(crate) fn keep_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls take numbers, and only change where later allocations come from.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
}

/// Grows the heap now by the largest amount that requests need, because growing it later, under memory pressure, could
/// wait.
pub(crate) fn reserve_heap() {
    let reserve: Vec<u8> = Vec::with_capacity(HEAP_RESERVE_BYTES);
    // The memory is allocated now, because it is locked, and stays in the heap when it is freed.
    drop(std::hint::black_box(reserve));
}

/// Makes this process the leader of a new session, without a controlling terminal.
pub fn leave_terminal() -> io::Result<()> {
    Ok(rustix::process::setsid().map(drop)?)
}

/// Appends the standard output and standard error of this process to a file.
pub fn redirect_output(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    rustix::stdio::dup2_stdout(&file)?;
    Ok(rustix::stdio::dup2_stderr(&file)?)
}
