//! The Nectary store as a contender, on its block devices without a file system.
//!
//! Several devices are striped into one, which is the store's only span. The stripe unit is so long that most reads use
//! one device. A put may wait in memory for [`WRITE_DELAY_MS`], a sixth of the time for which the kernel leaves files
//! dirty. All other options are the store's defaults, unless an ablation changes one.

use std::cell::RefCell;
use std::future::Future;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{ClusterRead, CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

use super::{ContenderResources, ContenderStorage, ObjectHit};
use crate::Error;
use crate::workload::ProxyRequest;

/// The unit of the stripe over several devices, in the form of its SPEC: three clusters. Appends begin at multiples of
/// a power of two, and their first objects are small and popular. So with a unit that is a power of two, one disk would
/// get more of these objects than the other.
const STRIPE_UNIT: &str = "192K";
/// The largest number of attempts of a put. After each attempt that the store refuses because of outstanding writes,
/// the contender waits for the disk.
const PUT_ATTEMPTS_MAX: usize = 8;
/// The longest time that a put object may wait to be written, in milliseconds of the disk's time.
const WRITE_DELAY_MS: u64 = 5_000;

/// The settings of the store; each ablation changes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NectarySettings {
    /// Whether the store gets the hints of requests.
    pub hints: bool,
    /// Whether a read transfers an object or its cluster.
    pub cluster_read: ClusterRead,
    /// The size of a cluster, in bytes.
    pub cluster_bytes: u64,
    /// The share of a segment that may be re-inserted, in percent.
    pub reinsert_percent: u32,
    /// The largest number of bytes that may be rewritten from memory, in percent of the bytes put.
    pub rewrite_percent: u32,
    /// The longest time that a put object may wait to be written, in milliseconds.
    pub write_delay_ms: u64,
}

impl Default for NectarySettings {
    fn default() -> NectarySettings {
        let OpenOptions { cluster_read, cluster_bytes, reinsert_percent, rewrite_percent, .. } = OpenOptions::default();
        let (hints, write_delay_ms) = (true, WRITE_DELAY_MS);
        NectarySettings { hints, cluster_read, cluster_bytes, reinsert_percent, rewrite_percent, write_delay_ms }
    }
}

impl NectarySettings {
    /// The settings of each ablation, by name.
    pub fn ablations() -> Vec<(&'static str, NectarySettings)> {
        let usual = NectarySettings::default;
        vec![
            ("hints-off", NectarySettings { hints: false, ..usual() }),
            ("clusters-off", NectarySettings { hints: false, cluster_read: ClusterRead::Object, ..usual() }),
            ("read-object", NectarySettings { cluster_read: ClusterRead::Object, ..usual() }),
            ("read-cluster", NectarySettings { cluster_read: ClusterRead::Cluster, ..usual() }),
            ("cluster-16k", NectarySettings { cluster_bytes: 16 << 10, ..usual() }),
            ("cluster-256k", NectarySettings { cluster_bytes: 256 << 10, ..usual() }),
            ("reinsert-10", NectarySettings { reinsert_percent: 10, ..usual() }),
            ("rewrite-off", NectarySettings { rewrite_percent: 0, ..usual() }),
            ("delay-500ms", NectarySettings { write_delay_ms: 500, ..usual() }),
        ]
    }
}

thread_local! {
    static RUNTIME: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

/// Runs a future on this thread's own runtime.
fn block_on<T>(future: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    RUNTIME.with_borrow_mut(|slot| {
        let runtime = match slot {
            Some(runtime) => runtime,
            None => {
                let runtime = Builder::new_current_thread().enable_all().build();
                slot.insert(runtime.map_err(|error| Error::failed("starting a runtime", error))?)
            }
        };
        runtime.block_on(future)
    })
}

/// The SPEC of a store's device: the one device, or a stripe of several.
fn spec(place: &ContenderResources) -> String {
    let devices: Vec<String> = place.devices.iter().map(|path| format!("disk:{}", path.display())).collect();
    match devices.as_slice() {
        [one] => one.clone(),
        _ => format!("stripe({},unit={STRIPE_UNIT})", devices.join(",")),
    }
}

/// Makes an empty store.
pub(super) fn create(place: &ContenderResources) -> Result<(), Error> {
    block_on(async {
        let device = nectary_block::open(&spec(place), &DeviceOptions::default()).await?;
        let size_bytes = place.disk_bytes.min(device.geometry().size_bytes);
        let options = CreateOptions { size_bytes, segment_bytes: None, force: true, ..CreateOptions::default() };
        Ok(Store::create(device, &options).await?)
    })
}

/// An open store.
pub struct NectaryContender {
    store: Store,
    /// Whether hints are passed to the store.
    hints: bool,
    /// On a virtual clock: how long a put may wait for its write, and the time of the last flush.
    write_delay: Option<(Duration, Mutex<Duration>)>,
}

impl NectaryContender {
    /// Opens the store that [`create`] made.
    pub fn open(
        place: &ContenderResources,
        memory_bytes: u64,
        settings: &NectarySettings,
    ) -> Result<NectaryContender, Error> {
        let usual = Duration::from_millis(settings.write_delay_ms);
        let options = OpenOptions {
            memory_bytes,
            write_delay: usual.div_f64(place.speed.max(1.0)),
            cluster_read: settings.cluster_read,
            cluster_bytes: settings.cluster_bytes,
            reinsert_percent: settings.reinsert_percent,
            rewrite_percent: settings.rewrite_percent,
            warm_up: false,
            ..OpenOptions::default()
        };
        let store = block_on(async {
            let device = nectary_block::open(&spec(place), &DeviceOptions::default()).await?;
            Ok(Store::open(device, options).await?)
        })?;
        Ok(NectaryContender {
            store,
            hints: settings.hints,
            write_delay: place.is_virtual.then(|| (usual, Mutex::default())),
        })
    }
}

impl ContenderStorage for NectaryContender {
    fn get(&self, request: &ProxyRequest) -> Result<Option<ObjectHit>, Error> {
        let key = request.key();
        if let Some(page) = request.page_key().filter(|_| self.hints) {
            self.store.collocate(key.as_bytes(), page.as_bytes());
        }
        let key = KeyRef::new(key.as_bytes(), b"");
        let resident = self.store.get_resident(key);
        let in_memory = resident.is_some();
        block_on(async {
            let object = match resident {
                Some(object) => object,
                None => match self.store.get(key).await {
                    Some(object) => object,
                    None => return Ok(None),
                },
            };
            if let Some(body) = object.whole() {
                return Ok(Some(ObjectHit { pieces: vec![body.clone()], in_memory }));
            }
            let mut reader = object.reader(0..object.body_bytes());
            let mut pieces = Vec::new();
            while let Some(piece) = reader.next().await {
                match piece {
                    Ok(piece) => pieces.push(piece),
                    // The ring overwrote a fragment before it was read, so the request is a miss.
                    Err(_) => return Ok(None),
                }
            }
            // This is a body in fragments: memory holds at most its head, so the request does not count as a hit in
            // memory.
            Ok(Some(ObjectHit { pieces, in_memory: false }))
        })
    }

    fn put(&self, request: &ProxyRequest, body: Bytes) -> Result<(), Error> {
        let key = request.key();
        block_on(async {
            for _ in 0..PUT_ATTEMPTS_MAX {
                let put = self.store.put(KeyRef::new(key.as_bytes(), b""), Bytes::new(), body.clone()).await;
                match put {
                    Ok(_) => return Ok(()),
                    Err(error) if error.kind == StoreErrorKind::Busy => drop(self.store.sync().await?),
                    Err(error) => return Err(error.into()),
                }
            }
            // The object is not stored; the store counts this, and the next request is a miss.
            Ok(())
        })
    }

    fn delete(&self, request: &ProxyRequest) -> Result<(), Error> {
        let key = request.key();
        block_on(async { Ok(self.store.purge_key(key.as_bytes()).await?) })
    }

    fn tick(&self, now: Duration) -> Result<(), Error> {
        let Some((delay, last)) = &self.write_delay else { return Ok(()) };
        {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if now.saturating_sub(*last) < *delay {
                return Ok(());
            }
            *last = now;
        }
        self.settle()
    }

    fn settle(&self) -> Result<(), Error> {
        block_on(async { Ok(self.store.sync().await.map(drop)?) })
    }

    fn counters(&self) -> serde_json::Value {
        let stat = self.store.stat();
        serde_json::json!({
            "entries": stat.entries,
            "index_bytes": stat.index_bytes,
            "memory_used_bytes": stat.memory_used_bytes,
            "memory_capacity_bytes": stat.memory_capacity_bytes,
            "segment_bytes": stat.segment_bytes,
            "segments": stat.segment_count,
            "whole_bytes_max": stat.whole_bytes_max,
            "counts": stat.counts,
            "stopped": stat.stopped,
        })
    }
}
