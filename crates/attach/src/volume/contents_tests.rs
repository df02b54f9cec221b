//! Two mounts' cached contents against a model: each read on one host sees all that was done before on the other.

use std::sync::atomic::{AtomicU32, Ordering};

use nectary_block::{Buffer, FileDevice, Filter, OpenOptions, SharedDevice};
use nectary_buffer::WriteMode;
use nectary_volume::client::{ClientOptions, NewInode, OpenAccess, ServerAddress, VolumeClient, WritePosition};
use nectary_volume::format::VolumeIdentity;
use nectary_volume::journal::{FormatOptions, format};
use nectary_volume::metadata::first;
use nectary_volume::server::{MetadataServer, ServerOptions};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use tokio::sync::watch;

use super::*;

const ROOT: FileId = FileId { inode: 1, generation: 1 };
const VOLUME: VolumeIdentity = VolumeIdentity([7; 16]);
const STEPS: usize = 400;
/// The largest size of the file. *Units*: bytes.
const SIZE_MAX: u64 = 200_000;
/// What a mount is told by its client.
const TOLD: [&str; 2] = ["changed", "released"];

/// The caches above a client, which are not told of everything if a bug is planted.
struct ClientCaches {
    contents: Arc<CachedContents>,
    deaf_to: Option<&'static str>,
}

impl HostKernel for ClientCaches {
    fn invalidate(&self, _: u64, _: Range<u64>) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn grow(&self, _: u64, _: u64) -> oneshot::Receiver<()> {
        oneshot::channel().1
    }

    fn changed(&self, file: FileId, range: Range<u64>) {
        if self.deaf_to != Some("changed") {
            self.contents.changed(file, range);
        }
    }

    fn written(&self, file: FileId, offset: u64, data: &[Buffer], size: u64) {
        if self.deaf_to != Some("changed") {
            self.contents.written(file, offset, data, size);
        }
    }

    fn released(&self, file: FileId, version: u64) {
        if self.deaf_to != Some("released") {
            self.contents.released(file, version);
        }
    }

    fn session_began(&self) {
        self.contents.session_began();
    }
}

/// A disk that writes only while its gate is open.
struct GatedDisk {
    inner: SharedDevice,
    is_open: watch::Sender<bool>,
}

impl Filter for GatedDisk {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn write_at(&self, offset: u64, data: Vec<Buffer>, flags: WriteFlags, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let (inner, mut is_open) = (self.inner.clone(), self.is_open.subscribe());
        Box::pin(async move {
            let _ = is_open.wait_for(|is_open| *is_open).await;
            inner.write_at(offset, data, flags, context).await
        })
    }
}

struct ContentsHost {
    client: VolumeClient,
    contents: Arc<CachedContents>,
    opened: Option<Arc<OpenFile>>,
    gate: watch::Sender<bool>,
    /// Begins the next session over the same contents.
    next: Box<dyn Fn() -> NextSession>,
}

type NextSession = std::pin::Pin<Box<dyn Future<Output = VolumeClient>>>;

impl ContentsHost {
    async fn new(device: SharedDevice, socket: ServerAddress, deaf_to: Option<&'static str>) -> ContentsHost {
        let options = CacheOptions {
            memory_bytes: 8 << 20,
            policy: "lru".to_owned(),
            mode: WriteMode::ReadOnly,
            ..CacheOptions::default()
        };
        let contents = Arc::new(CachedContents::new(options).unwrap());
        let above = Arc::new(ClientCaches { contents: contents.clone(), deaf_to });
        let options = ClientOptions {
            servers: vec![socket],
            tls: None,
            volume: VOLUME,
            host: "here".to_owned(),
            kind: 2,
            are_names_synced: false,
            are_names_local: false,
        };
        let gate = watch::Sender::new(true);
        let device: SharedDevice = Arc::new(GatedDisk { inner: device, is_open: gate.clone() });
        let next: Box<dyn Fn() -> NextSession> = Box::new(move || {
            let client = VolumeClient::connect(device.clone(), options.clone(), above.clone());
            Box::pin(async move { client.await.unwrap() })
        });
        ContentsHost { client: next().await, contents, opened: None, gate, next }
    }

    async fn file(&mut self, id: FileId) -> Arc<OpenFile> {
        if self.opened.is_none() {
            self.opened = Some(Arc::new(self.client.open(id, OpenAccess::Both, false).await.unwrap()));
        }
        self.opened.clone().unwrap()
    }

    async fn read(&mut self, id: FileId, offset: u64, length: usize) -> Vec<u8> {
        let file = self.file(id).await;
        self.contents.read(&file, offset, length, AccessStream(1)).await.unwrap().slices().concat()
    }
}

/// Runs `operate` on two hosts. Returns its error, or the number of hits.
async fn with_hosts(
    deaf_to: Option<&'static str>,
    operate: impl AsyncFnOnce(&mut [ContentsHost]) -> Result<(), String>,
) -> Result<u64, String> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("nectary-contents-{}-{run}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("disk");
    std::fs::File::create(&path).and_then(|file| file.set_len(256 << 20)).unwrap();
    let options = OpenOptions { is_shared: true, ..OpenOptions::default() };
    let device: SharedDevice = Arc::new(FileDevice::open_file(&path, &options).await.unwrap());
    let options = FormatOptions {
        name: String::new(),
        segment_blocks: 2048,
        lease_ms: 5000,
        drift_per_mille: 10,
        force: false,
        volume: VOLUME,
        hash_key: [3; 16],
        created_s: 1,
    };
    format(&device, &options, |layout| first(layout, 1)).await.unwrap();
    let socket = ServerAddress::Unix(directory.join("socket"));
    let options = ServerOptions {
        listen: vec![socket.clone()],
        tls: None,
        number: 0,
        host: "here".to_owned(),
        previous_gone: true,
        said_gone: Vec::new(),
    };
    let server = MetadataServer::start(device.clone(), options).await.unwrap();
    let mut hosts = Vec::new();
    for _ in 0..2 {
        hosts.push(ContentsHost::new(device.clone(), socket.clone(), deaf_to).await);
    }
    let result = operate(&mut hosts).await;
    for host in &hosts {
        host.client.stop();
    }
    server.stop().await.unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    result.map(|()| hosts.iter().map(|host| host.contents.stats().hits).sum())
}

/// Runs operations of two hosts in turn. Returns a description of the first wrong read, and the number of hits.
async fn run(seed: u64, deaf_to: Option<&'static str>) -> Result<u64, String> {
    with_hosts(deaf_to, async |hosts| operate(hosts, seed).await).await
}

async fn operate(hosts: &mut [ContentsHost], seed: u64) -> Result<(), String> {
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut below = move |limit: u64| random.next_u64() % limit;
    let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
    let id = hosts[0].client.create(ROOT, b"file", new).await.unwrap().id();
    let mut model: Vec<u8> = Vec::new();
    for step in 0..STEPS {
        let host = &mut hosts[below(2) as usize];
        let (offset, length) = (below(SIZE_MAX), below(20_000) + 1);
        let end = (offset + length).min(SIZE_MAX);
        let what = below(12);
        match what {
            0 | 1 => {
                let bytes = vec![step as u8 + 1; (end - offset) as usize];
                let file = host.file(id).await;
                host.contents.begin_write(&file);
                file.write(WritePosition::Offset(offset), vec![Buffer::copy_of(&bytes)]).await.unwrap();
                model.resize(model.len().max(end as usize), 0);
                model[offset as usize..end as usize].copy_from_slice(&bytes);
            }
            2 => {
                host.file(id).await.truncate(offset).await.unwrap();
                model.resize(offset as usize, 0);
            }
            3 => {
                let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
                host.file(id).await.allocate(offset, end - offset, mode).await.unwrap();
                let (start, stop) = ((offset as usize).min(model.len()), (end as usize).min(model.len()));
                model[start..stop].fill(0);
            }
            4 => {
                if let Some(file) = host.opened.take() {
                    file.close().await;
                }
            }
            _ => {
                let (start, stop) = ((offset as usize).min(model.len()), (end as usize).min(model.len()));
                for _ in 0..2 {
                    let read = host.read(id, offset, (end - offset) as usize).await;
                    if read != model[start..stop] {
                        return Err(format!("seed {seed}, step {step}: wrong bytes at {offset} to {end}"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Each cached read sees everything done before on either host.
#[tokio::test]
async fn cached_read_sees_earlier_changes() {
    let mut hits = 0;
    for seed in 0..2 {
        hits += run(seed, None).await.unwrap();
    }
    assert!(hits > 300, "{hits} hits");
}

/// A cache that is not told of changes or of returned tokens is caught as a planted bug.
#[tokio::test]
async fn untold_changes_are_noticed() {
    for deaf_to in TOLD {
        let mut is_noticed = false;
        for seed in 0..4 {
            is_noticed = is_noticed || run(seed, Some(deaf_to)).await.is_err();
        }
        assert!(is_noticed, "not told of what was {deaf_to}");
    }
}

#[tokio::test]
async fn truncated_blocks_stay_gone() {
    let cut = async |hosts: &mut [ContentsHost]| {
        let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
        let id = hosts[0].client.create(ROOT, b"file", new).await.unwrap().id();
        let here = hosts[0].file(id).await;
        here.write(WritePosition::Offset(0), vec![Buffer::copy_of(&vec![5; SIZE_MAX as usize])]).await.unwrap();
        assert_eq!(hosts[0].read(id, 150_000, 10_000).await, [5; 10_000]);
        hosts[1].file(id).await.truncate(0).await.unwrap();
        // The host that has the blocks learns of the cut by a write, not by a read.
        hosts[0].contents.begin_write(&here);
        here.write(WritePosition::Offset(0), vec![Buffer::copy_of(&[6; 100])]).await.unwrap();
        assert_eq!(hosts[0].read(id, 0, 200).await, [6; 100]);
        here.truncate(SIZE_MAX).await.unwrap();
        let read = hosts[0].read(id, 150_000, 10_000).await;
        if read == [0; 10_000] { Ok(()) } else { Err(format!("{:?} came back", &read[..4])) }
    };
    with_hosts(None, cut).await.unwrap();
}

/// The disk ends a write when its session has ended, and the next session has the same block in memory.
#[tokio::test]
async fn late_write_stays_out_of_next_session() {
    let write = async |hosts: &mut [ContentsHost]| {
        let [host, other] = hosts else { panic!("there are two") };
        let new = NewInode { mode: libc::S_IFREG | 0o644, ..NewInode::default() };
        let id = host.client.create(ROOT, b"file", new).await.unwrap().id();
        let bytes = |value| vec![Buffer::copy_of(&[value; 4096])];
        // The session that ends must have nothing to commit: it would wait for the disk.
        other.file(id).await.write(WritePosition::Offset(0), bytes(1)).await.unwrap();
        let before = host.file(id).await;
        let _ = host.gate.send_replace(false);
        let late = tokio::spawn({
            let before = before.clone();
            async move { before.write(WritePosition::Offset(0), bytes(2)).await.map(drop) }
        });
        while host.gate.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
        let ending = tokio::spawn({
            let client = host.client.clone();
            async move { client.close().await }
        });
        let _ = host.client.over().await;
        assert!(!late.is_finished(), "the disk writes");
        host.opened = None;
        host.client = (host.next)().await;
        assert_eq!(host.read(id, 0, 4096).await, [1; 4096]);
        let _ = host.gate.send_replace(true);
        let (late, _) = (late.await.unwrap(), ending.await.unwrap());
        let read = host.read(id, 0, 4096).await;
        match (read == [1; 4096], late.is_err()) {
            (true, true) => Ok(()),
            (is_kept, _) => Err(format!("{late:?}, and the next session reads what is there: {is_kept}")),
        }
    };
    with_hosts(None, write).await.unwrap();
}

#[test]
fn short_contents_end_in_zeroes() {
    let mut buffers = vec![Buffer::copy_of(&[9; 3]), Buffer::copy_of(&[9; 3])];
    copy(&[b"ab", b"", b"cd"], &mut buffers);
    assert_eq!((&buffers[0][..], &buffers[1][..]), (&b"abc"[..], &b"d\0\0"[..]));
}
