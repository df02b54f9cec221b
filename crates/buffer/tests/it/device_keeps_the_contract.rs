//! Tests that `cache(…)` keeps the contract of a device, in every mode that writes and with several block sizes. The
//! device is opened by its SPEC.

use std::sync::Arc;

use nectary_block::conformance::{VolatileDevice, check, check_durability, check_wrapper};
use nectary_block::{
    Buffer, DeviceErrorKind, DeviceRegistry, IoContext, OpenOptions, SharedDevice, SurvivalLevel, WriteFlags, read,
    write,
};
use nectary_buffer::{CacheDevice, CacheOptions, WriteMode, register};

fn registry() -> DeviceRegistry {
    let mut registry = DeviceRegistry::with_builtins();
    register(&mut registry);
    registry
}

async fn open(spec: &str) -> SharedDevice {
    registry().open(spec, &OpenOptions::default()).await.unwrap()
}

#[tokio::test]
async fn cached_device_keeps_device_contract() {
    for options in [
        "memory=6M,policy=lru",
        "memory=6M,policy=lru,mode=writeback",
        "memory=6M,policy=s3fifo,block=4K,mode=writeback,dirty=1%,age=1ms",
        "memory=48M,policy=dear,block=64K,mode=writeback",
        "memory=12M,policy=adaptive,block=4K,readahead=0",
    ] {
        let clauses = check(|bytes| async move { open(&format!("cache(memory:{bytes},{options})")).await }).await;
        assert!(clauses.unwrap_or_else(|failure| panic!("{options}: {failure}")) > 10);
    }
}

/// Flushed and forced writes survive a crash under write-back.
#[tokio::test]
async fn write_back_flush_survives_crash() {
    for mode in [WriteMode::WriteThrough, WriteMode::WriteBack] {
        let options = CacheOptions { memory_bytes: 6 << 20, policy: "lru".to_owned(), mode, ..CacheOptions::default() };
        let below: Arc<std::sync::Mutex<Option<Arc<VolatileDevice>>>> = Arc::default();
        let make = |bytes| {
            let (options, below) = (options.clone(), below.clone());
            async move {
                let device = VolatileDevice::new(bytes);
                *below.lock().unwrap() = Some(device.clone());
                Arc::new(CacheDevice::new(device, options, false).unwrap()) as SharedDevice
            }
        };
        let crash = |device: SharedDevice| {
            let below = below.lock().unwrap().clone().unwrap();
            async move {
                let found = below.crash();
                drop(device);
                found as SharedDevice
            }
        };
        check_durability(make, crash).await.unwrap();
        let options = CacheOptions { memory_bytes: 6 << 20, policy: "lru".to_owned(), mode, ..CacheOptions::default() };
        let wrap = |device| {
            let options = options.clone();
            async move { Arc::new(CacheDevice::new(device, options, false).unwrap()) as SharedDevice }
        };
        check_wrapper(wrap).await.unwrap();
    }
}

/// Under write-back the geometry says that unflushed writes survive less.
#[tokio::test]
async fn write_back_geometry_lowers_durability() {
    let path = std::env::temp_dir().join(format!("nectary-cache-geometry-{}", std::process::id()));
    let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
    let open = async |mode: &str| {
        let spec = format!("cache(file:{},memory=6M,policy=lru,mode={mode})", path.display());
        registry().open(&spec, &options).await.map(|device| device.geometry())
    };
    let through = open("writethrough").await.unwrap();
    let back = open("writeback").await.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(through.write_survives >= SurvivalLevel::Process);
    assert_eq!((back.write_survives, back.flush_survives), (SurvivalLevel::Nothing, through.flush_survives));
}

/// Write-back over a source that others write is refused, and read-only refuses writes.
#[tokio::test]
async fn write_back_needs_exclusive_source() {
    let refused = registry()
        .open("cache(memory:1M,memory=6M,policy=lru,mode=writeback,shared=yes)", &OpenOptions::default())
        .await
        .map(|device| device.spec());
    let error = refused.unwrap_err();
    assert!(error.kind == DeviceErrorKind::Unsupported && error.detail.contains("others may write"), "{error}");
    let shared = open("cache(memory:1M,memory=6M,policy=lru,shared=yes)").await;
    let error = shared.set_option("mode", "writeback").await.unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Unsupported, "{error}");
    let device = open("cache(memory:1M,memory=6M,policy=lru,mode=readonly)").await;
    let context = IoContext::default();
    let written = device.write_at(0, vec![Buffer::zeroed(4096)], WriteFlags::default(), context).await;
    assert_eq!(written.unwrap_err().kind, DeviceErrorKind::Unsupported);
    assert_eq!(device.discard(0, 4096, context).await.unwrap_err().kind, DeviceErrorKind::Unsupported);
    assert_eq!(device.write_zeroes(0, 4096, context).await.unwrap_err().kind, DeviceErrorKind::Unsupported);
    assert_eq!(read(&*device, 0, 8192).await.unwrap().len(), 8192);
}

/// Memory and mode change while the cache runs, through filters too.
#[tokio::test]
async fn memory_and_mode_change_live() {
    let device = open("stats(cache(memory:64M,memory=32M,policy=lru,mode=writeback))").await;
    for block in 0..2000_u64 {
        write(&*device, block * 8192, Buffer::copy_of(&[7; 8192])).await.unwrap();
    }
    device.set_option("memory", "6M").await.unwrap();
    let figures = device.figures();
    let cache = figures.iter().find(|figures| figures.device == "cache").unwrap();
    assert!(cache.get("used_bytes").unwrap() <= 6 << 20, "{cache:?}");
    device.set_option("mode", "writethrough").await.unwrap();
    let figures = device.figures();
    assert_eq!(figures.iter().find_map(|figures| figures.get("dirty_bytes")), Some(0));
    assert!(device.spec().contains("memory=6M") && device.spec().contains("mode=writethrough"), "{}", device.spec());
    let found = read(&*device, 0, 2000 * 8192).await.unwrap();
    assert!(found.iter().all(|&byte| byte == 7));
    let error = device.set_option("colour", "red").await.unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Unsupported);
    assert!(device.set_option("memory", "1M").await.unwrap_err().detail.contains("at least"));
}
