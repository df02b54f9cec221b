//! libnectary: the store for C programs. Six of its calls are those of the Hummingbird paper (Shriver et al., Storage
//! Management for Web Proxies, USENIX 2001).
//!
//! Owns: the conversion of values between C and Rust. Before use, pointers are checked for null, and lengths for their
//! bounds. No panic unwinds into C, and every call can be made from any thread. C programs include `include/nectary.h`;
//! a test compares that header with this file. Leaves to others: the store (`nectary-store`).
//!
//! | file | contents |
//! |---|---|
//! | `lib` | the calls, and all `unsafe` |
//! | `handle` | open stores, and the bodies that are held |
//! | `worker` | the thread of a store |
//! | `error` | codes and texts |

/// For the tests.
#[doc(hidden)]
pub mod error;
mod handle;
mod worker;

use std::ffi::{CStr, c_char, c_int, c_void};

use error::{CallFailure, call};
pub use error::{
    NECTARY_ABSENT, NECTARY_BUSY, NECTARY_CORRUPT, NECTARY_INTERNAL, NECTARY_INVALID, NECTARY_IO, NECTARY_OK,
    NECTARY_STOPPED,
};
use worker::StoreOpenOptions;

/// The longest name of a file. *Units*: bytes, without the zero byte at its end.
pub const NECTARY_NAME_BYTES_MAX: usize = ::nectary_store::PRIMARY_BYTES_MAX;

/// The longest SPEC of a device. *Units*: bytes, without the zero byte at its end.
pub const NECTARY_SPEC_BYTES_MAX: usize = 64 << 10;

/// The memory of a store if the program passes 0. *Units*: bytes.
const MEMORY_BYTES: u64 = 256 << 20;

/// An open store. In C this is an incomplete type. Its pointer is a handle and is never dereferenced.
#[allow(non_camel_case_types)]
pub struct nectary_store {
    _private: [u8; 0],
}

/// Opens a store; creates it if the device is absent or blank and `create_bytes` is not 0.
///
/// # Safety
/// `spec` is null or a text that ends with a zero byte; `store` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_open(
    spec: *const c_char,
    create_bytes: u64,
    memory_bytes: u64,
    store: *mut *mut nectary_store,
) -> c_int {
    call(|| {
        if store.is_null() {
            return Err(CallFailure::invalid("store: the pointer is null"));
        }
        // SAFETY: the pointer is not null, and the caller promises that it has room for a pointer.
        unsafe { store.write(std::ptr::null_mut()) };
        // SAFETY: the caller promises the conditions of the called function.
        let spec = unsafe { text("spec", spec, NECTARY_SPEC_BYTES_MAX) }?;
        let spec = std::str::from_utf8(spec).map_err(|_| CallFailure::invalid("spec: it is not UTF-8"))?.to_owned();
        let memory_bytes = if memory_bytes == 0 { MEMORY_BYTES } else { memory_bytes };
        let handle = handle::open(StoreOpenOptions { spec, create_bytes, memory_bytes })?;
        // SAFETY: as for the write above.
        unsafe { store.write(std::ptr::without_provenance_mut(handle)) };
        Ok(())
    })
}

/// Writes all pending data and closes the store.
#[unsafe(no_mangle)]
pub extern "C" fn nectary_close(store: *mut nectary_store) -> c_int {
    call(|| handle::close(store.addr()))
}

/// Stores a file, or replaces it.
///
/// # Safety
/// `name` is null or a text that ends with a zero byte; `data` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_write_file(
    store: *mut nectary_store,
    name: *const c_char,
    data: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller promises the conditions of the called function.
    call(|| unsafe { write(store, name, data, length) })
}

/// Stores a file that need not stay in memory.
///
/// # Safety
/// `name` is null or a text that ends with a zero byte; `data` is null or has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_write_nomem_file(
    store: *mut nectary_store,
    name: *const c_char,
    data: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller promises the conditions of the called function.
    call(|| unsafe { write(store, name, data, length) })
}

/// Reads a file; its bytes stay valid until `nectary_done_read_file`.
///
/// # Safety
/// `name` is null or a text that ends with a zero byte; `data` and `length` are null or have room for a value each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_read_file(
    store: *mut nectary_store,
    name: *const c_char,
    data: *mut *const c_void,
    length: *mut usize,
) -> c_int {
    call(|| {
        if data.is_null() || length.is_null() {
            return Err(CallFailure::invalid("data or length: the pointer is null"));
        }
        // SAFETY: neither pointer is null, and the caller promises that each has room for a value.
        unsafe {
            data.write(std::ptr::null());
            length.write(0);
        }
        // SAFETY: the caller promises the conditions of the called function.
        let name = unsafe { text("name", name, NECTARY_NAME_BYTES_MAX) }?;
        let (address, bytes) = handle::find(store.addr())?.read(name)?;
        // SAFETY: as for the write above.
        unsafe {
            data.write(address.cast());
            length.write(bytes);
        }
        Ok(())
    })
}

/// Gives back a pointer of `nectary_read_file`.
#[unsafe(no_mangle)]
pub extern "C" fn nectary_done_read_file(store: *mut nectary_store, data: *const c_void) -> c_int {
    call(|| handle::find(store.addr())?.give_back(data.addr()))
}

/// Deletes a file.
///
/// # Safety
/// `name` is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_delete_file(store: *mut nectary_store, name: *const c_char) -> c_int {
    call(|| {
        // SAFETY: the caller promises the conditions of the called function.
        let name = unsafe { text("name", name, NECTARY_NAME_BYTES_MAX) }?;
        handle::find(store.addr())?.delete(name)
    })
}

/// Tells the store that two files belong together.
///
/// # Safety
/// Each name is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nectary_collocate_files(
    store: *mut nectary_store,
    name: *const c_char,
    other: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises the conditions of the called function.
        let (name, other) =
            unsafe { (text("name", name, NECTARY_NAME_BYTES_MAX)?, text("other", other, NECTARY_NAME_BYTES_MAX)?) };
        handle::find(store.addr())?.collocate(name, other);
        Ok(())
    })
}

/// The error text of this thread's last failed call.
#[unsafe(no_mangle)]
pub extern "C" fn nectary_last_error() -> *const c_char {
    error::last()
}

/// # Safety
/// The conditions are those of `nectary_write_file`.
unsafe fn write(
    store: *mut nectary_store,
    name: *const c_char,
    data: *const c_void,
    length: usize,
) -> Result<(), CallFailure> {
    // SAFETY: the caller promises the conditions of the called function.
    let name = unsafe { text("name", name, NECTARY_NAME_BYTES_MAX) }?;
    if length > isize::MAX as usize {
        return Err(CallFailure::invalid("length: no piece of memory is as long"));
    }
    let data: &[u8] = match (data.is_null(), length) {
        (_, 0) => &[],
        (true, _) => return Err(CallFailure::invalid("data: the pointer is null")),
        // SAFETY: the pointer is not null, and the caller promises that it has `length` bytes.
        (false, _) => unsafe { std::slice::from_raw_parts(data.cast(), length) },
    };
    handle::find(store.addr())?.write(name, data)
}

/// Returns a C string of 1 to `bytes_max` bytes. Reads at most `bytes_max + 1` bytes.
///
/// # Safety
/// `text` is null, or a text that ends with a zero byte and does not change during `'a`.
unsafe fn text<'a>(what: &str, text: *const c_char, bytes_max: usize) -> Result<&'a [u8], CallFailure> {
    if text.is_null() {
        return Err(CallFailure::invalid(format!("{what}: the pointer is null")));
    }
    // SAFETY: the loop reads no byte after the zero byte.
    let length = (0..=bytes_max).find(|&index| unsafe { text.add(index).read() } == 0);
    match length {
        Some(0) => Err(CallFailure::invalid(format!("{what}: it is empty"))),
        None => Err(CallFailure::invalid(format!("{what}: it has more than {bytes_max} bytes"))),
        // SAFETY: the loop has found the first zero byte, so the text ends there.
        Some(_) => Ok(unsafe { CStr::from_ptr(text) }.to_bytes()),
    }
}
