//! A simulated disk in memory, driven by a seed: it tears and loses writes, delays operations and corrupts sectors,
//! within the limits of its options.
//!
//! Its possible faults, by kind:
//! - *late*: an operation ends after others that began later; a flush does not cover operations that have not ended.
//! - *lost*, *torn*: after a crash, a write that no flush covers is missing, or only a part of it is present (in units
//!   of 512 bytes). Without a crash nothing is lost.
//! - *rotten*: a written sector reads with a flipped bit until it is written again. At most `rotten_max` sectors are
//!   rotten at a time, and none in the protected ranges, so that the store always keeps the data that it needs.
//!
//! Promises: the contract of [`BlockDevice`](nectary_block::BlockDevice), except for rot. The same seed and the same
//! operations in the same order cause the same faults. Leaves to others: errors and transient bit flips (the filters
//! `error` and `corrupt`), and trying crash states one by one (`crate::crash`).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{
    Buffer, DeviceErrorKind, DeviceGeometry, DeviceOperation, DeviceSnapshot, Error, Filter, IoContext, IoFuture,
    MemoryDevice, SharedDevice, SurvivalLevel, WriteFlags,
};

use crate::late::OperationDelays;
use crate::random::SimulationRandom;

/// The unit in which writes are atomic, in bytes.
const SECTOR_BYTES: u64 = 512;

/// The largest number of times that a late operation lets other tasks run first.
const TURNS_MAX: u64 = 8;

/// The faults of a disk. Shares are in percent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskOptions {
    /// Decides every fault.
    pub seed: u64,
    /// The share of operations that end late.
    pub late_percent: u64,
    /// Whether operations also take time, on the runtime's clock.
    pub delays: bool,
    /// The share of the uncertain writes that are missing after a crash.
    pub lost_percent: u64,
    /// The share of the remaining uncertain writes that are torn after a crash.
    pub torn_percent: u64,
    /// The share of writes after which one sector rots.
    pub rotten_percent: u64,
    /// The largest number of sectors that are rotten at a time.
    pub rotten_max: usize,
    /// Ranges, in bytes, in which nothing rots.
    pub protected: Vec<Range<u64>>,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            seed: 1,
            late_percent: 30,
            delays: false,
            lost_percent: 30,
            torn_percent: 30,
            rotten_percent: 0,
            rotten_max: 16,
            protected: Vec::new(),
        }
    }
}

/// A disk with the faults that the head of this file lists.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_block::{Buffer, IoContext, Filter, read, write};
/// use nectary_sim::disk::{SimulatedDisk, DiskOptions};
/// let disk = SimulatedDisk::new(1 << 20, DiskOptions { lost_percent: 100, ..DiskOptions::default() });
/// write(&*disk, 0, Buffer::copy_of(&[1; 4096])).await?;
/// disk.flush(IoContext::default()).await?;
/// write(&*disk, 0, Buffer::copy_of(&[2; 4096])).await?;
/// let found = disk.crash();
/// assert_eq!(read(&*found, 0, 4096).await?[0], 1, "what was flushed is there, what was not is lost");
/// # Ok::<(), nectary_block::Error>(()) }).unwrap();
/// ```
pub struct SimulatedDisk {
    inner: SharedDevice,
    memory: Arc<MemoryDevice>,
    options: DiskOptions,
    state: Arc<Mutex<SimulatedDiskState>>,
    delays: Option<OperationDelays>,
}

struct SimulatedDiskState {
    random: SimulationRandom,
    /// The contents that are certain to survive a crash.
    durable: DeviceSnapshot,
    /// Writes that no flush covers, by the order in which they began.
    pending: BTreeMap<u64, PendingWrite>,
    next: u64,
    /// Rotten sectors, each with the bit that reads wrong.
    rotten: BTreeMap<u64, u64>,
}

struct PendingWrite {
    offset: u64,
    data: Vec<u8>,
    is_completed: bool,
}

impl SimulatedDisk {
    /// Makes a disk of zeroes.
    pub fn new(size_bytes: u64, options: DiskOptions) -> Arc<SimulatedDisk> {
        SimulatedDisk::from_snapshot(&DeviceSnapshot::zeroed(size_bytes), options)
    }

    /// Makes a disk that begins with an image.
    pub fn from_snapshot(snapshot: &DeviceSnapshot, options: DiskOptions) -> Arc<SimulatedDisk> {
        let memory = Arc::new(MemoryDevice::from_snapshot(snapshot));
        let state = SimulatedDiskState {
            random: SimulationRandom::new(options.seed),
            durable: memory.snapshot(),
            pending: BTreeMap::new(),
            next: 0,
            rotten: BTreeMap::new(),
        };
        let delays = options.delays.then(|| OperationDelays::new(options.seed));
        Arc::new(SimulatedDisk { inner: memory.clone(), memory, options, state: Arc::new(Mutex::new(state)), delays })
    }

    /// Returns the disk as a loss of power leaves it now, with the same rotten sectors and the next seed.
    pub fn crash(&self) -> Arc<SimulatedDisk> {
        let mut state = self.lock();
        let mut snapshot = state.durable.clone();
        let pending: Vec<(u64, Vec<u8>)> =
            state.pending.values().map(|pending| (pending.offset, pending.data.clone())).collect();
        for (offset, data) in pending {
            if state.random.chance(self.options.lost_percent) {
                continue;
            }
            let is_torn = state.random.chance(self.options.torn_percent);
            for (sector, bytes) in data.chunks(SECTOR_BYTES as usize).enumerate() {
                if !is_torn || state.random.chance(50) {
                    snapshot.write(offset + sector as u64 * SECTOR_BYTES, bytes);
                }
            }
        }
        let options = DiskOptions { seed: self.options.seed.wrapping_add(1), ..self.options.clone() };
        let disk = SimulatedDisk::from_snapshot(&snapshot, options);
        disk.lock().rotten = state.rotten.clone();
        disk
    }

    /// The bytes that a read would return now, without rot.
    pub fn image(&self) -> Vec<u8> {
        self.memory.image()
    }

    /// The same as a snapshot. *Cost*: copies only references to pages.
    pub fn snapshot(&self) -> DeviceSnapshot {
        self.memory.snapshot()
    }

    /// The number of sectors that read wrong now.
    pub fn rotten_count(&self) -> usize {
        self.lock().rotten.len()
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedDiskState> {
        lock(&self.state)
    }

    /// Draws the delay of an operation that begins now.
    fn lateness(&self) -> CompletionDelay {
        let delay = self.delays.as_ref().map(OperationDelays::draw);
        let mut state = self.lock();
        let turns = if state.random.chance(self.options.late_percent) { 1 + state.random.below(TURNS_MAX) } else { 0 };
        CompletionDelay { turns, delay }
    }
}

impl SimulatedDiskState {
    /// Registers a write that the device has accepted. Call it as soon as the device may hold the write.
    fn begin(&mut self, offset: u64, data: Vec<u8>) -> u64 {
        let sectors = offset / SECTOR_BYTES..(offset + data.len() as u64).div_ceil(SECTOR_BYTES);
        let healed: Vec<u64> = self.rotten.range(sectors).map(|(&sector, _)| sector).collect();
        for sector in healed {
            self.rotten.remove(&sector);
        }
        let number = self.next;
        self.next += 1;
        self.pending.insert(number, PendingWrite { offset, data, is_completed: false });
        number
    }

    /// Records that a write has ended: later flushes cover it; a forced write is covered at once.
    fn complete(&mut self, number: u64, fua: bool, options: &DiskOptions) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        pending.is_completed = true;
        let (offset, length) = (pending.offset, pending.data.len() as u64);
        if fua {
            self.cover(number..number + 1);
        }
        let sectors = length / SECTOR_BYTES;
        if sectors > 0 && self.rotten.len() < options.rotten_max && self.random.chance(options.rotten_percent) {
            let place = offset + self.random.below(sectors) * SECTOR_BYTES;
            let bit = self.random.below(SECTOR_BYTES * 8);
            if !options.protected.iter().any(|range| place < range.end && range.start < place + SECTOR_BYTES) {
                self.rotten.insert(place / SECTOR_BYTES, bit);
            }
        }
    }

    /// Makes the completed writes among `numbers` durable. Older writes to the same ranges are then no longer
    /// uncertain.
    fn cover(&mut self, numbers: Range<u64>) {
        let covered: Vec<u64> = self
            .pending
            .range(numbers)
            .filter(|(_, pending)| pending.is_completed)
            .map(|(&number, _)| number)
            .collect();
        for number in covered {
            let Some(pending) = self.pending.remove(&number) else { continue };
            self.durable.grow(pending.offset + pending.data.len() as u64);
            self.durable.write(pending.offset, &pending.data);
            // An older write to the same range can no longer overwrite this one.
            for older in self.pending.range_mut(..number).map(|(_, older)| older) {
                older.hide(pending.offset, &pending.data);
            }
        }
    }
}

impl PendingWrite {
    /// Replaces the overlapping bytes by those of a later, durable write.
    fn hide(&mut self, offset: u64, data: &[u8]) {
        let start = offset.max(self.offset);
        let end = (offset + data.len() as u64).min(self.offset + self.data.len() as u64);
        if start < end {
            let (to, from) = ((start - self.offset) as usize, (start - offset) as usize);
            let length = (end - start) as usize;
            self.data[to..to + length].copy_from_slice(&data[from..from + length]);
        }
    }
}

impl Filter for SimulatedDisk {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            write_survives: SurvivalLevel::Process,
            flush_survives: SurvivalLevel::Power,
            ..self.inner.geometry()
        }
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let (lateness, state) = (self.lateness(), self.state.clone());
        let read = self.inner.read_at(offset, buffers, context);
        Box::pin(async move {
            let mut buffers = read.await?;
            rot(&lock(&state).rotten, offset, &mut buffers);
            lateness.wait().await;
            Ok(buffers)
        })
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let data: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        self.change(offset, data, flags.fua, self.inner.write_at(offset, buffers, flags, context))
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let fits = offset.checked_add(length).is_some_and(|end| end <= Filter::geometry(self).size_bytes);
        let data = vec![0; if fits { length as usize } else { 0 }];
        self.change(offset, data, false, self.inner.write_zeroes(offset, length, context))
    }

    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        Filter::write_zeroes(self, offset, length, context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        // Discards are ignored: the old contents stay, in memory and after a crash. Only the request is checked.
        let checked = self.inner.allocation(offset, length, context);
        Box::pin(async move {
            checked.await.map(drop).map_err(|error| Error { operation: DeviceOperation::Discard, ..error })
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let (lateness, state) = (self.lateness(), self.state.clone());
        let covered = lock(&state).next;
        let completed: Vec<u64> = {
            let state = lock(&state);
            state
                .pending
                .range(..covered)
                .filter(|(_, pending)| pending.is_completed)
                .map(|(&number, _)| number)
                .collect()
        };
        let flushed = self.inner.flush(context);
        Box::pin(async move {
            flushed.await?;
            lateness.wait().await;
            let mut state = lock(&state);
            for number in completed {
                state.cover(number..number + 1);
            }
            Ok(())
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let (grown, state) = (self.inner.grow(size_bytes), self.state.clone());
        Box::pin(async move {
            grown.await?;
            lock(&state).durable.grow(size_bytes);
            Ok(())
        })
    }
}

impl SimulatedDisk {
    /// Registers a write of `data` and completes it late; `operation` does the write in memory.
    fn change<T: Send + 'static>(&self, offset: u64, data: Vec<u8>, fua: bool, operation: IoFuture<T>) -> IoFuture<T> {
        let (lateness, state, options) = (self.lateness(), self.state.clone(), self.options.clone());
        let Some(result) = now(operation) else {
            let detail = "memory did not answer at once";
            let error = Error::new(DeviceErrorKind::Io, &Filter::spec(self), DeviceOperation::Write, detail);
            return Box::pin(std::future::ready(Err(error)));
        };
        // From here on the write may be found after a crash, even if its future is dropped.
        let number = result.is_ok().then(|| lock(&state).begin(offset, data));
        Box::pin(async move {
            lateness.wait().await;
            if let Some(number) = number {
                lock(&state).complete(number, fua, &options);
            }
            result
        })
    }
}

/// Polls a future once and returns its result: operations on memory are complete when they are called.
fn now<T>(mut future: IoFuture<T>) -> Option<Result<T, Error>> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(result) => Some(result),
        std::task::Poll::Pending => None,
    }
}

/// The delay with which an operation ends.
#[derive(Clone, Copy)]
struct CompletionDelay {
    /// The number of times that it lets other tasks run first.
    turns: u64,
    delay: Option<Duration>,
}

impl CompletionDelay {
    async fn wait(self) {
        if let Some(delay) = self.delay {
            tokio::time::sleep(delay).await;
        }
        for _ in 0..self.turns {
            tokio::task::yield_now().await;
        }
    }
}

/// Flips the rotted bits in the bytes read.
fn rot(rotten: &BTreeMap<u64, u64>, offset: u64, buffers: &mut [Buffer]) {
    let mut start = offset;
    for buffer in buffers {
        let end = start + buffer.len() as u64;
        for (sector, bit) in rotten.range(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES)) {
            buffer[(sector * SECTOR_BYTES + bit / 8 - start) as usize] ^= 1 << (bit % 8);
        }
        start = end;
    }
}

fn lock(state: &Mutex<SimulatedDiskState>) -> MutexGuard<'_, SimulatedDiskState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
