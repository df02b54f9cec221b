//! The clock of modelled disks, shared between the process that serves them and those that use them.
//!
//! The clock is a shared page of memory with one counter per disk: the time that the disk's model has used, in
//! nanoseconds. With a virtual clock no call waits for a disk. A call costs the processor time of its process plus the
//! increase of its disks' counters ([`CallCost`]); other work on the machine adds to neither. This cost is exact if one
//! operation runs at a time. Writes that the kernel makes during a call count as time of the call, which is right if
//! the disk is the bottleneck. `worker::timeline` combines the costs of several threads. Without a virtual clock the
//! disks run in real time, optionally sped up.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{Error, sys};

/// The largest number of disks on one clock.
pub const SLOTS_MAX: usize = 64;
/// The distance between two counters: a cache line, in bytes.
const SLOT_BYTES: usize = 64;
const PAGE_BYTES: usize = SLOTS_MAX * SLOT_BYTES;

/// How a disk's time passes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum DiskTimekeeping {
    /// No call waits; the disk's time is added to the processor time.
    Virtual,
    /// Real time, shortened by this factor.
    Real {
        /// The speed-up.
        speed: f64,
    },
}

/// The shared page.
pub struct SharedClock {
    page: NonNull<u8>,
}

// SAFETY: the page is accessed only through atomics.
unsafe impl Send for SharedClock {}
// SAFETY: as above.
unsafe impl Sync for SharedClock {}

impl SharedClock {
    /// Makes the page in a new file, with all counters at 0.
    pub fn create(path: &Path) -> Result<SharedClock, Error> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(|error| Error::failed(path.display(), error))?;
        file.set_len(PAGE_BYTES as u64).map_err(|error| Error::failed(path.display(), error))?;
        SharedClock::map(&file)
    }

    /// Opens a page that another process has made.
    pub fn open(path: &Path) -> Result<SharedClock, Error> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| Error::failed(path.display(), error))?;
        let length = file.metadata().map_err(|error| Error::failed(path.display(), error))?.len();
        if length < PAGE_BYTES as u64 {
            return Err(Error::failed(path.display(), format!("{length} bytes are no clock, it has {PAGE_BYTES}")));
        }
        SharedClock::map(&file)
    }

    fn map(file: &File) -> Result<SharedClock, Error> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the file is as long as the mapping.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        match NonNull::new(page.cast::<u8>()) {
            Some(page) if page.as_ptr().cast() != libc::MAP_FAILED => Ok(SharedClock { page }),
            _ => Err(Error::os("mapping the shared clock")),
        }
    }

    fn slot(&self, index: usize) -> &AtomicU64 {
        assert!(index < SLOTS_MAX, "a clock has {SLOTS_MAX} slots");
        // SAFETY: the counter is inside the mapping, aligned to a cache line, and used only as an atomic.
        unsafe { self.page.add(index * SLOT_BYTES).cast::<AtomicU64>().as_ref() }
    }

    /// Raises a disk's counter to the time that the disk has used so far.
    pub fn set(&self, index: usize, busy: Duration) {
        self.slot(index).fetch_max(busy.as_nanos() as u64, Ordering::Relaxed);
    }

    /// The time that a disk has used so far.
    pub fn get(&self, index: usize) -> Duration {
        Duration::from_nanos(self.slot(index).load(Ordering::Relaxed))
    }
}

impl Drop for SharedClock {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and nothing borrows from it any more.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE_BYTES) };
    }
}

/// The cost of one call on a virtual clock, or the total cost so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallCost {
    /// The processor time of all threads of the process.
    pub processor: Duration,
    /// The time that each disk used.
    pub disks: Vec<Duration>,
}

impl CallCost {
    /// The cost since `earlier`, which is an earlier total.
    pub fn since(mut self, earlier: &CallCost) -> CallCost {
        self.processor = self.processor.saturating_sub(earlier.processor);
        for (disk, before) in self.disks.iter_mut().zip(&earlier.disks) {
            *disk = disk.saturating_sub(*before);
        }
        self
    }
}

/// The clock of one contender.
#[derive(Clone)]
pub struct DiskClock {
    began: Instant,
    time: DiskTimekeeping,
    page: Option<Arc<SharedClock>>,
    slots: Vec<usize>,
}

impl DiskClock {
    /// Makes a clock of the disks in `slots` of the shared page.
    pub fn new(time: DiskTimekeeping, page: Option<Arc<SharedClock>>, slots: Vec<usize>) -> DiskClock {
        DiskClock { began: Instant::now(), time, page, slots }
    }

    /// Whether the time is virtual.
    pub fn is_virtual(&self) -> bool {
        self.time == DiskTimekeeping::Virtual
    }

    /// The number of its disks.
    pub fn disks(&self) -> usize {
        self.slots.len()
    }

    /// The processor time of this process and the times of its disks so far.
    pub fn cost(&self) -> CallCost {
        let disks = self.page.iter().flat_map(|page| self.slots.iter().map(|slot| page.get(*slot)));
        CallCost { processor: sys::processor_time(), disks: disks.collect() }
    }

    /// The time now. *Units*: the disk's time, from an arbitrary start.
    pub fn now(&self) -> Duration {
        match self.time {
            DiskTimekeeping::Real { speed } => self.began.elapsed().mul_f64(speed),
            DiskTimekeeping::Virtual => {
                let cost = self.cost();
                cost.processor + cost.disks.iter().sum::<Duration>()
            }
        }
    }
}
