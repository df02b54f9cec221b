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

use super::{Emptied, Plan, Series, System};
use crate::disk::{DiskOptions, MeasuredDisk, SharedClock, Timekeeping};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::hosts::{Host, Hosts, Volume, VolumeMount};
use crate::io::content::drop_pages;
use crate::io::job::{Engine, Job, Operation, Outcome, Place};
use crate::io::run::Streams;
use crate::io::target::{Kind, Target, Wish};
use crate::io::{Cell, process, usage};
use crate::process::Process;
use crate::store::Programs;
use crate::{Error, ErrorKind, machine, sys};

/// The space that a file system needs besides the files. *Units*: bytes.
const SPARE_BYTES: u64 = 512 << 20;
/// The space for files, in lengths of a stream: a volume writes new blocks while the old ones are still in use.
const STREAMS_OF_SPACE: u64 = 4;
/// The number of streams.
const STREAMS: u64 = 2;

/// What is mounted. Fields are dropped before the system below.
enum Mounted {
    Nothing,
    Xfs,
    Volume(Host, VolumeMount),
    Bare(Host, Process),
}

impl Mounted {
    /// The host on which it is mounted; `None` for what both hosts see.
    fn host(&self) -> Option<Host> {
        match self {
            Mounted::Nothing | Mounted::Xfs => None,
            Mounted::Volume(host, _) | Mounted::Bare(host, _) => Some(*host),
        }
    }
}

/// The stage. Dropping it unmounts and releases everything.
pub struct Stage<'a> {
    plan: &'a Plan,
    programs: &'a Programs,
    mounted: Mounted,
    volume: Option<Volume>,
    hosts: Option<Hosts>,
    groups: Vec<(Host, MemoryGroup)>,
    device: PathBuf,
    root: PathBuf,
    streams: Option<Streams>,
    disk: Option<MeasuredDisk>,
    guardian: Option<Guardian>,
}

impl<'a> Stage<'a> {
    /// Makes the device and the hosts.
    pub fn new(plan: &'a Plan, nectary: &Path, programs: &'a Programs) -> Result<Stage<'a>, Error> {
        machine::check()?;
        Hosts::check()?;
        let needed = STREAMS_OF_SPACE * plan.bytes + SPARE_BYTES;
        let target = &plan.options.target;
        let wish = Wish { streams: 1, bytes: needed, writes: true, overwrite: plan.options.overwrite };
        let found = Target::find(target, wish)?;
        let parent = match found.kind {
            Kind::File => return Err(usage(format!("{}: name a directory or a block device", target.display()))),
            Kind::Folder => target.clone(),
            Kind::Device => std::env::temp_dir(),
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
        for host in Host::ALL {
            let name = format!("nectary-bench-{}-{}", host.name(), std::process::id());
            guardian.guard(&MemoryGroup::place(&name)?)?;
            groups.push((host, MemoryGroup::new(&name, plan.memory_bytes(host))?));
        }
        sys::own_mounts(&folder)?;
        let disk = match found.kind {
            Kind::Device => None,
            _ => {
                let clock = Arc::new(SharedClock::create(&folder.join("clock"))?);
                let options = DiskOptions {
                    model: None,
                    time: Timekeeping::Real { speed: 1.0 },
                    queue_depth: 1,
                    folder: Some(folder),
                    is_bare: true,
                };
                Some(MeasuredDisk::attach(&options, needed, "ncar", &clock, 0)?)
            }
        };
        let device = disk.as_ref().map_or_else(|| target.clone(), |disk| disk.path().to_owned());
        let of_host = groups.iter().map(|(host, group)| (*host, group.path().to_owned())).collect();
        let hosts = Some(Hosts::new(nectary, &of_hosts, of_host)?);
        let (mounted, volume, streams, guardian) = (Mounted::Nothing, None, None, Some(guardian));
        Ok(Stage { plan, programs, mounted, volume, hosts, groups, device, root, streams, disk, guardian })
    }

    /// Makes a system, and the streams on it.
    pub fn show(&mut self, system: System) -> Result<(), Error> {
        self.take_down()?;
        match system {
            System::Raw | System::Bare => {}
            System::Xfs(block_bytes) => make_xfs(&self.device, block_bytes)?,
            System::Volume => self.volume = Some(Volume::new(self.hosts()?, &self.device)?),
        }
        self.mount(system, Host::Client)?;
        let places = (0..STREAMS).map(|stream| {
            let path = self.root.join(format!("stream-{stream}"));
            match system {
                System::Raw => return Ok(Place { path: self.device.clone(), start: stream * self.plan.bytes }),
                // Its files are there.
                System::Bare => {}
                System::Xfs(_) | System::Volume => {
                    std::fs::File::create_new(&path).map_err(|error| Error::failed(path.display(), error))?;
                }
            }
            Ok(Place { path, start: 0 })
        });
        let places = places.collect::<Result<_, Error>>()?;
        self.streams = Some(Streams::new(places, system == System::Raw, self.plan.bytes, true)?);
        Ok(())
    }

    /// Runs a pass on a host.
    pub fn pass(&mut self, series: &Series, cell: &Cell) -> Result<Outcome, Error> {
        let is_elsewhere = self.mounted.host().is_some_and(|host| host != series.host);
        if series.emptied == Emptied::Remount || is_elsewhere {
            self.unmount()?;
            self.mount(series.system, series.host)?;
        }
        let Some(mut streams) = self.streams.take() else { return Err(Error::failed("a pass", "nothing is shown")) };
        // As in the report, writes truncate the files first. Mixed requests need files with contents.
        let is_file_system = matches!(series.system, System::Xfs(_) | System::Volume);
        let is_fresh = series.operation == Operation::Write && is_file_system;
        let job = Job { is_fresh, ..streams.job(cell, Engine::Threads) };
        if series.emptied == Emptied::Drop {
            drop_pages(&job.places)?;
        }
        let outcome = streams.pass(&job, |job| self.on_host(series.host, job));
        self.streams = Some(streams);
        outcome
    }

    fn on_host(&self, host: Host, job: &Job) -> Result<Outcome, Error> {
        let memory = self.plan.memory_bytes(host) >> 20;
        let what = format!("the process of the {} with {memory} MB", host.name());
        let group = self.groups.iter().find(|group| group.0 == host);
        let (_, group) = group.ok_or_else(|| Error::failed(&what, "it has no memory group"))?;
        process::run(&what, (self.programs.worker)(), job, |child| group.add(child))
    }

    fn hosts(&self) -> Result<&Hosts, Error> {
        self.hosts.as_ref().ok_or_else(|| Error::failed("the hosts", "they are gone"))
    }

    /// Mounts a system; a volume and the bare server only on one host.
    fn mount(&mut self, system: System, host: Host) -> Result<(), Error> {
        self.mounted = match system {
            System::Raw => Mounted::Nothing,
            System::Xfs(_) => {
                sys::mount(&self.device, &self.root, "xfs", sys::Writing::Later)?;
                Mounted::Xfs
            }
            System::Bare => {
                let process = self.hosts()?.start_bare(host, &self.device, &self.root, self.plan.bytes)?;
                Mounted::Bare(host, process)
            }
            System::Volume => {
                let volume = self.volume.as_ref().ok_or_else(|| Error::failed("a mount", "there is no volume"))?;
                Mounted::Volume(host, volume.mount(self.hosts()?, host, &self.root, &[])?)
            }
        };
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Error> {
        match std::mem::replace(&mut self.mounted, Mounted::Nothing) {
            Mounted::Nothing => Ok(()),
            Mounted::Xfs => sys::unmount(&self.root),
            Mounted::Volume(_, mount) => mount.finish(),
            // Its process ends with the mount.
            Mounted::Bare(_, process) => sys::unmount(&self.root).map(|()| drop(process)),
        }
    }

    /// Unmounts what is shown, and ends its server.
    fn take_down(&mut self) -> Result<(), Error> {
        self.streams = None;
        self.unmount()?;
        self.volume.take().map_or(Ok(()), Volume::finish)
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

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        // If the run failed, the guardian removes the rest.
        let _ = self.take_down();
    }
}

fn make_xfs(device: &Path, block_bytes: u32) -> Result<(), Error> {
    let mut command = Command::new("mkfs.xfs");
    command.args(["-f", "-q", "-b", &format!("size={block_bytes}")]).arg(device).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        Error::new(ErrorKind::Missing, format!("mkfs.xfs: {error}; install the Debian package xfsprogs"))
    })?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::failed("mkfs.xfs", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
