//! Tests names and attributes that the kernels of two mounts show without a request.

use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nectary_e2e::live::missing;
use nectary_e2e::report::not_run;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::freshness::{self, ChangeLayout};

#[test]
fn kernels_show_no_old_name() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let hosts = [volume.mount().expect("it mounts"), volume.mount().expect("it mounts")];
    let seed = std::env::var("KEPT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(40);
    let seconds = std::env::var("KEPT_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(4);
    for changing in [ChangeLayout::One, ChangeLayout::Apart, ChangeLayout::Together] {
        let found = freshness::exercise(&hosts, changing, seed, Duration::from_secs(seconds));
        let found = found.unwrap_or_else(|error| panic!("{error:#}"));
        println!(
            "{changing:?}, seed {seed}: {} changes, {} checks, {} looks, longest call {:?}, {} problems",
            found.changes,
            found.checks,
            found.looks,
            found.longest,
            found.problems.len()
        );
        assert_eq!(found.problems, Vec::<String>::new());
        assert!(found.longest < Duration::from_secs(5), "{:?}", found.longest);
        assert!(found.changes > 20 && found.looks > 100, "{found:?}");
    }
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Changes modes, each for a line with the path and the mode. Not `chmod`: that reads the mode before, so that the kernel
/// learns the owner, and its start takes longer than names are shown in a directory that changes.
const CHANGES: &str = "import os, sys
for line in sys.stdin:
    path, mode = line.split()
    try:
        os.chmod(path, int(mode, 8))
        print('done', flush=True)
    except OSError as error:
        print(error, flush=True)
";
/// The user who gets the files of the next test.
const OWNER: u32 = 65_533;

/// Each of a file's calls goes to one of two mounts: a kernel that shows the name still knows the new owner.
#[test]
fn owner_changes_hold_on_both_hosts() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let hosts = [volume.mount().expect("it mounts"), volume.mount().expect("it mounts")];
    let mut owner = Command::new("setpriv");
    owner.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", "/usr/bin/python3", "-c", CHANGES]);
    let mut owner = owner.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv runs");
    let (mut asks, said) = (owner.stdin.take().expect("a pipe"), owner.stdout.take().expect("a pipe"));
    let mut said = BufReader::new(said).lines();
    for hosts_of in 0..64_usize {
        // The first half are made by one host: where both change a directory, no name is shown.
        let path = |call: usize| hosts[hosts_of >> (5 - call) & 1].join(format!("f{hosts_of}"));
        let mut change = |call: usize, mode: &str| {
            writeln!(asks, "{} {mode}", path(call).display()).expect("it is asked");
            said.next().expect("a line").expect("it is read") == "done"
        };
        let mode = |call: usize| fs::metadata(path(call)).expect("it is there").mode() & 0o7777;
        fs::write(path(0), b"").expect("it is made");
        fs::set_permissions(path(1), fs::Permissions::from_mode(0o755)).expect("it is changed");
        chown(path(2), Some(OWNER), Some(OWNER)).expect("it has an owner");
        assert!(change(3, "2755"), "hosts {hosts_of:06b}: the owner may change it");
        assert_eq!(mode(4), 0o2755, "hosts {hosts_of:06b}");
        chown(path(5), Some(0), Some(0)).expect("it has another owner");
        assert!(!change(3, "700"), "hosts {hosts_of:06b}: the former owner may not");
        assert_eq!(mode(4) & 0o777, 0o755, "hosts {hosts_of:06b}");
    }
    drop(asks);
    assert!(owner.wait().expect("it ends").success());
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

#[test]
fn kernel_looks_at_fresh_names_alone() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    fs::create_dir(first.join("d")).and_then(|()| fs::write(first.join("d/f"), b"1234")).expect("it is written");
    let path = second.join("d/f");
    // While the mount's process is stopped, only the kernel can answer.
    let is_alone = (0..20).any(|_| {
        (0..10).for_each(|_| assert_eq!(fs::metadata(&path).expect("it is there").len(), 4));
        volume.signal_mount(1, libc::SIGSTOP);
        let begun = Instant::now();
        let looked = Command::new("timeout").args(["0.4", "stat", "-c", "%s"]).arg(&path).output();
        volume.signal_mount(1, libc::SIGCONT);
        println!("{:?}", begun.elapsed());
        looked.is_ok_and(|looked| looked.stdout == b"4\n")
    });
    assert!(is_alone, "the kernel asks the mount each time");
    // What another host changes is seen at once all the same.
    for round in 0..50_u32 {
        let before = fs::metadata(&path).expect("it is there");
        let mode = if round % 2 == 0 { 0o600 } else { 0o644 };
        fs::set_permissions(first.join("d/f"), std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("it is set");
        let after = fs::metadata(&path).expect("it is there");
        assert_eq!((after.mode() & 0o777, after.ino()), (mode, before.ino()), "round {round}");
    }
    drop(path);
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Mounts and working directories below a directory survive other changes in it.
#[test]
fn mountpoints_survive_changes_beside_them() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    for name in ["d", "d/mounted", "d/work", "source"] {
        fs::create_dir(first.join(name)).expect("it is made");
    }
    fs::write(first.join("source/inside"), b"inside").expect("it is written");
    // A namespace of its own: the mount ends with the program.
    let script = "mount --bind \"$0/source\" \"$0/d/mounted\" && cd \"$0/d/work\" && echo ready && for i in $(seq 200); do \
                  test -f \"$0/d/mounted/inside\" || { echo lost the mount; exit 1; }; \
                  /bin/pwd >/dev/null || { echo lost the directory; exit 1; }; ls -l .. >/dev/null; sleep 0.01; done; echo good";
    let mut program = Command::new("unshare");
    program.args(["--mount", "sh", "-c", script]).arg(&second).stdout(std::process::Stdio::piped());
    let mut running = program.spawn().expect("it starts");
    let begun = Instant::now();
    let mut changes = 0;
    while running.try_wait().expect("it runs").is_none() && begun.elapsed() < Duration::from_secs(60) {
        let (file, moved) = (first.join("d/file"), first.join("d/moved"));
        fs::write(&file, b"new").and_then(|()| fs::rename(&file, &moved)).expect("it is moved");
        fs::create_dir(first.join("d/other"))
            .and_then(|()| fs::remove_dir(first.join("d/other")))
            .expect("it is removed");
        fs::remove_file(&moved).expect("it is removed");
        changes += 1;
    }
    let output = running.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\ngood\n", "after {changes} changes");
    assert!(changes > 10, "{changes}");
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}

/// Another host moves the directory.
#[test]
fn moved_directory_keeps_its_node() {
    if let Some(reason) = missing(false) {
        return not_run(format!("volume: {reason}"));
    }
    let mut volume = VolumeRig::new("512M").unwrap_or_else(|error| panic!("{error:#}"));
    let (first, second) = (volume.mount().expect("it mounts"), volume.mount().expect("it mounts"));
    for name in ["from", "from/work", "to"] {
        fs::create_dir(first.join(name)).expect("it is made");
    }
    let mut inside = Command::new("sleep").arg("60").current_dir(second.join("from/work")).spawn().expect("it starts");
    let directory = || fs::read_link(format!("/proc/{}/cwd", inside.id())).expect("it runs");
    assert_eq!(directory(), second.join("from/work"));
    fs::rename(first.join("from/work"), first.join("to/work")).expect("it is moved");
    // One thread looks at it again and again: when names may be given again, and when their time is over.
    let moved = second.join("to/work");
    let path = CString::new(moved.as_os_str().as_bytes()).expect("no zero byte");
    for pause_ms in [300, 1200, 0, 1200] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        // It asks for no attribute that the kernel does not know.
        // SAFETY: the path ends with a zero byte.
        assert_eq!(unsafe { libc::access(path.as_ptr(), libc::F_OK) }, 0);
        assert_eq!(directory(), moved, "after {pause_ms} ms");
    }
    inside.kill().and_then(|()| inside.wait()).expect("it ends");
    let check = volume.finish().expect("it ends");
    assert_eq!(check["problems"].as_array().map(Vec::len), Some(0), "{check}");
}
