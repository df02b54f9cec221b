//! The report of a failure to a C program: a code, and a text per thread.
//!
//! Owns: the codes, the text of each thread's last failed call, and the conversion of a panic into a code.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nectary_store::StoreErrorKind;

/// The call succeeded.
pub const NECTARY_OK: c_int = 0;
/// There is no such file; from `nectary_open`: there is no store.
pub const NECTARY_ABSENT: c_int = 1;
/// The device holds something other than a store, a store of another version, or a store that is too damaged to open.
pub const NECTARY_CORRUPT: c_int = 2;
/// The call is not possible now: a limit is reached, another process has the store open, or the program has not given
/// back all pointers.
pub const NECTARY_BUSY: c_int = 3;
/// An argument is bad: a null pointer, an unknown handle, or a name or length out of bounds.
pub const NECTARY_INVALID: c_int = 4;
/// The device failed.
pub const NECTARY_IO: c_int = 5;
/// The store accepts no more writes after an earlier failure, or is closed.
pub const NECTARY_STOPPED: c_int = 6;
/// The library has a bug. The store can still be used, but the effect of the call is undefined.
pub const NECTARY_INTERNAL: c_int = 7;

/// A failed call.
#[derive(Debug)]
pub struct CallFailure {
    /// One of the codes above, never `NECTARY_OK`.
    pub code: c_int,
    /// What went wrong, and where.
    pub message: String,
}

impl CallFailure {
    /// Makes a failure.
    pub fn new(code: c_int, message: impl Into<String>) -> CallFailure {
        CallFailure { code, message: message.into() }
    }

    /// The failure of a call with a bad argument.
    pub fn invalid(message: impl Into<String>) -> CallFailure {
        CallFailure::new(NECTARY_INVALID, message)
    }

    /// The failure of a call on a store that is closed.
    pub fn closed() -> CallFailure {
        CallFailure::new(NECTARY_STOPPED, "the store is closed, or being closed")
    }
}

impl From<nectary_store::Error> for CallFailure {
    fn from(error: nectary_store::Error) -> CallFailure {
        let code = match error.kind {
            StoreErrorKind::Absent => NECTARY_ABSENT,
            StoreErrorKind::Corrupt => NECTARY_CORRUPT,
            StoreErrorKind::Busy => NECTARY_BUSY,
            StoreErrorKind::Invalid => NECTARY_INVALID,
            StoreErrorKind::Io => NECTARY_IO,
            StoreErrorKind::Stopped => NECTARY_STOPPED,
        };
        CallFailure::new(code, error.message)
    }
}

impl From<nectary_block::Error> for CallFailure {
    fn from(error: nectary_block::Error) -> CallFailure {
        nectary_store::Error::from(error).into()
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs the work of a call and returns its code. Keeps the text of a failure for this thread. Never unwinds.
pub fn call(step: impl FnOnce() -> Result<(), CallFailure>) -> c_int {
    // This is unwind safe: only the store can have a half-done operation, and the store keeps its promises at every
    // step.
    let result = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let message = format!("a bug in libnectary: {}", words.unwrap_or("it panicked"));
        // The thrown value may itself panic when it is dropped.
        std::mem::forget(panic);
        Err(CallFailure::new(NECTARY_INTERNAL, message))
    });
    let Err(CallFailure { code, message }) = result else { return NECTARY_OK };
    let text = CString::new(message.replace('\0', "?")).unwrap_or_default();
    // A thread that is ending cannot store the text; this error is ignored.
    let _ = LAST.try_with(|last| last.replace(text));
    code
}

/// The text of this thread's last failed call; empty if no call of this thread has failed.
pub fn last() -> *const c_char {
    let none: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(none.as_ptr())
}
