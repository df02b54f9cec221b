//! Owned, aligned memory for I/O.
//!
//! Owns: allocation and alignment. An operation takes a [`Buffer`] by value and returns it when it completes. So the
//! kernel never writes into memory that another owner uses, not even after the future of the operation was dropped.
//!
//! Dropped buffers are kept for the next read: short ones for reads on the same thread, up to [`SPARE_BYTES_MAX`] per
//! thread, and longer ones for all threads, up to [`SPARE_LONG_BYTES_MAX`]. An aligned allocation takes as much time as
//! the rest of a small read, and the page faults of new memory take as much time as a large read.
//!
//! Large buffers are on huge pages if the kernel has some (`madvise`). With small pages, the kernel takes as much time
//! to fill, pin and describe the pages as to copy the data.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// The alignment of every [`Buffer`]; it is enough for `O_DIRECT` on all current devices. *Units*: bytes.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// The size of a huge page, and the minimum length of buffers on huge pages. *Units*: bytes.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// The longest buffer that counts as short. *Units*: bytes.
const SPARE_BUFFER_BYTES_MAX: usize = 64 << 10;
/// The maximum size of all dropped short buffers that one thread keeps. *Units*: bytes.
const SPARE_BYTES_MAX: usize = 256 << 10;
/// The maximum size of all dropped longer buffers that are kept; those on huge pages are not kept. *Units*: bytes.
const SPARE_LONG_BYTES_MAX: usize = 8 << 20;

/// Requests huge pages for memory that has not been written yet. Filling the memory then takes one page fault per 2
/// MiB.
pub fn advise_huge_pages<T>(unwritten: &mut [MaybeUninit<T>]) {
    let start = unwritten.as_ptr().addr() / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    let end = unwritten.as_ptr_range().end.addr().next_multiple_of(BUFFER_ALIGNMENT);
    // SAFETY: the advice changes no contents of any page, only the size of pages that are allocated later. A refusal by
    // the kernel does no harm.
    unsafe { libc::madvise(std::ptr::without_provenance_mut(start), end - start, libc::MADV_HUGEPAGE) };
}

/// Returns the pages that are wholly in `memory` to the kernel. Their contents are undefined afterwards, and may be
/// zeros.
pub fn release_pages(memory: &mut [u8]) {
    let start = memory.as_ptr().addr().next_multiple_of(BUFFER_ALIGNMENT);
    let end = memory.as_ptr_range().end.addr() / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    if start < end {
        // SAFETY: all of these pages belong only to the caller, and any bytes are valid contents.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(start), end - start, libc::MADV_DONTNEED) };
    }
}

/// Keeps memory from being written to swap, until the process ends or the memory is freed. *Errors*: the kernel's
/// error, for example if this process may not lock so much memory (`RLIMIT_MEMLOCK`).
pub fn lock_pages(memory: &[u8]) -> io::Result<()> {
    // SAFETY: the call changes no contents, and the range is memory of this process.
    match unsafe { libc::mlock(memory.as_ptr().cast(), memory.len()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Owned memory whose start is aligned to [`BUFFER_ALIGNMENT`]. It dereferences to its bytes in use.
///
/// *Units*: bytes. *Cost*: one zeroed allocation, whose size is the length rounded up to the alignment.
pub struct Buffer {
    start: NonNull<u8>,
    length: usize,
    capacity: usize,
}

// SAFETY: the memory is owned only by this value, and nothing in it is tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives read access only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates `length` bytes of zeros.
    pub fn zeroed(length: usize) -> Buffer {
        let capacity = length.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        let layout = Self::layout(capacity);
        let start = match capacity >= HUGE_PAGE_BYTES {
            true => Self::huge_zeroed(layout),
            // SAFETY: the layout has a size of at least one alignment unit, so it is not zero.
            false => NonNull::new(unsafe { alloc_zeroed(layout) }),
        };
        let Some(start) = start else { handle_alloc_error(layout) };
        Buffer { start, length, capacity }
    }

    /// Allocates memory of zeros, on huge pages if the kernel has some.
    fn huge_zeroed(layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: the size of the caller's layout is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the range was just allocated and belongs to this call only. The advice changes only the size of pages
        // allocated later, so a refusal by the kernel does no harm. The advice must precede the zeroing, which
        // allocates the pages.
        unsafe {
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
            start.as_ptr().write_bytes(0, layout.size());
        }
        Some(start)
    }

    /// A buffer to read into; it contains zeros or the contents of an earlier buffer. *Cost*: usually no allocation.
    pub fn recycled(length: usize) -> Buffer {
        let capacity = length.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        let spare = match SpareLong::keeps(capacity) {
            true => SpareLong::take(capacity),
            false => SPARE.try_with(|spare| spare.borrow_mut().take(capacity)).unwrap_or_default(),
        };
        spare.map_or_else(|| Buffer::zeroed(length), |start| Buffer { start, length, capacity })
    }

    /// Allocates a buffer that holds a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// The highest number of bytes that [`set_len`](Self::set_len) accepts. *Units*: bytes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Sets the number of bytes that are in use.
    ///
    /// # Panics
    /// Panics if `length` exceeds the capacity, which is a bug of the caller.
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity, "length {length} exceeds capacity {}", self.capacity);
        self.length = length;
    }

    /// Converts the buffer into shared, immutable [`Bytes`]. *Cost*: one small allocation, no copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// Nothing may use or drop the buffer afterwards.
    unsafe fn free(&self) {
        // SAFETY: `start` was allocated with this layout, and the caller promises that it is freed once.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }

    fn layout(capacity: usize) -> Layout {
        let alignment = if capacity >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { BUFFER_ALIGNMENT };
        Layout::from_size_align(capacity, alignment).expect("a buffer's capacity fits the address space")
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if SpareLong::keeps(self.capacity) {
            SpareLong::keep(self.start, self.capacity);
            return;
        }
        // A thread that is ending keeps no memory.
        if !SPARE.try_with(|spare| spare.borrow_mut().keep(self.start, self.capacity)).unwrap_or(false) {
            // SAFETY: no list keeps the buffer, and it is being dropped.
            unsafe { self.free() }
        }
    }
}

thread_local! {
    static SPARE: RefCell<SpareBuffers> = const { RefCell::new(SpareBuffers::new()) };
}

/// The memory of short buffers that were dropped on this thread, by capacity; all of it is initialised.
struct SpareBuffers {
    starts: [Vec<NonNull<u8>>; SPARE_BUFFER_BYTES_MAX / BUFFER_ALIGNMENT],
    bytes: usize,
}

impl SpareBuffers {
    const fn new() -> SpareBuffers {
        SpareBuffers { starts: [const { Vec::new() }; SPARE_BUFFER_BYTES_MAX / BUFFER_ALIGNMENT], bytes: 0 }
    }

    fn take(&mut self, capacity: usize) -> Option<NonNull<u8>> {
        let start = self.starts.get_mut(capacity / BUFFER_ALIGNMENT - 1)?.pop()?;
        self.bytes -= capacity;
        Some(start)
    }

    /// Keeps memory of `capacity` bytes, if there is room for it. *Returns* whether it is kept.
    fn keep(&mut self, start: NonNull<u8>, capacity: usize) -> bool {
        let has_room = self.bytes + capacity <= SPARE_BYTES_MAX;
        let Some(starts) = self.starts.get_mut(capacity / BUFFER_ALIGNMENT - 1).filter(|_| has_room) else {
            return false;
        };
        starts.push(start);
        self.bytes += capacity;
        true
    }
}

impl Drop for SpareBuffers {
    fn drop(&mut self) {
        for (class, starts) in self.starts.iter().enumerate() {
            let layout = Buffer::layout((class + 1) * BUFFER_ALIGNMENT);
            // SAFETY: each start came from `alloc_zeroed` with the layout of its capacity, and belongs only to this
            // list.
            starts.iter().for_each(|start| unsafe { dealloc(start.as_ptr(), layout) });
        }
    }
}

static SPARE_LONG: Mutex<SpareLong> = Mutex::new(SpareLong { buffers: Vec::new(), bytes: 0 });

/// Long buffers that were dropped, the oldest first. All threads share them, so that their memory is bounded however
/// many threads there are.
struct SpareLong {
    buffers: Vec<ManuallyDrop<Buffer>>,
    bytes: usize,
}

impl SpareLong {
    /// Whether buffers of a capacity are kept.
    fn keeps(capacity: usize) -> bool {
        capacity > SPARE_BUFFER_BYTES_MAX && capacity < HUGE_PAGE_BYTES
    }

    fn take(capacity: usize) -> Option<NonNull<u8>> {
        let mut this = SPARE_LONG.lock().unwrap_or_else(PoisonError::into_inner);
        let at = this.buffers.iter().rposition(|kept| kept.capacity == capacity)?;
        this.bytes -= capacity;
        Some(this.buffers.remove(at).start)
    }

    /// Keeps a buffer of `capacity` bytes. If there is no room for it, the oldest buffers are freed.
    fn keep(start: NonNull<u8>, capacity: usize) {
        let mut freed = Vec::new();
        let mut this = SPARE_LONG.lock().unwrap_or_else(PoisonError::into_inner);
        this.buffers.push(ManuallyDrop::new(Buffer { start, length: capacity, capacity }));
        this.bytes += capacity;
        while this.bytes > SPARE_LONG_BYTES_MAX {
            let oldest = this.buffers.remove(0);
            this.bytes -= oldest.capacity;
            freed.push(oldest);
        }
        drop(this);
        // SAFETY: these buffers are in no list any more, and are never dropped.
        freed.iter().for_each(|buffer| unsafe { buffer.free() });
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `length` never exceeds the allocation, which was zeroed and so is initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new buffer can also grow within its capacity.
    #[test]
    fn buffer_is_aligned_and_zeroed() {
        let mut buffer = Buffer::zeroed(5000);
        assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGNMENT, 0);
        assert_eq!((buffer.len(), buffer.capacity()), (5000, 8192));
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.set_len(8192);
        buffer[8191] = 7;
        let bytes = buffer.into_bytes();
        assert_eq!((bytes.len(), bytes[8191]), (8192, 7));
    }

    #[test]
    fn empty_buffer_is_sound() {
        assert_eq!(Buffer::zeroed(0).len(), 0);
    }

    /// A thread keeps dropped short buffers for its next reads, and frees them when it ends.
    #[test]
    fn short_buffers_are_reused_up_to_bound() {
        let first = Buffer::recycled(5000);
        let start = first.as_ptr();
        drop(first);
        let second = Buffer::recycled(6000);
        assert_eq!((second.as_ptr(), second.len(), second.capacity()), (start, 6000, 8192));
        let many: Vec<Buffer> = (0..100).map(|_| Buffer::recycled(8192)).collect();
        drop(many);
        drop(Buffer::zeroed(HUGE_PAGE_BYTES));
        SPARE.with_borrow(|spare| assert_eq!(spare.bytes, SPARE_BYTES_MAX));
        // A thread that ends frees the memory that it keeps, including buffers that were allocated on another thread.
        std::thread::spawn(move || drop(second)).join().unwrap();
    }

    /// All threads together keep dropped long buffers only up to the bound.
    #[test]
    fn long_buffers_are_shared_between_threads() {
        // No other test uses this capacity.
        const LENGTH: usize = (1 << 20) + 144;
        // Other tests may drop so many long buffers meanwhile that this one is not kept.
        let is_taken_by_another_thread = || {
            let first = Buffer::recycled(LENGTH);
            let start = first.as_ptr().addr();
            std::thread::spawn(move || drop(first)).join().unwrap();
            Buffer::recycled(LENGTH + 1).as_ptr().addr() == start
        };
        assert!((0..100).any(|_| is_taken_by_another_thread()));
        drop((0..20).map(|_| Buffer::recycled(LENGTH)).collect::<Vec<_>>());
        let kept = SPARE_LONG.lock().unwrap();
        let sum: usize = kept.buffers.iter().map(|buffer| buffer.capacity).sum();
        assert!(sum == kept.bytes && (SPARE_LONG_BYTES_MAX / 2..=SPARE_LONG_BYTES_MAX).contains(&sum), "{sum}");
    }
}
