//! Which URLs were purged because the origin has another body than their parts are of, and which bodies it no longer has.
//!
//! Owns: that a change purges once. Every client that reads the old body meets the change, each at another part; the first
//! one purges the URL, and what the others would purge are the parts of the new body. All workers share this. Purges are
//! numbered, because the clocks of workers differ a little and two events may have the same time.
//!
//! A node of a fleet whose part is of another body than the owner's purges what it has itself. The owner is not to lose its
//! newer parts by that, but may have others of the old body, too: it notes the validator of the body that the origin no
//! longer has, of one body for each URL, and validates what it finds of that (`body_verdict`).
//!
//! Promises: what is forgotten costs one more purge, or one more body that is cut off. Leaves to others: noticing the change
//! (`joined_body`, `body_verdict`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use http::HeaderValue;
use xxhash_rust::xxh3::xxh3_64;

/// The maximum number of URLs, and of the bytes of their keys. When there are more, all are forgotten.
const URLS_MAX: usize = 1024;
const KEY_BYTES_MAX: usize = 256 << 10;

/// The last changes of URLs whose body has changed.
#[derive(Debug, Default)]
pub(crate) struct PartPurges(Mutex<PurgedParts>);

#[derive(Debug, Default)]
struct PurgedParts {
    /// The number of the last purge.
    last: u64,
    urls: HashMap<Vec<u8>, BodyChange>,
    key_bytes: usize,
}

/// What is known of the change of a URL's body.
#[derive(Debug, Default)]
struct BodyChange {
    /// The number of its last purge; 0 if there was none.
    purge: u64,
    /// The hash of the validator of a body that the origin no longer has.
    gone: Option<u64>,
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
        if purged.urls.get(key).is_some_and(|change| change.purge > known) {
            return false;
        }
        purged.note(key);
        true
    }

    /// Records that a purge that has begun is done: requests that began meanwhile may have found the old parts.
    pub fn end(&self, key: &[u8]) {
        self.purged().note(key);
    }

    /// Notes that the origin no longer has the body of a URL that has this validator.
    pub fn note_gone(&self, key: &[u8], validator: &HeaderValue) {
        if let Some(change) = self.purged().change(key) {
            change.gone = Some(xxh3_64(validator.as_bytes()));
        }
    }

    /// Notes that the origin has the body of a URL that has this validator, perhaps again.
    pub fn note_present(&self, key: &[u8], validator: &HeaderValue) {
        let hash = xxh3_64(validator.as_bytes());
        if let Some(change) = self.purged().urls.get_mut(key)
            && change.gone == Some(hash)
        {
            change.gone = None;
        }
    }

    /// Whether a body of a URL is known that the origin no longer has.
    pub fn knows_gone(&self, key: &[u8]) -> bool {
        self.purged().urls.get(key).is_some_and(|change| change.gone.is_some())
    }

    /// Whether the origin is known to have no longer the body of a URL that has this validator.
    pub fn is_gone(&self, key: &[u8], validator: &HeaderValue) -> bool {
        let hash = xxh3_64(validator.as_bytes());
        self.purged().urls.get(key).is_some_and(|change| change.gone == Some(hash))
    }

    fn purged(&self) -> MutexGuard<'_, PurgedParts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PurgedParts {
    fn note(&mut self, key: &[u8]) {
        self.last += 1;
        let number = self.last;
        if let Some(change) = self.change(key) {
            change.purge = number;
        }
    }

    /// The entry of a URL; `None` if its key is too long for one.
    fn change(&mut self, key: &[u8]) -> Option<&mut BodyChange> {
        if !self.urls.contains_key(key) {
            if self.urls.len() >= URLS_MAX || self.key_bytes + key.len() > KEY_BYTES_MAX {
                self.urls = HashMap::new();
                self.key_bytes = 0;
            }
            if key.len() > KEY_BYTES_MAX {
                return None;
            }
            self.key_bytes += key.len();
            self.urls.insert(key.to_vec(), BodyChange::default());
        }
        self.urls.get_mut(key)
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
    fn gone_bodies_are_known_until_confirmed() {
        let (purges, old, new) =
            (PartPurges::default(), HeaderValue::from_static("\"old\""), HeaderValue::from_static("\"new\""));
        assert!(!purges.knows_gone(b"a"));
        purges.note_gone(b"a", &old);
        assert!(purges.knows_gone(b"a") && purges.is_gone(b"a", &old) && !purges.is_gone(b"a", &new));
        assert!(!purges.knows_gone(b"b") && purges.begin(b"a", 0), "it is no purge");
        assert!(purges.is_gone(b"a", &old), "a purge may have missed what is under way");
        purges.note_present(b"a", &new);
        assert!(purges.is_gone(b"a", &old));
        purges.note_present(b"a", &old);
        assert!(!purges.knows_gone(b"a"));
        purges.note_gone(&vec![b'x'; KEY_BYTES_MAX + 1], &old);
        assert!(purges.purged().urls.is_empty(), "such a key is not kept");
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
