//! Makes operations take time, end in any order that the contract allows, and continue when no caller waits for them.
//!
//! Owns: two filters. [`LateFilter`] passes each operation to the device some time after it was called. [`DetachedFilter`] runs each
//! operation as its own task, so that it continues when its future is dropped, as on a real device. A stack has the
//! order `DetachedFilter(Recorder(LateFilter(SimulatedDisk)))`, so that the recorder sees when operations are called and when they end, even if
//! no caller waits for them.
//!
//! The time is that of the runtime's clock. If the clock is paused, a run takes no real time, and a seed repeats the
//! run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{DeviceErrorKind, DeviceRequest, Error, Filter, IoFuture, SharedDevice};
use tokio::task::AbortHandle;

use crate::random::SimulationRandom;

/// Runs a future to its end on a runtime of one thread, in virtual time.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can be made").block_on(future)
}

/// Draws how long operations take.
#[derive(Clone)]
pub struct OperationDelays {
    random: Arc<Mutex<SimulationRandom>>,
    is_short: bool,
    /// What is added to each. *Units*: milliseconds.
    added_ms: Arc<AtomicU64>,
}

impl OperationDelays {
    /// Draws delays from a seed: most are a few milliseconds, and a few are some hundred milliseconds.
    pub fn new(seed: u64) -> OperationDelays {
        OperationDelays {
            random: Arc::new(Mutex::new(SimulationRandom::new(seed))),
            is_short: false,
            added_ms: Arc::default(),
        }
    }

    /// Draws delays of at most a few milliseconds from a seed.
    pub fn short(seed: u64) -> OperationDelays {
        OperationDelays { is_short: true, ..OperationDelays::new(seed) }
    }

    /// Adds this to the delay of each later operation.
    pub fn add_ms(&self, added_ms: u64) {
        self.added_ms.store(added_ms, Ordering::Relaxed);
    }

    /// Draws the delay of the next operation.
    pub fn draw(&self) -> Duration {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let most = match random.below(100) {
            _ if self.is_short => 3,
            0..=4 => 200,
            5..=24 => 20,
            _ => 3,
        };
        Duration::from_millis(random.below(most) + self.added_ms.load(Ordering::Relaxed))
    }
}

/// A filter that passes each operation on after a delay.
pub struct LateFilter {
    inner: SharedDevice,
    delays: OperationDelays,
    under_way: UnderWay,
}

impl LateFilter {
    /// Delays the operations on a device, until `under_way` is settled.
    pub fn new(inner: SharedDevice, seed: u64, under_way: &UnderWay) -> LateFilter {
        LateFilter::by(inner, OperationDelays::new(seed), under_way)
    }

    /// Adds the given delays to the operations on a device, until `under_way` is settled.
    pub fn by(inner: SharedDevice, delays: OperationDelays, under_way: &UnderWay) -> LateFilter {
        LateFilter { inner, delays, under_way: under_way.clone() }
    }
}

impl Filter for LateFilter {
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
        let (delay, inner, under_way) = (self.delays.draw(), self.inner.clone(), self.under_way.clone());
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            if under_way.lock().loses_one() {
                let reason = "the process that called it ended before it came to the device";
                return Err(Error::new(DeviceErrorKind::Io, &inner.spec(), request.operation, reason));
            }
            operation(&inner).await
        })
    }
}

/// The operations that one process has in flight, on a device that is [`DetachedFilter`] and [`LateFilter`].
#[derive(Clone, Default)]
pub struct UnderWay(Arc<Mutex<RunningOperations>>);

#[derive(Default)]
struct RunningOperations {
    tasks: Vec<AbortHandle>,
    /// Set when the process has ended: decides which operations that have not reached the device are lost.
    loses: Option<SimulationRandom>,
}

impl RunningOperations {
    fn loses_one(&mut self) -> bool {
        self.loses.as_mut().is_some_and(|random| random.chance(50))
    }
}

impl UnderWay {
    /// Waits until all operations have ended, as after the end of a process. With a seed, some operations that have not
    /// reached the device never do. No operation may be called afterwards.
    pub async fn settle(&self, loses: Option<u64>) {
        let tasks = {
            let mut operations = self.lock();
            operations.loses = loses.map(SimulationRandom::new);
            std::mem::take(&mut operations.tasks)
        };
        while tasks.iter().any(|task| !task.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningOperations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A filter whose operations continue when their futures are dropped.
pub struct DetachedFilter {
    inner: SharedDevice,
    under_way: UnderWay,
}

impl DetachedFilter {
    /// Makes the operations on a device continue when their futures are dropped.
    pub fn new(inner: SharedDevice, under_way: &UnderWay) -> DetachedFilter {
        DetachedFilter { inner, under_way: under_way.clone() }
    }
}

impl Filter for DetachedFilter {
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
        let (inner, spec) = (self.inner.clone(), self.spec());
        // The operation begins with the call, as the contract says.
        let operation = operation(&inner);
        let task = tokio::spawn(operation);
        let mut operations = self.under_way.lock();
        operations.tasks.retain(|task| !task.is_finished());
        operations.tasks.push(task.abort_handle());
        drop(operations);
        Box::pin(async move {
            task.await.unwrap_or_else(|_| {
                Err(Error::new(DeviceErrorKind::Io, &spec, request.operation, "the process that called it has ended"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{DiskOptions, SimulatedDisk};
    use nectary_block::{Buffer, IoContext, MemoryDevice, RecordedEvent, Recorder, WriteFlags, read, write};

    fn stack(seed: u64) -> (SharedDevice, UnderWay, Recorder, Arc<MemoryDevice>) {
        let (under_way, recorder) = (UnderWay::default(), Recorder::new());
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let recorded = recorder.wrap(Arc::new(LateFilter::new(memory.clone(), seed, &under_way)));
        (Arc::new(DetachedFilter::new(recorded, &under_way)), under_way, recorder, memory)
    }

    /// Operations end in another order than they began, and the same seed gives the same order.
    #[tokio::test(start_paused = true)]
    async fn late_operations_repeat_by_seed() {
        let mut orders = Vec::new();
        for seed in [1, 1, 2] {
            let (device, ..) = stack(seed);
            let order = Arc::new(Mutex::new(Vec::new()));
            let writes = (0..8_u64).map(|number| {
                let (write, order) = (write(&*device, number * 4096, Buffer::zeroed(4096)), order.clone());
                async move {
                    write.await.unwrap();
                    order.lock().unwrap().push(number);
                }
            });
            futures_util::future::join_all(writes).await;
            orders.push(order.lock().unwrap().clone());
        }
        assert_eq!(orders[0], orders[1]);
        assert_ne!(orders[0], orders[2]);
        assert_ne!(orders[0], (0..8).collect::<Vec<_>>());
    }

    /// A write whose future was dropped ends or has no effect, and the recorder knows which.
    #[tokio::test(start_paused = true)]
    async fn dropped_write_matches_the_recording() {
        let mut kinds = [0; 2];
        for seed in 0..40 {
            let (device, under_way, recorder, memory) = stack(seed);
            let buffers = vec![Buffer::copy_of(&[7; 4096])];
            drop(device.write_at(0, buffers, WriteFlags::default(), IoContext::default()));
            under_way.settle(Some(seed)).await;
            let is_there = memory.image()[0] == 7;
            let ended =
                recorder.recording().events.last() == Some(&RecordedEvent::Completed { id: 0, succeeded: true });
            assert_eq!(is_there, ended, "seed {seed}");
            kinds[usize::from(is_there)] += 1;
        }
        assert!(kinds.iter().all(|&count| count > 5), "{kinds:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn flush_excludes_writes_ending_later() {
        let options = DiskOptions { lost_percent: 100, delays: true, ..DiskOptions::default() };
        let disk = SimulatedDisk::new(1 << 20, options);
        write(&*disk, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
        let late = Filter::write_at(
            &*disk,
            4096,
            vec![Buffer::copy_of(&[2; 4096])],
            WriteFlags::default(),
            IoContext::default(),
        );
        nectary_block::BlockDevice::flush(&*disk, IoContext::default()).await.unwrap();
        late.await.unwrap();
        let found = disk.crash();
        assert_eq!(read(&*found, 0, 4096).await.unwrap()[0], 1);
        assert_eq!(read(&*found, 4096, 4096).await.unwrap()[0], 0);
    }
}
