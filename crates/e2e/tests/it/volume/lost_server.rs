//! Tests programs that wait for a server that is lost.

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::{LIMIT, VolumeRig};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than the lease: the mount shows nothing any more that it keeps.
const LEASE_OVER: Duration = Duration::from_secs(5);
/// A program that has not ended after this time waits.
const WAITS_AFTER: Duration = Duration::from_secs(1);
/// The longest time until a killed program has ended.
const KILLED_MAX: Duration = Duration::from_secs(10);

/// Starts a program, which is killed and reaped by the test.
fn start(program: &str, arguments: &[&Path], input: Stdio) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Waits for the end of a program; `None`: it takes longer than `limit`.
fn ended(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    loop {
        match child.try_wait().expect("it is a child") {
            None if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            status => return status,
        }
    }
}

/// Programs that change names and attributes end at SIGKILL. What they began is done when the server is back.
#[test]
fn killed_changes_are_done_later() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    let mount = volume.mount().expect("it mounts");
    let path = |directory: &str, name: &str| mount.join(directory).join(name);
    // A change holds its directory in the kernel.
    for directory in ["make", "remove", "move", "mode"] {
        fs::create_dir(mount.join(directory)).expect("it is made");
        fs::write(path(directory, "old"), "old").expect("it is written");
    }
    volume.kill_server();
    // The mount knows all names of directories that it made, so the changes are the first calls that wait.
    let mut killed = [
        ("mkdir", start("mkdir", &[&path("make", "new")], Stdio::null())),
        ("rm", start("rm", &[&path("remove", "old")], Stdio::null())),
        ("mv", start("mv", &[&path("move", "old"), &path("move", "new")], Stdio::null())),
        ("chmod", start("chmod", &[Path::new("600"), &path("mode", "old")], Stdio::null())),
    ];
    std::thread::sleep(WAITS_AFTER);
    for (what, child) in &mut killed {
        assert_eq!(child.try_wait().expect("it is a child"), None, "{what} waits for the server");
        child.kill().expect("it is a child");
    }
    for (what, child) in &mut killed {
        assert!(ended(child, KILLED_MAX).is_some_and(|status| !status.success()), "{what} ends");
    }
    volume.serve().expect("it serves again");
    // A later change waits for them.
    fs::write(path("make", "later"), "later").expect("it is written");
    assert!(path("make", "new").is_dir() && !path("remove", "old").exists());
    assert!(path("move", "new").exists() && !path("move", "old").exists());
    let mode = fs::metadata(path("mode", "old")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    volume.finish_whole().expect("it ends");
}

/// Programs that look, list, open, read, and ask for the size end at SIGKILL. One that handles its signal goes on, and
/// sees no error when the server is back.
#[test]
fn killed_programs_leave_lost_server() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("256M").unwrap_or_else(|error| panic!("{error:#}"));
    let mount = volume.mount().expect("it mounts");
    let (directory, file) = (mount.join("d"), mount.join("d/f"));
    fs::create_dir(&directory).expect("it is made");
    fs::write(&file, vec![1; 1 << 20]).and_then(|()| File::open(&file)?.sync_all()).expect("it is synced");
    let opened = File::open(&file).expect("it opens");
    volume.kill_server();
    std::thread::sleep(LEASE_OVER);
    let mut killed = [
        ("stat", start("stat", &[&file], Stdio::null())),
        ("ls", start("ls", &[&directory], Stdio::null())),
        ("cat of a path", start("cat", &[&file], Stdio::null())),
        ("read of an open file", start("sh", &[Path::new("-c"), Path::new("read line")], opened.into())),
        ("df", start("df", &[&mount], Stdio::null())),
    ];
    let script = Path::new("trap : USR1; test -e \"$0\"");
    let mut handling = start("sh", &[Path::new("-c"), script, &file], Stdio::null());
    std::thread::sleep(WAITS_AFTER);
    // SAFETY: the call takes numbers; the child is not reaped yet, so its number is not used again.
    let signalled = unsafe { libc::kill(handling.id() as i32, libc::SIGUSR1) };
    assert_eq!(signalled, 0);
    for (what, child) in &mut killed {
        assert_eq!(child.try_wait().expect("it is a child"), None, "{what} waits for the server");
        child.kill().expect("it is a child");
    }
    for (what, child) in &mut killed {
        assert!(ended(child, KILLED_MAX).is_some_and(|status| !status.success()), "{what} ends");
    }
    let (code, text) = volume.try_run(&["volume", "umount", &mount.display().to_string()]).expect("it runs");
    assert!(code == Some(5) && text.contains("there is no connection") && text.contains("--lazy"), "{code:?} {text}");
    assert_eq!(handling.try_wait().expect("it is a child"), None, "it goes on after its signal");
    volume.serve().expect("it serves again");
    assert!(ended(&mut handling, LIMIT).is_some_and(|status| status.success()), "the signal is no error of the call");
    assert_eq!(fs::read(&file).expect("it is read").len(), 1 << 20);
    volume.finish_whole().expect("it ends");
}
