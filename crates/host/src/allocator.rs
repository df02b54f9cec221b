//! The system's allocator: when freed memory is returned to the system.
//!
//! Owns: two settings of glibc, and the request to return all free pages. Promises: with the settings, a block of
//! 128 KiB or more is returned to the system as soon as it is freed. So a budget that counts the bytes of blocks also
//! limits the resident memory.

/// The minimum size of a block that gets its own mapping. *Units*: bytes.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: std::ffi::c_int = 128 << 10;
/// The number of free bytes at the end of a heap above which they are returned to the system. *Units*: bytes.
#[cfg(target_env = "gnu")]
const HEAP_FREE_BYTES_MAX: std::ffi::c_int = 1 << 20;

/// Makes the allocator of this process return freed large blocks to the system. It must be called before other threads
/// allocate.
///
/// By default, whenever a large block is freed, glibc raises the threshold above which a block gets its own mapping, up
/// to 32 MiB. Blocks below the threshold are in heaps, where memory that is freed between two live blocks is never
/// returned. On other allocators the call has no effect.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls take only integers, and only set two thresholds of the allocator. Live blocks stay valid.
    #[allow(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_FREE_BYTES_MAX);
    }
}

/// Returns to the system every page of the allocator that holds no live block. *Cost*: visits all free memory; other
/// threads that allocate may wait for it. On other allocators the call has no effect.
pub fn give_back_free_pages() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes an integer; live blocks stay valid.
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0);
    }
}
