//! The queue of a modelled disk: chooses the request that the disk serves next, and computes when it ends.
//!
//! Owns: the disk's clock, the queue and the counters. Promises: a request in service has a known end. At that end, or
//! when the request's future is dropped, the next request is chosen. The service of that request begins at the time at
//! which the disk became free, even if the program notices this later. So late timers cost no modelled time.
//!
//! On a virtual clock, callers take no modelled time between two requests. So a request ends when no other request has
//! arrived for [`QUIET`] of real time, or when the queue has as many requests as the disk chooses from. Then all
//! callers are waiting, and the disk chooses from all of their requests. With a queue depth of 1 the disk has no choice,
//! so a request ends without this wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::disk::{DiskMechanics, DiskRequest, ServiceTimes};
use super::timer::TimerPool;
use super::{ModelClock, ModelOptions, ModelStats};

/// The default number of waiting requests from which a disk with platters chooses.
pub(super) const QUEUE_DEPTH: usize = 32;

/// The longest time for which the oldest request waits while other requests are chosen. *Units*: nanoseconds of the
/// disk's time.
pub(super) const PATIENCE_NS: u64 = 500_000_000;

/// The time after the end of a request in which only the waiter of that request chooses the next request. After this
/// time, any waiter may choose it. *Units*: real time.
const GRACE: Duration = Duration::from_millis(1);

/// The time without new requests after which a served request ends on a virtual clock. It is longer than the time that
/// the kernel takes from the end of one request to the arrival of the next. *Units*: real time.
const QUIET: Duration = Duration::from_micros(100);

/// A modelled disk.
pub(super) struct DiskModel {
    options: ModelOptions,
    /// The real time at which the clock of the disk was at 0.
    began: Instant,
    timers: TimerPool,
    state: Mutex<DiskModelState>,
}

struct DiskModelState {
    mechanics: DiskMechanics,
    /// The time by which a virtual clock of the disk is ahead of real time. *Units*: nanoseconds of the disk's time.
    ahead: u64,
    /// The times at which the last request arrived, and at which a request was last chosen. *Units*: real time.
    last_came: std::time::Instant,
    last_chosen: std::time::Instant,
    /// The time on the disk's clock at which the arm is free.
    free_at: u64,
    serving: Option<u64>,
    waiting: Vec<QueuedDiskRequest>,
    next_id: u64,
    sums: ServiceTotals,
}

/// A request in the queue of a disk with platters.
struct QueuedDiskRequest {
    id: u64,
    work: DiskRequest,
    arrived: u64,
    /// The channel that reports the end of the request's service.
    chosen: oneshot::Sender<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ServiceTotals {
    operations: u64,
    seeks: u64,
    times: ServiceTimes,
    waited: u64,
}

impl ServiceTotals {
    fn add(&mut self, times: ServiceTimes, waited: u64) {
        self.operations += 1;
        self.seeks += u64::from(times.seek > 0);
        self.times.seek += times.seek;
        self.times.rotation += times.rotation;
        self.times.transfer += times.transfer;
        self.times.other += times.other;
        self.waited += waited;
    }
}

impl DiskModel {
    pub fn new(options: ModelOptions) -> DiskModel {
        let state = DiskModelState {
            mechanics: options.disk.mechanics(),
            ahead: 0,
            last_came: std::time::Instant::now(),
            last_chosen: std::time::Instant::now(),
            free_at: 0,
            serving: None,
            waiting: Vec::new(),
            next_id: 0,
            sums: ServiceTotals::default(),
        };
        DiskModel { options, began: Instant::now(), timers: TimerPool::default(), state: Mutex::new(state) }
    }

    pub fn stats(&self) -> ModelStats {
        let state = self.lock();
        let ServiceTotals { operations, seeks, times, waited } = state.sums;
        ModelStats {
            operations,
            seeks,
            busy: Duration::from_nanos(times.sum()),
            seek: Duration::from_nanos(times.seek),
            rotation: Duration::from_nanos(times.rotation),
            transfer: Duration::from_nanos(times.transfer),
            waited: Duration::from_nanos(waited),
            clock: Duration::from_nanos(self.now(&state)),
        }
    }

    /// The current time on the clock of the disk.
    fn now(&self, state: &DiskModelState) -> u64 {
        (self.began.elapsed().as_nanos() as f64 * self.options.speed) as u64 + state.ahead
    }

    /// The real time at which the clock of the disk shows `time`.
    fn real(&self, time: u64) -> Instant {
        self.began + Duration::from_nanos((time as f64 / self.options.speed) as u64)
    }

    /// The real time at which the arm is free.
    fn free_at(&self) -> Instant {
        self.real(self.lock().free_at)
    }

    /// Whether a request on a virtual clock waits until the disk can choose among several requests.
    fn chooses_in_virtual_time(&self) -> bool {
        self.options.clock == ModelClock::Virtual && self.options.queue_depth > 1
    }

    /// The remaining time after which a served request ends on a virtual clock if no other request arrives; `None` if
    /// the request ends now.
    fn quiet_in(&self) -> Option<Duration> {
        let state = self.lock();
        let left = (state.last_came.max(state.last_chosen) + QUIET).checked_duration_since(std::time::Instant::now());
        left.filter(|left| !left.is_zero() && state.waiting.len() < self.options.queue_depth)
    }

    /// On a virtual clock, ends the request in service if its end is late because its waiter is not polled.
    fn end_late(&self) {
        let (serving, end) = {
            let state = self.lock();
            (state.serving.filter(|_| state.last_chosen.elapsed() > QUIET + GRACE), state.free_at)
        };
        if let Some(id) = serving {
            self.end_virtual(id, end);
        }
    }

    /// Ends the request in service on a virtual clock.
    fn end_virtual(&self, id: u64, end: u64) {
        let mut state = self.lock();
        let now = self.now(&state);
        state.ahead += end.saturating_sub(now);
        if state.serving == Some(id) {
            state.serving = None;
        }
        state.dispatch(self.options.queue_depth);
    }

    /// If the time of the request in service is over, ends the request, even if its waiter is not polled.
    fn advance(&self) {
        let mut state = self.lock();
        if self.real(state.free_at) <= Instant::now() {
            state.serving = None;
            state.dispatch(self.options.queue_depth);
        }
    }

    fn lock(&self) -> MutexGuard<'_, DiskModelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskModelState {
    /// Starts the service of the next request, if the arm is free.
    fn dispatch(&mut self, queue_depth: usize) {
        let DiskMechanics::Platters(platters) = &mut self.mechanics else { return };
        while self.serving.is_none() && !self.waiting.is_empty() {
            let oldest = &self.waiting[0];
            let start = self.free_at.max(oldest.arrived);
            let index = match start - oldest.arrived > PATIENCE_NS {
                true => 0,
                false => {
                    // A request that arrived after the arm became free cannot be chosen.
                    let present = self.waiting.iter().take(queue_depth).take_while(|other| other.arrived <= start);
                    platters.next(present.map(|other| &other.work), start).unwrap_or(0)
                }
            };
            let chosen = self.waiting.remove(index);
            let times = platters.times(&chosen.work, start);
            self.free_at = start + times.sum();
            platters.serve(&chosen.work, self.free_at);
            self.sums.add(times, start - chosen.arrived);
            self.serving = Some(chosen.id);
            self.last_chosen = std::time::Instant::now();
            if chosen.chosen.send(self.free_at).is_err() {
                self.serving = None;
            }
        }
    }
}

/// The place of a request on a modelled disk.
pub(super) struct DiskTicket {
    model: Arc<DiskModel>,
    id: u64,
    end: ServiceEnd,
}

enum ServiceEnd {
    Known(u64),
    Told(oneshot::Receiver<u64>),
}

impl DiskTicket {
    /// Puts a request into the queue, with the current time as its arrival.
    pub fn take(model: &Arc<DiskModel>, work: DiskRequest) -> DiskTicket {
        let mut state = model.lock();
        let id = state.next_id;
        state.next_id += 1;
        let now = model.now(&state);
        let is_virtual = model.options.clock == ModelClock::Virtual;
        let chooses = model.chooses_in_virtual_time();
        let state = &mut *state;
        state.last_came = std::time::Instant::now();
        let end = match &mut state.mechanics {
            DiskMechanics::Flash(flash) => {
                let (end, times) = flash.serve(&work, now);
                state.sums.add(times, (end - now).saturating_sub(times.sum()));
                ServiceEnd::Known(end)
            }
            DiskMechanics::Platters(platters) if is_virtual && !chooses => {
                let start = now.max(state.free_at);
                let times = platters.times(&work, start);
                state.free_at = start + times.sum();
                platters.serve(&work, state.free_at);
                state.sums.add(times, start - now);
                ServiceEnd::Known(state.free_at)
            }
            DiskMechanics::Platters(_) => {
                let (chosen, told) = oneshot::channel();
                state.waiting.push(QueuedDiskRequest { id, work, arrived: now, chosen });
                state.dispatch(model.options.queue_depth);
                ServiceEnd::Told(told)
            }
        };
        if let (true, ServiceEnd::Known(end)) = (is_virtual, &end) {
            state.ahead += end.saturating_sub(now);
        }
        DiskTicket { model: model.clone(), id, end }
    }

    /// Whether the request has already ended, because the virtual clock has advanced to its end.
    pub fn is_over(&self) -> bool {
        self.model.options.clock == ModelClock::Virtual && matches!(self.end, ServiceEnd::Known(_))
    }

    /// Waits until the disk has ended the request.
    pub async fn served(mut self) {
        if self.model.options.clock == ModelClock::Virtual {
            return self.served_virtually().await;
        }
        let end = match &mut self.end {
            ServiceEnd::Known(end) => *end,
            ServiceEnd::Told(told) => loop {
                let late = self.model.free_at() + GRACE;
                match tokio::time::timeout_at(late, &mut *told).await {
                    // Receiving cannot fail, because the sender lives as long as the queue, which this turn keeps
                    // alive.
                    Ok(end) => break end.unwrap_or(0),
                    Err(_) => self.model.advance(),
                }
            },
        };
        self.model.timers.sleep_until(self.model.real(end)).await;
    }

    async fn served_virtually(mut self) {
        let ServiceEnd::Told(told) = &mut self.end else { return };
        let end = loop {
            match tokio::time::timeout(GRACE, &mut *told).await {
                Ok(end) => break end.unwrap_or(0),
                Err(_) => self.model.end_late(),
            }
        };
        while let Some(left) = self.model.quiet_in() {
            self.model.timers.sleep_until(Instant::now() + left).await;
        }
        self.model.end_virtual(self.id, end);
    }
}

impl Drop for DiskTicket {
    fn drop(&mut self) {
        if matches!(self.end, ServiceEnd::Known(_)) {
            return;
        }
        let mut state = self.model.lock();
        state.waiting.retain(|waiting| waiting.id != self.id);
        if state.serving == Some(self.id) {
            state.serving = None;
        }
        state.dispatch(self.model.options.queue_depth);
    }
}
