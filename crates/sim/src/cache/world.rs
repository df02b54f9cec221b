//! A cached device with concurrent clients: its stack, its faults, and the operations of a client.
//!
//! Owns: one cache over a disk whose operations take time, end in any order and sometimes fail, and the operations of a
//! client, each recorded when it begins and when it ends. Everything runs on the caller's thread in virtual time, so a
//! seed repeats a run exactly.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nectary_block::{
    AccessStream, BlockDevice, Buffer, DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoContext,
    IoFuture, Recorder, SharedDevice, WriteFlags,
};
use nectary_buffer::{CacheDevice, CacheOptions, WriteMode};

use super::history::{CellEffect, CellRead, CompletedFlush, DeviceHistory};
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::late::{DetachedFilter, LateFilter, UnderWay};
use crate::random::SimulationRandom;

/// The number of cells of the device.
pub const CELLS: usize = 40;
/// The size of a cell, in bytes.
pub const CELL_BYTES: usize = 4096;
/// The unit that a write never tears, in bytes.
const SECTOR_BYTES: usize = 512;
/// The maximum number of cells of one operation.
const CELLS_MAX: usize = 3;
/// The minimum and maximum number of frames of a cache.
const FRAMES: (u64, u64) = (32, 64);
/// The cache policies from which each run draws one.
const POLICIES: [&str; 5] = ["lru", "mru", "s3fifo", "lirs", "dear"];

/// A filter whose operations fail by chance, before or after they reach the device below.
pub struct RandomFaultFilter {
    inner: SharedDevice,
    faults: FaultRateHandle,
}

/// The handle that sets how often the operations of a [`RandomFaultFilter`] fail.
#[derive(Clone)]
pub struct FaultRateHandle {
    random: Arc<Mutex<SimulationRandom>>,
    percent: Arc<AtomicU64>,
}

impl FaultRateHandle {
    fn new(seed: u64) -> FaultRateHandle {
        FaultRateHandle { random: Arc::new(Mutex::new(SimulationRandom::new(seed))), percent: Arc::default() }
    }

    /// Sets the share of operations that fail.
    pub fn set(&self, percent: u64) {
        self.percent.store(percent, Ordering::SeqCst);
    }

    fn draw(&self) -> Option<bool> {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.chance(self.percent.load(Ordering::SeqCst)).then(|| random.chance(50))
    }
}

impl Filter for RandomFaultFilter {
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
        let error = Error::new(DeviceErrorKind::Io, &self.inner.spec(), request.operation, "it was to fail");
        let error = error.at(request.offset, request.length);
        match self.faults.draw() {
            None => operation(&self.inner),
            Some(true) => Box::pin(std::future::ready(Err(error))),
            Some(false) => {
                let done = operation(&self.inner);
                Box::pin(async move { done.await.and(Err(error)) })
            }
        }
    }
}

/// A cached device and everything around it.
pub struct CacheWorld {
    pub random: RefCell<SimulationRandom>,
    pub history: RefCell<DeviceHistory>,
    pub device: CacheDevice,
    pub disk: Arc<SimulatedDisk>,
    pub faults: FaultRateHandle,
    recorder: Option<Recorder>,
    /// How many operations on each cell are in flight.
    busy: RefCell<[u32; CELLS]>,
    pub operations: Cell<u64>,
    /// Operations that began while another one on the same cell was in flight.
    pub overlapping: Cell<u64>,
    /// Operations that failed.
    pub failed: Cell<u64>,
    /// Changes of the cache's size or mode.
    pub changes: Cell<u64>,
    /// Losses of power that were checked.
    pub crashes: Cell<u64>,
    pub broken: RefCell<Vec<String>>,
    next_number: Cell<u64>,
}

impl CacheWorld {
    /// Makes a world from a seed.
    pub fn new(seed: u64, recorder: Option<Recorder>) -> CacheWorld {
        let mut random = SimulationRandom::new(seed);
        let disk = SimulatedDisk::new(
            (CELLS * CELL_BYTES) as u64,
            DiskOptions { seed, late_percent: 0, delays: true, ..DiskOptions::default() },
        );
        let (under_way, faults) = (UnderWay::default(), FaultRateHandle::new(seed));
        let faulty: SharedDevice = Arc::new(RandomFaultFilter { inner: disk.clone(), faults: faults.clone() });
        let late: SharedDevice = Arc::new(LateFilter::new(faulty, seed, &under_way));
        let recorded = recorder.as_ref().map_or(late.clone(), |recorder| recorder.wrap(late));
        let owned: SharedDevice = Arc::new(DetachedFilter::new(recorded, &under_way));
        let options = CacheOptions {
            frames: Some(FRAMES.0 + random.below(FRAMES.1 - FRAMES.0 + 1)),
            policy: POLICIES[random.below(POLICIES.len() as u64) as usize].to_owned(),
            block_bytes: if random.chance(50) { 4096 } else { 8192 },
            mode: if random.chance(70) { WriteMode::WriteBack } else { WriteMode::WriteThrough },
            dirty_age: Duration::from_millis(5 + random.below(60)),
            readahead_bytes: if random.chance(50) { 32 << 10 } else { 0 },
            ..CacheOptions::default()
        };
        let device = CacheDevice::new(owned, options, false).expect("a cache is made");
        CacheWorld {
            random: RefCell::new(SimulationRandom::new(seed ^ 0x5eed)),
            history: RefCell::default(),
            device,
            disk,
            faults,
            recorder,
            busy: RefCell::new([0; CELLS]),
            operations: Cell::new(0),
            overlapping: Cell::new(0),
            failed: Cell::new(0),
            changes: Cell::new(0),
            crashes: Cell::new(0),
            broken: RefCell::default(),
            next_number: Cell::new(0),
        }
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.random.borrow_mut().chance(percent)
    }

    async fn pause(&self, most_ms: u64) {
        let ms = self.below(most_ms + 1);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// Does one operation after another, until all clients together have done `operations`.
    pub async fn client(&self, stream: u32, operations: u64) {
        let context = IoContext { stream: AccessStream(stream), deadline: None };
        while self.operations.get() < operations {
            self.pause(5).await;
            let cells = self.cells();
            match self.below(100) {
                0..=41 => self.read(cells, context).await,
                42..=75 => self.write(cells, context).await,
                76..=85 => self.flush(context).await,
                86..=88 => self.zero(cells, DeviceOperation::Discard, context).await,
                89..=92 => self.zero(cells, DeviceOperation::WriteZeroes, context).await,
                93..=94 => self.memory().await,
                95 => self.mode().await,
                96..=97 => self.faults.set(if self.chance(60) { 0 } else { 5 + self.below(30) }),
                _ => self.scan(context).await,
            }
        }
    }

    /// Draws some adjacent cells; a few cells are chosen often, so that operations overlap.
    fn cells(&self) -> std::ops::Range<usize> {
        let first = if self.chance(60) { self.below(8) } else { self.below(CELLS as u64) } as usize;
        let count = 1 + self.below(CELLS_MAX as u64) as usize;
        first..(first + count).min(CELLS)
    }

    fn enter(&self, cells: &std::ops::Range<usize>) {
        let mut busy = self.busy.borrow_mut();
        self.operations.set(self.operations.get() + 1);
        let meets = cells.clone().any(|cell| busy[cell] > 0);
        self.overlapping.set(self.overlapping.get() + u64::from(meets));
        cells.clone().for_each(|cell| busy[cell] += 1);
    }

    fn leave(&self, cells: &std::ops::Range<usize>) {
        let mut busy = self.busy.borrow_mut();
        cells.clone().for_each(|cell| busy[cell] = busy[cell].saturating_sub(1));
        drop(busy);
        self.mark();
    }

    fn mark(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.mark(self.history.borrow().now);
        }
    }

    pub async fn read(&self, cells: std::ops::Range<usize>, context: IoContext) {
        self.enter(&cells);
        let began = self.history.borrow_mut().tick();
        let buffers = vec![Buffer::zeroed(cells.len() * CELL_BYTES)];
        let read = self.device.read_at((cells.start * CELL_BYTES) as u64, buffers, context).await;
        let mut history = self.history.borrow_mut();
        let ended = history.tick();
        match read {
            Ok(buffers) => {
                for (cell, bytes) in cells.clone().zip(buffers[0].chunks(CELL_BYTES)) {
                    match number_in(bytes) {
                        Some(number) => history.reads.push(CellRead { cell, number, began, ended }),
                        None => self.broken.borrow_mut().push(format!("cell {cell}: a read found a mix of two writes")),
                    }
                }
            }
            Err(_) => self.failed.set(self.failed.get() + 1),
        }
        drop(history);
        self.leave(&cells);
    }

    /// Reads many cells one after another, as a scan does.
    async fn scan(&self, context: IoContext) {
        let first = self.below(CELLS as u64 / 2) as usize;
        for cell in first..(first + 12).min(CELLS) {
            self.read(cell..cell + 1, context).await;
        }
    }

    async fn write(&self, cells: std::ops::Range<usize>, context: IoContext) {
        self.enter(&cells);
        self.next_number.set(self.next_number.get() + 1);
        let (number, fua) = (self.next_number.get(), self.chance(15));
        let place = self.history.borrow_mut().begin(cells.clone(), CellEffect::Write(number), fua);
        self.mark();
        let buffers = vec![Buffer::copy_of(&filled(number, cells.len()))];
        let offset = (cells.start * CELL_BYTES) as u64;
        let written = self.device.write_at(offset, buffers, WriteFlags { fua }, context);
        self.end(place, written).await;
        self.leave(&cells);
    }

    async fn zero(&self, cells: std::ops::Range<usize>, operation: DeviceOperation, context: IoContext) {
        self.enter(&cells);
        let change = if operation == DeviceOperation::Discard { CellEffect::Discard } else { CellEffect::Zero };
        let place = self.history.borrow_mut().begin(cells.clone(), change, false);
        self.mark();
        let (offset, length) = ((cells.start * CELL_BYTES) as u64, (cells.len() * CELL_BYTES) as u64);
        let zeroed = match operation {
            DeviceOperation::Discard => self.device.discard(offset, length, context),
            _ => self.device.write_zeroes(offset, length, context),
        };
        self.end(place, zeroed).await;
        self.leave(&cells);
    }

    /// Waits for a change to end, or sometimes gives it up before it ends; records a success.
    async fn end<T>(&self, place: usize, change: IoFuture<T>) {
        let ended = if self.chance(4) {
            tokio::time::timeout(Duration::from_millis(self.below(3)), change).await.ok()
        } else {
            Some(change.await)
        };
        match ended {
            Some(Ok(_)) => self.history.borrow_mut().end(place),
            Some(Err(_)) => self.failed.set(self.failed.get() + 1),
            None => {}
        }
    }

    /// Flushes, and checks the contents of the disk after a loss of power at the end of the flush.
    pub async fn flush(&self, context: IoContext) {
        self.operations.set(self.operations.get() + 1);
        let began = self.history.borrow_mut().tick();
        if self.device.flush(context).await.is_err() {
            return self.failed.set(self.failed.get() + 1);
        }
        let ended = self.history.borrow_mut().tick();
        self.history.borrow_mut().flushes.push(CompletedFlush { began, ended });
        self.mark();
        self.crashes.set(self.crashes.get() + 1);
        let image = self.disk.crash().image();
        self.broken
            .borrow_mut()
            .extend(lost(&self.history.borrow(), &image).map(|lost| format!("after a flush, {lost}")));
    }

    async fn memory(&self) {
        self.changes.set(self.changes.get() + 1);
        let frames = FRAMES.0 + self.below(FRAMES.1 - FRAMES.0 + 1);
        let _ = self.device.cache().set_frames(frames).await;
    }

    async fn mode(&self) {
        self.changes.set(self.changes.get() + 1);
        let mode = if self.chance(70) { WriteMode::WriteBack } else { WriteMode::WriteThrough };
        let _ = self.device.cache().set_mode(mode).await;
    }
}

/// Returns the bytes of `cells` cells that are filled with the number of a write.
fn filled(number: u64, cells: usize) -> Vec<u8> {
    number.to_le_bytes().repeat(cells * CELL_BYTES / 8)
}

/// Returns the number that fills some bytes; `None` if they have several numbers.
fn number_in(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    bytes.chunks_exact(8).all(|eight| eight == number.to_le_bytes()).then_some(number)
}

/// Describes each sector of an image that no allowed crash can leave. Sectors are compared one by one, because a write
/// may be torn.
pub fn lost(history: &DeviceHistory, image: &[u8]) -> impl Iterator<Item = String> {
    let sectors = image.chunks(SECTOR_BYTES).enumerate().filter_map(|(index, sector)| {
        let cell = index * SECTOR_BYTES / CELL_BYTES;
        let Some(number) = number_in(sector) else {
            return Some((cell, "a sector that nobody wrote".to_owned()));
        };
        (!history.may_remain(cell, number)).then(|| (cell, format!("write {number}, and a later one was durable")))
    });
    let mut found: Vec<(usize, String)> = sectors.collect();
    found.dedup_by_key(|(cell, _)| *cell);
    found.into_iter().map(|(cell, what)| format!("cell {cell} has {what}"))
}
