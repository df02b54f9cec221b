//! The contenders: local disks and network RAM disks, each with a file system on it.
//!
//! Owns: the list of contenders, and how each is set up and taken down. Each redundancy policy is one line of the list;
//! a policy that `nectary` does not have yet is reported with the reason. Promises: every contender has a disk of the
//! same size, the same file system, and a client with the same memory, which includes the block cache; a dropped
//! contender leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nectary_block::{DeviceErrorKind, DeviceRegistry, OpenOptions};
use nectary_ram::device::RamOptions;

use super::loops::{FileLoops, LoopTimes, PersistentFiles, patience};
use super::network::{DonorNetwork, LinkRate, PORT};
use super::worker::{LoopAnswer, LoopTask, LoopWorker};
use crate::Error;
use crate::contender::ContenderFileSystem;
use crate::disk::BareDisk;
use crate::group::MemoryGroup;
use crate::process::{PipedProcess, ProcessEnvironment, run};
use crate::sys::{self, MountSyncMode};

/// The client's memory in the paper, in bytes.
pub const CLIENT_BYTES: u64 = 64 << 20;
/// The memory of a donor in the paper, in bytes.
pub const DONOR_BYTES: u64 = 128 << 20;
/// The part of a donor's memory that it lends, in bytes; the rest is for its process and sockets.
const LENT_BYTES: u64 = 104 << 20;
/// The part of the client's memory for a block cache, in bytes.
const CACHE_BYTES: u64 = 16 << 20;
/// The size of every disk, in bytes: large enough for the file system of the largest loop, small enough for a donor to
/// hold a whole copy.
pub const DISK_BYTES: u64 = 96 << 20;
/// The model of a disk of the paper's time.
pub const MODEL: &str = "hdd-1999";
/// How long a step of the set-up may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a contender's blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockLocation {
    /// A file on a disk of this machine, behind a loop device with direct I/O.
    Local,
    /// Memory of this machine with the times of a disk of 1999.
    Modelled,
    /// Memory of this machine, without a network: the limit for all other contenders.
    Memory,
    /// The memory of donors, with a redundancy, with or without a block cache.
    Ram {
        /// The number of donors.
        donors: u32,
        /// The value of `redundancy=`.
        redundancy: &'static str,
        /// Whether a block cache is in front of the device.
        is_cached: bool,
    },
}

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskContender {
    /// Its name in reports and figures.
    pub name: &'static str,
    /// The kind of its device.
    pub kind: BlockLocation,
}

const fn ram(name: &'static str, redundancy: &'static str, donors: u32) -> DiskContender {
    DiskContender { name, kind: BlockLocation::Ram { donors, redundancy, is_cached: false } }
}

/// The local disk.
pub const LOCAL: &str = "disk";
/// The contender that shows the limit: memory of this machine, without a network.
pub const LIMIT: &str = "memory";
/// The contender that runs twice, which shows the noise.
pub const BASE: &str = "none-2";
/// The second run of [`BASE`]: smaller differences than between these two are noise.
pub const AGAIN: &str = "none-2-again";

/// All contenders. Parity over four members needs a fifth donor.
pub const CONTENDERS: [DiskContender; 14] = [
    DiskContender { name: LOCAL, kind: BlockLocation::Local },
    DiskContender { name: MODEL, kind: BlockLocation::Modelled },
    DiskContender { name: LIMIT, kind: BlockLocation::Memory },
    ram(BASE, "none", 2),
    ram(AGAIN, "none", 2),
    ram("none-4", "none", 4),
    DiskContender {
        name: "none-2-cached",
        kind: BlockLocation::Ram { donors: 2, redundancy: "none", is_cached: true },
    },
    ram("mirror-2", "mirror", 2),
    ram("parity-5", "parity", 5),
    ram("parity-log-5", "parity-log", 5),
    ram("parity-cache-5", "parity-cache", 5),
    ram("adaptive-3", "adaptive", 3),
    ram("adaptive-5", "adaptive", 5),
    DiskContender {
        name: "adaptive-3-cached",
        kind: BlockLocation::Ram { donors: 3, redundancy: "adaptive", is_cached: true },
    },
];

impl DiskContender {
    /// Returns the reason why `nectary` does not have this contender's redundancy policy; `None` if it does.
    ///
    /// Call it inside a runtime.
    pub fn missing(&self) -> Option<String> {
        let BlockLocation::Ram { donors, redundancy, .. } = self.kind else { return None };
        let named: Vec<String> = (1..=donors).map(|donor| format!("127.0.0.{donor}:{PORT}")).collect();
        let spec = format!("ram({},id=bench,redundancy={redundancy})", named.join(","));
        let mut registry = DeviceRegistry::with_builtins();
        nectary_ram::device::register(&mut registry);
        let parsed = registry.arguments(&spec, "ram", &OpenOptions::default()).and_then(RamOptions::parse);
        match parsed {
            Err(error) if matches!(error.kind, DeviceErrorKind::Unsupported | DeviceErrorKind::Invalid) => {
                Some(error.detail)
            }
            _ => None,
        }
    }

    /// Whether the contender uses the network.
    pub fn is_remote(&self) -> bool {
        matches!(self.kind, BlockLocation::Ram { .. })
    }
}

/// The environment of contenders.
pub(super) struct DiskContenderEnvironment<'a> {
    /// This program.
    pub nectary: &'a Path,
    /// The directory of the run's private files, in memory.
    pub folder: PathBuf,
    /// The directory of the local disk's file.
    pub disk_folder: PathBuf,
    /// The file system.
    pub system: ContenderFileSystem,
    /// The size of each file that stays on the file system while it is unmounted and mounted again, in bytes.
    pub bytes: u32,
}

/// A running contender. Fields are dropped in this order, so each is dropped before the resources that it uses.
pub(super) struct RunningDiskContender<'a> {
    place: &'a DiskContenderEnvironment<'a>,
    worker: Option<LoopWorker>,
    mount: Option<ContenderMount>,
    device: ContenderDevice,
    donors: Vec<PipedProcess>,
    _network: Option<DonorNetwork>,
    _groups: Vec<MemoryGroup>,
    client: PathBuf,
    number: u32,
}

/// The block device.
enum ContenderDevice {
    Local(BareDisk),
    Attached { process: Option<PipedProcess>, path: PathBuf },
}

impl ContenderDevice {
    fn path(&self) -> &Path {
        match self {
            ContenderDevice::Local(disk) => disk.path(),
            ContenderDevice::Attached { path, .. } => path,
        }
    }
}

/// A mounted file system; unmounted when dropped.
struct ContenderMount(PathBuf);

impl Drop for ContenderMount {
    fn drop(&mut self) {
        let _ = sys::unmount(&self.0);
    }
}

impl DiskContenderEnvironment<'_> {
    /// The names of all memory groups that a run can make; the guardian removes them.
    pub fn groups() -> Vec<String> {
        let donors = (0..8).map(|donor| group_name(&format!("donor-{donor}")));
        std::iter::once(group_name("client")).chain(donors).collect()
    }

    /// Sets a contender up: donors, links, device, file system.
    pub fn set_up<'a>(
        &'a self,
        contender: &DiskContender,
        link: LinkRate,
        number: u32,
    ) -> Result<RunningDiskContender<'a>, Error> {
        let own_bytes = match contender.kind {
            BlockLocation::Ram { is_cached: true, .. } => CLIENT_BYTES - CACHE_BYTES,
            _ => CLIENT_BYTES,
        };
        let client = MemoryGroup::new(&group_name("client"), own_bytes)?;
        let mut groups = Vec::new();
        let (mut donors, mut network) = (Vec::new(), None);
        let device = match contender.kind {
            BlockLocation::Local => {
                ContenderDevice::Local(BareDisk::new(&self.disk_folder.join(format!("disk-{number}")), DISK_BYTES)?)
            }
            BlockLocation::Modelled => self.attach(&format!("model(memory:{DISK_BYTES},disk={MODEL})"), number)?,
            BlockLocation::Memory => self.attach(&format!("memory:{DISK_BYTES}"), number)?,
            BlockLocation::Ram { donors: count, redundancy, is_cached } => {
                let mut made = DonorNetwork::new(self.nectary, &self.folder, link)?;
                let mut addresses = Vec::new();
                for donor in 0..count {
                    let group = MemoryGroup::new(&group_name(&format!("donor-{donor}")), DONOR_BYTES)?;
                    let process = self.donate(&group, number, donor)?;
                    addresses.push(made.join(process.id())?);
                    donors.push(process);
                    groups.push(group);
                }
                network = Some(made);
                let policy = if redundancy == "none" { String::new() } else { format!(",redundancy={redundancy}") };
                let spec = format!("{},id=bench{policy}", addresses.join(","));
                run(self.nectary().args(["ram", "create", &format!("ram({spec},size={DISK_BYTES})")]))?;
                match is_cached {
                    true => self.attach(&format!("cache(ram({spec}),memory={CACHE_BYTES},mode=writeback)"), number)?,
                    false => self.attach(&format!("ram({spec})"), number)?,
                }
            }
        };
        let path = MemoryGroup::place(&group_name("client"))?;
        groups.push(client);
        let mut running = RunningDiskContender {
            place: self,
            worker: None,
            mount: None,
            device,
            donors,
            _network: network,
            _groups: groups,
            client: path,
            number,
        };
        self.make_file_system(running.device.path())?;
        running.mount(MountSyncMode::Later)?;
        Ok(running)
    }

    fn nectary(&self) -> Command {
        let mut command = Command::new(self.nectary);
        command.env("NECTARY_RUNTIME_DIR", self.folder.join("runtime"));
        command
    }

    fn said(&self, name: &str, number: u32) -> PathBuf {
        self.folder.join(format!("{name}-{number}.said"))
    }

    fn donate(&self, group: &MemoryGroup, number: u32, donor: u32) -> Result<PipedProcess, Error> {
        let inside =
            ProcessEnvironment { group: Some(group.path().to_owned()), has_own_network: true, processor: None };
        let mut command = inside.command(self.nectary, self.nectary);
        command.env("NECTARY_RUNTIME_DIR", self.folder.join(format!("runtime-{donor}")));
        command.args(["ram", "donate", "--insecure", "--listen", &format!(":{PORT}")]);
        command.args(["--memory", &LENT_BYTES.to_string()]);
        let what = format!("donor {donor}");
        let process = PipedProcess::start(command, &what, self.said(&format!("donor-{donor}"), number))?;
        process.line(PATIENCE)?;
        Ok(process)
    }

    fn attach(&self, spec: &str, number: u32) -> Result<ContenderDevice, Error> {
        let mut command = ProcessEnvironment::default().command(self.nectary, self.nectary);
        command.env("NECTARY_RUNTIME_DIR", self.folder.join("runtime"));
        command.args(["attach", "--foreground", spec]);
        let process = PipedProcess::start(command, &format!("nectary attach {spec}"), self.said("attach", number))?;
        let path = process.line(PATIENCE)?.into();
        Ok(ContenderDevice::Attached { process: Some(process), path })
    }

    /// Makes the file system. The options make mkfs accept a disk as small as the paper's and write everything now.
    fn make_file_system(&self, device: &Path) -> Result<(), Error> {
        let (program, arguments): (&str, &[&str]) = match self.system {
            ContenderFileSystem::Xfs => ("mkfs.xfs", &["-q", "-f", "-K", "--unsupported"]),
            _ => {
                let eager = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
                ("mkfs.ext4", &["-q", "-F", "-b", "4096", "-N", "20000", "-m", "0", "-E", eager])
            }
        };
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        run(Command::new(program).env("PATH", path).args(arguments).arg(device)).map(drop)
    }
}

fn group_name(part: &str) -> String {
    format!("nectary-bench-{}-{part}", std::process::id())
}

impl RunningDiskContender<'_> {
    fn root(&self) -> PathBuf {
        self.place.folder.join(format!("root-{}", self.number))
    }

    fn mount(&mut self, writing: MountSyncMode) -> Result<(), Error> {
        let root = self.root();
        if !root.is_dir() {
            fs::create_dir(&root).map_err(|error| Error::failed(root.display(), error))?;
        }
        sys::mount(self.device.path(), &root, self.place.system.kernel_name(), writing)?;
        self.mount = Some(ContenderMount(root));
        // Each mount gets a new process in the client's memory group. This process only runs loops, so only their
        // memory counts as the client's.
        let said = self.place.said("loops", self.number);
        self.worker = Some(LoopWorker::start(self.place.nectary, Some(self.client.clone()), said)?);
        Ok(())
    }

    /// Makes files, unmounts the file system, mounts it synchronously, and compares the files.
    pub fn mount_synchronously(&mut self) -> Result<(), Error> {
        let kept = PersistentFiles { folder: self.root(), bytes: self.place.bytes };
        self.ask(&LoopTask::Keep(kept.clone()), PATIENCE)?;
        self.unmount()?;
        self.mount(MountSyncMode::AtOnce)?;
        self.ask(&LoopTask::Check(kept), PATIENCE).map(drop)
    }

    /// Runs loops within the client's memory.
    pub fn run(&mut self, loops: FileLoops) -> Result<LoopTimes, Error> {
        let loops = FileLoops { folder: self.root(), ..loops };
        let patience = patience(&loops);
        match self.ask(&LoopTask::Run(loops), patience)? {
            LoopAnswer::Taken(taken) => Ok(taken),
            _ => Err(Error::failed("the process of the loops", "it gave no times")),
        }
    }

    /// The processor time of the donors and of the process that serves the block device. *Units*: seconds.
    pub fn processor_s(&self) -> f64 {
        let serving = match &self.device {
            ContenderDevice::Attached { process: Some(process), .. } => process.processor_s(),
            _ => 0.0,
        };
        self.donors.iter().map(PipedProcess::processor_s).sum::<f64>() + serving
    }

    fn ask(&mut self, task: &LoopTask, patience: Duration) -> Result<LoopAnswer, Error> {
        match &mut self.worker {
            Some(worker) => worker.ask(task, patience),
            None => Err(Error::failed("the process of the loops", "it is gone")),
        }
    }

    fn unmount(&mut self) -> Result<(), Error> {
        // Ends the worker first, because it uses the mount.
        self.worker = None;
        if let Some(mount) = self.mount.take() {
            let unmounted = sys::unmount(&mount.0);
            std::mem::forget(mount);
            unmounted?;
        }
        Ok(())
    }

    /// Takes the contender down. *Errors*: the file system cannot be unmounted, or the process that serves the block
    /// device does not end.
    pub fn finish(mut self) -> Result<(), Error> {
        self.unmount()?;
        if let ContenderDevice::Attached { process, .. } = &mut self.device
            && let Some(process) = process.take()
        {
            process.finish()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each policy is a contender once, and a missing one gives the reason.
    #[tokio::test]
    async fn policies_are_contenders_once() {
        let mut names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CONTENDERS.len());
        for contender in CONTENDERS {
            let missing = contender.missing();
            match contender.kind {
                BlockLocation::Ram { redundancy, .. } if redundancy != "none" => {
                    assert!(missing.is_none_or(|why| why.contains("redundancy=")));
                }
                _ => assert_eq!(missing, None),
            }
        }
        let unknown = ram("x", "threefold", 2).missing().unwrap();
        assert!(unknown.contains("threefold"), "{unknown}");
    }

    #[test]
    fn disks_fit_into_what_donors_lend() {
        for contender in CONTENDERS {
            let BlockLocation::Ram { donors, redundancy, .. } = contender.kind else { continue };
            let copies = if redundancy == "none" { 1 } else { 2 };
            assert!(DISK_BYTES * copies <= LENT_BYTES * u64::from(donors), "{}", contender.name);
            assert!((donors as usize) < DiskContenderEnvironment::groups().len());
        }
        const { assert!(LENT_BYTES < DONOR_BYTES && CACHE_BYTES < CLIENT_BYTES) };
    }
}
