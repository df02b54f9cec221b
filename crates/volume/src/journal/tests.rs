//! The journal on plain files: making, starting, appending, checkpoints, starting again.

use std::sync::Arc;

use nectary_block::{FileDevice, Filter, Geometry, OpenOptions, SharedDevice, Survives};

use super::{Error, FormatOptions, Layout, Log, StartOptions, apply, format, read};
use crate::format::{Action, ExtentState, Identity, Key, Mutation, Space, Transaction, TransactionKind};
use crate::origin::Origin;
use crate::tables::Tables;

pub(super) const SEGMENT_BLOCKS: u64 = 2048;

/// A sparse file of 512 MiB, without a name.
pub(super) struct Scratch(std::path::PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("nectary-volume-{}-{name}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        Scratch(path)
    }

    pub async fn open(&self) -> SharedDevice {
        Arc::new(FileDevice::open_file(&self.0, &OpenOptions::default()).await.unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(super) fn options() -> FormatOptions {
    FormatOptions {
        name: "shared".to_owned(),
        segment_blocks: SEGMENT_BLOCKS,
        lease_ms: 1000,
        drift_per_mille: 10,
        force: false,
        volume: Identity([7; 16]),
        hash_key: [3; 16],
        created_s: 1,
    }
}

pub(super) fn server(incarnation: u8) -> StartOptions {
    StartOptions { server: 0, host: "a".to_owned(), incarnation: [incarnation; 16], ..StartOptions::default() }
}

fn space(block: u64, epoch: u64) -> Mutation {
    let space = Space { blocks: SEGMENT_BLOCKS, state: ExtentState::Metadata, owner: epoch, since: 1 };
    Mutation { table: Key::Space(block).table(), key: Key::Space(block).encode(), action: Action::Put(space.encode()) }
}

pub(super) fn first(layout: &Layout) -> Vec<Mutation> {
    layout.segments.iter().map(|segment| space(segment.block, segment.epoch)).collect()
}

pub(super) fn put(inode: u64, bytes: usize) -> Transaction {
    let key = Key::Inode(inode);
    let mutation = Mutation { table: key.table(), key: key.encode(), action: Action::Put(vec![inode as u8; bytes]) };
    let (kind, mutations) = (TransactionKind::Operation, vec![mutation]);
    Transaction { kind, session: 9, number: inode, reply: vec![1, 2], mutations }
}

/// A server with its tables, and the first block that files have never used.
pub(super) struct Server {
    pub log: Log,
    tables: Tables,
    next: u64,
}

impl Server {
    pub async fn start(device: SharedDevice, options: StartOptions, next: u64) -> Server {
        let (log, tables) = Log::start(device, options).await.unwrap();
        Server { log, tables, next }
    }

    pub async fn append(&mut self, transactions: Vec<Transaction>) {
        for transaction in &transactions {
            apply(&mut self.tables, transaction).unwrap();
        }
        self.log.append(transactions).await.unwrap();
    }

    pub async fn segment(&mut self) -> u64 {
        let block = self.next;
        self.next += SEGMENT_BLOCKS;
        let (kind, mutations) = (TransactionKind::Server, vec![space(block, self.log.epoch())]);
        self.append(vec![Transaction { kind, session: 0, number: 0, reply: Vec::new(), mutations }]).await;
        block
    }

    async fn checkpoint(&mut self) -> Vec<u64> {
        let mut segments = Vec::new();
        for _ in 0..self.log.segments_for_checkpoint(&self.tables) {
            segments.push(self.segment().await);
        }
        self.log.checkpoint(&self.tables, segments).await.unwrap()
    }
}

#[tokio::test]
async fn appends_survive_a_new_start() {
    let file = Scratch::new("appends");
    let device = file.open().await;
    let label = format(&device, &options(), first).await.unwrap();
    assert_eq!(label.first_segment, 2048);
    let again = format(&device, &options(), first).await;
    assert!(again.is_err_and(|error| error.to_string().contains("is the volume \"shared\" already")));
    let mut one = Server::start(device.clone(), server(1), 40 * SEGMENT_BLOCKS).await;
    assert_eq!((one.log.epoch(), one.log.next_sequence()), (2, 2));
    one.append((0..5000).map(|inode| put(inode, 100)).collect()).await;
    assert_eq!(one.log.next_sequence(), 4, "4096 transactions are the most of an append");
    assert_eq!(one.tables.get(&Key::Reply(9, 17)), Some(&[0, 0, 0, 0, 2, 0, 0, 0, 1, 2][..]));
    one.log.resign().await.unwrap();
    let two = Server::start(device.clone(), server(2), 0).await;
    assert_eq!((two.log.epoch(), two.tables == one.tables), (3, true));
    let volume = read(&device).await.unwrap();
    assert_eq!((volume.head.epoch, volume.last_sequence, volume.tables == one.tables), (3, 3, true));
}

#[tokio::test]
async fn segments_and_checkpoints_survive_new_starts() {
    let file = Scratch::new("checkpoints");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut next = 20 * SEGMENT_BLOCKS;
    let mut expected = None;
    for round in 1..=3 {
        let mut one = Server::start(device.clone(), server(round), next).await;
        assert!(expected.is_none_or(|expected| expected == one.tables), "round {round}");
        let mut checkpoints = 0;
        for step in 0..12u64 {
            while one.log.wants_segment() {
                let segment = one.segment().await;
                one.log.give_segment(segment);
            }
            // The attributes of a few inodes, 2 MiB in total.
            one.append((0..40).map(|inode| put(inode + u64::from(round), 52_000 + step as usize)).collect()).await;
            if one.log.checkpoint_due() {
                checkpoints += 1;
                let free = one.checkpoint().await;
                assert!(step == 0 || !free.is_empty());
            }
        }
        assert!(checkpoints > 0);
        next = one.next;
        expected = Some(one.tables.clone());
        one.log.resign().await.unwrap();
    }
    assert_eq!(Some(read(&device).await.unwrap().tables), expected);
}

#[tokio::test]
async fn what_is_too_long_is_refused_and_nothing_is_written() {
    let file = Scratch::new("bounds");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut one = Server::start(device.clone(), server(1), 0).await;
    let error = one.log.append(vec![put(1, 65545)]).await;
    assert!(matches!(error, Err(Error::Bounds(_))), "{error:?}");
    let error = one.log.append((0..200).map(|inode| put(inode, 65000)).collect()).await;
    assert!(matches!(error, Err(Error::NoSegment)), "{error:?}");
    assert_eq!(one.log.next_sequence(), 2);
    one.append(vec![put(1, 10)]).await;
}

/// A device whose writes stay in this process until they are flushed, as behind a write-back cache.
struct WriteBack(SharedDevice);

impl Filter for WriteBack {
    fn inner(&self) -> &SharedDevice {
        &self.0
    }

    fn spec(&self) -> String {
        format!("back({})", self.0.spec())
    }

    fn geometry(&self) -> Geometry {
        Geometry { write_survives: Survives::Nothing, ..self.0.geometry() }
    }
}

#[tokio::test]
async fn a_device_whose_writes_survive_nothing_is_refused() {
    let file = Scratch::new("back");
    let device: SharedDevice = Arc::new(WriteBack(file.open().await));
    let error = format(&device, &options(), first).await.expect_err("it is refused");
    assert!(matches!(error, Error::Refused(_)) && error.to_string().contains("give the disk itself"), "{error}");
}

#[tokio::test]
async fn the_last_start_on_a_full_disk_waits_for_an_operators_word() {
    let file = Scratch::new("last");
    let device = file.open().await;
    let label = format(&device, &options(), first).await.unwrap();
    let mut one = Server::start(device.clone(), server(1), 0).await;
    // Files fill everything behind the 16 segments that are set aside.
    let start = 17 * SEGMENT_BLOCKS;
    let data = Space { blocks: label.blocks - start, state: ExtentState::Data, owner: 9, since: 1 };
    let key = Key::Space(start);
    let mutation = Mutation { table: key.table(), key: key.encode(), action: Action::Put(data.encode()) };
    let (kind, mutations) = (TransactionKind::Server, vec![mutation]);
    one.append(vec![Transaction { kind, session: 0, number: 0, reply: Vec::new(), mutations }]).await;
    drop(one);
    let again = |incarnation| StartOptions { previous_gone: true, ..server(incarnation) };
    for incarnation in 2..=14 {
        let epoch = Server::start(device.clone(), again(incarnation), 0).await.log.epoch();
        assert_eq!(epoch, u64::from(incarnation) + 1);
    }
    for incarnation in [15, 16] {
        let refused = Log::start(device.clone(), again(incarnation)).await.err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|words| words.contains("--confirm-gone HOST")), "{refused:?}");
    }
    let said = StartOptions { said_gone: vec!["a".to_owned()], ..again(17) };
    assert_eq!(Server::start(device.clone(), said, 0).await.log.epoch(), 16);
}

/// A second start with this server's number, on a host of the same name, while the first one leads and renews.
async fn beside_a_leader(name: &str, first: Origin, second: StartOptions) -> (Option<Error>, Result<(), Error>) {
    let file = Scratch::new(name);
    let device = file.open().await;
    format(&device, &options(), self::first).await.unwrap();
    let mut leader = Server::start(device.clone(), StartOptions { origin: first, ..server(1) }, 0).await;
    let renewing = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            if let Err(error) = leader.log.renew().await {
                return error;
            }
        }
    };
    let refused = tokio::select! {
        lost = renewing => panic!("the leader is deposed: {lost}"),
        started = Log::start(device.clone(), second) => started.err(),
    };
    let renewed = leader.log.renew().await;
    (refused, renewed)
}

#[tokio::test]
async fn living_leader_is_never_deposed() {
    let here = Origin { machine: 1, kernel: 2, domain: 3 };
    let again = StartOptions { previous_gone: true, ..server(2) };
    let by_another_path = StartOptions { origin: Origin { domain: 4, ..here }, ..again.clone() };
    let on_another_kernel = StartOptions { origin: Origin { kernel: 9, ..here }, ..again.clone() };
    let on_another_machine = StartOptions { origin: Origin { machine: 9, kernel: 9, domain: 3 }, ..again.clone() };
    let said_gone = StartOptions { said_gone: vec!["a".to_owned()], ..by_another_path.clone() };
    for (name, second) in [
        ("another path", by_another_path),
        ("another kernel", on_another_kernel),
        ("another machine", on_another_machine),
        ("said gone", said_gone),
    ] {
        let (refused, renewed) = beside_a_leader(&name.replace(' ', "-"), here, second).await;
        assert!(matches!(refused, Some(Error::Led { server: 0, .. })), "{name}: {refused:?}");
        assert!(renewed.is_ok(), "{name}: {renewed:?}");
    }
}

#[tokio::test]
async fn silent_leader_of_earlier_kernel_is_gone() {
    let here = Origin { machine: 1, kernel: 2, domain: 3 };
    let again = |incarnation, origin| StartOptions { previous_gone: true, origin, ..server(incarnation) };
    let file = Scratch::new("earlier-kernel");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    drop(Server::start(device.clone(), again(1, here), 0).await);
    // The lock of the same origin is a proof: nothing is waited for.
    let begun = std::time::Instant::now();
    let second = Server::start(device.clone(), again(2, here), 0).await;
    assert!(begun.elapsed() < std::time::Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!(second.log.gone(), [[1; 16]]);
    drop(second);
    // After a restart of the kernel, a lease passes first.
    let third = Server::start(device.clone(), again(3, Origin { kernel: 9, ..here }), 0).await;
    assert!(begun.elapsed() > std::time::Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(third.log.gone().contains(&[2; 16]));
    drop(third);
    // Whoever has another path, or another machine's name, is not known to be gone, and keeps its sector.
    for (incarnation, origin) in [(4, Origin { kernel: 9, domain: 5, ..here }), (5, Origin { machine: 7, ..here })] {
        let next = Server::start(device.clone(), again(incarnation, origin), 0).await;
        assert!(!next.log.gone().contains(&[incarnation - 1; 16]), "{incarnation}");
    }
}
