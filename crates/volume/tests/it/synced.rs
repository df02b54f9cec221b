//! Errors of commits reach the callers whose data they concern.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_block::{Buffer, ErrorFilter, ErrorOptions, FailingOperations};
use nectary_volume::client::{NewInode, OpenAccess, OpenFile, VolumeClient, WritePosition};

/// The longest wait in a test.
const LIMIT: Duration = Duration::from_secs(60);

/// Connects a client whose flushes fail as long as the returned file exists.
async fn connect_failing(volume: &mut TestVolume, client: u32) -> (VolumeClient, PathBuf) {
    let when = volume.directory.join("fails");
    let on = FailingOperations { read: false, write: false, flush: true };
    let options = ErrorOptions { on, when: Some(when.clone()), ..ErrorOptions::default() };
    let device = volume.device.clone();
    volume.device = Arc::new(ErrorFilter::new(device.clone(), options));
    let connected = volume.connect(client).await;
    volume.device = device;
    (connected, when)
}

async fn create(client: &VolumeClient) -> OpenFile {
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    client.create_open(ROOT, b"file", new).await.expect("it is made").1
}

fn errno<T>(result: Result<T, nectary_volume::client::Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

#[tokio::test]
async fn failed_commit_reaches_each_handle_once() {
    let mut volume = TestVolume::new("failed-commit").await;
    let server = volume.serve(&[0, 1]).await;
    let (here, there) = (connect_failing(&mut volume, 0).await, volume.connect(1).await);
    let (here, when) = here;
    let first = create(&here).await;
    let second = here.open(first.id(), OpenAccess::Both, false).await.expect("it opens");
    first.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[1; 5000])]).await.expect("it is written");
    std::fs::write(&when, b"").expect("it is made");
    // The other host's read takes the token away, and with it what cannot be committed.
    let other = there.open(first.id(), OpenAccess::Read, false).await.expect("it opens");
    let read = tokio::time::timeout(LIMIT, other.read(0, 5000)).await.expect("it ends").expect("it is read");
    assert!(read.is_empty());
    std::fs::remove_file(&when).expect("it is removed");
    let third = here.open(first.id(), OpenAccess::Both, false).await.expect("it opens");
    for handle in [&first, &second, &third] {
        assert_eq!(errno(handle.flush().await), libc::EIO);
        assert_eq!((errno(handle.sync().await), errno(handle.flush().await)), (0, 0));
    }
    let late = here.open(first.id(), OpenAccess::Both, false).await.expect("it opens");
    assert_eq!(errno(late.sync().await), 0, "others have reported it before");
    for handle in [first, second, third, late, other] {
        handle.close().await;
    }
    here.close().await.expect("it closes");
    there.close().await.expect("it closes");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

#[tokio::test]
async fn synced_calls_return_commit_errors() {
    let mut volume = TestVolume::new("synced-errors").await;
    let server = volume.serve(&[0]).await;
    let (client, when) = connect_failing(&mut volume, 0).await;
    let file = create(&client).await.synced(true);
    let from = client.create_open(ROOT, b"from", NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }).await;
    let from = from.expect("it is made").1;
    from.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[2; 9000])]).await.expect("it is written");
    from.sync().await.expect("it is synced");
    std::fs::write(&when, b"").expect("it is made");
    let data = || vec![Buffer::copy_of(&[1; 5000])];
    assert_eq!(errno(file.write(WritePosition::Offset(0), data()).await), libc::EIO);
    assert_eq!(errno(file.write_synced(WritePosition::End, data()).await), libc::EIO);
    assert_eq!(errno(from.copy(0, &file, 0, 9000).await), libc::EIO);
    std::fs::remove_file(&when).expect("it is removed");
    assert_eq!(errno(from.copy(0, &file, 0, 9000).await), 0);
    assert_eq!(errno(file.write(WritePosition::End, data()).await), 0);
    let written = file.read(0, 20_000).await.expect("it is read").to_vec();
    assert_eq!(written, [vec![2; 9000], vec![1; 1000], vec![1; 5000]].concat());
    file.close().await;
    from.close().await;
    client.close().await.expect("it closes");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

#[tokio::test]
async fn waiting_synced_writers_share_commits() {
    const WRITERS: u64 = 32;
    let volume = TestVolume::new("synced-shared").await;
    let server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let file = Arc::new(create(&client).await.synced(true));
    let writers = (0..WRITERS).map(|writer| {
        let file = file.clone();
        async move {
            let data = vec![Buffer::copy_of(&[writer as u8; 4096])];
            file.write(WritePosition::Offset(writer * 4096), data).await.expect("it is written");
        }
    });
    futures_util::future::join_all(writers).await;
    client.close().await.expect("it closes");
    let handle = server.handle();
    nectary_kit::until_async("no session is left", async || handle.overview().sessions.is_empty()).await;
    let operations = handle.overview().operations;
    server.stop().await.expect("it stops");
    assert!(operations < WRITERS / 2, "{operations} operations");
}
