//! Admission: which objects are written to the disk.
//!
//! Owns: the decision, and its statistics. The files: `options` has the rules; `sketch` remembers which keys were
//! requested before; `rate` is the write budget; `doubt` has the records that may be on the disk although they are not
//! in the index. Leaves to others: everything that happens to an admitted object.
//!
//! # Invariants
//! 1. An object that is, or may be, on the disk is replaced on the disk: the next version is admitted whatever the
//!    rules say. So a replaced version is never found again, whatever happens to the versions in memory.
//! 2. An object that was not admitted has its own sequence, in the order of all puts, and is not on the disk. After a
//!    crash it is a miss. So is the version that it replaced: by 1, that version was only in memory.
//! 3. An object that was not admitted is considered once more, when it is requested while it is in memory: this is its
//!    second request.
//! 4. An object that is only in memory and was purged leaves memory before the purge is forgotten (the purge is
//!    forgotten when the ring has overwritten everything older).
//! 5. If everything is admitted, which is the default, admission costs nothing.
//! 6. A copy of what the caller has elsewhere stays in memory alone, but for one that replaces an object on the disk.

mod doubt;
mod options;
mod rate;
mod sketch;

use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::counters::{Counters, Counts};
use crate::names::key::KeyHash;
use crate::random::random_u64;

pub(crate) use doubt::IndexDoubt;
pub use options::{AdmissionOptions, AdmitRule, WRITE_BUDGET_BYTES_A_DAY_MIN, WriteBudget};
pub use rate::WriteBudgetStat;
use rate::WriteRate;
use sketch::RequestSketch;

/// The sketch of past requests takes at most 1/`SKETCH_SHARE` of the memory budget.
const SKETCH_SHARE: u64 = 64;

/// The decision on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmissionDecision {
    /// The object is written.
    Admitted,
    /// The object is written, because an older version is or may be on the disk.
    Replaces,
    /// The object is not written: its key was not requested before.
    FirstRequest,
    /// The object is not written: it is too short or too long.
    Size,
    /// The object is not written: too much has been written lately.
    Budget,
    /// The object is not written, however often it is requested: the caller has it elsewhere.
    Copy,
}

impl AdmissionDecision {
    /// Whether the object is written.
    pub fn is_admitted(self) -> bool {
        matches!(self, AdmissionDecision::Admitted | AdmissionDecision::Replaces)
    }
}

/// The state of admission.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AdmissionStat {
    /// The rule by which requests admit an object.
    pub rule: AdmitRule,
    /// Bodies of fewer bytes than this are not admitted, except empty bodies.
    pub bytes_min: u64,
    /// Bodies of more bytes than this are not admitted.
    pub bytes_max: Option<u64>,
    /// The sketch remembers at least this many of the different keys that were requested last.
    pub remembered_requests: u64,
    /// The memory of the sketch of past requests, in bytes.
    pub remembered_bytes: u64,
    /// The admitted share of the bytes that were put, since the store was opened.
    pub admitted_share: Option<f64>,
    /// The write budget, and how much of it is used.
    pub write_budget: Option<WriteBudgetStat>,
}

impl AdmissionStat {
    /// Adds the state of another span.
    pub(crate) fn add(&mut self, other: &AdmissionStat) {
        self.remembered_requests += other.remembered_requests;
        self.remembered_bytes += other.remembered_bytes;
        match (&mut self.write_budget, &other.write_budget) {
            (Some(budget), Some(other)) => budget.add(other),
            (budget, other) => *budget = budget.or(*other),
        }
    }
}

/// Decides which objects are admitted.
pub(crate) struct Admission {
    options: AdmissionOptions,
    is_open: bool,
    sketch: Option<Mutex<RequestSketch>>,
    rate: Option<Mutex<WriteRate>>,
    begun: Instant,
    pub doubt: IndexDoubt,
}

impl Admission {
    /// Makes the state of admission, for a store with these options and this memory budget.
    pub fn new(options: &AdmissionOptions, memory_bytes: u64) -> Admission {
        let remembers = options.rule == AdmitRule::SecondRequest;
        let seed = options.seed.unwrap_or_else(random_u64);
        Admission {
            options: *options,
            is_open: options.is_open(),
            sketch: remembers.then(|| Mutex::new(RequestSketch::new(memory_bytes / SKETCH_SHARE))),
            rate: options.write_budget.map(|budget| Mutex::new(WriteRate::new(&budget, seed))),
            begun: Instant::now(),
            doubt: IndexDoubt::default(),
        }
    }

    /// Whether everything is admitted.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The memory of admission, in bytes.
    pub fn bytes(&self) -> u64 {
        self.sketch.as_ref().map_or(0, |sketch| lock(sketch).bytes())
    }

    /// Whether the rules on size allow a body of this many bytes.
    pub fn has_size(&self, bytes: u64) -> bool {
        (bytes == 0 || bytes >= self.options.bytes_min) && !self.is_too_long(bytes)
    }

    /// Whether a body of this many bytes or more is too long to be admitted.
    pub fn is_too_long(&self, bytes: u64) -> bool {
        self.options.bytes_max.is_some_and(|most| bytes > most)
    }

    /// Decides about an object that replaces nothing on the disk; notes that its key was requested.
    pub fn judge(
        &self,
        hash: KeyHash,
        bytes: Option<u64>,
        written_bytes: u64,
        waiting_bytes: u64,
    ) -> AdmissionDecision {
        if bytes.is_some_and(|bytes| !self.has_size(bytes)) {
            return AdmissionDecision::Size;
        }
        if let Some(sketch) = &self.sketch
            && !lock(sketch).note(hash)
        {
            return AdmissionDecision::FirstRequest;
        }
        if self.is_in_budget(bytes.unwrap_or(0), written_bytes, waiting_bytes) {
            AdmissionDecision::Admitted
        } else {
            AdmissionDecision::Budget
        }
    }

    /// Whether the write budget admits an object of `bytes`, after `written_bytes` were written to the device and while
    /// `waiting_bytes` wait to be written.
    pub fn is_in_budget(&self, bytes: u64, written_bytes: u64, waiting_bytes: u64) -> bool {
        let now_us = self.begun.elapsed().as_micros() as u64;
        self.rate.as_ref().is_none_or(|rate| lock(rate).admits(now_us, written_bytes, waiting_bytes, bytes))
    }

    /// The state of admission; the arguments are the written bytes and the counters of the span.
    pub fn stat(&self, written_bytes: u64, counts: &Counts) -> AdmissionStat {
        let (remembered_requests, remembered_bytes) = match &self.sketch {
            Some(sketch) => {
                let sketch = lock(sketch);
                (sketch.count_max(), sketch.bytes())
            }
            None => (0, 0),
        };
        let now_us = self.begun.elapsed().as_micros() as u64;
        AdmissionStat {
            rule: self.options.rule,
            bytes_min: self.options.bytes_min,
            bytes_max: self.options.bytes_max,
            remembered_requests,
            remembered_bytes,
            admitted_share: counts.admitted_share(),
            write_budget: self.rate.as_ref().map(|rate| lock(rate).stat(now_us, written_bytes)),
        }
    }
}

/// Counts the decision on an object of this many bytes.
pub(crate) fn count(counters: &Counters, decision: AdmissionDecision, bytes: u64) {
    let (objects, of_bytes) = match decision {
        AdmissionDecision::Admitted | AdmissionDecision::Replaces => (&counters.admitted, &counters.admitted_bytes),
        AdmissionDecision::FirstRequest => (&counters.unadmitted_first, &counters.unadmitted_first_bytes),
        AdmissionDecision::Size => (&counters.unadmitted_size, &counters.unadmitted_size_bytes),
        AdmissionDecision::Budget => (&counters.unadmitted_budget, &counters.unadmitted_budget_bytes),
        AdmissionDecision::Copy => (&counters.unadmitted_copies, &counters.unadmitted_copies_bytes),
    };
    Counters::add(objects, 1);
    Counters::add(of_bytes, bytes);
    if decision == AdmissionDecision::Replaces {
        Counters::add(&counters.admitted_replacing, 1);
        Counters::add(&counters.admitted_replacing_bytes, bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
