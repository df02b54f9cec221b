//! Tests of the calls for users of a running cache: pin, unpin, drop, inspect, change the policy, and compare it with
//! other caches.

use std::sync::Arc;

use nectary_block::{
    AccessStream, Buffer, DeviceErrorKind, DeviceOperation, Error, IoContext, IoFuture, MemoryDevice, WriteFlags,
};
use nectary_buffer::{
    BufferCache, ByteSource, CacheList, CacheOptions, DeviceSource, FileId, PIN_PERCENT_MAX, WriteMode,
};
use tokio::sync::Semaphore;

const BLOCK: u64 = 8192;

fn cache(mode: WriteMode, policy: &str) -> (BufferCache, FileId) {
    // `dear` remembers at least 64 Ki evicted blocks, which leave too little of 8 MiB.
    let memory_bytes = if policy == "dear" { 16 << 20 } else { 8 << 20 };
    let policy = policy.to_owned();
    let options = CacheOptions { memory_bytes, policy, mode, readahead_bytes: 0, ..CacheOptions::default() };
    let cache = BufferCache::new(options).unwrap();
    let file = cache.add(Arc::new(DeviceSource::new(Arc::new(MemoryDevice::new(64 << 20))))).unwrap();
    (cache, file)
}

async fn read(cache: &BufferCache, file: FileId, blocks: impl IntoIterator<Item = u64>) {
    for block in blocks {
        let context = IoContext { stream: AccessStream(7), ..IoContext::default() };
        cache.read(file, block * BLOCK, BLOCK, context).await.unwrap();
    }
}

/// Pinned blocks stay whatever is read, and pins take no memory that others need.
#[tokio::test]
async fn pinned_block_stays_resident() {
    for policy in ["lru", "lirs", "dear", "adaptive"] {
        let (cache, file) = cache(WriteMode::WriteThrough, policy);
        let capacity = cache.stats().capacity_blocks;
        read(&cache, file, 90..110).await;
        // Some of the blocks are in memory already, and a pin counts as no reference.
        assert_eq!(cache.pin(file, 100 * BLOCK, 50 * BLOCK).await.unwrap(), 50 * BLOCK);
        assert_eq!(cache.pin(file, 100 * BLOCK, 50 * BLOCK).await.unwrap(), 0, "it is pinned already");
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.pinned_bytes), (0, 20, 50 * BLOCK), "{policy}");
        assert_eq!(stats.capacity_blocks, capacity - 50, "{policy}: it is taken from the policy");
        read(&cache, file, (0..8000).chain(0..8000)).await;
        let stats = cache.stats();
        assert!(stats.used_bytes <= stats.memory_bytes && stats.resident_blocks <= stats.capacity_blocks, "{policy}");
        let holding = cache.holding(file, 100 * BLOCK, 50 * BLOCK, 10).unwrap();
        assert_eq!((holding.cached_bytes, holding.pinned_bytes), (50 * BLOCK, 50 * BLOCK), "{policy}");
        assert!(holding.ranges.len() == 1 && holding.ranges[0].is_pinned && holding.ranges[0].is_cached, "{policy}");
        let before = cache.stats();
        read(&cache, file, 100..150).await;
        let after = cache.stats();
        assert_eq!((after.hits - before.hits, after.misses - before.misses), (50, 0), "{policy}");
        assert_eq!(after.source_reads, before.source_reads, "{policy}");
        // A change by others drops the blocks; the range stays pinned.
        cache.invalidate(file, 0, u64::MAX);
        assert_eq!(cache.holding(file, 0, u64::MAX, 10).unwrap().cached_bytes, 0, "{policy}");
        read(&cache, file, (100..150).chain(0..8000)).await;
        let holding = cache.holding(file, 100 * BLOCK, 50 * BLOCK, 10).unwrap();
        assert_eq!((holding.cached_bytes, holding.pinned_bytes), (50 * BLOCK, 50 * BLOCK), "{policy}");
        assert_eq!(cache.unpin(file, 0, u64::MAX).unwrap(), 50 * BLOCK);
        assert_eq!(cache.stats().capacity_blocks, capacity, "{policy}");
        read(&cache, file, (1000..8000).chain(1000..8000)).await;
        let stats = cache.stats();
        assert!(stats.pinned_bytes == 0 && stats.resident_blocks <= capacity, "{policy}");
        if policy == "lru" {
            assert_eq!(cache.holding(file, 100 * BLOCK, 50 * BLOCK, 10).unwrap().cached_bytes, 0);
        }
    }
}

/// Pins beyond their share are refused with a remedy, and change nothing.
#[tokio::test]
async fn pins_beyond_share_are_refused() {
    let (cache, file) = cache(WriteMode::WriteThrough, "lru");
    let capacity = cache.stats().capacity_blocks;
    let most = capacity * PIN_PERCENT_MAX / 100;
    assert_eq!(cache.pin(file, 0, most * BLOCK).await.unwrap(), most * BLOCK);
    let error = cache.pin(file, most * BLOCK, 1).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Full && error.detail.contains("unpin something"), "{error}");
    let error = cache.set_memory(6 << 20).await.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains("unpin something first"), "{error}");
    assert_eq!(cache.options().memory_bytes, 8 << 20);
    assert_eq!(cache.stats().pinned_bytes, most * BLOCK);
    cache.set_memory(16 << 20).await.unwrap();
    assert_eq!(cache.pin(file, most * BLOCK, 1).await.unwrap(), BLOCK);
    // The first range is beyond the end of the file, and the end of the second overflows.
    assert_eq!(cache.pin(file, 64 << 20, 1).await.unwrap_err().kind, DeviceErrorKind::Invalid);
    assert_eq!(cache.pin(file, u64::MAX, u64::MAX).await.unwrap_err().kind, DeviceErrorKind::Invalid);
    cache.remove(file).await.unwrap();
    assert_eq!(cache.stats().pinned_bytes, 0, "a file that is gone pins nothing");
    assert!(cache.unpin(file, 0, 1).is_err() && cache.holding(file, 0, 1, 1).is_err());
}

/// A source whose reads beyond the first 5 blocks wait for a permit and then fail.
struct FailingSource {
    inner: DeviceSource,
    begun: Arc<Semaphore>,
    gate: Arc<Semaphore>,
}

impl ByteSource for FailingSource {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        if offset < 5 * BLOCK {
            return self.inner.read_at(offset, buffers, context);
        }
        let (begun, gate, name) = (self.begun.clone(), self.gate.clone(), self.name());
        Box::pin(async move {
            begun.add_permits(1);
            let _permit = gate.acquire().await;
            Err(Error::new(DeviceErrorKind::Io, &name, DeviceOperation::Read, "this part cannot be read"))
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        self.inner.write_at(offset, buffers, flags, context)
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.inner.flush(context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.inner.discard(offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.inner.write_zeroes(offset, length, context)
    }
}

#[tokio::test]
async fn failed_pin_spares_concurrent_pin() {
    let options = CacheOptions { memory_bytes: 8 << 20, readahead_bytes: 0, ..CacheOptions::default() };
    let cache = BufferCache::new(options).unwrap();
    let (begun, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let inner = DeviceSource::new(Arc::new(MemoryDevice::new(64 << 20)));
    let file = cache.add(Arc::new(FailingSource { inner, begun: begun.clone(), gate: gate.clone() })).unwrap();
    read(&cache, file, 0..5).await;
    let long = tokio::spawn({
        let cache = cache.clone();
        async move { cache.pin(file, 0, 10 * BLOCK).await }
    });
    begun.acquire().await.unwrap().forget();
    let short = tokio::spawn({
        let cache = cache.clone();
        async move { cache.pin(file, 0, 5 * BLOCK).await }
    });
    // The test has one thread, so the second pin goes as far as it can before this call returns.
    tokio::task::yield_now().await;
    gate.add_permits(100);
    assert_eq!(long.await.unwrap().unwrap_err().kind, DeviceErrorKind::Io);
    assert_eq!(short.await.unwrap().unwrap(), 5 * BLOCK);
    assert_eq!(cache.stats().pinned_bytes, 5 * BLOCK);
    let holding = cache.holding(file, 0, 5 * BLOCK, 10).unwrap();
    assert_eq!((holding.cached_bytes, holding.pinned_bytes), (5 * BLOCK, 5 * BLOCK));
}

/// A drop keeps dirty and pinned blocks, and a flush of all names the files that failed.
#[tokio::test]
async fn drop_keeps_dirty_and_pinned() {
    let (cache, file) = cache(WriteMode::WriteBack, "lru");
    read(&cache, file, 0..10).await;
    cache.pin(file, 0, BLOCK).await.unwrap();
    for block in [5, 6, 9] {
        let buffers = vec![Buffer::copy_of(&[9; BLOCK as usize])];
        cache.write(file, block * BLOCK, buffers, WriteFlags::default(), IoContext::default()).await.unwrap();
    }
    let holding = cache.holding(file, 0, u64::MAX, 3).unwrap();
    let found: Vec<_> = holding.ranges.iter().map(|range| (range.offset / BLOCK, range.length / BLOCK)).collect();
    assert_eq!((found, holding.ranges_left_out), (vec![(0, 1), (1, 4), (5, 2)], 2));
    assert_eq!((holding.cached_bytes, holding.dirty_bytes), (10 * BLOCK, 3 * BLOCK));
    let dropped = cache.drop_clean(file, 0, u64::MAX).unwrap();
    assert_eq!((dropped.bytes, dropped.dirty_bytes, dropped.pinned_bytes), (6 * BLOCK, 3 * BLOCK, BLOCK));
    assert!(cache.flush_all().await.is_empty());
    assert_eq!(cache.drop_clean(file, 0, u64::MAX).unwrap().bytes, 3 * BLOCK);
    let again = cache.read(file, 5 * BLOCK, BLOCK, IoContext::default()).await.unwrap();
    assert_eq!(again[0][0], 9);
}

#[tokio::test]
async fn policy_change_keeps_blocks() {
    let (cache, file) = cache(WriteMode::WriteThrough, "lru");
    read(&cache, file, 0..200).await;
    cache.set_memory(16 << 20).await.unwrap();
    for policy in ["lirs", "s3fifo", "dear", "2q", "fifo", "lru"] {
        cache.set_policy(policy).await.unwrap();
        let before = cache.stats();
        read(&cache, file, 0..200).await;
        let stats = cache.stats();
        assert_eq!(stats.misses, before.misses, "{policy}: all of it is still there");
        assert_eq!((cache.options().policy.as_str(), stats.resident_blocks), (policy, 200));
        read(&cache, file, 0..3000).await;
        read(&cache, file, 0..200).await;
        read(&cache, file, 0..200).await;
        let stats = cache.stats();
        assert!(stats.resident_blocks <= stats.capacity_blocks && stats.used_bytes <= stats.memory_bytes, "{policy}");
        cache.drop_clean(file, 0, u64::MAX).unwrap();
        read(&cache, file, 0..200).await;
    }
    let error = cache.set_policy("best").await.unwrap_err();
    assert!(error.detail.contains("known are"), "{error}");
}

#[tokio::test]
async fn saved_reads_compare_with_lru() {
    for policy in ["lru", "s3fifo", "adaptive"] {
        let (own, of_lru) = (cache(WriteMode::WriteThrough, policy), cache(WriteMode::WriteThrough, "lru"));
        let fits = of_lru.0.stats().capacity_blocks;
        assert!(policy == "lru" || own.0.stats().capacity_blocks < fits, "{policy} has larger tables");
        // All of it fits in memory under LRU, and not under a policy with larger tables.
        for _ in 0..3 {
            read(&own.0, own.1, 0..fits).await;
            read(&of_lru.0, of_lru.1, 0..fits).await;
        }
        let stats = own.0.stats();
        assert_eq!(stats.misses + stats.saved - stats.lost, of_lru.0.stats().misses, "{policy}");
    }
}

/// The window of all references gives the misses of this cache and of other ones.
#[tokio::test]
async fn full_window_matches_cache_misses() {
    for policy in ["lru", "s3fifo", "lirs", "dear"] {
        let (of_lru, file_of_lru) = self::cache(WriteMode::WriteThrough, "lru");
        let (cache, file) = cache(WriteMode::WriteThrough, policy);
        of_lru.set_memory(cache.options().memory_bytes).await.unwrap();
        let (capacity, capacity_lru) = (cache.stats().capacity_blocks, of_lru.stats().capacity_blocks);
        // The loop is a little longer than an LRU of this memory, so an LRU hits nothing.
        for _ in 0..4 {
            read(&cache, file, 0..capacity_lru + 50).await;
            read(&of_lru, file_of_lru, 0..capacity_lru + 50).await;
        }
        let (window, stats) = (cache.window(), cache.stats());
        assert!(window.is_whole());
        let (live, own) = (window.live(), window.misses(policy, capacity).unwrap());
        assert_eq!((live.references, live.misses), (stats.hits + stats.misses, stats.misses), "{policy}");
        assert_eq!(own, live, "{policy}: replayed");
        let (min, lru) = (window.min(), window.misses("lru", capacity_lru).unwrap());
        assert_eq!(lru.misses, of_lru.stats().misses, "{policy}: a cache under LRU");
        assert_eq!(stats.misses + stats.saved, lru.misses + stats.lost, "{policy}: the ledger");
        assert!(min.misses <= live.misses && min.misses >= capacity_lru + 50, "{policy}: {min:?}");
        let advice = window.advise();
        let now = advice.rows.iter().find(|row| row.is_now).unwrap();
        assert_eq!(now.counted, Some(live), "{policy}");
        assert!(advice.rows[0].counted.is_none(), "2 MiB make no cache");
        if policy == "lru" {
            assert!(advice.says[0].starts_with("16M of memory would save 7"), "{:?}", advice.says);
        }
        cache.pin(file, 0, 100 * BLOCK).await.unwrap();
        let window = cache.window();
        assert_eq!(
            (window.is_whole(), window.live().references),
            (false, 0),
            "references of another size are forgotten"
        );
        read(&cache, file, (0..capacity + 50).chain(0..capacity + 50)).await;
        let (live, min) = (cache.window().live(), cache.window().min());
        assert!(min.misses <= live.misses && live.references == capacity - 50, "{policy}: {live:?} {min:?}");
        cache.set_memory(16 << 20).await.unwrap();
        assert!(!cache.window().is_whole(), "it begins in the middle");
    }
}

#[tokio::test]
async fn advice_says_when_all_fits() {
    for (blocks, fits) in [(25, true), (200, false)] {
        let (cache, file) = cache(WriteMode::WriteThrough, "lru");
        // The misses are those of the first round: 0.5 % of all references, or 4 %.
        for _ in 0..5000 / blocks {
            read(&cache, file, 0..blocks).await;
        }
        let says = cache.window().advise().says;
        assert_eq!(says.iter().any(|line| line.contains("nearly all references hit")), fits, "{says:?}");
    }
}

#[tokio::test]
async fn cache_list_starts_with_outer() {
    let caches = CacheList::default();
    let mut registry = nectary_block::DeviceRegistry::with_builtins();
    caches.register(&mut registry);
    let spec = "cache(delay(cache(memory:16M,memory=8M,policy=lru),read=0ms),memory=9M,policy=fifo)";
    let device = registry.open(spec, &nectary_block::OpenOptions::default()).await.unwrap();
    let policies: Vec<String> = caches.opened().iter().map(|opened| opened.cache().options().policy).collect();
    assert_eq!(policies, ["fifo", "lru"]);
    device.set_option("policy", "clock").await.unwrap();
    let outer = caches.opened().swap_remove(0);
    assert!(outer.spec().contains("policy=clock") && outer.size_bytes() == 16 << 20, "{}", outer.spec());
    outer.cache().pin(outer.file(), 0, 1 << 20).await.unwrap();
    drop((outer, device));
    assert!(caches.opened().is_empty(), "it keeps none open");
}
