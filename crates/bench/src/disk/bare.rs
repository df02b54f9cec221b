//! A bare disk: a loop device with direct I/O on a file. No model and no FUSE process is below it.
//!
//! Owns: the loop device and its file, which is written once before use so that the file system has allocated all
//! blocks. Promises: dropping it releases the loop device and removes the file. Leaves to others: the cleanup if this
//! process is killed (`guardian`).

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nectary_attach::LoopDevice;
use nectary_block::Buffer;

use super::DiskCounts;
use crate::Error;

/// The block size of the loop device, in bytes: a page.
const BLOCK_BYTES: u32 = 4096;
/// The size of each write to the file, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// A loop device on a file.
pub(crate) struct BareDisk {
    device: LoopDevice,
    file: PathBuf,
}

impl BareDisk {
    /// Makes the file and the loop device; the size must be a multiple of 1 MiB.
    pub fn new(path: &Path, bytes: u64) -> Result<BareDisk, Error> {
        let failed = |error: std::io::Error| Error::failed(path.display(), error);
        let mut options = File::options();
        options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
        let mut file = options.open(path).map_err(failed)?;
        let buffer = Buffer::zeroed(WRITE_BYTES);
        for _ in 0..bytes.div_ceil(WRITE_BYTES as u64) {
            file.write_all(&buffer).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        let device = LoopDevice::on_file(&file, BLOCK_BYTES)?;
        Ok(BareDisk { device, file: path.to_owned() })
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        self.device.path()
    }

    /// Its counters so far.
    pub fn counts(&self) -> DiskCounts {
        super::counts_of(self.path())
    }
}

impl Drop for BareDisk {
    fn drop(&mut self) {
        if self.device.release().is_err() {
            let _ = self.device.release_when_unused();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}
