//! The contenders: a shared volume mounted on either host, JuiceFS, and local XFS.
//!
//! Owns: the list, and how each contender is set up and taken down. Promises: all use the same device, one after the
//! other; loops run in their own process, so this one has no files open on a volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::SharedFilesOptions;
use super::juicefs::{self, JuiceFs};
use crate::Error;
use crate::contender::ContenderFileSystem;
use crate::files::prefixed::PrefixedFiles;
use crate::files::together::{StepTimes, ThreadedLoops};
use crate::files::worker::{LoopAnswer, LoopTask, LoopWorker};
use crate::hosts::{HostPair, HostRole, ServedVolume, VolumeMount};
use crate::process::{PipedProcess, run};
use crate::sys::{self, MountSyncMode};

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContenderMountKind {
    /// A volume whose server is on the server's host, mounted on this host.
    Volume {
        /// The host that mounts it.
        host: HostRole,
        /// Whether the mount makes and removes names itself.
        has_local_names: bool,
    },
    /// JuiceFS with its metadata in SQLite and its data in files, both on XFS on the device.
    JuiceFs,
    /// A FUSE server with directories and empty files in memory.
    Bare,
    /// XFS on the device.
    Xfs {
        /// Whether every create and unlink is flushed, as a volume's are.
        is_flushed_each: bool,
    },
}

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountContender {
    /// Its name in reports and figures.
    pub name: &'static str,
    /// What is mounted.
    pub kind: ContenderMountKind,
}

/// The contender that runs twice, which shows the noise.
pub const BASE: &str = "volume-server";
/// The second run of [`BASE`].
pub const AGAIN: &str = "volume-server-again";
/// The volume on the client-only host.
pub const CLIENT: &str = "volume-client";
/// The same two with names that the mounts make and remove themselves.
pub const WITH_LOCAL_NAMES: [&str; 2] = ["volume-server-local", "volume-client-local"];
/// The peer.
pub const PEER: &str = "juicefs";
/// A FUSE server that does nothing but keep names in memory.
pub const BARE: &str = "bare";
/// Local XFS, and the same with every step flushed.
pub const LOCAL: [&str; 2] = ["xfs", "xfs-flushed"];

/// All contenders.
pub const CONTENDERS: [MountContender; 9] = [
    MountContender { name: BASE, kind: ContenderMountKind::Volume { host: HostRole::Server, has_local_names: false } },
    MountContender { name: AGAIN, kind: ContenderMountKind::Volume { host: HostRole::Server, has_local_names: false } },
    MountContender {
        name: CLIENT,
        kind: ContenderMountKind::Volume { host: HostRole::Client, has_local_names: false },
    },
    MountContender {
        name: WITH_LOCAL_NAMES[0],
        kind: ContenderMountKind::Volume { host: HostRole::Server, has_local_names: true },
    },
    MountContender {
        name: WITH_LOCAL_NAMES[1],
        kind: ContenderMountKind::Volume { host: HostRole::Client, has_local_names: true },
    },
    MountContender { name: PEER, kind: ContenderMountKind::JuiceFs },
    MountContender { name: BARE, kind: ContenderMountKind::Bare },
    MountContender { name: LOCAL[0], kind: ContenderMountKind::Xfs { is_flushed_each: false } },
    MountContender { name: LOCAL[1], kind: ContenderMountKind::Xfs { is_flushed_each: true } },
];

impl MountContender {
    /// The reason why this machine cannot run the contender; `None` if it can.
    pub fn missing(&self, options: &SharedFilesOptions) -> Option<String> {
        match self.kind {
            ContenderMountKind::Volume { .. } | ContenderMountKind::Bare => None,
            ContenderMountKind::Xfs { .. } => ContenderFileSystem::Xfs.missing(),
            ContenderMountKind::JuiceFs => {
                juicefs::missing(options.juicefs.as_deref()).or_else(|| ContenderFileSystem::Xfs.missing())
            }
        }
    }

    /// Whether it is a volume whose mount makes and removes names itself.
    pub fn has_local_names(&self) -> bool {
        matches!(self.kind, ContenderMountKind::Volume { has_local_names: true, .. })
    }

    /// Whether the loops flush every create and unlink.
    pub fn is_flushed_each(&self) -> bool {
        self.kind == ContenderMountKind::Xfs { is_flushed_each: true }
    }
}

/// The environment of contenders.
pub(super) struct MountEnvironment<'a> {
    /// This program.
    pub nectary: &'a Path,
    /// A directory for mounts, and for the error output of processes.
    pub folder: &'a Path,
    /// The device.
    pub device: &'a Path,
    /// The two hosts.
    pub hosts: &'a HostPair,
    /// The settings of the run.
    pub options: &'a SharedFilesOptions,
}

/// What is mounted, in the order in which it is taken down.
enum MountedSystem {
    Volume {
        mount: VolumeMount,
        volume: ServedVolume,
        how: VolumeMounting,
    },
    JuiceFs {
        peer: JuiceFs,
        below: KernelMount,
    },
    /// The process ends when it is unmounted.
    Bare {
        mount: KernelMount,
        process: PipedProcess,
    },
    Xfs(KernelMount),
}

/// How a volume is mounted.
#[derive(Debug, Clone, Copy)]
struct VolumeMounting {
    host: HostRole,
    has_local_names: bool,
}

impl VolumeMounting {
    fn mount(self, place: &MountEnvironment<'_>, volume: &ServedVolume, root: &Path) -> Result<VolumeMount, Error> {
        let options: &[&str] = if self.has_local_names { &["--local-names"] } else { &[] };
        volume.mount(place.hosts, self.host, root, options)
    }
}

/// A mounted file system of the kernel; unmounted when dropped.
struct KernelMount(PathBuf);

impl KernelMount {
    fn finish(self) -> Result<(), Error> {
        let unmounted = sys::unmount(&self.0);
        std::mem::forget(self);
        unmounted
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let _ = sys::unmount(&self.0);
    }
}

/// A running contender. The worker is dropped first, because it uses the mount.
pub(super) struct RunningMount {
    worker: LoopWorker,
    /// `None` only while it is mounted again.
    mounted: Option<MountedSystem>,
    root: PathBuf,
}

impl MountEnvironment<'_> {
    /// Sets a contender up.
    pub fn set_up(&self, contender: &MountContender) -> Result<RunningMount, Error> {
        let root = self.made("root")?;
        let mounted = match contender.kind {
            ContenderMountKind::Volume { host, has_local_names } => {
                let volume = ServedVolume::new(self.hosts, self.device)?;
                let how = VolumeMounting { host, has_local_names };
                MountedSystem::Volume { mount: how.mount(self, &volume, &root)?, volume, how }
            }
            ContenderMountKind::Bare => {
                let process = self.hosts.start_bare_names(HostRole::Server, &root)?;
                MountedSystem::Bare { mount: KernelMount(root.clone()), process }
            }
            ContenderMountKind::Xfs { .. } => MountedSystem::Xfs(self.xfs(&root)?),
            ContenderMountKind::JuiceFs => {
                let under = self.made("under")?;
                let below = self.xfs(&under)?;
                let program = self.options.juicefs.as_deref();
                let program = program.ok_or_else(|| Error::failed("JuiceFS", "there is no program"))?;
                let peer = JuiceFs::start(self.nectary, program, &under, &root, self.folder.join("juicefs.said"))?;
                MountedSystem::JuiceFs { peer, below }
            }
        };
        let worker = LoopWorker::start(self.nectary, None, self.folder.join("loops.said"))?;
        Ok(RunningMount { worker, mounted: Some(mounted), root })
    }

    fn made(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.folder.join(name);
        std::fs::create_dir_all(&path).map_err(|error| Error::failed(path.display(), error))?;
        Ok(path)
    }

    fn xfs(&self, root: &Path) -> Result<KernelMount, Error> {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        run(Command::new("mkfs.xfs").env("PATH", path).args(["-q", "-f", "-K"]).arg(self.device))?;
        sys::mount(self.device, root, ContenderFileSystem::Xfs.kernel_name(), MountSyncMode::Later)?;
        Ok(KernelMount(root.to_owned()))
    }
}

impl RunningMount {
    /// Where the contender is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Runs loops in their own process.
    pub fn run(&mut self, loops: ThreadedLoops) -> Result<StepTimes, Error> {
        let patience = loops.patience();
        match self.worker.ask(&LoopTask::Together(loops), patience)? {
            LoopAnswer::Steps(steps) => Ok(steps),
            _ => Err(Error::failed("the process of the loops", "it gave no times")),
        }
    }

    /// Makes files in the process of the loops. *Returns*: the time. *Units*: seconds.
    pub fn create(&mut self, files: PrefixedFiles) -> Result<f64, Error> {
        create(&mut self.worker, files)
    }

    /// Requests the attributes of files in the process of the loops. *Returns*: the time. *Units*: seconds.
    pub fn stat(&mut self, files: PrefixedFiles) -> Result<f64, Error> {
        let patience = files.patience();
        self.worker.time(&LoopTask::Stat(files), patience)
    }

    /// Unmounts a volume and mounts it again, so that its mount knows nothing; does nothing on other contenders.
    pub fn mount_again(&mut self, place: &MountEnvironment<'_>) -> Result<(), Error> {
        let (mount, volume, how) = match self.mounted.take() {
            Some(MountedSystem::Volume { mount, volume, how }) => (mount, volume, how),
            other => {
                self.mounted = other;
                return Ok(());
            }
        };
        mount.finish()?;
        let mount = how.mount(place, &volume, &self.root)?;
        self.mounted = Some(MountedSystem::Volume { mount, volume, how });
        Ok(())
    }

    /// Mounts the volume also on the other host.
    pub fn mount_on_other_host(&self, place: &MountEnvironment<'_>) -> Result<SecondMount, Error> {
        let Some(MountedSystem::Volume { volume, how, .. }) = &self.mounted else {
            return Err(Error::failed("a second mount", "it is no volume"));
        };
        let host = match how.host {
            HostRole::Server => HostRole::Client,
            HostRole::Client => HostRole::Server,
        };
        let root = place.made("root-2")?;
        let mount = VolumeMounting { host, ..*how }.mount(place, volume, &root)?;
        let worker = LoopWorker::start(place.nectary, None, place.folder.join("loops-2.said"))?;
        Ok(SecondMount { worker, mount, root })
    }

    /// Takes the contender down. *Errors*: something could not be committed or unmounted.
    pub fn finish(self) -> Result<(), Error> {
        let RunningMount { worker, mounted, .. } = self;
        drop(worker);
        match mounted {
            Some(MountedSystem::Volume { mount, volume, .. }) => mount.finish().and_then(|()| volume.finish()),
            Some(MountedSystem::JuiceFs { peer, below }) => peer.finish().and_then(|()| below.finish()),
            Some(MountedSystem::Bare { mount, process }) => mount.finish().map(|()| drop(process)),
            Some(MountedSystem::Xfs(mount)) => mount.finish(),
            None => Ok(()),
        }
    }
}

/// A volume that is mounted on a second host, with loops of its own process.
pub(super) struct SecondMount {
    worker: LoopWorker,
    mount: VolumeMount,
    root: PathBuf,
}

impl SecondMount {
    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Makes files in the process of the loops. *Returns*: the time. *Units*: seconds.
    pub fn create(&mut self, files: PrefixedFiles) -> Result<f64, Error> {
        create(&mut self.worker, files)
    }

    /// Unmounts it. *Errors*: something could not be committed.
    pub fn finish(self) -> Result<(), Error> {
        drop(self.worker);
        self.mount.finish()
    }
}

fn create(worker: &mut LoopWorker, files: PrefixedFiles) -> Result<f64, Error> {
    let patience = files.patience();
    worker.time(&LoopTask::Create(files), patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are unique, and only one contender flushes after each step.
    #[test]
    fn contender_names_unique_one_flushes() {
        let mut names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CONTENDERS.len());
        let flushed: Vec<&str> = CONTENDERS.iter().filter(|one| one.is_flushed_each()).map(|one| one.name).collect();
        assert_eq!(flushed, [LOCAL[1]]);
    }
}
