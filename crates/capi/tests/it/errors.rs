//! Codes and texts of failed calls.

use std::ffi::CStr;

use nectary::error::{Failure, call, last};
use nectary::{NECTARY_INTERNAL, NECTARY_INVALID, NECTARY_OK};

fn text() -> String {
    // SAFETY: `last` gives a text that ends with a zero byte and lives until this thread's next failed call.
    unsafe { CStr::from_ptr(last()) }.to_string_lossy().into_owned()
}

#[test]
fn a_panic_becomes_a_code_and_a_text() {
    assert_eq!(call(|| panic!("planted {}", 7)), NECTARY_INTERNAL);
    assert_eq!(text(), "a bug in libnectary: planted 7");
    assert_eq!(call(|| panic!("planted")), NECTARY_INTERNAL);
    assert_eq!(text(), "a bug in libnectary: planted");
}

#[test]
fn each_thread_has_the_text_of_its_own_last_failure() {
    assert_eq!(call(|| Err(Failure::invalid("one\0two"))), NECTARY_INVALID);
    std::thread::spawn(|| assert_eq!(text(), "")).join().unwrap();
    assert_eq!(call(|| Ok(())), NECTARY_OK);
    assert_eq!(text(), "one?two");
}
