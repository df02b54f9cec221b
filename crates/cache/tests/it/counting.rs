//! The allocator of this test program: it counts the allocations of a thread and the bytes that it holds.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The number of allocations of this thread so far.
pub fn allocations() -> usize {
    ALLOCATIONS.get()
}

/// The bytes that this thread has allocated and not freed; it wraps if it frees those of another thread.
pub fn bytes() -> usize {
    BYTES.get()
}

struct PolicyAllocationCounter;

// SAFETY: every call is passed on to the system's allocator unchanged; the counters allocate nothing.
unsafe impl GlobalAlloc for PolicyAllocationCounter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get().wrapping_add(layout.size()));
        // SAFETY: the caller keeps the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get().wrapping_sub(layout.size()));
        // SAFETY: the caller keeps the contract of the system's allocator for `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: PolicyAllocationCounter = PolicyAllocationCounter;
