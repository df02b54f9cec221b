//! A leader whose disk does not answer, a second server that takes over, and clients that are connected to both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{NoKernel, ROOT, TestVolume, VOLUME};
use nectary_block::{Buffer, DeviceRequest, Filter, IoFuture, SharedDevice};
use nectary_volume::client::{ClientOptions, FileLock, NewInode, OpenAccess, VolumeClient, WritePosition};
use nectary_volume::protocol::FileId;
use nectary_volume::server::{MetadataServer, ServerError, ServerOptions};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The longest wait in a test.
const LIMIT: Duration = Duration::from_secs(60);
/// The lease of a leader in these tests, with some time to spare.
const LEASE: Duration = Duration::from_millis(1200);

/// A path to the disk that can hang: requests wait until it goes on.
struct HangingFilter {
    inner: SharedDevice,
    hangs: watch::Sender<bool>,
}

impl Filter for HangingFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("hanging({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        _: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (inner, mut hangs) = (self.inner.clone(), self.hangs.subscribe());
        Box::pin(async move {
            let _ = hangs.wait_for(|hangs| !hangs).await;
            operation(&inner).await
        })
    }
}

/// A volume with two servers, each on a host of its own, and a path of the first one to the disk that can hang.
struct ServerPair {
    volume: TestVolume,
    path: Arc<HangingFilter>,
}

/// Which servers a client knows: the first one listens on socket 0, the second one on socket 1.
const FIRST: &[u32] = &[0];
const SECOND: &[u32] = &[1];
const BOTH: &[u32] = &[0, 1];

impl ServerPair {
    async fn new(name: &str) -> ServerPair {
        let volume = TestVolume::new(name).await;
        let path = Arc::new(HangingFilter { inner: volume.device.clone(), hangs: watch::Sender::new(false) });
        ServerPair { volume, path }
    }

    fn hang(&self, hangs: bool) {
        self.path.hangs.send_replace(hangs);
    }

    async fn serve(&self, number: u32) -> Result<MetadataServer, ServerError> {
        let device: SharedDevice = if number == 0 { self.path.clone() } else { self.volume.device.clone() };
        let options = ServerOptions {
            listen: vec![self.volume.socket(number)],
            tls: None,
            number,
            host: format!("h{number}"),
            previous_gone: false,
            said_gone: Vec::new(),
        };
        MetadataServer::start(device, options).await
    }

    /// Starts the second server until it leads.
    async fn take_over(&self) -> MetadataServer {
        let began = Instant::now();
        loop {
            match self.serve(1).await {
                Ok(server) => return server,
                Err(error) => assert!(began.elapsed() < LIMIT, "{error}"),
            }
        }
    }

    async fn connect(&self, servers: &[u32]) -> VolumeClient {
        let servers = servers.iter().map(|server| self.volume.socket(*server)).collect();
        let options = ClientOptions {
            servers,
            tls: None,
            volume: VOLUME,
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: false,
        };
        VolumeClient::connect(self.volume.device.clone(), options, Arc::new(NoKernel)).await.expect("it connects")
    }
}

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

/// Makes a file with this content; returns its identity.
async fn made(client: &VolumeClient, name: &[u8], bytes: &[u8]) -> FileId {
    let (made, open) = client.create_open(ROOT, name, file()).await.expect("it is made");
    open.write(WritePosition::Offset(0), vec![Buffer::copy_of(bytes)]).await.expect("it is written");
    open.sync().await.expect("it is synced");
    open.close().await;
    made.id()
}

async fn read(client: &VolumeClient, id: FileId) -> Vec<u8> {
    let open = client.open(id, OpenAccess::Read, false).await.expect("it opens");
    let bytes = open.read(0, 100).await.expect("it is read").to_vec();
    open.close().await;
    bytes
}

fn exclusive() -> FileLock {
    FileLock { owner: 1, process: 1, is_flock: true, is_exclusive: true, start: 0, last: u64::MAX }
}

type NoWait = std::future::Pending<()>;

#[tokio::test]
async fn hanging_leader_shows_nothing_old() {
    let pair = ServerPair::new("hung").await;
    let first = pair.serve(0).await.expect("it leads");
    let (stays, follows) = (pair.connect(FIRST).await, pair.connect(BOTH).await);
    let (shown, locked) = (made(&stays, b"shown", b"old").await, made(&stays, b"locked", b"").await);
    assert_eq!(read(&follows, shown).await, b"old");
    let epoch = follows.figures().epoch;
    pair.hang(true);
    let second = pair.take_over().await;
    // The client of the first server alone gets no answer, neither to what needs the journal nor to what does not. The
    // other one finds the second server.
    let there = stays.open(shown, OpenAccess::Read, false);
    let (waiting, of_names, of_locks) = (timeout(LEASE * 3, there), stays.look_up(ROOT, b"shown"), async {
        let open = stays.open(locked, OpenAccess::Read, false).await?;
        open.lock(exclusive(), None::<NoWait>).await
    });
    let (of_names, of_locks) = (timeout(LEASE * 3, of_names), timeout(LEASE * 3, of_locks));
    let here = async {
        let open = follows.open(shown, OpenAccess::Both, false).await.expect("it opens");
        open.write(WritePosition::Offset(0), vec![Buffer::copy_of(b"new")]).await.expect("it is written");
        open.sync().await.expect("it is synced");
        let open = follows.open(locked, OpenAccess::Read, false).await.expect("it opens");
        open.lock(exclusive(), Some(std::future::pending())).await.expect("it is locked");
        open
    };
    let here = timeout(LIMIT, here);
    let (waiting, of_names, of_locks, here) = tokio::join!(waiting, of_names, of_locks, here);
    let here = here.expect("the second server answers");
    assert!(waiting.is_err() && of_names.is_err() && of_locks.is_err(), "the first server answered");
    assert!(follows.figures().epoch > epoch);
    // It ends by itself, although its requests to the disk do not.
    let why = timeout(LIMIT, first.ended()).await.expect("it ends");
    assert!(why.contains("has not answered for"), "{why}");
    let other = pair.connect(SECOND).await;
    assert_eq!(read(&other, shown).await, b"new");
    let open = other.open(locked, OpenAccess::Read, false).await.expect("it opens");
    assert!(open.lock(exclusive(), None::<NoWait>).await.is_err(), "the other client has it");
    here.unlock(exclusive()).await.expect("it is unlocked");
    pair.hang(false);
    stays.stop();
    other.close().await.expect("it ends");
    follows.close().await.expect("it ends");
    second.stop().await.expect("it stops");
    assert_eq!(pair.volume.problems().await, Vec::<String>::new());
}

/// No other server has taken over in the meantime.
#[tokio::test]
async fn leader_continues_after_hang() {
    let pair = ServerPair::new("short").await;
    let first = pair.serve(0).await.expect("it leads");
    let client = pair.connect(FIRST).await;
    let shown = made(&client, b"shown", b"old").await;
    for _ in 0..3 {
        pair.hang(true);
        let late = client.create(ROOT, b"late", file());
        let (made, ()) = tokio::join!(late, async {
            sleep(Duration::from_millis(800)).await;
            pair.hang(false);
        });
        made.expect("it is made");
        client.unlink(ROOT, b"late", false).await.expect("it is removed");
        assert_eq!(read(&client, shown).await, b"old");
    }
    client.close().await.expect("it ends");
    first.stop().await.expect("it stops");
    assert_eq!(pair.volume.problems().await, Vec::<String>::new());
}

/// The client is connected to both servers.
#[tokio::test]
async fn lock_and_token_outlive_takeover() {
    let pair = ServerPair::new("kept").await;
    let first = pair.serve(0).await.expect("it leads");
    let (holder, other) = (pair.connect(BOTH).await, pair.connect(BOTH).await);
    let kept = made(&holder, b"kept", b"old").await;
    let open = holder.open(kept, OpenAccess::Both, false).await.expect("it opens");
    open.lock(exclusive(), None::<NoWait>).await.expect("it is locked");
    open.write(WritePosition::Offset(0), vec![Buffer::copy_of(b"new")]).await.expect("it is written");
    pair.hang(true);
    let second = pair.take_over().await;
    // The second server waits until both have said what they hold; the look makes the first one commit.
    assert_eq!(read(&other, kept).await, b"new");
    let there = other.open(kept, OpenAccess::Read, false).await.expect("it opens");
    assert!(there.lock(exclusive(), None::<NoWait>).await.is_err(), "it is held");
    open.unlock(exclusive()).await.expect("it is unlocked");
    there.lock(exclusive(), None::<NoWait>).await.expect("it is free");
    assert!(timeout(LIMIT, first.ended()).await.is_ok());
    there.close().await;
    open.close().await;
    other.close().await.expect("it ends");
    holder.close().await.expect("it ends");
    second.stop().await.expect("it stops");
    pair.hang(false);
    assert_eq!(pair.volume.problems().await, Vec::<String>::new());
}
