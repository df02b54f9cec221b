//! The memory of a run, measured by an allocator that counts.
//!
//! Owns: the number of live bytes, its peak, and a bound on single allocations. Because of the bound, a decoder that
//! trusts a wrong length ends the process with a message, instead of exhausting the memory of the machine.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest single allocation. *Units*: bytes.
const ALLOCATION_BYTES_MAX: usize = 1 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with the live bytes counted.
struct FuzzAllocator;

#[global_allocator]
static ALLOCATOR: FuzzAllocator = FuzzAllocator;

// SAFETY: every call is passed unchanged to the system's allocator, or fails with a null pointer, which the contract
// allows.
unsafe impl GlobalAlloc for FuzzAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > ALLOCATION_BYTES_MAX {
            return std::ptr::null_mut();
        }
        count(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn count(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
    PEAK.fetch_max(live, Ordering::Relaxed);
}

/// Resets the peak; returns the live bytes now. *Units*: bytes.
pub fn begin() -> usize {
    let live = LIVE.load(Ordering::Relaxed);
    PEAK.store(live, Ordering::Relaxed);
    live
}

/// The peak of the live bytes since [`begin`], minus `begun`, the live bytes at that time. *Units*: bytes.
pub fn peak_since(begun: usize) -> usize {
    PEAK.load(Ordering::Relaxed).saturating_sub(begun)
}

#[cfg(test)]
mod tests {
    #[test]
    fn peak_counts_freed_memory() {
        let begun = super::begin();
        drop(std::hint::black_box(vec![1_u8; 64 << 20]));
        assert!(super::peak_since(begun) >= 64 << 20);
    }
}
