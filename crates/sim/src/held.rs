//! Reads that are answered very late, after many other writes.
//!
//! Owns: a filter that holds back the answers of some reads. A held read returns the bytes that the device had when the
//! read reached it, but the read ends only after a number of further bytes, chosen by the seed, have been written. So a
//! store with a small ring overwrites the bytes before the caller sees them. Promises: a read is held for at most
//! [`HELD_MAX`], and not after [`ReadHold::release`]. Leaves to others: operations that reach the device late (`late`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_block::{Buffer, Filter, IoContext, IoFuture, SharedDevice, WriteFlags};
use tokio::sync::watch;

use crate::random::SimulationRandom;

/// The longest time that a read is held, on the runtime's clock.
pub const HELD_MAX: Duration = Duration::from_secs(3);

/// The rule by which reads of a device are held, and for how long.
#[derive(Clone)]
pub struct ReadHold(Arc<ReadHoldRule>);

/// The reads that may be held.
#[derive(Debug, Clone, Copy)]
pub struct ReadSelector {
    /// Only reads at this offset or later, in bytes.
    pub offset_min: u64,
    /// Only reads of at most this many bytes.
    pub bytes_max: u64,
}

impl ReadSelector {
    /// All reads.
    pub const ALL: ReadSelector = ReadSelector { offset_min: 0, bytes_max: u64::MAX };
}

struct ReadHoldRule {
    random: Mutex<SimulationRandom>,
    which: ReadSelector,
    /// The share of these reads that is held, in percent.
    percent: u64,
    /// The limit on the bytes to write before a held read ends.
    written_bytes_max: u64,
    state: watch::Sender<ReadHoldState>,
    count: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct ReadHoldState {
    written_bytes: u64,
    /// Whether reads are held at all.
    is_on: bool,
}

impl ReadHold {
    /// Holds `percent` of the reads that `which` allows, each until a random number of further bytes, below
    /// `written_bytes_max`, is written. Holds nothing before [`begin`](Self::begin).
    pub fn new(seed: u64, which: ReadSelector, percent: u64, written_bytes_max: u64) -> ReadHold {
        let random = Mutex::new(SimulationRandom::new(seed));
        let (state, count) = (watch::Sender::new(ReadHoldState::default()), AtomicU64::new(0));
        ReadHold(Arc::new(ReadHoldRule { random, which, percent, written_bytes_max, state, count }))
    }

    /// Holds some of the reads that begin from now on.
    pub fn begin(&self) {
        self.0.state.send_modify(|state| state.is_on = true);
    }

    /// Releases all held reads, and holds no more.
    pub fn release(&self) {
        self.0.state.send_modify(|state| state.is_on = false);
    }

    /// How many reads were held so far.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Relaxed)
    }

    /// Draws the number of bytes to write before a read that begins now is answered; `None` if the read is not held.
    fn draw(&self, offset: u64, bytes: u64) -> Option<u64> {
        let ReadSelector { offset_min, bytes_max } = self.0.which;
        if !self.0.state.borrow().is_on || offset < offset_min || bytes > bytes_max {
            return None;
        }
        let mut random = self.0.random.lock().unwrap_or_else(PoisonError::into_inner);
        let is_held = random.chance(self.0.percent);
        let bytes = random.below(self.0.written_bytes_max);
        is_held.then_some(bytes)
    }

    /// Waits until this many bytes were written since the call.
    async fn wait(&self, bytes: u64) {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        let mut state = self.0.state.subscribe();
        let end = state.borrow().written_bytes + bytes;
        // After `HELD_MAX` the wait ends in any case.
        let _ =
            tokio::time::timeout(HELD_MAX, state.wait_for(|state| !state.is_on || state.written_bytes >= end)).await;
    }
}

/// A filter that holds the answers of reads.
pub struct ReadHoldFilter {
    inner: SharedDevice,
    hold: ReadHold,
}

impl ReadHoldFilter {
    /// Holds reads of a device according to `hold`.
    pub fn new(inner: SharedDevice, hold: &ReadHold) -> ReadHoldFilter {
        ReadHoldFilter { inner, hold: hold.clone() }
    }
}

impl Filter for ReadHoldFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let (hold, bytes) = (self.hold.clone(), self.hold.draw(offset, length));
        let read = self.inner.read_at(offset, buffers, context);
        Box::pin(async move {
            let buffers = read.await?;
            if let Some(bytes) = bytes {
                hold.wait(bytes).await;
            }
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
        let bytes: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.hold.0.state.send_modify(|state| state.written_bytes += bytes);
        self.inner.write_at(offset, buffers, flags, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_block::{MemoryDevice, read, write};
    use tokio::time::Instant;

    fn device(hold: &ReadHold) -> SharedDevice {
        Arc::new(ReadHoldFilter::new(Arc::new(MemoryDevice::new(1 << 20)), hold))
    }

    /// A held read returns the bytes from before the writes that it waits for.
    #[tokio::test(start_paused = true)]
    async fn held_read_returns_earlier_bytes() {
        let hold = ReadHold::new(1, ReadSelector::ALL, 100, 1 << 20);
        let device = device(&hold);
        hold.begin();
        let held = read(&*device, 0, 4096);
        let writes = async {
            for _ in 0..256 {
                write(&*device, 0, Buffer::copy_of(&[7; 4096])).await.unwrap();
            }
        };
        let (held, ()) = tokio::join!(held, writes);
        assert_eq!((held.unwrap()[0], hold.count()), (0, 1));
        assert_eq!(Instant::now().elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn held_read_ends_by_release_or_timeout() {
        let hold = ReadHold::new(1, ReadSelector::ALL, 100, 1 << 20);
        let device = device(&hold);
        let began = Instant::now();
        read(&*device, 0, 4096).await.unwrap();
        assert_eq!((hold.count(), began.elapsed()), (0, Duration::ZERO), "it has not begun");
        hold.begin();
        read(&*device, 0, 4096).await.unwrap();
        assert_eq!((hold.count(), began.elapsed()), (1, HELD_MAX));
        let (held, ()) = tokio::join!(read(&*device, 0, 4096), async { hold.release() });
        held.unwrap();
        assert_eq!((hold.count(), began.elapsed()), (2, HELD_MAX));
    }
}
