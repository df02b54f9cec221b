//! foyer's hybrid cache as a contender (feature `foyer`): objects in memory and on a block device, by another Rust library.
//!
//! Everything is as foyer's defaults have it but for what the comparison needs: objects are written when they are put, as the
//! store's are, on one device, with direct I/O and io_uring; its buffers and blocks are as small as the scaled memory asks for. It has
//! no clock to be called by: its flusher writes at once, so it is compared in real time (`--speed`), where a disk makes it
//! gather what waits.

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, FileDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy,
    RecoverMode, UringIoEngineConfig,
};
use tokio::runtime::{Builder, Runtime};

use super::{Found, Place, Storage};
use crate::workload::Request;
use crate::{Error, ErrorKind};

/// What it writes and reclaims at once, in bytes.
const BLOCK_BYTES: usize = 4 << 20;
/// Its buffers for what waits to be written, in bytes.
const BUFFER_BYTES: usize = 4 << 20;
/// Threads of its runtime.
const THREADS: usize = 1;

/// A hybrid cache in service.
pub struct Foyer {
    cache: HybridCache<String, Bytes>,
    runtime: Runtime,
}

impl Foyer {
    /// Opens an empty cache on one device.
    pub fn open(place: &Place, memory_bytes: u64) -> Result<Foyer, Error> {
        let [device] = place.devices.as_slice() else {
            return Err(Error::new(ErrorKind::Usage, "foyer is run on one disk"));
        };
        let failed = |error: foyer::Error| Error::failed("foyer", error);
        let runtime = Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
        let tier_bytes = (memory_bytes as usize).saturating_sub(BUFFER_BYTES).max(1 << 20);
        let cache = runtime.block_on(async {
            let device = FileDeviceBuilder::new(device).with_capacity(place.disk_bytes as usize).with_direct(true);
            let device = device.build().map_err(failed)?;
            let engine = BlockEngineConfig::new(device).with_block_size(BLOCK_BYTES).with_buffer_pool_size(BUFFER_BYTES);
            let builder = HybridCacheBuilder::new().with_policy(HybridCachePolicy::WriteOnInsertion);
            let builder = builder.memory(tier_bytes).with_weighter(|key: &String, body: &Bytes| key.len() + body.len());
            let builder = builder.storage().with_io_engine_config(UringIoEngineConfig::new());
            builder.with_engine_config(engine).with_recover_mode(RecoverMode::None).build().await.map_err(failed)
        })?;
        Ok(Foyer { cache, runtime })
    }
}

impl Storage for Foyer {
    fn get(&self, request: &Request) -> Result<Option<Found>, Error> {
        let key = request.key();
        self.runtime.block_on(async {
            let get = self.cache.get(&key);
            let in_memory = !get.need_await();
            let entry = get.await.map_err(|error| Error::failed("foyer's get", error))?;
            Ok(entry.map(|entry| Found { pieces: vec![entry.value().clone()], in_memory }))
        })
    }

    fn put(&self, request: &Request, body: Bytes) -> Result<(), Error> {
        let _runtime = self.runtime.enter();
        self.cache.insert(request.key(), body);
        Ok(())
    }

    fn delete(&self, request: &Request) -> Result<(), Error> {
        self.cache.remove(&request.key());
        Ok(())
    }

    fn settle(&self) -> Result<(), Error> {
        self.runtime.block_on(self.cache.storage().wait());
        Ok(())
    }

    fn counters(&self) -> serde_json::Value {
        let statistics = self.cache.statistics();
        serde_json::json!({
            "memory_used_bytes": self.cache.memory().usage(),
            "memory_capacity_bytes": self.cache.memory().capacity(),
            "disk_write_bytes": statistics.disk_write_bytes(),
            "disk_read_bytes": statistics.disk_read_bytes(),
            "disk_writes": statistics.disk_write_ios(),
            "disk_reads": statistics.disk_read_ios(),
        })
    }
}
