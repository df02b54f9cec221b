//! When the parts of a URL were last purged because the origin has another body.
//!
//! Owns: that a change purges once. Every client that reads the old body meets the change, each at another part; the first
//! one purges the URL, and what the others would purge are the parts of the new body. All workers share this. Promises: what
//! is forgotten costs one more purge. Leaves to others: noticing the change (`joined_body`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The maximum number of URLs. When there are more, all are forgotten.
const URLS_MAX: usize = 1024;

/// The times of the last purges of URLs whose body has changed. *Units*: Unix milliseconds.
#[derive(Debug, Default)]
pub(crate) struct PartPurges(Mutex<HashMap<Vec<u8>, u64>>);

impl PartPurges {
    /// Whether a client whose request came at `asked_ms` must purge a URL at `now_ms`; the answer counts as the purge. It need
    /// not if the URL was purged since then: the parts that it began with are gone.
    pub fn begin(&self, key: &[u8], asked_ms: u64, now_ms: u64) -> bool {
        let mut purged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A purge in the future is one of before the clock was set back.
        if purged.get(key).is_some_and(|purged_ms| (asked_ms + 1..=now_ms).contains(purged_ms)) {
            return false;
        }
        if purged.len() >= URLS_MAX && !purged.contains_key(key) {
            purged.clear();
        }
        purged.insert(key.to_vec(), now_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_one_body_purge_once() {
        let purges = PartPurges::default();
        assert!(purges.begin(b"a", 100, 200));
        assert!(!purges.begin(b"a", 150, 250) && !purges.begin(b"a", 199, 900), "it was purged since they began");
        assert!(purges.begin(b"b", 150, 250), "another URL");
        assert!(purges.begin(b"a", 200, 300), "this one may have begun with what was stored after the purge");
        assert!(!purges.begin(b"a", 250, 310));
        assert!(purges.begin(b"a", 100, 150), "the clock was set back");
    }

    #[test]
    fn purged_urls_are_bounded() {
        let purges = PartPurges::default();
        for number in 0..=URLS_MAX {
            assert!(purges.begin(&number.to_le_bytes(), 1, 2));
        }
        assert_eq!(purges.0.lock().expect("no panic").len(), 1);
        assert!(purges.begin(&0_usize.to_le_bytes(), 1, 3), "what is forgotten is purged once more");
    }
}
