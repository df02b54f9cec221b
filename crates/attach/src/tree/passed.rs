//! Small files that the kernel reads and writes itself, through its page cache, without requests.
//!
//! Owns: in which way each open file is open, and the kernel's numbers of the files that it reads itself. Promises: all
//! handles of one file are of one kind, as the kernel requires; what programs wrote through such handles is read again
//! from the source afterwards ([`PassedFiles::end`]). If the kernel refuses a file, its bytes go through the cache.
//! Leaves to others: the cache, which sees none of these reads.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nectary_fuse::{BackingFiles, Errno};

/// How a file is open.
enum OpenedAs {
    /// Its bytes go through the cache. The value is the number of handles.
    Cached(u32),
    /// The kernel reads and writes the file itself.
    Passed { backing: u32, handles: u32, is_writable: bool },
}

/// The files that the kernel reads itself.
#[derive(Default)]
pub struct PassedFiles {
    /// The largest size of a file at which its first open makes it one of them; 0 for none. *Units*: bytes.
    bytes_max: u64,
    backing: OnceLock<BackingFiles>,
    /// Whether the kernel can do it.
    is_agreed: AtomicBool,
    /// How each open node is open, by its number.
    open: Mutex<HashMap<u64, OpenedAs>>,
    opens: AtomicU64,
}

impl PassedFiles {
    /// Makes a value for files of at most `bytes_max` bytes; with 0, no file is passed through.
    pub fn new(bytes_max: u64) -> PassedFiles {
        PassedFiles { bytes_max, ..PassedFiles::default() }
    }

    /// Whether some files should be passed through.
    pub fn is_wanted(&self) -> bool {
        self.bytes_max > 0
    }

    /// Stores the descriptor by which the kernel learns of files.
    pub fn connect(&self, backing: BackingFiles) {
        let _ = self.backing.set(backing);
    }

    /// Says whether the kernel can do it, before the first file is opened.
    pub fn agree(&self, is_agreed: bool) {
        self.is_agreed.store(is_agreed, Ordering::Release);
    }

    /// Whether a program can write to a file by the kernel alone, so that nothing here can refuse it.
    pub fn is_written(&self) -> bool {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().any(|opened| matches!(opened, OpenedAs::Passed { is_writable: true, .. }))
    }

    /// The number of opens after which the kernel read the file itself.
    pub fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Counts a handle of a node. Returns the kernel's number of the file if the kernel reads it itself, and otherwise 0.
    /// The first handle of a file decides: the file is passed through if it is opened for reading only and is small.
    pub fn begin(
        &self,
        node: u64,
        size: u64,
        flags: i32,
        descriptor: impl FnOnce() -> Result<Arc<File>, Errno>,
    ) -> u32 {
        let Some(files) = self.backing.get().filter(|_| self.is_agreed.load(Ordering::Acquire)) else { return 0 };
        let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
        let is_small = is_read_only && flags & libc::O_DIRECT == 0 && size <= self.bytes_max;
        // A source that does not answer must not hold the lock.
        let file = if is_small { descriptor().ok() } else { None };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&node) {
            Some(OpenedAs::Cached(handles)) => {
                *handles += 1;
                return 0;
            }
            Some(OpenedAs::Passed { backing, handles, is_writable }) => {
                *handles += 1;
                *is_writable |= !is_read_only;
                self.opens.fetch_add(1, Ordering::Relaxed);
                return *backing;
            }
            None => {}
        }
        let backing = file.and_then(|file| files.open(file.as_fd()).ok()).unwrap_or(0);
        let opened = match backing {
            0 => OpenedAs::Cached(1),
            _ => OpenedAs::Passed { backing, handles: 1, is_writable: false },
        };
        open.insert(node, opened);
        self.opens.fetch_add(u64::from(backing != 0), Ordering::Relaxed);
        backing
    }

    /// Ends what [`begin`](Self::begin) began. Returns whether it has: it has not if this is the last handle of a file that
    /// programs may have changed without the cache. The caller makes the cache read the file again, and calls again. Until
    /// then the file stays passed through, so that nobody reads its old bytes from the cache.
    pub fn end(&self, node: u64) -> bool {
        let Some(files) = self.backing.get() else { return true };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = match open.get_mut(&node) {
            Some(OpenedAs::Passed { handles, is_writable, .. }) => {
                if *handles == 1 && std::mem::take(is_writable) {
                    return false;
                }
                handles
            }
            Some(OpenedAs::Cached(handles)) => handles,
            None => return true,
        };
        *handles = handles.saturating_sub(1);
        if *handles == 0
            && let Some(OpenedAs::Passed { backing, .. }) = open.remove(&node)
        {
            // The kernel knows the number until it is closed, or the connection ends.
            let _ = files.close(backing);
        }
        true
    }
}
