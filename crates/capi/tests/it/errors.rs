//! Codes and texts of failed calls.

use std::ffi::CStr;

use nectary::error::{CallFailure, call, last};
use nectary::{NECTARY_INTERNAL, NECTARY_INVALID, NECTARY_OK};

fn text() -> String {
    // SAFETY: `last` gives a text that ends with a zero byte and lives until this thread's next failed call.
    unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
}

#[test]
fn panic_becomes_code_and_text() {
    assert_eq!(call(|| panic!("planted {}", 7)), NECTARY_INTERNAL);
    assert_eq!(text(), "a bug in libnectary: planted 7");
    assert_eq!(call(|| panic!("planted")), NECTARY_INTERNAL);
    assert_eq!(text(), "a bug in libnectary: planted");
}

#[test]
fn error_text_is_per_thread() {
    assert_eq!(call(|| Err(CallFailure::invalid("one\0two"))), NECTARY_INVALID);
    std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
    assert_eq!(call(|| Ok(())), NECTARY_OK);
    assert_eq!(text(), "one?two");
}
