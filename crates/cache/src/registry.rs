//! The policies by the names that users write in options and SPECs.
//!
//! Owns: the list of names. Leaves to others: parsing of the options around them.

use crate::{Dear, Lru, Policy, S3Fifo};

/// Every name that [`by_name`] knows, in the order in which help texts list them.
pub const NAMES: &[&str] = &["lru", "s3fifo", "dear"];

/// Makes the policy called `name`; `None` where there is none of that name.
pub fn by_name(name: &str, capacity: u64) -> Option<Box<dyn Policy>> {
    match name {
        "lru" => Some(Box::new(Lru::new(capacity))),
        "s3fifo" => Some(Box::new(S3Fifo::new(capacity))),
        "dear" => Some(Box::new(Dear::new(capacity))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_makes_the_policy_of_that_name() {
        for name in NAMES {
            let policy = by_name(name, 7).expect("listed");
            assert_eq!(policy.name(), *name);
            assert_eq!(policy.capacity(), 7);
        }
        assert!(by_name("unknown", 7).is_none());
    }
}
