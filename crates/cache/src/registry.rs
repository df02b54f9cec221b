//! Makes policies by the names that users write in options and SPECs.
//!
//! Owns: the list of names. Leaves to others: parsing the options that contain the names.

use crate::detect::PeriodSink;
use crate::{
    Adaptive, ArcPolicy, Clock, Dear, Fifo, Gdsf, Lfu, Lhd, Lirs, Lru, Mru, Policy, S3Fifo, Sieve, TwoQ, WTinyLfu,
    WatchedPolicy,
};

/// Every name that [`by_name`] knows, in the order in which help texts list them.
pub const NAMES: &[&str] = &[
    "fifo", "lru", "mru", "lfu", "lfu-aged", "clock", "2q", "arc", "lirs", "s3fifo", "sieve", "wtinylfu", "gdsf",
    "lhd", "dear", "adaptive",
];

/// Makes the policy called `name`; `None` if no policy has that name.
///
/// MIN has no name here, because its constructor needs the future ([`Min::new`](crate::Min::new)).
pub fn by_name(name: &str, capacity: u64) -> Option<Box<dyn Policy>> {
    let policy: Box<dyn Policy> = match name {
        "fifo" => Box::new(Fifo::new(capacity)),
        "lru" => Box::new(Lru::new(capacity)),
        "mru" => Box::new(Mru::new(capacity)),
        "lfu" => Box::new(Lfu::new(capacity)),
        "lfu-aged" => Box::new(Lfu::aged(capacity)),
        "clock" => Box::new(Clock::new(capacity)),
        "2q" => Box::new(TwoQ::new(capacity)),
        "arc" => Box::new(ArcPolicy::new(capacity)),
        "lirs" => Box::new(Lirs::new(capacity)),
        "s3fifo" => Box::new(S3Fifo::new(capacity)),
        "sieve" => Box::new(Sieve::new(capacity)),
        "wtinylfu" => Box::new(WTinyLfu::new(capacity)),
        "gdsf" => Box::new(Gdsf::new(capacity)),
        "lhd" => Box::new(Lhd::new(capacity)),
        "dear" => Box::new(Dear::new(capacity)),
        "adaptive" => Box::new(Adaptive::new(capacity)),
        _ => return None,
    };
    Some(policy)
}

/// Makes the policy called `name`; if it detects patterns, it reports each period of each stream to `sink`.
pub fn explaining(name: &str, capacity: u64, sink: PeriodSink) -> Option<Box<dyn Policy>> {
    match name {
        "dear" => {
            let mut policy = Dear::new(capacity);
            policy.explain_to(sink);
            Some(Box::new(policy))
        }
        "adaptive" => Some(Box::new(WatchedPolicy::periods(Box::new(Adaptive::new(capacity)), sink))),
        _ => by_name(name, capacity),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_makes_policy() {
        for name in NAMES {
            let policy = by_name(name, 7).expect("listed");
            assert_eq!(policy.name(), *name);
            assert_eq!(policy.capacity(), 7);
        }
        assert!(by_name("unknown", 7).is_none());
    }
}
