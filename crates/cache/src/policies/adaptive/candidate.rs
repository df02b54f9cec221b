//! The candidates: the policies that may lead.
//!
//! Owns: how they are made and copied. Leaves to others: everything else; this file knows none of the others here.

use crate::{Lirs, Lru, Policy, S3Fifo, WTinyLfu};

/// What a division between streams is called.
pub(super) const DIVIDED: &str = "partition";

/// By slot of a stream: its share, and its policy.
pub(super) type Plan = [(u64, &'static str)];

/// A policy that can be copied with all that it knows.
pub(super) trait Candidate: Policy {
    /// The same again.
    fn copy(&self) -> Box<dyn Candidate>;

    /// Gives streams shares of 2^`shift` times what the plan says, where it is divided.
    fn follow(&mut self, _plan: &Plan, _shift: u32, _evict: &mut dyn FnMut(u64) -> bool) {}
}

macro_rules! candidates {
    ($($policy:ty),*) => {
        $(impl Candidate for $policy {
            fn copy(&self) -> Box<dyn Candidate> {
                Box::new(self.clone())
            }
        })*
    };
}

candidates!(Lirs, Lru, S3Fifo, WTinyLfu);

/// An empty cache of a candidate.
pub(super) fn candidate(name: &str, capacity: u64) -> Box<dyn Candidate> {
    match name {
        "lru" => Box::new(Lru::new(capacity)),
        "s3fifo" => Box::new(S3Fifo::new(capacity)),
        "wtinylfu" => Box::new(WTinyLfu::new(capacity)),
        _ => Box::new(Lirs::new(capacity)),
    }
}
