//! The allocator of this test program: it counts the bytes that the process holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The bytes that the process has allocated and not freed.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::Relaxed)
}

struct ProxyTestAllocator;

#[global_allocator]
static ALLOCATOR: ProxyTestAllocator = ProxyTestAllocator;

// SAFETY: every call is passed on to the system's allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for ProxyTestAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of the system's allocator for `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
