//! Which URLs were purged because the origin has another body than their parts are of.
//!
//! Owns: that a change purges once. Every client that reads the old body meets the change, each at another part; the first
//! one purges the URL, and what the others would purge are the parts of the new body. All workers share this. Purges are
//! numbered, because the clocks of workers differ a little and two events may have the same time. Promises: what is forgotten
//! costs one more purge. Leaves to others: noticing the change (`joined_body`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of URLs, and of the bytes of their keys. When there are more, all are forgotten.
const URLS_MAX: usize = 1024;
const KEY_BYTES_MAX: usize = 256 << 10;

/// The last purges of URLs whose body has changed.
#[derive(Debug, Default)]
pub(crate) struct PartPurges(Mutex<PurgedParts>);

#[derive(Debug, Default)]
struct PurgedParts {
    /// The number of the last purge.
    last: u64,
    /// The number of the last purge of each URL.
    urls: HashMap<Vec<u8>, u64>,
    key_bytes: usize,
}

impl PartPurges {
    /// The number of the last purge. A request that begins now knows of that one and those before.
    pub fn last(&self) -> u64 {
        self.purged().last
    }

    /// Whether a client whose request began when `known` was the [last](Self::last) purge must purge a URL; the answer counts
    /// as the purge. It need not if the URL was purged since then: the parts that it began with are gone.
    pub fn begin(&self, key: &[u8], known: u64) -> bool {
        let mut purged = self.purged();
        if purged.urls.get(key).is_some_and(|number| *number > known) {
            return false;
        }
        purged.note(key);
        true
    }

    /// Records that a purge that has begun is done: requests that began meanwhile may have found the old parts.
    pub fn end(&self, key: &[u8]) {
        self.purged().note(key);
    }

    fn purged(&self) -> MutexGuard<'_, PurgedParts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PurgedParts {
    fn note(&mut self, key: &[u8]) {
        self.last += 1;
        if let Some(number) = self.urls.get_mut(key) {
            *number = self.last;
            return;
        }
        if self.urls.len() >= URLS_MAX || self.key_bytes + key.len() > KEY_BYTES_MAX {
            self.urls = HashMap::new();
            self.key_bytes = 0;
        }
        if key.len() <= KEY_BYTES_MAX {
            self.key_bytes += key.len();
            self.urls.insert(key.to_vec(), self.last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_of_one_body_purge_once() {
        let purges = PartPurges::default();
        let known = purges.last();
        assert!(purges.begin(b"a", known) && !purges.begin(b"a", known), "two that find it at the same moment");
        assert!(purges.begin(b"b", known), "another URL");
        let meanwhile = purges.last();
        purges.end(b"a");
        assert!(!purges.begin(b"a", meanwhile), "it may have begun with old parts");
        assert!(purges.begin(b"a", purges.last()), "this one has begun with what was stored after the purge");
    }

    #[test]
    fn purged_urls_are_bounded() {
        let purges = PartPurges::default();
        for number in 0..=URLS_MAX {
            assert!(purges.begin(&number.to_le_bytes(), 0));
        }
        assert_eq!(purges.purged().urls.len(), 1);
        assert!(purges.begin(&0_usize.to_le_bytes(), 0), "what is forgotten is purged once more");
    }

    #[test]
    fn purged_keys_have_bounded_bytes() {
        let purges = PartPurges::default();
        for number in 0..20 {
            assert!(purges.begin(&vec![number; KEY_BYTES_MAX / 8], 0));
            let purged = purges.purged();
            let bytes: usize = purged.urls.keys().map(Vec::len).sum();
            assert!(bytes <= KEY_BYTES_MAX && bytes == purged.key_bytes, "{bytes}");
        }
        let long = vec![b'x'; KEY_BYTES_MAX + 1];
        assert!(purges.begin(&long, 0) && purges.purged().urls.is_empty());
    }
}
