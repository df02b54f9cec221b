//! The disk as blocks: reads and writes of whole blocks within its size.
//!
//! Owns: the disk's signs of life, so that a disk that does not answer is noticed although its requests never end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::{Buffer, IoContext, SharedDevice};

use super::error::Error;
use crate::format::{BLOCK_BYTES, VolumeLabel};

/// The longest single read. *Units*: blocks.
const READ_BLOCKS_MAX: u64 = 2048;

/// A device, addressed in blocks.
#[derive(Clone)]
pub(super) struct BlockDisk {
    device: SharedDevice,
    pulse: DiskPulse,
}

/// The signs of life of a disk. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct DiskPulse {
    /// The numbers of requests that began and that ended.
    counts: Arc<(AtomicU64, AtomicU64)>,
}

impl DiskPulse {
    /// Counts a request that begins; it ends when the result is dropped.
    fn begin(&self) -> UnderWay {
        self.counts.0.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.clone())
    }

    /// Returns the number of requests that ended, and whether others are under way.
    pub fn look(&self) -> (u64, bool) {
        let ended = self.counts.1.load(Ordering::Acquire);
        (ended, self.counts.0.load(Ordering::Acquire) > ended)
    }
}

/// A request to the disk that has not ended.
struct UnderWay(DiskPulse);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.counts.1.fetch_add(1, Ordering::AcqRel);
    }
}

impl BlockDisk {
    pub fn new(device: &SharedDevice) -> BlockDisk {
        BlockDisk { device: device.clone(), pulse: DiskPulse::default() }
    }

    /// Returns the signs of life.
    pub fn pulse(&self) -> DiskPulse {
        self.pulse.clone()
    }

    /// Returns the size. *Units*: blocks.
    pub fn blocks(&self) -> u64 {
        self.device.geometry().size_bytes / BLOCK_BYTES as u64
    }

    /// Reads blocks, at most 8 MiB.
    ///
    /// *Errors*: [`Error::Damaged`] for an address beyond the end of the disk, because addresses are read from the
    /// disk.
    pub async fn read(&self, block: u64, blocks: u64) -> Result<Buffer, Error> {
        if blocks == 0 || blocks > READ_BLOCKS_MAX || block.checked_add(blocks).is_none_or(|end| end > self.blocks()) {
            let what = format!("{blocks} blocks from here on are not on the disk, which has {}", self.blocks());
            return Err(Error::damaged(block, what));
        }
        let length = blocks as usize * BLOCK_BYTES;
        let _under_way = self.pulse.begin();
        Ok(nectary_block::read(&*self.device, block * BLOCK_BYTES as u64, length).await?)
    }

    /// Writes whole blocks.
    pub async fn write(&self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let _under_way = self.pulse.begin();
        nectary_block::write(&*self.device, block * BLOCK_BYTES as u64, Buffer::copy_of(bytes)).await?;
        Ok(())
    }

    pub async fn flush(&self) -> Result<(), Error> {
        let _under_way = self.pulse.begin();
        Ok(self.device.flush(IoContext::default()).await?)
    }

    /// Reads the label; one good copy is enough. Also returns notes about a bad copy.
    pub async fn label(&self) -> Result<(VolumeLabel, Vec<String>), Error> {
        let both = self.read(0, 2).await;
        let (mut label, mut notes) = (None, Vec::new());
        let decode = |copy, bytes: &[u8]| VolumeLabel::decode(copy, bytes).map_err(|error| error.to_string());
        for copy in 0..2_u64 {
            let decoded = match &both {
                Ok(bytes) => decode(copy, &bytes[copy as usize * BLOCK_BYTES..][..BLOCK_BYTES]),
                // A copy that cannot be read does not hide the other one.
                Err(_) => match self.read(copy, 1).await {
                    Ok(bytes) => decode(copy, &bytes),
                    Err(error) => Err(error.to_string()),
                },
            };
            match (decoded, &label) {
                (Ok(good), None) => label = Some(good),
                (Ok(good), Some(first)) if good != *first => {
                    return Err(Error::damaged(1, "the two copies of the label differ"));
                }
                (Ok(_), Some(_)) => {}
                (Err(error), _) => notes.push(format!("label, copy {copy}: {error}")),
            }
        }
        let Some(label) = label else {
            // It is not known whether this is a volume if nothing can be read.
            both?;
            let what = format!("{}: this is no volume ({})", self.device.spec(), notes.join("; "));
            return Err(Error::Refused(format!("{what}; make one with `nectary volume format`")));
        };
        self.check(&label)?;
        Ok((label, notes))
    }

    fn check(&self, label: &VolumeLabel) -> Result<(), Error> {
        if label.blocks > self.blocks() {
            let sizes = format!("the volume has {} blocks, the disk {}", label.blocks, self.blocks());
            return Err(Error::Refused(format!("{sizes}: it is smaller than it was; give the whole disk")));
        }
        match label.incompat | label.ro_compat {
            0 => Ok(()),
            bits => Err(Error::Refused(format!("the volume uses features {bits:#x} that this version does not know"))),
        }
    }
}
