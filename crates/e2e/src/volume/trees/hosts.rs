//! The mounts of a volume, each with its own network to the server, and what is done to them.
//!
//! Owns: the mounts, their relays, the kinds of faults, and the end of calls that never return. Promises: if no call
//! returns for [`STALL_MAX`], all mounts are killed, so that the call fails.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::VolumeRig;
use super::super::takeover::relay::SocketRelay;

/// The size of the disk.
const DISK: &str = "2G";
/// The lease of the server, which must outlast a slow disk.
const SERVER_LEASE: &str = "20s";
/// The longest call: several leases, on a busy machine.
const STALL_MAX: Duration = Duration::from_secs(120);
/// How often the calls are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The time of a short cut: together with the time until the server misses the mount, it is less than its lease of 5 s.
const SHORT_CUT_MS: [u64; 2] = [300, 2500];
/// The time of a cut that is longer than the lease and the drift of clocks.
const LONG_CUT: Duration = Duration::from_millis(7500);
/// The number of lines of a process's output that are shown if a run fails.
const LAST_LINES: usize = 8;
/// What is written to a probe, and lost.
const PROBE_BYTES: [u8; 4096] = [0x55; 4096];

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TreeFault {
    /// The server is killed during calls of all hosts, and started again.
    ServerKill,
    /// A mount is killed, and mounted again.
    MountKill,
    /// A mount and the server are killed, and started again.
    BothKill,
    /// A mount is stopped past its lease while another one needs what it holds, and goes on.
    MountStop,
    /// A mount is cut off for less than its lease, during calls of all hosts.
    ShortCut,
    /// A mount is cut off past its lease while another one needs what it holds.
    LongCut,
    /// A mount is cut off past its lease during its own calls, and nobody else needs anything.
    LoneCut,
}

impl TreeFault {
    /// All kinds.
    pub const ALL: [TreeFault; 7] = [
        TreeFault::ServerKill,
        TreeFault::MountKill,
        TreeFault::BothKill,
        TreeFault::MountStop,
        TreeFault::ShortCut,
        TreeFault::LongCut,
        TreeFault::LoneCut,
    ];

    /// Whether calls go on during the fault, and nothing is lost by it.
    pub fn is_beside_calls(self) -> bool {
        matches!(self, TreeFault::ServerKill | TreeFault::ShortCut | TreeFault::LoneCut)
    }

    /// Whether it kills the mount's process.
    pub fn kills_mount(self) -> bool {
        matches!(self, TreeFault::MountKill | TreeFault::BothKill)
    }
}

/// What the thread that looks at the calls knows.
#[derive(Debug, Default)]
struct StallState {
    calls: AtomicU64,
    is_over: AtomicBool,
    has_stalled: AtomicBool,
    /// The processes of the mounts.
    mounts: Mutex<Vec<u32>>,
}

/// Sends a signal to a process that is not reaped.
pub fn signal(process: u32, signal: i32) {
    // SAFETY: a plain system call; the process is a child that is not reaped yet, so its number is not used again.
    unsafe { libc::kill(process as i32, signal) };
}

fn watch(state: &StallState) {
    let (mut last, mut since) = (0, Instant::now());
    while !state.is_over.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        let calls = state.calls.load(Ordering::Relaxed);
        if calls != last {
            (last, since) = (calls, Instant::now());
        } else if since.elapsed() > STALL_MAX {
            state.has_stalled.store(true, Ordering::Relaxed);
            let mounts = state.mounts.lock().unwrap_or_else(PoisonError::into_inner);
            mounts.iter().for_each(|process| signal(*process, libc::SIGKILL));
            return;
        }
    }
}

/// Counts calls, for the thread that looks whether they return.
#[derive(Debug, Clone)]
pub struct CallBeat(Arc<StallState>);

impl CallBeat {
    /// A call has returned.
    pub fn beat(&self) {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// *Errors*: no call returned for too long, and the mounts were killed.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.0.has_stalled.load(Ordering::Relaxed), "a call did not return for {STALL_MAX:?}");
        Ok(())
    }
}

/// A file beside the tree, to which a host has written what it may lose: another host that reads it waits for this host.
#[derive(Debug)]
pub struct HeldProbe {
    file: File,
    path: PathBuf,
}

impl HeldProbe {
    /// Makes a probe on a mount.
    pub fn new(mount: &Path, number: u64) -> Result<HeldProbe> {
        let path = mount.join(format!("probe-{number}"));
        let file = File::create_new(&path).context("a probe")?;
        file.sync_all().context("fsync of a probe")?;
        Ok(HeldProbe { file, path })
    }

    /// Writes to it, so that its mount holds it.
    pub fn hold(&self) -> Result<()> {
        self.file.write_all_at(&PROBE_BYTES, 0).context("a write to a probe")
    }

    /// Reads it on another mount. Returns whether what was written is there: it was committed before the mount was away.
    pub fn need(&self, other: &Path) -> Result<bool> {
        let name = self.path.file_name().unwrap_or_default();
        Ok(fs::read(other.join(name)).context("a read of a probe")? == PROBE_BYTES)
    }

    /// Removes it. *Errors*: what was written is not committed, and nobody was told.
    pub fn end(self, is_committed: bool) -> Result<()> {
        let synced = self.file.sync_all();
        drop(self.file);
        fs::remove_file(&self.path).context("the end of a probe")?;
        let errno = synced.as_ref().err().and_then(std::io::Error::raw_os_error);
        let is_right = errno == Some(libc::EIO) || is_committed && synced.is_ok();
        ensure!(is_right, "the session was not ended: fsync of its file gives {synced:?}");
        Ok(())
    }
}

/// The mounts with their volume.
pub struct TreeHosts {
    /// The volume.
    pub volume: VolumeRig,
    relays: Vec<SocketRelay>,
    /// The directory of each mount.
    pub places: Vec<PathBuf>,
    stall: Arc<StallState>,
    watcher: Option<JoinHandle<()>>,
}

impl TreeHosts {
    /// Makes a volume with `count` mounts.
    pub fn new(count: usize) -> Result<TreeHosts> {
        let stall = Arc::new(StallState::default());
        let watched = stall.clone();
        let watcher = Some(std::thread::spawn(move || watch(&watched)));
        let volume = VolumeRig::leased(DISK, SERVER_LEASE)?;
        let mut hosts = TreeHosts { volume, relays: Vec::new(), places: Vec::new(), stall, watcher };
        let server = hosts.volume.scratch.join("server");
        for index in 0..count {
            let socket = hosts.volume.scratch.join(&format!("relay{index}"));
            hosts.relays.push(SocketRelay::new(socket, server.clone())?);
            let place = hosts.volume.mount_from(&hosts.address(index), &[])?;
            hosts.places.push(place);
        }
        hosts.show_processes();
        Ok(hosts)
    }

    fn address(&self, host: usize) -> String {
        format!("unix:{}", self.relays[host].socket.display())
    }

    fn show_processes(&self) {
        let processes = (0..self.places.len()).map(|host| self.volume.mount_process(host)).collect();
        *self.stall.mounts.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }

    /// What counts the calls.
    pub fn beat(&self) -> CallBeat {
        CallBeat(self.stall.clone())
    }

    /// Does what [goes on beside calls](TreeFault::is_beside_calls); `draw` chooses its time.
    pub fn disturb(&mut self, fault: TreeFault, host: usize, draw: u64) -> Result<()> {
        match fault {
            TreeFault::ServerKill => {
                self.volume.kill_server();
                std::thread::sleep(Duration::from_millis(draw % 300));
                self.volume.serve()?;
            }
            TreeFault::LoneCut => self.cut(host, LONG_CUT),
            _ => {
                let [least, most] = SHORT_CUT_MS;
                self.cut(host, Duration::from_millis(least + draw % (most - least)));
            }
        }
        Ok(())
    }

    fn cut(&self, host: usize, time: Duration) {
        self.relays[host].set_cut(true);
        std::thread::sleep(time);
        self.relays[host].set_cut(false);
    }

    /// The processes that a fault kills.
    pub fn killed(&self, fault: TreeFault, host: usize, is_server_first: bool) -> Vec<u32> {
        let mut processes = vec![self.volume.mount_process(host)];
        if fault == TreeFault::BothKill {
            processes.insert(usize::from(!is_server_first), self.volume.server_process());
        }
        processes
    }

    /// Starts again what a fault killed.
    pub fn recover(&mut self, fault: TreeFault, host: usize) -> Result<()> {
        self.volume.kill_mount(host);
        if fault == TreeFault::BothKill {
            self.volume.kill_server();
            self.volume.serve()?;
        }
        let address = self.address(host);
        self.volume.mount_again(host, &address)?;
        self.show_processes();
        Ok(())
    }

    /// Stops a mount or cuts it off, or ends that.
    pub fn set_away(&mut self, fault: TreeFault, host: usize, is_away: bool) {
        match fault {
            TreeFault::MountStop => {
                self.volume.signal_mount(host, if is_away { libc::SIGSTOP } else { libc::SIGCONT });
            }
            _ => self.relays[host].set_cut(is_away),
        }
    }

    /// Checks the volume, whose server may run.
    pub fn check(&self) -> Result<()> {
        let check = self.volume.check()?;
        ensure!(check["problems"].as_array().map(Vec::len) == Some(0), "the volume's check: {check}");
        Ok(())
    }

    /// The last lines that the server and the mounts printed.
    pub fn last_words(&self) -> String {
        let names = ["server".to_owned()].into_iter().chain((0..self.places.len()).map(|host| format!("m{host}")));
        let words = names.map(|name| {
            let text = self.volume.log(&name);
            let lines: Vec<&str> = text.lines().collect();
            format!("{name} printed: {}", lines[lines.len().saturating_sub(LAST_LINES)..].join(" / "))
        });
        words.collect::<Vec<_>>().join("\n")
    }

    /// Unmounts everything, ends the server, and checks the volume.
    pub fn finish(&mut self) -> Result<()> {
        self.volume.finish_whole()
    }
}

impl Drop for TreeHosts {
    fn drop(&mut self) {
        self.stall.is_over.store(true, Ordering::Relaxed);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        // A mount that is stopped or cut off ends, too, so that open files can be closed.
        self.volume.kill_mounts();
    }
}
