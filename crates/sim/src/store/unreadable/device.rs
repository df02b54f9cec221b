//! A device of which some blocks cannot be read.
//!
//! Promises: a read that touches such a block fails and changes nothing else; a write to it makes it readable again, as a
//! drive that replaces a bad sector does, except if the block is worn out: then the write fails, too.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_block::{DeviceErrorKind, DeviceOperation, DeviceRequest, Filter, IoFuture, SharedDevice};

/// The size of a block, in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// The blocks that cannot be read, by their number; clones share them.
#[derive(Debug, Clone, Default)]
pub struct BadBlocks {
    blocks: Arc<Mutex<BTreeSet<u64>>>,
    is_worn_out: bool,
}

impl BadBlocks {
    /// Makes a set whose blocks cannot be written either.
    pub fn worn_out() -> BadBlocks {
        BadBlocks { is_worn_out: true, ..BadBlocks::default() }
    }

    /// Adds blocks.
    pub fn add(&self, blocks: &[u64]) {
        self.lock().extend(blocks);
    }

    /// The device with these blocks.
    pub fn over(&self, inner: SharedDevice) -> SharedDevice {
        Arc::new(UnreadableFilter { inner, bad: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct UnreadableFilter {
    inner: SharedDevice,
    bad: BadBlocks,
}

impl Filter for UnreadableFilter {
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
        let range = request.offset / BLOCK_BYTES..(request.offset + request.length).div_ceil(BLOCK_BYTES);
        let mut bad = self.bad.lock();
        let touched: Vec<u64> = bad.range(range).copied().collect();
        let fails = match request.operation {
            DeviceOperation::Read => true,
            DeviceOperation::Write | DeviceOperation::WriteZeroes => self.bad.is_worn_out,
            _ => false,
        };
        if fails && let Some(first) = touched.first() {
            let detail = format!("the block at {} cannot be used", first * BLOCK_BYTES);
            return Box::pin(std::future::ready(Err(request.error(DeviceErrorKind::Io, || self.spec(), detail))));
        }
        if matches!(request.operation, DeviceOperation::Write | DeviceOperation::WriteZeroes) {
            touched.iter().for_each(|block| _ = bad.remove(block));
        }
        drop(bad);
        operation(&self.inner)
    }
}
