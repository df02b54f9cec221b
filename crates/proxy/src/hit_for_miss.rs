//! Requests whose responses were recently found not to be storable.
//!
//! Owns: a limited memory of the URLs, and of that part of the requests on which the reason depends, so that one
//! client's requests do not keep another's response out of the store. Later requests of this kind go to the origin in
//! parallel instead of waiting for each other. Forgetting a request, or mistaking it for another with the same hash,
//! costs only a little speed.

use std::hash::{BuildHasher, RandomState};

use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION};

use crate::rules::vary::push_variant;

/// The maximum number of requests that are remembered at the same time.
const SLOTS: usize = 4096;
/// The time for which a request is remembered, in milliseconds.
const REMEMBERED_MS: u64 = 30_000;

/// Why a response could not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HitForMissReason {
    /// The response itself: it concerns every request for the URL.
    Response,
    /// The request had `Authorization`: it concerns only such requests.
    Authorization,
    /// The response was too long: it concerns requests that accept the same encodings, because only their responses are
    /// as long.
    Size,
    /// The response was too long for this node and for the one that owns it, so no node keeps it.
    NoNode,
    /// The origin gave no part of it that could be stored. The whole may still be stored, so this is looked up apart from
    /// the other reasons.
    NoParts,
}

/// The requests that one worker remembers.
#[derive(Debug)]
pub(crate) struct HitForMiss {
    hasher: RandomState,
    /// A hash, and the time until which it is remembered, in Unix milliseconds.
    slots: Box<[(u64, u64)]>,
}

impl HitForMiss {
    /// Starts without requests.
    pub fn new() -> HitForMiss {
        HitForMiss { hasher: RandomState::new(), slots: vec![(0, 0); SLOTS].into() }
    }

    /// Remembers that the response to a request for `key` could not be stored.
    pub fn insert(&mut self, key: &[u8], headers: &HeaderMap, reason: HitForMissReason, now_ms: u64) {
        let hash = self.hash(key, headers, reason);
        self.slots[hash as usize % SLOTS] = (hash, now_ms + REMEMBERED_MS);
    }

    /// Forgets such requests, whatever the reason: the response was storable.
    pub fn remove(&mut self, key: &[u8], headers: &HeaderMap) {
        for reason in reasons(headers) {
            let hash = self.hash(key, headers, reason);
            let slot = &mut self.slots[hash as usize % SLOTS];
            if slot.0 == hash {
                slot.1 = 0;
            }
        }
    }

    /// Whether such a request is remembered.
    pub fn contains(&self, key: &[u8], headers: &HeaderMap, now_ms: u64) -> bool {
        reasons(headers).any(|reason| self.has(key, headers, reason, now_ms))
    }

    /// Whether recently the response to such a request could be stored by no node of the fleet either.
    pub fn is_of_no_node(&self, key: &[u8], headers: &HeaderMap, now_ms: u64) -> bool {
        let reasons = reasons(headers).filter(|reason| *reason != HitForMissReason::Size);
        reasons.chain([HitForMissReason::NoNode]).any(|reason| self.has(key, headers, reason, now_ms))
    }

    /// Whether the response to such a request was recently too long for this node.
    pub fn is_too_long(&self, key: &[u8], headers: &HeaderMap, now_ms: u64) -> bool {
        self.has(key, headers, HitForMissReason::Size, now_ms)
    }

    /// Whether the origin recently gave no part of the response to such a request.
    pub fn has_no_parts(&self, key: &[u8], headers: &HeaderMap, now_ms: u64) -> bool {
        self.has(key, headers, HitForMissReason::NoParts, now_ms)
    }

    fn has(&self, key: &[u8], headers: &HeaderMap, reason: HitForMissReason, now_ms: u64) -> bool {
        let hash = self.hash(key, headers, reason);
        let (found, until_ms) = self.slots[hash as usize % SLOTS];
        found == hash && now_ms < until_ms
    }

    fn hash(&self, key: &[u8], headers: &HeaderMap, reason: HitForMissReason) -> u64 {
        let mut encodings = Vec::new();
        if matches!(reason, HitForMissReason::Size | HitForMissReason::NoNode | HitForMissReason::NoParts) {
            push_variant(&mut encodings, &[ACCEPT_ENCODING], headers);
        }
        self.hasher.hash_one((key, reason, encodings))
    }
}

/// The reasons that may concern a request.
fn reasons(headers: &HeaderMap) -> impl Iterator<Item = HitForMissReason> {
    let authorization = headers.contains_key(AUTHORIZATION).then_some(HitForMissReason::Authorization);
    [Some(HitForMissReason::Response), authorization, Some(HitForMissReason::Size)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn requests_are_remembered_for_a_while() {
        let (mut keys, any) = (HitForMiss::new(), HeaderMap::new());
        assert!(!keys.contains(b"a", &any, 0));
        keys.insert(b"a", &any, HitForMissReason::Response, 1000);
        assert!(keys.contains(b"a", &any, 1000 + REMEMBERED_MS - 1));
        assert!(!keys.contains(b"a", &any, 1000 + REMEMBERED_MS));
        keys.insert(b"a", &any, HitForMissReason::Response, 1000);
        keys.remove(b"a", &any);
        assert!(!keys.contains(b"a", &any, 1000));
    }

    #[test]
    fn reason_needs_matching_request() {
        let plain = headers(&[("accept-encoding", "gzip")]);
        let identity = headers(&[("accept-encoding", "identity")]);
        let authorized = headers(&[("accept-encoding", "gzip"), ("authorization", "x")]);
        let remembered = |reason, by: &HeaderMap| {
            let mut keys = HitForMiss::new();
            keys.insert(b"a", by, reason, 0);
            [&plain, &identity, &authorized].map(|headers| keys.contains(b"a", headers, 1))
        };
        assert_eq!(remembered(HitForMissReason::Response, &authorized), [true, true, true]);
        assert_eq!(remembered(HitForMissReason::Authorization, &authorized), [false, false, true]);
        assert_eq!(remembered(HitForMissReason::Size, &identity), [false, true, false]);
        assert_eq!(remembered(HitForMissReason::Size, &authorized), [true, false, true]);
    }

    #[test]
    fn no_parts_mark_spares_whole_response() {
        let (mut keys, any) = (HitForMiss::new(), HeaderMap::new());
        keys.insert(b"a", &any, HitForMissReason::NoParts, 0);
        assert!(keys.has_no_parts(b"a", &any, 1) && !keys.contains(b"a", &any, 1));
        keys.remove(b"a", &any);
        assert!(keys.has_no_parts(b"a", &any, 1) && !keys.has_no_parts(b"b", &any, 1));
        assert!(!keys.has_no_parts(b"a", &any, REMEMBERED_MS));
    }

    #[test]
    fn hit_for_miss_size_is_fixed() {
        let (mut keys, any) = (HitForMiss::new(), HeaderMap::new());
        (0..10 * SLOTS).for_each(|key| keys.insert(&key.to_le_bytes(), &any, HitForMissReason::Response, 0));
        let remembered = (0..10 * SLOTS).filter(|key| keys.contains(&key.to_le_bytes(), &any, 1)).count();
        assert!(remembered <= SLOTS && remembered > SLOTS / 2);
    }
}
