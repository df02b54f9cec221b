//! Times of access of a volume's files.

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_volume::client::{NewInode, OpenAccess, OpenFile, VolumeClient, WritePosition};
use nectary_volume::protocol::{AttributeChanges, FileId, TimeChange};

/// Makes a file with some bytes.
async fn made(client: &VolumeClient, name: &[u8]) -> OpenFile {
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    let (_, file) = client.create_open(ROOT, name, new).await.expect("it is made");
    file.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 100])]).await.expect("it is written");
    file.sync().await.expect("it is synced");
    file
}

/// Reads a file as a program does.
async fn read(file: &OpenFile) {
    assert_eq!(file.read(0, 100).await.expect("it is read").to_vec().len(), 100);
    file.note_access();
}

/// Returns the times of access, modification and change.
async fn times(client: &VolumeClient, id: FileId) -> [i64; 3] {
    let [accessed, modified, changed, _] = client.attributes(id).await.expect("it is there").inode.times_ns;
    [accessed, modified, changed]
}

/// The reader's host shows the access at once, other hosts show it when it is reported.
#[tokio::test]
async fn access_time_is_reported_later() {
    let volume = TestVolume::new("access-times").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let writer = made(&second, b"file").await;
    let id = writer.id();
    let [before, modified, changed] = times(&first, id).await;
    assert!(before <= modified);
    let reader = first.open(id, OpenAccess::Read, false).await.expect("it opens");
    assert_eq!(times(&first, id).await[0], before, "opening is no access");
    read(&reader).await;
    let [accessed, ..] = times(&first, id).await;
    assert!(accessed > modified, "{accessed} {modified}");
    read(&reader).await;
    assert_eq!(times(&first, id).await, [accessed, modified, changed], "one access after a change is enough");
    reader.close().await;
    let reader = first.open(id, OpenAccess::Read, false).await.expect("it opens");
    read(&reader).await;
    reader.close().await;
    assert_eq!(times(&first, id).await, [accessed, modified, changed], "nor is another open");
    let listed = first.look_up(ROOT, b"file").await.expect("it is there");
    assert_eq!(listed.inode.times_ns[0], accessed);
    first.close().await.expect("it ends");
    assert_eq!(times(&second, id).await, [accessed, modified, changed], "no other time changed");
    writer.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[6; 10])]).await.expect("it is written");
    read(&writer).await;
    let [again, modified, _] = times(&second, id).await;
    assert!(again > modified && modified > accessed, "{again} {modified} {accessed}");
}

/// Reports about a file that is gone do not stop those about other files.
#[tokio::test]
async fn set_time_outlives_earlier_read() {
    let volume = TestVolume::new("access-times-set").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let (set, gone, kept) = (made(&first, b"set").await, made(&first, b"gone").await, made(&first, b"kept").await);
    for file in [&set, &gone, &kept] {
        read(file).await;
    }
    let (set, gone, kept) = (set.id(), gone.id(), kept.id());
    let changes = AttributeChanges { accessed: Some(TimeChange::At(7)), ..AttributeChanges::default() };
    second.set_attributes(set, changes).await.expect("they are set");
    assert_eq!(times(&first, set).await[0], 7);
    first.unlink(ROOT, b"gone", false).await.expect("it is removed");
    let [accessed, modified, _] = times(&first, kept).await;
    assert!(accessed > modified);
    first.close().await.expect("it ends");
    assert_eq!(times(&second, set).await[0], 7);
    assert_eq!(times(&second, kept).await[0], accessed);
    // The server may not have freed its inode yet.
    let is_gone = second.attributes(gone).await.map_or(true, |found| found.inode.links == 0);
    assert!(is_gone);
    assert!(volume.problems().await.is_empty());
}
