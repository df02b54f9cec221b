//! The disk of a workload, the processes that use it, and their connections.
//!
//! Owns: for each process, a path to the disk that ends with the process: of its operations in flight, some happen and
//! some do not. A connection runs through a relay that ends with its host. Promises: after a process is lost, no
//! operation of it reaches the disk. Leaves to others: the decision when something is lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nectary_block::{DeviceSnapshot, Recorder, SharedDevice};
use nectary_volume::client::{ClientOptions, Error, HostKernel, ServerAddress, VolumeClient};
use nectary_volume::format::VolumeIdentity;
use nectary_volume::journal::{FormatOptions, format};
use nectary_volume::metadata::first;
use nectary_volume::server::{MetadataServer, ServerError, ServerOptions};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::crash::RecordingBase;
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay};
use crate::switch::{SwitchFilter, SwitchHandle};

/// The size of the volume: the smallest one would be full of what lost sessions had in hand. *Units*: bytes.
const VOLUME_BYTES: u64 = 384 << 20;
/// Where the disk has other bytes before it is formatted: what nobody wrote since must not be shown.
const STALE: [std::ops::Range<u64>; 2] = [1 << 20..24 << 20, 120 << 20..176 << 20];
/// One of them.
const STALE_BYTE: u8 = 0xEE;
/// The time after which a lost server is known to be gone.
const PAUSE: Duration = Duration::from_millis(20);

/// How often the runtime looks for messages before the clock moves: a message passes a few processes and a relay.
const LOOKS: u32 = 16;

/// The identity of the volume.
pub const VOLUME: VolumeIdentity = VolumeIdentity([9; 16]);

/// What is on the disk when a workload begins.
pub struct WorkloadStart {
    /// Whether there is a volume.
    pub is_formatted: bool,
    snapshot: DeviceSnapshot,
    /// The same, for crash states.
    pub base: RecordingBase,
}

impl WorkloadStart {
    fn new(is_formatted: bool, snapshot: DeviceSnapshot) -> WorkloadStart {
        WorkloadStart { is_formatted, base: RecordingBase::new(snapshot.clone()), snapshot }
    }

    /// A disk that was used for something else.
    pub fn used() -> &'static WorkloadStart {
        static START: OnceLock<WorkloadStart> = OnceLock::new();
        START.get_or_init(|| {
            let mut snapshot = DeviceSnapshot::zeroed(VOLUME_BYTES);
            for range in STALE {
                snapshot.write(range.start, &vec![STALE_BYTE; (range.end - range.start) as usize]);
            }
            WorkloadStart::new(false, snapshot)
        })
    }

    /// The same disk with a new volume.
    ///
    /// *Errors*: why it could not be formatted.
    pub fn formatted() -> Result<&'static WorkloadStart, String> {
        static START: OnceLock<Result<WorkloadStart, String>> = OnceLock::new();
        let start = START.get_or_init(|| {
            let disk = SimulatedDisk::from_snapshot(&WorkloadStart::used().snapshot, options(0));
            let device: SharedDevice = disk.clone();
            in_virtual_time(make(&device))?;
            Ok(WorkloadStart::new(true, disk.snapshot()))
        });
        start.as_ref().map_err(String::clone)
    }
}

impl WorkloadStart {
    /// Returns a disk with this content.
    pub fn disk(&self, seed: u64) -> SharedDevice {
        SimulatedDisk::from_snapshot(&self.snapshot, options(seed))
    }
}

fn options(seed: u64) -> DiskOptions {
    DiskOptions { seed, late_percent: 0, ..DiskOptions::default() }
}

/// Formats a disk.
///
/// *Errors*: why not, in words.
pub async fn make(device: &SharedDevice) -> Result<(), String> {
    let made = format(device, &format_options(), |layout| first(layout, 1)).await;
    made.map(drop).map_err(|error| format!("format: {error}"))
}

/// How the volume is made.
fn format_options() -> FormatOptions {
    FormatOptions {
        name: "simulated".to_owned(),
        segment_blocks: 2048,
        lease_ms: 1000,
        drift_per_mille: 10,
        force: true,
        volume: VOLUME,
        hash_key: [6; 16],
        created_s: 1,
    }
}

/// Runs work in virtual time, with connections of this machine. A message takes no time.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let looks = AtomicU32::new(0);
    // When no task is ready, the runtime sets the clock to the next timer, also where messages are on their way: it
    // does not wait for what is not a timer. With a task that is ready it only takes what has arrived.
    let park = move || match looks.fetch_add(1, Ordering::Relaxed) {
        LOOKS => looks.store(0, Ordering::Relaxed),
        _ => drop(tokio::spawn(async {})),
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).on_thread_park(park).build();
    runtime.expect("a runtime can be made").block_on(future)
}

/// A kernel without a page cache.
struct NoKernel;

impl HostKernel for NoKernel {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }
}

/// A process's path to the disk.
struct ProcessDiskPath {
    device: SharedDevice,
    off: SwitchHandle,
    under_way: UnderWay,
}

impl ProcessDiskPath {
    /// Ends the process now; waits until no operation of it is in progress.
    async fn end(&self, seed: u64) {
        self.off.set(true);
        self.under_way.settle(Some(seed)).await;
    }
}

/// A folder for sockets, which is removed when this is dropped.
pub struct SocketFolder(PathBuf);

impl SocketFolder {
    /// Makes a folder.
    ///
    /// *Errors*: those of the system.
    pub fn new() -> std::io::Result<SocketFolder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nectary-crash-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(SocketFolder(path))
    }

    fn socket(&self) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.0.join(format!("{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for SocketFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a server on a device; returns the path of its socket.
///
/// *Errors*: the server does not start.
pub async fn serve(folder: &SocketFolder, device: SharedDevice) -> Result<(MetadataServer, PathBuf), ServerError> {
    let socket = folder.socket();
    let options = ServerOptions {
        listen: vec![ServerAddress::Unix(socket.clone())],
        tls: None,
        number: 0,
        host: "server".to_owned(),
        previous_gone: true,
        said_gone: Vec::new(),
    };
    Ok((MetadataServer::start(device, options).await?, socket))
}

/// Begins a session.
///
/// *Errors*: no session begins.
pub async fn connect(device: SharedDevice, socket: &Path, host: String) -> Result<VolumeClient, Error> {
    let server = ServerAddress::Unix(socket.to_owned());
    let options = ClientOptions {
        servers: vec![server],
        tls: None,
        volume: VOLUME,
        host,
        kind: 2,
        are_names_synced: true,
        are_names_local: false,
    };
    VolumeClient::connect(device, options, Arc::new(NoKernel)).await
}

/// A host with a session.
pub struct SessionHost {
    /// The session.
    pub client: VolumeClient,
    /// The number of the session.
    pub session: u64,
    way: ProcessDiskPath,
    relay: JoinHandle<()>,
}

impl SessionHost {
    /// Cuts off the host. Its later actions reach neither the server nor the disk.
    pub fn cut(&self) {
        self.way.off.set(true);
        self.relay.abort();
        self.client.stop();
    }

    /// Waits until no operation of a host that was cut off is in progress.
    pub async fn settle(&self, seed: u64) {
        self.way.end(seed).await;
    }
}

/// The disk and the server.
pub struct VolumeClientsWorld {
    /// The recorder, which stores marks.
    pub recorder: Recorder,
    folder: SocketFolder,
    disk: SharedDevice,
    seeds: AtomicU64,
    server: Mutex<Option<(MetadataServer, ProcessDiskPath)>>,
    /// The path of the present server's socket.
    at: Arc<Mutex<PathBuf>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VolumeClientsWorld {
    /// A disk as it is at the start.
    ///
    /// *Errors*: those of the system.
    pub fn new(seed: u64, start: &WorkloadStart) -> std::io::Result<VolumeClientsWorld> {
        Ok(VolumeClientsWorld {
            recorder: Recorder::new(),
            folder: SocketFolder::new()?,
            disk: start.disk(seed),
            seeds: AtomicU64::new(seed << 16),
            server: Mutex::new(None),
            at: Arc::default(),
        })
    }

    /// Returns a number that no earlier call returned.
    pub fn seed(&self) -> u64 {
        self.seeds.fetch_add(1, Ordering::Relaxed)
    }

    fn way(&self) -> ProcessDiskPath {
        let (under_way, off) = (UnderWay::default(), SwitchHandle::default());
        let late = LateFilter::by(self.disk.clone(), OperationDelays::short(self.seed()), &under_way);
        let recorded = self.recorder.wrap(Arc::new(late));
        let owned = Arc::new(DetachedFilter::new(recorded, &under_way));
        ProcessDiskPath { device: Arc::new(SwitchFilter::new(owned, &off)), off, under_way }
    }

    /// Returns a device for a process that is never lost.
    pub fn device(&self) -> SharedDevice {
        self.way().device
    }

    /// Starts a server.
    ///
    /// *Errors*: the server does not start.
    pub async fn serve(&self) -> Result<(), ServerError> {
        let way = self.way();
        let (server, socket) = serve(&self.folder, way.device.clone()).await?;
        *lock(&self.at) = socket;
        *lock(&self.server) = Some((server, way));
        Ok(())
    }

    /// Lets the server be lost, as in a crash.
    pub async fn lose_server(&self) {
        let lost = lock(&self.server).take();
        if let Some((server, way)) = lost {
            way.off.set(true);
            drop(server);
            way.end(self.seed()).await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Stops the server in an orderly way.
    ///
    /// *Errors*: those of [`MetadataServer::stop`].
    pub async fn stop_server(&self) -> Result<(), ServerError> {
        let server = lock(&self.server).take();
        match server {
            Some((server, _)) => server.stop().await,
            None => Ok(()),
        }
    }

    /// Starts a host with a session.
    ///
    /// *Errors*: no session begins.
    pub async fn host(&self, number: usize) -> Result<SessionHost, String> {
        let (way, socket) = (self.way(), self.folder.socket());
        let listener = UnixListener::bind(&socket).map_err(|error| error.to_string())?;
        let relay = tokio::spawn(relay(listener, self.at.clone()));
        let client = connect(way.device.clone(), &socket, format!("host{number}")).await;
        let client = client.map_err(|error| format!("host {number}: {error}"))?;
        let session = client.figures().session;
        Ok(SessionHost { client, session, way, relay })
    }
}

/// Passes connections to the present server until it is dropped.
async fn relay(listener: UnixListener, at: Arc<Mutex<PathBuf>>) {
    let mut passing = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = passing.join_next() => {}
            accepted = listener.accept() => {
                let Ok((mut near, _)) = accepted else { return };
                let path = lock(&at).clone();
                passing.spawn(async move {
                    if let Ok(mut far) = UnixStream::connect(path).await {
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::{Instant, interval};

    /// A message takes no time over a relay either, also while timers run.
    #[test]
    fn message_takes_no_virtual_time() {
        in_virtual_time(async {
            let folder = SocketFolder::new().unwrap();
            let (near, far) = (folder.socket(), folder.socket());
            let listener = UnixListener::bind(&far).unwrap();
            let echo = async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            };
            let ticks = async {
                let mut ticks = interval(Duration::from_millis(1));
                for _ in 0..u64::MAX {
                    ticks.tick().await;
                }
            };
            let mut tasks = JoinSet::new();
            tasks.spawn(echo);
            tasks.spawn(relay(UnixListener::bind(&near).unwrap(), Arc::new(Mutex::new(far))));
            tasks.spawn(ticks);
            let began = Instant::now();
            let mut stream = UnixStream::connect(&near).await.unwrap();
            for round in 0..10 {
                stream.write_all(&[round]).await.unwrap();
                assert_eq!(stream.read_u8().await.unwrap(), round);
            }
            assert_eq!(began.elapsed(), Duration::ZERO);
            tokio::time::sleep(Duration::from_secs(7)).await;
            assert_eq!(began.elapsed(), Duration::from_secs(7));
        });
    }
}
