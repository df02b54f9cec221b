//! Names and attributes that a client keeps, and changes by other clients.

use std::time::Duration;

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_volume::client::{Error, NewInode, OpenAccess, VolumeClient, WritePosition};
use nectary_volume::protocol::{AttributeChanges, FileId, InodeAttributes, TimeChange};
use tokio::time::timeout;

/// What was recalled is not kept again for this long, and a bit more.
const PAUSE: Duration = Duration::from_millis(150);
/// The longest wait for a session that is silent.
const SILENCE_MAX: Duration = Duration::from_secs(30);

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

fn directory() -> NewInode {
    NewInode { mode: libc::S_IFDIR | 0o755, ..NewInode::default() }
}

async fn find(client: &VolumeClient, name: &[u8]) -> Option<InodeAttributes> {
    find_in(client, ROOT, name).await
}

async fn find_in(client: &VolumeClient, directory: FileId, name: &[u8]) -> Option<InodeAttributes> {
    match client.look_up(directory, name).await {
        Ok(found) => Some(found),
        Err(error) => {
            assert_eq!(error.errno(), libc::ENOENT, "{error}");
            None
        }
    }
}

#[tokio::test]
async fn cached_names_are_requested_once() {
    let volume = TestVolume::new("kept-once").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let made = second.create(ROOT, b"here", file()).await.expect("it is made");
    for name in [&b"here"[..], b"absent"] {
        find(&first, name).await;
    }
    let asked = first.figures().questions;
    for _ in 0..100 {
        assert_eq!(find(&first, b"here").await.map(|found| found.id()), Some(made.id()));
        assert_eq!(find(&first, b"absent").await, None);
        first.attributes(made.id()).await.expect("it is there");
    }
    assert_eq!(first.figures().questions, asked);
}

#[tokio::test]
async fn listed_names_are_kept() {
    let volume = TestVolume::new("kept-listing").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let names: Vec<Vec<u8>> = (0..20).map(|number| format!("name{number}").into_bytes()).collect();
    for name in &names {
        second.create(ROOT, name, file()).await.expect("it is made");
    }
    tokio::time::sleep(PAUSE).await;
    let (listed, _) = first.list(ROOT, 0, 100).await.expect("it is listed");
    assert_eq!(listed.len(), names.len());
    let asked = first.figures().questions;
    for listed in &listed {
        let found = find(&first, &listed.name).await.expect("it is there");
        assert_eq!(found, listed.attributes);
    }
    assert_eq!(first.figures().questions, asked);
    second.rename((ROOT, &names[0]), (ROOT, &names[1]), 0).await.expect("it is moved");
    assert!(find(&first, &names[0]).await.is_none() && find(&first, &names[1]).await.is_some());
    let asked = first.figures().questions;
    for name in &names[2..] {
        find(&first, name).await.expect("it is there");
    }
    assert_eq!(first.figures().questions, asked, "names that did not change are kept");
}

#[tokio::test]
async fn absent_extended_attributes_are_asked_once() {
    let volume = TestVolume::new("kept-xattrs").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let made = second.create(ROOT, b"name", file()).await.expect("it is made").id();
    for value in [&b"one"[..], b"two"] {
        tokio::time::sleep(PAUSE).await;
        find(&first, b"name").await;
        let asked = first.figures().questions;
        for _ in 0..10 {
            assert!(first.xattr(made, b"user.a").await.is_err_and(|error| error.errno() == libc::ENODATA));
            assert_eq!(first.xattrs(made).await.expect("they are listed"), Vec::<Vec<u8>>::new());
        }
        assert_eq!(first.figures().questions, asked);
        second.set_xattr(made, b"user.a", value, 0).await.expect("it is set");
        assert_eq!(first.xattr(made, b"user.a").await.expect("it is there"), value);
        tokio::time::sleep(PAUSE).await;
        find(&first, b"name").await;
        assert_eq!(first.xattr(made, b"user.a").await.expect("it is there"), value);
        assert_eq!(first.xattrs(made).await.expect("they are listed"), [b"user.a"]);
        second.remove_xattr(made, b"user.a").await.expect("it is removed");
        assert!(first.xattr(made, b"user.a").await.is_err_and(|error| error.errno() == libc::ENODATA));
    }
    first.set_xattr(made, b"user.b", b"own", 0).await.expect("it is set");
    assert_eq!(first.xattr(made, b"user.b").await.expect("it is there"), b"own");
}

#[tokio::test]
async fn remote_changes_visible_at_once() {
    let volume = TestVolume::new("kept-changes").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    for round in 0..6_u64 {
        let (name, moved) = (format!("name{round}").into_bytes(), format!("moved{round}").into_bytes());
        let look = async || {
            // Twice: the second answer is one that is kept.
            find(&first, &name).await;
            (find(&first, &name).await, find(&first, &moved).await)
        };
        assert_eq!(look().await, (None, None));
        let made = second.create(ROOT, &name, file()).await.expect("it is made");
        let (found, absent) = look().await;
        assert_eq!((found.map(|found| found.id()), absent), (Some(made.id()), None));
        tokio::time::sleep(PAUSE).await;
        look().await;
        let changes =
            AttributeChanges { mode: Some(0o600), modified: Some(TimeChange::At(77)), ..AttributeChanges::default() };
        second.set_attributes(made.id(), changes).await.expect("they are set");
        let found = look().await.0.expect("it is there");
        assert_eq!((found.inode.mode & 0o777, found.inode.times_ns[1]), (0o600, 77));
        tokio::time::sleep(PAUSE).await;
        look().await;
        second.link(made.id(), ROOT, &moved).await.expect("it is linked");
        let (found, other) = look().await;
        assert_eq!((found.map(|found| found.inode.links), other.map(|other| other.inode.links)), (Some(2), Some(2)));
        tokio::time::sleep(PAUSE).await;
        look().await;
        second.unlink(ROOT, &name, false).await.expect("it is removed");
        let (found, other) = look().await;
        assert_eq!((found, other.map(|other| other.inode.links)), (None, Some(1)));
        tokio::time::sleep(PAUSE).await;
        look().await;
        second.rename((ROOT, &moved), (ROOT, &name), 0).await.expect("it is moved");
        let (found, other) = look().await;
        assert_eq!((found.map(|found| found.id()), other), (Some(made.id()), None));
        tokio::time::sleep(PAUSE).await;
        look().await;
        let writer = second.open(made.id(), OpenAccess::Both, false).await.expect("it opens");
        writer.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[5; 4096])]).await.expect("it is written");
        assert_eq!(look().await.0.map(|found| found.inode.size), Some(4096), "it is not committed before");
        writer.write(WritePosition::End, vec![Buffer::copy_of(&[6; 10])]).await.expect("it is written");
        assert_eq!(first.attributes(made.id()).await.expect("it is there").inode.size, 4106);
        writer.close().await;
        tokio::time::sleep(PAUSE).await;
        look().await;
        let changes = AttributeChanges { size: Some(5), ..AttributeChanges::default() };
        second.set_attributes(made.id(), changes).await.expect("it is truncated");
        assert_eq!(look().await.0.map(|found| found.inode.size), Some(5));
    }
}

#[tokio::test]
async fn own_changes_are_seen_at_once() {
    let volume = TestVolume::new("kept-own").await;
    let _server = volume.serve(&[0]).await;
    let client = volume.connect(0).await;
    for round in 0..20_u8 {
        let made = client.create(ROOT, b"name", file()).await.expect("it is made");
        assert_eq!(find(&client, b"name").await.map(|found| found.id()), Some(made.id()));
        let open = client.open(made.id(), OpenAccess::Both, false).await.expect("it opens");
        open.write(WritePosition::End, vec![Buffer::copy_of(&vec![round; 100 + usize::from(round)])])
            .await
            .expect("it is written");
        let size = client.attributes(made.id()).await.expect("it is there").inode.size;
        assert_eq!(size, 100 + u64::from(round));
        open.sync().await.expect("it is synced");
        assert_eq!(find(&client, b"name").await.map(|found| found.inode.size), Some(size));
        open.close().await;
        client.unlink(ROOT, b"name", false).await.expect("it is removed");
        assert_eq!(find(&client, b"name").await, None);
        assert_eq!(find(&client, b"name").await, None);
    }
}

#[tokio::test]
async fn own_creates_and_unlinks_ask_nothing() {
    let volume = TestVolume::new("kept-creates").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    // Until its first renewal a client may use nothing that it keeps.
    tokio::time::sleep(PAUSE).await;
    let made = first.create(ROOT, b"made", directory()).await.expect("it is made").id();
    let asked = first.figures().questions;
    for number in 0..40_u8 {
        let name = format!("name{number}").into_bytes();
        assert_eq!(find_in(&first, made, &name).await, None);
        let file = first.create(made, &name, file()).await.expect("it is made").id();
        assert_eq!(find_in(&first, made, &name).await.map(|found| found.id()), Some(file));
        let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        first.set_attributes(file, changes).await.expect("they are set");
        assert_eq!(first.attributes(file).await.expect("it is there").inode.mode & 0o777, 0o600);
        first.link(file, made, b"other").await.expect("it is linked");
        assert_eq!(find_in(&first, made, &name).await.map(|found| found.inode.links), Some(2));
        first.unlink(made, b"other", false).await.expect("it is removed");
        assert_eq!(find_in(&first, made, b"other").await, None);
        first.attributes(made).await.expect("it is there");
        if number % 2 == 0 {
            first.unlink(made, &name, false).await.expect("it is removed");
            assert_eq!(find_in(&first, made, &name).await, None);
        }
    }
    assert_eq!(first.figures().questions, asked);
    // This is no name in it.
    assert_eq!(find_in(&first, made, b"..").await.map(|found| found.number), Some(ROOT.inode));
    for number in 0..40_u8 {
        let name = format!("name{number}").into_bytes();
        assert_eq!(find_in(&first, made, &name).await, find_in(&second, made, &name).await, "name{number}");
    }
    let (own, others) = (first.attributes(made).await, second.attributes(made).await);
    assert_eq!(own.expect("it is there"), others.expect("it is there"));
}

#[tokio::test]
async fn creates_of_others_end_absent_names() {
    let volume = TestVolume::new("kept-absent").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    tokio::time::sleep(PAUSE).await;
    let made = first.create(ROOT, b"made", directory()).await.expect("it is made").id();
    for number in 0..30_u8 {
        let (name, own) = (format!("name{number}").into_bytes(), format!("own{number}").into_bytes());
        assert_eq!(find_in(&first, made, &name).await, None);
        let others = second.create(made, &name, file()).await.expect("it is made").id();
        assert_eq!(find_in(&first, made, &name).await.map(|found| found.id()), Some(others));
        assert_eq!(find_in(&second, made, &own).await, None);
        let file = first.create(made, &own, file()).await.expect("it is made").id();
        assert_eq!(find_in(&second, made, &own).await.map(|found| found.id()), Some(file));
        second.unlink(made, &own, false).await.expect("it is removed");
        assert_eq!(find_in(&first, made, &own).await, None);
        first.rename((made, &name), (made, &b"moved"[..]), 0).await.expect("it is moved");
        assert_eq!(find_in(&second, made, &name).await, None);
        assert_eq!(find_in(&second, made, b"moved").await.map(|found| found.id()), Some(others));
        if number % 5 == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[tokio::test]
async fn listed_directory_knows_absent_names() {
    let volume = TestVolume::new("kept-complete").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    for number in 0..10 {
        second.create(ROOT, format!("name{number}").as_bytes(), file()).await.expect("it is made");
    }
    tokio::time::sleep(PAUSE).await;
    let mut cookie = 0;
    loop {
        let (names, is_end) = first.list(ROOT, cookie, 3).await.expect("it is listed");
        if is_end {
            break;
        }
        cookie = names.last().expect("some are left").cookie;
    }
    let asked = first.figures().questions;
    for number in 0..10 {
        assert_eq!(find(&first, format!("absent{number}").as_bytes()).await, None);
    }
    assert_eq!(first.figures().questions, asked);
    let made = second.create(ROOT, b"absent7", file()).await.expect("it is made").id();
    assert_eq!(find(&first, b"absent7").await.map(|found| found.id()), Some(made));
}

#[tokio::test]
async fn new_server_awaits_cached_names() {
    let volume = TestVolume::new("kept-restart").await;
    let server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    for _ in 0..2 {
        assert_eq!(find(&first, b"name").await, None);
    }
    server.stop().await.expect("it stops");
    // The first client cannot reach this server, and may find what it keeps while its lease holds.
    let _server = volume.serve(&[1]).await;
    let made = timeout(SILENCE_MAX, second.create(ROOT, b"name", file())).await.expect("it ends").expect("it is made");
    let found = timeout(Duration::from_millis(100), first.look_up(ROOT, b"name")).await;
    assert!(found.is_err(), "without a lease nothing is found: {found:?}");
    assert_eq!(find(&second, b"name").await.map(|found| found.id()), Some(made.id()));
}

/// A change waits one lease for a client that does not answer.
#[tokio::test]
async fn silent_client_delays_one_lease() {
    let volume = TestVolume::new("kept-silent").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    assert_eq!(find(&first, b"name").await, None);
    first.stop();
    timeout(SILENCE_MAX, second.create(ROOT, b"name", file())).await.expect("it ends").expect("it is made");
    let after: Result<InodeAttributes, Error> = second.look_up(ROOT, b"name").await;
    after.expect("it is there");
}
