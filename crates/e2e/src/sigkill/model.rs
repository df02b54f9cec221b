//! What one key may answer, by what its owner has seen: the oracle of the SIGKILL rounds.
//!
//! A key is used by one client at a time, so its history is a sequence. The rules:
//! 1. An object counts as stored once a later request was answered as a hit with it.
//! 2. A poll that *began* after that hit and showed `last = L` proves that the object's sequence is at most L.
//! 3. After a kill, with `written = W` read just before it, the newest stored version with L <= W must hit, or a newer one.
//! 4. While the process lives, nothing older than a version that was a hit may answer; after a kill an older one may, where
//!    rule 3 does not forbid it.
//! 5. Once a purge has returned, what was fetched before it never answers again, and the next request must miss.
//!
//! Pure: no clock, no I/O.

use std::time::Instant;

/// What is known about when a stored version was put.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Proof {
    /// Seen as a hit at this time; no poll since.
    Hit(Instant),
    /// It is on the device: it was found there after a restart.
    Written,
}

/// A poll of the sequences.
#[derive(Clone, Copy, Debug)]
pub struct Poll {
    /// When the question was sent.
    pub began: Instant,
    /// The highest sequence that it showed.
    pub last: u64,
}

/// What a restart must show for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// It must be a hit.
    pub must_hit: bool,
    /// It must not be a hit.
    pub must_miss: bool,
    /// The oldest version that may answer.
    pub version_min: u64,
}

/// How an answer compares with the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it must be.
    Right,
    /// It had to be a hit and was not.
    Missing,
    /// It was purged and is a hit.
    Resurrected,
    /// A version that may not answer.
    Stale {
        /// What answered.
        found: u64,
        /// The oldest that may.
        expected_min: u64,
    },
}

/// The history of one key, as far as it matters.
#[derive(Clone, Debug)]
pub struct KeyModel {
    /// What is asked for.
    pub target: String,
    stored: Vec<(u64, Proof)>,
    version_min_alive: u64,
    version_min_ever: u64,
    purged: bool,
}

impl KeyModel {
    /// A key that nobody has asked for.
    pub fn new(target: String) -> Self {
        Self { target, stored: Vec::new(), version_min_alive: 1, version_min_ever: 1, purged: false }
    }

    /// True where a hit was seen and no purge was sent since.
    pub fn is_stored(&self) -> bool {
        !self.stored.is_empty()
    }

    /// True where a purge has returned and nothing was asked for since.
    pub fn is_purged(&self) -> bool {
        self.purged
    }

    /// What the next answer must be while the process lives; call before the request is sent, since from then on a purged
    /// key may be stored again.
    pub fn asked(&mut self) -> Expectation {
        let must_miss = std::mem::take(&mut self.purged);
        Expectation { must_hit: false, must_miss, version_min: self.version_min_alive }
    }

    /// A whole answer came at `at`.
    pub fn answered(&mut self, version: u64, hit: bool, at: Instant) {
        if !hit {
            return;
        }
        self.version_min_alive = self.version_min_alive.max(version);
        if self.stored.last().is_none_or(|(newest, _)| *newest < version) {
            self.stored.push((version, Proof::Hit(at)));
        }
    }

    /// A purge is about to be sent.
    pub fn purge_sent(&mut self) {
        self.stored.clear();
        self.purged = false;
    }

    /// The purge has returned; the origin serves `version_now`.
    pub fn purge_returned(&mut self, version_now: u64) {
        self.version_min_alive = version_now;
        self.version_min_ever = version_now;
        self.purged = true;
    }

    /// What must hold after a kill at which `written` was the written sequence.
    pub fn after_kill(&self, written: u64, polls: &[Poll]) -> Expectation {
        let proven = self.stored.iter().rev().find(|(_, proof)| match proof {
            Proof::Written => true,
            Proof::Hit(at) => polls.iter().find(|poll| poll.began > *at).is_some_and(|poll| poll.last <= written),
        });
        Expectation {
            must_hit: proven.is_some(),
            must_miss: self.purged,
            version_min: proven.map_or(self.version_min_ever, |(version, _)| *version),
        }
    }

    /// What must hold after a clean stop: everything that was ever stored.
    pub fn after_stop(&self) -> Expectation {
        let newest = self.stored.last().map(|(version, _)| *version);
        let version_min = newest.unwrap_or(self.version_min_ever);
        Expectation { must_hit: newest.is_some(), must_miss: self.purged, version_min }
    }

    /// The first answer after a restart: what the device holds is known again.
    pub fn restarted(&mut self, version: u64, hit: bool) {
        self.purged = false;
        self.stored.clear();
        if hit {
            self.stored.push((version, Proof::Written));
            self.version_min_ever = version;
        }
        self.version_min_alive = self.version_min_ever;
    }
}

/// Compares an answer with what it must be. A miss is answered by the origin, so its version is judged as well.
pub fn judge(expected: Expectation, version: u64, hit: bool) -> Verdict {
    if hit && expected.must_miss {
        return Verdict::Resurrected;
    }
    if version < expected.version_min {
        return Verdict::Stale { found: version, expected_min: expected.version_min };
    }
    if !hit && expected.must_hit { Verdict::Missing } else { Verdict::Right }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn stored(version: u64, at: Instant) -> KeyModel {
        let mut key = KeyModel::new("/k".to_owned());
        key.asked();
        key.answered(version, false, at);
        key.asked();
        key.answered(version, true, at);
        key
    }

    #[test]
    fn only_what_a_poll_proved_must_hit() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let key = stored(1, at(10));
        let polls = [Poll { began: at(5), last: 1 }, Poll { began: at(20), last: 7 }];
        assert!(key.after_kill(7, &polls).must_hit);
        assert!(!key.after_kill(6, &polls).must_hit);
        assert!(!key.after_kill(7, &polls[..1]).must_hit, "the poll began before the hit");
        assert_eq!(judge(key.after_kill(7, &polls), 1, false), Verdict::Missing);
        assert_eq!(judge(key.after_kill(7, &polls), 1, true), Verdict::Right);
    }

    #[test]
    fn a_replaced_version_may_return_only_where_the_new_one_was_not_written() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut key = stored(1, at(10));
        key.answered(2, true, at(30));
        assert_eq!(judge(key.asked(), 1, true), Verdict::Stale { found: 1, expected_min: 2 });
        let polls = [Poll { began: at(20), last: 5 }, Poll { began: at(40), last: 9 }];
        assert_eq!(key.after_kill(5, &polls), Expectation { must_hit: true, must_miss: false, version_min: 1 });
        assert_eq!(key.after_kill(9, &polls).version_min, 2);
    }

    #[test]
    fn a_purge_that_returned_forbids_what_was_before_it_forever() {
        let start = Instant::now();
        let mut key = stored(1, start);
        key.purge_sent();
        assert_eq!(key.after_kill(99, &[]), Expectation { must_hit: false, must_miss: false, version_min: 1 });
        key.purge_returned(2);
        assert_eq!(judge(key.after_kill(99, &[]), 2, true), Verdict::Resurrected);
        assert_eq!(judge(key.asked(), 2, true), Verdict::Resurrected);
        key.answered(2, false, start);
        assert_eq!(judge(key.after_kill(99, &[]), 2, true), Verdict::Right, "it may have been stored again");
        assert!(matches!(judge(key.after_kill(99, &[]), 1, true), Verdict::Stale { .. }));
        key.restarted(2, true);
        assert!(key.after_kill(0, &[]).must_hit && key.after_stop().must_hit);
    }
}
