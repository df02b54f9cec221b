//! Tests of the calls' promises and refusals. The tests call the functions in the same way as a C program.

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use nectary::*;

const OK: c_int = NECTARY_OK;

fn text(name: &str) -> CString {
    CString::new(name).unwrap()
}

fn last() -> String {
    // SAFETY: the text ends with a zero byte and lives until this thread's next failed call.
    unsafe { CStr::from_ptr(nectary_last_error()) }.to_string_lossy().into_owned()
}

/// A store in a temporary file that only one test uses. The file is removed when this is dropped.
struct TemporaryStore {
    path: PathBuf,
    store: *mut nectary_store,
}

// SAFETY: the store is a handle that any thread may use.
unsafe impl Sync for TemporaryStore {}

impl TemporaryStore {
    fn new(test: &str) -> TemporaryStore {
        let path = std::env::temp_dir().join(format!("nectary-capi-{test}-{}.store", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut disk = TemporaryStore { path, store: null_mut() };
        disk.open();
        disk
    }

    fn open(&mut self) {
        let spec = text(self.path.to_str().unwrap());
        // SAFETY: all pointers are to values that outlive the call.
        let code = unsafe { nectary_open(spec.as_ptr(), 64 << 20, 16 << 20, &raw mut self.store) };
        assert_eq!(code, OK, "{}", last());
    }

    /// Stores a file. While the library is busy, because the disk is slow, tries again for a bounded time.
    fn write(&self, name: &str, data: &[u8]) -> c_int {
        let began = Instant::now();
        loop {
            // SAFETY: as above.
            let code = unsafe { nectary_write_file(self.store, text(name).as_ptr(), data.as_ptr().cast(), data.len()) };
            if code != NECTARY_BUSY || began.elapsed() > Duration::from_secs(20) {
                return code;
            }
            std::thread::yield_now();
        }
    }

    fn read(&self, name: &str) -> Result<&[u8], c_int> {
        let (mut data, mut length) = (null::<c_void>(), 7);
        // SAFETY: as above.
        match unsafe { nectary_read_file(self.store, text(name).as_ptr(), &raw mut data, &raw mut length) } {
            // SAFETY: the call returned this many bytes, which stay until they are given back.
            OK => Ok(unsafe { std::slice::from_raw_parts(data.cast(), length) }),
            code => {
                assert!(data.is_null() && length == 0);
                Err(code)
            }
        }
    }

    fn done(&self, data: &[u8]) -> c_int {
        nectary_done_read_file(self.store, data.as_ptr().cast())
    }

    fn delete(&self, name: &str) -> c_int {
        // SAFETY: as above.
        unsafe { nectary_delete_file(self.store, text(name).as_ptr()) }
    }
}

impl Drop for TemporaryStore {
    fn drop(&mut self) {
        nectary_close(self.store);
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn files_of_all_sizes_survive_reopen() {
    let mut disk = TemporaryStore::new("sizes");
    let sizes = [0, 1, 4096, 100_000, 3 << 20, 9 << 20];
    let body = |size: usize| (0..size).map(|index| (index * 31 % 251) as u8).collect::<Vec<_>>();
    for size in sizes {
        assert_eq!(disk.write(&format!("file {size}"), &body(size)), OK, "{}", last());
    }
    for round in 0..2 {
        for size in sizes {
            let read = disk.read(&format!("file {size}"));
            let data = read.unwrap_or_else(|code| panic!("round {round}, {size} bytes: {code}, {}", last()));
            assert!(data == body(size), "{size}");
            assert_eq!(disk.done(data), OK);
        }
        assert_eq!(nectary_close(disk.store), OK, "{}", last());
        assert_eq!(nectary_close(disk.store), NECTARY_INVALID);
        disk.open();
    }
}

/// A held body also stays valid when it is replaced.
#[test]
fn held_body_survives_delete() {
    let disk = TemporaryStore::new("held");
    assert_eq!(disk.write("a", b"first"), OK);
    let (one, two) = (disk.read("a").unwrap(), disk.read("a").unwrap());
    assert_eq!(one.as_ptr(), two.as_ptr(), "it was copied");
    assert_eq!(disk.write("a", b"second"), OK);
    let replaced = disk.read("a").unwrap();
    assert_eq!(disk.delete("a"), OK);
    assert_eq!(disk.read("a").unwrap_err(), NECTARY_ABSENT);
    assert_eq!((one, two, replaced), (&b"first"[..], &b"first"[..], &b"second"[..]));
    assert_eq!(nectary_close(disk.store), NECTARY_BUSY);
    assert!(last().starts_with("3 pointers"), "{}", last());
    assert_eq!([disk.done(one), disk.done(replaced), disk.done(two)], [OK; 3]);
    assert_eq!(disk.done(two), NECTARY_INVALID);
    assert_eq!(disk.delete("never there"), OK);
}

/// Null pointers, stale handles and lengths out of bounds are refused.
#[test]
fn invalid_call_arguments_are_refused() {
    let disk = TemporaryStore::new("refused");
    let (name, long) = (text("a"), text(&"n".repeat(NECTARY_NAME_BYTES_MAX + 1)));
    let (mut data, mut length, mut store) = (null::<c_void>(), 0, null_mut());
    let made_up = std::ptr::without_provenance_mut::<nectary_store>(0x7fff_1234);
    // SAFETY: non-null values outlive the calls; lengths out of bounds are refused before a byte is read.
    let codes = unsafe {
        [
            nectary_open(null(), 0, 0, &raw mut store),
            nectary_open(name.as_ptr(), 0, 0, null_mut()),
            nectary_open(c"memory:64M".as_ptr(), 64 << 20, 1, &raw mut store),
            nectary_open(c"memori:64M".as_ptr(), 64 << 20, 0, &raw mut store),
            nectary_open(c"\xff".as_ptr(), 64 << 20, 0, &raw mut store),
            nectary_close(null_mut()),
            nectary_close(made_up),
            nectary_write_file(null_mut(), name.as_ptr(), c"x".as_ptr().cast(), 1),
            nectary_write_file(disk.store, null(), c"x".as_ptr().cast(), 1),
            nectary_write_file(disk.store, c"".as_ptr(), c"x".as_ptr().cast(), 1),
            nectary_write_file(disk.store, long.as_ptr(), c"x".as_ptr().cast(), 1),
            nectary_write_file(disk.store, name.as_ptr(), null(), 1),
            nectary_write_file(disk.store, name.as_ptr(), c"x".as_ptr().cast(), usize::MAX),
            nectary_write_nomem_file(disk.store, name.as_ptr(), null(), 1),
            nectary_read_file(disk.store, name.as_ptr(), null_mut(), &raw mut length),
            nectary_read_file(disk.store, name.as_ptr(), &raw mut data, null_mut()),
            nectary_read_file(disk.store, null(), &raw mut data, &raw mut length),
            nectary_read_file(made_up, name.as_ptr(), &raw mut data, &raw mut length),
            nectary_done_read_file(disk.store, null()),
            nectary_done_read_file(disk.store, name.as_ptr().cast()),
            nectary_delete_file(disk.store, null()),
            nectary_collocate_files(disk.store, name.as_ptr(), null()),
            nectary_collocate_files(null_mut(), name.as_ptr(), name.as_ptr()),
        ]
    };
    assert_eq!(codes, [NECTARY_INVALID; 23]);
    assert!(store.is_null() && data.is_null());
    // Values at the bounds are accepted.
    let name = "n".repeat(NECTARY_NAME_BYTES_MAX);
    assert_eq!(disk.write(&name, &[]), OK, "{}", last());
    assert_eq!(disk.done(disk.read(&name).unwrap()), OK);
    let too_long = vec![0; (64 << 20) + 1];
    assert_eq!(disk.write("a", &too_long), NECTARY_INVALID, "{}", last());
    // SAFETY: both names outlive the call.
    assert_eq!(unsafe { nectary_collocate_files(disk.store, c"a".as_ptr(), c"b".as_ptr()) }, OK);
}

#[test]
fn open_reports_absent_store() {
    let mut store = null_mut();
    for spec in [c"/nowhere/at/all.img", c"memory:64M"] {
        // SAFETY: both pointers are to values that outlive the call.
        let code = unsafe { nectary_open(spec.as_ptr(), 0, 0, &raw mut store) };
        assert_eq!((code, store), (NECTARY_ABSENT, null_mut()), "{}", last());
    }
}

#[test]
fn threads_share_one_store() {
    let disk = TemporaryStore::new("threads");
    std::thread::scope(|scope| {
        for thread in 0..8u8 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..100u8 {
                    let (own, shared) = (format!("{thread}"), format!("shared {}", round % 4));
                    assert_eq!(disk.write(&own, &[round; 3000]), OK, "{}", last());
                    assert_eq!(disk.write(&shared, &[round; 5000]), OK, "{}", last());
                    let data = disk.read(&own).unwrap();
                    assert_eq!(data, [round; 3000]);
                    if let Ok(both) = disk.read(&shared) {
                        assert!(both.len() == 5000 && both.iter().all(|&byte| byte == both[0]));
                        assert_eq!(disk.done(both), OK);
                    }
                    assert_eq!(disk.done(data), OK);
                }
                assert_eq!(disk.delete(&format!("{thread}")), OK);
            });
        }
    });
}

#[test]
fn held_pointers_stop_at_limit() {
    const LIMIT: usize = 1 << 16;
    let disk = TemporaryStore::new("limit");
    assert_eq!([disk.write("a", b"body"), disk.write("empty", b"")], [OK; 2]);
    let held: Vec<_> = (0..LIMIT).map(|_| disk.read("a").unwrap()).collect();
    assert_eq!(disk.read("empty").unwrap_err(), NECTARY_BUSY);
    assert_eq!(disk.done(held[0]), OK);
    let empty = disk.read("empty").unwrap();
    assert!(empty.is_empty());
    assert_eq!(disk.read("a").unwrap_err(), NECTARY_BUSY);
    assert_eq!(disk.done(empty), OK);
    for data in &held[1..] {
        assert_eq!(disk.done(data), OK);
    }
    assert_eq!(disk.done(held[0]), NECTARY_INVALID);
}
