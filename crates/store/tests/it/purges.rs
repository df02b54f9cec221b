//! Tens of thousands of purges: exactly the purged objects are misses, even before the store has loaded its index and
//! noted the names of all its objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{body, open, options};
use futures_util::future::join_all;
use nectary_block::{Buffer, DeviceOperation, DeviceRequest, Filter, IoContext, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::{CreateOptions, FillRole, KeyRef, OpenOptions, SpanDevice, SpanSet, Store, StoreErrorKind};
use tokio::sync::watch;

const STORE_BYTES: u64 = 256 << 20;
/// The number of purges of one run.
const PURGES: u64 = 20_000;
/// The largest number of purges at the same time.
const AT_ONCE: u64 = 500;

fn key(number: u64) -> String {
    format!("http://example.org/{number}")
}

async fn put(store: &Store, number: u64, bytes: usize) {
    let key = key(number);
    store.put(KeyRef::new(key.as_bytes(), b""), "metadata".into(), body(number, bytes)).await.expect("room");
}

async fn put_all(store: &Store, numbers: std::ops::Range<u64>, bytes: usize) {
    for number in numbers {
        put(store, number, bytes).await;
        if number % 500 == 499 {
            store.sync().await.expect("it syncs");
        }
    }
    store.sync().await.expect("it syncs");
}

async fn is_found(store: &Store, number: u64) -> bool {
    let key = key(number);
    store.get(KeyRef::new(key.as_bytes(), b"")).await.is_some()
}

async fn count_found(store: &Store, numbers: std::ops::Range<u64>) -> u64 {
    let mut found = 0;
    for number in numbers {
        found += u64::from(is_found(store, number).await);
    }
    found
}

async fn purge_all_of(store: &Store, numbers: impl IntoIterator<Item = u64>) {
    let numbers: Vec<u64> = numbers.into_iter().collect();
    for some in numbers.chunks(AT_ONCE as usize) {
        let keys: Vec<String> = some.iter().map(|number| key(*number)).collect();
        let purged = join_all(keys.iter().map(|key| store.purge_key(key.as_bytes()))).await;
        purged.into_iter().for_each(|purged| purged.expect("it is purged"));
    }
}

/// The numbers of keys that this run purges and that were never put.
fn absent(run: u64) -> std::ops::Range<u64> {
    let first = (run + 1) * 1_000_000;
    first..first + PURGES
}

async fn wait_for_names(store: &Store) {
    while !store.stat().names_known {
        tokio::task::yield_now().await;
    }
}

fn without_checkpoints(mut image: Vec<u8>) -> Vec<u8> {
    image.chunks_mut(4096).filter(|block| block.starts_with(b"NCKH")).for_each(|block| block.fill(0));
    image
}

#[tokio::test]
async fn absent_url_purges_spare_store() {
    const OBJECTS: u64 = 2_500;
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let store = open(device.clone()).await;
    wait_for_names(&store).await;
    put_all(&store, 0..OBJECTS, 4000).await;
    let before = store.stat().counts.flushes;
    purge_all_of(&store, absent(0)).await;
    let stat = store.stat();
    assert_eq!((stat.counts.purges, stat.counts.purges_absent + stat.purge_records), (PURGES, PURGES));
    assert!(stat.purge_records < PURGES / 100, "{} purges of absent objects got a rule", stat.purge_records);
    println!("{} rules, {} flushes", stat.purge_records, stat.counts.flushes - before);
    assert_eq!(count_found(&store, 0..OBJECTS).await, OBJECTS);
    drop(store);

    // Keys are purged directly after a crash, when the names may not be known yet, and again when they are known.
    let store = open(device.clone()).await;
    purge_all_of(&store, absent(1)).await;
    wait_for_names(&store).await;
    let known_at = store.stat().counts.purges_absent;
    purge_all_of(&store, absent(2)).await;
    assert!(store.stat().counts.purges_absent - known_at > PURGES * 99 / 100, "names are known after a restart too");
    assert_eq!(count_found(&store, 0..OBJECTS).await, OBJECTS);
    drop(store);

    let store = open(Arc::new(MemoryDevice::from_image(without_checkpoints(device.image())))).await;
    assert!(!store.stat().recovery.checkpoint && !store.stat().recovery.purges_lost);
    assert_eq!(count_found(&store, 0..OBJECTS).await, OBJECTS);
    purge_all_of(&store, absent(3)).await;
    assert_eq!(count_found(&store, 0..OBJECTS).await, OBJECTS);
}

/// Purges of present URLs take those and nothing else, also after a crash.
#[tokio::test]
async fn present_url_purges_survive_crash() {
    const OBJECTS: u64 = 26_000;
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let store = open(device.clone()).await;
    put_all(&store, 0..OBJECTS, 1000).await;
    store.checkpoint().await.expect("a checkpoint");
    purge_all_of(&store, 0..PURGES).await;
    let stat = store.stat();
    assert_eq!((stat.purge_records, stat.counts.purges_waited), (PURGES, 0));
    let check = async |store: &Store| {
        assert_eq!(count_found(store, 0..PURGES).await, 0, "what was purged");
        assert_eq!(count_found(store, PURGES..OBJECTS).await, OBJECTS - PURGES, "what was not");
    };
    check(&store).await;
    drop(store);
    let image = device.image();
    check(&open(Arc::new(MemoryDevice::from_image(image.clone()))).await).await;
    let store = open(Arc::new(MemoryDevice::from_image(without_checkpoints(image)))).await;
    assert!(!store.stat().recovery.checkpoint && !store.stat().recovery.purges_lost);
    check(&store).await;
}

/// A device that blocks reads of the checkpoint chunks, so that the index is not loaded, until `opened` is true.
struct IndexGate {
    inner: SharedDevice,
    /// The range of the blocked chunks on the device, in bytes.
    held: std::ops::Range<u64>,
    opened: watch::Receiver<bool>,
}

impl Filter for IndexGate {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        self.inner.spec()
    }
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let (inner, mut opened) = (Arc::clone(&self.inner), self.opened.clone());
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let is_held = self.held.contains(&offset) && bytes > 4096;
        Box::pin(async move {
            if is_held {
                let _ = opened.wait_for(|opened| *opened).await;
            }
            inner.read_at(offset, buffers, context).await
        })
    }
}

/// Purges while the index is loaded take what they name and nothing else.
#[tokio::test]
async fn purges_during_load_are_exact() {
    // With this many objects, the index is not loaded before the store is open.
    const OBJECTS: u64 = 36_000;
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let store = open(device.clone()).await;
    put_all(&store, 0..OBJECTS, 20).await;
    store.checkpoint().await.expect("a checkpoint");
    assert!(store.stat().index_bytes > 256 << 10, "the index is loaded at once");
    drop(store);
    let image = device.image();
    let number = |at: usize| u64::from_le_bytes(image[at..at + 8].try_into().expect("8 bytes"));
    let held = number(120)..number(88);

    let device = Arc::new(MemoryDevice::from_image(image));
    let (opener, opened) = watch::channel(false);
    let store = open(Arc::new(IndexGate { inner: device.clone(), held, opened })).await;
    assert!(!store.stat().names_known);
    let purges = tokio::spawn({
        let store = store.clone();
        async move {
            purge_all_of(&store, (0..1000).chain(absent(0).take(3000))).await;
        }
    });
    while store.stat().purge_records < AT_ONCE {
        tokio::task::yield_now().await;
    }
    opener.send_replace(true);
    purges.await.expect("purged");
    assert_eq!(count_found(&store, 0..1000).await, 0);
    assert_eq!(count_found(&store, 1000..OBJECTS).await, OBJECTS - 1000);
    drop(store);
    let store = open(Arc::new(MemoryDevice::from_image(without_checkpoints(device.image())))).await;
    assert!(!store.stat().recovery.checkpoint);
    assert_eq!(count_found(&store, 0..1000).await, 0);
    assert_eq!(count_found(&store, 1000..OBJECTS).await, OBJECTS - 1000);
}

/// A purge of an object that is being filled and stored nowhere yet voids the fill.
#[tokio::test]
async fn purge_voids_running_first_fill() {
    let device = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let store = open(device.clone()).await;
    wait_for_names(&store).await;
    put_all(&store, 0..10, 100).await;
    let name = key(100);
    let asked = KeyRef::new(name.as_bytes(), b"");
    for length in [1000, 300 << 10] {
        let FillRole::Leader(mut fill) = store.begin_fill(asked, None) else { panic!("nobody fills it") };
        assert!(fill.start(b"", "metadata".into(), None));
        let bytes = body(1, length);
        fill.write(bytes.slice(..length / 2)).await.expect("it is taken");
        store.purge_key(name.as_bytes()).await.expect("it is purged");
        assert_eq!(store.stat().counts.purges_absent, 0);
        // This write fails if the fill is no longer stored, because the fill has no reader either.
        let _ = fill.write(bytes.slice(length / 2..)).await;
        fill.finish().await.expect_err("what was purged is not stored");
        assert!(store.get(asked).await.is_none());
    }
    // The fills have ended, but the written part of the second body is still on the disk.
    store.purge_key(key(101).as_bytes()).await.expect("it is purged");
    assert_eq!(store.stat().counts.purges_absent, 1);
    store.sync().await.expect("it syncs");
    drop(store);
    let store = open(Arc::new(MemoryDevice::from_image(without_checkpoints(device.image())))).await;
    assert!(store.get(asked).await.is_none());
    assert_eq!(count_found(&store, 0..10).await, 10);
}

/// Objects that wait to be written or stay in memory alone are purged like all others.
#[tokio::test]
async fn unwritten_objects_are_purged() {
    let device = Arc::new(MemoryDevice::new(4 << 20));
    Store::create(device.clone(), &CreateOptions::default()).await.expect("a store is made");
    let never = std::time::Duration::from_secs(3600);
    let store = Store::open(device.clone(), OpenOptions { write_delay: never, ..options() }).await.expect("it opens");
    wait_for_names(&store).await;
    put(&store, 1, 100).await;
    store.purge_key(key(1).as_bytes()).await.expect("it is purged");
    assert_eq!((store.stat().counts.purges_absent, store.stat().purge_records), (0, 1));
    assert!(!is_found(&store, 1).await);
    drop(store);

    let rule = nectary_store::AdmitRule::SecondRequest;
    let admission = nectary_store::AdmissionOptions { rule, ..Default::default() };
    let store = Store::open(device, OpenOptions { admission, ..options() }).await.expect("it opens");
    wait_for_names(&store).await;
    put(&store, 2, 100).await;
    assert_eq!(store.stat().counts.unadmitted_first, 1);
    // The object stays in memory during more than two cycles of the ring.
    let cycles = 3 * store.stat().segment_count;
    let mut number = 1000;
    while store.stat().head_epoch < cycles {
        for _ in 0..2 {
            put(&store, number, 3000).await;
        }
        store.sync().await.expect("it syncs");
        number += 1;
    }
    let absent = store.stat().counts.purges_absent;
    store.purge_key(key(2).as_bytes()).await.expect("it is purged");
    assert_eq!(store.stat().counts.purges_absent, absent, "it is in memory alone");
    assert!(!is_found(&store, 2).await);
    store.purge_key(key(1000).as_bytes()).await.expect("it is purged");
    assert_eq!(store.stat().counts.purges_absent, absent + 1, "what was overwritten long ago is absent");
}

/// Makes a store with room for 297 purge rules, and with this many objects.
async fn bounded(objects: u64) -> (Arc<MemoryDevice>, Store) {
    let device = Arc::new(MemoryDevice::new(1 << 20));
    let create = CreateOptions { segment_bytes: Some(32 << 10), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = Store::open(device.clone(), OpenOptions { rewrite_percent: 0, ..options() }).await.expect("it opens");
    wait_for_names(&store).await;
    for number in 0..objects {
        put(&store, number, 100).await;
        if number % 40 == 39 {
            store.sync().await.expect("it syncs");
        }
    }
    store.sync().await.expect("it syncs");
    assert_eq!(count_found(&store, 0..objects).await, objects, "the ring holds all of them");
    (device, store)
}

/// Purges beyond the bound wait while the oldest segments are reclaimed.
#[tokio::test]
async fn excess_purges_wait_for_reclaim() {
    const OBJECTS: u64 = 1_500;
    const PURGED: u64 = 500;
    let (device, store) = bounded(OBJECTS).await;
    let most = store.stat().purge_records_max;
    assert_eq!(most, 297);
    for number in 0..PURGED {
        store.purge_key(key(number).as_bytes()).await.expect("it is purged");
        assert!(store.stat().purge_records <= most);
    }
    let stat = store.stat();
    println!("{} waited {} us, {} segments reclaimed", stat.counts.purges_waited, stat.counts.purges_waited_us, {
        stat.counts.purge_segments_reclaimed
    });
    assert!(stat.counts.purges_waited > 0 && stat.counts.purge_segments_reclaimed > 0 && stat.purges_waiting == 0);
    let check = async |store: &Store| {
        assert_eq!(count_found(store, 0..PURGED).await, 0);
        let mut lost = PURGED;
        while lost < OBJECTS && !is_found(store, lost).await {
            lost += 1;
        }
        assert!(lost < OBJECTS * 2 / 3, "{lost} of {OBJECTS} are gone");
        assert_eq!(count_found(store, lost..OBJECTS).await, OBJECTS - lost, "only the oldest are gone");
    };
    check(&store).await;
    drop(store);
    check(&open(Arc::new(MemoryDevice::from_image(without_checkpoints(device.image())))).await).await;
}

/// What a power cut took stays away where segments are opened only for purges.
#[tokio::test]
async fn power_cut_restores_nothing() {
    const OBJECTS: u64 = 1_200;
    const SEGMENT_BYTES: usize = 32 << 10;
    let (device, store) = bounded(OBJECTS).await;
    store.checkpoint().await.expect("a checkpoint");
    let lost = store.stat().head_epoch + 1;
    // The newer version of the key is in the segment after the lost segment, behind other appends.
    let (replaced, newer) = (OBJECTS - 1, 200);
    for number in OBJECTS.. {
        put(&store, number, 100).await;
        store.sync().await.expect("it syncs");
        if store.stat().head_epoch == lost + 1 {
            break;
        }
    }
    put(&store, replaced, newer).await;
    store.sync().await.expect("it syncs");
    drop(store);
    let mut image = device.image();
    let epoch = |block: &[u8]| u64::from_le_bytes(block[32..40].try_into().expect("eight bytes"));
    let start_of = |wanted: u64| {
        let is_it = |at: &usize| image[*at..].starts_with(b"NAPP") && epoch(&image[*at..]) == wanted;
        (0..image.len()).step_by(4096).find(is_it).expect("it has an append")
    };
    let (start, next) = (start_of(lost), start_of(lost + 1));
    image[start..start + SEGMENT_BYTES].fill(0);
    // The beginning of the next segment would show that the lost one was written.
    image[next..next + 4096].fill(0);
    let device = Arc::new(MemoryDevice::from_image(image));
    let bytes_of = async |store: &Store| {
        let object = store.get(KeyRef::new(key(replaced).as_bytes(), b"")).await?;
        Some(object.body_bytes())
    };

    let store = open(device.clone()).await;
    assert_eq!(bytes_of(&store).await, Some(100), "the older one is believed");
    for number in 0..store.stat().purge_records_max + 1 {
        store.purge_key(key(number).as_bytes()).await.expect("it is purged");
    }
    assert!(store.stat().counts.purge_segments_reclaimed > 0 && store.stat().counts.puts == 0);
    drop(store);
    let store = open(device.clone()).await;
    assert_ne!(bytes_of(&store).await, Some(newer as u64), "what was lost came back");
}

/// A purge that a fill leaves no room for is refused and purges nothing.
#[tokio::test]
async fn full_log_refuses_purge_whole() {
    const OBJECTS: u64 = 600;
    let (_, store) = bounded(OBJECTS).await;
    let most = store.stat().purge_records_max;
    let FillRole::Leader(fill) = store.begin_fill(KeyRef::new(b"never ends", b""), None) else { panic!("a leader") };
    for number in 0..most {
        store.purge_key(key(number).as_bytes()).await.expect("it is purged");
    }
    let refused = store.purge_key(key(most).as_bytes()).await.expect_err("there is no room");
    assert!(refused.kind == StoreErrorKind::Busy && refused.message.contains("purge everything"), "{refused}");
    let stat = store.stat();
    assert_eq!((stat.purge_records, stat.counts.purge_segments_reclaimed), (most, 0));
    assert_eq!(count_found(&store, most..OBJECTS).await, OBJECTS - most, "nothing was purged or given up");
    store.purge_key(b"http://example.org/1").await.expect("a rule that is there needs no room");
    drop(fill);
    store.purge_key(key(most).as_bytes()).await.expect("it is purged");
    assert!(!is_found(&store, most).await);
    store.purge_all().await.expect("it takes the place of all others");
    assert_eq!(store.stat().purge_records, 1);
}

/// A segment damaged at the open leaves names unknown until it is overwritten.
#[tokio::test]
async fn damaged_segment_leaves_names_unknown() {
    let (device, store) = bounded(1_000).await;
    drop(store);
    let mut image = device.image();
    // This flips a bit in the first table entry of an append in the middle of the log. An append can have only one
    // record, or none.
    let has_records = |append: &[u8]| append.starts_with(b"NAPP") && append[84..88] != [0; 4];
    let appends: Vec<usize> = (0..image.len()).step_by(4096).filter(|at| has_records(&image[*at..])).collect();
    image[appends[appends.len() / 2] + 150] ^= 1;
    let device = Arc::new(MemoryDevice::from_image(image));
    let store = open(device.clone()).await;
    for number in 0..200 {
        store.purge_key(key(10_000 + number).as_bytes()).await.expect("it is purged");
    }
    assert!(!store.stat().names_known && store.stat().counts.purges_absent == 0);
    let end = store.stat().head_epoch + store.stat().segment_count + 3;
    let mut number = 20_000;
    while store.stat().head_epoch < end {
        put(&store, number, 3000).await;
        store.sync().await.expect("it syncs");
        number += 1;
    }
    wait_for_names(&store).await;
    store.purge_key(key(30_000).as_bytes()).await.expect("it is purged");
    assert_eq!(store.stat().counts.purges_absent, 1);
}

/// A device whose writes and flushes fail when `fails` is set.
struct FailingWriteDevice {
    inner: SharedDevice,
    fails: Arc<AtomicBool>,
}

impl Filter for FailingWriteDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        self.inner.spec()
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if request.operation != DeviceOperation::Read && self.fails.load(Ordering::Acquire) {
            return Box::pin(async {
                Err(nectary_block::Error::new(
                    nectary_block::DeviceErrorKind::Io,
                    "b",
                    DeviceOperation::Write,
                    "it is told to",
                ))
            });
        }
        operation(&self.inner)
    }
}

#[tokio::test]
async fn span_missing_purge_returns_empty() {
    let named = |spec: &str, device: SharedDevice| SpanDevice { spec: spec.into(), device: Ok(device), size_bytes: 0 };
    let devices = [Arc::new(MemoryDevice::new(4 << 20)), Arc::new(MemoryDevice::new(4 << 20))];
    let fails = Arc::new(AtomicBool::new(false));
    let failing = Arc::new(FailingWriteDevice { inner: devices[1].clone(), fails: fails.clone() });
    let spans =
        SpanSet::open(vec![named("a", devices[0].clone()), named("b", failing)], options()).await.expect("open");
    let (mut on_first, mut on_second) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let name = key(number);
        spans.put(KeyRef::new(name.as_bytes(), b""), "m".into(), body(number, 100)).await.expect("room");
        if spans.span_of(name.as_bytes()) == Some(0) { &mut on_first } else { &mut on_second }.push(name);
    }
    spans.sync().await.expect("it syncs");
    while !spans.stat().names_known {
        tokio::task::yield_now().await;
    }
    fails.store(true, Ordering::Release);
    // During the first purge, the second span fails. After that only the first span is present, which never had the
    // purged objects.
    spans.purge_key(on_second[0].as_bytes()).await.expect("the others know");
    spans.purge_key(on_second[1].as_bytes()).await.expect("it is purged");
    let first = spans.stat().spans[0].stat.clone().expect("it is there");
    assert_eq!(first.counts.purges_absent, 0, "where there are several spans each notes every purge");
    spans.close().await.expect("closed");
    drop(spans);

    let back = vec![named("a", devices[0].clone()), named("b", devices[1].clone())];
    let spans = SpanSet::open(back, options()).await.expect("it opens");
    for name in &on_second {
        assert!(spans.get(KeyRef::new(name.as_bytes(), b"")).await.is_none(), "{name} came back");
    }
    for name in &on_first {
        assert!(spans.get(KeyRef::new(name.as_bytes(), b"")).await.is_some(), "{name} is gone");
    }
}
