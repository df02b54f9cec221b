//! A directory mounted through the cache: `nectary cache mount`.
//!
//! Owns: the mount, its crew (the threads that serve requests), the thread on which misses and writes wait, and the
//! order in which these end. Promises: the cache learns which thread makes each read; written data are in the source
//! when the write returns, so nothing is lost if the process is killed. Leaves to others: the cache (`nectary-buffer`),
//! the protocol (`nectary-fuse`).
//!
//! | file | what is in it |
//! |---|---|
//! | `serve` | what each request means |
//! | `entries` | changes of names: making, linking, renaming, removing |
//! | `nodes`, `handles` | the nodes that the kernel knows, and the files that programs have open |
//! | `descriptors`, `reach` | the bounded table of open descriptors, and how closed ones are opened again |
//! | `data`, `source` | bytes: to the cache, and from the cache to the file |
//! | `passed` | small files that the kernel reads itself |
//! | `sight` | what is known of a file: its size, and whether others have changed it |
//! | `processes`, `names` | which process a thread belongs to, and the names of streams |
//! | `commands` | commands of users on a mounted tree |
//! | `access_lists` | the duties of a file system with access control lists |
//! | `sys` | system calls |

mod access_lists;
mod commands;
mod data;
mod descriptors;
mod entries;
mod handles;
mod names;
mod nodes;
#[cfg(test)]
mod nodes_tests;
mod passed;
mod processes;
mod reach;
mod serve;
mod sight;
mod source;
mod sys;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nectary_buffer::{BlockReference, BufferCache, CacheOptions, CacheStats, StreamStats, WriteMode};
use nectary_fuse::{
    BackingFiles, BufferPool, FuseChannel, FuseConnection, FuseLimits, FuseMount, LongCall, MountOptions, WorkerCrew,
    unmount,
};
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::long_calls::{LongWaits, WaitReason};
use crate::mount_list::{OtherNamespace, device_of, is_mounted_as};
pub use commands::{HeldFile, PathError};
use data::DataPath;
use descriptors::DescriptorTable;
pub use names::StreamName;
use nodes::TreeNodes;
use passed::PassedFiles;
pub(crate) use processes::ThreadProcesses;
use serve::TreeFileSystem;

/// Memory for reads of more blocks than the cache can pin at once. *Units*: bytes.
const READ_BYTES: usize = 4 << 20;
/// The unit in which this memory is handed out. *Units*: bytes.
const READ_UNIT_BYTES: usize = 64 << 10;
/// The largest number of threads that wait for the source.
const BLOCKING_THREADS_MAX: usize = 512;
/// The descriptors that a thread that serves requests may hold beside those in the table: that of the connection, two
/// directories, and what is being opened.
const OF_WORKER: usize = 6;
/// The descriptors that a thread that waits for the source may hold beside those in the table.
const OF_BLOCKING_THREAD: usize = 2;
/// The file system type in lists of mounts, after `fuse.`.
const SUBTYPE: &str = "nectary-cache";

/// The options of a mounted tree.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// The directory whose files it shows.
    pub source: PathBuf,
    /// The directory at which it is mounted.
    pub directory: PathBuf,
    /// The options of the cache. With [`WriteMode::ReadOnly`] programs can change nothing.
    pub cache: CacheOptions,
    /// Whether the source is changed only through this mount. If so, the kernel may cache names and attributes for an
    /// hour instead of a second, and opening a file again does not check for changes. Other changes may then stay
    /// unseen.
    pub is_exclusive: bool,
    /// Whether files are opened again by their file handles where the source has such. Otherwise they are opened by
    /// their names.
    pub uses_handles: bool,
    /// The kernel itself reads files of at most this size, through its page cache, if it can (Linux 6.9) and the first
    /// open of a file is for reading only. The cache sees none of these reads; 0 for none. *Units*: bytes.
    pub passthrough_bytes: u64,
}

/// A directory that is mounted through a cache.
pub struct MountedTree {
    options: TreeOptions,
    file_system: Arc<TreeFileSystem>,
    connection: Arc<FuseConnection>,
    ended: watch::Receiver<bool>,
    threads: Mutex<Vec<JoinHandle<std::io::Result<()>>>>,
    /// The number of the mounted file system's device, as lists of mounts show it.
    device: Option<String>,
    /// The nodes of pinned files, and the directories above each; a pin keeps one look-up of each of them.
    pinned: Mutex<std::collections::BTreeMap<u64, Vec<Arc<nodes::TreeNode>>>>,
}

/// The counters and contents of a tree.
#[derive(Debug, Clone)]
pub struct TreeFigures {
    /// The number of files, directories and other nodes that the kernel knows now.
    pub nodes: usize,
    /// The memory of these nodes, without that of opened files. *Units*: bytes.
    pub node_bytes: usize,
    /// The descriptors of files and directories that are open now.
    pub descriptors: usize,
    /// The largest number of such descriptors.
    pub descriptors_max: usize,
    /// The descriptors of open and of deleted files, which stay open.
    pub kept: usize,
    /// The largest number of kept descriptors.
    pub kept_max: usize,
    /// Whether nodes are opened again by file handles; otherwise by their names.
    pub uses_handles: bool,
    /// The number of opens after which the kernel read the file itself.
    pub passed_opens: u64,
    /// The cache's counters.
    pub cache: CacheStats,
    /// The cache's counters by stream.
    pub streams: Vec<StreamStats>,
}

impl MountedTree {
    /// Mounts `source` at `directory`. The mount hides the directory's own contents; `directory` may be the source
    /// itself.
    ///
    /// This call changes the process: its umask becomes 0, and its limit of open descriptors is raised to the maximum. The
    /// tree then uses most of the descriptors that are free.
    ///
    /// *Errors*: this machine lacks a feature, a directory cannot be opened, or an option is invalid.
    pub fn start(options: TreeOptions) -> Result<MountedTree, Error> {
        let channel = FuseChannel::open(true)?;
        sys::clear_mask();
        let limit = nectary_host::descriptors::raise().soft;
        let blocking_threads = usize::try_from(limit / 8).unwrap_or(usize::MAX).clamp(16, BLOCKING_THREADS_MAX);
        let root = open_directory(&options.source)?;
        open_directory(&options.directory)?;
        let (handle, is_ready) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel::<Arc<TreeFileSystem>>();
        let waiter =
            std::thread::Builder::new().name("nectary-tree".to_owned()).spawn(move || -> std::io::Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .max_blocking_threads(blocking_threads)
                    .build()?;
                let _ = handle.send(runtime.handle().clone());
                runtime.block_on(async {
                    // `stopped` ends without a value if the mount could not be made.
                    if let Ok(file_system) = stopped.await {
                        file_system.finish().await;
                    }
                });
                Ok(())
            });
        let waiter = waiter.map_err(|error| Error::os("starting a thread", error))?;
        let Ok(runtime) = is_ready.recv() else {
            let error = waiter.join().map_or_else(
                |_| std::io::ErrorKind::Other.into(),
                |result| result.err().unwrap_or_else(|| std::io::ErrorKind::Other.into()),
            );
            return Err(Error::os("starting a runtime", error));
        };
        let cache = {
            let _inside = runtime.enter();
            BufferCache::new(options.cache.clone())?
        };
        let read_only = options.cache.mode == WriteMode::ReadOnly;
        // Threads hold descriptors for the time of a call, also such as have left the table.
        let of_threads = FuseLimits::default().workers * OF_WORKER + blocking_threads * OF_BLOCKING_THREAD;
        let descriptors = DescriptorTable::new(nectary_host::descriptors::for_connections(of_threads as u64));
        let file_system = TreeNodes::new(root, descriptors, cache, options.is_exclusive, options.uses_handles)
            .and_then(|nodes| {
                let nodes = Arc::new(nodes);
                let memory = BufferPool::new(READ_BYTES / READ_UNIT_BYTES, READ_UNIT_BYTES);
                let bytes = Arc::new(DataPath::new(nodes.clone(), memory));
                TreeFileSystem::new(nodes, bytes, PassedFiles::new(options.passthrough_bytes), read_only, runtime)
            })
            .map_err(|error| {
                Error::os("looking at the directory", std::io::Error::from_raw_os_error(error.number()))
            })?;
        let file_system = Arc::new(file_system);
        let mount_options = MountOptions {
            source: options.source.display().to_string(),
            subtype: SUBTYPE.to_owned(),
            root_mode: libc::S_IFDIR | 0o755,
            for_all: true,
            default_permissions: true,
            read_only,
            programs: true,
            ..MountOptions::default()
        };
        let mount = FuseMount::new(&channel, &mount_options)?;
        if file_system.passed.is_wanted() {
            let again = channel.again().map_err(|error| Error::os("opening /dev/fuse", error))?;
            file_system.passed.connect(BackingFiles::new(again));
        }
        let connection = FuseConnection::new(file_system.clone(), FuseLimits::default());
        let crew = WorkerCrew::start(connection.clone(), channel, "nectary-fuse")
            .map_err(|error| Error::os("starting a thread", error))?;
        mount.attach(&options.directory)?;
        let device = device_of(&options.directory, SUBTYPE);
        let (end, ended) = watch::channel(false);
        let of_crew = file_system.clone();
        let crew = std::thread::Builder::new().name("nectary-end".to_owned()).spawn(move || {
            let served = crew.wait();
            let _ = stop.send(of_crew);
            let _ = end.send(true);
            served
        });
        let crew = crew.map_err(|error| Error::os("starting a thread", error))?;
        let threads = Mutex::new(vec![crew, waiter]);
        Ok(MountedTree { options, file_system, connection, ended, threads, device, pinned: Mutex::default() })
    }

    /// The options with which it was mounted.
    pub fn options(&self) -> &TreeOptions {
        &self.options
    }

    /// Its counters and contents.
    pub fn figures(&self) -> TreeFigures {
        let cache = &self.file_system.bytes.cache;
        let nodes = &self.file_system.nodes;
        let (count, node_bytes) = nodes.count();
        TreeFigures {
            nodes: count,
            node_bytes,
            descriptors: nodes.descriptors.count(),
            descriptors_max: nodes.descriptors.places(),
            kept: nodes.descriptors.kept(),
            kept_max: nodes.descriptors.kept_max(),
            uses_handles: nodes.reach.uses_handles(),
            passed_opens: self.file_system.passed.opens(),
            cache: cache.stats(),
            streams: cache.streams(),
        }
    }

    /// Returns the calls that have been in progress for longer than `longer_than`. Programs keep their locks in the
    /// kernel, so every call waits for the source.
    pub fn long_waits(&self, longer_than: Duration) -> LongWaits {
        let source = self.options.source.display();
        let why = |_: &LongCall| WaitReason {
            what: format!("waits for the source {source}"),
            remedy: "check the disk or the server below the source; the kernel's log may have its errors".to_owned(),
            is_lock: false,
        };
        let place = |number| {
            let node = self.file_system.nodes.get(number).ok();
            let path = node.as_ref().and_then(|node| self.path_of(node)).map(|path| path.display().to_string());
            let path = path.map(|path| if path.is_empty() { ".".to_owned() } else { path });
            (self.file_system.nodes.inode(number).unwrap_or(number), path)
        };
        LongWaits::of(&self.connection, longer_than, None, why, place)
    }

    /// With `by_session`, all processes of a session and all their files are one stream from now on; otherwise each
    /// pair of a process and a file is one. A session is a program with all the processes that it starts; the
    /// experiments of the paper on DEAR have one stream per program.
    pub fn set_streams_by_session(&self, by_session: bool) {
        self.file_system.bytes.processes.set_by_session(by_session);
    }

    /// Calls `recorder` with every reference from now on; see [`BufferCache::record`].
    pub fn record(&self, recorder: Option<Box<dyn FnMut(BlockReference) + Send>>) {
        self.file_system.bytes.cache.record(recorder);
    }

    /// Calls `recorder` with every range of block ids that the cache drops from now on; see
    /// [`BufferCache::record_drops`].
    pub fn record_drops(&self, recorder: Option<Box<dyn FnMut(std::ops::Range<u64>) + Send>>) {
        self.file_system.bytes.cache.record_drops(recorder);
    }

    /// A watch channel that becomes true when any process has unmounted the tree.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Unmounts the tree, unless it is in use. With `lazily`, unmounts it even if it is in use; it then ends when its
    /// last user has closed its files.
    ///
    /// *Errors*: [`Error::InUse`].
    pub fn unmount(&self, lazily: bool) -> Result<(), Error> {
        unmount_tree(&self.options.directory, lazily)
    }

    /// Returns a process in another mount namespace, such as a container, in which the tree is mounted, too.
    pub fn held_elsewhere(&self) -> Option<OtherNamespace> {
        self.device.as_deref().and_then(OtherNamespace::with)
    }

    /// Waits until the tree has ended; later calls return `Ok` at once. It blocks the calling thread.
    ///
    /// *Errors*: those that the kernel reported on the FUSE connection.
    pub fn finish(&self) -> Result<(), Error> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            let ended = thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked")));
            ended.map_err(|error| Error::os("reading from /dev/fuse", error))?;
        }
        self.file_system.nodes.clear();
        Ok(())
    }
}

fn open_directory(path: &Path) -> Result<File, Error> {
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(path);
    opened.map_err(|source| Error::Os { what: path.display().to_string(), source })
}

/// Unmounts a tree, even if its process was killed.
///
/// *Errors*: [`Error::InUse`]; [`Error::Os`] if no tree is mounted there.
pub fn unmount_tree(directory: &Path, lazily: bool) -> Result<(), Error> {
    unmount_as(directory, SUBTYPE, "cached directory", lazily)
}

/// Unmounts the file system at `directory`, if it has this subtype.
pub(crate) fn unmount_as(directory: &Path, subtype: &str, what: &str, lazily: bool) -> Result<(), Error> {
    if !is_mounted_as(directory, subtype) {
        let source = std::io::Error::from_raw_os_error(libc::EINVAL);
        return Err(Error::Os { what: format!("{}: no {what} is mounted there", directory.display()), source });
    }
    unmount(directory, lazily).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Error::InUse {
            path: directory.to_owned(),
            users: "a program has a file of it open or stands in it (`fuser -vm` lists them)".to_owned(),
        },
        _ => Error::os("unmounting", error),
    })
}

/// Whether a tree, possibly of a dead process, is mounted on a directory.
pub fn is_tree(directory: &Path) -> bool {
    is_mounted_as(directory, SUBTYPE)
}
