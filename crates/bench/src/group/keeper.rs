//! Holds a memory group at its allowance without killing its processes.
//!
//! Owns: the rule of reclaim. At a hard limit, the kernel kills a process if it can reclaim nothing. It cannot reclaim
//! a file system's inodes before the file system's daemon has written them, and on a virtual clock the daemon writes
//! them far too late. So the kernel's limit is higher ([`MemoryAllowance::hard_bytes`]), and between requests the kernel is
//! asked to reclaim memory beyond the allowance. Memory that the kernel cannot reclaim stays and is counted
//! ([`GroupMemoryUsage`]); later checks ask the kernel again to reclaim it. The rule is the same for every contender; memory
//! beyond the allowance is an advantage for the contender.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::Error;

/// The number of requests between two checks.
const EVERY: u64 = 16;
/// The number of checks that ask the kernel to reclaim nothing, after a check at which it could not reclaim enough.
const LOOKS_LEFT_OUT: u64 = 8;

/// The memory limits of a group, which the parent sends to its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryAllowance {
    /// The group's directory.
    pub path: PathBuf,
    /// `true` if the group is a cgroup v1, `false` if it is a cgroup v2.
    pub is_first: bool,
    /// The allowance, in bytes.
    pub allowed_bytes: u64,
    /// The hard limit, at which the kernel kills a process, in bytes.
    pub hard_bytes: u64,
}

/// The memory usage that the checks between requests found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupMemoryUsage {
    /// The number of checks.
    pub looks: u64,
    /// The number of checks that found the usage above the allowance.
    pub over: u64,
    /// The number of checks that found the usage above the allowance even after reclaiming.
    pub left: u64,
    /// The mean usage after reclaiming, in bytes.
    pub used_mean_bytes: u64,
    /// The highest usage after reclaiming, in bytes.
    pub used_max_bytes: u64,
    /// The mean usage by the kernel's own objects, in bytes.
    pub kernel_mean_bytes: u64,
    /// The highest usage by the kernel's own objects, in bytes.
    pub kernel_max_bytes: u64,
}

/// Holds one group at its allowance.
pub struct MemoryKeeper {
    allowance: MemoryAllowance,
    used: File,
    requests: AtomicU64,
    state: Mutex<KeeperState>,
}

#[derive(Default)]
struct KeeperState {
    leave_out: u64,
    seen: GroupMemoryUsage,
    used_sum: u64,
    kernel_sum: u64,
}

impl MemoryKeeper {
    /// Begins to hold a group at its allowance.
    pub fn new(allowance: MemoryAllowance) -> Result<MemoryKeeper, Error> {
        let name = if allowance.is_first { "memory.usage_in_bytes" } else { "memory.current" };
        let path = allowance.path.join(name);
        let used = File::open(&path).map_err(|error| Error::failed(path.display(), error))?;
        Ok(MemoryKeeper { allowance, used, requests: AtomicU64::new(0), state: Mutex::default() })
    }

    /// Counts a request; returns whether a check is due.
    pub fn is_due(&self) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) % EVERY == EVERY - 1
    }

    /// Reads the usage, and asks the kernel to reclaim memory beyond the allowance.
    pub fn keep(&self) -> Result<(), Error> {
        // If the lock is held, another thread is checking.
        let Ok(mut state) = self.state.try_lock() else { return Ok(()) };
        let mut used = self.used_bytes()?;
        if used > self.allowance.allowed_bytes {
            state.seen.over += 1;
            if state.leave_out > 0 {
                state.leave_out -= 1;
            } else {
                self.reclaim(used - self.allowance.allowed_bytes);
                used = self.used_bytes()?;
                if used > self.allowance.allowed_bytes {
                    state.leave_out = LOOKS_LEFT_OUT;
                    state.seen.left += 1;
                }
            }
        }
        state.seen.looks += 1;
        state.used_sum += used;
        state.seen.used_max_bytes = state.seen.used_max_bytes.max(used);
        // The file with the usage of the kernel's objects is slow to read, so few checks read it.
        if state.seen.looks % EVERY == 1 {
            let kernel = self.kernel_bytes();
            state.kernel_sum += kernel;
            state.seen.kernel_max_bytes = state.seen.kernel_max_bytes.max(kernel);
        }
        Ok(())
    }

    /// The usage found so far.
    pub fn record(&self) -> GroupMemoryUsage {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = state.seen.looks.max(1);
        let kernel_mean_bytes = state.kernel_sum / looks.div_ceil(EVERY);
        GroupMemoryUsage { used_mean_bytes: state.used_sum / looks, kernel_mean_bytes, ..state.seen }
    }

    fn used_bytes(&self) -> Result<u64, Error> {
        let failed = |error: String| Error::failed(self.allowance.path.display(), error);
        let mut text = [0; 24];
        let length = self.used.read_at(&mut text, 0).map_err(|error| failed(error.to_string()))?;
        let text = String::from_utf8_lossy(&text[..length]);
        text.trim().parse().map_err(|_| failed(format!("{text:?} is no number of bytes")))
    }

    fn kernel_bytes(&self) -> u64 {
        let (name, field) = match self.allowance.is_first {
            true => ("memory.kmem.usage_in_bytes", ""),
            false => ("memory.stat", "kernel "),
        };
        let text = fs::read_to_string(self.allowance.path.join(name)).unwrap_or_default();
        let value = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        value.trim().parse().unwrap_or(0)
    }

    /// Asks the kernel to reclaim memory; it is not a failure if the kernel cannot reclaim all of it.
    fn reclaim(&self, bytes: u64) {
        let MemoryAllowance { path, is_first, allowed_bytes, hard_bytes } = &self.allowance;
        match is_first {
            // The kernel lowers a limit only once the usage is below it, and gives up when it can reclaim nothing more.
            true => {
                if fs::write(path.join("memory.limit_in_bytes"), allowed_bytes.to_string()).is_ok() {
                    let _ = fs::write(path.join("memory.limit_in_bytes"), hard_bytes.to_string());
                }
            }
            false => drop(fs::write(path.join("memory.reclaim"), bytes.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that imitates a group's directory.
    fn group(name: &str, used: u64) -> MemoryAllowance {
        let path = std::env::temp_dir().join(format!("nectary-bench-keeper-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("memory.usage_in_bytes"), format!("{used}\n")).unwrap();
        fs::write(path.join("memory.kmem.usage_in_bytes"), "7\n").unwrap();
        fs::write(path.join("memory.limit_in_bytes"), "9000").unwrap();
        MemoryAllowance { path, is_first: true, allowed_bytes: 1000, hard_bytes: 9000 }
    }

    fn limit(allowance: &MemoryAllowance) -> String {
        fs::read_to_string(allowance.path.join("memory.limit_in_bytes")).unwrap()
    }

    /// Memory above the allowance is reclaimed, and what cannot be reclaimed is counted.
    #[test]
    fn keeper_reclaims_memory_above_allowance() {
        for (name, used, over) in [("below", 1000, 0), ("above", 1001, 1)] {
            let allowance = group(name, used);
            let keeper = MemoryKeeper::new(allowance.clone()).unwrap();
            keeper.keep().unwrap();
            let seen = keeper.record();
            assert_eq!((seen.looks, seen.over, seen.left), (1, over, over));
            assert_eq!((seen.used_max_bytes, seen.used_mean_bytes, seen.kernel_max_bytes), (used, used, 7));
            assert_eq!(limit(&allowance), "9000", "the hard limit is back");
            fs::remove_dir_all(allowance.path).unwrap();
        }
    }

    #[test]
    fn it_looks_after_each_sixteenth_request() {
        let allowance = group("due", 0);
        let keeper = MemoryKeeper::new(allowance.clone()).unwrap();
        assert_eq!((0..160).filter(|_| keeper.is_due()).count(), 10);
        fs::remove_dir_all(allowance.path).unwrap();
    }
}
