//! Mounts a file system in memory for a test, and unmounts it whether the test passes or fails.

pub mod holding;
mod memory;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nectary_fuse::{
    FuseChannel, FuseConnection, FuseLimits, FuseMount, KernelNotifier, MountOptions, NegotiationResult, WorkerCrew,
    unmount,
};

pub use memory::MemoryFileSystem;

/// A mounted file system.
pub struct MemoryMount {
    pub memory: Arc<MemoryFileSystem>,
    pub notifier: KernelNotifier,
    crew: WorkerCrew,
    directory: PathBuf,
    is_mounted: bool,
}

impl MemoryMount {
    /// Mounts an empty file system. If this machine cannot mount it, prints the reason and returns `None`.
    pub fn new(test: &str) -> Option<MemoryMount> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let options = MountOptions {
            source: "nectary-fuse-test".to_owned(),
            subtype: "nectary-test".to_owned(),
            root_mode: libc::S_IFDIR | 0o755,
            default_permissions: true,
            programs: true,
            ..MountOptions::default()
        };
        let mounted = FuseChannel::open(true)
            .and_then(|channel| FuseMount::new(&channel, &options).map(|mount| (channel, mount)));
        let (channel, mount) = match mounted {
            Ok(mounted) => mounted,
            Err(error) => {
                println!("NOT RUN: {test}: {error}");
                return None;
            }
        };
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("nectary-fuse-{}-{serial}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let memory = Arc::new(MemoryFileSystem::default());
        let notifier = KernelNotifier::new(channel.again().unwrap());
        let limits = FuseLimits { workers: 4, ..FuseLimits::default() };
        let crew = WorkerCrew::start(FuseConnection::new(memory.clone(), limits), channel, "memory").unwrap();
        let mounted = MemoryMount { memory, notifier, crew, directory, is_mounted: true };
        mount.attach(&mounted.directory).unwrap();
        Some(mounted)
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn agreed(&self) -> NegotiationResult {
        // This request is served only after `INIT` has been answered.
        let _ = std::fs::metadata(&self.directory);
        self.crew.connection().agreed().unwrap()
    }

    /// Waits until a condition holds; panics after a bounded time.
    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::yield_now();
        }
    }

    /// Unmounts the file system and waits until its threads have ended.
    pub fn end(mut self) {
        unmount(&self.directory, false).unwrap();
        self.is_mounted = false;
        self.crew.wait().unwrap();
    }
}

impl Drop for MemoryMount {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = unmount(&self.directory, true);
            if !std::thread::panicking() {
                self.crew.wait().unwrap();
            }
        }
        let _ = std::fs::remove_dir(&self.directory);
    }
}
