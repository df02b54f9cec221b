//! A shared volume on two hosts: its disk, its metadata server, and mounts of it.
//!
//! Owns: the commands that a user would run. Promises: a mount that is taken down has committed everything. A program
//! that starts processes while it has files of a volume open would wait for ever, so the caller has none open then.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::link::SERVER_ADDRESS;
use super::{HostPair, HostRole};
use crate::Error;
use crate::process::{self, PipedProcess};

/// The port of the metadata server.
const PORT: u16 = 7200;
/// The memory of a mount for the contents of files: as much as fits the server's host beside the rest.
pub(crate) const VOLUME_MEMORY: &str = "32M";

/// A volume that is served.
pub(crate) struct ServedVolume {
    disk: String,
    server: PipedProcess,
}

/// A mount of a volume. Dropping it kills its process; [`finish`](Self::finish) lets it commit.
pub(crate) struct VolumeMount {
    process: PipedProcess,
    root: PathBuf,
}

fn words<'a>(words: &'a [&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(OsStr::new).collect()
}

impl ServedVolume {
    /// The SPEC of a block device.
    pub fn spec(device: &Path) -> String {
        format!("disk:{}", device.display())
    }

    /// The address of the metadata server.
    pub fn address() -> String {
        format!("{SERVER_ADDRESS}:{PORT}")
    }

    /// Makes a volume on a device, whose contents are lost, and starts its metadata server.
    pub fn new(hosts: &HostPair, device: &Path) -> Result<ServedVolume, Error> {
        let disk = ServedVolume::spec(device);
        let format = ["volume", "format", &disk, "--name", "bench", "--force"];
        process::run(&mut hosts.command(HostRole::Server, &words(&format)))?;
        let address = ServedVolume::address();
        let serve = ["volume", "serve", &disk, "--listen", &address, "--insecure"];
        let server = hosts.start(HostRole::Server, "volume-server", &words(&serve))?;
        Ok(ServedVolume { disk, server })
    }

    /// Mounts the volume on a host, at a directory; `options` are of `volume mount`.
    pub fn mount(&self, hosts: &HostPair, host: HostRole, root: &Path, options: &[&str]) -> Result<VolumeMount, Error> {
        let address = ServedVolume::address();
        let mut words: Vec<&OsStr> = vec![
            "volume".as_ref(),
            "mount".as_ref(),
            self.disk.as_ref(),
            root.as_ref(),
            "--server".as_ref(),
            address.as_ref(),
            "--memory".as_ref(),
            VOLUME_MEMORY.as_ref(),
        ];
        words.extend(options.iter().map(AsRef::<OsStr>::as_ref));
        Ok(VolumeMount { process: hosts.start(host, "volume-mount", &words)?, root: root.to_owned() })
    }

    /// Ends the server. *Errors*: it fails, or does not end in time.
    pub fn finish(self) -> Result<(), Error> {
        self.server.finish()
    }
}

impl VolumeMount {
    /// Unmounts, after everything is committed. *Errors*: it is in use, or something could not be committed.
    pub fn finish(self) -> Result<(), Error> {
        let VolumeMount { process, root } = self;
        process.finish().map_err(|error| Error::new(error.kind, format!("{}: {}", root.display(), error.message)))
    }
}
