//! Makes operations take time, end in any order that the contract allows, and continue when no caller waits for them.
//!
//! Owns: two filters. [`Late`] passes each operation to the device some time after it was called. [`Owned`] runs each
//! operation as its own task, so that it continues when its future is dropped, as on a real device. A stack has the
//! order `Owned(Recorder(Late(Disk)))`, so that the recorder sees when operations are called and when they end, even if
//! no caller waits for them.
//!
//! The time is that of the runtime's clock. If the clock is paused, a run takes no real time, and a seed repeats the
//! run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{Error, ErrorKind, Filter, IoFuture, Request, SharedDevice};
use tokio::task::AbortHandle;

use crate::random::Random;

/// Runs a future to its end on a runtime of one thread, in virtual time.
pub fn in_virtual_time<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O can be made").block_on(future)
}

/// Draws how long operations take.
#[derive(Clone)]
pub struct Delays {
    random: Arc<Mutex<Random>>,
    is_short: bool,
}

impl Delays {
    /// Draws delays from a seed: most are a few milliseconds, and a few are some hundred milliseconds.
    pub fn new(seed: u64) -> Delays {
        Delays { random: Arc::new(Mutex::new(Random::new(seed))), is_short: false }
    }

    /// Draws delays of at most a few milliseconds from a seed.
    pub fn short(seed: u64) -> Delays {
        Delays { is_short: true, ..Delays::new(seed) }
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
        Duration::from_millis(random.below(most))
    }
}

/// A filter that passes each operation on after a delay.
pub struct Late {
    inner: SharedDevice,
    delays: Delays,
    under_way: UnderWay,
}

impl Late {
    /// Delays the operations on a device, until `under_way` is settled.
    pub fn new(inner: SharedDevice, seed: u64, under_way: &UnderWay) -> Late {
        Late::by(inner, Delays::new(seed), under_way)
    }

    /// Adds the given delays to the operations on a device, until `under_way` is settled.
    pub fn by(inner: SharedDevice, delays: Delays, under_way: &UnderWay) -> Late {
        Late { inner, delays, under_way: under_way.clone() }
    }
}

impl Filter for Late {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (delay, inner, under_way) = (self.delays.draw(), self.inner.clone(), self.under_way.clone());
        Box::pin(async move {
            tokio::time::sleep(delay).await;
            if under_way.lock().loses_one() {
                let reason = "the process that called it ended before it came to the device";
                return Err(Error::new(ErrorKind::Io, &inner.spec(), request.operation, reason));
            }
            operation(&inner).await
        })
    }
}

/// The operations that one process has in flight, on a device that is [`Owned`] and [`Late`].
#[derive(Clone, Default)]
pub struct UnderWay(Arc<Mutex<Operations>>);

#[derive(Default)]
struct Operations {
    tasks: Vec<AbortHandle>,
    /// Set when the process has ended: decides which operations that have not reached the device are lost.
    loses: Option<Random>,
}

impl Operations {
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
            operations.loses = loses.map(Random::new);
            std::mem::take(&mut operations.tasks)
        };
        while tasks.iter().any(|task| !task.is_finished()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Operations> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A filter whose operations continue when their futures are dropped.
pub struct Owned {
    inner: SharedDevice,
    under_way: UnderWay,
}

impl Owned {
    /// Makes the operations on a device continue when their futures are dropped.
    pub fn new(inner: SharedDevice, under_way: &UnderWay) -> Owned {
        Owned { inner, under_way: under_way.clone() }
    }
}

impl Filter for Owned {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: Request,
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
                Err(Error::new(ErrorKind::Io, &spec, request.operation, "the process that called it has ended"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions};
    use nectary_block::{Buffer, Context, Event, MemoryDevice, Recorder, WriteFlags, read, write};

    fn stack(seed: u64) -> (SharedDevice, UnderWay, Recorder, Arc<MemoryDevice>) {
        let (under_way, recorder) = (UnderWay::default(), Recorder::new());
        let memory = Arc::new(MemoryDevice::new(1 << 20));
        let recorded = recorder.wrap(Arc::new(Late::new(memory.clone(), seed, &under_way)));
        (Arc::new(Owned::new(recorded, &under_way)), under_way, recorder, memory)
    }

    #[tokio::test(start_paused = true)]
    async fn operations_end_in_other_orders_than_they_began_and_a_seed_repeats_that() {
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

    #[tokio::test(start_paused = true)]
    async fn what_nobody_waits_for_ends_or_is_gone_and_the_recorder_knows_which() {
        let mut kinds = [0; 2];
        for seed in 0..40 {
            let (device, under_way, recorder, memory) = stack(seed);
            let buffers = vec![Buffer::copy_of(&[7; 4096])];
            drop(device.write_at(0, buffers, WriteFlags::default(), Context::default()));
            under_way.settle(Some(seed)).await;
            let is_there = memory.image()[0] == 7;
            let ended = recorder.recording().events.last() == Some(&Event::Completed { id: 0, succeeded: true });
            assert_eq!(is_there, ended, "seed {seed}");
            kinds[usize::from(is_there)] += 1;
        }
        assert!(kinds.iter().all(|&count| count > 5), "{kinds:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_covers_what_had_ended_when_it_was_called_and_nothing_that_ends_later() {
        let options = DiskOptions { lost_percent: 100, delays: true, ..DiskOptions::default() };
        let disk = Disk::new(1 << 20, options);
        write(&*disk, 0, Buffer::copy_of(&[1; 4096])).await.unwrap();
        let late = Filter::write_at(
            &*disk,
            4096,
            vec![Buffer::copy_of(&[2; 4096])],
            WriteFlags::default(),
            Context::default(),
        );
        nectary_block::BlockDevice::flush(&*disk, Context::default()).await.unwrap();
        late.await.unwrap();
        let found = disk.crash();
        assert_eq!(read(&*found, 0, 4096).await.unwrap()[0], 1);
        assert_eq!(read(&*found, 4096, 4096).await.unwrap()[0], 0);
    }
}
