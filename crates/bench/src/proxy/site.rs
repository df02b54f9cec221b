//! The machine of a run: for each proxy a disk, a memory group, a directory, and its processes.
//!
//! Owns: mounts, which are in a namespace of this run and end with it; the directory of a later release as root of some
//! proxies; starting and killing. Promises: all proxies have memory groups and disks of the same sizes; a killed proxy
//! has no process left. Leaves to others: configurations (`peer`), and the cleanup after a killed run (`guardian`).

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::peer::{ProxyKind, ProxyProgram, ProxyResources, ProxyStorage};
use crate::Error;
use crate::disk::BareDisk;
use crate::group::{GroupUsage, MemoryGroup};
use crate::guardian::Guardian;
use crate::process::ProcessEnvironment;
use crate::sys::{self, MountSyncMode};

/// The longest time until a proxy listens, and until its processes have ended.
const START_MAX: Duration = Duration::from_secs(60);
const END_MAX: Duration = Duration::from_secs(20);
/// The time between two looks.
const STEP: Duration = Duration::from_millis(1);
/// The end of a proxy's output that an error quotes. *Units*: bytes.
const SAID_BYTES: usize = 2000;
/// The processor of the proxies.
const PROXY_PROCESSOR: usize = 0;
/// Where a root of another release shows the directories of its proxies.
const INSIDE: &str = "/mnt";

/// What all proxies of a run share.
pub(super) struct ProxySite {
    /// The path of this program.
    pub nectary: PathBuf,
    /// The run's directory, on the device to be measured.
    pub base: PathBuf,
    /// A directory with a short path, for sockets.
    pub runtime: PathBuf,
    /// The origin.
    pub origin: SocketAddr,
    /// The size of each memory group.
    pub memory_bytes: u64,
    /// The number of connections of the load.
    pub connections: usize,
    /// Whether proxies and load have a processor each.
    pub is_pinned: bool,
}

/// A proxy to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProxyContender {
    /// Its name, unique in the run.
    pub name: String,
    pub kind: ProxyKind,
    pub program: ProxyProgram,
    /// Its name with the version.
    pub version: String,
}

/// A running proxy; dropping it ends it and removes what it had.
pub(super) struct RunningProxy {
    pub name: String,
    pub address: SocketAddr,
    child: Child,
    command: Vec<OsString>,
    environment: ProcessEnvironment,
    program: ProxyProgram,
    nectary: PathBuf,
    folder: PathBuf,
    runtime: PathBuf,
    shared: Vec<PathBuf>,
    mounted: Option<PathBuf>,
    group: MemoryGroup,
    disk: BareDisk,
}

impl ProxySite {
    /// Gives this thread its own mounts, and prepares the roots of other releases.
    pub fn begin(&self, roots: &[PathBuf]) -> Result<(), Error> {
        sys::own_mounts(&self.base)?;
        for root in roots {
            sys::bind(Path::new("/dev"), &root.join("dev"))?;
            sys::mount_memory(&root.join(INSIDE.trim_start_matches('/')))?;
        }
        Ok(())
    }

    /// Starts a proxy with an empty cache.
    pub fn start(
        &self,
        contender: &ProxyContender,
        storage: ProxyStorage,
        disk_bytes: u64,
        guardian: &mut Guardian,
    ) -> Result<RunningProxy, Error> {
        let ProxyContender { name, kind, program, .. } = contender;
        let folder = self.base.join(name);
        let failed = |error: std::io::Error| Error::failed(folder.display(), error);
        fs::create_dir(&folder).map_err(failed)?;
        let disk = BareDisk::new(&self.base.join(format!("{name}.disk")), disk_bytes.next_multiple_of(1 << 20))?;
        let mount = folder.join("disk");
        fs::create_dir(&mount).map_err(failed)?;
        if !kind.uses_device() {
            make_files(disk.path(), kind.has_many_files())?;
            sys::mount(disk.path(), &mount, "ext4", MountSyncMode::Later)?;
        }
        // Some proxies run as users of their own, and need no other rights than those on their directories.
        let is_open = kind.user() != "root";
        let allow = |path: &Path| match is_open {
            true => fs::set_permissions(path, fs::Permissions::from_mode(0o777)).map_err(failed),
            false => Ok(()),
        };
        allow(&folder)?;
        allow(&mount)?;
        let seen = match &program.root {
            None => folder.clone(),
            Some(root) => {
                let place = root.join(INSIDE.trim_start_matches('/')).join(name);
                fs::create_dir_all(&place).map_err(|error| Error::failed(place.display(), error))?;
                sys::bind(&folder, &place)?;
                Path::new(INSIDE).join(name)
            }
        };
        let group = format!("nectary-bench-proxy-{}-{name}", std::process::id());
        guardian.guard(&MemoryGroup::place(&group)?)?;
        let group = MemoryGroup::new(&group, self.memory_bytes)?;
        let given = ProxyResources {
            address: free_address()?,
            origin: self.origin,
            disk: seen.join("disk"),
            folder: seen,
            device: disk.path().to_owned(),
            memory_bytes: self.memory_bytes,
            disk_bytes,
            storage,
            connections: self.connections,
        };
        let shared = kind.shared_files(given.address);
        for path in &shared {
            guardian.guard(path)?;
        }
        let mut commands = kind.configure(program, &given, &folder)?;
        for entry in fs::read_dir(&folder).map_err(failed)?.flatten().filter(|entry| entry.path().is_dir()) {
            allow(&entry.path())?;
        }
        let command = commands.pop().unwrap_or_default();
        for before in &commands {
            let mut prepared = in_root(program, before);
            crate::process::run(&mut prepared)?;
        }
        let environment = ProcessEnvironment {
            group: Some(group.path().to_owned()),
            has_own_network: false,
            processor: self.is_pinned.then_some(PROXY_PROCESSOR),
        };
        let runtime = self.runtime.join(name);
        make_private(&runtime)?;
        let child = spawn(&self.nectary, program, &command, &environment, &folder, &runtime)?;
        let mounted = (!kind.uses_device()).then_some(mount);
        let (address, nectary) = (given.address, self.nectary.clone());
        let (name, program) = (name.clone(), program.clone());
        let mut running = RunningProxy {
            name,
            address,
            child,
            command,
            environment,
            program,
            nectary,
            folder,
            runtime,
            shared,
            mounted,
            group,
            disk,
        };
        running.wait_ready()?;
        Ok(running)
    }
}

impl RunningProxy {
    /// Waits until it accepts connections.
    pub fn wait_ready(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + START_MAX;
        while TcpStream::connect(self.address).is_err() {
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if has_ended || Instant::now() > deadline {
                return Err(self.failed(if has_ended { "it has ended" } else { "it does not listen" }));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Ends it with SIGKILL and starts it again at once; returns the time of the signal. It may not listen yet.
    pub fn kill_and_start(&mut self) -> Result<Instant, Error> {
        let killed = Instant::now();
        self.kill()?;
        let RunningProxy { nectary, program, command, environment, folder, runtime, .. } = self;
        self.child = spawn(nectary, program, command, environment, folder, runtime)?;
        Ok(killed)
    }

    /// The memory that its group uses.
    pub fn usage(&self) -> GroupUsage {
        self.group.usage()
    }

    /// The bytes that its disk has written, after everything that waits has been written.
    pub fn written_bytes(&self) -> Result<u64, Error> {
        if let Some(mounted) = &self.mounted {
            let file = File::open(mounted).map_err(|error| Error::failed(mounted.display(), error))?;
            sys::sync_file_system(&file)?;
        }
        Ok(self.disk.counts().written_bytes)
    }

    /// Kills all its processes, and waits for their end.
    fn kill(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + END_MAX;
        let list = self.group.path().join("cgroup.procs");
        loop {
            let text = fs::read_to_string(&list).unwrap_or_default();
            let left: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            left.iter().for_each(|process| sys::kill(*process));
            let has_ended = !matches!(self.child.try_wait(), Ok(None));
            if left.is_empty() && has_ended {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.failed("its processes do not end"));
            }
            std::thread::sleep(STEP);
        }
    }

    fn failed(&self, how: &str) -> Error {
        let said = fs::read(self.folder.join("said")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SAID_BYTES)..]).trim().replace('\n', "; ");
        Error::failed(&self.name, format!("{how}: {said}"))
    }
}

impl Drop for RunningProxy {
    fn drop(&mut self) {
        // What is left after a failure here is removed when the run ends.
        let _ = self.kill();
        if let Some(root) = &self.program.root {
            let _ = sys::unmount_all(&root.join(INSIDE.trim_start_matches('/')).join(&self.name));
        }
        if let Some(mounted) = &self.mounted {
            let _ = sys::unmount(mounted);
        }
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_dir_all(&self.runtime);
        for path in &self.shared {
            let _ = fs::remove_file(path);
        }
    }
}

/// The command with its program, in its root.
fn in_root(program: &ProxyProgram, words: &[OsString]) -> Command {
    let mut command = program.command();
    command.args(words.iter().skip(1));
    command
}

fn spawn(
    nectary: &Path,
    program: &ProxyProgram,
    words: &[OsString],
    environment: &ProcessEnvironment,
    folder: &Path,
    runtime: &Path,
) -> Result<Child, Error> {
    let inner = in_root(program, words);
    let mut command = environment.command(nectary, Path::new(inner.get_program()));
    command.args(inner.get_args());
    command.env("NECTARY_RUNTIME_DIR", runtime).stdin(Stdio::null()).process_group(0);
    let path = folder.join("said");
    let said = File::options().create(true).append(true).open(&path);
    let said = said.map_err(|error| Error::failed(path.display(), error))?;
    let copy = said.try_clone().map_err(|error| Error::failed(path.display(), error))?;
    let child = command.stdout(said).stderr(copy).spawn();
    child.map_err(|error| Error::failed(program.path.display(), error))
}

/// Makes a directory that only this user can write to.
fn make_private(path: &Path) -> Result<(), Error> {
    let made = fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)));
    made.map_err(|error| Error::failed(path.display(), error))
}

/// Makes a file system; one for many small files has an inode for each 4 KiB, and another one for each 64 KiB.
fn make_files(device: &Path, has_many_files: bool) -> Result<(), Error> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let inode_bytes = if has_many_files { "4096" } else { "65536" };
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-m", "0", "-i", inode_bytes, "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]);
    crate::process::run(command.arg(device).env("PATH", path)).map(drop)
}

/// An address of the loopback whose port is free.
pub(super) fn free_address() -> Result<SocketAddr, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map_err(|error| Error::failed("a port", error))
}
