//! How the system's allocator treats large blocks.
//!
//! Owns: the two settings, and the one `unsafe` of the crate. Promises: a block of 128 KiB or more goes back to the
//! system as soon as it is freed, so a budget that counts blocks also bounds resident memory.

/// Blocks of this size and more are mapped one by one. *Units*: bytes.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: std::ffi::c_int = 128 << 10;
/// The most free bytes at the end of a heap before it is given back. *Units*: bytes.
#[cfg(target_env = "gnu")]
const HEAP_FREE_BYTES_MAX: std::ffi::c_int = 1 << 20;

/// Lets freed blocks go back to the system, for the whole process. To be called before there are threads that allocate.
///
/// glibc raises its threshold for mapping blocks with each large block that is freed, to 32 MiB: from then on bodies
/// are in heaps, and memory freed between two blocks that stay is never given back. Other allocators are unchanged.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls take numbers, and only change where later allocations come from.
    #[allow(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_FREE_BYTES_MAX);
    }
}
