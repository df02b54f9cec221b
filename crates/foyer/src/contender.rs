//! foyer's hybrid cache on one block device. It is configured as foyer's documentation recommends, within the memory
//! that every contender has.
//!
//! Owns: foyer's settings, and the wait that keeps foyer from dropping objects. Promises: those of the trait
//! [`ContenderStorage`]; the worker verifies foyer's objects like those of any contender. All other settings are foyer's
//! defaults: every object is admitted, nothing is re-inserted or compressed, and blocks are evicted in the order in
//! which they were written, or earlier when most of a block is invalid.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FileDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    IoEngineConfig, PsyncIoEngineConfig, RecoverMode, UringIoEngineConfig,
};
use nectary_bench::contender::{
    ContenderKind, ContenderResources, ContenderStorage, FoyerEngine, FoyerSettings, FoyerWrites, ObjectHit,
};
use nectary_bench::workload::ProxyRequest;
use nectary_bench::{Error, ExperimentErrorKind};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

/// The unit in which foyer places objects on its disk, in bytes.
const PAGE_BYTES: u64 = 4096;
/// The bytes that foyer stores with each object in addition to key and value: a header, and the two lengths.
const RECORD_BYTES: u64 = 48;

/// Opens foyer on the first device of a place.
pub fn open(kind: &ContenderKind, place: &ContenderResources) -> Result<Box<dyn ContenderStorage>, Error> {
    let ContenderKind::Foyer { memory_bytes, settings } = kind else {
        return Err(Error::new(
            ExperimentErrorKind::Usage,
            format!("this program contends with foyer, not with {kind:?}"),
        ));
    };
    Ok(Box::new(FoyerContender::open(place, *memory_bytes, settings)?))
}

/// A running foyer.
pub struct FoyerContender {
    runtime: Runtime,
    cache: HybridCache<String, Bytes>,
    disk_bytes: u64,
    buffer_bytes: u64,
    block_bytes: u64,
    /// The size on disk of the objects that were put after foyer had last written everything, in bytes.
    waiting_bytes: AtomicU64,
}

impl FoyerContender {
    fn open(place: &ContenderResources, memory_bytes: u64, settings: &FoyerSettings) -> Result<FoyerContender, Error> {
        let [device] = place.devices.as_slice() else {
            return Err(Error::new(ExperimentErrorKind::Usage, "foyer is given one device"));
        };
        let failed = |error: foyer::Error| Error::failed("foyer", error);
        let runtime = match settings.threads {
            0 => Builder::new_current_thread().enable_all().build(),
            threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
        };
        let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
        let buffer_bytes = (memory_bytes / settings.buffer_share).next_multiple_of(PAGE_BYTES);
        let policy = match settings.writes {
            FoyerWrites::Eviction => HybridCachePolicy::WriteOnEviction,
            FoyerWrites::Insertion => HybridCachePolicy::WriteOnInsertion,
        };
        let disk = FileDeviceBuilder::new(device).with_capacity(place.disk_bytes as usize).with_direct(true);
        let disk = disk.build().map_err(failed)?;
        let engine = BlockEngineConfig::new(disk)
            .with_block_size(settings.block_bytes as usize)
            .with_flushers(settings.flushers)
            .with_buffer_pool_size(buffer_bytes as usize)
            .with_submit_queue_size_threshold(buffer_bytes as usize);
        let builder = HybridCacheBuilder::new()
            .with_policy(policy)
            .with_flush_on_close(false)
            .memory((memory_bytes - 2 * buffer_bytes) as usize)
            .with_weighter(|key: &String, body: &Bytes| key.len() + body.len())
            .storage()
            .with_engine_config(engine)
            .with_io_engine_config(io_engine(settings))
            .with_recover_mode(RecoverMode::None);
        let cache = runtime.block_on(builder.build()).map_err(failed)?;
        let (disk_bytes, block_bytes) = (place.disk_bytes, settings.block_bytes);
        Ok(FoyerContender { runtime, cache, disk_bytes, buffer_bytes, block_bytes, waiting_bytes: AtomicU64::new(0) })
    }
}

fn io_engine(settings: &FoyerSettings) -> Box<dyn IoEngineConfig> {
    let ring = UringIoEngineConfig::new().with_io_depth(settings.depth);
    match settings.engine {
        FoyerEngine::Psync => PsyncIoEngineConfig::new().boxed(),
        FoyerEngine::Uring => ring.boxed(),
        FoyerEngine::UringSubmitPoll => ring.with_sqpoll(true).boxed(),
    }
}

impl ContenderStorage for FoyerContender {
    fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error> {
        let key = request.key();
        let resident = self.cache.memory().get(key.as_str());
        let in_memory = resident.is_some();
        let entry = match resident {
            Some(entry) => Some(entry),
            None => {
                let found = self.runtime.block_on(async { self.cache.get(key.as_str()).await });
                found.map_err(|error| Error::failed("foyer", error))?
            }
        };
        Ok(entry.map(|entry| ObjectHit { pieces: vec![entry.value().clone()], in_memory }))
    }

    fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error> {
        let key = request.key();
        let bytes = (RECORD_BYTES + (key.len() + body.len()) as u64).next_multiple_of(PAGE_BYTES);
        // foyer drops objects for which its buffer has no room, and here puts arrive faster than it writes. So this
        // waits until foyer has written its buffer.
        if self.waiting_bytes.load(Ordering::Relaxed) + bytes > self.buffer_bytes {
            self.settle()?;
        }
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.cache.insert(key, body);
        Ok(())
    }

    fn delete(&self, request: &ProxyRequest) -> Result<(), Error> {
        self.cache.remove(request.key().as_str());
        Ok(())
    }

    fn settle(&self) -> Result<(), Error> {
        self.runtime.block_on(self.cache.storage().wait());
        self.waiting_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn counters(&self) -> serde_json::Value {
        let disk = self.cache.storage().statistics();
        json!({
            "memory_used_bytes": self.cache.memory().usage(),
            "memory_capacity_bytes": self.cache.memory().capacity(),
            "buffer_bytes": self.buffer_bytes,
            "disk_written_bytes": disk.disk_write_bytes(),
            "disk_writes": disk.disk_write_ios(),
            "disk_read_bytes": disk.disk_read_bytes(),
            "disk_reads": disk.disk_read_ios(),
            // The simulation needs the layout of foyer's disk.
            "segment_bytes": self.block_bytes,
            "segments": self.disk_bytes / self.block_bytes,
            "whole_bytes_max": self.block_bytes,
            "record_bytes": RECORD_BYTES,
            "unit_bytes": PAGE_BYTES,
        })
    }
}

#[cfg(test)]
mod tests {
    use nectary_bench::workload::content;

    use super::*;

    const OBJECTS: u32 = 2000;
    const OBJECT_BYTES: u32 = 6000;

    fn request(object: u32) -> ProxyRequest {
        ProxyRequest { client: 0, object, bytes: OBJECT_BYTES, site: 0, page: None }
    }

    /// Bodies are equal byte by byte, and deleted ones stay deleted.
    #[test]
    fn foyer_reads_evicted_bodies_from_disk() {
        let usual = FoyerSettings::default;
        for settings in [
            usual(),
            FoyerSettings { writes: FoyerWrites::Insertion, ..usual() },
            FoyerSettings { threads: 2, ..usual() },
            FoyerSettings { engine: FoyerEngine::Uring, ..usual() },
        ] {
            let path = std::env::temp_dir().join(format!("nectary-foyer-contender-{}", std::process::id()));
            let place = ContenderResources {
                devices: vec![path.clone()],
                disk_bytes: 64 << 20,
                ..ContenderResources::default()
            };
            let contender = FoyerContender::open(&place, 4 << 20, &settings).unwrap();
            for object in 0..OBJECTS {
                let body = content::body(object, OBJECT_BYTES).into();
                contender.put(&request(object), body).unwrap();
            }
            contender.settle().unwrap();
            let (mut from_disk, mut missing) = (0, 0);
            for object in 0..OBJECTS {
                // Objects that are read from disk evict objects that are only in memory. foyer drops evicted objects
                // that it cannot write fast enough.
                if object % 32 == 0 {
                    contender.settle().unwrap();
                }
                let Some(found) = contender.get(&request(object)).unwrap() else {
                    missing += 1;
                    continue;
                };
                assert_eq!(content::first_wrong(object, OBJECT_BYTES, &found.pieces), None);
                from_disk += u32::from(!found.in_memory);
            }
            assert!(missing < OBJECTS / 10, "{settings:?}: {missing} are missing");
            assert!(from_disk > OBJECTS / 2, "{settings:?}: {from_disk} came from the disk");
            contender.delete(&request(7)).unwrap();
            assert!(contender.get(&request(7)).unwrap().is_none());
            drop(contender);
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn it_contends_with_foyer_alone() {
        let error = open(&ContenderKind::Memory { wrong: None }, &ContenderResources::default()).map(drop).unwrap_err();
        assert_eq!(error.kind, ExperimentErrorKind::Usage);
    }
}
