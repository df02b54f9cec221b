//! The environment of the matrix: a device, a file system on it, and hosts.
//!
//! Owns: the loop device with direct I/O on an image (or a block device whose contents may be lost), XFS on it, a
//! memory group per host, and a process in that group for each pass. Promises: a run leaves nothing behind, however it
//! ends; only the pages of the streams are dropped from the page cache, so other programs keep theirs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::{Emptied, Host, Plan, Series, System};
use crate::disk::{DiskOptions, MeasuredDisk, SharedClock, Timekeeping};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::io::content::drop_pages;
use crate::io::job::{Engine, Job, Operation, Outcome, Place};
use crate::io::run::Streams;
use crate::io::target::{Kind, Target, Wish};
use crate::io::{Cell, process, usage};
use crate::store::Programs;
use crate::{Error, ErrorKind, machine, sys};

/// The space that XFS needs besides the files. *Units*: bytes.
const SPARE_BYTES: u64 = 512 << 20;
/// The stage. Dropping it unmounts and releases everything.
pub struct Stage<'a> {
    plan: &'a Plan,
    programs: &'a Programs,
    groups: Vec<(Host, MemoryGroup)>,
    device: PathBuf,
    root: PathBuf,
    streams: Option<Streams>,
    is_mounted: bool,
    disk: Option<MeasuredDisk>,
    guardian: Option<Guardian>,
}

impl<'a> Stage<'a> {
    /// Makes the device and the hosts.
    pub fn new(plan: &'a Plan, programs: &'a Programs) -> Result<Stage<'a>, Error> {
        machine::check()?;
        let needed = 2 * plan.bytes + SPARE_BYTES;
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
        let (streams, guardian) = (None, Some(guardian));
        Ok(Stage { plan, programs, groups, device, root, streams, is_mounted: false, disk, guardian })
    }

    /// Makes a system (XFS or the bare device), and the streams on it.
    pub fn show(&mut self, system: System) -> Result<(), Error> {
        self.unmount()?;
        self.streams = None;
        let streams = 0..2;
        let places: Vec<Place> = match system {
            System::Raw => {
                streams.map(|stream| Place { path: self.device.clone(), start: stream * self.plan.bytes }).collect()
            }
            System::Xfs(block_bytes) => {
                make_xfs(&self.device, block_bytes)?;
                self.mount()?;
                let made = streams.map(|stream| {
                    let path = self.root.join(format!("stream-{stream}"));
                    std::fs::File::create_new(&path).map_err(|error| Error::failed(path.display(), error))?;
                    Ok(Place { path, start: 0 })
                });
                made.collect::<Result<_, Error>>()?
            }
        };
        self.streams = Some(Streams::new(places, system == System::Raw, self.plan.bytes, true)?);
        Ok(())
    }

    /// Runs a pass on a host.
    pub fn pass(&mut self, series: &Series, cell: &Cell) -> Result<Outcome, Error> {
        if series.emptied == Emptied::Remount {
            self.unmount()?;
            self.mount()?;
        }
        let Some(mut streams) = self.streams.take() else { return Err(Error::failed("a pass", "nothing is shown")) };
        // As in the report, writes truncate the files first. Mixed requests need files with contents.
        let is_fresh = series.operation == Operation::Write && series.system != System::Raw;
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

    fn mount(&mut self) -> Result<(), Error> {
        sys::mount(&self.device, &self.root, "xfs", sys::Writing::Later)?;
        self.is_mounted = true;
        Ok(())
    }

    fn unmount(&mut self) -> Result<(), Error> {
        if std::mem::take(&mut self.is_mounted) {
            sys::unmount(&self.root)?;
        }
        Ok(())
    }

    /// Removes everything.
    pub fn finish(mut self) -> Result<(), Error> {
        self.unmount()?;
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
        let _ = self.unmount();
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
