//! The ways in which the lives of a store end: a kill, a clean stop, a loss of power, a truncated purge log.

use nectary_block::{BlockDevice, Buffer, IoContext, WriteFlags};

use super::client::{purge, put};
use super::history::{LifeEnd, PurgedObjects};
use super::world::{KEYS, StoreWorld};

/// The size of a block of the purge log, and its magic.
const BLOCK_BYTES: u64 = 4096;
const PURGE_BLOCK: &[u8; 4] = b"NPRG";

/// The way in which a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifeEnding {
    Killed,
    Stopped,
    PowerLost,
    /// The process is killed, and then the last block of the purge log is lost, although later appends refer to that
    /// block.
    LogCut,
}

impl StoreWorld {
    /// Ends a life. The clients have already been dropped; only a clean stop began while they were still running.
    pub async fn end(&self, way: LifeEnding) -> LifeEnd {
        let cuts_log = way == LifeEnding::LogCut && self.purge_and_append().await;
        self.look();
        *self.store.borrow_mut() = None;
        if way == LifeEnding::PowerLost {
            let crashed = self.disk.borrow().crash();
            self.settle().await;
            *self.disk.borrow_mut() = crashed;
            return LifeEnd::Power;
        }
        self.settle().await;
        if cuts_log {
            self.cut_purge_log().await;
            return LifeEnd::LogCut;
        }
        LifeEnd::Process
    }

    async fn settle(&self) {
        self.hold.borrow().release();
        // In a recording it must be certain from now on which device operations have happened, so let all of them
        // happen.
        let loses = self.recorder.borrow().is_none().then(|| self.below(u64::MAX));
        let under_way = self.under_way.borrow().clone();
        under_way.settle(loses).await;
    }

    /// Makes a purge and then an append that records the end of the purge log, without other calls in between. Returns
    /// whether there was such an append.
    async fn purge_and_append(&self) -> bool {
        let store = self.store();
        let appends = || store.stat().counts.appends;
        // First let the calls of the clients finish.
        let _ = store.sync().await;
        purge(self, PurgedObjects::Name(self.below(u64::from(KEYS / 2)) as u32)).await;
        let before = appends();
        put(self, self.below(KEYS.into()) as u32, 1000).await;
        store.sync().await.is_ok() && appends() > before
    }

    /// Zeroes the last block of the purge log in both copies.
    async fn cut_purge_log(&self) {
        let disk = self.disk.borrow().clone();
        let image = disk.image();
        let number = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        // A block's position in the log: its cycle and its number.
        let order = |block: &[u8]| (number(block, 32), number(block, 64) & u64::from(u32::MAX));
        let blocks = image.chunks(BLOCK_BYTES as usize).enumerate().filter(|(_, block)| block.starts_with(PURGE_BLOCK));
        let Some(last) = blocks.clone().map(|(_, block)| order(block)).max() else { return };
        for (at, _) in blocks.filter(|(_, block)| order(block) == last) {
            let wiped = vec![Buffer::zeroed(BLOCK_BYTES as usize)];
            let flags = WriteFlags { fua: true };
            let offset = at as u64 * BLOCK_BYTES;
            BlockDevice::write_at(&*disk, offset, wiped, flags, IoContext::default()).await.expect("memory writes");
        }
    }
}
