//! Tests of the promises of the cache's calls: several readers share one read, a failed read fails only the readers of
//! its block, the state is right after a failed write, and writers wait at the limits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nectary_block::{
    AccessStream, Buffer, DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoContext, IoFuture,
    MemoryDevice, SharedDevice, WriteFlags, write,
};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource, FileId, STREAMS_MAX, WriteMode, region_stream};

/// A device that counts its operations, holds them until a gate is open, and can be made to fail by block.
struct GatedDevice {
    inner: SharedDevice,
    is_open: tokio::sync::watch::Sender<bool>,
    fails: Arc<Mutex<Vec<(DeviceOperation, u64)>>>,
    reads: Arc<AtomicU64>,
}

impl GatedDevice {
    fn new(bytes: u64) -> Arc<GatedDevice> {
        Arc::new(GatedDevice {
            inner: Arc::new(MemoryDevice::new(bytes)),
            is_open: tokio::sync::watch::channel(true).0,
            fails: Arc::default(),
            reads: Arc::default(),
        })
    }

    fn open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}

impl Filter for GatedDevice {
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
        self.reads.fetch_add(u64::from(request.operation == DeviceOperation::Read), Ordering::SeqCst);
        let (inner, mut gate, fails) = (self.inner.clone(), self.is_open.subscribe(), self.fails.clone());
        Box::pin(async move {
            let _ = gate.wait_for(|is_open| *is_open).await;
            let range = request.offset..request.offset + request.length.max(1);
            let is_bad =
                |&(operation, at): &(DeviceOperation, u64)| operation == request.operation && range.contains(&at);
            if fails.lock().unwrap().iter().any(is_bad) {
                let error = Error::new(DeviceErrorKind::Io, &inner.spec(), request.operation, "a bad sector");
                return Err(error.at(request.offset, request.length));
            }
            operation(&inner).await
        })
    }
}

fn options(mode: WriteMode) -> CacheOptions {
    CacheOptions {
        memory_bytes: 8 << 20,
        policy: "lru".to_owned(),
        mode,
        readahead_bytes: 0,
        ..CacheOptions::default()
    }
}

fn cache(gate: &Arc<GatedDevice>, options: CacheOptions) -> (BufferCache, FileId) {
    let cache = BufferCache::new(options).unwrap();
    let file = cache.add(Arc::new(DeviceSource::new(gate.clone()))).unwrap();
    (cache, file)
}

async fn put(cache: &BufferCache, file: FileId, block: u64, value: u8) -> Result<(), Error> {
    let buffers = vec![Buffer::copy_of(&[value; 8192])];
    cache.write(file, block * 8192, buffers, WriteFlags::default(), IoContext::default()).await.map(drop)
}

async fn get(cache: &BufferCache, file: FileId, block: u64) -> Result<u8, Error> {
    Ok(cache.read(file, block * 8192, 8192, IoContext::default()).await?[0][0])
}

#[tokio::test(start_paused = true)]
async fn concurrent_misses_share_one_read() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteThrough));
    gate.open(false);
    let reads: Vec<_> = (0..20).map(|_| cache.read(file, 8192, 8192, IoContext::default())).collect();
    // A reader that is dropped does not affect the others.
    let mut reads = reads.into_iter();
    drop(reads.next());
    gate.open(true);
    for read in reads {
        assert_eq!(read.await.unwrap()[0].len(), 8192);
    }
    assert_eq!((gate.reads.load(Ordering::SeqCst), cache.stats().joined), (1, 19));
}

/// A failed read fails the readers of its block, and nothing is cached.
#[tokio::test]
async fn failed_read_fails_block_only() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteThrough));
    gate.fails.lock().unwrap().push((DeviceOperation::Read, 3 * 8192));
    // This read makes one read of eight blocks from the source; each of the two further readers needs one of these
    // blocks.
    let all = cache.read(file, 0, 8 * 8192, IoContext::default());
    let bad = cache.read(file, 3 * 8192, 8192, IoContext::default());
    let good = cache.read(file, 4 * 8192, 8192, IoContext::default());
    assert!(all.await.is_err() && bad.await.is_err());
    assert_eq!(good.await.unwrap()[0].len(), 8192);
    gate.fails.lock().unwrap().clear();
    let before = gate.reads.load(Ordering::SeqCst);
    assert_eq!(get(&cache, file, 3).await.unwrap(), 0);
    assert_eq!(get(&cache, file, 4).await.unwrap(), 0);
    assert_eq!(gate.reads.load(Ordering::SeqCst) - before, 1, "only the block that failed is read again");
}

/// After a failed write-back every block stays readable and counted; the next flush fails.
#[tokio::test(start_paused = true)]
async fn failed_write_back_keeps_blocks() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteBack));
    gate.fails.lock().unwrap().push((DeviceOperation::Write, 2 * 8192));
    for block in 0..5 {
        put(&cache, file, block, 10 + block as u8).await.unwrap();
    }
    // The test waits until the blocks are old enough for the background task.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let stats = cache.stats();
    assert!(stats.write_back_errors > 0 && stats.unwritten_bytes >= 8192, "{stats:?}");
    for block in 0..5 {
        assert_eq!(get(&cache, file, block).await.unwrap(), 10 + block as u8);
    }
    let error = cache.flush(file, IoContext::default()).await.unwrap_err();
    assert!(error.operation == DeviceOperation::Flush && error.detail.contains("a bad sector"), "{error}");
    assert!(cache.stats().dirty_bytes >= 8192);
    // The write-back fails again, and then the background task succeeds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    gate.fails.lock().unwrap().clear();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(cache.stats().dirty_bytes, 0);
    assert!(cache.flush(file, IoContext::default()).await.is_err(), "what failed since the last flush is said once");
    cache.flush(file, IoContext::default()).await.unwrap();
    let stats = cache.stats();
    assert_eq!((stats.dirty_bytes, stats.unwritten_bytes), (0, 0));
    for block in 0..5 {
        let found = nectary_block::read(&*gate, block * 8192, 8192).await.unwrap();
        assert!(found.iter().all(|&byte| byte == 10 + block as u8));
    }
}

/// Writers wait at the dirty share, and fail where nothing can be written back.
#[tokio::test(start_paused = true)]
async fn writers_wait_at_dirty_limit() {
    let gate = GatedDevice::new(16 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteBack));
    gate.open(false);
    let is_done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (cache, is_done) = (cache.clone(), is_done.clone());
        tokio::spawn(async move {
            for block in 0..1500 {
                put(&cache, file, block, 1).await?;
            }
            is_done.store(true, Ordering::SeqCst);
            Ok::<(), Error>(())
        })
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    let share = (cache.stats().memory_bytes as f64 * 0.2) as u64;
    let stats = cache.stats();
    assert!(!is_done.load(Ordering::SeqCst) && stats.dirty_bytes <= share.max(64 * 8192), "{stats:?}");
    assert!(stats.dirty_age >= Duration::from_secs(50) && stats.used_bytes <= stats.memory_bytes, "{stats:?}");
    gate.open(true);
    writer.await.unwrap().unwrap();
    cache.flush(file, IoContext::default()).await.unwrap();
    gate.fails.lock().unwrap().extend((0..2048).map(|block| (DeviceOperation::Write, block * 8192)));
    let mut failed = None;
    for block in 0..1500 {
        failed = failed.or(put(&cache, file, block, 2).await.err());
    }
    assert!(failed.unwrap().detail.contains("cannot be written back"));
    assert_eq!(get(&cache, file, 0).await.unwrap(), 2, "what was taken is readable");
}

/// A sequential stream is read ahead outside the policy.
#[tokio::test(start_paused = true)]
async fn sequential_read_ahead_bypasses_policy() {
    let gate = GatedDevice::new(16 << 20);
    let ahead = CacheOptions { readahead_bytes: 128 << 10, ..options(WriteMode::WriteThrough) };
    let (cache, file) = cache(&gate, ahead);
    let references = Arc::new(Mutex::new(0_u64));
    let count = references.clone();
    cache.record(Some(Box::new(move |_| *count.lock().unwrap() += 1)));
    for block in 0..512 {
        get(&cache, file, block).await.unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.misses, *references.lock().unwrap()), (512, 512), "the policy sees what was referenced, no more");
    assert!(stats.ahead_used > 480 && stats.source_reads < 120, "{stats:?}");
    assert!(stats.resident_blocks <= stats.capacity_blocks);
}

#[tokio::test]
async fn drops_are_recorded_among_references() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteThrough));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (of_references, of_drops) = (seen.clone(), seen.clone());
    cache.record(Some(Box::new(move |reference| of_references.lock().unwrap().push(reference.id..reference.id + 1))));
    cache.record_drops(Some(Box::new(move |ids| of_drops.lock().unwrap().push(ids))));
    get(&cache, file, 5).await.unwrap();
    cache.invalidate(file, 4 * 8192, 16384);
    get(&cache, file, 5).await.unwrap();
    cache.cut(file, 2 * 8192);
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen, [5..6, 4..6, 5..6, 2..1 << 36]);
    assert_eq!(cache.stats().misses, 2, "what was invalidated is read again");
}

#[tokio::test]
async fn pinned_bytes_stay_without_copy() {
    let gate = GatedDevice::new(64 << 20);
    for mode in [WriteMode::WriteThrough, WriteMode::WriteBack] {
        let (cache, file) = cache(&gate, options(mode));
        put(&cache, file, 0, 1).await.unwrap();
        let pinned = cache.read(file, 0, 8192, IoContext::default()).await.unwrap();
        let again = cache.try_read(file, 0, 8192, IoContext::default()).unwrap();
        assert_eq!(pinned[0].as_ptr(), again[0].as_ptr());
        drop(again);
        put(&cache, file, 0, 2).await.unwrap();
        for block in 1..2000 {
            get(&cache, file, block).await.unwrap();
        }
        assert!(pinned[0].iter().all(|&byte| byte == 1));
        assert_eq!(get(&cache, file, 0).await.unwrap(), 2);
        assert!(cache.stats().used_bytes <= cache.stats().memory_bytes);
        cache.remove(file).await.unwrap();
    }
}

/// A source that grows or ends inside a block is cached up to its end.
#[tokio::test]
async fn source_end_in_block_caches() {
    let memory = Arc::new(MemoryDevice::new(12 << 10));
    let cache = BufferCache::new(options(WriteMode::WriteBack)).unwrap();
    let file = cache.add(Arc::new(DeviceSource::new(memory.clone()))).unwrap();
    let last = cache.read(file, 8192, 4096, IoContext::default()).await.unwrap();
    assert_eq!(last[0].len(), 4096);
    assert_eq!(cache.read(file, 8192, 8192, IoContext::default()).await.unwrap_err().kind, DeviceErrorKind::Invalid);
    drop(last);
    let part = vec![Buffer::copy_of(&[5; 4096])];
    cache.write(file, 8192, part, WriteFlags::default(), IoContext::default()).await.unwrap();
    nectary_block::BlockDevice::grow(&*memory, 20 << 10).await.unwrap();
    let grown = cache.read(file, 8192, 8192, IoContext::default()).await.unwrap();
    assert!(grown[0][..4096].iter().all(|&byte| byte == 5) && grown[0][4096..].iter().all(|&byte| byte == 0));
    cache.flush(file, IoContext::default()).await.unwrap();
    assert_eq!(get(&cache, file, 0).await.unwrap(), 0);
    write(&*memory, 0, Buffer::copy_of(&[9; 8192])).await.unwrap();
    assert_eq!(get(&cache, file, 0).await.unwrap(), 0, "nothing tells the cache");
    cache.invalidate(file, 0, 8192);
    assert_eq!(get(&cache, file, 0).await.unwrap(), 9);
}

#[tokio::test]
async fn truncated_bytes_stay_gone() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteBack));
    for block in 0..4 {
        put(&cache, file, block, 3).await.unwrap();
    }
    cache.cut(file, 8192 + 100);
    assert!(cache.read(file, 8192, 100, IoContext::default()).await.unwrap()[0].iter().all(|&byte| byte == 3));
    let tail = cache.read(file, 8192 + 100, 3 * 8192 - 100, IoContext::default()).await.unwrap();
    assert!(tail.iter().all(|piece| piece.iter().all(|&byte| byte == 0)));
    assert_eq!(cache.stats().dirty_bytes, 2 * 8192);
}

/// The counters by stream add up, and their table is bounded.
#[tokio::test]
async fn stream_counters_add_up() {
    let gate = GatedDevice::new(16 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::WriteBack));
    for reference in 0..6000_u64 {
        let context = IoContext { stream: AccessStream(1 + (reference % 3000) as u32), deadline: None };
        cache.read(file, reference % 1500 * 8192, 8192, context).await.unwrap();
    }
    put(&cache, file, 0, 1).await.unwrap();
    let (stats, streams) = (cache.stats(), cache.streams());
    assert_eq!(streams.len(), STREAMS_MAX + 1);
    let sum = |of: fn(&nectary_buffer::StreamStats) -> u64| streams.iter().map(of).sum::<u64>();
    assert_eq!((sum(|stream| stream.hits), sum(|stream| stream.misses)), (stats.hits, stats.misses));
    assert_eq!((sum(|stream| stream.saved), sum(|stream| stream.lost)), (0, 0), "LRU saves nothing against LRU");
    assert_eq!(sum(|stream| stream.dirty_bytes), 8192);
    assert_ne!(region_stream(0), AccessStream(0));
}

/// Bytes that are put replace what memory has and what is being read.
#[tokio::test]
async fn put_bytes_replace_running_reads() {
    let gate = GatedDevice::new(1 << 20);
    let (cache, file) = cache(&gate, options(WriteMode::ReadOnly));
    assert_eq!(get(&cache, file, 0).await.unwrap(), 0);
    // One block in memory, one that is being read, and one that is neither.
    gate.open(false);
    let reading = cache.read(file, 8192, 8192, IoContext::default());
    cache.put(file, 0, &[Buffer::copy_of(&[7; 3 * 8192])], IoContext::default());
    for block in 0..3 {
        let pieces = cache.try_read(file, block * 8192, 8192, IoContext::default()).expect("it is in memory");
        assert_eq!(pieces[0][0], 7, "block {block}");
    }
    gate.open(true);
    assert_eq!(reading.await.unwrap()[0][0], 0, "the read began before");
    assert_eq!(get(&cache, file, 1).await.unwrap(), 7);
    // A part of a block changes the block if it is in memory, and adds none.
    cache.put(file, 2 * 8192 + 100, &[Buffer::copy_of(&[9; 8192])], IoContext::default());
    let piece = cache.try_read(file, 2 * 8192, 8192, IoContext::default()).expect("it is in memory");
    assert_eq!((piece[0][99], piece[0][100]), (7, 9));
    assert!(cache.try_read(file, 3 * 8192, 8192, IoContext::default()).is_none());
    // Too much for memory: the blocks are dropped.
    cache.put(file, 0, &[Buffer::copy_of(&[5; 1 << 20])], IoContext::default());
    assert!(cache.try_read(file, 0, 8192, IoContext::default()).is_none());
}
