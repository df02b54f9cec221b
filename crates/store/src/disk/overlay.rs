//! A device that is only read: writes stay in memory.
//!
//! Owns: the written blocks. A store that is opened only for reading has this device over its real one, so recovery works
//! as usual and the real device does not change. Promises: the device below is read, locked and closed, and nothing
//! else. Leaves to others: refusing puts and purges (`api/open.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_block::{
    BlockDevice, Buffer, DeviceErrorKind, DeviceExtent, DeviceGeometry, DeviceOperation, DeviceRequest, Error,
    IoContext, IoFuture, SharedDevice, WriteFlags,
};

/// The most bytes that an overlay keeps. Recovery writes at most the purge log twice, and a few blocks.
const WRITTEN_BYTES_MAX: u64 = 256 << 20;

/// The written blocks, by their offsets.
type Blocks = BTreeMap<u64, Box<[u8]>>;

/// A device whose writes stay in memory.
pub struct OverlayDevice {
    below: SharedDevice,
    /// The size of this device; the part beyond the end of the device below reads as zeroes.
    size_bytes: AtomicU64,
    written: Arc<Mutex<Blocks>>,
}

impl OverlayDevice {
    /// Puts an overlay over a device.
    pub fn over(below: SharedDevice) -> SharedDevice {
        let size_bytes = AtomicU64::new(below.geometry().size_bytes);
        Arc::new(OverlayDevice { below, size_bytes, written: Arc::default() })
    }

    fn checked(&self, operation: DeviceOperation, offset: u64, length: u64, context: IoContext) -> Result<(), Error> {
        DeviceRequest::new(operation, offset, length, context).check(|| self.spec(), &self.geometry())
    }

    /// Keeps a block for each `block_bytes` of `bytes`.
    fn keep<'a>(&self, mut offset: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
        let block_bytes = u64::from(self.geometry().block_bytes);
        let mut written = lock(&self.written);
        for piece in pieces {
            if written.len() as u64 * block_bytes >= WRITTEN_BYTES_MAX {
                let detail = "it is opened only for reading, and the memory for its changes is full";
                return Err(Error::new(DeviceErrorKind::Full, &self.spec(), DeviceOperation::Write, detail));
            }
            written.insert(offset, piece.into());
            offset += piece.len() as u64;
        }
        Ok(())
    }
}

fn lock(written: &Mutex<Blocks>) -> MutexGuard<'_, Blocks> {
    written.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ready<T: Send + 'static>(result: Result<T, Error>) -> IoFuture<T> {
    Box::pin(std::future::ready(result))
}

/// Reads what the device below has of a range; the rest is zeroes.
async fn read_below(
    below: &SharedDevice,
    offset: u64,
    mut buffers: Vec<Buffer>,
    context: IoContext,
) -> Result<Vec<Buffer>, Error> {
    let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
    let there = below.geometry().size_bytes.saturating_sub(offset).min(length);
    if there == length {
        return below.read_at(offset, buffers, context).await;
    }
    let mut found: &[u8] = &[];
    let read;
    if there > 0 {
        read = below.read_at(offset, vec![Buffer::zeroed(there as usize)], context).await?;
        found = read.first().map_or(&[], |buffer| &buffer[..]);
    }
    for buffer in &mut buffers {
        let (now, later) = found.split_at(buffer.len().min(found.len()));
        let (begin, end) = buffer.split_at_mut(now.len());
        begin.copy_from_slice(now);
        end.fill(0);
        found = later;
    }
    Ok(buffers)
}

impl BlockDevice for OverlayDevice {
    fn spec(&self) -> String {
        self.below.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { size_bytes: self.size_bytes.load(Ordering::Acquire), ..self.below.geometry() }
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let checked =
            DeviceRequest::vectored(DeviceOperation::Read, offset, &buffers, context, || self.spec(), &self.geometry());
        if let Err(error) = checked {
            return ready(Err(error));
        }
        let (below, written) = (Arc::clone(&self.below), Arc::clone(&self.written));
        Box::pin(async move {
            let mut buffers = read_below(&below, offset, buffers, context).await?;
            let written = lock(&written);
            let mut start = offset;
            for buffer in &mut buffers {
                let end = start + buffer.len() as u64;
                for (at, block) in written.range(start..end) {
                    let at = (at - start) as usize;
                    buffer[at..at + block.len()].copy_from_slice(block);
                }
                start = end;
            }
            Ok(buffers)
        })
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
        let block_bytes = self.geometry().block_bytes as usize;
        let pieces = buffers.iter().flat_map(|buffer| buffer.chunks(block_bytes));
        let kept = checked.and_then(|_| self.keep(offset, pieces));
        ready(kept.map(|()| buffers))
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        ready(self.checked(DeviceOperation::Flush, 0, 0, context))
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        ready(self.checked(DeviceOperation::Discard, offset, length, context))
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let checked = self.checked(DeviceOperation::WriteZeroes, offset, length, context);
        let block_bytes = self.geometry().block_bytes;
        let block = vec![0; block_bytes as usize];
        let pieces = (0..length / u64::from(block_bytes)).map(|_| &block[..]);
        ready(checked.and_then(|()| self.keep(offset, pieces)))
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        let checked = self.checked(DeviceOperation::Allocation, offset, length, context);
        ready(checked.map(|()| vec![DeviceExtent { offset, length, mapped: true }]))
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        ready(Ok(()))
    }

    fn close(&self) -> IoFuture<()> {
        self.below.close()
    }

    fn is_shared(&self) -> bool {
        self.below.is_shared()
    }

    fn lock(&self, offset: u64, length: u64) -> IoFuture<bool> {
        self.below.lock(offset, length)
    }

    fn unlock(&self, offset: u64, length: u64) -> IoFuture<()> {
        self.below.unlock(offset, length)
    }

    fn is_locked(&self, offset: u64, length: u64) -> IoFuture<bool> {
        self.below.is_locked(offset, length)
    }

    fn lock_domain(&self) -> Option<String> {
        self.below.lock_domain()
    }
}

#[cfg(test)]
mod tests {
    use nectary_block::{MemoryDevice, read, write};

    use super::*;

    #[tokio::test]
    async fn overlay_writes_spare_device() {
        let below = Arc::new(MemoryDevice::new(64 << 10));
        write(&*below, 0, Buffer::copy_of(&[1; 64 << 10])).await.unwrap();
        let device = OverlayDevice::over(below.clone());
        write(&*device, 4096, Buffer::copy_of(&[2; 4096])).await.unwrap();
        device.grow(128 << 10).await.unwrap();
        write(&*device, 96 << 10, Buffer::copy_of(&[3; 4096])).await.unwrap();
        device.write_zeroes(8192, 4096, IoContext::default()).await.unwrap();
        let two = vec![Buffer::zeroed(20 << 10), Buffer::zeroed(108 << 10)];
        let found = device.read_at(0, two, IoContext::default()).await.unwrap();
        let found: Vec<u8> = found.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        let mut expected = vec![1; 64 << 10];
        expected.resize(128 << 10, 0);
        expected[4096..8192].fill(2);
        expected[8192..12288].fill(0);
        expected[96 << 10..100 << 10].fill(3);
        assert!(found == expected);
        assert_eq!(read(&*device, 96 << 10, 4096).await.unwrap()[..], [3; 4096]);
        assert!(below.image() == vec![1; 64 << 10]);
    }

    #[tokio::test]
    async fn reused_buffers_are_zeroed() {
        let below = Arc::new(MemoryDevice::new(16 << 10));
        write(&*below, 0, Buffer::copy_of(&[1; 16 << 10])).await.unwrap();
        let device = OverlayDevice::over(below);
        device.grow(64 << 10).await.unwrap();
        let used = [8 << 10, 24 << 10].map(|bytes| Buffer::copy_of(&vec![9; bytes]));
        let found = device.read_at(0, used.into(), IoContext::default()).await.unwrap();
        let found: Vec<u8> = found.iter().flat_map(|buffer| buffer.iter().copied()).collect();
        assert!(found[..16 << 10] == [1; 16 << 10] && found[16 << 10..] == [0; 16 << 10]);
        let used = vec![Buffer::copy_of(&[9; 4096])];
        assert_eq!(device.read_at(32 << 10, used, IoContext::default()).await.unwrap()[0][..], [0; 4096]);
    }
}
