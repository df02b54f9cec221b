//! `model(A,disk=hdd-1999)`: operations take as long as on a disk of the given kind.
//!
//! Every operation is passed to the device below at once, and ends when both that device and the modelled disk have
//! ended it. The disk's time is real time multiplied by `speed`. With `clock=virtual` no caller waits for the disk. The
//! disk's time is then the sum of the real time that has passed and the disk's service times, and the figures report
//! the disk's time. So a modelled run of hours takes only the processor time of its work.
//!
//! On a disk with platters, requests wait in a queue while the arm is busy. The next request is chosen from the oldest
//! `queue-depth` requests, 32 by default. It is the one whose data reach the head first. If the oldest request has
//! waited for more than [`PATIENCE_NS`], it is chosen instead. With a depth of 1, requests are served in order of
//! arrival, as by disks of 1999. The queue has no task; any waiting operation that is polled drives the queue. An
//! operation whose future is dropped while it waits leaves the queue, although the device below may have done the
//! operation. If the disk is already serving the operation, the disk stays busy until the end of the service.
//!
//! Promises: contents, errors and durability are those of the device below. The arithmetic is in `disk.rs`.

mod disk;
mod queue;
mod timer;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub use self::disk::DiskKind;
use self::disk::DiskRequest;
use self::queue::{DiskModel, DiskTicket, QUEUE_DEPTH};
use super::{Filter, options_text};
use crate::device::{IoFuture, SharedDevice};
use crate::error::{DeviceErrorKind, DeviceOperation};
use crate::figures::DeviceCounters;
use crate::request::DeviceRequest;

/// Whether the callers of operations wait for the modelled disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ModelClock {
    /// Operations take the modelled time.
    #[default]
    Real,
    /// Operations do not wait; the modelled time is only counted.
    Virtual,
}

/// The settings of the `model` filter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelOptions {
    /// The kind of disk.
    pub disk: DiskKind,
    /// Whether the callers of operations wait.
    pub clock: ModelClock,
    /// The factor by which the time of the disk is faster than real time; above 0.
    pub speed: f64,
    /// The number of waiting requests from which a disk with platters chooses the next one; at least 1.
    pub queue_depth: usize,
}

impl ModelOptions {
    /// The options of a disk in real time.
    pub fn new(disk: DiskKind) -> ModelOptions {
        ModelOptions { disk, clock: ModelClock::Real, speed: 1.0, queue_depth: QUEUE_DEPTH }
    }
}

/// The work of a modelled disk so far; all times are on the clock of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelStats {
    /// The number of operations that were served.
    pub operations: u64,
    /// The number of operations that moved the arm.
    pub seeks: u64,
    /// The total service time.
    pub busy: Duration,
    /// The part of `busy` for moving the arm.
    pub seek: Duration,
    /// The part of `busy` for waiting for the platter.
    pub rotation: Duration,
    /// The part of `busy` for moving bytes.
    pub transfer: Duration,
    /// The total time for which operations waited before they were served.
    pub waited: Duration,
    /// The current time on the clock of the disk.
    pub clock: Duration,
}

/// The `model` filter; see the comment at the head of this file.
pub struct ModelFilter {
    inner: SharedDevice,
    options: ModelOptions,
    model: Arc<DiskModel>,
}

impl ModelFilter {
    /// Makes a filter under which `inner` takes as long as a disk would.
    pub fn new(inner: SharedDevice, options: ModelOptions) -> ModelFilter {
        ModelFilter { inner, options, model: Arc::new(DiskModel::new(options)) }
    }

    /// The work of the disk so far.
    pub fn snapshot(&self) -> ModelStats {
        self.model.stats()
    }
}

impl Filter for ModelFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }
    fn spec(&self) -> String {
        let ModelOptions { disk, clock, speed, queue_depth } = self.options;
        let options = options_text([
            ("disk", Some(disk.as_str().to_owned())),
            ("clock", (clock == ModelClock::Virtual).then(|| "virtual".to_owned())),
            ("speed", (speed != 1.0).then(|| speed.to_string())),
            ("queue-depth", (queue_depth != QUEUE_DEPTH).then(|| queue_depth.to_string())),
        ]);
        format!("model({}{options})", self.inner.spec())
    }
    fn own_figures(&self) -> Option<DeviceCounters> {
        let stats = self.snapshot();
        let us = |time: Duration| time.as_micros().min(u128::from(u64::MAX)) as u64;
        let values = vec![
            ("operations", stats.operations),
            ("seeks", stats.seeks),
            ("busy_us", us(stats.busy)),
            ("seek_us", us(stats.seek)),
            ("rotation_us", us(stats.rotation)),
            ("transfer_us", us(stats.transfer)),
            ("waited_us", us(stats.waited)),
            ("clock_us", us(stats.clock)),
        ];
        Some(DeviceCounters { device: "model", values })
    }
    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let DeviceRequest { operation: kind, offset, length, .. } = request;
        let size_bytes = self.inner.geometry().size_bytes;
        let refused = request.check(String::new, &self.inner.geometry()).is_err();
        if refused
            || matches!(
                kind,
                DeviceOperation::Open | DeviceOperation::Allocation | DeviceOperation::Grow | DeviceOperation::Close
            )
        {
            return operation(&self.inner);
        }
        let below = operation(&self.inner);
        let turn = DiskTicket::take(&self.model, DiskRequest { operation: kind, offset, length, size_bytes });
        if turn.is_over() {
            return below;
        }
        let spec = Filter::spec(self);
        Box::pin(async move {
            let served = async {
                let result = below.await?;
                turn.served().await;
                Ok(result)
            };
            match request.deadline {
                None => served.await,
                Some(deadline) => match tokio::time::timeout_at(Instant::from_std(deadline), served).await {
                    Ok(result) => result,
                    Err(_) => {
                        let detail = "the deadline passed before the modelled disk had ended it; it may still happen";
                        Err(request.error(DeviceErrorKind::TimedOut, || spec, detail.to_owned()))
                    }
                },
            }
        })
    }
}
