//! The conformance test: it checks that a device or filter keeps the contract of [`BlockDevice`](crate::BlockDevice).
//!
//! Owns: [`check`], which tries on fresh devices every clause of the contract that can be seen from outside,
//! [`check_durability`], which needs a caller that can crash a device, and [`check_wrapper`], for devices on top of
//! another one. All return the first broken clause, so that tests can show that a bad device is caught.
//! [`VolatileDevice`] is a device that crashes on demand, for tests of filters.
//!
//! Leaves to others: faults of hardware (`nectary-sim`), speed (`nectary-bench`).

mod contents;
mod durability;
mod requests;
mod volatile;
mod wrapper;

#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;

pub use self::volatile::VolatileDevice;
use crate::device::{DeviceGeometry, SharedDevice};
use crate::error::Error;

/// The size of the devices under test. *Units*: bytes.
pub const DEVICE_BYTES: u64 = 4 << 20;

/// A broken clause, and the way in which the device broke it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConformanceFailure {
    /// The name of the clause.
    pub clause: &'static str,
    /// The expected and the found result.
    pub detail: String,
    /// The seed of the random choices.
    pub seed: u64,
}

impl fmt::Display for ConformanceFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (seed {})", self.clause, self.detail, self.seed)
    }
}

impl std::error::Error for ConformanceFailure {}

/// The result of the check of one clause: `Ok`, or a text about the violation.
type Verdict = Result<(), String>;

type Clause = fn(SharedDevice, ConformanceRandom) -> Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// The clauses that need only a fresh device.
const CLAUSES: &[(&str, Clause)] = &[
    ("geometry is sound", |device, _| Box::pin(requests::geometry(device))),
    ("the name is a SPEC", |device, _| Box::pin(requests::name(device))),
    ("a new device reads as zeroes", |device, _| Box::pin(contents::zeroes_at_first(device))),
    ("reads give what was written", |device, random| Box::pin(contents::model(device, random))),
    ("buffers come back", |device, _| Box::pin(contents::buffers_come_back(device))),
    ("empty operations succeed", |device, _| Box::pin(requests::empty(device))),
    ("misaligned requests are refused", |device, _| Box::pin(requests::misaligned(device))),
    ("requests outside the device are refused", |device, _| Box::pin(requests::outside(device))),
    ("too many buffers are refused", |device, _| Box::pin(requests::too_many_buffers(device))),
    ("a passed deadline is a time-out", |device, _| Box::pin(requests::deadline(device))),
    ("completed operations are seen by later ones", |device, random| Box::pin(contents::concurrent(device, random))),
    ("dropped futures do no harm", |device, random| Box::pin(contents::dropped(device, random))),
    ("zeroed ranges read as zeroes", |device, _| Box::pin(contents::zeroed(device))),
    ("quickly zeroed ranges read as zeroes, or nothing happened", |device, _| {
        Box::pin(contents::zeroed_quickly(device))
    }),
    ("discarded ranges read as before or as zeroes", |device, _| Box::pin(contents::discarded(device))),
    ("allocation covers the range", |device, _| Box::pin(requests::allocation(device))),
    ("growth keeps and adds", |device, _| Box::pin(contents::growth(device))),
    ("the use ends once, and may end again", |device, _| Box::pin(requests::closed(device))),
];

/// Checks the contract on fresh devices of [`DEVICE_BYTES`] made by `make`, with a fixed seed.
///
/// *Errors*: the first clause that is broken. `Ok` has the number of clauses that were tried.
pub async fn check<M, F>(make: M) -> Result<usize, ConformanceFailure>
where
    M: Fn(u64) -> F,
    F: Future<Output = SharedDevice>,
{
    check_seeded(make, 1).await
}

/// As [`check`], with a given seed.
pub async fn check_seeded<M, F>(make: M, seed: u64) -> Result<usize, ConformanceFailure>
where
    M: Fn(u64) -> F,
    F: Future<Output = SharedDevice>,
{
    for &(clause, run) in CLAUSES {
        let device = make(DEVICE_BYTES).await;
        run(device, ConformanceRandom(seed)).await.map_err(|detail| ConformanceFailure { clause, detail, seed })?;
    }
    Ok(CLAUSES.len())
}

/// Tests the promises of a device about crashes.
///
/// `make` returns a fresh device. `crash` ends a device, drops all writes that the device may lose according to its
/// `flush_survives`, and returns the device as it is after the crash.
///
/// *Errors*: the first clause that is broken. `Ok` has the number of clauses that were tried.
pub async fn check_durability<M, F, C, G>(make: M, crash: C) -> Result<usize, ConformanceFailure>
where
    M: Fn(u64) -> F,
    F: Future<Output = SharedDevice>,
    C: Fn(SharedDevice) -> G,
    G: Future<Output = SharedDevice>,
{
    for clause in durability::CLAUSES {
        let fail = |detail| ConformanceFailure { clause: clause.name, detail, seed: 0 };
        let device = make(DEVICE_BYTES).await;
        (clause.before)(device.clone()).await.map_err(fail)?;
        let device = crash(device).await;
        (clause.after)(device).await.map_err(fail)?;
    }
    Ok(durability::CLAUSES.len())
}

/// Tests a device on top of another one: it has to pass the end of its use on. `wrap` puts the device under test on
/// the given one, which has [`DEVICE_BYTES`].
///
/// *Errors*: the first clause that is broken. `Ok` has the number of clauses that were tried.
pub async fn check_wrapper<W, F>(wrap: W) -> Result<usize, ConformanceFailure>
where
    W: Fn(SharedDevice) -> F,
    F: Future<Output = SharedDevice>,
{
    for &(clause, is_failing, run) in wrapper::CLAUSES {
        let below = wrapper::CloseCountingDevice::new(DEVICE_BYTES, is_failing);
        let device = wrap(below.clone() as SharedDevice).await;
        run(device, below).await.map_err(|detail| ConformanceFailure { clause, detail, seed: 0 })?;
    }
    Ok(wrapper::CLAUSES.len())
}

/// A random generator that repeats its numbers for the same seed (a short SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct ConformanceRandom(pub u64);

impl ConformanceRandom {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value ^ (value >> 27)
    }

    /// A random number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// Fails with `words` unless the condition `holds` is true.
fn ensure(holds: bool, words: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(words()) }
}

/// Converts the result of an operation that must succeed: an error becomes a violation.
fn succeed<T>(result: Result<T, Error>, what: &str) -> Result<T, String> {
    result.map_err(|error| format!("{what} failed: {error}"))
}

fn block(geometry: &DeviceGeometry) -> u64 {
    u64::from(geometry.block_bytes)
}
