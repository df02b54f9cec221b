//! Scratch directories and free ports, which belong to one run and leave nothing behind.

use anyhow::{Context, Result, bail};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A directory that is removed with its contents when this value is dropped, unless `NECTARY_E2E_KEEP` is set.
#[derive(Debug)]
pub struct ScratchFolder {
    path: PathBuf,
}

impl ScratchFolder {
    /// Makes a directory under the system's temporary directory (`TMPDIR`), readable by this user only.
    pub fn new(name: &str) -> Result<Self> {
        Self::under(&std::env::temp_dir(), name)
    }

    /// Makes a directory in memory (`/dev/shm`), for files that must not be on a disk.
    pub fn in_memory(name: &str) -> Result<Self> {
        Self::under(Path::new("/dev/shm"), name)
    }

    fn under(parent: &Path, name: &str) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("nectary-e2e-{name}-{}-{serial}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot create the scratch directory {}", path.display()))?;
        Ok(Self { path })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path inside the directory.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        if std::env::var_os("NECTARY_E2E_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.path);
        } else {
            eprintln!("kept {}", self.path.display());
        }
    }
}

/// Finds a loopback address that nothing listens on. Its port is below the kernel's range for outgoing connections, so
/// it is still free when a killed process is started again on it.
pub fn free_address() -> Result<SocketAddr> {
    let serial = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut port = 10_000 + (u64::from(std::process::id()) * 131 + serial * 17) % 20_000;
    for _ in 0..1000 {
        let address = SocketAddr::from(([127, 0, 0, 1], port as u16));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
        port = 10_000 + (port - 10_000 + 7) % 20_000;
    }
    bail!("no free port between 10000 and 30000 on 127.0.0.1 after 1000 attempts")
}
