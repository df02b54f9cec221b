//! Programs with memory maps and locks on the mounts of a volume, which must not hang: they write to holes and remove the
//! file, truncate it, or store to it all the time, while others look. And calls that do wait, because the server is
//! stopped: a status must name them.
//!
//! Owns: the programs, each a process that can be killed when its calls do not end, and what they check. Leaves to
//! others: the volume, and how often each runs.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Subcommand;
use serde_json::Value;

use super::VolumeRig;
use crate::guard::{GuardedProcess, describe};

/// A page. *Units*: bytes.
const PAGE: usize = 4096;
/// The number of threads that write to holes.
const THREADS: usize = 4;
/// The size of the file with holes. *Units*: bytes.
const HOLES_BYTES: usize = 16 << 20;
/// The longest time of one call, and of a program beyond its own time. The server ends a session after 36 s.
pub const CALL_MAX: Duration = Duration::from_secs(30);
/// The time after which a status must name a call that waits.
const WAIT_SHOWN: Duration = Duration::from_secs(30);
/// The longest time that another mount may wait for a file to whose map a program stores all the time.
const LOOK_MAX: Duration = Duration::from_secs(12);

/// A program that uses maps or locks.
#[derive(Clone, Debug, Subcommand)]
pub enum MapProgram {
    /// Four threads map a sparse file and write to its holes; it is removed meanwhile, or right after its close
    Holes {
        /// The directory
        directory: PathBuf,
        /// The number of files
        rounds: u64,
    },
    /// A file is truncated while it is mapped and written to, and another mount reads it
    Truncations {
        /// The directory
        directory: PathBuf,
        /// The same directory on the other mount
        other: PathBuf,
        /// How long
        seconds: u64,
    },
    /// Programs store to a map all the time, and another mount reads the file
    Stores {
        /// The directory
        directory: PathBuf,
        /// The same directory on the other mount
        other: PathBuf,
        /// How long
        seconds: u64,
    },
    /// Many threads wait for a lock, more than a mount serves requests at a time
    Locks {
        /// The directory
        directory: PathBuf,
        /// The number of threads
        waiters: u64,
    },
}

impl MapProgram {
    /// The time after which the program hangs.
    fn limit(&self) -> Duration {
        match self {
            MapProgram::Holes { rounds, .. } => CALL_MAX + Duration::from_secs(*rounds),
            MapProgram::Truncations { seconds, .. } | MapProgram::Stores { seconds, .. } => {
                CALL_MAX + Duration::from_secs(*seconds)
            }
            MapProgram::Locks { .. } => CALL_MAX,
        }
    }

    fn arguments(&self) -> Vec<String> {
        let shown = |path: &Path| path.display().to_string();
        match self {
            MapProgram::Holes { directory, rounds } => vec!["holes".to_owned(), shown(directory), rounds.to_string()],
            MapProgram::Truncations { directory, other, seconds } => {
                vec!["truncations".to_owned(), shown(directory), shown(other), seconds.to_string()]
            }
            MapProgram::Stores { directory, other, seconds } => {
                vec!["stores".to_owned(), shown(directory), shown(other), seconds.to_string()]
            }
            MapProgram::Locks { directory, waiters } => vec!["locks".to_owned(), shown(directory), waiters.to_string()],
        }
    }

    /// Does what the program does, in this process; returns what it counted.
    pub fn work(&self) -> Result<String> {
        match self {
            MapProgram::Holes { directory, rounds } => holes(directory, *rounds),
            MapProgram::Truncations { directory, other, seconds } => {
                truncations(directory, other, Duration::from_secs(*seconds))
            }
            MapProgram::Stores { directory, other, seconds } => stores(directory, other, Duration::from_secs(*seconds)),
            MapProgram::Locks { directory, waiters } => locks(directory, *waiters),
        }
    }

    /// Runs `worker`, which is the program `e2e-campaigns`, as this program; returns its last line. If it does not end,
    /// the mounts are killed, because a process in a call cannot be.
    pub fn run(&self, volume: &mut VolumeRig, worker: &Path) -> Result<String> {
        let mut command = Command::new(worker);
        command.args(["volume-maps", "work"]).args(self.arguments());
        let log = volume.scratch.join("maps.log");
        let _ = fs::remove_file(&log);
        let mut process = GuardedProcess::spawn("volume-maps", command, &log, None)?;
        let ended = process.wait(self.limit());
        if ended.is_err() {
            let status = volume.try_run(&["status", "--verbose"]).map(|(_, text)| text).unwrap_or_default();
            eprintln!("{status}");
            volume.kill_mounts();
        }
        let status = ended?;
        ensure!(status.success(), "{self:?}: {}\n{}", describe(status), process.log_tail());
        Ok(process.log_text().lines().last().unwrap_or_default().to_owned())
    }
}

/// A shared map of a file.
struct SharedFileMap {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the map is memory that every thread may use; its bytes are only used as atomic numbers.
unsafe impl Send for SharedFileMap {}
// SAFETY: as above.
unsafe impl Sync for SharedFileMap {}

impl SharedFileMap {
    fn new(file: &File, bytes: usize) -> io::Result<SharedFileMap> {
        // SAFETY: a new map at a place that the kernel chooses.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(SharedFileMap { start: start.cast(), bytes })
    }

    /// The number at an offset, which is a multiple of 8.
    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.bytes && offset.is_multiple_of(8));
        // SAFETY: the offset is inside the map, which lives as long as `self`, and aligned as the number.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).cast()) }
    }

    fn pages(&self) -> usize {
        self.bytes / PAGE
    }
}

impl Drop for SharedFileMap {
    fn drop(&mut self) {
        // SAFETY: the map is not used any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

fn made(path: &Path, bytes: usize) -> Result<File> {
    let file = File::options().read(true).write(true).create_new(true).open(path);
    let file = file.with_context(|| path.display().to_string())?;
    file.set_len(bytes as u64)?;
    Ok(file)
}

/// Each thread writes its number to each page. In turn, the file is removed before the threads begin, while they write,
/// after they ended, and right after the file was closed.
fn holes(directory: &Path, rounds: u64) -> Result<String> {
    for round in 0..rounds {
        let path = directory.join(format!("holes{round}"));
        let file = made(&path, HOLES_BYTES)?;
        let map = SharedFileMap::new(&file, HOLES_BYTES)?;
        let marker = |thread: usize, page: usize| (round << 32) + (thread << 24) as u64 + page as u64 + 1;
        // Every second file is read before, so its pages are not read while they are written to.
        let before: u64 = match round % 2 {
            0 => (0..map.pages()).map(|page| map.at(page * PAGE).load(Ordering::Relaxed)).sum(),
            _ => 0,
        };
        ensure!(before == 0, "round {round}: a hole is not empty");
        let when = round / 2 % 6;
        if when == 0 {
            fs::remove_file(&path)?;
        }
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let map = &map;
                scope.spawn(move || {
                    for step in 0..map.pages() {
                        let page = (step + thread * map.pages() / THREADS) % map.pages();
                        map.at(page * PAGE + thread * PAGE / THREADS).store(marker(thread, page), Ordering::Relaxed);
                    }
                });
            }
            if when == 1 { fs::remove_file(&path) } else { Ok(()) }
        })?;
        for page in 0..map.pages() {
            for thread in 0..THREADS {
                let found = map.at(page * PAGE + thread * PAGE / THREADS).load(Ordering::Relaxed);
                ensure!(found == marker(thread, page), "round {round}: page {page}, thread {thread}: {found:x}");
            }
        }
        if when == 2 {
            fs::remove_file(&path)?;
        }
        drop(map);
        drop(file);
        if when > 2 {
            fs::remove_file(&path)?;
        }
        println!("file {round} is removed");
        ensure!(
            fs::read_dir(directory)?.all(|entry| entry.is_ok_and(|entry| entry.path() != path)),
            "{path:?} is left"
        );
    }
    Ok(format!("{rounds} files with holes"))
}

/// Reads a file until a time; returns how often, and the longest time that it took.
fn look(path: &Path, until: Instant) -> Result<(u64, Duration)> {
    let (mut looks, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let began = Instant::now();
        let mut bytes = [0; 100];
        File::open(path).and_then(|file| file.read_at(&mut bytes, 0)).context("a look from the other mount")?;
        (looks, longest) = (looks + 1, longest.max(began.elapsed()));
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok((looks, longest))
}

/// Stores to every page of a map again and again.
fn store(map: &SharedFileMap, is_over: &AtomicBool) {
    let mut value = 0;
    while !is_over.load(Ordering::Relaxed) {
        for page in 0..map.pages() {
            value += 1;
            map.at(page * PAGE).store(value, Ordering::Relaxed);
        }
    }
}

fn truncations(directory: &Path, other: &Path, time: Duration) -> Result<String> {
    let bytes = 64 * PAGE;
    let file = made(&directory.join("truncated"), 4 * bytes)?;
    let map = SharedFileMap::new(&file, bytes)?;
    let (is_over, until) = (AtomicBool::new(false), Instant::now() + time);
    let (seen, truncated) = std::thread::scope(|scope| {
        scope.spawn(|| store(&map, &is_over));
        let truncating = scope.spawn(|| -> io::Result<u64> {
            let mut truncated = 0;
            while Instant::now() < until {
                // Never below the end of the map.
                file.set_len((bytes + (truncated as usize * 37 % 100) * 1000) as u64)?;
                truncated += 1;
            }
            Ok(truncated)
        });
        let seen = look(&other.join("truncated"), until);
        let truncated = truncating.join();
        is_over.store(true, Ordering::Relaxed);
        (seen, truncated)
    });
    let truncated = truncated.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    let (looks, longest) = seen?;
    ensure!(truncated > 10 && looks > 10, "only {truncated} truncations and {looks} looks");
    ensure!(longest < LOOK_MAX, "a look took {longest:?}");
    Ok(format!("{truncated} truncations, {looks} looks, the longest {longest:?}"))
}

fn stores(directory: &Path, other: &Path, time: Duration) -> Result<String> {
    let bytes = 1024 * PAGE;
    let file = made(&directory.join("stored"), bytes)?;
    let map = SharedFileMap::new(&file, bytes)?;
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| store(&map, &is_over))).collect();
        let seen = look(&other.join("stored"), Instant::now() + time);
        is_over.store(true, Ordering::Relaxed);
        drop(threads);
        seen
    });
    let (looks, longest) = seen?;
    ensure!(longest < LOOK_MAX, "a look took {longest:?}");
    Ok(format!("{looks} looks, the longest {longest:?}"))
}

fn flock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: a plain system call.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn locks(directory: &Path, waiters: u64) -> Result<String> {
    let path = directory.join("locked");
    let file = made(&path, 0)?;
    flock(&file, libc::LOCK_EX)?;
    let (waiting, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    let wait = || -> io::Result<()> {
        let file = File::open(&path)?;
        waiting.fetch_add(1, Ordering::SeqCst);
        flock(&file, libc::LOCK_EX)?;
        granted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let held = std::thread::scope(|scope| -> Result<u64> {
        for _ in 0..waiters {
            std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, wait)?;
        }
        while waiting.load(Ordering::SeqCst) < waiters {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Other calls go on while all of these wait.
        fs::write(directory.join("beside"), b"beside")?;
        ensure!(fs::read(directory.join("beside"))? == b"beside");
        let held = granted.load(Ordering::SeqCst);
        flock(&file, libc::LOCK_UN)?;
        Ok(held)
    })?;
    let granted = granted.load(Ordering::SeqCst);
    if held != 0 || granted != waiters {
        bail!("{held} locks were granted while another held it, and {granted} of {waiters} in the end");
    }
    Ok(format!("{waiters} waited for a lock, and got it"))
}

/// Stops the server while calls are made, and checks that the status of their mount names them after 30 s, with what they
/// wait for, and that they go on with the server.
pub fn waits(volume: &mut VolumeRig, directory: &Path) -> Result<String> {
    let (locked, made) = (directory.join("waited"), directory.join("made meanwhile"));
    let holder = made_locked(&locked)?;
    let waiter = std::thread::spawn({
        let locked = locked.clone();
        move || File::open(locked).and_then(|file| flock(&file, libc::LOCK_EX))
    });
    std::thread::sleep(Duration::from_secs(1));
    volume.signal_server(libc::SIGSTOP);
    let maker = std::thread::spawn(move || fs::write(made, b"made"));
    std::thread::sleep(WAIT_SHOWN + Duration::from_secs(2));
    let seen = status_of(volume, directory);
    volume.signal_server(libc::SIGCONT);
    let (text, status) = seen?;
    let waits = &status["detail"]["waits"];
    let listed = |call: &str| waits["longest"].as_array().into_iter().flatten().find(|wait| wait["call"] == call);
    // The kernel looks at the directory, or looks the name up, before it makes the file.
    let made = ["stat", "lookup", "create"].into_iter().find_map(listed).context(format!("no call: {status}"))?;
    ensure!(made["path"] == "." && (made["call"] == "stat" || made["name"] == "made meanwhile"), "{made}");
    ensure!(made["why"].as_str().is_some_and(|why| why.contains("the server unix:")), "{made}");
    let lock = listed("lock").context(format!("no lock is listed: {status}"))?;
    ensure!(lock["why"].as_str().is_some_and(|why| why.contains("a file lock on inode")), "{lock}");
    ensure!(waits["calls"].as_u64() >= Some(1) && waits["locks"] == 1 && status["state"] == "degraded", "{status}");
    ensure!(text.contains("been in progress for longer than 30 s"), "{text}");
    maker.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    flock(&holder, libc::LOCK_UN)?;
    waiter.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    let (_, status) = status_of(volume, directory)?;
    ensure!(status["detail"]["waits"]["calls"] == 0 && status["detail"]["waits"]["locks"] == 0, "{status}");
    Ok("what waits for a stopped server is in the status".to_owned())
}

fn made_locked(path: &Path) -> Result<File> {
    let file = made(path, 0)?;
    flock(&file, libc::LOCK_EX)?;
    Ok(file)
}

/// Returns the text of all statuses, and the status of a mount. A status that is not healthy has its own exit code.
fn status_of(volume: &VolumeRig, directory: &Path) -> Result<(String, Value)> {
    let (_, text) = volume.try_run(&["status"])?;
    let (_, json) = volume.try_run(&["status", "--json"])?;
    let parts: Vec<Value> = serde_json::from_str(&json).with_context(|| json.clone())?;
    let shown = directory.display().to_string();
    let mount = parts.into_iter().find(|part| part["status"]["name"] == shown.as_str());
    let mut mount = mount.context(json)?;
    Ok((text, mount["status"].take()))
}
