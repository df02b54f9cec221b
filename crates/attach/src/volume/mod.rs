//! A shared volume mounted on a directory: `nectary volume mount`.
//!
//! Owns: the mount, its threads, the thread on which requests wait for the server and the disk, and the order in which
//! these end. Promises: programs see data that other hosts wrote; when the last program is gone and the mount ends,
//! everything is committed. Leaves to others: the session and the data (`nectary-volume`), the protocol
//! (`nectary-fuse`).
//!
//! | file | what is in it |
//! |---|---|
//! | `allowed` | what a mount allows |
//! | `serve`, `calls` | the effect of each request |
//! | `lookups`, `caller_calls` | look-ups of names and file handles; the system calls that make them |
//! | `xattr_calls` | extended attributes and access control lists |
//! | `request_tasks` | the tasks that do it, and answer |
//! | `sessions` | the session, and the next one after it was ended |
//! | `lock_calls`, `lock_owners` | requests for programs' locks; the owners of these |
//! | `killed_callers` | programs that are killed while they wait |
//! | `contents` | the cached contents of files |
//! | `nodes` | the nodes that the kernel knows |
//! | `reasons` | what calls wait for, in words |
//! | `pages` | the kernel's cached pages of files that other hosts change |
//! | `shown` | names and attributes that the kernel shows without a request |

mod allowed;
mod caller_calls;
mod calls;
mod contents;
mod killed_callers;
mod lock_calls;
mod lock_owners;
mod lookups;
mod nodes;
mod pages;
mod reasons;
mod request_tasks;
mod serve;
mod sessions;
mod shown;
mod xattr_calls;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nectary_block::SharedDevice;
use nectary_buffer::{CacheOptions, CacheStats};
use nectary_fuse::{AbortGuard, FuseChannel, FuseConnection, FuseLimits, FuseMount, KernelNotifier, WorkerCrew};
use nectary_host::log::{self, LogLevel};
use nectary_volume::client::{ClientOptions, HostKernel, SessionFigures, WaitKind};
use nectary_volume::protocol::FileId;
use tokio::sync::{oneshot, watch};

use crate::error::Error;
use crate::long_calls::LongWaits;
use crate::mount_list::{OtherNamespace, device_of, is_mounted_as, topmost};
pub use allowed::VolumeMountOptions;
use contents::{CachedContents, CachesAbove};
use pages::PageQueues;
pub use reasons::WaitingWork;
use serve::{VolumeFileSystem, VolumeService};
use sessions::MountSessions;
use shown::KernelCache;

/// The file system type in lists of mounts, after `fuse.`.
const SUBTYPE: &str = "nectary-volume";

/// The most works of the mount itself that a status lists.
const WORKS_LISTED_MAX: usize = 16;

/// The options of a mount.
#[derive(Clone)]
pub struct VolumeOptions {
    /// The disk.
    pub device: SharedDevice,
    /// The directory to mount on.
    pub directory: PathBuf,
    /// The server, and the identity of this client.
    pub client: ClientOptions,
    /// The cache of the files' contents; `None` for none.
    pub cache: Option<CacheOptions>,
    /// What the mount allows.
    pub allowed: VolumeMountOptions,
    /// The name of the source that lists of mounts show; the SPEC of the disk if it is empty.
    pub source: String,
}

/// A mounted volume.
pub struct AttachedVolume {
    directory: PathBuf,
    source: String,
    file_system: Arc<VolumeFileSystem>,
    connection: Arc<FuseConnection>,
    /// Ends the session's thread, once.
    stop: Stop,
    ended: watch::Sender<bool>,
    threads: Mutex<VolumeThreads>,
    /// The number of the mounted file system's device, as lists of mounts show it.
    device: Option<String>,
}

/// Tells the session's thread that the mount has ended.
type Stop = Arc<Mutex<Option<oneshot::Sender<Arc<VolumeFileSystem>>>>>;

fn take_stop(stop: &Stop) -> Option<oneshot::Sender<Arc<VolumeFileSystem>>> {
    stop.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[derive(Default)]
struct VolumeThreads {
    crew: Option<JoinHandle<std::io::Result<()>>>,
    session: Option<JoinHandle<Result<(), Error>>>,
    pages: Option<(Arc<PageQueues>, [JoinHandle<()>; 2])>,
    shown: Option<(Arc<KernelCache>, Vec<JoinHandle<()>>)>,
    guard: Option<AbortGuard>,
}

/// The figures of a mounted volume.
#[derive(Debug, Clone)]
pub struct VolumeFigures {
    /// The number of nodes that the kernel knows.
    pub nodes: usize,
    /// The number of files that programs have open.
    pub handles: usize,
    /// The figures of the session.
    pub session: SessionFigures,
    /// The number of earlier sessions that were ended for the sake of other hosts.
    pub sessions_ended: u64,
    /// The counters of the cache of contents, if the mount has one.
    pub cache: Option<CacheStats>,
}

/// What the session's thread returns after its start.
type Begun = (tokio::runtime::Handle, Arc<MountSessions>, FileId);

impl AttachedVolume {
    /// Begins a session and mounts the volume.
    ///
    /// *Errors*: this machine lacks a feature; those of beginning a session.
    pub fn start(options: VolumeOptions) -> Result<AttachedVolume, Error> {
        let channel = FuseChannel::open(true)?;
        if !options.directory.is_dir() {
            let source = std::io::Error::from_raw_os_error(libc::ENOTDIR);
            return Err(Error::Os { what: options.directory.display().to_string(), source });
        }
        let (begun, is_begun) = std::sync::mpsc::channel::<Result<Begun, Error>>();
        let (stop, stopped) = oneshot::channel::<Arc<VolumeFileSystem>>();
        let source = options.device.spec();
        let listed = if options.source.is_empty() { source.clone() } else { options.source };
        // The file system is made before the session begins: a process that may not mount leaves no session behind.
        let mount = FuseMount::new(&channel, &options.allowed.of_kernel(listed, SUBTYPE))?;
        let guard = AbortGuard::start(&mount).map_err(|error| {
            let message = "if this process is killed, `umount -f` may be needed: no process aborts its requests then";
            log::write(LogLevel::Warning, "volume", format_args!("{message}: {error}"));
        });
        let notifier = || KernelNotifier::apart(&channel).map_err(|error| Error::os("starting a thread", error));
        let (pages, page_threads) =
            PageQueues::start(notifier()?, notifier()?).map_err(|error| Error::os("starting a thread", error))?;
        let (shown, shown_threads) =
            KernelCache::start(&channel).map_err(|error| Error::os("starting a thread", error))?;
        let contents = options.cache.map(CachedContents::new).transpose().map_err(Error::Device)?.map(Arc::new);
        let kernel = Arc::new(CachesAbove { pages: pages.clone(), contents: contents.clone(), shown: shown.clone() });
        let (device, client) = (options.device.clone(), options.client.clone());
        let session = std::thread::Builder::new()
            .name("nectary-volume".to_owned())
            .spawn(move || serve_session(device, client, kernel, &begun, stopped))
            .map_err(|error| Error::os("starting a thread", error))?;
        let (runtime, sessions, root) = match is_begun.recv() {
            Ok(begun) => begun?,
            Err(_) => return Err(Error::os("starting a session", std::io::ErrorKind::Other.into())),
        };
        let file_system =
            Arc::new(VolumeFileSystem::new(sessions, root, runtime, (contents, shown.clone()), options.allowed));
        let connection = FuseConnection::new(Arc::new(VolumeService(file_system.clone())), FuseLimits::default());
        let crew = WorkerCrew::start(connection.clone(), channel, "nectary-fuse")
            .map_err(|error| Error::os("starting a thread", error))
            .and_then(|crew| mount.attach(&options.directory).map(|()| crew).map_err(Error::from));
        let crew = match crew {
            Ok(crew) => crew,
            Err(error) => {
                // The server is told that the session ends.
                let _ = stop.send(file_system);
                drop(session.join());
                return Err(error);
            }
        };
        let device = device_of(&options.directory, SUBTYPE);
        let (end, stop) = (watch::Sender::new(false), Arc::new(Mutex::new(Some(stop))));
        let (of_crew, ended, stop_of_crew, shown_of_crew) =
            (file_system.clone(), end.clone(), stop.clone(), shown.clone());
        let crew = std::thread::Builder::new().name("nectary-end".to_owned()).spawn(move || {
            let served = crew.wait();
            // The kernel shows nothing any more.
            shown_of_crew.stop();
            if let Some(stop) = take_stop(&stop_of_crew) {
                let _ = stop.send(of_crew);
            }
            let _ = end.send_replace(true);
            served
        });
        let crew = crew.map_err(|error| Error::os("starting a thread", error))?;
        let threads = VolumeThreads {
            crew: Some(crew),
            session: Some(session),
            pages: Some((pages, page_threads)),
            shown: Some((shown, shown_threads)),
            guard: guard.ok(),
        };
        let threads = Mutex::new(threads);
        Ok(AttachedVolume {
            directory: options.directory,
            source,
            file_system,
            connection,
            stop,
            ended,
            threads,
            device,
        })
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the SPEC of the disk.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the figures.
    pub fn figures(&self) -> VolumeFigures {
        VolumeFigures {
            nodes: self.file_system.nodes.count(),
            handles: self.file_system.handles(),
            session: self.file_system.sessions.last().figures(),
            sessions_ended: self.file_system.sessions.ended(),
            cache: self.file_system.contents.as_ref().map(|contents| contents.stats()),
        }
    }

    /// Returns the calls that have been in progress for longer than `longer_than`, and the mount's own work that others
    /// have waited for as long. `server` is the address of the server, for people.
    pub fn long_waits(&self, longer_than: Duration, server: &str) -> (LongWaits, Vec<WaitingWork>) {
        let (nodes, why) = (&self.file_system.nodes, |wait| reasons::of_wait(wait, server, &self.source));
        let lock = Some(WaitKind::Lock as u8);
        let calls = LongWaits::of(&self.connection, longer_than, lock, |call| why(call.wait), |node| nodes.place(node));
        let works = self.file_system.sessions.last().long_works(longer_than, WORKS_LISTED_MAX);
        let works = works.into_iter().map(|work| WaitingWork {
            inode: Some(work.inode).filter(|inode| *inode != 0),
            age: work.age,
            why: why(work.wait),
        });
        (calls, works.collect())
    }

    /// Returns a watch channel that becomes true when the volume is unmounted, by any process.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Unmounts the volume, unless it is in use. With `lazily`, unmounts it even if it is in use; it ends with its last
    /// user.
    ///
    /// *Errors*: [`Error::InUse`]; [`Error::InUseUnserved`] if there is no connection to the server either.
    pub fn unmount(&self, lazily: bool) -> Result<(), Error> {
        unmount_volume(&self.directory, lazily).map_err(|error| match (error, self.trouble()) {
            (Error::InUse { path, .. }, Some(problem)) => Error::InUseUnserved { path, problem },
            (error, _) => error,
        })
    }

    /// Returns why there is no working connection to the server, if there is none.
    fn trouble(&self) -> Option<String> {
        let SessionFigures { ended, trouble, .. } = self.file_system.sessions.last().figures();
        ended.or(trouble.map(|trouble| trouble.what))
    }

    /// Returns a process in another mount namespace, such as a container, in which the volume is mounted, too.
    pub fn held_elsewhere(&self) -> Option<OtherNamespace> {
        self.device.as_deref().and_then(OtherNamespace::with)
    }

    /// Ends the session of a mount that was unmounted lazily, although programs still use it: everything is committed,
    /// and their calls fail from now on. The mount itself ends with this process.
    pub fn abandon(&self) {
        // The threads that serve the kernel end with the process.
        drop(self.threads.lock().unwrap_or_else(PoisonError::into_inner).crew.take());
        if let Some(stop) = take_stop(&self.stop) {
            let _ = stop.send(self.file_system.clone());
        }
        let _ = self.ended.send_replace(true);
    }

    /// Waits until the mount and its session have ended; works only once. It blocks the calling thread.
    ///
    /// *Errors*: [`Error::Os`] if reading from the FUSE connection fails or a thread panics; [`Error::AttachedVolume`] if the
    /// session cannot commit or return something, or cannot tell the server that it ends.
    pub fn finish(&self) -> Result<(), Error> {
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let panicked = || std::io::Error::other("a thread panicked");
        let served = threads.crew.map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
        let session = threads
            .session
            .map(|thread| thread.join().unwrap_or_else(|_| Err(Error::os("ending the session", panicked()))));
        if let Some((pages, threads)) = threads.pages {
            pages.stop();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        if let Some((shown, threads)) = threads.shown {
            shown.stop();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
        drop(threads.guard);
        served.transpose().map_err(|error| Error::os("reading from /dev/fuse", error))?;
        session.transpose().map(drop)
    }
}

/// Runs the session's thread: begins the session, and ends it when the mount has ended.
fn serve_session(
    device: SharedDevice,
    options: ClientOptions,
    kernel: Arc<dyn HostKernel>,
    begun: &std::sync::mpsc::Sender<Result<Begun, Error>>,
    stopped: oneshot::Receiver<Arc<VolumeFileSystem>>,
) -> Result<(), Error> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let _ = begun.send(Err(Error::os("starting a runtime", error)));
            return Ok(());
        }
    };
    runtime.block_on(async {
        let began = async {
            let sessions = MountSessions::begin(device, options, kernel).await?;
            let root = sessions.last().attributes(FileId { inode: nodes::ROOT, generation: 0 }).await?.id();
            Ok((tokio::runtime::Handle::current(), sessions, root))
        };
        let _ = begun.send(began.await.map_err(Error::Volume));
        // An error means that the mount could not be made.
        match stopped.await {
            Ok(file_system) => file_system.finish().await.map_err(Error::Volume),
            Err(_) => Ok(()),
        }
    })
}

/// Unmounts a volume, even if its process was killed.
///
/// *Errors*: [`Error::InUse`]; [`Error::Os`] if no volume is mounted there.
pub fn unmount_volume(directory: &Path, lazily: bool) -> Result<(), Error> {
    crate::tree::unmount_as(directory, SUBTYPE, "volume", lazily)
}

/// Changes what the mount of a volume allows. Its times of access stay as they are.
///
/// *Errors*: [`Error::Os`] if no volume is mounted there, or if it was mounted read-only and is to allow changes.
pub fn remount_volume(directory: &Path, allowed: VolumeMountOptions) -> Result<(), Error> {
    let failed = |what: &str, number| {
        let source = std::io::Error::from_raw_os_error(number);
        Err(Error::Os { what: format!("{}: {what}", directory.display()), source })
    };
    let Some(mounted) = topmost(directory, SUBTYPE) else {
        return failed("no volume is mounted there", libc::EINVAL);
    };
    if mounted.is_read_only && !allowed.read_only {
        return failed("it was mounted read-only: unmount it and mount it again", libc::EROFS);
    }
    nectary_fuse::remount(directory, &allowed.of_kernel(String::new(), SUBTYPE))
        .map_err(|error| Error::os("changing a mount", error))
}

/// Whether a volume is mounted on a directory; its process may be dead.
pub fn is_volume(directory: &Path) -> bool {
    is_mounted_as(directory, SUBTYPE)
}
