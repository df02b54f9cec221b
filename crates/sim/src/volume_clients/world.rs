//! The disk of a workload, the processes that use it, and their connections.
//!
//! Owns: for each process, a path to the disk that ends with the process: of its operations in flight, some happen and
//! some do not. A connection runs through a relay that ends with its host. Promises: after a process is lost, no
//! operation of it reaches the disk. Leaves to others: the decision when something is lost.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nectary_block::{Recorder, SharedDevice, Snapshot};
use nectary_volume::client::{Address, Client, ClientOptions, Error, Kernel};
use nectary_volume::format::Identity;
use nectary_volume::journal::{FormatOptions, format};
use nectary_volume::metadata::first;
use nectary_volume::server::{Server, ServerError, ServerOptions};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::crash::Base;
use crate::disk::{Disk, DiskOptions};
use crate::late::{Delays, Late, Owned, UnderWay};
use crate::switch::{Off, Switch};

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
pub const VOLUME: Identity = Identity([9; 16]);

/// What is on the disk when a workload begins.
pub struct Start {
    /// Whether there is a volume.
    pub is_formatted: bool,
    snapshot: Snapshot,
    /// The same, for crash states.
    pub base: Base,
}

impl Start {
    fn new(is_formatted: bool, snapshot: Snapshot) -> Start {
        Start { is_formatted, base: Base::new(snapshot.clone()), snapshot }
    }

    /// A disk that was used for something else.
    pub fn used() -> &'static Start {
        static START: OnceLock<Start> = OnceLock::new();
        START.get_or_init(|| {
            let mut snapshot = Snapshot::zeroed(VOLUME_BYTES);
            for range in STALE {
                snapshot.write(range.start, &vec![STALE_BYTE; (range.end - range.start) as usize]);
            }
            Start::new(false, snapshot)
        })
    }

    /// The same disk with a new volume.
    ///
    /// *Errors*: why it could not be formatted.
    pub fn formatted() -> Result<&'static Start, String> {
        static START: OnceLock<Result<Start, String>> = OnceLock::new();
        let start = START.get_or_init(|| {
            let disk = Disk::from_snapshot(&Start::used().snapshot, options(0));
            let device: SharedDevice = disk.clone();
            in_virtual_time(make(&device))?;
            Ok(Start::new(true, disk.snapshot()))
        });
        start.as_ref().map_err(String::clone)
    }
}

impl Start {
    /// Returns a disk with this content.
    pub fn disk(&self, seed: u64) -> SharedDevice {
        Disk::from_snapshot(&self.snapshot, options(seed))
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

impl Kernel for NoKernel {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }
}

/// A process's path to the disk.
struct Way {
    device: SharedDevice,
    off: Off,
    under_way: UnderWay,
}

impl Way {
    /// Ends the process now; waits until no operation of it is in progress.
    async fn end(&self, seed: u64) {
        self.off.set(true);
        self.under_way.settle(Some(seed)).await;
    }
}

/// A folder for sockets, which is removed when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder.
    ///
    /// *Errors*: those of the system.
    pub fn new() -> std::io::Result<Folder> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nectary-crash-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Folder(path))
    }

    fn socket(&self) -> PathBuf {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        self.0.join(format!("{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Starts a server on a device; returns the path of its socket.
///
/// *Errors*: the server does not start.
pub async fn serve(folder: &Folder, device: SharedDevice) -> Result<(Server, PathBuf), ServerError> {
    let socket = folder.socket();
    let options = ServerOptions {
        listen: vec![Address::Unix(socket.clone())],
        tls: None,
        number: 0,
        host: "server".to_owned(),
        previous_gone: true,
        said_gone: Vec::new(),
    };
    Ok((Server::start(device, options).await?, socket))
}

/// Begins a session.
///
/// *Errors*: no session begins.
pub async fn connect(device: SharedDevice, socket: &Path, host: String) -> Result<Client, Error> {
    let server = Address::Unix(socket.to_owned());
    let options = ClientOptions {
        servers: vec![server],
        tls: None,
        volume: VOLUME,
        host,
        kind: 2,
        are_names_synced: true,
        are_names_local: false,
    };
    Client::connect(device, options, Arc::new(NoKernel)).await
}

/// A host with a session.
pub struct Host {
    /// The session.
    pub client: Client,
    /// The number of the session.
    pub session: u64,
    way: Way,
    relay: JoinHandle<()>,
}

impl Host {
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
pub struct World {
    /// The recorder, which stores marks.
    pub recorder: Recorder,
    folder: Folder,
    disk: SharedDevice,
    seeds: AtomicU64,
    server: Mutex<Option<(Server, Way)>>,
    /// The path of the present server's socket.
    at: Arc<Mutex<PathBuf>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// A disk as it is at the start.
    ///
    /// *Errors*: those of the system.
    pub fn new(seed: u64, start: &Start) -> std::io::Result<World> {
        Ok(World {
            recorder: Recorder::new(),
            folder: Folder::new()?,
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

    fn way(&self) -> Way {
        let (under_way, off) = (UnderWay::default(), Off::default());
        let late = Late::by(self.disk.clone(), Delays::short(self.seed()), &under_way);
        let recorded = self.recorder.wrap(Arc::new(late));
        let owned = Arc::new(Owned::new(recorded, &under_way));
        Way { device: Arc::new(Switch::new(owned, &off)), off, under_way }
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
    /// *Errors*: those of [`Server::stop`].
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
    pub async fn host(&self, number: usize) -> Result<Host, String> {
        let (way, socket) = (self.way(), self.folder.socket());
        let listener = UnixListener::bind(&socket).map_err(|error| error.to_string())?;
        let relay = tokio::spawn(relay(listener, self.at.clone()));
        let client = connect(way.device.clone(), &socket, format!("host{number}")).await;
        let client = client.map_err(|error| format!("host {number}: {error}"))?;
        let session = client.figures().session;
        Ok(Host { client, session, way, relay })
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

    #[test]
    fn a_message_takes_no_time_also_over_a_relay_and_while_timers_run() {
        in_virtual_time(async {
            let folder = Folder::new().unwrap();
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
