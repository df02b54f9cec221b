//! The health of the device of a span: whether a flush failed, whether the device answers, and what the operator is told.
//!
//! Owns: the latch of a failed flush, the deadline of operations, and the notes for the operator. Leaves to others: what
//! is done after failures (`write/trouble.rs`).
//!
//! # A device that does not answer
//! A *read* that misses its deadline is an error. Then no read is tried for [`PAUSE`], except one at a time that finds
//! out whether the device answers again. So a hanging disk costs each request at most one deadline, and most requests
//! nothing.
//!
//! A *write* or flush that misses its deadline is not an error: it may still take effect. The writer goes on waiting for
//! it and starts nothing else, so its segment, its block of the purge log, or its checkpoint area is not used again before
//! the device has answered or the store is opened again. Until then the device counts as silent, and nobody waits for the
//! writer: purges, syncs and the end of the process get an error at once.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block as block;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::counters::Counters;
use crate::error::Error;

/// The largest number of notes that are kept for the operator; further notes are dropped.
const NOTES_MAX: usize = 100;
/// After a read that missed its deadline, the next read is tried after this time.
const PAUSE: Duration = Duration::from_millis(500);

/// The health of the device of an open span.
pub(crate) struct DeviceHealth {
    pub counters: Arc<Counters>,
    spec: String,
    /// The longest time for which an operation may take; `None` if there is no bound.
    limit: Option<Duration>,
    /// Whether all reads fail at the deadline. While a store is being opened, only those of callers do.
    is_armed: AtomicBool,
    /// Whether a flush failed, and what was written since the last good flush is not rewritten yet.
    is_latched: AtomicBool,
    /// The start of the times in this struct.
    begun: Instant,
    /// When the next read may be tried, in microseconds since `begun`; 0 if the device answers reads.
    read_at_us: AtomicU64,
    /// The number of writes and flushes that have missed their deadline and not ended.
    overdue: AtomicU32,
    /// Wakes those that wait for the writer, when the device becomes silent.
    silenced: Notify,
    /// Why nothing is written at present.
    trouble: Mutex<Option<String>>,
    notes: Mutex<Vec<String>>,
}

impl DeviceHealth {
    /// The health of a device that has no deadline until [`arm`](DeviceHealth::arm).
    pub fn new(spec: String, limit: Option<Duration>) -> DeviceHealth {
        DeviceHealth {
            counters: Arc::default(),
            spec,
            limit,
            is_armed: AtomicBool::new(false),
            is_latched: AtomicBool::new(false),
            begun: Instant::now(),
            read_at_us: AtomicU64::new(0),
            overdue: AtomicU32::new(0),
            silenced: Notify::new(),
            trouble: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    /// Lets every later read fail at the deadline.
    pub fn arm(&self) {
        self.is_armed.store(true, Ordering::Release);
    }

    /// The longest time for which a read of the store's own may take now.
    pub fn limit(&self) -> Option<Duration> {
        self.limit.filter(|_| self.is_armed.load(Ordering::Acquire))
    }

    /// The longest time for which a get waits for the index while it is being loaded.
    pub fn patience(&self) -> Option<Duration> {
        self.limit
    }

    /// Whether a flush failed. Until everything that followed the last good flush is rewritten and flushed, no flush
    /// proves anything.
    pub fn is_latched(&self) -> bool {
        self.is_latched.load(Ordering::Acquire)
    }

    /// Notes that a flush failed.
    pub fn latch(&self) {
        self.is_latched.store(true, Ordering::Release);
    }

    /// Notes that everything that followed the last good flush was rewritten and flushed.
    pub fn unlatch(&self) {
        self.is_latched.store(false, Ordering::Release);
    }

    /// The deadline of a read that begins now. *Errors*: the device does not answer, so no read is tried.
    pub fn read_deadline(&self) -> Result<Option<Instant>, Error> {
        let Some(limit) = self.limit else { return Ok(None) };
        let now = Instant::now();
        let at = self.read_at_us.load(Ordering::Acquire);
        if at > 0 {
            let now_us = self.us(now);
            let next = now_us + limit.as_micros() as u64 + PAUSE.as_micros() as u64;
            // One caller at a time tries.
            let tries =
                now_us >= at && self.read_at_us.compare_exchange(at, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if !tries {
                Counters::add(&self.counters.reads_avoided, 1);
                return Err(self.silent_error());
            }
        }
        Ok(Some(now + limit))
    }

    /// Notes the result of a read.
    pub fn note_read<T>(&self, result: &Result<T, block::Error>) {
        match result {
            Err(error) if error.kind == block::DeviceErrorKind::TimedOut => {
                Counters::add(&self.counters.reads_late, 1);
                let next = self.us(Instant::now()) + PAUSE.as_micros() as u64;
                if self.read_at_us.swap(next.max(1), Ordering::AcqRel) == 0 {
                    self.note(format!("{}: a read was not answered in time; reads fail until one is", self.spec));
                }
            }
            _ if self.read_at_us.load(Ordering::Acquire) > 0 => {
                self.read_at_us.store(0, Ordering::Release);
                self.note(format!("{}: it answers reads again", self.spec));
            }
            _ => {}
        }
    }

    /// Waits for a write or a flush, or for a read while the store is being opened. If it misses its deadline, the device
    /// counts as silent until it ends.
    pub async fn watch<T>(&self, operation: impl Future<Output = T>) -> T {
        let Some(limit) = self.limit else { return operation.await };
        let mut operation = std::pin::pin!(operation);
        if let Ok(result) = tokio::time::timeout(limit, &mut operation).await {
            return result;
        }
        let _overdue = OverdueOperation::new(self);
        operation.await
    }

    /// Whether a write or flush has missed its deadline and not ended.
    pub fn is_silent(&self) -> bool {
        self.overdue.load(Ordering::Acquire) > 0
    }

    /// Waits until the device is silent. *Returns* the error for callers of the writer.
    pub async fn silent(&self) -> Error {
        loop {
            let mut silenced = std::pin::pin!(self.silenced.notified());
            silenced.as_mut().enable();
            if self.is_silent() {
                return self.silent_error();
            }
            silenced.await;
        }
    }

    /// The error of a call that does not wait for the device any longer.
    pub fn silent_error(&self) -> Error {
        let limit = self.limit.unwrap_or_default();
        let detail = format!("the device has not answered for {limit:?}");
        block::Error::new(block::DeviceErrorKind::TimedOut, &self.spec, block::DeviceOperation::Read, detail).into()
    }

    /// Why nothing is written, or nothing is read, at present; `None` if the device takes writes and answers.
    pub fn trouble(&self) -> Option<String> {
        match self.is_silent() || self.read_at_us.load(Ordering::Acquire) > 0 {
            true => Some(self.silent_error().message),
            false => self.reason().clone(),
        }
    }

    /// Sets or clears the reason why nothing is written.
    pub fn set_trouble(&self, reason: Option<String>) {
        *self.reason() = reason;
    }

    /// Keeps a message for the operator; the number of messages is bounded.
    pub fn note(&self, message: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.push(message);
        }
    }

    /// Returns the kept messages and removes them.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn us(&self, time: Instant) -> u64 {
        time.duration_since(self.begun).as_micros() as u64
    }

    fn reason(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A write or flush that has missed its deadline.
struct OverdueOperation<'a>(&'a DeviceHealth);

impl<'a> OverdueOperation<'a> {
    fn new(health: &'a DeviceHealth) -> OverdueOperation<'a> {
        Counters::add(&health.counters.writes_late, 1);
        if health.overdue.fetch_add(1, Ordering::AcqRel) == 0 {
            let limit = health.limit.unwrap_or_default();
            health.note(format!("{}: no answer for {limit:?}; nothing is written until it comes", health.spec));
        }
        health.silenced.notify_waiters();
        OverdueOperation(health)
    }
}

impl Drop for OverdueOperation<'_> {
    fn drop(&mut self) {
        if self.0.overdue.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.note(format!("{}: it answers again", self.0.spec));
        }
    }
}
