//! The journal on plain files: making, starting, appending, checkpoints, starting again.

use std::sync::Arc;

use nectary_block::{DeviceGeometry, FileDevice, Filter, OpenOptions, SharedDevice, SurvivalLevel};

use super::{Error, FormatOptions, LeaderJournal, StartOptions, VolumeLayout, apply, format, read};
use crate::format::{
    ExtentState, Mutation, MutationAction, SpaceRecord, TableKey, Transaction, TransactionKind, VolumeIdentity,
};
use crate::origin::ProcessOrigin;
use crate::tables::MetadataTables;

pub(super) const SEGMENT_BLOCKS: u64 = 2048;

/// A sparse file of 512 MiB, without a name.
pub(super) struct SparseFile(std::path::PathBuf);

impl SparseFile {
    pub fn new(name: &str) -> SparseFile {
        let path = std::env::temp_dir().join(format!("nectary-volume-{}-{name}", std::process::id()));
        std::fs::File::create(&path).unwrap().set_len(512 << 20).unwrap();
        SparseFile(path)
    }

    pub async fn open(&self) -> SharedDevice {
        Arc::new(FileDevice::open_file(&self.0, &OpenOptions::default()).await.unwrap())
    }
}

impl Drop for SparseFile {
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
        volume: VolumeIdentity([7; 16]),
        hash_key: [3; 16],
        created_s: 1,
    }
}

pub(super) fn server(incarnation: u8) -> StartOptions {
    StartOptions { server: 0, host: "a".to_owned(), incarnation: [incarnation; 16], ..StartOptions::default() }
}

fn space(block: u64, epoch: u64) -> Mutation {
    let space = SpaceRecord { blocks: SEGMENT_BLOCKS, state: ExtentState::Metadata, owner: epoch, since: 1 };
    Mutation {
        table: TableKey::Space(block).table(),
        key: TableKey::Space(block).encode(),
        action: MutationAction::Put(space.encode()),
    }
}

pub(super) fn first(layout: &VolumeLayout) -> Vec<Mutation> {
    layout.segments.iter().map(|segment| space(segment.block, segment.epoch)).collect()
}

pub(super) fn put(inode: u64, bytes: usize) -> Transaction {
    let key = TableKey::Inode(inode);
    let mutation =
        Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(vec![inode as u8; bytes]) };
    let (kind, mutations) = (TransactionKind::Operation, vec![mutation]);
    Transaction { kind, session: 9, number: inode, reply: vec![1, 2], mutations }
}

/// A server with its tables, and the first block that files have never used.
pub(super) struct JournalTestServer {
    pub log: LeaderJournal,
    tables: MetadataTables,
    next: u64,
}

impl JournalTestServer {
    pub async fn start(device: SharedDevice, options: StartOptions, next: u64) -> JournalTestServer {
        let (log, tables) = LeaderJournal::start(device, options).await.unwrap();
        JournalTestServer { log, tables, next }
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
    let file = SparseFile::new("appends");
    let device = file.open().await;
    let label = format(&device, &options(), first).await.unwrap();
    assert_eq!(label.first_segment, 2048);
    let again = format(&device, &options(), first).await;
    assert!(again.is_err_and(|error| error.to_string().contains("is the volume \"shared\" already")));
    let mut one = JournalTestServer::start(device.clone(), server(1), 40 * SEGMENT_BLOCKS).await;
    assert_eq!((one.log.epoch(), one.log.next_sequence()), (2, 2));
    one.append((0..5000).map(|inode| put(inode, 100)).collect()).await;
    assert_eq!(one.log.next_sequence(), 4, "4096 transactions are the most of an append");
    assert_eq!(one.tables.get(&TableKey::Reply(9, 17)), Some(&[0, 0, 0, 0, 2, 0, 0, 0, 1, 2][..]));
    one.log.resign().await.unwrap();
    let two = JournalTestServer::start(device.clone(), server(2), 0).await;
    assert_eq!((two.log.epoch(), two.tables == one.tables), (3, true));
    let volume = read(&device).await.unwrap();
    assert_eq!((volume.head.epoch, volume.last_sequence, volume.tables == one.tables), (3, 3, true));
}

#[tokio::test]
async fn segments_and_checkpoints_survive_new_starts() {
    let file = SparseFile::new("checkpoints");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut next = 20 * SEGMENT_BLOCKS;
    let mut expected = None;
    for round in 1..=3 {
        let mut one = JournalTestServer::start(device.clone(), server(round), next).await;
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

/// Nothing of the append is written.
#[tokio::test]
async fn oversized_append_is_refused() {
    let file = SparseFile::new("bounds");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    let mut one = JournalTestServer::start(device.clone(), server(1), 0).await;
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

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { write_survives: SurvivalLevel::Nothing, ..self.0.geometry() }
    }
}

/// A device whose writes do not survive the process cannot hold a volume.
#[tokio::test]
async fn volatile_device_is_refused() {
    let file = SparseFile::new("back");
    let device: SharedDevice = Arc::new(WriteBack(file.open().await));
    let error = format(&device, &options(), first).await.expect_err("it is refused");
    assert!(matches!(error, Error::Refused(_)) && error.to_string().contains("give the disk itself"), "{error}");
}

/// The start is refused until an operator confirms that the hosts of earlier servers are gone.
#[tokio::test]
async fn last_start_on_full_disk_refused() {
    let file = SparseFile::new("last");
    let device = file.open().await;
    let label = format(&device, &options(), first).await.unwrap();
    let mut one = JournalTestServer::start(device.clone(), server(1), 0).await;
    // Files fill everything behind the 16 segments that are set aside.
    let start = 17 * SEGMENT_BLOCKS;
    let data = SpaceRecord { blocks: label.blocks - start, state: ExtentState::Data, owner: 9, since: 1 };
    let key = TableKey::Space(start);
    let mutation = Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(data.encode()) };
    let (kind, mutations) = (TransactionKind::Server, vec![mutation]);
    one.append(vec![Transaction { kind, session: 0, number: 0, reply: Vec::new(), mutations }]).await;
    drop(one);
    let again = |incarnation| StartOptions { previous_gone: true, ..server(incarnation) };
    for incarnation in 2..=14 {
        let epoch = JournalTestServer::start(device.clone(), again(incarnation), 0).await.log.epoch();
        assert_eq!(epoch, u64::from(incarnation) + 1);
    }
    for incarnation in [15, 16] {
        let refused =
            LeaderJournal::start(device.clone(), again(incarnation)).await.err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|words| words.contains("--confirm-gone HOST")), "{refused:?}");
    }
    let said = StartOptions { said_gone: vec!["a".to_owned()], ..again(17) };
    assert_eq!(JournalTestServer::start(device.clone(), said, 0).await.log.epoch(), 16);
}

/// A second start with this server's number, on a host of the same name, while the first one leads and renews.
async fn beside_a_leader(name: &str, first: ProcessOrigin, second: StartOptions) -> (Option<Error>, Result<(), Error>) {
    let file = SparseFile::new(name);
    let device = file.open().await;
    format(&device, &options(), self::first).await.unwrap();
    let mut leader = JournalTestServer::start(device.clone(), StartOptions { origin: first, ..server(1) }, 0).await;
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
        started = LeaderJournal::start(device.clone(), second) => started.err(),
    };
    let renewed = leader.log.renew().await;
    (refused, renewed)
}

#[tokio::test]
async fn living_leader_is_never_deposed() {
    let here = ProcessOrigin { machine: 1, kernel: 2, domain: 3 };
    let again = StartOptions { previous_gone: true, ..server(2) };
    let by_another_path = StartOptions { origin: ProcessOrigin { domain: 4, ..here }, ..again.clone() };
    let on_another_kernel = StartOptions { origin: ProcessOrigin { kernel: 9, ..here }, ..again.clone() };
    let on_another_machine =
        StartOptions { origin: ProcessOrigin { machine: 9, kernel: 9, domain: 3 }, ..again.clone() };
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

/// The same origin proves it at once; after a restart of the host, a lease passes first.
#[tokio::test]
async fn earlier_boot_leader_is_gone() {
    let here = ProcessOrigin { machine: 1, kernel: 2, domain: 3 };
    let again = |incarnation, origin| StartOptions { previous_gone: true, origin, ..server(incarnation) };
    let file = SparseFile::new("earlier-kernel");
    let device = file.open().await;
    format(&device, &options(), first).await.unwrap();
    drop(JournalTestServer::start(device.clone(), again(1, here), 0).await);
    // The lock of the same origin is a proof: nothing is waited for.
    let begun = std::time::Instant::now();
    let second = JournalTestServer::start(device.clone(), again(2, here), 0).await;
    assert!(begun.elapsed() < std::time::Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!(second.log.gone(), [[1; 16]]);
    drop(second);
    // After a restart of the kernel, a lease passes first.
    let third = JournalTestServer::start(device.clone(), again(3, ProcessOrigin { kernel: 9, ..here }), 0).await;
    assert!(begun.elapsed() > std::time::Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(third.log.gone().contains(&[2; 16]));
    drop(third);
    // Whoever has another path, or another machine's name, is not known to be gone, and keeps its sector.
    for (incarnation, origin) in
        [(4, ProcessOrigin { kernel: 9, domain: 5, ..here }), (5, ProcessOrigin { machine: 7, ..here })]
    {
        let next = JournalTestServer::start(device.clone(), again(incarnation, origin), 0).await;
        assert!(!next.log.gone().contains(&[incarnation - 1; 16]), "{incarnation}");
    }
}
