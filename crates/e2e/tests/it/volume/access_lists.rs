//! Access control lists on a shared volume: they mean what they mean on a local file system, on every mount.

use nectary_e2e::guard::find_program;
use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

const ACCESS: &CStr = c"system.posix_acl_access";
const DEFAULT: &CStr = c"system.posix_acl_default";
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
const NOBODY: u32 = u32::MAX;
/// User 4242 reads, others do not.
const ONE_READS: [(u16, u16, u32); 5] =
    [(OWNER, 6, NOBODY), (USER, 4, 4242), (GROUP, 0, NOBODY), (MASK, 4, NOBODY), (OTHER, 0, NOBODY)];

/// Sets a list: tag, permissions, and user or group of each entry.
fn set_list(path: &Path, name: &CStr, entries: &[(u16, u16, u32)]) -> io::Result<()> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes().iter().chain(&permissions.to_le_bytes()).chain(&id.to_le_bytes()));
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: both are strings that end with a zero byte; the value has the length given to the call.
    let set = unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn list(path: &Path, name: &CStr) -> Option<Vec<u8>> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut value = vec![0u8; 4096];
    // SAFETY: both are strings that end with a zero byte; the buffer has the length given to the call.
    let count = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(count).ok()?);
    Some(value)
}

/// Runs `work` as an unprivileged user, in a thread whose identity is the only one changed.
fn as_user<T: Send>(user: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the calls take numbers, and an empty list without a pointer; they change only this thread.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, 0, 0), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, user, user, user), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, user, user, user), 0);
            }
            work()
        });
        thread.join().expect("it does not panic")
    })
}

fn shell(directory: &Path, script: &str) -> String {
    let done = Command::new("sh").args(["-ec", script]).current_dir(directory).output().expect("there is a shell");
    assert!(done.status.success(), "{script}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// What programs see of lists that are set below one directory and looked at below another, which shows the same.
fn seen(here: &Path, there: &Path) -> Vec<String> {
    let mut seen = Vec::new();
    let mode = |name: &str| format!("{:o}", fs::metadata(there.join(name)).expect("it is there").mode());
    let lists = |name: &str| format!("{:?} {:?}", list(&there.join(name), ACCESS), list(&there.join(name), DEFAULT));
    let file = here.join("file");
    fs::write(&file, b"for one").expect("it is written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("it is changed");
    let reads = |user| as_user(user, || fs::read(there.join("file")).map_err(|error| error.kind()));
    let writes = |user| as_user(user, || OpenOptions::new().write(true).open(there.join("file")).map(drop).is_ok());
    seen.push(format!("{:?} {}", reads(4242), lists("file")));
    set_list(&file, ACCESS, &ONE_READS).expect("it is set");
    seen.push(format!("{:?} {:?} {}", reads(4242), reads(4243), writes(4242)));
    seen.push(format!("{} {}", mode("file"), lists("file")));
    // The group bits of the mode are the mask.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("it is changed");
    seen.push(format!("{:?} {} {}", reads(4242), mode("file"), lists("file")));
    // A list that is a mode is one.
    set_list(&file, ACCESS, &[(OWNER, 6, NOBODY), (GROUP, 4, NOBODY), (OTHER, 4, NOBODY)]).expect("it is set");
    seen.push(format!("{:?} {} {}", reads(4243), mode("file"), lists("file")));
    let refused = as_user(4243, || set_list(&file, ACCESS, &ONE_READS).map_err(|error| error.kind()));
    seen.push(format!("{refused:?} {:?}", set_list(&file, DEFAULT, &ONE_READS).map_err(|error| error.kind())));
    let mixed = [(OTHER, 0, NOBODY), (OWNER, 6, NOBODY), (GROUP, 0, NOBODY)];
    seen.push(format!("{:?}", set_list(&file, ACCESS, &mixed).map_err(|error| error.kind())));
    for (name, has_default) in [("plain", false), ("default", true)] {
        let directory = here.join(name);
        fs::create_dir(&directory).expect("it is made");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("it is changed");
        if has_default {
            let of_new =
                [(OWNER, 7, NOBODY), (USER, 6, 4242), (GROUP, 5, NOBODY), (MASK, 7, NOBODY), (OTHER, 0, NOBODY)];
            set_list(&directory, DEFAULT, &of_new).expect("it is set");
        }
        let script = "umask 027; echo x > new; mkdir below; mkfifo pipe; ln -s new link; umask 0; echo x > open; \
                      chmod u+s open; mkdir below/deep; echo x > below/deep/new";
        shell(&directory, script);
        for made in ["new", "below", "pipe", "open", "below/deep", "below/deep/new"] {
            let made = format!("{name}/{made}");
            seen.push(format!("{made} {} {}", mode(&made), lists(&made)));
        }
        let new = there.join(name).join("new");
        seen.push(format!("{:?}", as_user(4242, || fs::read(&new).map_err(|error| error.kind()))));
    }
    // When a user who is not in the file's group sets a list, the set-group-id bit is cleared.
    let shared = here.join("shared");
    fs::write(&shared, b"").expect("it is written");
    std::os::unix::fs::chown(&shared, Some(4242), Some(4300)).expect("it is changed");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2755)).expect("it is changed");
    as_user(4242, || set_list(&shared, ACCESS, &ONE_READS)).expect("it is set");
    seen.push(mode("shared"));
    seen
}

/// What `setfacl` does, and `getfacl` shows below the other directory.
fn shown_by_programs(here: &Path, there: &Path) -> String {
    let script = "umask 022; echo x > file; mkdir dir; setfacl -m u:4242:rw,g:4300:r file; setfacl -m m::r file; \
                  setfacl -d -m u:4242:rwx,o::- dir; echo x > dir/file; mkdir dir/sub; setfacl -x u:4242 dir/sub; \
                  echo x > bare; setfacl -m u:1:r bare; setfacl -b bare; chmod 751 dir";
    shell(here, script);
    let shown = shell(there, "getfacl -Rn .");
    // Each file is a paragraph; directories list their names in an order of their own.
    let mut files: Vec<&str> = shown.split("\n\n").collect();
    files.sort_unstable();
    files.join("\n\n")
}

/// Access control lists have the same effect on every mount as on a local file system.
#[test]
fn access_lists_match_local_file_system() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let local = volume.scratch.join("local");
    let at = |root: &Path, name: &str| {
        let directory = root.join(name);
        fs::create_dir_all(&directory).expect("it is made");
        directory
    };
    let found = seen(&at(&first, "calls"), &second.join("calls"));
    assert!(found[0].starts_with("Err(PermissionDenied) None"), "{found:?}");
    assert!(found[1].starts_with("Ok([102") && found[1].ends_with("Err(PermissionDenied) false"), "{found:?}");
    fs::create_dir(&local).expect("it is made");
    let has_lists = set_list(&local, ACCESS, &ONE_READS).is_ok();
    fs::remove_dir(&local).expect("it is removed");
    if has_lists {
        let local = at(&local, "calls");
        assert_eq!(found, seen(&local, &local));
    } else {
        not_run("volume lists: the local file system has none to compare with");
    }
    // What is stored is the same for another server.
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    let again = list(&second.join("calls/shared"), ACCESS);
    assert_eq!(again.map(|list| list.len()), Some(4 + 8 * ONE_READS.len()));
    if ["setfacl", "getfacl"].iter().any(|name| find_program(name).is_none()) {
        not_run("volume lists with programs: there is no setfacl, or no getfacl");
    } else if has_lists {
        let shown = shown_by_programs(&at(&first, "programs"), &second.join("programs"));
        assert!(shown.contains("user:4242:rw-") && shown.contains("default:user:4242:rwx"), "{shown}");
        let local = at(&local, "programs");
        assert_eq!(shown, shown_by_programs(&local, &local));
    }
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Opens a file relative to an open directory, or reads a list by a descriptor: the kernel looks no path up for either.
#[test]
fn remote_lists_seen_without_lookup() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    fs::create_dir(first.join("d")).and_then(|()| fs::write(first.join("d/f"), b"text")).expect("it is written");
    fs::set_permissions(first.join("d"), fs::Permissions::from_mode(0o700)).expect("it is set");
    let directory =
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(second.join("d")).expect("it opens");
    let number = directory.as_raw_fd();
    let may_open = || {
        as_user(4242, || {
            // SAFETY: the name ends with a zero byte; the descriptor is open, and the new one is closed at once.
            unsafe {
                let opened = libc::openat(number, c"f".as_ptr(), libc::O_RDONLY);
                opened >= 0 && libc::close(opened) == 0
            }
        })
    };
    let file = fs::File::open(second.join("d/f")).expect("it opens");
    // The permissions of the second entry of the file's list.
    let second_entry = || {
        let mut value = [0_u8; 256];
        let (number, name) = (file.as_raw_fd(), ACCESS.as_ptr());
        // SAFETY: the name ends with a zero byte; the buffer has the length given to the call.
        let length = unsafe { libc::fgetxattr(number, name, value.as_mut_ptr().cast(), value.len()) };
        (length >= 20).then_some(value[14])
    };
    let list_of = |permissions| {
        [(OWNER, 7, NOBODY), (USER, permissions, 4242), (GROUP, 0, NOBODY), (MASK, 5, NOBODY), (OTHER, 0, NOBODY)]
    };
    for round in 0..30 {
        for is_allowed in [true, false] {
            let permissions = if is_allowed { 5 } else { 0 };
            set_list(&first.join("d/f"), ACCESS, &list_of(permissions)).expect("it is set");
            assert_eq!(second_entry(), Some(permissions as u8), "round {round}");
            set_list(&first.join("d/f"), ACCESS, &list_of(5)).expect("it is set");
            assert_eq!(second_entry(), Some(5), "round {round}");
            set_list(&first.join("d"), ACCESS, &list_of(permissions)).expect("it is set");
            assert_eq!(may_open(), is_allowed, "round {round}");
        }
        // By mode alone.
        fs::set_permissions(first.join("d"), fs::Permissions::from_mode(0o700)).expect("it is set");
        assert!(!may_open(), "round {round}");
    }
    drop((directory, file));
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}
