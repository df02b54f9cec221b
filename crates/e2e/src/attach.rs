//! Tests a file system on an attached device. The file system is made, filled and verified, the process that serves the
//! device is killed under memory pressure, and the device is attached again and its file system checked.
//!
//! Owns: one attached device with everything that belongs to it (process, mount, memory group), the file systems and
//! their tools, and the record of synced files. Promises that no mount, loop device, process or group remains when the
//! device's value is dropped, even after a failure. A check returns a list of problems, so that tests can show that it
//! finds planted ones.

pub mod turns;

use crate::guard::{self, GuardedProcess, find_program};
use crate::nectary;
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;
use crate::unmounting::unmount;
use anyhow::{Context, Result, bail, ensure};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest time that one step may take.
const STEP_MAX: Duration = Duration::from_secs(120);
/// The longest time that a run may take beyond its requested time, on the slowest machine.
const RUN_MAX: Duration = Duration::from_secs(600);
/// A device counts as hanging if it has requests in flight and completes none of them for this time.
const STALL_MAX: Duration = Duration::from_secs(120);
/// The interval at which the watchdog checks the device.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest extension of a load. It is extended until a file has been synced and the memory group has been at its
/// limit.
const LOAD_MAX: Duration = Duration::from_secs(30);
/// The longest time of the clean-up.
const CLEAN_UP_MAX: Duration = Duration::from_secs(30);
/// The time after which a connection is aborted again if the device still hangs, because the device may have a new
/// connection by then.
const ABORT_AGAIN: Duration = Duration::from_secs(10);
/// The size of the device.
const DEVICE_BYTES: &str = "512M";
/// The memory that the attaching process and the program that dirties pages may use in total, in bytes.
const GROUP_BYTES: u64 = 96 << 20;
/// The largest size of a recorded file, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// A file system, and the tools that make and check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestFileSystem {
    /// ext4, by e2fsprogs.
    Ext4,
    /// XFS, by xfsprogs.
    Xfs,
    /// btrfs, by btrfs-progs.
    Btrfs,
}

impl TestFileSystem {
    /// All file systems.
    pub const ALL: [TestFileSystem; 3] = [TestFileSystem::Ext4, TestFileSystem::Xfs, TestFileSystem::Btrfs];

    /// The file system's name for `mount`.
    pub fn name(self) -> &'static str {
        ["ext4", "xfs", "btrfs"][self as usize]
    }

    /// Finds a file system by its name.
    pub fn by_name(name: &str) -> Option<TestFileSystem> {
        TestFileSystem::ALL.into_iter().find(|system| system.name() == name)
    }

    fn make(self) -> &'static [&'static str] {
        match self {
            TestFileSystem::Ext4 => &["mkfs.ext4", "-q", "-F"],
            TestFileSystem::Xfs => &["mkfs.xfs", "-q", "-f"],
            TestFileSystem::Btrfs => &["mkfs.btrfs", "-q", "-f"],
        }
    }

    fn check(self) -> &'static [&'static str] {
        match self {
            TestFileSystem::Ext4 => &["fsck.ext4", "-f", "-n"],
            TestFileSystem::Xfs => &["xfs_repair", "-n"],
            TestFileSystem::Btrfs => &["btrfs", "check", "--readonly"],
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct AttachOutcome {
    /// The number of files that had been synced when the process was killed.
    pub synced: usize,
    /// The number of kills.
    pub kills: u32,
    /// The number of devices that killed processes left and that later processes reported as released.
    pub released: usize,
    /// The number of times that the attaching process's memory group was at its limit; `None` without such a group.
    pub short_of_memory: Option<u64>,
    /// Whether planted losses were found.
    pub caught: bool,
    /// The problems found.
    pub problems: Vec<String>,
}

/// Returns the reason why this machine cannot run these tests, if there is one.
pub fn missing(system: TestFileSystem) -> Option<String> {
    // SAFETY: a plain system call.
    if unsafe { libc::geteuid() } != 0 {
        return Some("it takes root".to_owned());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        if !Path::new(path).exists() {
            return Some(format!("there is no {path}"));
        }
    }
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.trim() == system.name()) {
        return Some(format!("the kernel has no {}", system.name()));
    }
    let programs = [system.make()[0], system.check()[0], "fio", "mount", "fsfreeze"];
    programs.into_iter().find(|name| find_program(name).is_none()).map(|name| format!("{name} is not installed"))
}

/// Makes, fills, verifies and checks a file system on a device whose process is killed again and again. In `spec`,
/// `{file}` stands for a file's path.
///
/// `files` are synced before the first kill. `load` is the minimum time of writing before each kill; on a slow machine,
/// writing continues until a file was synced and memory was short.
pub fn run(
    system: TestFileSystem,
    spec: &str,
    seed: u64,
    files: u64,
    kills: u32,
    load: Duration,
) -> Result<AttachOutcome> {
    let mut outcome = AttachOutcome::default();
    let mut disk = AttachedDisk::new(system, spec)?;
    // This watchdog is dropped before the disk, because the clean-up of the disk starts another watchdog.
    let watchdog = disk.watch(load * 2 * kills + RUN_MAX);
    disk.attach()?;
    disk.fio(&disk.device.clone(), "randrw")?;
    disk.tool(system.make())?;
    disk.mount()?;
    disk.fio(&disk.place.join("verified"), "randwrite")?;
    let mut record = SyncedFiles::default();
    let mut rng = SeededRng::new(seed);
    for index in 0..files {
        record.write(&disk.place, index, &mut rng)?;
    }
    disk.unmount()?;
    outcome.problems.extend(disk.check());
    for kill in 0..kills {
        disk.allocate()?;
        disk.mount_with(&["-o", "nodiscard"])?;
        let stop = Arc::new(AtomicBool::new(false));
        let synced = Arc::new(AtomicU64::new(0));
        let writer = {
            let (stop, synced, place) = (stop.clone(), synced.clone(), disk.place.clone());
            let (mut rng, mut record) = (rng.split(), record.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let index = record.files.len() as u64;
                    if record.write(&place, index, &mut rng).is_err() {
                        break;
                    }
                    synced.fetch_add(1, Ordering::Relaxed);
                }
                record
            })
        };
        let short_before = disk.short_of_memory();
        std::thread::sleep(load / 2);
        let dirtier = disk.dirty_pages()?;
        std::thread::sleep(load / 2);
        let deadline = Instant::now() + LOAD_MAX;
        let is_enough =
            || synced.load(Ordering::Relaxed) > 0 && (short_before.is_none() || disk.short_of_memory() > short_before);
        while !is_enough() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        disk.kill();
        stop.store(true, Ordering::Relaxed);
        record = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        drop(dirtier);
        outcome.released += disk.attach()?;
        // Limit the memory only now: the dirty pages of the dead device are gone only after its mount is gone.
        disk.limit(GROUP_BYTES as i64)?;
        outcome.kills = kill + 1;
        disk.mount()?;
        outcome.problems.extend(record.problems(&disk.place));
        outcome.synced = record.files.len();
        disk.unmount()?;
        outcome.problems.extend(disk.check());
    }
    disk.mount()?;
    outcome.caught = record.catches_planted(&disk.place)?;
    disk.unmount()?;
    disk.detach()?;
    outcome.short_of_memory = disk.short_of_memory();
    outcome.problems.extend(watchdog.is_aborted().then(|| "it hung until its connection was aborted".to_owned()));
    Ok(outcome)
}

/// Makes a file system on one attached device while the file system on another one is mounted.
pub fn run_beside_mounted(system: TestFileSystem) -> Result<()> {
    let (mut one, mut other) = (AttachedDisk::new(system, "{file}")?, AttachedDisk::new(system, "{file}")?);
    let _watchdogs = [one.watch(RUN_MAX), other.watch(RUN_MAX)];
    for disk in [&mut one, &mut other] {
        disk.attach()?;
        disk.tool(system.make())?;
        disk.mount()?;
    }
    for disk in [&mut one, &mut other] {
        disk.unmount()?;
        disk.detach()?;
    }
    Ok(())
}

/// Copies a tree onto a file system on a device attached as `spec`, and compares it. Then attaches the device below
/// alone, as `plain`, and compares the tree again.
pub fn run_copied_tree(system: TestFileSystem, spec: &str, plain: &str, tree: &Path) -> Result<()> {
    let mut disk = AttachedDisk::new(system, spec)?;
    let _watchdog = disk.watch(RUN_MAX);
    let tree = tree.display().to_string();
    disk.attach()?;
    disk.tool(system.make())?;
    disk.mount()?;
    let copy = disk.place.join("tree").display().to_string();
    disk.run("cp", &["-a", &tree, &copy])?;
    disk.run("diff", &["-r", "--no-dereference", &tree, &copy])?;
    disk.unmount()?;
    if let Some(problem) = disk.check() {
        bail!("the file system is not well: {problem}");
    }
    disk.detach()?;
    // After the detach, all data are on the device below, without the layers above it.
    disk.spec = plain.replace("{file}", &disk.scratch.join("disk.img").display().to_string());
    disk.attach()?;
    if let Some(problem) = disk.check() {
        bail!("the file system is not well without what stood above it: {problem}");
    }
    disk.mount()?;
    disk.run("diff", &["-r", "--no-dereference", &tree, &copy])?;
    disk.unmount()?;
    disk.detach()
}

/// The part of an attached device that a watchdog needs.
#[derive(Clone, Debug, Default)]
struct WatchedConnection {
    /// The number of the FUSE connection.
    connection: String,
    /// The file in which the kernel counts the device's requests.
    counts: PathBuf,
}

impl WatchedConnection {
    /// Returns the number of completed requests, if others are in flight.
    fn completed_of_busy(&self) -> Option<u64> {
        let text = fs::read_to_string(&self.counts).ok()?;
        let counts: Vec<u64> = text.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        // Reads, writes, discards and flushes; see `Documentation/block/stat.rst` of the kernel.
        (*counts.get(8)? > 0).then(|| [0, 4, 11, 15].iter().filter_map(|&place| counts.get(place)).sum())
    }
}

/// Aborts a FUSE connection that hangs; otherwise a process that waits for it in the kernel could not even be killed.
struct FuseWatchdog {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    aborted: Arc<AtomicBool>,
}

impl FuseWatchdog {
    /// Aborts the connection when its device completes nothing for `STALL_MAX`, or when this watchdog is not dropped
    /// before the limit; repeats the abort if needed.
    fn new(watched: Arc<Mutex<WatchedConnection>>, place: PathBuf, limit: Duration) -> FuseWatchdog {
        let (stop, stopped) = mpsc::channel();
        let aborted = Arc::new(AtomicBool::new(false));
        let of_thread = aborted.clone();
        let thread = std::thread::spawn(move || {
            let (mut end, mut last_completed, mut last_change) = (Instant::now() + limit, None, Instant::now());
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                let watched = watched.lock().map(|watched| watched.clone()).unwrap_or_default();
                let completed = watched.completed_of_busy();
                if completed.is_none() || completed != last_completed {
                    (last_completed, last_change) = (completed, Instant::now());
                }
                if last_change.elapsed() < STALL_MAX && Instant::now() < end {
                    continue;
                }
                of_thread.store(true, Ordering::Relaxed);
                println!("nothing was completed for {:?}, or within {limit:?}: it is aborted", last_change.elapsed());
                if let Err(error) = abort(&watched.connection, &place) {
                    println!("FUSE connection {} is not aborted: {error}", watched.connection);
                }
                (end, last_change) = (Instant::now() + ABORT_AGAIN, Instant::now());
            }
        });
        FuseWatchdog { stop: Some(stop), thread: Some(thread), aborted }
    }

    fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Relaxed)
    }
}

impl Drop for FuseWatchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Aborts the FUSE connection with this number, so that all its requests fail.
fn abort(number: &str, place: &Path) -> Result<()> {
    ensure!(!number.is_empty(), "its number is not known");
    fs::create_dir_all(place)?;
    let mounted = Command::new("mount").args(["-t", "fusectl", "none"]).arg(place).status()?;
    ensure!(mounted.success(), "fusectl cannot be mounted: {}", guard::describe(mounted));
    // Do not create the file: a connection that has ended needs no abort.
    let written =
        File::options().write(true).open(place.join(number).join("abort")).and_then(|mut file| file.write(b"1"));
    let _ = Command::new("umount").arg(place).status();
    written.map(drop).with_context(|| format!("{} cannot be written", place.join(number).join("abort").display()))
}

/// An attached device, its file system and the files on it.
struct AttachedDisk {
    system: TestFileSystem,
    spec: String,
    scratch: ScratchFolder,
    place: PathBuf,
    device: PathBuf,
    process: Option<GuardedProcess>,
    group: Option<PathBuf>,
    attached: u32,
    watched: Arc<Mutex<WatchedConnection>>,
}

impl AttachedDisk {
    fn new(system: TestFileSystem, spec: &str) -> Result<AttachedDisk> {
        let scratch = ScratchFolder::new("attach")?;
        let spec = spec.replace("{file}", &scratch.join("disk.img").display().to_string());
        let (place, run) = (scratch.join("mnt"), scratch.join("run"));
        fs::create_dir(&place)?;
        fs::create_dir(&run)?;
        fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let group = Path::new("/sys/fs/cgroup/memory").join(scratch.path().file_name().unwrap_or_default());
        let limited = fs::create_dir(&group)
            .and_then(|()| fs::write(group.join("memory.limit_in_bytes"), GROUP_BYTES.to_string()));
        let group = limited.is_ok().then_some(group);
        if group.is_none() {
            println!("no memory group: pages are dirtied without a limit");
        }
        let device = PathBuf::new();
        Ok(AttachedDisk {
            system,
            spec,
            scratch,
            place,
            device,
            process: None,
            group,
            attached: 0,
            watched: Arc::default(),
        })
    }

    /// Starts a watchdog, which aborts the device's connection if the device hangs, or if the watchdog exists longer
    /// than the limit.
    fn watch(&self, limit: Duration) -> FuseWatchdog {
        FuseWatchdog::new(self.watched.clone(), self.scratch.join("fusectl"), limit)
    }

    /// Returns the number of times that the group was at its limit.
    fn short_of_memory(&self) -> Option<u64> {
        fs::read_to_string(self.group.as_ref()?.join("memory.failcnt")).ok()?.trim().parse().ok()
    }

    /// Makes a command that runs in the memory group.
    fn grouped(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let enter = match &self.group {
            Some(group) => format!("echo $$ > {}/cgroup.procs; exec \"$@\"", group.display()),
            None => "exec \"$@\"".to_owned(),
        };
        command.args(["-c", &enter, "sh"]).arg(program).args(arguments);
        command.env("NECTARY_RUNTIME_DIR", self.scratch.join("run"));
        command
    }

    /// Attaches the device; returns the number of leftover devices that the attaching process reported as released.
    fn attach(&mut self) -> Result<usize> {
        self.attached += 1;
        let log = self.scratch.join(&format!("attach-{}.log", self.attached));
        let command =
            self.grouped(&nectary::binary()?, &["attach", &self.spec, "--size", DEVICE_BYTES, "--foreground"]);
        let mut process = GuardedProcess::spawn("nectary attach", command, &log, None)?;
        let deadline = Instant::now() + STEP_MAX;
        loop {
            let text = process.log_text();
            if let Some(device) = text.lines().find(|line| line.starts_with("/dev/loop")) {
                self.device = PathBuf::from(device);
                self.process = Some(process);
                self.find_connection()?;
                return Ok(text.matches("is gone").count());
            }
            if let Some(status) = process.try_status() {
                bail!("nectary attach ended with {}\n{}", guard::describe(status), process.log_tail());
            }
            ensure!(Instant::now() < deadline, "nothing is attached yet\n{}", process.log_tail());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Finds the connection's number: the minor number of the file system of the loop device's file.
    fn find_connection(&self) -> Result<()> {
        let output = Command::new("losetup").args(["-n", "-O", "BACK-MAJ:MIN"]).arg(&self.device).output()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let connection = text.split(':').next_back().unwrap_or_default().to_owned();
        let counts = Path::new("/sys/block").join(self.device.file_name().unwrap_or_default()).join("stat");
        *self.watched.lock().map_err(|_| anyhow::anyhow!("the watchdog panicked"))? =
            WatchedConnection { connection, counts };
        Ok(())
    }

    /// Limits the memory of the group, if there is one; -1 for no limit. The kernel refuses a limit below the group's
    /// usage if it cannot reclaim enough, for example because pages are being written to a device whose process was
    /// killed.
    fn limit(&self, bytes: i64) -> Result<()> {
        let Some(group) = &self.group else { return Ok(()) };
        let file = group.join("memory.limit_in_bytes");
        let deadline = Instant::now() + STEP_MAX;
        loop {
            match fs::write(&file, bytes.to_string()) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                set => return set.with_context(|| format!("{} cannot be set to {bytes}", file.display())),
            }
        }
    }

    /// Kills the process and removes the limit of its group. Otherwise its calls in the kernel could take minutes to
    /// end: they need memory of a group that is full of dirty pages, which no process writes any more.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(libc::SIGKILL);
            if let Err(error) = self.limit(-1) {
                println!("{error:#}");
            }
            process.kill();
        }
    }

    fn detach(&mut self) -> Result<()> {
        let device = self.device.display().to_string();
        let (status, text) = nectary::run(&["detach", &device], self.scratch.path())?;
        ensure!(status.success(), "nectary detach: {}\n{text}", guard::describe(status));
        let mut process = self.process.take().context("it is attached")?;
        let status = process.wait(STEP_MAX)?;
        ensure!(status.success(), "nectary attach: {}\n{}", guard::describe(status), process.log_tail());
        Ok(())
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<()> {
        let program = find_program(name).with_context(|| format!("{name} is not installed"))?;
        let mut command = Command::new(program);
        command.args(arguments);
        let log = self.scratch.join("tool.log");
        let _ = fs::remove_file(&log);
        let (status, text) = guard::run(name, command, &log, STEP_MAX)?;
        ensure!(status.success(), "{name} {}: {}\n{text}", arguments.join(" "), guard::describe(status));
        Ok(())
    }

    /// Runs a tool on the device.
    fn tool(&self, tool: &[&str]) -> Result<()> {
        let device = self.device.display().to_string();
        self.run(tool[0], &[&tool[1..], &[&device]].concat())
    }

    /// The problem that the file system's own checker finds, if any.
    fn check(&self) -> Option<String> {
        self.tool(self.system.check()).err().map(|error| error.to_string())
    }

    /// Allocates all blocks of the file, because discards freed some; later writes then allocate none.
    ///
    /// To allocate a block, the host's file system may have to read its own maps into memory of the group. cgroups v1
    /// do not throttle the process that dirties pages, so if the group is full of dirty pages, it may take minutes to
    /// get this memory. All writes wait for it, and the device seems to hang.
    fn allocate(&self) -> Result<()> {
        let path = self.scratch.join("disk.img");
        let file = File::options().write(true).open(&path)?;
        let bytes = file.metadata()?.len() as libc::off_t;
        // SAFETY: a plain system call on a file that is open.
        let number = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes) };
        ensure!(number == 0, "{}: {}", path.display(), std::io::Error::from_raw_os_error(number));
        Ok(())
    }

    fn mount(&self) -> Result<()> {
        self.mount_with(&[])
    }

    fn mount_with(&self, options: &[&str]) -> Result<()> {
        let (device, place) = (self.device.display().to_string(), self.place.display().to_string());
        self.run("mount", &[&["-t", self.system.name()], options, &[&device, &place]].concat())
    }

    fn unmount(&self) -> Result<()> {
        unmount(&self.place, STEP_MAX)
    }

    /// Writes and reads back with fio, which writes a checksum into every block.
    fn fio(&self, file: &Path, kind: &str) -> Result<()> {
        let (file, kind) = (format!("--filename={}", file.display()), format!("--rw={kind}"));
        let fixed = ["--name=verify", "--size=8M", "--bs=4k", "--direct=1", "--ioengine=libaio", "--iodepth=16"];
        let verify = [
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--end_fsync=1",
            "--output-format=terse",
        ];
        self.run("fio", &[&fixed[..], &verify[..], &[&file, &kind]].concat())
    }

    /// Starts a process that endlessly writes more than its memory group can hold, through the page cache.
    fn dirty_pages(&self) -> Result<GuardedProcess> {
        let file = self.place.join("dirty").display().to_string();
        let script = "while dd if=/dev/zero of=\"$1\" bs=1M count=160 conv=notrunc 2>/dev/null; do :; done";
        let command = self.grouped(Path::new("sh"), &["-c", script, "sh", &file]);
        GuardedProcess::spawn("dd", command, &self.scratch.join("dd.log"), None)
    }
}

impl Drop for AttachedDisk {
    fn drop(&mut self) {
        let _watchdog = self.watch(CLEAN_UP_MAX);
        let _ = Command::new("umount").args(["-q", "-l"]).arg(&self.place).status();
        if let Some(process) = &mut self.process {
            process.signal(libc::SIGTERM);
            let _ = process.wait(Duration::from_secs(5));
        }
        self.kill();
        if !self.device.as_os_str().is_empty() {
            // This command releases the leftovers of a killed process. If there are none, it fails, and the error is
            // ignored.
            let _ = nectary::run(&["detach", &self.device.display().to_string()], self.scratch.path());
        }
        if let Some(group) = &self.group {
            let _ = fs::remove_dir(group);
        }
    }
}

/// The synced files and their contents.
#[derive(Clone, Debug, Default)]
struct SyncedFiles {
    files: Vec<(String, u64, u64)>,
}

impl SyncedFiles {
    /// Writes a file, syncs it and its directory, and only then adds it to the record.
    fn write(&mut self, place: &Path, index: u64, rng: &mut SeededRng) -> Result<()> {
        let (name, seed, length) = (format!("file-{index}"), rng.next_u64(), 1 + rng.below(FILE_BYTES_MAX));
        let mut file = File::create(place.join(&name))?;
        file.write_all(&content(seed, length))?;
        file.sync_all()?;
        File::open(place)?.sync_all()?;
        self.files.push((name, seed, length));
        Ok(())
    }

    /// Files of the record that are missing or have other bytes.
    fn problems(&self, place: &Path) -> Vec<String> {
        let wrong = self.files.iter().filter_map(|(name, seed, length)| match fs::read(place.join(name)) {
            Err(error) => Some(format!("{name} was synced and is lost: {error}")),
            Ok(bytes) if bytes == content(*seed, *length) => None,
            Ok(bytes) => Some(format!("{name} was synced and has other bytes ({} of {length})", bytes.len())),
        });
        wrong.collect()
    }

    /// Whether the check finds a lost file and a flipped bit.
    fn catches_planted(&self, place: &Path) -> Result<bool> {
        let (lost, flipped) = (place.join(&self.files[0].0), place.join(&self.files[1].0));
        fs::remove_file(lost)?;
        let mut bytes = fs::read(&flipped)?;
        bytes[0] ^= 1;
        fs::write(&flipped, bytes)?;
        Ok(self.problems(place).len() == 2)
    }
}

fn content(seed: u64, length: u64) -> Vec<u8> {
    let mut rng = SeededRng::new(seed);
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes.truncate(length as usize);
    bytes
}
