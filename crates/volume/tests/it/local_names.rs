//! Names that a client makes and removes itself, in a directory that it alone uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{ROOT, TestVolume};
use nectary_block::Buffer;
use nectary_volume::client::{NewInode, OpenFile, VolumeClient, WritePosition};
use nectary_volume::protocol::FileId;

/// Longer than the server waits before it gives a directory again.
const ALONE: Duration = Duration::from_millis(900);
const FILES: u64 = 100;

fn file() -> NewInode {
    NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() }
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

/// Makes a directory; its maker may then make names there itself.
async fn directory(client: &VolumeClient, name: &[u8]) -> FileId {
    // With its first lease a client forgets what it kept before.
    for _ in 0..200 {
        client.attributes(ROOT).await.expect("it is there");
        if client.kept_attributes(ROOT).is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let new = NewInode { mode: libc::S_IFDIR | 0o755, ..NewInode::default() };
    let made = client.create(ROOT, name, new).await.expect("it is made").id();
    settled(client).await;
    made
}

/// Waits until a client has the directory and numbers of inodes.
async fn settled(client: &VolumeClient) {
    for _ in 0..100 {
        if client.figures().local_directories > 0 && client.figures().waiting == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn make(client: &VolumeClient, directory: FileId, numbers: std::ops::Range<u64>) {
    for number in numbers {
        client.create(directory, &name(number), file()).await.expect("it is made");
    }
}

async fn count(client: &VolumeClient, directory: FileId) -> usize {
    client.list(directory, 0, 1000).await.expect("it is listed").0.len()
}

#[tokio::test]
async fn local_names_are_seen_without_answer() {
    let volume = TestVolume::new("local-seen").await;
    let server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let made = directory(&first, b"d").await;
    make(&first, made, 0..FILES).await;
    let local = first.figures().local;
    assert!(local > FILES / 2, "{local} of {FILES}");
    assert_eq!(count(&second, made).await as u64, FILES);
    let shown = second.look_up(made, &name(7)).await.expect("it is there");
    assert_eq!(first.look_up(made, &name(7)).await.expect("it is there"), shown);
    assert_eq!(first.attributes(made).await.expect("it is there"), second.attributes(made).await.expect("as here"));
    assert_eq!(first.figures().local_directories, 0, "it was returned");
    // Its maker cannot know what the other one keeps of these.
    for number in 0..FILES {
        first.unlink(made, &name(number), false).await.expect("it is removed");
        assert!(second.look_up(made, &name(number)).await.is_err());
    }
    assert_eq!(first.figures().local, local);
    server.stop().await.expect("it stops");
    assert!(volume.problems().await.is_empty());
}

#[tokio::test]
async fn local_unlinks_are_seen_too() {
    let volume = TestVolume::new("local-unlinks").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let made = directory(&first, b"d").await;
    make(&first, made, 0..FILES).await;
    let ids: Vec<FileId> = {
        let mut ids = Vec::new();
        for number in 0..FILES {
            ids.push(first.look_up(made, &name(number)).await.expect("it is there").id());
        }
        ids
    };
    let before = first.figures().local;
    for number in 0..FILES / 2 {
        first.unlink(made, &name(number), false).await.expect("it is removed");
    }
    assert!(first.figures().local > before + FILES / 4, "{:?}", first.figures());
    // Another host that knows an inode, but no name of it.
    let gone = second.attributes(ids[0]).await;
    assert!(gone.is_err() || gone.is_ok_and(|found| found.inode.links == 0));
    assert_eq!(count(&second, made).await as u64, FILES / 2);
}

#[tokio::test]
async fn directory_is_held_again_when_alone() {
    let volume = TestVolume::new("local-again").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let made = directory(&first, b"d").await;
    make(&first, made, 0..10).await;
    assert_eq!(count(&second, made).await, 10);
    // Both change it in turn, so neither holds it.
    for number in 10..30 {
        make(if number % 2 == 0 { &first } else { &second }, made, number..number + 1).await;
    }
    assert_eq!((first.figures().local_directories, second.figures().local_directories), (0, 0));
    tokio::time::sleep(ALONE).await;
    make(&second, made, 30..34).await;
    settled(&second).await;
    count(&second, made).await;
    let before = second.figures().local;
    make(&second, made, 34..60).await;
    assert!(second.figures().local > before, "{:?}", second.figures());
    assert_eq!(count(&first, made).await, 60);
}

#[tokio::test]
async fn local_names_survive_a_lost_server() {
    let volume = TestVolume::new("local-lost").await;
    let server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let made = directory(&first, b"d").await;
    make(&first, made, 0..FILES).await;
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let server = volume.serve(&[0, 1]).await;
    assert_eq!(count(&second, made).await as u64, FILES);
    make(&first, made, FILES..FILES + 10).await;
    assert_eq!(count(&second, made).await as u64, FILES + 10);
    server.stop().await.expect("it stops");
    assert!(volume.problems().await.is_empty());
}

#[tokio::test]
async fn synced_local_names_survive_everything() {
    let volume = TestVolume::new("local-synced").await;
    let server = volume.serve(&[0, 1]).await;
    let first = volume.connect_local(0).await;
    let made = directory(&first, b"d").await;
    make(&first, made, 0..FILES).await;
    first.stored().await.expect("they are stored");
    first.stop();
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let _server = volume.serve(&[0, 1]).await;
    let second = volume.connect_local(1).await;
    assert_eq!(count(&second, made).await as u64, FILES);
}

#[tokio::test]
async fn default_list_leaves_names_to_server() {
    let volume = TestVolume::new("local-list").await;
    let _server = volume.serve(&[0]).await;
    let first = volume.connect_local(0).await;
    let made = directory(&first, b"d").await;
    // A default list: owner rwx, group r-x, others ---.
    let entry =
        |tag: u16, permissions: u16| [tag.to_le_bytes(), permissions.to_le_bytes(), [255; 2], [255; 2]].concat();
    let list = [2_u32.to_le_bytes().to_vec(), entry(1, 7), entry(4, 5), entry(32, 0)].concat();
    first.set_xattr(made, b"system.posix_acl_default", &list, 0).await.expect("it is set");
    let before = first.figures().local;
    let new = NewInode { mode: libc::S_IFREG | 0o666, umask: 0o077, ..NewInode::default() };
    let found = first.create(made, b"inherits", new).await.expect("it is made");
    assert_eq!((found.inode.mode & 0o777, first.figures().local), (0o640, before));
}

/// Writes to an open file, and reads it back.
async fn use_open(open: &OpenFile, what: &[u8]) {
    let mut data = vec![0; 4096];
    data[..what.len()].copy_from_slice(what);
    open.write(WritePosition::Offset(0), vec![Buffer::copy_of(&data)]).await.expect("it is written");
    open.sync().await.expect("it is synced");
    assert_eq!(open.read(0, 4096).await.expect("it is read").to_vec(), data);
}

#[tokio::test]
async fn open_file_outlives_its_name() {
    let volume = TestVolume::new("local-open").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let made = directory(&first, b"d").await;
    make(&first, made, 0..2).await;
    let before = first.figures();
    let (_, own) = first.create_open(made, b"own", file()).await.expect("it is made");
    let (_, others) = first.create_open(made, b"others", file()).await.expect("it is made");
    let (_, closed) = first.create_open(made, b"closed", file()).await.expect("it is made");
    closed.close().await;
    let after = first.figures();
    assert_eq!(
        (after.local, after.questions),
        (before.local + 3, before.questions),
        "nobody need know that it was open"
    );
    first.unlink(made, b"own", false).await.expect("it is removed");
    second.unlink(made, b"others", false).await.expect("it is removed");
    second.unlink(made, b"closed", false).await.expect("it is removed");
    assert!(first.look_up(made, b"others").await.is_err());
    // The server frees what nobody has open in the background.
    tokio::time::sleep(Duration::from_millis(500)).await;
    use_open(&own, b"own").await;
    use_open(&others, b"others").await;
    own.close().await;
    others.close().await;
    assert_eq!(count(&second, made).await, 2);
}

#[tokio::test]
async fn new_file_handle_works_everywhere() {
    let volume = TestVolume::new("local-handles").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let mut local = 0;
    for round in 0..20_u64 {
        let made = directory(&first, format!("d{round}").as_bytes()).await;
        let before = first.figures().local;
        for number in 0..10 {
            let file = first.create(made, &name(number), file()).await.expect("it is made");
            // As by its handle: the other host knows the number alone.
            if number == 9 {
                let found = second.attributes(file.id()).await.expect("it is there");
                assert_eq!(found, first.attributes(file.id()).await.expect("it is there"));
            }
        }
        local += first.figures().local - before;
    }
    assert!(local > 100, "{local} of 200");
    let unknown = FileId { inode: 1 << 40, generation: 1 };
    assert_eq!(second.attributes(unknown).await.map_err(|error| error.errno()), Err(libc::ESTALE));
}

#[tokio::test]
async fn mass_recall_keeps_connections() {
    const DIRECTORIES: u64 = 1000;
    let volume = TestVolume::new("local-many").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let above = directory(&first, b"above").await;
    let new = NewInode { mode: libc::S_IFDIR | 0o755, ..NewInode::default() };
    for number in 0..DIRECTORIES {
        first.create(above, &name(number), new.clone()).await.expect("it is made");
    }
    settled(&first).await;
    assert!(first.figures().local_directories as u64 > DIRECTORIES / 2, "{:?}", first.figures());
    assert_eq!(count(&second, above).await as u64, DIRECTORIES);
    assert_eq!((first.figures().reconnections, first.figures().local_directories), (0, 0));
}

/// Makes and fills directories, and removes them, until `is_over`; counts them.
async fn churn(client: VolumeClient, above: FileId, is_over: Arc<AtomicBool>, made: Arc<AtomicU64>) {
    while !is_over.load(Ordering::Acquire) {
        let number = made.fetch_add(1, Ordering::AcqRel);
        let new = NewInode { mode: libc::S_IFDIR | 0o755, ..NewInode::default() };
        let directory = client.create(above, &name(number), new).await.expect("it is made").id();
        make(&client, directory, 0..4).await;
        for number in 0..4 {
            client.unlink(directory, &name(number), false).await.expect("it is removed");
        }
        if number >= 8 {
            client.unlink(above, &name(number - 8), true).await.expect("it is removed");
        }
    }
}

#[tokio::test]
async fn listing_and_making_directories_starve_neither() {
    /// So often a host lists, each time for no longer than this, while the other one makes so many directories.
    const LISTINGS: u64 = 100;
    const LISTING_TIME_MAX: Duration = Duration::from_secs(2);
    const TIME_MAX: Duration = Duration::from_secs(60);
    let volume = TestVolume::new("local-starve").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect_local(0).await, volume.connect_local(1).await);
    let above = directory(&first, b"above").await;
    let (is_over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let maker = tokio::spawn(churn(first.clone(), above, is_over.clone(), made.clone()));
    let began = Instant::now();
    let (mut listings, mut longest) = (0, Duration::ZERO);
    while listings < LISTINGS || made.load(Ordering::Acquire) < LISTINGS {
        let at = Instant::now();
        count(&second, above).await;
        longest = longest.max(at.elapsed());
        listings += 1;
        assert!(began.elapsed() < TIME_MAX, "{listings} listings, {made:?} directories");
    }
    is_over.store(true, Ordering::Release);
    maker.await.expect("it ends");
    println!("{listings} listings, the longest {longest:?}; {made:?} directories, {:?}", began.elapsed());
    assert!(longest < LISTING_TIME_MAX, "{longest:?}");
}

#[tokio::test]
async fn long_links_are_made_at_the_server() {
    /// What room is kept for.
    const TARGET_BYTES_MAX: usize = 255;
    let volume = TestVolume::new("local-links").await;
    let _server = volume.serve(&[0]).await;
    let first = volume.connect_local(0).await;
    let made = directory(&first, b"d").await;
    make(&first, made, 0..2).await;
    let link = |bytes| NewInode { mode: libc::S_IFLNK | 0o777, target: vec![b't'; bytes], ..NewInode::default() };
    let before = first.figures().local;
    first.create(made, b"short", link(TARGET_BYTES_MAX)).await.expect("it is made");
    first.create(made, b"long", link(TARGET_BYTES_MAX + 1)).await.expect("it is made");
    assert_eq!(first.figures().local, before + 1);
    first.stored().await.expect("the server has taken both");
    assert_eq!(count(&first, made).await, 4);
}

/// Fills the disk by one file; returns it.
async fn fill(client: &VolumeClient) -> OpenFile {
    const STEP: u64 = 4 << 20;
    let (_, open) = client.create_open(ROOT, b"large", file()).await.expect("it is made");
    let mut at = 0;
    let full = loop {
        match open.allocate(at, STEP, 0).await {
            Ok(()) => at += STEP,
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno(), libc::ENOSPC, "after {at} bytes");
    open
}

#[tokio::test]
async fn refused_numbers_are_requested_again() {
    let volume = TestVolume::with_bytes("local-refused", 256 << 20).await;
    let server = volume.serve(&[0, 1]).await;
    let tried = async {
        let filler = volume.connect(1).await;
        let large = fill(&filler).await;
        let first = volume.connect_local(0).await;
        // There is room for names.
        let made = directory(&first, b"d").await;
        make(&first, made, 0..20).await;
        assert_eq!((first.figures().local, first.figures().local_directories), (0, 0), "no room for numbers");
        large.close().await;
        filler.unlink(ROOT, b"large", false).await.expect("it is removed");
        let until = Instant::now() + Duration::from_secs(40);
        let mut number = 20;
        while first.figures().local == 0 {
            assert!(Instant::now() < until, "{:?}", first.figures());
            make(&first, made, number..number + 1).await;
            number += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        why = server.ended() => panic!("the server has ended: {why}"),
        () = tried => {}
    }
}

#[tokio::test]
async fn rename_reports_moved_and_replaced() {
    let volume = TestVolume::new("local-rename").await;
    let _server = volume.serve(&[0, 1]).await;
    let (first, second) = (volume.connect(0).await, volume.connect(1).await);
    let mut files = Vec::new();
    for name in [&b"a"[..], b"b", b"c", b"d"] {
        files.push(first.create(ROOT, name, file()).await.expect("it is made").id());
    }
    // The first host knows other inodes by these names.
    second.rename((ROOT, b"c"), (ROOT, b"a"), 0).await.expect("it is moved");
    second.rename((ROOT, b"d"), (ROOT, b"b"), 0).await.expect("it is moved");
    let renamed = first.rename_inodes((ROOT, b"a"), (ROOT, b"b"), 0).await.expect("it is moved");
    assert_eq!(renamed, [files[2], files[3]]);
    let renamed = first.rename_inodes((ROOT, b"b"), (ROOT, b"e"), 0).await.expect("it is moved");
    assert_eq!(renamed, [files[2]]);
}
