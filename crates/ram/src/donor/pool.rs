//! The memory that a donor lends, in slabs of 2 MiB.
//!
//! Owns: the number of slabs promised to devices, and the memory itself. Memory is promised when a device is made, so a
//! device never runs out of it later. By default all memory is allocated, touched and locked when the donor starts: it
//! is never swapped out, and no other program can use it. With `on_demand`, a slab is allocated when it is first
//! written and is not locked. Until the first write other programs can use the memory, so the kernel may kill the donor
//! when memory is short. A slab is a huge page if the kernel has one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nectary_block::{Buffer, format_size, lock_pages};

use super::error::DonorError;

/// The unit in which memory is promised and allocated, in bytes.
pub(super) const SLAB_BYTES: usize = 2 << 20;

/// The memory of a donor.
pub(super) struct SlabPool {
    slabs: u64,
    promised: Mutex<u64>,
    in_use: AtomicU64,
    /// Locked slabs that no device uses; `None` if memory is allocated on demand.
    spare: Option<Mutex<Vec<Buffer>>>,
}

impl SlabPool {
    /// Reserves the memory. *Cost*: touches all of it, unless `on_demand` is set.
    pub fn new(memory_bytes: u64, on_demand: bool) -> Result<SlabPool, DonorError> {
        let slabs = memory_bytes / SLAB_BYTES as u64;
        if slabs == 0 {
            return Err(DonorError::TooLittle { memory_bytes });
        }
        let spare = match on_demand {
            true => None,
            false => Some(Mutex::new(locked(slabs)?)),
        };
        Ok(SlabPool { slabs, promised: Mutex::new(0), in_use: AtomicU64::new(0), spare })
    }

    /// Promises memory for a device of `bytes` that has a promise for `former` bytes; returns whether there is enough.
    pub fn promise(&self, former: u64, bytes: u64) -> bool {
        let slab = SLAB_BYTES as u64;
        let wanted = bytes.div_ceil(slab).saturating_sub(former.div_ceil(slab));
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        match promised.checked_add(wanted).filter(|&sum| sum <= self.slabs) {
            Some(sum) => *promised = sum,
            None => return false,
        }
        true
    }

    /// Cancels a promise.
    pub fn release(&self, bytes: u64) {
        let wanted = bytes.div_ceil(SLAB_BYTES as u64);
        *self.promised.lock().unwrap_or_else(PoisonError::into_inner) -= wanted;
    }

    /// Returns a slab for a device that has a promise; its contents are undefined.
    pub fn take(&self) -> Buffer {
        self.in_use.fetch_add(1, Ordering::Relaxed);
        let spare = self.spare.as_ref();
        let spare = spare.and_then(|spare| spare.lock().unwrap_or_else(PoisonError::into_inner).pop());
        spare.unwrap_or_else(|| Buffer::zeroed(SLAB_BYTES))
    }

    /// Takes a slab back; if memory is allocated on demand, it is returned to the kernel.
    pub fn give_back(&self, slab: Buffer) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        if let Some(spare) = &self.spare {
            spare.lock().unwrap_or_else(PoisonError::into_inner).push(slab);
        }
    }

    /// Whether all memory was allocated and locked at the start.
    pub fn is_locked(&self) -> bool {
        self.spare.is_some()
    }

    /// Returns all memory, the promised memory, and the slabs in use, in bytes.
    pub fn bytes(&self) -> (u64, u64, u64) {
        let promised = *self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let slab = SLAB_BYTES as u64;
        (self.slabs * slab, promised * slab, self.in_use.load(Ordering::Relaxed) * slab)
    }
}

/// Allocates, touches and locks slabs.
fn locked(slabs: u64) -> Result<Vec<Buffer>, DonorError> {
    let wanted_bytes = slabs * SLAB_BYTES as u64;
    if let Some(available_bytes) = nectary_host::memory::available_bytes().filter(|&available| available < wanted_bytes)
    {
        return Err(DonorError::NotThere { wanted_bytes, available_bytes });
    }
    let mut list = Vec::new();
    for _ in 0..slabs {
        let slab = Buffer::zeroed(SLAB_BYTES);
        if let Err(source) = lock_pages(&slab) {
            let locked_bytes = list.len() as u64 * SLAB_BYTES as u64;
            return Err(DonorError::Locked { wanted_bytes, locked_bytes, limit: lock_limit(), source });
        }
        list.push(slab);
    }
    Ok(list)
}

/// Returns how much memory this process may lock, in words.
fn lock_limit() -> String {
    let text = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap_or_default();
    match line.split_whitespace().next().map(str::parse::<u64>) {
        Some(Ok(bytes)) => format_size(bytes),
        _ => "no limit".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pool promises no more than it has, and with `on_demand` allocates nothing before it is taken.
    #[test]
    fn pool_promises_only_its_memory() {
        let slab = SLAB_BYTES as u64;
        let pool = SlabPool::new(3 * slab + 5, true).unwrap();
        assert!(pool.promise(0, 1) && pool.promise(0, slab) && pool.promise(slab, 2 * slab));
        assert!(!pool.promise(0, 1) && !pool.promise(0, u64::MAX) && !pool.promise(slab, slab + 1));
        assert_eq!(pool.bytes(), (3 * slab, 3 * slab, 0));
        pool.release(2 * slab);
        let taken = pool.take();
        assert_eq!(pool.bytes(), (3 * slab, slab, slab));
        pool.give_back(taken);
        assert_eq!(pool.bytes().2, 0);
        assert!(matches!(SlabPool::new(slab - 1, true), Err(DonorError::TooLittle { .. })));
    }

    #[test]
    fn too_much_memory_is_refused() {
        let refused = SlabPool::new(1 << 60, false).map(drop).unwrap_err().to_string();
        assert!(refused.contains("1E of memory") && refused.contains("available"), "{refused}");
    }
}
