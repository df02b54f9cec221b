//! Holds the kernel's page cache of a program at the number of bytes that the blocks of a policy have.
//!
//! Owns: the memory group of the program, and a thread that moves the group's limit: it is always what the group uses
//! for other things than files (the program's own memory, and the kernel's objects) plus the bytes for pages. So a
//! program that needs more memory itself keeps its page cache. Promises: the kernel kills no program because of the
//! limit; with version 1 of memory groups a program that is ahead of the thread waits, with version 2 it is slowed
//! down. The report has how many bytes of pages there were ([`PageUse`]). Leaves to others: readahead (`execute`).
//!
//! Pages of shared memory count as the program's own. So do pages that are not written yet: under policies, too, written
//! data waits in the kernel's memory outside of the cache, and a limit without room for them would make writes fail.
//! Pages of the file system's own tables count as pages; the caches under policies do not hold these.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;

use crate::Error;
use crate::group::MemoryGroup;

/// The time between two looks.
const EVERY: Duration = Duration::from_millis(2);
/// The smallest change of the limit. *Units*: bytes.
const STEP_BYTES: u64 = 64 << 10;
/// What a program has for itself before the first look. *Units*: bytes.
const OWN_BYTES: u64 = 4 << 20;

/// The use of memory by pages. *Units*: bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct PageUse {
    /// The bytes that the pages were to have.
    pub allowed_bytes: u64,
    /// The mean over looks from the first look on at which the pages had nearly all of it; 0 if they never had.
    pub full_mean_bytes: u64,
    /// The most.
    pub most_bytes: u64,
    /// The number of looks.
    pub looks: u64,
}

/// The sums of a thread's looks.
#[derive(Debug, Clone, Copy, Default)]
struct PageLooks {
    count: u64,
    full: u64,
    full_sum: u64,
    most: u64,
}

impl PageLooks {
    fn add(&mut self, pages: u64, allowed: u64) {
        self.count += 1;
        self.most = self.most.max(pages);
        if self.full > 0 || pages >= allowed - allowed / 8 {
            self.full += 1;
            self.full_sum += pages;
        }
    }

    fn found(&self, allowed_bytes: u64) -> PageUse {
        let full_mean_bytes = self.full_sum.checked_div(self.full).unwrap_or(0);
        PageUse { allowed_bytes, full_mean_bytes, most_bytes: self.most, looks: self.count }
    }
}

/// A group whose pages are held at a size.
pub struct PageMemory {
    group: Arc<MemoryGroup>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<PageLooks>>,
    allowed_bytes: u64,
}

impl PageMemory {
    /// Makes a group, and begins to hold its pages at `allowed_bytes`.
    pub fn start(name: &str, allowed_bytes: u64) -> Result<PageMemory, Error> {
        let group = Arc::new(MemoryGroup::slowed(name, allowed_bytes + OWN_BYTES)?);
        let is_over = Arc::new(AtomicBool::new(false));
        let (held, stop) = (group.clone(), is_over.clone());
        let hold = move || {
            let (mut limit, mut looks) = (allowed_bytes + OWN_BYTES, PageLooks::default());
            while !stop.load(Ordering::Relaxed) {
                let (used, pages) = (held.used_bytes(), page_bytes(&held.stat()));
                looks.add(pages, allowed_bytes);
                let next = limit_for(used, pages, allowed_bytes);
                // The kernel refuses a limit below what it cannot reclaim now; the next look tries again.
                if next.abs_diff(limit) >= STEP_BYTES && held.limit(next).is_ok() {
                    limit = next;
                }
                std::thread::sleep(EVERY);
            }
            looks
        };
        let thread = std::thread::Builder::new().name("page-memory".to_owned()).spawn(hold);
        let thread = thread.map_err(|error| Error::failed("a thread that holds the page cache", error))?;
        Ok(PageMemory { group, is_over, thread: Some(thread), allowed_bytes })
    }

    /// Ends the holding. The group is removed if no process is in it.
    pub fn finish(mut self) -> PageUse {
        let looks = self.stop().unwrap_or_default();
        looks.found(self.allowed_bytes)
    }

    /// The file of the group to which a process that joins it writes its number.
    pub fn joins(&self) -> std::path::PathBuf {
        self.group.path().join("cgroup.procs")
    }

    fn stop(&mut self) -> Option<PageLooks> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The limit of a group that uses `used` bytes in total and `pages` bytes for pages, so that pages have `allowed`
/// bytes.
fn limit_for(used: u64, pages: u64, allowed: u64) -> u64 {
    used.saturating_sub(pages) + allowed
}

/// The bytes of pages of files in the text of a group's `memory.stat`, without shared memory and without pages that are
/// not written yet.
fn page_bytes(stat: &str) -> u64 {
    let field = |names: [&str; 2]| {
        let value = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            if names.contains(&name) { value.trim().parse::<u64>().ok() } else { None }
        };
        stat.lines().find_map(value).unwrap_or(0)
    };
    // The names in version 1 and in version 2 of memory groups.
    let unwritten = field(["dirty", "file_dirty"]) + field(["writeback", "file_writeback"]);
    field(["cache", "file"]).saturating_sub(field(["shmem", "shmem"])).saturating_sub(unwritten)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_clean_ones_of_files() {
        let first = "cache 6291456\nrss 4096000\nshmem 1048576\ndirty 1048576\nwriteback 1048576\ntotal_cache 9\n";
        let second = "anon 4096000\nfile 6291456\nshmem 1048576\nfile_dirty 2097152\nfile_writeback 0\n";
        assert_eq!((page_bytes(first), page_bytes(second), page_bytes("nonsense")), (3 << 20, 3 << 20, 0));
        assert_eq!(page_bytes("cache 4096\ndirty 8192\n"), 0, "the counters are not of one moment");
    }

    /// The pages keep their bytes when the programs' own memory grows.
    #[test]
    fn page_limit_follows_program_growth() {
        let allowed = 6 << 20;
        for own in [0, 1 << 20, 900 << 20] {
            for pages in [0, 3 << 20, 6 << 20] {
                assert_eq!(limit_for(own + pages, pages, allowed), own + allowed);
            }
        }
        // The two files are read one after the other.
        assert_eq!(limit_for(10, 20, allowed), allowed);
    }

    #[test]
    fn page_mean_starts_when_full() {
        let mut looks = PageLooks::default();
        for pages in [10, 400, 800, 790, 300] {
            looks.add(pages, 800);
        }
        let found = looks.found(800);
        assert_eq!((found.full_mean_bytes, found.most_bytes, found.looks), (630, 800, 5));
        assert_eq!(PageLooks::default().found(800).full_mean_bytes, 0);
    }
}
