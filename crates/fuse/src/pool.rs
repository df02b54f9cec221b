//! Memory for data: a fixed number of aligned buffers of one size, which requests share.
//!
//! Owns: the buffers, and the queue of waiters. Promises: the pool never hands out more buffers than it has; the
//! buffers are allocated before the first request; waiters are served in order of arrival. Leaves to others: the
//! contents of the buffers.

use std::fmt;
use std::io::IoSlice;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use nectary_block::Buffer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The maximum number of units of a pool.
const UNITS_MAX: usize = 1 << 20;

/// A fixed number of buffers of one size.
///
/// ```
/// use nectary_fuse::BufferPool;
///
/// let pool = BufferPool::new(4, 64 << 10);
/// let data = pool.take_blocking(100_000).expect("it fits the pool");
/// assert_eq!(data.len(), 100_000);
/// ```
#[derive(Clone)]
pub struct BufferPool {
    shared: Arc<PoolState>,
}

struct PoolState {
    turns: Arc<Semaphore>,
    unit_bytes: usize,
    units: usize,
    free: Mutex<Vec<Buffer>>,
}

impl BufferPool {
    /// Allocates `units` buffers. The size of each is `unit_bytes`, rounded up to pages.
    pub fn new(units: usize, unit_bytes: usize) -> BufferPool {
        let units = units.clamp(1, UNITS_MAX);
        let unit_bytes = unit_bytes.max(1).next_multiple_of(nectary_block::BUFFER_ALIGNMENT);
        let free = (0..units).map(|_| Buffer::zeroed(unit_bytes)).collect();
        let turns = Arc::new(Semaphore::new(units));
        BufferPool { shared: Arc::new(PoolState { turns, unit_bytes, units, free: Mutex::new(free) }) }
    }

    /// The size of each buffer, in bytes.
    pub fn unit_bytes(&self) -> usize {
        self.shared.unit_bytes
    }

    fn units_of(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.shared.unit_bytes).max(1)
    }

    /// Waits for memory of `bytes` bytes and takes it; `None` if the whole pool is smaller.
    ///
    /// *Cancel safety*: a future that is dropped before it is ready takes no memory.
    pub async fn take(&self, bytes: usize) -> Option<PooledData> {
        let units = self.units_of(bytes);
        if units > self.shared.units {
            return None;
        }
        let turn = self.shared.turns.clone().acquire_many_owned(units as u32).await.ok()?;
        Some(self.data(units, bytes, turn))
    }

    /// Like [`take`](Self::take), but blocks the calling thread.
    pub fn take_blocking(&self, bytes: usize) -> Option<PooledData> {
        block_on(self.take(bytes))
    }

    fn data(&self, units: usize, bytes: usize, turn: OwnedSemaphorePermit) -> PooledData {
        let mut buffers = Vec::with_capacity(units);
        {
            let mut free = self.free();
            let left = free.len().saturating_sub(units);
            buffers.extend(free.drain(left..));
        }
        // Earlier users may not have returned all buffers. Missing buffers are replaced.
        buffers.resize_with(units, || Buffer::zeroed(self.shared.unit_bytes));
        let mut data = PooledData { buffers, length: 0, pool: self.clone(), turn: Some(turn) };
        data.set_len(bytes);
        data
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Buffer>> {
        self.shared.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory that was taken from a pool. It returns to the pool when this value is dropped.
pub struct PooledData {
    buffers: Vec<Buffer>,
    length: usize,
    pool: BufferPool,
    turn: Option<OwnedSemaphorePermit>,
}

impl PooledData {
    /// The number of bytes in use.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no bytes are in use.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Sets the number of bytes in use, at most the size of the buffers. Buffers that are no longer needed go back to
    /// the pool.
    pub fn set_len(&mut self, bytes: usize) {
        let unit = self.pool.unit_bytes();
        let units = self.pool.units_of(bytes).min(self.buffers.len());
        self.length = bytes.min(units * unit);
        let spare = self.buffers.split_off(units);
        if !spare.is_empty() {
            let count = spare.len();
            give_back(&self.pool, spare);
            drop(self.turn.as_mut().and_then(|turn| turn.split(count)));
        }
        let mut left = self.length;
        for buffer in &mut self.buffers {
            let length = left.min(unit);
            buffer.set_len(length);
            left -= length;
        }
    }

    /// Splits off the buffers that hold the first `bytes` bytes. Afterwards all bytes of the remaining buffers, if
    /// there are any, count as in use.
    pub(crate) fn split_to(&mut self, bytes: usize) -> PooledData {
        let units = self.pool.units_of(bytes).min(self.buffers.len());
        let rest = self.buffers.split_off(units);
        let taken = std::mem::replace(&mut self.buffers, rest);
        let turn = self.turn.as_mut().and_then(|turn| turn.split(taken.len()));
        let mut data = PooledData { buffers: taken, length: 0, pool: self.pool.clone(), turn };
        data.set_len(bytes);
        self.length = self.buffers.len() * self.pool.unit_bytes();
        data
    }

    /// Waits for memory, and adds buffers until they hold `bytes` bytes, or all bytes of a smaller pool.
    ///
    /// *Cancel safety*: a future that is dropped before it is ready changes nothing.
    pub(crate) async fn refill(&mut self, bytes: usize) {
        let missing = self.pool.units_of(bytes).min(self.pool.shared.units).saturating_sub(self.buffers.len());
        if missing > 0
            && let Some(mut more) = self.pool.take(missing * self.pool.unit_bytes()).await
        {
            self.buffers.append(&mut more.buffers);
            match (&mut self.turn, more.turn.take()) {
                (Some(turn), Some(further)) => turn.merge(further),
                (turn, further) => *turn = further,
            }
        }
        self.length = self.buffers.len() * self.pool.unit_bytes();
        let unit = self.pool.unit_bytes();
        self.buffers.iter_mut().for_each(|buffer| buffer.set_len(unit));
    }

    /// The bytes in use, buffer by buffer. All buffers but the last are full.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.buffers.iter().map(|buffer| &buffer[..])
    }

    /// The bytes in use, buffer by buffer, so that the caller can fill them.
    pub fn slices_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.buffers.iter_mut().map(|buffer| &mut buffer[..])
    }

    /// The bytes in use, as the parts of an answer.
    pub fn parts(&self) -> Vec<IoSlice<'_>> {
        self.slices().map(IoSlice::new).collect()
    }

    /// Copies the bytes of all buffers into one vector.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slices().flatten().copied().collect()
    }

    /// Takes the buffers out, for a device operation that owns them. They still count as in use as long as this value
    /// exists.
    pub fn take(&mut self) -> Vec<Buffer> {
        std::mem::take(&mut self.buffers)
    }

    /// Puts back the buffers that [`take`](Self::take) returned.
    pub fn put(&mut self, buffers: Vec<Buffer>) {
        self.buffers = buffers;
    }
}

impl fmt::Debug for PooledData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes)", self.length)
    }
}

impl Drop for PooledData {
    fn drop(&mut self) {
        // Return the buffers before the permit is released.
        give_back(&self.pool, std::mem::take(&mut self.buffers));
    }
}

/// Returns buffers to the pool. Drops buffers of another size, because they are not from the pool.
fn give_back(pool: &BufferPool, mut buffers: Vec<Buffer>) {
    let unit = pool.unit_bytes();
    buffers.retain(|buffer| buffer.capacity() == unit);
    buffers.iter_mut().for_each(|buffer| buffer.set_len(unit));
    let mut free = pool.free();
    let room = pool.shared.units.saturating_sub(free.len());
    buffers.truncate(room);
    free.append(&mut buffers);
}

/// Runs a future on this thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct ThreadWaker(Thread);
    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = pin!(future);
    if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return value;
    }
    let waker = Waker::from(Arc::new(ThreadWaker(std::thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory never exceeds the pool and goes to the waiting tasks.
    #[test]
    fn pool_is_bounded_with_waiters() {
        let pool = BufferPool::new(4, 4096);
        assert!(pool.take_blocking(5 * 4096).is_none());
        let first = pool.take_blocking(3 * 4096).unwrap();
        let mut second = pool.take_blocking(100).unwrap();
        assert_eq!((first.len(), second.len(), pool.free().len()), (3 * 4096, 100, 0));
        let waiting = std::thread::spawn({
            let pool = pool.clone();
            move || pool.take_blocking(4 * 4096).unwrap().len()
        });
        // The pool replaces buffers that a device did not return.
        drop(second.take());
        drop((first, second));
        assert_eq!(waiting.join().unwrap(), 4 * 4096);
        assert_eq!((pool.free().len(), pool.shared.turns.available_permits()), (4, 4));
    }

    #[test]
    fn unneeded_memory_returns_at_once() {
        let pool = BufferPool::new(4, 4096);
        let mut data = pool.take_blocking(4 * 4096).unwrap();
        data.set_len(5000);
        assert_eq!(data.slices().map(<[u8]>::len).collect::<Vec<_>>(), [4096, 904]);
        assert_eq!(pool.take_blocking(2 * 4096).unwrap().len(), 2 * 4096);
        data.set_len(0);
        assert!(data.is_empty());
        assert_eq!(pool.take_blocking(3 * 4096).unwrap().len(), 3 * 4096);
    }
}
