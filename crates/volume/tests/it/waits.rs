//! Calls that wait for tokens, locks and a kernel: each wait ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_host::clock::since_boot;
use nectary_host::progress::{self, CallProgress};
use nectary_volume::client::{
    FileLock, HostKernel, NewInode, OpenAccess, OpenFile, VolumeClient, WaitKind, WritePosition,
};
use nectary_volume::protocol::{AttributeChanges, FileId};
use tokio::sync::oneshot;

/// The longest wait in a test.
const LIMIT: Duration = Duration::from_secs(20);

/// A kernel whose invalidations end when the test says so.
#[derive(Default)]
struct SlowKernel {
    invalidations: Mutex<Vec<oneshot::Sender<()>>>,
}

impl SlowKernel {
    /// Waits for an invalidation to begin; it ends when the sender is used.
    async fn invalidation(&self) -> oneshot::Sender<()> {
        let begun = async || self.invalidations.lock().expect("no panic").pop();
        nectary_kit::find_async("an invalidation begins", begun).await
    }
}

impl HostKernel for SlowKernel {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.invalidations.lock().expect("no panic").push(done);
        is_done
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }
}

/// A kernel that forgets attributes when the test says so.
#[derive(Default)]
struct LateForgetter {
    forgetting: Mutex<Vec<oneshot::Sender<()>>>,
}

impl HostKernel for LateForgetter {
    fn invalidate(&self, _: u64, _: std::ops::Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn forget_attributes(&self, _: FileId) -> Option<oneshot::Receiver<()>> {
        let (done, is_done) = oneshot::channel();
        self.forgetting.lock().expect("no panic").push(done);
        Some(is_done)
    }
}

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

/// Makes a file of a page, of which the kernel has the page.
async fn with_a_page(client: &VolumeClient, name: &[u8]) -> OpenFile {
    let (_, open) = client.create_open(ROOT, name, file()).await.expect("it is made");
    open.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 4096])]).await.expect("it is written");
    open.sync().await.expect("it is synced");
    assert_eq!(open.read_pages(0, 4096).await.expect("it is read").len(), 4096);
    open
}

fn lock_of(owner: u64) -> FileLock {
    FileLock { owner, process: owner as u32, is_flock: true, is_exclusive: true, start: 0, last: u64::MAX }
}

#[tokio::test]
async fn unlink_of_a_mapped_file_ends() {
    let volume = TestVolume::new("unlink").await;
    let server = volume.serve(&[0]).await;
    let kernel = Arc::new(SlowKernel::default());
    let client = volume.try_connect_with(0, kernel.clone()).await.expect("it connects");
    let open = with_a_page(&client, b"file").await;
    let closing = tokio::spawn(async move { open.close().await });
    // The token is being given back, and the file is not in use.
    let invalidation = kernel.invalidation().await;
    let unlinking = tokio::spawn({
        let client = client.clone();
        async move { client.unlink(ROOT, b"file", false).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    invalidation.send(()).expect("it is waited for");
    let unlinked = tokio::time::timeout(LIMIT, unlinking).await.expect("the unlink ends").expect("no panic");
    assert_eq!(unlinked.expect("it is removed").inode.links, 0);
    tokio::time::timeout(LIMIT, closing).await.expect("the close ends").expect("no panic");
    let is_back = async || {
        let tokens = server.handle().overview().tokens;
        (tokens.held, tokens.waiting) == (0, 0)
    };
    nectary_kit::until_async("its token is given back", is_back).await;
    client.close().await.expect("it ends");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

/// While a kernel truncates a file, it writes no page back, and an invalidation waits for pages that it has to write back.
#[tokio::test]
async fn truncation_during_an_invalidation_ends() {
    let volume = TestVolume::new("truncation").await;
    let server = volume.serve(&[0, 1]).await;
    let kernel = Arc::new(SlowKernel::default());
    let client = volume.try_connect_with(0, kernel.clone()).await.expect("it connects");
    let other = volume.connect(1).await;
    let open = with_a_page(&client, b"file").await;
    let id = open.id();
    let there = other.open(id, OpenAccess::Read, false).await.expect("it opens");
    let reading = tokio::spawn(async move { (there.read(0, 8192).await, there) });
    let invalidation = kernel.invalidation().await;
    let changes = AttributeChanges { size: Some(5000), ..AttributeChanges::default() };
    let truncated = tokio::time::timeout(LIMIT, client.set_attributes(id, changes)).await;
    truncated.expect("the truncation ends").expect("it succeeds");
    assert!(!reading.is_finished(), "the other host waits for the invalidation");
    invalidation.send(()).expect("it is waited for");
    let (read, there) = tokio::time::timeout(LIMIT, reading).await.expect("the read ends").expect("no panic");
    assert_eq!(read.expect("it is read").len(), 5000, "it sees the truncation, which was first");
    there.close().await;
    open.close().await;
    client.close().await.expect("it ends");
    other.close().await.expect("it ends");
    server.stop().await.expect("it stops");
}

/// An open is granted a token for which another call of its host waits. If a third call, of another host, is granted the
/// token before that call, it does not wait for the open.
#[tokio::test]
async fn unwanted_grant_of_open_is_returned() {
    let volume = TestVolume::new("unwanted").await;
    let server = volume.serve(&[0, 1]).await;
    let kernel = Arc::new(LateForgetter::default());
    let client = volume.connect(0).await;
    let other = volume.try_connect_with(1, kernel.clone()).await.expect("it connects");
    let id = client.create(ROOT, b"file", file()).await.expect("it is made").id();
    let is_kept = async || other.attributes(id).await.is_ok() && other.kept_attributes(id).is_some();
    nectary_kit::until_async("the other host keeps the attributes", is_kept).await;
    let cutting = tokio::spawn({
        let client = client.clone();
        let changes = AttributeChanges { size: Some(5000), ..AttributeChanges::default() };
        async move { client.set_attributes(id, changes).await }
    });
    let begun = async || kernel.forgetting.lock().expect("no panic").pop();
    let forgotten = nectary_kit::find_async("the other host is told to forget them", begun).await;
    let here = client.open(id, OpenAccess::Read, false).await.expect("it opens");
    let there = other.open(id, OpenAccess::Write, false).await.expect("it opens");
    let written = there.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 8192])]);
    tokio::time::timeout(LIMIT, written).await.expect("the write ends").expect("it is written");
    assert!(!cutting.is_finished(), "it waits for the attributes");
    forgotten.send(()).expect("it is waited for");
    let cut = tokio::time::timeout(LIMIT, cutting).await.expect("the truncation ends").expect("no panic");
    cut.expect("it succeeds");
    assert_eq!(here.read(0, 8192).await.expect("it is read").to_vec(), [5; 5000]);
    here.close().await;
    there.close().await;
    client.close().await.expect("it ends");
    other.close().await.expect("it ends");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

/// The other requests wait for another lock.
#[tokio::test]
async fn lock_granted_among_many_waiters() {
    const WAITERS: u64 = 100;
    let volume = TestVolume::new("locks").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let (_, first) = client.create_open(ROOT, b"first", file()).await.expect("it is made");
    let (_, second) = client.create_open(ROOT, b"second", file()).await.expect("it is made");
    let (first, second) = (Arc::new(first), Arc::new(second));
    let never = std::future::pending::<()>;
    first.lock(lock_of(1), Some(never())).await.expect("it is free");
    second.lock(lock_of(1), Some(never())).await.expect("it is free");
    let waiters: Vec<_> = (0..WAITERS)
        .map(|owner| {
            let first = first.clone();
            tokio::spawn(async move { first.lock(lock_of(owner + 10), Some(never())).await })
        })
        .collect();
    nectary_kit::until_async("one waits for a lock", async || server.handle().overview().locks.1 != 0).await;
    let late = tokio::spawn({
        let second = second.clone();
        async move { second.lock(lock_of(2), Some(never())).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!late.is_finished());
    second.unlock(lock_of(1)).await.expect("it is released");
    let late = tokio::time::timeout(LIMIT, late).await.expect("the free lock is granted").expect("no panic");
    late.expect("it is granted");
    // The others get theirs one after the other.
    first.unlock(lock_of(1)).await.expect("it is released");
    let mut left = waiters;
    let all = async {
        while !left.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            for owner in (0..WAITERS).map(|owner| owner + 10) {
                if first.unlock_all(owner, true).await.is_err() {
                    panic!("it is released");
                }
            }
            left.retain(|waiter| !waiter.is_finished());
        }
    };
    tokio::time::timeout(LIMIT * 2, all).await.expect("each lock is granted");
    client.stop();
    server.stop().await.expect("it stops");
}

#[tokio::test]
async fn restart_during_many_lock_requests_ends() {
    let volume = TestVolume::new("restart-locks").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let (_, open) = client.create_open(ROOT, b"file", file()).await.expect("it is made");
    let open = Arc::new(open);
    server.stop().await.expect("it stops");
    let requests: Vec<_> = (0..100)
        .map(|owner| {
            let open = open.clone();
            tokio::spawn(async move { open.lock(lock_of(owner), None::<std::future::Ready<()>>).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = volume.serve(&[0]).await;
    let mut granted = 0;
    for request in requests {
        let said = tokio::time::timeout(LIMIT, request).await.expect("each request is answered").expect("no panic");
        match said {
            Ok(()) => granted += 1,
            Err(error) => assert_eq!(error.errno(), libc::EAGAIN, "{error}"),
        }
    }
    assert_eq!(granted, 1);
    open.close().await;
    client.close().await.expect("it ends");
    server.stop().await.expect("it stops");
}

/// Waits until a call waits for this.
async fn until_waits(progress: &CallProgress, wait: WaitKind, number: u64) {
    let expected = progress::WaitState { kind: wait as u8, number };
    nectary_kit::until_async(format_args!("{wait:?}"), async || progress.wait() == expected).await;
}

#[tokio::test]
async fn waiting_calls_report_their_reason() {
    let volume = TestVolume::new("reasons").await;
    let server = volume.serve(&[0, 1]).await;
    let kernel = Arc::new(SlowKernel::default());
    let client = volume.try_connect_with(0, kernel.clone()).await.expect("it connects");
    let other = volume.connect(1).await;
    let open = with_a_page(&client, b"file").await;
    let (id, there) = (open.id(), other.open(open.id(), OpenAccess::Read, false).await.expect("it opens"));
    let there = Arc::new(there);
    // The token, and who has to give it back.
    let progress = CallProgress::begin(since_boot());
    let reading = tokio::spawn(progress.clone().of({
        let there = there.clone();
        async move { there.read(0, 4096).await }
    }));
    let invalidation = kernel.invalidation().await;
    until_waits(&progress, WaitKind::Token, id.inode).await;
    let works = client.long_works(Duration::ZERO, 16);
    let work = works.iter().find(|work| work.inode == id.inode).expect("it is listed");
    assert_eq!(work.wait, progress::WaitState { kind: WaitKind::Kernel as u8, number: id.inode });
    invalidation.send(()).expect("it is waited for");
    assert_eq!(reading.await.expect("no panic").expect("it is read").len(), 4096);
    assert_eq!(progress.wait(), progress::WaitState::default());
    // A lock.
    let never = std::future::pending::<()>;
    open.lock(lock_of(1), Some(never())).await.expect("it is free");
    let progress = CallProgress::begin(since_boot());
    let locking = tokio::spawn(progress.clone().of({
        let there = there.clone();
        async move { there.lock(lock_of(2), Some(never())).await }
    }));
    until_waits(&progress, WaitKind::Lock, id.inode).await;
    open.unlock(lock_of(1)).await.expect("it is released");
    locking.await.expect("no panic").expect("it is granted");
    // The server.
    server.stop().await.expect("it stops");
    let progress = CallProgress::begin(since_boot());
    let looking = tokio::spawn(progress.clone().of({
        let other = other.clone();
        async move { other.attributes(id).await }
    }));
    until_waits(&progress, WaitKind::Look, 0).await;
    let progress = CallProgress::begin(since_boot());
    let making = tokio::spawn(progress.clone().of({
        let other = other.clone();
        async move { other.create(ROOT, b"made", file()).await }
    }));
    until_waits(&progress, WaitKind::Server, 0).await;
    let server = volume.serve(&[0, 1]).await;
    looking.await.expect("no panic").expect("it is answered");
    making.await.expect("no panic").expect("it is made");
    client.stop();
    other.stop();
    server.stop().await.expect("it stops");
}
