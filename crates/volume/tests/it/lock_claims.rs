//! File locks while a restarted server is told which of them are held, and requests for locks that look alike.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_volume::client::{FileLock, HostKernel, NewInode, OpenAccess, OpenFile, VolumeClient};
use nectary_volume::server::MetadataServer;
use tokio::sync::oneshot;

/// The longest wait in a test.
const LIMIT: Duration = Duration::from_secs(20);
/// A session tells a restarted server what it holds when its kernel has shown nothing old for this time.
const SHOWN: Duration = Duration::from_millis(400);
/// The number of locks that are claimed one after the other.
const LOCKS: u64 = 8000;

/// A longer time.
const SHOWN_LONG: Duration = Duration::from_secs(2);
/// The time after which a program gives its request up.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(50);

/// A kernel that shows names without a request for some time.
struct ShowingKernel(Duration);

impl HostKernel for ShowingKernel {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn all_ends(&self) -> Option<Duration> {
        Some(self.0)
    }
}

/// More lock requests than a session may send at once.
const EARLY_LOCKS: u64 = 60;

type NoWait = std::future::Ready<()>;

fn lock_of(owner: u64, start: u64, last: u64) -> FileLock {
    FileLock { owner, process: owner as u32, is_flock: false, is_exclusive: true, start, last }
}

async fn created(client: &VolumeClient) -> OpenFile {
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    client.create_open(ROOT, b"file", new).await.expect("it is made").1
}

/// Waits until a client is connected to the server that was started last.
async fn until_newer(client: &VolumeClient, epoch: u64) {
    let newer = async {
        while client.figures().epoch == epoch {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, newer).await.expect("it connects again");
}

/// Waits until the server has granted this many locks at least.
async fn until_held(server: &MetadataServer, count: usize) {
    let held = async {
        while server.handle().overview().locks.0 < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LIMIT, held).await.expect("they are held");
}

/// A program requests a lock after its mount has found the new server, and before that server knows who holds it.
#[tokio::test]
async fn request_during_claims_is_no_claim() {
    let volume = TestVolume::new("claims").await;
    let server = volume.serve(&[0, 1]).await;
    let holder = volume.try_connect_with(0, Arc::new(ShowingKernel(SHOWN))).await.expect("it connects");
    let other = volume.try_connect_with(1, Arc::new(ShowingKernel(SHOWN))).await.expect("it connects");
    let here = created(&holder).await;
    let there = other.open(here.id(), OpenAccess::Both, false).await.expect("it opens");
    here.lock(lock_of(1, 0, 9), None::<NoWait>).await.expect("it is free");
    let epoch = other.figures().epoch;
    server.stop().await.expect("it stops");
    let server = volume.serve(&[0, 1]).await;
    until_newer(&other, epoch).await;
    let refused = there.lock(lock_of(1, 0, 9), None::<NoWait>).await.expect_err("it is held");
    assert_eq!(refused.errno(), libc::EAGAIN, "{refused}");
    let of_here = here.lock(lock_of(2, 5, 5), None::<NoWait>).await.expect_err("it is held");
    assert_eq!(of_here.errno(), libc::EAGAIN, "{of_here}");
    here.unlock(lock_of(1, 0, 9)).await.expect("it is released");
    there.lock(lock_of(1, 0, 9), None::<NoWait>).await.expect("it is free");
    holder.stop();
    other.stop();
    server.stop().await.expect("it stops");
}

/// Requests a lock that the server does not grant yet, and gives it up.
async fn given_up_soon(open: &OpenFile) {
    let lock = open.lock(lock_of(u64::MAX, u64::MAX, u64::MAX), Some(tokio::time::sleep(Duration::from_millis(50))));
    let given_up = tokio::time::timeout(Duration::from_millis(500), lock).await.expect("it ends soon");
    assert_eq!(given_up.expect_err("it is not granted").errno(), libc::EINTR);
}

/// Requests for locks that a server does not answer before all hosts have named theirs keep no other call waiting.
#[tokio::test]
async fn early_lock_requests_delay_no_questions() {
    let volume = TestVolume::new("early-locks").await;
    let server = volume.serve(&[0, 1]).await;
    let holder = volume.connect(0).await;
    let other = volume.connect(1).await;
    let here = created(&holder).await;
    let there = Arc::new(other.open(here.id(), OpenAccess::Both, false).await.expect("it opens"));
    let epoch = other.figures().epoch;
    server.stop().await.expect("it stops");
    // This host does not come back, so the next server waits for the end of its lease.
    holder.stop();
    let server = volume.serve(&[0, 1]).await;
    until_newer(&other, epoch).await;
    given_up_soon(&there).await;
    let locks: Vec<_> = (0..EARLY_LOCKS)
        .map(|at| {
            let there = there.clone();
            tokio::spawn(async move { there.lock(lock_of(at + 1, at, at), None::<NoWait>).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(locks.iter().all(|lock| !lock.is_finished()), "the server waits for the other host");
    // It shows no names, so it need not wait for the other host.
    let asked = tokio::time::timeout(Duration::from_millis(500), other.statistics());
    asked.await.expect("it waits for no lock").expect("it is answered");
    given_up_soon(&there).await;
    assert!(locks.iter().all(|lock| !lock.is_finished()), "the server still waits");
    for lock in locks {
        tokio::time::timeout(LIMIT, lock).await.expect("it is answered").expect("no panic").expect("it is free");
    }
    other.stop();
    server.stop().await.expect("it stops");
}

/// A program gives up a request that is sent only when the server has been told which locks are held: while it is told,
/// and before it was reached.
#[tokio::test]
async fn held_back_requests_are_given_up() {
    let volume = TestVolume::new("held-back").await;
    let server = volume.serve(&[0]).await;
    let kernel = Arc::new(ShowingKernel(SHOWN_LONG));
    let client = volume.try_connect_with(0, kernel).await.expect("it connects");
    let open = Arc::new(created(&client).await);
    let epoch = client.figures().epoch;
    server.stop().await.expect("it stops");
    let early = {
        let open = open.clone();
        tokio::spawn(async move { open.lock(lock_of(1, 0, 9), Some(tokio::time::sleep(GIVEN_UP_AFTER))).await })
    };
    tokio::time::sleep(2 * GIVEN_UP_AFTER).await;
    let server = volume.serve(&[0]).await;
    until_newer(&client, epoch).await;
    let began = std::time::Instant::now();
    let late = open.lock(lock_of(1, 0, 9), Some(tokio::time::sleep(GIVEN_UP_AFTER)));
    let given_up = tokio::time::timeout(LIMIT, late).await.expect("it ends").expect_err("it is not granted");
    assert_eq!(given_up.errno(), libc::EINTR, "{given_up}");
    assert!(began.elapsed() < SHOWN_LONG / 2, "it ends before the server is told");
    let given_up = tokio::time::timeout(LIMIT, early).await.expect("it ends").expect("no panic");
    assert_eq!(given_up.expect_err("it is not granted").errno(), libc::EINTR);
    open.lock(lock_of(2, 0, 9), None::<NoWait>).await.expect("nobody holds it");
    until_held(&server, 1).await;
    assert_eq!(server.handle().overview().locks, (1, 0));
    client.stop();
    server.stop().await.expect("it stops");
}

/// Programs release locks, and parts of them, while the server is told of them.
#[tokio::test]
async fn locks_released_during_claims_are_free() {
    let volume = TestVolume::new("released-claims").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let open = created(&client).await;
    for at in 0..LOCKS {
        open.lock(lock_of(1, at * 10, at * 10 + 8), None::<NoWait>).await.expect("it is free");
    }
    server.stop().await.expect("it stops");
    let server = volume.serve(&[0]).await;
    until_held(&server, 1).await;
    assert!(server.handle().overview().locks.0 < LOCKS as usize, "the claims are under way");
    // The middle of the last lock stays.
    let last = (LOCKS - 1) * 10;
    open.unlock(lock_of(1, 0, last + 1)).await.expect("they are released");
    open.unlock(lock_of(1, last + 3, u64::MAX)).await.expect("it is released");
    until_held(&server, 1).await;
    let settled = open.lock(lock_of(2, last + 5, last + 5), None::<NoWait>);
    tokio::time::timeout(LIMIT, settled).await.expect("the claims end").expect("it is free");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.handle().overview().locks, (2, 0));
    let refused = open.lock(lock_of(2, last + 2, last + 2), None::<NoWait>).await.expect_err("it is held");
    assert_eq!(refused.errno(), libc::EAGAIN);
    open.close().await;
    client.stop();
    server.stop().await.expect("it stops");
}

/// Threads of one process wait for the same range.
#[tokio::test]
async fn waits_of_one_owner_all_end() {
    let volume = TestVolume::new("alike").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let open = Arc::new(created(&client).await);
    open.lock(lock_of(1, 0, 9), None::<NoWait>).await.expect("it is free");
    let threads = [(); 2].map(|()| {
        let open = open.clone();
        tokio::spawn(async move { open.lock(lock_of(2, 0, 9), Some(std::future::pending::<()>())).await })
    });
    let waiting = async {
        while server.handle().overview().locks.1 < threads.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(2), waiting).await;
    open.unlock(lock_of(1, 0, 9)).await.expect("it is released");
    for thread in threads {
        let granted = tokio::time::timeout(LIMIT, thread).await.expect("it is answered").expect("no panic");
        granted.expect("it is granted");
    }
    client.stop();
    server.stop().await.expect("it stops");
}
