//! The contenders: a shared volume mounted on either host, JuiceFS, and local XFS.
//!
//! Owns: the list, and how each contender is set up and taken down. Promises: all use the same device, one after the
//! other; loops run in their own process, so this one has no files open on a volume.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Options;
use super::juicefs::{self, JuiceFs};
use crate::Error;
use crate::contender::FileSystem;
use crate::files::together::{Steps, Together};
use crate::files::worker::{Answer, Task, Worker};
use crate::hosts::{Host, Hosts, Volume, VolumeMount};
use crate::process::{Process, run};
use crate::sys::{self, Writing};

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A volume whose server is on the server's host, mounted on this host.
    Volume {
        /// The host that mounts it.
        host: Host,
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
pub struct Contender {
    /// Its name in reports and figures.
    pub name: &'static str,
    /// What is mounted.
    pub kind: Kind,
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
pub const CONTENDERS: [Contender; 9] = [
    Contender { name: BASE, kind: Kind::Volume { host: Host::Server, has_local_names: false } },
    Contender { name: AGAIN, kind: Kind::Volume { host: Host::Server, has_local_names: false } },
    Contender { name: CLIENT, kind: Kind::Volume { host: Host::Client, has_local_names: false } },
    Contender { name: WITH_LOCAL_NAMES[0], kind: Kind::Volume { host: Host::Server, has_local_names: true } },
    Contender { name: WITH_LOCAL_NAMES[1], kind: Kind::Volume { host: Host::Client, has_local_names: true } },
    Contender { name: PEER, kind: Kind::JuiceFs },
    Contender { name: BARE, kind: Kind::Bare },
    Contender { name: LOCAL[0], kind: Kind::Xfs { is_flushed_each: false } },
    Contender { name: LOCAL[1], kind: Kind::Xfs { is_flushed_each: true } },
];

impl Contender {
    /// The reason why this machine cannot run the contender; `None` if it can.
    pub fn missing(&self, options: &Options) -> Option<String> {
        match self.kind {
            Kind::Volume { .. } | Kind::Bare => None,
            Kind::Xfs { .. } => FileSystem::Xfs.missing(),
            Kind::JuiceFs => juicefs::missing(options.juicefs.as_deref()).or_else(|| FileSystem::Xfs.missing()),
        }
    }

    /// Whether it is a volume whose mount makes and removes names itself.
    pub fn has_local_names(&self) -> bool {
        matches!(self.kind, Kind::Volume { has_local_names: true, .. })
    }

    /// Whether the loops flush every create and unlink.
    pub fn is_flushed_each(&self) -> bool {
        self.kind == Kind::Xfs { is_flushed_each: true }
    }
}

/// The environment of contenders.
pub(super) struct Place<'a> {
    /// This program.
    pub nectary: &'a Path,
    /// A directory for mounts, and for the error output of processes.
    pub folder: &'a Path,
    /// The device.
    pub device: &'a Path,
    /// The two hosts.
    pub hosts: &'a Hosts,
    /// The settings of the run.
    pub options: &'a Options,
}

/// What is mounted, in the order in which it is taken down.
enum Mounted {
    Volume {
        mount: VolumeMount,
        volume: Volume,
    },
    JuiceFs {
        peer: JuiceFs,
        below: Mount,
    },
    /// The process ends when it is unmounted.
    Bare {
        mount: Mount,
        process: Process,
    },
    Xfs(Mount),
}

/// A mounted file system of the kernel; unmounted when dropped.
struct Mount(PathBuf);

impl Mount {
    fn finish(self) -> Result<(), Error> {
        let unmounted = sys::unmount(&self.0);
        std::mem::forget(self);
        unmounted
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = sys::unmount(&self.0);
    }
}

/// A running contender. The worker is dropped first, because it uses the mount.
pub(super) struct Running {
    worker: Worker,
    mounted: Mounted,
    root: PathBuf,
}

impl Place<'_> {
    /// Sets a contender up.
    pub fn set_up(&self, contender: &Contender) -> Result<Running, Error> {
        let root = self.made("root")?;
        let mounted = match contender.kind {
            Kind::Volume { host, has_local_names } => {
                let volume = Volume::new(self.hosts, self.device)?;
                let options: &[&str] = if has_local_names { &["--local-names"] } else { &[] };
                let mount = volume.mount(self.hosts, host, &root, options)?;
                Mounted::Volume { mount, volume }
            }
            Kind::Bare => {
                let process = self.hosts.start_bare_names(Host::Server, &root)?;
                Mounted::Bare { mount: Mount(root.clone()), process }
            }
            Kind::Xfs { .. } => Mounted::Xfs(self.xfs(&root)?),
            Kind::JuiceFs => {
                let under = self.made("under")?;
                let below = self.xfs(&under)?;
                let program = self.options.juicefs.as_deref();
                let program = program.ok_or_else(|| Error::failed("JuiceFS", "there is no program"))?;
                let peer = JuiceFs::start(self.nectary, program, &under, &root, self.folder.join("juicefs.said"))?;
                Mounted::JuiceFs { peer, below }
            }
        };
        let worker = Worker::start(self.nectary, None, self.folder.join("loops.said"))?;
        Ok(Running { worker, mounted, root })
    }

    fn made(&self, name: &str) -> Result<PathBuf, Error> {
        let path = self.folder.join(name);
        std::fs::create_dir_all(&path).map_err(|error| Error::failed(path.display(), error))?;
        Ok(path)
    }

    fn xfs(&self, root: &Path) -> Result<Mount, Error> {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        run(Command::new("mkfs.xfs").env("PATH", path).args(["-q", "-f", "-K"]).arg(self.device))?;
        sys::mount(self.device, root, FileSystem::Xfs.kernel_name(), Writing::Later)?;
        Ok(Mount(root.to_owned()))
    }
}

impl Running {
    /// Where the contender is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Runs loops in their own process.
    pub fn run(&mut self, loops: Together) -> Result<Steps, Error> {
        let patience = loops.patience();
        match self.worker.ask(&Task::Together(loops), patience)? {
            Answer::Steps(steps) => Ok(steps),
            _ => Err(Error::failed("the process of the loops", "it gave no times")),
        }
    }

    /// Takes the contender down. *Errors*: something could not be committed or unmounted.
    pub fn finish(self) -> Result<(), Error> {
        let Running { worker, mounted, .. } = self;
        drop(worker);
        match mounted {
            Mounted::Volume { mount, volume } => mount.finish().and_then(|()| volume.finish()),
            Mounted::JuiceFs { peer, below } => peer.finish().and_then(|()| below.finish()),
            Mounted::Bare { mount, process } => mount.finish().map(|()| drop(process)),
            Mounted::Xfs(mount) => mount.finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_have_their_own_names_and_only_one_flushes_each_step() {
        let mut names: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CONTENDERS.len());
        let flushed: Vec<&str> = CONTENDERS.iter().filter(|one| one.is_flushed_each()).map(|one| one.name).collect();
        assert_eq!(flushed, [LOCAL[1]]);
    }
}
