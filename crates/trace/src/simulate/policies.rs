//! The policies that a simulation knows, in the order in which every table has them.
//!
//! Owns: this order, and MIN, which needs to know the future and so is not in the registry of policies. Leaves to
//! others: all other names (`nectary_cache::by_name`).

use nectary_cache::detect::PeriodEvent;
use nectary_cache::{Dear, Min, Policy, PolicyEvent, WatchedPolicy};

use super::said::{PeriodFindings, PolicyReport};
use super::sizes::CapacityUnit;
use super::workload::TraceWorkload;

/// All policies except variants, in the order in which every table has them. A variant is a policy that is a form of
/// another one, such as `lfu-aged`.
const ORDER: [&str; 14] =
    ["fifo", "lru", "mru", "lfu", "clock", "2q", "arc", "lirs", "s3fifo", "sieve", "wtinylfu", MIN, "dear", "adaptive"];

/// The size of a block of a cache whose size is given in blocks. *Units*: bytes.
const BLOCK_BYTES: u64 = 8192;

/// The offline optimum.
pub const MIN: &str = "min";

/// The names of all policies, in the order in which every table has them; variants come last.
pub fn names() -> Vec<&'static str> {
    let variants = nectary_cache::NAMES.iter().copied().filter(|name| !ORDER.contains(name));
    all().into_iter().chain(variants).collect()
}

/// The policies that the name `all` stands for: all except variants, in the order in which every table has them.
pub fn all() -> Vec<&'static str> {
    ORDER.into_iter().filter(|name| *name == MIN || nectary_cache::NAMES.contains(name)).collect()
}

/// The position of a policy, from 0, in the order in which every table has them; variants have the position after the
/// last.
pub fn order(name: &str) -> usize {
    ORDER.iter().position(|known| *known == name).unwrap_or(ORDER.len())
}

/// Makes the policy called `name` for a run over `workload`; `None` if there is no such policy.
pub fn make(name: &str, capacity: u64, workload: &TraceWorkload) -> Option<Box<dyn Policy>> {
    if name == MIN {
        return Some(Box::new(Min::new(capacity, workload.future()?)));
    }
    nectary_cache::by_name(name, capacity)
}

/// Whether a policy can report its findings during a run: all can except MIN.
pub fn explains(name: &str) -> bool {
    name != MIN
}

/// Makes a policy of `capacity` units that calls `sink` with each report: `dear` with its own reports, all others with those of
/// [`WatchedPolicy`]. *Returns* `None` if no policy of that name makes reports.
pub fn make_explaining(
    name: &str,
    capacity: u64,
    unit: CapacityUnit,
    mut sink: Box<dyn FnMut(PolicyReport) + Send>,
) -> Option<Box<dyn Policy>> {
    match name {
        "dear" => {
            let mut policy = Dear::new(capacity);
            policy.explain_to(Box::new(move |event| sink(said(event.to_string(), Some(event)))));
            Some(Box::new(policy))
        }
        _ => {
            let tell = Box::new(move |event: PolicyEvent<'_>| {
                let period = match event {
                    PolicyEvent::Period(period) => Some(period.period),
                    _ => None,
                };
                sink(said(event.to_string(), period));
            });
            Some(Box::new(WatchedPolicy::new(nectary_cache::by_name(name, capacity)?, block_bytes(unit), tell)))
        }
    }
}

/// The size of a block, for the memory of an LRU with which a policy is compared. In a cache measured in bytes, tables
/// are not counted, so the LRU has the same size. *Units*: bytes.
fn block_bytes(unit: CapacityUnit) -> u64 {
    match unit {
        CapacityUnit::Blocks => BLOCK_BYTES,
        CapacityUnit::Bytes => u64::MAX,
    }
}

fn said(line: String, event: Option<PeriodEvent<'_>>) -> PolicyReport {
    let period = event.map(|PeriodEvent { stream, report, replacement }| PeriodFindings {
        stream,
        report: *report,
        replacement,
    });
    PolicyReport { line, period }
}
