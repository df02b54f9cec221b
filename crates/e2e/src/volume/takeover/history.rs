//! The calls that programs made on the mounts, each with its begin, its end and its result.
//!
//! Owns: the clock, the kinds of calls, and the recording. Promises: a call is in the record before it begins, so a call
//! that never returns is there, too. All times are nanoseconds of one monotonic clock of this machine.

use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// The end of a call that has not returned.
pub const NEVER: u64 = u64::MAX;
/// The number of slots of a file: register `file * SLOTS + slot`.
pub const SLOTS: u32 = 16;
/// The file whose registers are names, which are durable when the call returns.
pub const NAMES: u32 = 100;
/// The result of a read that found bytes that no write can have left.
pub const TORN: u64 = u64::MAX - 1;

/// Returns the time since the first call of this function. *Units*: nanoseconds.
pub fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// What a call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallAction {
    /// Reads a register.
    Read(u32),
    /// Writes a value, which no other call writes, to a register.
    Write(u32, u64),
    /// Makes what this handle wrote to a file durable.
    Sync(u32),
    /// Appends a record with this value to the file of records.
    Append(u64),
    /// Asks for the size of the file of records; the result is in bytes.
    Size,
    /// Reads the last record of that file; the result is its value, or 0 if it ends before.
    Tail,
    /// Creates the file with this number, which must not exist; the result is 1, or 0 if it exists.
    Claim(u64),
    /// Looks up the file with this number; the result is 1, or 0 if there is none.
    Find(u64),
    /// Waits for an exclusive lock.
    Lock(u32),
    /// Releases it.
    Unlock(u32),
    /// A read through the handle of a lock that is held.
    Probe,
    /// Opens a file.
    Open,
    /// Another call, which is not judged.
    Other,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// It succeeded.
    Done(u64),
    /// It failed with this errno; it may have been done all the same.
    Failed(i32),
    /// It has not returned.
    Pending,
}

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCall {
    /// The mount.
    pub mount: usize,
    /// The thread that made it, a number among all threads of a round.
    pub worker: usize,
    /// The open file, a number among all of a round; 0: a path.
    pub handle: u32,
    /// What it does.
    pub act: CallAction,
    /// The time before it. *Units*: nanoseconds.
    pub start: u64,
    /// The time after it, or [`NEVER`]. *Units*: nanoseconds.
    pub end: u64,
    /// Its result.
    pub outcome: CallOutcome,
}

impl RecordedCall {
    /// The result, if the call succeeded.
    pub fn done(&self) -> Option<u64> {
        match self.outcome {
            CallOutcome::Done(value) => Some(value),
            _ => None,
        }
    }

    /// Whether it succeeded.
    pub fn is_done(&self) -> bool {
        self.done().is_some()
    }
}

/// The record of one thread.
#[derive(Debug, Default)]
pub struct CallRecorder {
    mount: usize,
    worker: usize,
    calls: Mutex<Vec<RecordedCall>>,
}

impl CallRecorder {
    /// An empty record of a thread that calls this mount.
    pub fn new(mount: usize, worker: usize) -> CallRecorder {
        CallRecorder { mount, worker, calls: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<RecordedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call, and records it.
    pub fn call(&self, handle: u32, act: CallAction, call: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
        self.calls(handle, &[act], || call().map(|value| vec![value])).map(|values| values[0])
    }

    /// Makes one call that does several things at once, such as reading two registers; records each of them.
    pub fn calls(
        &self,
        handle: u32,
        acts: &[CallAction],
        call: impl FnOnce() -> io::Result<Vec<u64>>,
    ) -> io::Result<Vec<u64>> {
        let (mount, worker) = (self.mount, self.worker);
        let first = {
            let mut calls = self.lock();
            let start = now();
            let begun = |act: &CallAction| {
                let (end, outcome) = (NEVER, CallOutcome::Pending);
                RecordedCall { mount, worker, handle, act: *act, start, end, outcome }
            };
            calls.extend(acts.iter().map(begun));
            calls.len() - acts.len()
        };
        let result = call();
        let end = now();
        for (index, call) in self.lock()[first..].iter_mut().enumerate() {
            call.end = end;
            call.outcome = match &result {
                Ok(values) => CallOutcome::Done(values[index]),
                Err(error) => CallOutcome::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
            };
        }
        result
    }

    /// Returns the calls so far.
    pub fn so_far(&self) -> Vec<RecordedCall> {
        self.lock().clone()
    }
}

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HistoryVerdict {
    /// The number of results that were checked.
    pub checked: u64,
    /// How long before the begin of a read its value had been overwritten at most. *Units*: nanoseconds.
    pub stale_ns_max: u64,
    /// What is wrong; the text says what and when.
    pub problems: Vec<String>,
}

impl HistoryVerdict {
    /// Adds the findings of another check.
    pub fn add(&mut self, other: HistoryVerdict) {
        self.checked += other.checked;
        self.stale_ns_max = self.stale_ns_max.max(other.stale_ns_max);
        self.problems.extend(other.problems);
    }

    /// Notes a read whose result had not been valid since this time.
    pub fn stale(&mut self, call: &RecordedCall, since: u64, what: &str) {
        let ns = call.start.saturating_sub(since).max(1);
        self.stale_ns_max = self.stale_ns_max.max(ns);
        self.problems.push(format!(
            "mount {}: {what}, {} ms old, read at {} ms",
            call.mount,
            milliseconds(ns),
            milliseconds(call.start)
        ));
    }
}

/// Nanoseconds as milliseconds for people.
pub fn milliseconds(ns: u64) -> String {
    match ns {
        NEVER => "never".to_owned(),
        _ => format!("{:.3}", ns as f64 / 1e6),
    }
}

/// Calls for the tests of the checks, whose times are milliseconds.
#[cfg(test)]
pub mod planted {
    use super::*;

    /// A call on a mount by a thread and a handle with the mount's number and 1 more.
    pub fn call(mount: usize, act: CallAction, from_ms: u64, to_ms: u64, outcome: CallOutcome) -> RecordedCall {
        let end = if to_ms == NEVER { NEVER } else { to_ms * 1_000_000 };
        RecordedCall { mount, worker: mount, handle: mount as u32 + 1, act, start: from_ms * 1_000_000, end, outcome }
    }

    /// A call that succeeded.
    pub fn done(mount: usize, act: CallAction, from_ms: u64, to_ms: u64, value: u64) -> RecordedCall {
        call(mount, act, from_ms, to_ms, CallOutcome::Done(value))
    }

    /// A call that failed because its session was ended.
    pub fn failed(mount: usize, act: CallAction, from_ms: u64, to_ms: u64) -> RecordedCall {
        call(mount, act, from_ms, to_ms, CallOutcome::Failed(libc::EIO))
    }
}
