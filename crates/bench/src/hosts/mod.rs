//! Two hosts on this machine that share a disk: the metadata server's host, and a client-only host.
//!
//! Owns: the processes of each host, and the order in which they are started and ended. The hosts have network
//! namespaces (`link`) and, if the caller wants, memory groups. Promises: every process ends with the run, however it
//! ends, and with it mounts and namespaces. Leaves to others: what runs on the mounts.
//!
//! | file | what is in it |
//! |---|---|
//! | `link` | the network between the hosts |
//! | `volume` | a shared volume: format, server, mounts |
//! | `bare` | a FUSE server that only reads and writes a device: the limit of every FUSE file system |

mod bare;
mod bare_names;
mod link;
mod volume;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use bare::{BareOptions, serve};
pub(crate) use link::{CLIENT_ADDRESS, SERVER_ADDRESS};
pub(crate) use volume::{ServedVolume, VOLUME_MEMORY, VolumeMount};

use crate::process::{PipedProcess, ProcessEnvironment};
use crate::{Error, ExperimentErrorKind};
use link::HostLink;

/// How long a step of the set-up may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The programs that hosts need, and the Debian packages that contain them.
const NEEDS: [(&str, &str); 2] = [("ip", "iproute2"), ("nsenter", "util-linux")];

/// A host of the NCAR report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostRole {
    /// The report's Onyx2: 3 GB, and no metadata server.
    Client,
    /// The report's Origin 200: 128 MB, with the metadata server.
    Server,
}

impl HostRole {
    /// Both, in the order of the report's plots.
    pub const ALL: [HostRole; 2] = [HostRole::Client, HostRole::Server];

    /// Its name in reports and figures.
    pub fn name(self) -> &'static str {
        match self {
            HostRole::Client => "client",
            HostRole::Server => "server",
        }
    }

    /// The memory of the report's host. *Units*: bytes.
    pub fn memory_bytes(self) -> u64 {
        match self {
            HostRole::Client => 3 << 30,
            HostRole::Server => 128 << 20,
        }
    }
}

/// The two hosts of a run.
pub(crate) struct HostPair {
    nectary: PathBuf,
    folder: PathBuf,
    groups: Vec<(HostRole, PathBuf)>,
    link: HostLink,
}

impl HostPair {
    /// Checks that this machine has the programs that hosts need. *Errors*: [`ExperimentErrorKind::Missing`] with the package.
    pub fn check() -> Result<(), Error> {
        for (program, package) in NEEDS {
            let is_there = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
                .iter()
                .any(|folder| PathBuf::from(folder).join(program).is_file());
            if !is_there {
                return Err(Error::new(
                    ExperimentErrorKind::Missing,
                    format!("there is no {program}: apt-get install {package}"),
                ));
            }
        }
        Ok(())
    }

    /// Makes the hosts; processes of a host join its memory group, if it has one. `nectary` is the path of this
    /// program, `folder` a directory for the sockets and the error output of processes.
    ///
    /// It moves the calling thread into its own network namespace, that of the server's host. The thread must live as
    /// long as the process.
    pub fn new(nectary: &Path, folder: &Path, groups: Vec<(HostRole, PathBuf)>) -> Result<HostPair, Error> {
        HostPair::check()?;
        let link = HostLink::new(nectary, folder)?;
        Ok(HostPair { nectary: nectary.to_owned(), folder: folder.to_owned(), groups, link })
    }

    /// The command that runs this program on a host.
    pub fn command(&self, host: HostRole, words: &[&OsStr]) -> Command {
        let group = self.groups.iter().find(|group| group.0 == host).map(|group| group.1.clone());
        let mut inside =
            ProcessEnvironment { group, has_own_network: false, processor: None }.command(&self.nectary, &self.nectary);
        inside.args(words);
        let mut command = match host {
            HostRole::Server => inside,
            HostRole::Client => self.link.on_client(&inside),
        };
        // The names of sockets have a limit, so that the directory's name is short.
        command.env("NECTARY_RUNTIME_DIR", self.folder.join(host.name()));
        command
    }

    /// Starts this program on a host, and waits until it prints its first line.
    pub fn start(&self, host: HostRole, name: &str, words: &[&OsStr]) -> Result<PipedProcess, Error> {
        let what = format!("{name} on the {}'s host", host.name());
        let said = self.folder.join(format!("{name}-{}.said", host.name()));
        let process = PipedProcess::start(self.command(host, words), &what, said)?;
        process.line(PATIENCE)?;
        Ok(process)
    }

    /// Starts a [bare FUSE server](serve) on a host. Its files `stream-0`, `stream-1`, … are parts of `device`, each
    /// `bytes` long. It ends when `directory` is unmounted.
    pub fn start_bare(
        &self,
        host: HostRole,
        device: &Path,
        directory: &Path,
        bytes: u64,
    ) -> Result<PipedProcess, Error> {
        let bytes = bytes.to_string();
        let words: [&OsStr; 8] = [
            "bench".as_ref(),
            "bare-fuse".as_ref(),
            "--device".as_ref(),
            device.as_ref(),
            "--directory".as_ref(),
            directory.as_ref(),
            "--bytes".as_ref(),
            bytes.as_ref(),
        ];
        self.start(host, "bare", &words)
    }

    /// Starts a bare FUSE server on a host whose directories and empty files are in memory.
    pub fn start_bare_names(&self, host: HostRole, directory: &Path) -> Result<PipedProcess, Error> {
        self.start(host, "bare", &["bench".as_ref(), "bare-fuse".as_ref(), "--directory".as_ref(), directory.as_ref()])
    }
}
