//! Tests the command `nectary cache mount`: after a kill the source is as it was written, and the command mounts it
//! again.

use nectary_e2e::guard::GuardedProcess;
use nectary_e2e::nectary;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::ScratchFolder;
use nectary_e2e::unmounting::{UnmountAttempt, when_free};
use nectary_e2e::volume::rights::{check_writes_take_capabilities_away, check_writes_take_rights_away};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The time limit of every wait.
const LIMIT: Duration = Duration::from_secs(30);

/// A cache mounted by the command; it is unmounted whether the test passes or fails.
struct CacheMount {
    process: GuardedProcess,
    scratch: ScratchFolder,
    mounts: u32,
}

fn missing() -> Option<String> {
    let root = fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0);
    match (Path::new("/dev/fuse").exists(), root) {
        (false, _) => Some("there is no /dev/fuse".to_owned()),
        (true, false) => Some("it takes root".to_owned()),
        (true, true) => None,
    }
}

impl CacheMount {
    fn new(source: &str) -> CacheMount {
        let scratch = ScratchFolder::new("cache-mount").expect("a scratch folder");
        for folder in ["source", "shown", "run"] {
            fs::create_dir_all(scratch.join(folder)).expect("it is made");
        }
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(scratch.join("run"), private).expect("it is private");
        let process = mount(&scratch, source, 0);
        CacheMount { process, scratch, mounts: 0 }
    }

    fn shown(&self, name: &str) -> PathBuf {
        self.scratch.join("shown").join(name)
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = Command::new(nectary::binary().expect("the binary"));
        command.args(arguments).env("NECTARY_RUNTIME_DIR", self.scratch.join("run"));
        let output = command.stdin(Stdio::null()).output().expect("it runs");
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn mount(scratch: &ScratchFolder, source: &str, index: u32) -> GuardedProcess {
    let log = scratch.join(&format!("mount-{index}.log"));
    let mut command = Command::new(nectary::binary().expect("the binary"));
    command.args(["cache", "mount"]).arg(scratch.join(source)).arg(scratch.join("shown")).args(["--memory", "16M"]);
    command.env("NECTARY_RUNTIME_DIR", scratch.join("run"));
    let mut process = GuardedProcess::spawn("nectary cache mount", command, &log, None).expect("it starts");
    let began = Instant::now();
    let line = scratch.join("shown").display().to_string();
    while !process.log_text().lines().any(|text| text == line) {
        if let Some(status) = process.try_status() {
            panic!("it ended: {status}\n{}", process.log_tail());
        }
        assert!(began.elapsed() < LIMIT, "it is not mounted\n{}", process.log_tail());
        std::thread::sleep(Duration::from_millis(5));
    }
    process
}

impl Drop for CacheMount {
    fn drop(&mut self) {
        let shown = self.scratch.join("shown");
        self.process.kill();
        for _ in 0..=self.mounts {
            let _ = Command::new("umount").arg("-l").arg(&shown).stderr(Stdio::null()).status();
        }
    }
}

/// The directory can be mounted again after its last user has ended.
#[test]
fn lazy_unmount_allows_remount() {
    if let Some(reason) = missing() {
        return not_run(format!("cache mount: {reason}"));
    }
    let mut mounted = CacheMount::new("source");
    let path = |name: &str| mounted.scratch.join(name).display().to_string();
    let (source, shown) = (path("source"), path("shown"));
    // The cache knows no file yet, none of which could be opened afterwards.
    assert_eq!(mounted.run(&["cache", "set", &shown, "--mode", "writeback"]).0, 2, "others may write to the source");
    fs::write(mounted.shown("a"), b"a").expect("it is written");
    let user = fs::File::open(mounted.shown("a")).expect("it opens");
    assert_eq!(mounted.run(&["cache", "mount", &source, &shown]).0, 5, "a cache is mounted there");
    assert_eq!(mounted.run(&["cache", "umount", &shown, "--lazy"]).0, 0);
    let (code, text) = mounted.run(&["status"]);
    assert!(code == 3 && text.contains("it is unmounted"), "{code} {text}");
    assert_eq!(mounted.run(&["cache", "mount", &source, &shown]).0, 5, "its process still serves the user");
    assert_eq!(mounted.run(&["cache", "umount", &shown]).0, 1, "it is unmounted already");
    drop(user);
    let status = mounted.process.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", mounted.process.log_tail());
    mounted.mounts += 1;
    mounted.process = mount(&mounted.scratch, "source", 1);
    assert!(mounted.shown("a").exists());
}

/// The source has everything that was written, and can be mounted again.
#[test]
fn killed_cache_leaves_source_complete() {
    if let Some(reason) = missing() {
        return not_run(format!("cache mount: {reason}"));
    }
    let mut mounted = CacheMount::new("source");
    let mut written = Vec::new();
    for index in 0..50u32 {
        let bytes: Vec<u8> = (0..index * 1000).map(|byte| (byte % 251) as u8).collect();
        fs::write(mounted.shown(&format!("{index}")), &bytes).expect("it is written");
        written.push(bytes);
    }
    let shown = mounted.scratch.join("shown").display().to_string();
    let (code, text) = mounted.run(&["cache", "stat", &shown, "--json"]);
    assert!(code == 0 && text.contains("\"misses\""), "{code} {text}");
    mounted.process.kill();
    for (index, bytes) in written.iter().enumerate() {
        let below = mounted.scratch.join("source").join(index.to_string());
        assert!(fs::read(below).expect("it is there") == *bytes, "file {index}");
    }
    assert_eq!(fs::read(mounted.shown("0")).map_err(|error| error.kind()), Err(ErrorKind::NotConnected));
    for _ in 0..2 {
        let (code, text) = mounted.run(&["status"]);
        assert!(code == 1 && text.contains(&format!("nectary cache umount {shown}")), "{code} {text}");
    }
    mounted.mounts += 1;
    mounted.process = mount(&mounted.scratch, "source", 1);
    for (index, bytes) in written.iter().enumerate() {
        assert!(fs::read(mounted.shown(&index.to_string())).expect("it is there") == *bytes, "file {index}");
    }
    let user = fs::File::open(mounted.shown("1")).expect("it opens");
    assert_eq!(mounted.run(&["cache", "umount", &shown]).0, 5, "it is in use");
    drop(user);
    let attempt = || {
        UnmountAttempt::of_command({
            let (code, text) = mounted.run(&["cache", "umount", &shown]);
            (Some(code), text)
        })
    };
    when_free(Path::new(&shown), LIMIT, attempt).unwrap_or_else(|error| panic!("{error:#}"));
    let status = mounted.process.wait(LIMIT).expect("it ends");
    assert!(status.success(), "{}", mounted.process.log_tail());
    assert!(!mounted.shown("1").exists());
    assert_eq!(mounted.run(&["cache", "umount", &shown]).0, 4, "it is gone");
}

/// A directory that a container still has mounted is not cached again.
#[test]
fn container_mount_blocks_second_cache() {
    if let Some(reason) = missing() {
        return not_run(format!("cache mount: {reason}"));
    }
    let mut mounted = CacheMount::new("source");
    fs::write(mounted.shown("a"), b"here").expect("it is written");
    let (shown, mark) = (mounted.scratch.join("shown").display().to_string(), mounted.scratch.join("mark"));
    let script = format!("touch '{}'; exec sleep 1000", mark.display());
    let mut container = Command::new("unshare");
    container.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let mut container = container.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("it starts");
    let began = Instant::now();
    while !mark.exists() {
        assert!(began.elapsed() < LIMIT, "it does not start");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("umount").arg(&shown).status().expect("it runs").success());
    let mut again = Command::new(nectary::binary().expect("the binary"));
    again.args(["cache", "mount"]).arg(mounted.scratch.join("source")).args([&shown, "--memory", "16M"]);
    again.env("NECTARY_RUNTIME_DIR", mounted.scratch.join("run")).stdin(Stdio::null());
    let output = again.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let process = format!("process {}", mounted.process.id());
    let status = mounted.run(&["status"]).1;
    container.kill().and_then(|()| container.wait()).expect("it ends");
    assert_eq!(output.status.code(), Some(5), "{text}");
    for named in [process.as_str(), "another mount namespace", "(sleep)"] {
        assert!(text.contains(named), "{text}");
    }
    assert!(status.contains("another mount namespace"), "{status}");
    let ended = mounted.process.wait(LIMIT).expect("it ends");
    assert!(ended.success(), "{}", mounted.process.log_tail());
    mounted.mounts += 1;
    mounted.process = mount(&mounted.scratch, "source", 1);
    assert_eq!(fs::read(mounted.shown("a")).expect("it is there"), b"here");
}

#[test]
fn writes_take_rights_away() {
    if let Some(reason) = missing() {
        return not_run(reason);
    }
    let mounted = CacheMount::new("source");
    let (shown, source) = (mounted.scratch.join("shown"), mounted.scratch.join("source"));
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(mounted.scratch.path(), open_to_all).expect("others may look into it");
    check_writes_take_rights_away(&shown, &source);
    check_writes_take_capabilities_away(&shown, &source);
}
