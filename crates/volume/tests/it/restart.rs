//! A server restarts while its clients are connected.

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_volume::client::{NewInode, OpenAccess, WritePosition};
use nectary_volume::format::TableKind;
use nectary_volume::journal::read;
use nectary_volume::protocol::AttributeChanges;
use nectary_volume::server::{MetadataServer, ServerOverview};

/// Waits until the server's overview satisfies a condition.
async fn until(server: &MetadataServer, what: &str, is_so: impl Fn(&ServerOverview) -> bool) {
    let handle = server.handle();
    nectary_kit::until_async(what, async || is_so(&handle.overview())).await;
}

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

/// The file stays as long as one session has it open.
#[tokio::test]
async fn open_nameless_file_survives_restarts() {
    let volume = TestVolume::new("orphans").await;
    let server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let (made, here) = first.create_open(ROOT, b"file", file()).await.expect("it is made");
    here.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 10_000])]).await.expect("it is written");
    here.sync().await.expect("it is synced");
    let there = second.open(made.id(), OpenAccess::Both, false).await.expect("it opens");
    let late = second.create(ROOT, b"late", file()).await.expect("it is made");
    let late = first.open(late.id(), OpenAccess::Both, false).await.expect("it opens");
    second.unlink(ROOT, b"file", false).await.expect("it loses its name");
    server.stop().await.expect("it stops");
    // The first client cannot reach this server, so it cannot report its open files.
    let server = volume.serve(&[1]).await;
    second.unlink(ROOT, b"late", false).await.expect("it loses its name");
    there.close().await;
    // The server has done the unlink, and two questions: the second client opened the file, and closed it.
    let is_closed = |overview: &ServerOverview| overview.operations >= 1 && overview.questions >= 2;
    until(&server, "the file is closed", is_closed).await;
    assert_eq!(server.handle().overview().inodes, 3, "root, and two files without a name");
    server.stop().await.expect("it stops");
    // The first client reconnects, and still has its files.
    let server = volume.serve(&[0, 1]).await;
    let read = here.read(0, 20_000).await.expect("it is read").to_vec();
    assert!(read == [5; 10_000], "{} bytes", read.len());
    here.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[6; 4096])]).await.expect("it is written");
    here.sync().await.expect("it is synced");
    late.write(WritePosition::End, vec![Buffer::copy_of(&[7; 100])]).await.expect("it is written");
    late.sync().await.expect("it is synced");
    assert_eq!(here.read(0, 4096).await.expect("it is read").to_vec(), [6; 4096]);
    late.close().await;
    until(&server, "the second file is freed", |overview| overview.inodes == 2).await;
    here.close().await;
    until(&server, "both files are freed", |overview| overview.inodes == 1).await;
    first.close().await.expect("it ends");
    second.close().await.expect("it ends");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

#[tokio::test]
async fn releasing_session_frees_nameless_files() {
    let volume = TestVolume::new("released").await;
    let server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let (_, here) = first.create_open(ROOT, b"file", file()).await.expect("it is made");
    second.unlink(ROOT, b"file", false).await.expect("it loses its name");
    server.stop().await.expect("it stops");
    let server = volume.serve(&[1]).await;
    second.create(ROOT, b"other", file()).await.expect("it is made");
    until(&server, "it is counted", |overview| overview.inodes == 3).await;
    drop(here);
    let session = first.figures().session;
    first.stop();
    drop(first);
    until(&server, "it is silent", |overview| overview.silent.iter().any(|(number, _)| *number == session)).await;
    server.handle().release(session).await.expect("it is released");
    until(&server, "the file is freed", |overview| overview.inodes == 2).await;
    second.close().await.expect("it ends");
    server.stop().await.expect("it stops");
    assert_eq!(volume.problems().await, Vec::<String>::new());
}

/// The limit also holds across a restart of the server.
#[tokio::test]
async fn operations_stay_within_reply_limit() {
    let volume = TestVolume::new("replies").await;
    let mut server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    let made = client.create(ROOT, b"file", file()).await.expect("it is made");
    for round in 0..3 {
        let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        let calls = (0..1500).map(|_| client.set_attributes(made.id(), changes));
        for answer in futures_util::future::join_all(calls).await {
            answer.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        server.stop().await.expect("it stops");
        let found = read(&volume.device).await.expect("it is read");
        let replies = found.tables.table(TableKind::Replies).len();
        println!("round {round}: {replies} replies are kept");
        assert!(replies <= 1024, "{replies}");
        server = volume.serve(&[0]).await;
    }
    client.close().await.expect("it ends");
    server.stop().await.expect("it stops");
}
