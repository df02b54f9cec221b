//! Tests the ways to mount a volume: options, the helper of mount(8), a directory that a container holds; and calls that
//! only a kernel makes: files without a name, device nodes, the longest extended attributes.

use nectary_e2e::live::missing;
use nectary_e2e::nectary::binary;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::{LIMIT, VolumeRig};
use serde_json::Value;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn volume(size: &str) -> Option<VolumeRig> {
    match missing(false) {
        Some(reason) => {
            not_run(format!("volume: {reason}"));
            None
        }
        None => Some(VolumeRig::new(size).unwrap_or_else(|error| panic!("{error:#}"))),
    }
}

fn finish(mut volume: VolumeRig) {
    let check = volume.finish().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

fn path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("it has no zero byte")
}

fn is_read_only<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ReadOnlyFilesystem)
}

/// Runs a program to its end; returns whether it succeeded, and what it printed.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn read_only_mount_refuses_every_change() {
    let Some(mut volume) = volume("512M") else { return };
    let first = volume.mount().expect("it mounts");
    fs::write(first.join("f"), b"content").expect("it is written");
    let accessed = fs::metadata(first.join("f")).expect("it is there").atime_nsec();
    let second = volume.mount_with(&["-o", "ro,noexec"]).expect("it mounts");
    let shown = second.display().to_string();
    let options = run("findmnt", &["-no", "OPTIONS", &shown]).1;
    assert!(options.starts_with("ro,nosuid,nodev,noexec,relatime"), "{options}");
    let refused = |why: &str| {
        assert_eq!(fs::read(second.join("f")).expect("it is read"), b"content");
        assert!(is_read_only(fs::write(second.join("f"), b"no")), "{why}");
        assert!(is_read_only(File::options().append(true).open(second.join("f"))), "{why}");
        assert!(is_read_only(fs::create_dir(second.join("d"))), "{why}");
        assert!(is_read_only(fs::rename(second.join("f"), second.join("g"))), "{why}");
        assert!(is_read_only(fs::remove_file(second.join("f"))), "{why}");
        let file = File::open(second.join("f")).expect("it opens");
        file.lock_shared().expect("it is locked");
    };
    refused("it was mounted read-only");
    // The kernel forgets that it is read-only; the mount does not.
    let (is_done, text) = run("mount", &["-i", "-o", "remount,rw", &shown]);
    assert!(is_done && run("findmnt", &["-no", "OPTIONS", &shown]).1.starts_with("rw,"), "{text}");
    refused("its process knows that");
    // The other mount writes, and this one sees it; nothing that it reads changes a time.
    fs::write(first.join("f"), b"content").expect("it is written");
    refused("another host wrote");
    assert_eq!(fs::metadata(first.join("f")).expect("it is there").atime_nsec(), accessed);
    finish(volume);
}

#[test]
fn unknown_mount_options_are_named() {
    let Some(volume) = volume("512M") else { return };
    let directory = volume.scratch.join("m");
    fs::create_dir(&directory).expect("it is made");
    let (disk, shown) = (volume.disk(), directory.display().to_string());
    let (code, text) =
        volume.try_run(&["volume", "mount", &disk, &shown, "--server", "h:1", "-o", "ro,sync"]).expect("it runs");
    assert!(code == Some(2) && text.contains("-o sync"), "{code:?} {text}");
    finish(volume);
}

/// Makes device nodes as generic/184 of xfstests does.
fn write_to_null(directory: &Path) -> io::Result<()> {
    let null = directory.join("null");
    if !null.exists() {
        // SAFETY: the path is a string that ends with a zero byte and outlives the call.
        let made = unsafe { libc::mknod(path(&null).as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) };
        assert_eq!(made, 0, "{}", io::Error::last_os_error());
    }
    File::options().write(true).open(null)?.write_all(b"gone")
}

#[test]
fn device_nodes_require_dev_option() {
    let Some(mut volume) = volume("512M") else { return };
    let bare = volume.mount().expect("it mounts");
    let with = volume.mount_with(&["-o", "dev"]).expect("it mounts");
    write_to_null(&with).expect("it is a device");
    assert!(write_to_null(&bare).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied));
    finish(volume);
}

/// A process in a mount namespace that has what was mounted when it started.
struct MountNamespaceProcess(Child);

impl MountNamespaceProcess {
    fn start(volume: &VolumeRig) -> MountNamespaceProcess {
        let mark = volume.scratch.join("container");
        let _ = fs::remove_file(&mark);
        let script = format!("touch '{}'; exec sleep 1000", mark.display());
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
        let container = MountNamespaceProcess(child);
        wait_until(|| mark.exists());
        container
    }
}

impl Drop for MountNamespaceProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "it never is");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A directory that a container still has mounted is not mounted again.
#[test]
fn container_mount_blocks_second_mount() {
    let Some(mut volume) = volume("512M") else { return };
    let directory = volume.mount().expect("it mounts");
    fs::write(directory.join("f"), b"here").expect("it is written");
    let (shown, disk) = (directory.display().to_string(), volume.disk());
    let container = MountNamespaceProcess::start(&volume);
    assert!(run("umount", &["-i", &shown]).0);
    let inside = format!("/proc/{}/root{shown}/f", container.0.id());
    assert_eq!(fs::read(&inside).expect("it is there"), b"here");
    let address = volume.address();
    let again = ["volume", "mount", &disk, &shown, "--server", &address, "--background"];
    let sessions =
        |volume: &VolumeRig| volume.run(&["volume", "info", &disk]).expect("it is read").matches("session ").count();
    let before = sessions(&volume);
    let (code, text) = volume.try_run(&again).expect("it runs");
    assert!(code == Some(5) && text.contains("another mount namespace") && text.contains("(sleep)"), "{code:?} {text}");
    assert!(text.contains(&format!("process {}", volume.mount_process(0))), "{text}");
    // It was refused before anything was mounted, and before a session began.
    assert_eq!((sessions(&volume), directory.join("f").exists()), (before, false));
    let status = volume.try_run(&["status"]).expect("it runs").1;
    assert!(status.contains("another mount namespace"), "{status}");
    drop(container);
    volume.wait_mount(0).unwrap_or_else(|error| panic!("{error:#}"));
    volume.run(&again).unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(fs::read(directory.join("f")).expect("it is there"), b"here");
    volume.run(&["volume", "umount", &shown]).unwrap_or_else(|error| panic!("{error:#}"));
    finish(volume);
}

#[test]
fn umount_without_the_control_socket_unmounts() {
    let Some(mut volume) = volume("512M") else { return };
    let directory = volume.mount().expect("it mounts");
    let shown = directory.display().to_string();
    fs::create_dir(volume.scratch.join("other")).expect("it is made");
    let mut command = volume.command(&["volume", "umount", &shown]).expect("there is a program");
    let status = command.env("NECTARY_RUNTIME_DIR", volume.scratch.join("other")).status().expect("it runs");
    assert!(status.success());
    volume.wait_mount(0).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(!run("findmnt", &[&shown]).0, "it is unmounted");
    finish(volume);
}

#[test]
fn mount_without_permission_leaves_no_session() {
    let Some(volume) = volume("512M") else { return };
    let directory = volume.scratch.join("m");
    fs::create_dir(&directory).expect("it is made");
    let program = binary().expect("there is a program");
    let (disk, address) = (volume.disk(), volume.address());
    // Root of a user namespace may open the disk, and may not mount in a mount namespace that is not its own.
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(program).args(["volume", "mount", &disk]).arg(&directory);
    command.args(["--server", &address]).env("NECTARY_RUNTIME_DIR", volume.scratch.join("run")).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if text.contains("unshare:") {
        return not_run(format!("a user namespace: {text}"));
    }
    assert!(!output.status.success() && text.contains("CAP_SYS_ADMIN"), "{}: {text}", output.status);
    let info = volume.run(&["volume", "info", &disk]).expect("it is read");
    assert!(!info.contains("session "), "{info}");
    finish(volume);
}

/// Runs a script in a mount namespace in which this program is the helper of mount(8); returns its output. Nothing of
/// the machine is changed.
fn with_helpers(volume: &VolumeRig, script: &str) -> String {
    let program = binary().expect("there is a program");
    let prepare = format!(
        "set -eu
        mkdir -p {scratch}/layers
        mount -t tmpfs layers {scratch}/layers
        mkdir {scratch}/layers/up {scratch}/layers/work
        mount -t overlay helpers -o lowerdir=/usr/sbin,upperdir={scratch}/layers/up,workdir={scratch}/layers/work /usr/sbin
        ln -s {program} /usr/sbin/mount.nectary
        ln -s {program} /usr/sbin/umount.fuse.nectary-volume
        options() {{ findmnt -no OPTIONS {scratch}/m; }}
        cd {scratch}
        mkdir -p m
        ",
        scratch = volume.scratch.path().display(),
        program = program.display(),
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &(prepare + script)]);
    command.env("NECTARY_RUNTIME_DIR", volume.scratch.join("run")).stdin(Stdio::null());
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

#[test]
fn mount_and_umount_find_their_helpers() {
    let Some(volume) = volume("512M") else { return };
    let (scratch, address) = (volume.scratch.path().display().to_string(), volume.address());
    let text = with_helpers(
        &volume,
        &format!(
            "mount -t nectary {scratch}/disk {scratch}/m -o server={address},noatime,nodev,_netdev
            options
            echo content > m/f
            umount m
            # When umount returns, the process has ended.
            ls run | grep -c volume-mount.*sock && exit 1
            mount -t nectary {scratch}/disk m -o ro,server={address},memory=32M
            cat m/f
            options
            ! touch m/g 2> errors
            ! mount -o remount,rw m
            umount m
            code=0; mount -t nectary {scratch}/disk m -o server={address},data=ordered || code=$?
            echo code $code
            code=0; mount -t nectary {scratch}/absent m -o server={address} || code=$?
            echo code $code"
        ),
    );
    let words: Vec<&str> = text.lines().collect();
    assert!(words.iter().any(|line| line.starts_with("rw,nodev,noatime,")), "{text}");
    assert!(words.iter().any(|line| line.starts_with("ro,relatime,")), "{text}");
    assert!(words.contains(&"content") && words.contains(&"code 1") && words.contains(&"code 32"), "{text}");
    assert!(text.contains("data=ordered: there is no such option"), "{text}");
    finish(volume);
}

#[test]
fn fstab_line_is_mounted_once() {
    let Some(volume) = volume("512M") else { return };
    let (scratch, address) = (volume.scratch.path().display().to_string(), volume.address());
    let text = with_helpers(
        &volume,
        &format!(
            "echo '{scratch}/disk {scratch}/m nectary server={address},_netdev,nofail,x-systemd.requires=a.service 0 0' \
                > fstab
            mount -T fstab m
            mount -T fstab -a
            echo mounts $(grep -c {scratch}/m /proc/self/mounts)
            findmnt -no SOURCE,FSTYPE m
            echo content > m/f
            mount -T fstab -o remount,ro m
            options
            ! touch m/g 2> errors
            mount -T fstab -o remount,rw,noexec m
            options
            touch m/g
            umount m
            mount -T fstab -a
            cat m/f
            umount m"
        ),
    );
    let words: Vec<&str> = text.lines().collect();
    let source = format!("{scratch}/disk fuse.nectary-volume");
    assert!(words.contains(&"mounts 1") && words.contains(&source.as_str()) && words.contains(&"content"), "{text}");
    assert!(words.iter().any(|line| line.starts_with("ro,")), "{text}");
    assert!(words.iter().any(|line| line.starts_with("rw,noexec,")), "{text}");
    finish(volume);
}

/// A read-only loop device; it is detached whether the test passes or fails.
struct ReadOnlyLoop(String);

impl Drop for ReadOnlyLoop {
    fn drop(&mut self) {
        let _ = run("losetup", &["-d", &self.0]);
    }
}

#[test]
fn read_only_disk_mounts_read_only() {
    let Some(mut volume) = volume("512M") else { return };
    let first = volume.mount().expect("it mounts");
    fs::write(first.join("f"), b"content").expect("it is written");
    let (is_done, device) = run("losetup", &["--read-only", "--find", "--show", &volume.disk()]);
    if !is_done {
        return not_run(format!("a read-only disk: {device}"));
    }
    let device = ReadOnlyLoop(device.trim().to_owned());
    let (scratch, address) = (volume.scratch.path().display().to_string(), volume.address());
    let text = with_helpers(
        &volume,
        &format!(
            "mount -t nectary {} {scratch}/m -o ro,server={address}
            cat m/f
            umount m
            code=0; mount -t nectary {} m -o server={address} || code=$?
            echo code $code",
            device.0, device.0
        ),
    );
    assert!(text.contains("content"), "{text}");
    assert!(text.contains("code 32") && text.contains("write-protected"), "{text}");
    let check = volume.try_run(&["volume", "info", &format!("disk:{}", device.0)]).expect("it runs");
    assert_eq!(check.0, Some(0), "{}", check.1);
    finish(volume);
}

fn nameless(directory: &Path, more: i32) -> io::Result<File> {
    let flags = libc::O_TMPFILE | more;
    File::options().read(true).write(true).custom_flags(flags).mode(0o640).open(directory)
}

fn give_name(file: &File, name: &Path) -> io::Result<()> {
    let from = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("a number has no zero byte");
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths are strings that end with a zero byte and outlive the call.
    match unsafe { libc::linkat(here, from.as_ptr(), here, path(name).as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn inodes(volume: &VolumeRig) -> u64 {
    let text = volume.run(&["volume", "info", &volume.disk(), "--json"]).expect("it is read");
    let info: Value = serde_json::from_str(&text).expect("it is JSON");
    info["inodes"].as_u64().expect("it is a number")
}

#[test]
fn unnamed_file_is_linked_or_freed() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let bytes = vec![7; 300_000];
    let file = nameless(&first, 0).expect("it is made");
    file.write_all_at(&bytes, 0).expect("it is written");
    assert_eq!(
        (file.metadata().expect("it has some").nlink(), fs::read_dir(&second).expect("it is read").count()),
        (0, 0)
    );
    give_name(&file, &first.join("named")).expect("it gets a name");
    assert!(fs::read(second.join("named")).expect("it is there") == bytes);
    assert_eq!(fs::metadata(second.join("named")).expect("it is there").mode() & 0o7777, 0o640);
    // It has lost its last name, so it gets no other one.
    fs::remove_file(second.join("named")).expect("it is removed");
    assert!(give_name(&file, &first.join("again")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    // Without O_EXCL it may get a name, with O_EXCL not.
    let exclusive = nameless(&first, libc::O_EXCL).expect("it is made");
    assert!(give_name(&exclusive, &first.join("no")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    // The server is restarted, and the file is still there and can get a name.
    let kept = nameless(&second, libc::O_DIRECT).expect("it is made");
    kept.set_len(4096).expect("it is long");
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    give_name(&kept, &second.join("kept")).expect("it gets a name");
    assert_eq!(fs::metadata(first.join("kept")).expect("it is there").len(), 4096);
    drop((file, exclusive, kept));
    // The root and the file with a name are left.
    wait_until(|| inodes(&volume) == 2);
    finish(volume);
}

#[test]
fn killed_mount_frees_unnamed_file() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let file = nameless(&first, 0).expect("it is made");
    file.write_all_at(&[7; 100_000], 0).and_then(|()| file.sync_all()).expect("it is synced");
    // The second mount needs what the killed one holds, so its session ends after its lease.
    let held = File::create(first.join("held")).expect("it is made");
    held.write_all_at(b"held", 0).expect("it is written");
    assert_eq!(inodes(&volume), 3);
    volume.kill_mount(0);
    drop((file, held));
    fs::write(second.join("held"), b"taken").expect("it is written");
    wait_until(|| inodes(&volume) == 2);
    finish(volume);
}

const LONG: usize = 65536;

fn set_attribute(file: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (file, name) = (path(file), CString::new(name).expect("it has no zero byte"));
    // SAFETY: both are strings that end with a zero byte; the value has the length that the call gets.
    match unsafe { libc::setxattr(file.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reads the value of an attribute, or the names of all, into a buffer of this length.
fn attribute(file: &Path, name: Option<&str>, length: usize) -> io::Result<Vec<u8>> {
    let (file, mut value) = (path(file), vec![0u8; length]);
    let name = name.map(|name| CString::new(name).expect("it has no zero byte"));
    // SAFETY: the strings end with a zero byte; the buffer has the length that the call gets.
    let count = unsafe {
        match &name {
            Some(name) => libc::getxattr(file.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), length),
            None => libc::listxattr(file.as_ptr(), value.as_mut_ptr().cast(), length),
        }
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    value.resize(count, 0);
    Ok(value)
}

/// Extended attributes of the greatest length are read on two mounts.
#[test]
fn longest_attributes_reach_other_mount() {
    let Some(mut volume) = volume("512M") else { return };
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    let (here, there) = (first.join("f"), second.join("f"));
    fs::write(&here, b"content").expect("it is written");
    let value: Vec<u8> = (0..LONG).map(|at| (at % 251) as u8).collect();
    for length in [0, 1, LONG - 9, LONG - 8, LONG - 7, LONG] {
        set_attribute(&here, "user.long", &value[..length]).unwrap_or_else(|error| panic!("{length} bytes: {error}"));
        assert!(attribute(&there, Some("user.long"), LONG).expect("it is read") == value[..length], "{length} bytes");
    }
    assert_eq!(attribute(&there, Some("user.long"), 0).expect("it is measured").len(), LONG);
    let short = attribute(&there, Some("user.long"), LONG - 1);
    assert_eq!(short.map_err(|error| error.raw_os_error()), Err(Some(libc::ERANGE)));
    let longer = set_attribute(&here, "user.long", &[&value[..], &[1]].concat());
    assert_eq!(longer.map_err(|error| error.raw_os_error()), Err(Some(libc::E2BIG)));
    // The names of all attributes have at most 64 KiB; one more is refused, and the list can still be read.
    fs::write(first.join("many"), b"").expect("it is written");
    let name = |index: usize| format!("user.{index:03}.{}", "n".repeat(200));
    let stored = (0..).take_while(|index| set_attribute(&first.join("many"), &name(*index), b"v").is_ok()).count();
    let names = attribute(&second.join("many"), None, LONG).expect("they are read");
    assert_eq!((stored, names.len()), (LONG / 210, LONG / 210 * 210));
    volume.kill_server();
    volume.serve().unwrap_or_else(|error| panic!("{error:#}"));
    assert!(attribute(&there, Some("user.long"), LONG).expect("it is read") == value);
    finish(volume);
}

#[test]
fn info_shows_file_extents() {
    let Some(mut volume) = volume("512M") else { return };
    let directory = volume.mount().expect("it mounts");
    fs::create_dir(directory.join("d")).expect("it is made");
    let file = File::create(directory.join("d/f")).expect("it is made");
    let bytes: Vec<u8> = (0..8192u32).map(|at| (at % 253) as u8).collect();
    file.write_all_at(&bytes, 1 << 20).and_then(|()| file.sync_all()).expect("it is synced");
    // SAFETY: the call takes numbers.
    let allocated = unsafe { libc::fallocate(file.as_raw_fd(), 0, 4 << 20, 4096) };
    assert_eq!(allocated, 0, "{}", io::Error::last_os_error());
    let disk = volume.disk();
    let text = volume.run(&["volume", "info", &disk, "--file", "/d/f", "--json"]).expect("it is read");
    let found: Value = serde_json::from_str(&text).expect("it is JSON");
    let extents = found["extents"].as_array().expect("a list");
    let shown = |index: usize, name: &str| extents[index][name].as_u64().expect("a number");
    assert_eq!((extents.len(), found["size_bytes"].as_u64()), (2, Some((4 << 20) + 4096)), "{text}");
    assert_eq!(
        (shown(0, "offset"), shown(0, "length"), &extents[0]["unwritten"]),
        (1 << 20, 8192, &Value::Bool(false))
    );
    assert_eq!((shown(1, "offset"), shown(1, "length"), &extents[1]["unwritten"]), (4 << 20, 4096, &Value::Bool(true)));
    let mut there = vec![0; 8192];
    File::open(&disk).and_then(|disk| disk.read_exact_at(&mut there, shown(0, "disk_offset"))).expect("it is read");
    assert!(there == bytes, "the extent is where the data is");
    // What a program asks instead of FIEMAP.
    // SAFETY: the call takes numbers.
    let data = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
    assert_eq!(data, 1 << 20);
    let (code, text) = volume.try_run(&["volume", "info", &disk, "--file", "d/absent"]).expect("it runs");
    assert!(code == Some(4) && text.contains("d/absent"), "{code:?} {text}");
    let text = volume.run(&["volume", "info", &disk, "--file", "d/f"]).expect("it is read");
    assert!(text.contains("2 extents") && text.contains("unwritten"), "{text}");
    drop(file);
    finish(volume);
}
