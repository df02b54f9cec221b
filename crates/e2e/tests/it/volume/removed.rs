//! What programs use on one mount while another mount removes it: directories, pipes, and what is in them.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::shared::volume;

/// What programs use on one mount and another mount removes stays as it was, without links, as on a local disk: also a
/// second later, when the server has freed it.
#[test]
fn used_directory_outlives_its_inode() {
    let Some(mut volume) = volume("256M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let (directory, pipe) = (first.join("d"), first.join("p"));
    let pipe_name = CString::new(pipe.as_os_str().as_bytes()).expect("a name");
    fs::create_dir(&directory).expect("it is made");
    // SAFETY: the name is a string that ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(pipe_name.as_ptr(), 0o600) }, 0);
    let open = File::open(&directory).expect("it opens");
    let piped = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).expect("it opens");
    open.set_permissions(fs::Permissions::from_mode(0o750)).expect("it is changed");
    // Its working directory is removed.
    let mut shell = Command::new("sh");
    shell.args(["-c", "read -r line; stat -c %h . && ls"]).current_dir(&directory);
    let child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    fs::remove_dir(second.join("d")).expect("it is removed");
    fs::remove_file(second.join("p")).expect("it is removed");
    std::thread::sleep(Duration::from_secs(2));
    let found = open.metadata().expect("it is open");
    assert_eq!((found.nlink(), found.mode() & 0o7777), (0, 0o750), "{found:?}");
    assert_eq!(piped.metadata().expect("it is open").nlink(), 0);
    open.sync_all().expect("names are durable");
    let said = child.wait_with_output().expect("it ends");
    assert_eq!((said.status.success(), &*said.stdout), (true, &b"0\n"[..]), "{said:?}");
    // SAFETY: the name is a string that ends with a zero byte, and the descriptor is open.
    let value = unsafe { libc::fgetxattr(open.as_raw_fd(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) };
    assert_eq!((value, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENODATA)));
    // SAFETY: as above.
    let names = unsafe { libc::flistxattr(open.as_raw_fd(), std::ptr::null_mut(), 0) };
    assert_eq!(names, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: as above.
    let made = unsafe { libc::mkdirat(open.as_raw_fd(), c"new".as_ptr(), 0o755) };
    assert_eq!((made, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    fs::write(first.join("f"), b"f").expect("it is written");
    let file = CString::new(first.join("f").as_os_str().as_bytes()).expect("a name");
    // SAFETY: as above.
    let renamed = unsafe { libc::renameat(libc::AT_FDCWD, file.as_ptr(), open.as_raw_fd(), c"new".as_ptr()) };
    assert_eq!((renamed, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    // SAFETY: as above.
    let linked = unsafe { libc::linkat(libc::AT_FDCWD, file.as_ptr(), open.as_raw_fd(), c"new".as_ptr(), 0) };
    assert_eq!((linked, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    drop((open, piped));
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// A directory that is open on one mount and removed on another is empty, has no names and no links, as on a local disk.
#[test]
fn open_directory_removed_elsewhere_is_empty() {
    let Some(mut volume) = volume("256M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    fs::create_dir(first.join("d")).expect("it is made");
    fs::write(first.join("d/name"), b"bytes").expect("it is written");
    let (open, listing) = (File::open(first.join("d")), fs::read_dir(first.join("d")));
    let (open, listing) = (open.expect("it opens"), listing.expect("it opens"));
    fs::remove_dir_all(second.join("d")).expect("it is removed");
    let found = open.metadata().expect("it is open");
    assert!(found.is_dir() && found.nlink() == 0, "{found:?}");
    let listed: Vec<_> = listing.collect();
    assert!(listed.is_empty(), "{listed:?}");
    // The names in it are looked up in the open directory.
    let name = c"name";
    // SAFETY: the name is a string that ends with a zero byte, and the descriptor is open.
    let opened = unsafe { libc::openat(open.as_raw_fd(), name.as_ptr(), libc::O_RDONLY) };
    assert_eq!((opened, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENOENT)));
    assert!(!first.join("d").exists());
    drop(open);
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}
