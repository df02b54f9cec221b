//! `memory:SIZE`: a device in this process's memory.
//!
//! Owns: pages that are allocated at their first write, spread over shards so that threads seldom wait for the same
//! lock. A device takes memory only for ranges that were written. Every operation is complete when the call returns its
//! future. Promises: nothing survives the end of the process. Leaves to others: faults (`nectary-sim`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::allocation::ExtentList;
use crate::buffer::Buffer;
use crate::device::{BlockDevice, DeviceExtent, DeviceGeometry, IoContext, IoFuture, SurvivalLevel, WriteFlags};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::request::{DeviceRequest, ready};
use crate::size::exact_size;
use crate::snapshot::{DeviceSnapshot, PAGE_BYTES, pages};

/// The number of locks, and so of shards, over which the pages are spread.
const SHARD_COUNT: usize = 64;

/// The unit of offsets and lengths. It is the unit of the strictest disks, so that code that works on this device works
/// on every disk. *Units*: bytes.
const BLOCK_BYTES: u32 = 4096;

/// The pages of a shard, by number. A page is shared with snapshots until it is written again.
type Pages = HashMap<u64, Arc<Vec<u8>>>;

type Shard = Mutex<Pages>;

/// A block device in memory. All clones of its `Arc` share the contents.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use nectary_block::{Buffer, MemoryDevice, read, write};
/// let device = MemoryDevice::new(1 << 30);
/// write(&device, 8192, Buffer::copy_of(&[7; 4096])).await?;
/// assert_eq!(read(&device, 8192, 4096).await?[0], 7);
/// # Ok::<(), nectary_block::Error>(()) }).unwrap();
/// ```
pub struct MemoryDevice {
    size_bytes: AtomicU64,
    shards: Vec<Shard>,
}

impl MemoryDevice {
    /// Makes a device of zeroes; the size is rounded down to whole blocks of 4096 bytes.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        let size_bytes = size_bytes - size_bytes % u64::from(BLOCK_BYTES);
        let shards = (0..SHARD_COUNT).map(|_| Shard::default()).collect();
        MemoryDevice { size_bytes: AtomicU64::new(size_bytes), shards }
    }

    /// Makes a device that holds `image`, padded with zeroes to whole blocks. *Cost*: copies the bytes that are not
    /// zero.
    pub fn from_image(image: Vec<u8>) -> MemoryDevice {
        MemoryDevice::from_snapshot(&DeviceSnapshot::from_image(&image))
    }

    /// Makes a device with the contents of `snapshot`, which later writes do not change. *Cost*: copies no contents; a
    /// page is copied when it is first written.
    pub fn from_snapshot(snapshot: &DeviceSnapshot) -> MemoryDevice {
        let device = MemoryDevice::new(snapshot.size_bytes().next_multiple_of(u64::from(BLOCK_BYTES)));
        for (page, bytes) in snapshot.pages() {
            device.shard(page).insert(page, bytes.clone());
        }
        device
    }

    /// Takes a snapshot of the current contents, page by page. *Cost*: copies only references to pages.
    pub fn snapshot(&self) -> DeviceSnapshot {
        let mut snapshot = DeviceSnapshot::zeroed(0);
        for shard in &self.shards {
            for (&page, bytes) in lock(shard).iter() {
                snapshot.insert(page, bytes.clone());
            }
        }
        // The size is read last. It only grows, so it covers every page that was seen.
        snapshot.grow(self.size());
        snapshot
    }

    /// Copies the whole contents. *Cost*: allocates the full size of the device.
    pub fn image(&self) -> Vec<u8> {
        self.snapshot().image()
    }

    /// The memory that the contents take now. *Units*: bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| lock(shard).len() as u64 * PAGE_BYTES as u64).sum()
    }

    fn size(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, Pages> {
        lock(&self.shards[(page % SHARD_COUNT as u64) as usize])
    }

    fn load(&self, offset: u64, into: &mut [u8]) {
        for (page, start, range) in pages(offset, into.len() as u64) {
            let into = &mut into[range];
            match self.shard(page).get(&page) {
                Some(bytes) => into.copy_from_slice(&bytes[start..start + into.len()]),
                None => into.fill(0),
            }
        }
    }

    fn store(&self, offset: u64, from: &[u8]) {
        for (page, start, range) in pages(offset, from.len() as u64) {
            let from = &from[range];
            let mut shard = self.shard(page);
            let bytes = shard.entry(page).or_insert_with(|| Arc::new(vec![0; PAGE_BYTES]));
            Arc::make_mut(bytes)[start..start + from.len()].copy_from_slice(from);
        }
    }

    /// Zeroes a range. The cost depends on the allocated part of the range, not on its length.
    fn zero(&self, offset: u64, length: u64) {
        for page in self.allocated(offset, length) {
            let (start, end) = overlap(page, offset, length);
            let mut shard = self.shard(page);
            if end - start == PAGE_BYTES {
                shard.remove(&page);
            } else if let Some(bytes) = shard.get_mut(&page) {
                Arc::make_mut(bytes)[start..end].fill(0);
            }
        }
    }

    /// Lists the allocated pages that a range touches, in order.
    fn allocated(&self, offset: u64, length: u64) -> Vec<u64> {
        let touched = offset / PAGE_BYTES as u64..(offset + length).div_ceil(PAGE_BYTES as u64);
        let mut list: Vec<u64> = Vec::new();
        for shard in &self.shards {
            list.extend(lock(shard).keys().filter(|page| touched.contains(page)));
        }
        list.sort_unstable();
        list
    }

    fn check(&self, operation: DeviceOperation, offset: u64, length: u64, context: IoContext) -> Result<(), Error> {
        let request = DeviceRequest::new(operation, offset, length, context);
        request.check(|| self.spec(), &self.geometry())
    }
}

impl BlockDevice for MemoryDevice {
    fn spec(&self) -> String {
        format!("memory:{}", exact_size(self.size()))
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry {
            size_bytes: self.size(),
            block_bytes: BLOCK_BYTES,
            atomic_bytes: 512,
            read_bytes_preferred: PAGE_BYTES as u32,
            write_bytes_preferred: PAGE_BYTES as u32,
            write_survives: SurvivalLevel::Nothing,
            flush_survives: SurvivalLevel::Nothing,
        }
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &self.geometry());
        ready(checked.map(|_| {
            let mut offset = offset;
            for buffer in &mut buffers {
                self.load(offset, buffer);
                offset += buffer.len() as u64;
            }
            buffers
        }))
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        _flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let checked = DeviceRequest::vectored(
            DeviceOperation::Write,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        );
        ready(checked.map(|_| {
            let mut offset = offset;
            for buffer in &buffers {
                self.store(offset, buffer);
                offset += buffer.len() as u64;
            }
            buffers
        }))
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        ready(self.check(DeviceOperation::Flush, 0, 0, context))
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        ready(self.check(DeviceOperation::Discard, offset, length, context).map(|()| self.zero(offset, length)))
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        ready(self.check(DeviceOperation::WriteZeroes, offset, length, context).map(|()| self.zero(offset, length)))
    }

    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.write_zeroes(offset, length, context)
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        ready(self.check(DeviceOperation::Allocation, offset, length, context).map(|()| {
            let mut extents = ExtentList::new(offset, length);
            for page in self.allocated(offset, length) {
                let (start, end) = overlap(page, offset, length);
                extents.mapped(page * PAGE_BYTES as u64 + start as u64, (end - start) as u64);
            }
            extents.finish()
        }))
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let now = self.size();
        if size_bytes < now || !size_bytes.is_multiple_of(u64::from(BLOCK_BYTES)) {
            let detail =
                format!("cannot become {size_bytes} bytes: it has {now}, grows only, by blocks of {BLOCK_BYTES}");
            return ready(Err(Error::new(DeviceErrorKind::Invalid, &self.spec(), DeviceOperation::Grow, detail)));
        }
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        ready(Ok(()))
    }

    fn close(&self) -> IoFuture<()> {
        ready(Ok(()))
    }
}

/// The part of a page that a range covers, as its start and end inside the page.
fn overlap(page: u64, offset: u64, length: u64) -> (usize, usize) {
    let base = page * PAGE_BYTES as u64;
    let start = offset.max(base) - base;
    let end = (offset + length - base).min(PAGE_BYTES as u64);
    (start as usize, end as usize)
}

/// Locks a shard, even after another thread panicked, because a page is valid at any moment.
fn lock(shard: &Shard) -> MutexGuard<'_, Pages> {
    shard.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Converts the device to the type that other crates use.
impl From<MemoryDevice> for Arc<dyn BlockDevice> {
    fn from(device: MemoryDevice) -> Arc<dyn BlockDevice> {
        Arc::new(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{read, write};

    /// Contents written across a page boundary survive a copy to an image and back.
    #[tokio::test]
    async fn contents_survive_image_round_trip() {
        let device = MemoryDevice::new(1 << 20);
        let data: Vec<u8> = (0..16384u32).map(|index| (index % 251) as u8).collect();
        write(&device, 61440, Buffer::copy_of(&data)).await.unwrap();
        assert_eq!(&*read(&device, 61440, 16384).await.unwrap(), &data[..]);
        let image = device.image();
        assert_eq!((image.len(), &image[61440..61440 + 16384]), (1 << 20, &data[..]));
        assert_eq!(MemoryDevice::from_image(image.clone()).image(), image);
        assert_eq!(MemoryDevice::from_image(image).resident_bytes(), 2 * PAGE_BYTES as u64);
    }

    #[tokio::test]
    async fn snapshot_and_device_are_independent() {
        let device = MemoryDevice::new(1 << 20);
        write(&device, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
        let snapshot = device.snapshot();
        let copy = MemoryDevice::from_snapshot(&snapshot);
        write(&device, 0, Buffer::copy_of(&[2; 4096])).await.unwrap();
        copy.write_zeroes(0, 4096, IoContext::default()).await.unwrap();
        assert_eq!((snapshot.image()[0], device.image()[0], copy.image()[0]), (1, 2, 0));
    }

    #[tokio::test]
    async fn large_device_costs_what_is_written() {
        let device = MemoryDevice::new(1 << 50);
        write(&device, 1 << 49, Buffer::zeroed(4096)).await.unwrap();
        assert_eq!(device.resident_bytes(), PAGE_BYTES as u64);
        device.discard(0, 1 << 20, IoContext::default()).await.unwrap();
        assert_eq!(device.spec(), "memory:1P");
    }

    #[tokio::test]
    async fn misaligned_and_outside_requests_are_refused() {
        let device = MemoryDevice::new(8192);
        for (offset, length) in [(512, 4096), (0, 100), (8192, 4096), (u64::MAX - 4095, 4096)] {
            let error = read(&device, offset, length).await.unwrap_err();
            assert_eq!(error.kind, DeviceErrorKind::Invalid, "{error}");
        }
    }
}
