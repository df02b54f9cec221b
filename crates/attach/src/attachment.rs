//! One attached device: from its SPEC to `/dev/loopN`, and back.
//!
//! Owns: the thread that serves the device, and the order of steps. To attach: prepare the process, open the device,
//! mount the FUSE file system, serve it, make a loop device on its file. To detach: write back the kernel's cached data
//! and release the loop device. Its release closes the file, which ends the mount, which ends the serving; then the
//! device is flushed and closed, and those below who keep a record of its user are told. So no layer is removed while
//! it has users. Promises: a failed attachment leaves nothing behind.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nectary_block::{BlockDevice, DeviceGeometry, DeviceRegistry, FileEngine, IoContext, OpenOptions, SharedDevice};
use nectary_fuse::{FuseChannel, FuseConnection, FuseMount, LongCall};
use tokio::sync::watch;

use crate::counters::{AttachmentCounters, AttachmentFigures};
use crate::error::Error;
use crate::fuse::{KernelDeviceServer, mount, open};
use crate::long_calls::{LongWaits, WaitReason};
use crate::loop_device::LoopDevice;
use crate::process;
use crate::stale::own_name;

/// The number of threads that make blocking calls for the device; they never end.
const THREADS: usize = 16;

/// The size of each thread's stack, which is locked into memory. *Units*: bytes.
const STACK_BYTES: usize = 256 << 10;

/// How long to wait until all these threads have started.
const THREADS_WAIT_MAX: Duration = Duration::from_secs(2);

/// How long an idle thread is kept.
const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);

/// How a device is attached.
#[derive(Debug, Clone, Default)]
pub struct AttachOptions {
    /// Whether the block device refuses writes.
    pub read_only: bool,
    /// How the device is opened.
    pub open: OpenOptions,
}

/// A device that is attached as a block device of the kernel.
///
/// # Examples
/// ```no_run
/// use nectary_attach::{Attachment, AttachOptions};
/// use nectary_block::DeviceRegistry;
///
/// let attachment = Attachment::start(DeviceRegistry::with_builtins(), "memory:1G", AttachOptions::default())?;
/// println!("{}", attachment.path().display());
/// attachment.release()?;
/// attachment.finish()?;
/// # Ok::<(), nectary_attach::Error>(())
/// ```
pub struct Attachment {
    loop_device: LoopDevice,
    connection: Arc<FuseConnection>,
    geometry: DeviceGeometry,
    spec: String,
    /// A weak reference, so that the device is closed when its serving ends.
    device: Weak<dyn BlockDevice>,
    counters: Arc<AttachmentCounters>,
    thread: Mutex<Option<JoinHandle<Result<(), Error>>>>,
    ended: watch::Receiver<bool>,
    refused: Vec<String>,
}

/// The message that the serving thread sends when it is ready.
type Ready = Result<(FuseMount, SharedDevice, Arc<FuseConnection>), Error>;

impl Attachment {
    /// Opens the device that `spec` names and attaches it. It blocks the calling thread.
    ///
    /// The calling thread, and all threads that it starts later, are prepared for serving a disk. The memory of the
    /// whole process is locked, and its heap no longer shrinks.
    ///
    /// *Errors*: [`Error::NoFuse`] and [`Error::NoLoop`] if this machine lacks a feature; [`Error::NotPermitted`]
    /// without root; [`Error::Device`] with the error of the device.
    pub fn start(registry: DeviceRegistry, spec: &str, options: AttachOptions) -> Result<Attachment, Error> {
        // Missing features are reported before a file is created or a disk is opened.
        let channel = FuseChannel::open(false)?;
        LoopDevice::check()?;
        process::keep_heap();
        let process::ProcessPreparation { is_flusher, refused } = process::prepare();
        let mut options = options;
        if !is_flusher && options.open.engine == FileEngine::Auto {
            // io_uring allocates kernel memory for each request and charges it to this process's memory group.
            options.open.engine = FileEngine::Posix;
        }
        let counters = Arc::new(AttachmentCounters::default());
        let (spec, read_only) = (spec.to_owned(), options.read_only);
        let (ready, is_ready) = std::sync::mpsc::channel::<Ready>();
        let (end, ended) = watch::channel(false);
        let thread = {
            let counters = counters.clone();
            std::thread::Builder::new().name("nectary-attach".to_owned()).spawn(move || {
                let served = serve(channel, &registry, &spec, &options, counters, &ready);
                let _ = end.send(true);
                served
            })
        };
        let thread = thread.map_err(|error| Error::os("starting a thread", error))?;
        let attached = match is_ready.recv() {
            Ok(Ok((mount, device, connection))) => {
                attach(&mount, &device, read_only).map(|loop_device| (loop_device, device, connection))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::os("serving", io::Error::other("the serving thread ended before it was ready"))),
        };
        match attached {
            Ok((loop_device, device, connection)) => Ok(Attachment {
                loop_device,
                connection,
                geometry: device.geometry(),
                spec: device.spec(),
                device: Arc::downgrade(&device),
                counters,
                thread: Mutex::new(Some(thread)),
                ended,
                refused,
            }),
            Err(error) => {
                // The mount ends when its only open file is closed, and then the serving ends by itself.
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// The path of the block device.
    pub fn path(&self) -> &Path {
        self.loop_device.path()
    }

    /// The size, units and promises of the device below.
    pub fn geometry(&self) -> DeviceGeometry {
        self.geometry
    }

    /// The SPEC that the device below reported when it was attached.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// The counters of requests and bytes so far.
    pub fn figures(&self) -> AttachmentFigures {
        self.counters.read()
    }

    /// Returns the requests that have been in progress for longer than `longer_than`.
    pub fn long_waits(&self, longer_than: Duration) -> LongWaits {
        let why = |_: &LongCall| WaitReason {
            what: format!("waits for the device {}", self.spec),
            remedy: "check what the device is made of: its disks and servers".to_owned(),
            is_lock: false,
        };
        LongWaits::of(&self.connection, longer_than, None, why, |node| (node, None))
    }

    /// The figures of the device below and of the devices that it is made of; empty once the device is closed.
    pub fn device_figures(&self) -> Vec<nectary_block::DeviceCounters> {
        self.device.upgrade().map(|device| device.figures()).unwrap_or_default()
    }

    /// The current SPEC of the device below. It differs from [`spec`](Self::spec) if options have changed since.
    pub fn device_spec(&self) -> String {
        self.device.upgrade().map_or_else(|| self.spec.clone(), |device| device.spec())
    }

    /// Changes an option of the device below while it is open; see [`BlockDevice::set_option`].
    ///
    /// *Errors*: those of the device; [`DeviceErrorKind::Absent`](nectary_block::DeviceErrorKind::Absent) once it is closed.
    pub async fn set_option(&self, name: &str, value: &str) -> Result<(), nectary_block::Error> {
        let Some(device) = self.device.upgrade() else {
            let (kind, operation) = (nectary_block::DeviceErrorKind::Absent, nectary_block::DeviceOperation::Open);
            return Err(nectary_block::Error::new(kind, &self.spec, operation, "it is closed already"));
        };
        device.set_option(name, value).await
    }

    /// Descriptions of the settings that the kernel refused to this process. Without these settings the device may hang
    /// when memory is short.
    pub fn refused(&self) -> &[String] {
        &self.refused
    }

    /// A watch channel that becomes true when serving has ended, for any reason.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.clone()
    }

    /// Whether the block device still exists. The kernel may reuse its number, so the loop device's name is compared.
    pub fn is_attached(&self) -> bool {
        self.loop_device.is_attached()
    }

    /// Releases the block device, unless it is in use; afterwards call [`finish`](Self::finish).
    ///
    /// *Errors*: [`Error::InUse`], [`Error::WriteBack`]; the device then stays attached. *Durability*: after `Ok`, all
    /// data written to the block device are on the device below.
    pub fn release(&self) -> Result<(), Error> {
        self.loop_device.release()
    }

    /// As [`release`](Self::release), but data that the device below fails to write are lost, and this is no error.
    pub fn release_or_lose(&self) -> Result<(), Error> {
        self.loop_device.release_or_lose()
    }

    /// Releases the block device as soon as its last user, for example a mount, has closed it.
    pub fn release_when_unused(&self) -> Result<(), Error> {
        self.loop_device.release_when_unused()
    }

    /// Waits until the serving has ended, and returns its result; later calls return `Ok`. It blocks the calling
    /// thread.
    ///
    /// *Errors*: [`Error::Ended`] if the kernel ended the FUSE connection while the block device existed, which is then
    /// released; [`Error::Device`] if the last flush failed, or the device could not be closed. *Durability*: after
    /// `Ok`, everything written is as durable as after a flush of the device.
    pub fn finish(&self) -> Result<(), Error> {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return Ok(()) };
        let ended = |problem: &str| Error::Ended { path: self.path().to_owned(), problem: problem.to_owned() };
        let served = thread.join().unwrap_or_else(|_| Err(ended("the serving thread panicked")));
        if self.is_attached() {
            let _ = self.release_when_unused();
            return served.and(Err(ended("nothing answers what is still asked of it")));
        }
        served
    }
}

/// Makes the loop device on the mount's file. After that, only the loop device keeps the file and the mount open.
fn attach(mount: &FuseMount, device: &SharedDevice, read_only: bool) -> Result<LoopDevice, Error> {
    let name = own_name();
    let path = name.replace(' ', "-");
    let file = open(mount, &path, read_only).map_err(|error| Error::os("opening the FUSE file", error))?;
    LoopDevice::new(&file, device.geometry().block_bytes, read_only, &name)
}

/// Starts all threads that the runtime may have, so that none must be started when memory is short.
async fn start_threads() {
    let started = Arc::new((Mutex::new(0), Condvar::new()));
    let mut threads = tokio::task::JoinSet::new();
    for _ in 0..THREADS {
        let started = started.clone();
        // Each task waits for the others, so each gets its own thread. There are fewer threads if the system refuses
        // more.
        threads.spawn_blocking(move || {
            let (count, changed) = &*started;
            let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
            *count += 1;
            changed.notify_all();
            let _ = changed.wait_timeout_while(count, THREADS_WAIT_MAX, |count| *count < THREADS);
        });
    }
    while threads.join_next().await.is_some() {}
}

/// Opens the device and serves it until the kernel ends the connection, then flushes and closes it.
fn serve(
    channel: FuseChannel,
    registry: &DeviceRegistry,
    spec: &str,
    options: &AttachOptions,
    counters: Arc<AttachmentCounters>,
    ready: &std::sync::mpsc::Sender<Ready>,
) -> Result<(), Error> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(THREADS).thread_stack_size(STACK_BYTES).thread_keep_alive(FOR_EVER);
    let runtime = runtime.build().map_err(|error| Error::os("starting a runtime", error))?;
    runtime.block_on(async {
        start_threads().await;
        let device = match registry.open(spec, &options.open).await {
            Ok(device) => device,
            Err(error) => {
                let _ = ready.send(Err(error.into()));
                return Ok(());
            }
        };
        let started = mount(&channel).and_then(|mount| {
            let server = KernelDeviceServer::new(channel, device.clone(), options.read_only, counters);
            let server = server.map_err(|error| Error::os("watching /dev/fuse", error))?;
            Ok((mount, server))
        });
        let served = match started {
            Ok((mount, server)) => {
                process::reserve_heap();
                let _ = ready.send(Ok((mount, device.clone(), server.connection())));
                server.run().await.map_err(|error| Error::os("reading from /dev/fuse", error))
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                Ok(())
            }
        };
        let ended = end(&device, options.read_only).await;
        served?;
        Ok(ended?)
    })
}

/// Flushes and closes a device. Without the flush it is not closed: the next user has to find what a crash leaves.
async fn end(device: &SharedDevice, read_only: bool) -> Result<(), nectary_block::Error> {
    if !read_only {
        device.flush(IoContext::default()).await?;
    }
    device.close().await
}
