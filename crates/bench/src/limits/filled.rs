//! The store that is measured.
//!
//! Owns: a store in a file, filling it, and reading its objects. Promises: every byte that the store returns is compared
//! with the expected one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind};

use super::{BODIES, LimitsOptions, MEMORY_BYTES, Measured, on_threads, void};
use crate::random::SeededRandom;
use crate::workload::content;
use crate::{Error, sys};

/// A store in a file, and the objects that it should contain.
pub(super) struct FilledStore {
    store: Store,
    pub block_bytes: u32,
    object_bytes: u32,
    pub bodies: Arc<Vec<Bytes>>,
    next: u32,
    random: SeededRandom,
}

impl FilledStore {
    pub async fn create(path: &Path, options: &LimitsOptions) -> Result<FilledStore, Error> {
        let open = DeviceOptions { create_bytes: Some(options.bytes), ..DeviceOptions::default() };
        let device = nectary_block::open(&format!("file:{}", path.display()), &open).await?;
        let block_bytes = device.geometry().block_bytes;
        let create =
            CreateOptions { size_bytes: options.bytes, segment_bytes: None, force: true, ..CreateOptions::default() };
        Store::create(device.clone(), &create).await?;
        let open = OpenOptions { memory_bytes: MEMORY_BYTES, warm_up: false, ..OpenOptions::default() };
        let store = Store::open(device, open).await?;
        let bodies = (0..BODIES).map(|number| content::body(number, options.object_bytes).into()).collect();
        let (object_bytes, bodies) = (options.object_bytes, Arc::new(bodies));
        Ok(FilledStore { store, block_bytes, object_bytes, bodies, next: 0, random: SeededRandom::new(1) })
    }

    /// Puts objects of `bytes` bytes in total and flushes them; returns bytes per second, and processor time per put.
    pub async fn fill(&mut self, bytes: u64) -> Result<Measured, Error> {
        let (began, processor) = (Instant::now(), sys::processor_time());
        let count = bytes.div_ceil(u64::from(self.object_bytes));
        for _ in 0..count {
            let key = self.next.to_le_bytes();
            let body = self.bodies[(self.next % BODIES) as usize].clone();
            self.next += 1;
            while let Err(error) = self.store.put(KeyRef::new(&key, b""), Bytes::new(), body.clone()).await {
                match error.kind {
                    StoreErrorKind::Busy => self.store.wait_for_room().await,
                    _ => return Err(error.into()),
                }
            }
        }
        self.store.sync().await?;
        let rate = (count * u64::from(self.object_bytes)) as f64 / began.elapsed().as_secs_f64();
        Ok((rate, (sys::processor_time() - processor).as_secs_f64() * 1e6 / count as f64))
    }

    /// Reads random objects for `time`, `depth` at once. Returns the device reads per second, the processor time per
    /// read, and the mean size of a read.
    pub fn read(&mut self, time: Duration, depth: usize) -> Result<(Measured, u64), Error> {
        // Reads only the newer half of the objects, which the store will not overwrite soon.
        let held = self.store.stat().entries.min(u64::from(self.next)) as u32 / 2;
        let before = self.store.stat().counts;
        let (began, processor) = (Instant::now(), sys::processor_time());
        let (store, bodies) = (self.store.clone(), self.bodies.clone());
        let reader = StoreReader { store, bodies, newest: self.next - 1, held, until: began + time };
        on_threads(depth, self.random.next_u64(), |random| reader.clone().read(random))?;
        let seconds = began.elapsed().as_secs_f64();
        let processor = sys::processor_time() - processor;
        let counts = self.store.stat().counts;
        let reads = counts.device_reads - before.device_reads;
        let bytes = counts.device_read_bytes - before.device_read_bytes;
        if reads == 0 {
            return Err(Error::failed("reading objects", "none came from the disk"));
        }
        Ok(((reads as f64 / seconds, processor.as_secs_f64() * 1e6 / reads as f64), bytes / reads))
    }

    pub async fn close(self) -> Result<(), Error> {
        Ok(self.store.close().await?)
    }
}

#[derive(Clone)]
struct StoreReader {
    store: Store,
    bodies: Arc<Vec<Bytes>>,
    /// The number of the newest object; the newest `held` objects are read.
    newest: u32,
    held: u32,
    until: Instant,
}

impl StoreReader {
    /// Reads one object after the other.
    async fn read(self, mut random: SeededRandom) -> Result<(), Error> {
        while Instant::now() < self.until {
            let object = self.newest - random.below(self.held.into()) as u32;
            let Some(found) = self.store.get(KeyRef::new(&object.to_le_bytes(), b"")).await else { continue };
            let Some(body) = found.whole() else { continue };
            if *body != self.bodies[(object % BODIES) as usize] {
                return Err(void("object", object));
            }
        }
        Ok(())
    }
}
