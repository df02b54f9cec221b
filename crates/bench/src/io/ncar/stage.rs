//! The environment of the matrix: a device, the systems on it, and hosts.
//!
//! Owns: the loop device with direct I/O on an image (or a block device whose contents may be lost), the system that is
//! shown on it, a memory group per host, and a process in that group for each pass. A volume and the bare FUSE server
//! are mounted only on the host that is measured; their processes are in that host's group. Promises: a run leaves
//! nothing behind, however it ends; only the pages of the streams are dropped from the page cache, so other programs
//! keep theirs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::{CacheEmptying, MeasuredSystem, NcarMatrixPlan, NcarSeries};
use crate::disk::{DiskOptions, DiskTimekeeping, MeasuredDisk, SharedClock};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::hosts::{HostPair, HostRole, ServedVolume, VolumeMount};
use crate::io::content::drop_pages;
use crate::io::job::{IoPass, PassOutcome, RequestOperation, StreamPlace, SubmissionEngine};
use crate::io::run::PatternStreams;
use crate::io::target::{MeasurementTarget, TargetKind, TargetUse};
use crate::io::{SweepCell, process, usage};
use crate::process::PipedProcess;
use crate::store::ProcessCommands;
use crate::{Error, ExperimentErrorKind, machine, sys};

/// The space that a file system needs besides the files. *Units*: bytes.
const SPARE_BYTES: u64 = 512 << 20;
/// The space for files, in lengths of a stream: a volume writes new blocks while the old ones are still in use.
const STREAMS_OF_SPACE: u64 = 4;
/// The number of streams.
const STREAMS: u64 = 2;

/// What is mounted. Fields are dropped before the system below.
enum StageMount {
    Nothing,
    Xfs,
    Volume(HostRole, VolumeMount),
    Bare(HostRole, PipedProcess),
}

impl StageMount {
    /// The host on which it is mounted; `None` for what both hosts see.
    fn host(&self) -> Option<HostRole> {
        match self {
            StageMount::Nothing | StageMount::Xfs => None,
            StageMount::Volume(host, _) | StageMount::Bare(host, _) => Some(*host),
        }
    }
}

/// The stage. Dropping it unmounts and releases everything.
pub struct NcarStage<'a> {
    plan: &'a NcarMatrixPlan,
    programs: &'a ProcessCommands,
    mounted: StageMount,
    volume: Option<ServedVolume>,
    hosts: Option<HostPair>,
    groups: Vec<(HostRole, MemoryGroup)>,
    device: PathBuf,
    root: PathBuf,
    streams: Option<PatternStreams>,
    disk: Option<MeasuredDisk>,
    guardian: Option<Guardian>,
}

impl<'a> NcarStage<'a> {
    /// Makes the device and the hosts.
    pub fn new(
        plan: &'a NcarMatrixPlan,
        nectary: &Path,
        programs: &'a ProcessCommands,
    ) -> Result<NcarStage<'a>, Error> {
        machine::check()?;
        HostPair::check()?;
        let needed = STREAMS_OF_SPACE * plan.bytes + SPARE_BYTES;
        let target = &plan.options.target;
        let wish = TargetUse { streams: 1, bytes: needed, writes: true, overwrite: plan.options.overwrite };
        let found = MeasurementTarget::find(target, wish)?;
        let parent = match found.kind {
            TargetKind::File => return Err(usage(format!("{}: name a directory or a block device", target.display()))),
            TargetKind::Folder => target.clone(),
            TargetKind::Device => std::env::temp_dir(),
        };
        let _ = nectary_attach::release_stale();
        let mut guardian = Guardian::start((programs.guardian)())?;
        let folder = parent.join(format!("nectary-bench-io-{}", std::process::id()));
        guardian.make_folder(&folder)?;
        // The names of sockets have a limit, so they are in a directory with a short name.
        let of_hosts = std::env::temp_dir().join(format!("nectary-bench-hosts-{}", std::process::id()));
        guardian.make_folder(&of_hosts)?;
        let root = folder.join("mounted");
        std::fs::create_dir(&root).map_err(|error| Error::failed(root.display(), error))?;
        let mut groups = Vec::new();
        for host in HostRole::ALL {
            let name = format!("nectary-bench-{}-{}", host.name(), std::process::id());
            guardian.guard(&MemoryGroup::place(&name)?)?;
            groups.push((host, MemoryGroup::new(&name, plan.memory_bytes(host))?));
        }
        sys::own_mounts(&folder)?;
        let disk = match found.kind {
            TargetKind::Device => None,
            _ => {
                let clock = Arc::new(SharedClock::create(&folder.join("clock"))?);
                let options = DiskOptions {
                    model: None,
                    time: DiskTimekeeping::Real { speed: 1.0 },
                    queue_depth: 1,
                    folder: Some(folder),
                    is_bare: true,
                };
                Some(MeasuredDisk::attach(&options, needed, "ncar", &clock, 0)?)
            }
        };
        let device = disk.as_ref().map_or_else(|| target.clone(), |disk| disk.path().to_owned());
        let of_host = groups.iter().map(|(host, group)| (*host, group.path().to_owned())).collect();
        let hosts = Some(HostPair::new(nectary, &of_hosts, of_host)?);
        let (mounted, volume, streams, guardian) = (StageMount::Nothing, None, None, Some(guardian));
        Ok(NcarStage { plan, programs, mounted, volume, hosts, groups, device, root, streams, disk, guardian })
    }

    /// Makes a system, and the streams on it.
    pub fn show(&mut self, system: MeasuredSystem) -> Result<(), Error> {
        self.take_down()?;
        match system {
            MeasuredSystem::Raw | MeasuredSystem::Bare => {}
            MeasuredSystem::Xfs(block_bytes) => make_xfs(&self.device, block_bytes)?,
            MeasuredSystem::Volume => self.volume = Some(ServedVolume::new(self.hosts()?, &self.device)?),
        }
        self.mount(system, HostRole::Client)?;
        let places = (0..STREAMS).map(|stream| {
            let path = self.root.join(format!("stream-{stream}"));
            match system {
                MeasuredSystem::Raw => {
                    return Ok(StreamPlace { path: self.device.clone(), start: stream * self.plan.bytes });
                }
                // Its files are there.
                MeasuredSystem::Bare => {}
                MeasuredSystem::Xfs(_) | MeasuredSystem::Volume => {
                    std::fs::File::create_new(&path).map_err(|error| Error::failed(path.display(), error))?;
                }
            }
            Ok(StreamPlace { path, start: 0 })
        });
        let places = places.collect::<Result<_, Error>>()?;
        self.streams = Some(PatternStreams::new(places, system == MeasuredSystem::Raw, self.plan.bytes, true)?);
        Ok(())
    }

    /// Runs a pass on a host.
    pub fn pass(&mut self, series: &NcarSeries, cell: &SweepCell) -> Result<PassOutcome, Error> {
        let is_elsewhere = self.mounted.host().is_some_and(|host| host != series.host);
        if series.emptied == CacheEmptying::Remount || is_elsewhere {
            self.unmount()?;
            self.mount(series.system, series.host)?;
        }
        let Some(mut streams) = self.streams.take() else { return Err(Error::failed("a pass", "nothing is shown")) };
        // As in the report, writes truncate the files first. Mixed requests need files with contents.
        let is_file_system = matches!(series.system, MeasuredSystem::Xfs(_) | MeasuredSystem::Volume);
        let is_fresh = series.operation == RequestOperation::Write && is_file_system;
        let job = IoPass { is_fresh, ..streams.job(cell, SubmissionEngine::Threads) };
        if series.emptied == CacheEmptying::Drop {
            drop_pages(&job.places)?;
        }
        let outcome = streams.pass(&job, |job| self.on_host(series.host, job));
        self.streams = Some(streams);
        outcome
    }

    fn on_host(&self, host: HostRole, job: &IoPass) -> Result<PassOutcome, Error> {
        let memory = self.plan.memory_bytes(host) >> 20;
        let what = format!("the process of the {} with {memory} MB", host.name());
        let group = self.groups.iter().find(|group| group.0 == host);
        let (_, group) = group.ok_or_else(|| Error::failed(&what, "it has no memory group"))?;
        process::run(&what, (self.programs.worker)(), job, |child| group.add(child))
    }

    fn hosts(&self) -> Result<&HostPair, Error> {
        self.hosts.as_ref().ok_or_else(|| Error::failed("the hosts", "they are gone"))
    }

    /// Mounts a system; a volume and the bare server only on one host.
    fn mount(&mut self, system: MeasuredSystem, host: HostRole) -> Result<(), Error> {
        self.mounted = match system {
            MeasuredSystem::Raw => StageMount::Nothing,
            MeasuredSystem::Xfs(_) => {
                sys::mount(&self.device, &self.root, "xfs", sys::MountSyncMode::Later)?;
                StageMount::Xfs
            }
            MeasuredSystem::Bare => {
                let process = self.hosts()?.start_bare(host, &self.device, &self.root, self.plan.bytes)?;
                StageMount::Bare(host, process)
            }
            MeasuredSystem::Volume => {
                let volume = self.volume.as_ref().ok_or_else(|| Error::failed("a mount", "there is no volume"))?;
                StageMount::Volume(host, volume.mount(self.hosts()?, host, &self.root, &[])?)
            }
        };
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.mounted, StageMount::Nothing) {
            StageMount::Nothing => Ok(()),
            StageMount::Xfs => sys::unmount(&self.root),
            StageMount::Volume(_, mount) => mount.finish(),
            // Its process ends with the mount.
            StageMount::Bare(_, process) => sys::unmount(&self.root).map(|()| drop(process)),
        }
    }

    /// Unmounts what is shown, and ends its server.
    fn take_down(&mut self) -> Result<(), Error> {
        self.streams = None;
        self.unmount()?;
        self.volume.take().map_or(Ok(()), ServedVolume::finish)
    }

    /// Removes everything.
    pub fn finish(mut self) -> Result<(), Error> {
        self.take_down()?;
        self.hosts = None;
        drop(self.disk.take());
        self.groups.clear();
        if let Some(guardian) = self.guardian.take() {
            guardian.finish();
        }
        Ok(())
    }
}

impl Drop for NcarStage<'_> {
    fn drop(&mut self) {
        // If the run failed, the guardian removes the rest.
        let _ = self.take_down();
    }
}

fn make_xfs(device: &Path, block_bytes: u32) -> Result<(), Error> {
    let mut command = Command::new("mkfs.xfs");
    command.args(["-f", "-q", "-b", &format!("size={block_bytes}")]).arg(device).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        Error::new(ExperimentErrorKind::Missing, format!("mkfs.xfs: {error}; install the Debian package xfsprogs"))
    })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::failed("mkfs.xfs", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
