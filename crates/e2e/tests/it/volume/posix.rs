//! What programs expect of any file system and the kernel leaves to one behind FUSE: rights that a write takes away,
//! file handles, positions of data.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::rights::{check_writes_take_capabilities_away, check_writes_take_rights_away};
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::ffi::{CString, c_int};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The longest file handle, as the kernel allows it. *Units*: bytes.
const HANDLE_BYTES: usize = 128;

/// A file handle: its length, its type, and its bytes.
#[repr(C)]
struct RawFileHandle {
    length: u32,
    kind: c_int,
    bytes: [u8; HANDLE_BYTES],
}

fn handle_of(path: &Path) -> io::Result<RawFileHandle> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut handle = RawFileHandle { length: HANDLE_BYTES as u32, kind: 0, bytes: [0; HANDLE_BYTES] };
    let mut mount = 0;
    // SAFETY: the path ends with a zero byte, the handle has the length that it says, and both outlive the call.
    let done = unsafe {
        let handle = (&raw mut handle).cast::<libc::file_handle>();
        libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), handle, &raw mut mount, 0)
    };
    if done == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
}

fn open(root: &File, handle: &mut RawFileHandle) -> io::Result<File> {
    // SAFETY: the handle is as the kernel made it; a number that is not negative is a descriptor of ours alone.
    unsafe {
        let handle = (&raw mut *handle).cast::<libc::file_handle>();
        match libc::open_by_handle_at(root.as_raw_fd(), handle, libc::O_RDONLY) {
            descriptor if descriptor >= 0 => Ok(File::from_raw_fd(descriptor)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn volume() -> Option<(VolumeRig, std::path::PathBuf, std::path::PathBuf)> {
    if let Some(reason) = missing(false) {
        not_run(reason);
        return None;
    }
    let mut volume = VolumeRig::new("512M").expect("it is formatted and served");
    let (here, there) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts again"));
    Some((volume, here, there))
}

#[test]
fn writes_take_rights_away() {
    let Some((_volume, here, there)) = volume() else { return };
    check_writes_take_rights_away(&here, &there);
    check_writes_take_capabilities_away(&here, &there);
}

#[test]
fn file_handles_outlive_kernel_cache() {
    let Some((_volume, here, there)) = volume() else { return };
    fs::create_dir(here.join("d")).expect("it is made");
    fs::write(here.join("d/file"), "content").expect("it is written");
    let mut handles = ["d", "d/file"].map(|name| handle_of(&here.join(name)).expect("it has a handle"));
    let root = File::open(&here).expect("it opens");
    let content = |handle: &mut RawFileHandle| -> io::Result<String> {
        let mut text = String::new();
        open(&root, handle)?.read_to_string(&mut text)?;
        Ok(text)
    };
    for round in 0..3 {
        fs::write("/proc/sys/vm/drop_caches", "2").expect("the kernel forgets");
        assert_eq!(content(&mut handles[1]).expect("it opens"), "content", "round {round}");
        let directory = open(&root, &mut handles[0]).expect("the directory opens");
        let below = format!("/proc/self/fd/{}/file", directory.as_raw_fd());
        assert_eq!(fs::read_to_string(below).expect("it is read"), "content", "round {round}");
        let parent = format!("/proc/self/fd/{}/..", directory.as_raw_fd());
        assert!(Path::new(&parent).join("d/file").exists(), "round {round}");
    }
    // Another host removes it, and its number may be used again.
    fs::remove_file(there.join("d/file")).expect("it is removed");
    for number in 0..50 {
        fs::write(there.join(format!("new-{number}")), "other").expect("it is written");
    }
    fs::write("/proc/sys/vm/drop_caches", "2").expect("the kernel forgets");
    assert_eq!(content(&mut handles[1]).expect_err("it is gone").raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn seek_data_out_of_range_fails() {
    let Some((_volume, here, _)) = volume() else { return };
    fs::write(here.join("file"), "content").expect("it is written");
    let file = File::open(here.join("file")).expect("it opens");
    for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
        for offset in [-1, i64::MIN, 7, i64::MAX] {
            // SAFETY: the call takes numbers only.
            let found = unsafe { libc::lseek64(file.as_raw_fd(), offset, whence) };
            assert_eq!(
                (found, io::Error::last_os_error().raw_os_error()),
                (-1, Some(libc::ENXIO)),
                "{whence} {offset}"
            );
        }
    }
}

/// Locks the first ten bytes for an open file description, which waits for them or not; returns whether it got them.
fn lock_range(file: &File, waits: bool) -> bool {
    // SAFETY: all zeroes are a value of this layout: from 0 on.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16, 10);
    // SAFETY: the structure has the layout that the call reads, and outlives it.
    unsafe {
        libc::fcntl(file.as_raw_fd(), if waits { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK }, &raw mut lock) == 0
    }
}

fn lock(file: &File) -> bool {
    lock_range(file, false)
}

/// Locks the whole file with `flock`, as above.
fn lock_whole(file: &File, waits: bool) -> bool {
    let how = libc::LOCK_EX | if waits { 0 } else { libc::LOCK_NB };
    // SAFETY: a plain system call on a file that is open.
    unsafe { libc::flock(file.as_raw_fd(), how) == 0 }
}

/// The lock of an open file description ends when the description is closed.
#[test]
fn description_lock_ends_with_description() {
    let Some((_volume, here, there)) = volume() else { return };
    fs::write(here.join("file"), "content").expect("it is written");
    let open =
        |directory: &Path| File::options().read(true).write(true).open(directory.join("file")).expect("it opens");
    let get = |file: &File| {
        let until = Instant::now() + LIMIT;
        while !lock(file) {
            assert!(Instant::now() < until, "the lock of a closed file is still there");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let (first, other) = (open(&here), open(&there));
    assert!(lock(&first) && !lock(&other) && !lock(&open(&here)));
    // Descriptors of one description share it.
    let second = first.try_clone().expect("it is cloned");
    drop(first);
    assert!(!lock(&other) && lock(&second));
    drop(second);
    drop(other);
    get(&open(&there));
    get(&open(&here));
    // The end of one description leaves the lock of another one alone.
    let (kept, closed) = (open(&here), open(&here));
    get(&closed);
    drop(closed);
    get(&kept);
    assert!(!lock(&open(&there)) && !lock(&open(&here)));
}

/// A call that locks a file, which waits for the lock or not; it returns whether it got it.
type FileLocker = fn(&File, bool) -> bool;

/// The time for which programs lock a file again and again.
const LOCKING: Duration = Duration::from_secs(3);
/// So many programs change files that the release of a closed file's lock waits.
const CHANGERS: usize = 80;

/// Opens, locks and closes a file again and again; returns how often, and how often another one had the lock, too.
fn lock_again(path: &Path, lock: FileLocker, holders: &AtomicU32) -> (u32, u32) {
    let (until, mut locks, mut overlaps) = (Instant::now() + LOCKING, 0, 0);
    while Instant::now() < until {
        let file = File::options().read(true).write(true).open(path).expect("it opens");
        assert!(lock(&file, true), "{}", io::Error::last_os_error());
        overlaps += u32::from(holders.fetch_add(1, Ordering::AcqRel) > 0);
        std::thread::sleep(Duration::from_micros(300));
        holders.fetch_sub(1, Ordering::AcqRel);
        locks += 1;
    }
    (locks, overlaps)
}

/// The kernel names the owner of a lock by the address of the open file, and the next one that is opened has the same. It
/// tells the mount of the end of a file after `close` has returned.
#[test]
fn closing_releases_no_later_lock() {
    let Some((_volume, here, there)) = volume() else { return };
    fs::write(here.join("file"), "content").expect("it is written");
    let (is_over, holders) = (AtomicBool::new(false), [AtomicU32::new(0), AtomicU32::new(0)]);
    std::thread::scope(|scope| {
        for changer in 0..CHANGERS {
            let (path, is_over) = (here.join(format!("changed-{changer}")), &is_over);
            scope.spawn(move || {
                let file = File::create(path).expect("it is made");
                for size in (0..2).cycle().take_while(|_| !is_over.load(Ordering::Acquire)) {
                    file.set_len(size).expect("it is changed");
                }
            });
        }
        let kinds: [(&str, FileLocker, _); 2] =
            [("flock", lock_whole, &holders[0]), ("F_OFD_SETLKW", lock_range, &holders[1])];
        let found = kinds.map(|(name, lock, holders)| {
            let paths = [&here, &there].map(|directory| directory.join("file"));
            let threads = paths.map(|path| scope.spawn(move || lock_again(&path, lock, holders)));
            (name, threads.map(|thread| thread.join()))
        });
        is_over.store(true, Ordering::Release);
        for (name, threads) in found {
            for (locks, overlaps) in threads.map(|thread| thread.expect("no panic")) {
                assert!(locks > 20 && overlaps == 0, "{name}: {overlaps} of {locks} locks were not alone");
            }
        }
    });
    // A file that was closed loses its lock, if not at once: the mount may read the next request before the release.
    for lock in [lock_whole, lock_range] {
        for at in 0..100 {
            let file = File::options().read(true).write(true).open(here.join("file")).expect("it opens");
            let until = Instant::now() + LOCKING;
            while !lock(&file, false) {
                assert!(Instant::now() < until, "lock {at}: {}", io::Error::last_os_error());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}
