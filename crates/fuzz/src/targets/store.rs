//! Targets of `nectary-store`: each on-disk structure, and a whole image that is opened as a store.
//!
//! Bit 0 of an input's first byte chooses whether checksums, identity and addresses are corrected. For a whole image,
//! bits 1 and 2 choose the image that the input changes.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use nectary_block::{Buffer, MemoryDevice, SharedDevice, write};
use nectary_store::fuzzing::{self, FuzzSpan, IDENTITY, SEGMENT_BYTES, SPAN_BYTES};
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind};

use super::choices;
use crate::{pieces, units};

/// Magics, a version, a length.
pub const WORDS: &[&[u8]] =
    &[b"NSUP", b"NSTA", b"NPRG", b"NCKH", b"NCKC", b"NHOT", b"NAPP", b"NREC", b"\x01\0\0\0", b"\x80\0\0\0"];

const BLOCK_BYTES: usize = 4096;
/// The epoch that the targets read.
const EPOCH: u64 = 1;
/// The largest number of bytes that are read from a body.
const BODY_BYTES_MAX: u64 = 1 << 20;
/// The size of the golden images of the store's tests. *Units*: bytes.
const GOLDEN_BYTES: usize = 2 << 20;
/// The keys of the golden images, and one key of the small store.
const KEYS: [&str; 15] = [
    "http://example.org/0",
    "http://example.org/1",
    "http://example.org/2",
    "http://example.org/3",
    "http://example.org/4",
    "http://example.org/5",
    "http://example.org/6",
    "http://example.org/7",
    "http://example.org/8",
    "http://example.org/9",
    "http://example.org/10",
    "http://example.org/11",
    "long",
    "absent",
    "",
];

/// Tags of the small store's objects.
const TAGS: [&[u8]; 2] = [b"site-1", b"product-7"];

static CLOSED: LazyLock<Vec<u8>> =
    LazyLock::new(|| from_sparse(include_bytes!("../../../store/tests/data/store-1-closed.image")));
static CRASHED: LazyLock<Vec<u8>> =
    LazyLock::new(|| from_sparse(include_bytes!("../../../store/tests/data/store-1-crashed.image")));

/// Reads a golden image in the form that `crates/store/tests/golden_images.rs` writes.
fn from_sparse(bytes: &[u8]) -> Vec<u8> {
    const SPARSE_BYTES: usize = 512;
    let mut image = vec![0; GOLDEN_BYTES];
    for unit in bytes.chunks(4 + SPARSE_BYTES) {
        let at = u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]) as usize * SPARSE_BYTES;
        image[at..at + unit.len() - 4].copy_from_slice(&unit[4..]);
    }
    image
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}

fn span() -> FuzzSpan {
    FuzzSpan::new().expect("the constants fit")
}

/// Makes a device with the pieces of an input in one area of the span.
fn area(input: &[u8], (start, length): (u64, u64)) -> SharedDevice {
    let (choices, rest) = choices(input);
    let mut area = vec![0; length as usize];
    pieces::place(rest, &mut area);
    if choices & 1 == 1 {
        units::seal_store(&mut area, start, IDENTITY);
    }
    let device = MemoryDevice::new(SPAN_BYTES);
    block_on(write(&device, start, Buffer::copy_of(&area))).expect("it lies on the span");
    Arc::new(device)
}

/// Makes one unit, padded with zeroes to a block.
fn unit(input: &[u8], address: u64) -> Vec<u8> {
    let (choices, rest) = choices(input);
    let mut unit = rest.to_vec();
    unit.resize(rest.len().max(BLOCK_BYTES), 0);
    if choices & 1 == 1 {
        units::seal_store(&mut unit, address, IDENTITY);
    }
    unit
}

/// Reads a superblock. Checks that an accepted superblock is written with the same fields; reserved bytes are not
/// compared.
pub fn superblock(input: &[u8]) {
    let bytes = unit(input, 0);
    if let Some(written) = fuzzing::superblock(&bytes) {
        assert_eq!(fuzzing::superblock(&written).as_ref(), Some(&written));
        for fields in [64..196, 200..264] {
            assert_eq!(written[fields.clone()], bytes[fields], "a field that was not checked");
        }
    }
}

/// Reads the two slots of the state.
pub fn state(input: &[u8]) {
    let span = span();
    let device = area(input, span.state());
    let (life, changes) = block_on(span.read_state(&device));
    assert!(life < 1 << 24 && changes < 1 << 63);
}

/// Reads the header and table of an append, and checks that every record is within the segment.
pub fn append(input: &[u8]) {
    let start = span().segment(EPOCH).0;
    for (at, length) in fuzzing::append(&unit(input, start), EPOCH, start).unwrap_or_default() {
        assert!(at * 64 >= 128 && at * 64 + length <= SEGMENT_BYTES, "a record outside of the segment");
    }
}

/// Reads a record, and checks that its parts are consecutive.
pub fn record(input: &[u8]) {
    let start = span().segment(EPOCH).0;
    let bytes = unit(input, start);
    if let Some(parts) = fuzzing::record(&bytes, EPOCH, start) {
        let lengths = parts.iter().map(Vec::len).sum::<usize>();
        assert_eq!(parts.concat(), bytes[144..144 + lengths]);
    }
}

/// Reads a segment as recovery does: once by roll-forward, and once record by record.
pub fn segment(input: &[u8]) {
    let span = span();
    let (start, length) = span.segment(EPOCH);
    let device = area(input, (start, length));
    for is_recent in [false, true] {
        let found = block_on(span.read_segment(&device, EPOCH, is_recent));
        assert!(found.end <= length && found.records <= length / 64);
        assert!(found.future.iter().all(|&address| address >= start + found.end && address < start + length));
    }
}

/// Reads both checkpoints; if one is valid, its index is loaded and used.
pub fn checkpoint(input: &[u8]) {
    let span = span();
    block_on(span.read_checkpoints(&area(input, span.checkpoints())));
}

/// Reads the hot lists of both checkpoints, and checks that they have no more places than fit in their chunks.
pub fn hot_list(input: &[u8]) {
    let span = span();
    let (places, damaged) = block_on(span.read_hot_lists(&area(input, span.checkpoints())));
    assert!(places <= 2 << 20 && damaged <= 512, "{places} places, {damaged} chunks");
}

/// Reads both copies of the purge log. Each read also compacts the log into a new cycle; a second read must find as
/// many records, and none lost. A cycle number that no log can reach is an error.
pub fn purge_log(input: &[u8]) {
    let span = span();
    let device = area(input, span.purge_log());
    let (rules, _) = match block_on(span.read_purge_log(&device)) {
        Ok(found) => found,
        Err(error) if error.kind == StoreErrorKind::Corrupt => return,
        Err(error) => panic!("memory takes every write: {error}"),
    };
    let again = block_on(span.read_purge_log(&device)).expect("memory takes every write");
    assert_eq!(again, (rules, false), "a compacted log does not come back whole");
}

/// Uses a whole image: opens, reads, checks, writes and closes it, and opens it again.
pub fn image(input: &[u8]) {
    let (choices, rest) = choices(input);
    let mut image = match choices >> 1 & 3 {
        0 => SMALL.clone(),
        1 => CLOSED.clone(),
        2 => CRASHED.clone(),
        _ => vec![0; SPAN_BYTES as usize],
    };
    pieces::place(rest, &mut image);
    if choices & 1 == 1 {
        let identity = image[16..32].try_into().map_or(IDENTITY, u128::from_le_bytes);
        units::seal_store(&mut image, 0, identity);
    }
    let device: SharedDevice = Arc::new(MemoryDevice::from_image(image));
    block_on(use_image(device));
}

fn open_options() -> OpenOptions {
    OpenOptions { memory_bytes: 8 << 20, write_delay: Duration::ZERO, ..OpenOptions::default() }
}

async fn use_image(device: SharedDevice) {
    let options = open_options();
    let Ok(store) = Store::open(device.clone(), options.clone()).await else { return };
    for key in KEYS {
        read(&store, key).await;
    }
    let report = store.check(|_, _| {}).await;
    assert!(report.objects + report.fragments + report.purged + report.damaged == report.entries, "{report:?}");
    store.purge_key(b"http://example.org/3").await.expect("memory takes every write");
    assert_eq!(read(&store, "http://example.org/3").await, None, "purged and found");
    let tagged = KeyRef::new(b"tagged", b"");
    let put = store.put_tagged(tagged, &[b"tag", TAGS[0]], "metadata".into(), Bytes::from_static(b"body")).await;
    put.expect("there is room for four bytes");
    store.purge_tag(TAGS[0]).await.expect("memory takes every write");
    assert_eq!(read(&store, "tagged").await, None, "purged by tag and found");
    let new = KeyRef::new(b"new", b"");
    let put = store.put_tagged(new, &[b"tag"], "metadata".into(), Bytes::from_static(b"body")).await;
    put.expect("there is room for four bytes");
    store.sync().await.expect("memory takes every write");
    assert_eq!(read(&store, "new").await.as_deref(), Some(&b"body"[..]), "put and not found");
    store.close().await.expect("memory takes every write");
    drop(store);
    let store = Store::open(device, options).await.expect("it was closed");
    assert_eq!(read(&store, "new").await.as_deref(), Some(&b"body"[..]), "synced, closed and not found");
    assert_eq!(read(&store, "http://example.org/3").await, None, "purged, closed and found");
    assert_eq!(read(&store, "tagged").await, None, "purged by tag, closed and found");
}

async fn read(store: &Store, key: &str) -> Option<Vec<u8>> {
    let object = store.get(KeyRef::new(key.as_bytes(), b"")).await?;
    let mut reader = object.reader(0..BODY_BYTES_MAX);
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(&piece.ok()?);
    }
    Some(bytes)
}

/// A small store with objects of all kinds, a purge, a checkpoint and later writes. Its identity is random, but no
/// finding depends on the identity.
static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let device = Arc::new(MemoryDevice::new(SPAN_BYTES));
    block_on(async {
        let options = CreateOptions {
            size_bytes: SPAN_BYTES,
            segment_bytes: Some(SEGMENT_BYTES),
            force: false,
            ..CreateOptions::default()
        };
        Store::create(device.clone(), &options).await.expect("it fits");
        let options = open_options();
        let store = Store::open(device.clone(), options).await.expect("it was made");
        let put = async |key: &str, variant: &[u8], length: usize| {
            let body = Bytes::from(vec![b'x'; length]);
            store.put(KeyRef::new(key.as_bytes(), variant), "m".into(), body).await.expect("room");
        };
        put(KEYS[0], b"", 3).await;
        put(KEYS[1], b"gzip", 40).await;
        store.sync().await.expect("written");
        put("long", b"", 10_000).await;
        for (number, key) in KEYS[4..8].iter().enumerate() {
            let key = KeyRef::new(key.as_bytes(), b"");
            store.put_tagged(key, &TAGS[number % 2..], "m".into(), "tagged".into()).await.expect("room");
        }
        store.sync().await.expect("written");
        read(&store, KEYS[5]).await;
        store.purge_key(KEYS[3].as_bytes()).await.expect("written");
        store.purge_tag(b"another").await.expect("written");
        store.checkpoint().await.expect("written");
        put(KEYS[2], b"", 5).await;
        put(KEYS[2], b"", 6).await;
        store.sync().await.expect("written");
    });
    let mut image = device.image();
    units::seal_store(&mut image, 0, IDENTITY);
    image
});

fn small((start, length): (u64, u64)) -> &'static [u8] {
    &SMALL[start as usize..(start + length) as usize]
}

/// Makes the pieces of an area of the small store: once with and once without the choice to correct checksums.
fn seeds_of(place: (u64, u64)) -> Vec<Vec<u8>> {
    let pieces = pieces::take(small(place));
    let keep = |mut pieces: Vec<u8>| {
        pieces.truncate(4095);
        pieces
    };
    [0, 1].map(|choice| [vec![choice], keep(pieces.clone())].concat()).to_vec()
}

fn unit_seeds(unit: &[u8]) -> Vec<Vec<u8>> {
    let end = unit.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let unit = &unit[..end.min(4000)];
    vec![[&[0], unit].concat(), [&[1], unit].concat()]
}

/// Makes a valid superblock.
pub fn superblock_seeds() -> Vec<Vec<u8>> {
    let mut unit = span().superblock();
    unit[12..16].fill(0);
    unit_seeds(&unit)
}

/// Makes the valid slots of the state.
pub fn state_seeds() -> Vec<Vec<u8>> {
    seeds_of(span().state())
}

/// Makes a valid append.
pub fn append_seeds() -> Vec<Vec<u8>> {
    unit_seeds(&small(span().segment(EPOCH))[..128 + 64])
}

/// Makes valid records: of objects, of an object with a variant, and of objects with tags.
pub fn record_seeds() -> Vec<Vec<u8>> {
    let segment = small(span().segment(EPOCH));
    let starts = (0..segment.len()).step_by(64).filter(|&at| segment[at..].starts_with(b"NREC"));
    let (plain, tagged): (Vec<usize>, Vec<usize>) = starts.partition(|&at| segment[at + 136..at + 138] == [0, 0]);
    let starts = plain.into_iter().take(3).chain(tagged.into_iter().take(2));
    starts.flat_map(|at| unit_seeds(&segment[at..(at + 300).min(segment.len())])).collect()
}

/// Makes a valid segment.
pub fn segment_seeds() -> Vec<Vec<u8>> {
    seeds_of(span().segment(EPOCH))
}

/// Makes a valid checkpoint.
pub fn checkpoint_seeds() -> Vec<Vec<u8>> {
    seeds_of(span().checkpoints())
}

/// Makes a valid hot list.
pub fn hot_list_seeds() -> Vec<Vec<u8>> {
    seeds_of(span().checkpoints())
}

/// Makes a valid purge log.
pub fn purge_log_seeds() -> Vec<Vec<u8>> {
    seeds_of(span().purge_log())
}

/// Makes inputs that leave an image unchanged, and inputs that zero some bytes of it.
pub fn image_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = (0..8).map(|choices| vec![choices]).collect();
    let (start, _) = span().segment(EPOCH);
    for (choices, at) in
        [(0, start), (1, start), (0, span().checkpoints().0), (0, span().purge_log().0), (2, 0), (4, 8192)]
    {
        seeds.push([&[choices], &((at / 64) as u16).to_le_bytes()[..], &[8, 0], &[0; 8]].concat());
    }
    seeds
}
