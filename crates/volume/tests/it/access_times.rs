//! Times of access of a volume's files.

use crate::common::{ROOT, Volume};
use nectary_block::Buffer;
use nectary_volume::client::{At, Client, New, OpenFile, Opening};
use nectary_volume::protocol::{Changes, FileId, TimeChange};

/// Makes a file with some bytes.
async fn made(client: &Client, name: &[u8]) -> OpenFile {
    let new = New { mode: libc::S_IFREG | 0o644, ..New::default() };
    let (_, file) = client.create_open(ROOT, name, new).await.expect("it is made");
    file.write(At::Offset(0), vec![Buffer::copy_of(&[5; 100])]).await.expect("it is written");
    file.sync().await.expect("it is synced");
    file
}

/// Reads a file as a program does.
async fn read(file: &OpenFile) {
    assert_eq!(file.read(0, 100).await.expect("it is read").to_vec().len(), 100);
    file.note_access();
}

/// Returns the times of access, modification and change.
async fn times(client: &Client, id: FileId) -> [i64; 3] {
    let [accessed, modified, changed, _] = client.attributes(id).await.expect("it is there").inode.times_ns;
    [accessed, modified, changed]
}

#[tokio::test]
async fn a_read_after_a_change_is_shown_here_at_once_and_elsewhere_when_it_is_reported() {
    let volume = Volume::new("access-times").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let writer = made(&second, b"file").await;
    let id = writer.id();
    let [before, modified, changed] = times(&first, id).await;
    assert!(before <= modified);
    let reader = first.open(id, Opening::Read, false).await.expect("it opens");
    assert_eq!(times(&first, id).await[0], before, "opening is no access");
    read(&reader).await;
    let [accessed, ..] = times(&first, id).await;
    assert!(accessed > modified, "{accessed} {modified}");
    read(&reader).await;
    assert_eq!(times(&first, id).await, [accessed, modified, changed], "one access after a change is enough");
    reader.close().await;
    let reader = first.open(id, Opening::Read, false).await.expect("it opens");
    read(&reader).await;
    reader.close().await;
    assert_eq!(times(&first, id).await, [accessed, modified, changed], "nor is another open");
    let listed = first.look_up(ROOT, b"file").await.expect("it is there");
    assert_eq!(listed.inode.times_ns[0], accessed);
    first.close().await.expect("it ends");
    assert_eq!(times(&second, id).await, [accessed, modified, changed], "no other time changed");
    writer.write(At::Offset(0), vec![Buffer::copy_of(&[6; 10])]).await.expect("it is written");
    read(&writer).await;
    let [again, modified, _] = times(&second, id).await;
    assert!(again > modified && modified > accessed, "{again} {modified} {accessed}");
}

#[tokio::test]
async fn a_time_that_was_set_after_a_read_stays_and_a_file_that_is_gone_stops_no_other() {
    let volume = Volume::new("access-times-set").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let (set, gone, kept) = (made(&first, b"set").await, made(&first, b"gone").await, made(&first, b"kept").await);
    for file in [&set, &gone, &kept] {
        read(file).await;
    }
    let (set, gone, kept) = (set.id(), gone.id(), kept.id());
    let changes = Changes { accessed: Some(TimeChange::At(7)), ..Changes::default() };
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
