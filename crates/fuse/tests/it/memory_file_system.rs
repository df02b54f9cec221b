//! Tests that mount a small file system in memory: programs see the same behaviour as on any other file system.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::MemoryMount;
use nectary_fuse::{features, request_bytes_allowed};

/// The time limit of every wait.
const WAIT: Duration = Duration::from_secs(20);

#[test]
fn files_directories_links_read_back() {
    let Some(mounted) = MemoryMount::new("memory tree") else { return };
    let root = mounted.path();
    fs::create_dir(root.join("d")).unwrap();
    fs::write(root.join("d/a"), b"hello").unwrap();
    fs::hard_link(root.join("d/a"), root.join("d/b")).unwrap();
    symlink("d/a", root.join("s")).unwrap();
    assert_eq!(fs::read(root.join("s")).unwrap(), b"hello");
    assert_eq!(fs::metadata(root.join("d/b")).unwrap().nlink(), 2);
    fs::rename(root.join("d/b"), root.join("c")).unwrap();
    fs::remove_file(root.join("d/a")).unwrap();
    assert_eq!(fs::read(root.join("c")).unwrap(), b"hello");
    assert_eq!(fs::remove_dir(root.join("nowhere")).unwrap_err().kind(), io::ErrorKind::NotFound);
    fs::remove_dir(root.join("d")).unwrap();
    // One name contains every allowed byte, and there are so many entries that a listing needs several answers.
    let odd: Vec<u8> = (1..=255).filter(|&byte| byte != b'/').collect();
    let mut names: Vec<Vec<u8>> = (0..500).map(|index| format!("file {index}").into_bytes()).collect();
    names.push(odd);
    for name in &names {
        fs::write(root.join(OsStr::from_bytes(name)), b"x").unwrap();
    }
    names.extend([b"c".to_vec(), b"s".to_vec()]);
    let mut found: Vec<Vec<u8>> =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().as_bytes().to_vec()).collect();
    names.sort();
    found.sort();
    assert_eq!(found, names);
}

/// Bytes read back as written at every length, and requests are large.
#[test]
fn bytes_read_back_as_written() {
    let Some(mounted) = MemoryMount::new("memory bytes") else { return };
    let path = mounted.path().join("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|byte| (byte * 31 % 253) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    for length in [1, 511, 4096, 4097, 65_536, 1_000_000] {
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, 77).unwrap();
        assert_eq!(piece, bytes[77..77 + length]);
    }
    file.set_len(100).unwrap();
    let mut text = Vec::new();
    (&file).seek(SeekFrom::Start(90)).unwrap();
    (&file).read_to_end(&mut text).unwrap();
    assert_eq!(text, bytes[90..100]);
    // A deleted file still exists for the process that has it open.
    fs::remove_file(&path).unwrap();
    file.write_all_at(b"end", 100).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 103);
    let largest = request_bytes_allowed().min(1 << 20) as u32;
    assert_eq!(mounted.memory.figures().write_bytes_max, largest);
}

/// A file past the page cache can be mapped where the kernel allows it.
#[test]
fn direct_file_can_be_mapped() {
    let Some(mounted) = MemoryMount::new("memory mapping") else { return };
    if !mounted.agreed().has(features::DIRECT_IO_ALLOW_MMAP) {
        return println!("NOT RUN: memory mapping: the kernel maps no file that is open for direct I/O");
    }
    let path = mounted.path().join("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(&[5; 8192]).unwrap();
    // SAFETY: the call makes a new mapping of 8192 bytes of an open file, which no other code uses.
    let mapping = unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        let start = libc::mmap(std::ptr::null_mut(), 8192, flags, libc::MAP_SHARED, descriptor, 0);
        assert_ne!(start, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        std::slice::from_raw_parts_mut(start.cast::<u8>(), 8192)
    };
    assert_eq!(mapping[4096], 5);
    mapping[4096] = 9;
    // SAFETY: both calls use exactly the range that was mapped.
    unsafe {
        assert_eq!(libc::msync(mapping.as_mut_ptr().cast(), 8192, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(mapping.as_mut_ptr().cast(), 8192), 0);
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096).unwrap();
    assert_eq!(byte, [9]);
}

#[test]
fn extended_attributes_are_kept() {
    let Some(mounted) = MemoryMount::new("memory xattrs") else { return };
    let path = mounted.path().join("file");
    fs::write(&path, b"").unwrap();
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
    let (mut value, mut names) = ([0u8; 64], [0u8; 64]);
    // SAFETY: each call gets strings that end with a zero byte, and buffers with their correct lengths.
    unsafe {
        assert_eq!(libc::setxattr(path.as_ptr(), c"user.colour".as_ptr(), b"blue".as_ptr().cast(), 4, 0), 0);
        assert_eq!(libc::getxattr(path.as_ptr(), c"user.colour".as_ptr(), std::ptr::null_mut(), 0), 4);
        assert_eq!(libc::getxattr(path.as_ptr(), c"user.colour".as_ptr(), value.as_mut_ptr().cast(), 64), 4);
        assert_eq!(libc::getxattr(path.as_ptr(), c"user.colour".as_ptr(), value.as_mut_ptr().cast(), 3), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ERANGE));
        assert_eq!(libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), 64), 12);
        assert_eq!(libc::removexattr(path.as_ptr(), c"user.colour".as_ptr()), 0);
        assert_eq!(libc::getxattr(path.as_ptr(), c"user.colour".as_ptr(), std::ptr::null_mut(), 0), -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::ENODATA));
    }
    assert_eq!((&value[..4], &names[..12]), (&b"blue"[..], &b"user.colour\0"[..]));
}

/// A lock waits for another process, and a signal ends the wait.
#[test]
fn lock_wait_ends_by_signal() {
    let Some(mounted) = MemoryMount::new("memory locks") else { return };
    let path = mounted.path().join("file");
    let holder = File::create(&path).unwrap();
    holder.lock().unwrap();
    assert!(File::open(&path).unwrap().try_lock().is_err());
    let flock = |command: &str| {
        let mut waiter = Command::new("flock");
        waiter.arg(&path).arg(command).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let Ok(mut killed) = flock("true") else {
        return println!("NOT RUN: memory locks: there is no flock program");
    };
    let mut granted = flock("true").unwrap();
    mounted.until("both do not wait", || mounted.memory.figures().locks_waited_for == 2);
    // SAFETY: the call takes no pointers. The child has not been reaped yet, so its process number is not reused.
    assert_eq!(unsafe { libc::kill(killed.id() as i32, libc::SIGTERM) }, 0);
    killed.wait().unwrap();
    mounted.until("the killed one still waits", || mounted.memory.figures().locks_waited_for == 1);
    holder.unlock().unwrap();
    assert!(granted.wait().unwrap().success());
}

#[test]
fn notified_changes_are_seen() {
    let Some(mounted) = MemoryMount::new("memory notifications") else { return };
    let path = mounted.path().join("file");
    fs::write(&path, b"old").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 3);
    let node = fs::metadata(&path).unwrap().ino();
    mounted.memory.change(node, b"newer");
    assert_eq!(fs::metadata(&path).unwrap().len(), 3, "it is believed for an hour");
    mounted.notifier.invalidate_node(node, 0, 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 5);
    // A notification about a node or name that the kernel does not know is no error.
    mounted.notifier.invalidate_node(4711, 0, 0).unwrap();
    mounted.notifier.invalidate_entry(1, b"nothing", false).unwrap();
    mounted.memory.remove(b"file");
    assert!(fs::metadata(&path).is_ok(), "it is believed for an hour");
    mounted.notifier.invalidate_entry(1, b"file", false).unwrap();
    assert_eq!(fs::metadata(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    if let Err(error) = mounted.notifier.next_epoch() {
        println!("NOT RUN: the next epoch: {error}");
    }
}

#[test]
fn unmount_ends_crew() {
    let Some(mounted) = MemoryMount::new("memory unmount") else { return };
    let began = Instant::now();
    for index in 0..100 {
        fs::write(mounted.path().join(format!("{index}")), b"x").unwrap();
    }
    assert!(mounted.memory.figures().lookups >= 100);
    let mut busy = OpenOptions::new();
    let busy = busy.read(true).custom_flags(libc::O_DIRECTORY).open(mounted.path()).unwrap();
    assert!(nectary_fuse::unmount(mounted.path(), false).is_err(), "it is in use");
    drop(busy);
    mounted.end();
    assert!(began.elapsed() < WAIT);
}
