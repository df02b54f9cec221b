//! How the system's allocator treats large blocks.
//!
//! Owns: two settings of glibc, and the only `unsafe` of the crate. Promises: a block of 128 KiB or more is returned to
//! the system as soon as it is freed, so a budget that counts blocks also bounds resident memory.

/// Blocks of this size and more get their own mapping. *Units*: bytes.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES_MIN: std::ffi::c_int = 128 << 10;
/// The most free bytes at the end of a heap before they are returned to the system. *Units*: bytes.
#[cfg(target_env = "gnu")]
const HEAP_FREE_BYTES_MAX: std::ffi::c_int = 1 << 20;

/// Makes freed large blocks return to the system, for the whole process. Call it before threads allocate.
///
/// By default glibc raises its threshold for mapping blocks whenever a large block is freed, up to 32 MiB. Then bodies
/// are in heaps, and memory that is freed between two live blocks is never returned. Other allocators are unchanged.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the calls have only numbers as arguments, and only change where later allocations come from.
    #[allow(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_FREE_BYTES_MAX);
    }
}
