//! The candidates: the policies that may lead.
//!
//! Owns: how they are made. Leaves to others: everything else; this file knows none of the others here.

use crate::{Lirs, Lru, Policy, S3Fifo, WTinyLfu};

/// What a division between streams is called.
pub(super) const DIVIDED: &str = "partition";

/// An empty cache of a candidate.
pub(super) fn candidate(name: &str, capacity: u64) -> Box<dyn Policy> {
    match name {
        "lru" => Box::new(Lru::new(capacity)),
        "s3fifo" => Box::new(S3Fifo::new(capacity)),
        "wtinylfu" => Box::new(WTinyLfu::new(capacity)),
        _ => Box::new(Lirs::new(capacity)),
    }
}
