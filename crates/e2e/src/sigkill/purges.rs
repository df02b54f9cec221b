//! Purges that affect keys of several clients: which objects they removed for certain, and which they may have removed.
//!
//! A purge that was sent at time S and has returned has purged everything fetched before S. It has not purged an object
//! that was hit by a request begun after it returned. Everything else is uncertain. So for each scope it is enough to
//! know the latest S of the returned purges, the time when the latest purge returned, and the number of purges in
//! flight. Purges of one key are in the model of that key.
//!
//! Promises: a purge counts as in flight before it is sent, and as returned only after its answer has arrived.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The number of tags; each key has one tag.
pub const TAG_COUNT: usize = 64;
/// The number of prefixes; each key has one prefix.
pub const PREFIX_COUNT: usize = 32;

/// The keys that a purge covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WidePurgeScope {
    /// All keys with this tag.
    Tag(usize),
    /// All keys with this prefix.
    Prefix(usize),
    /// Everything.
    All,
}

impl WidePurgeScope {
    fn index(self) -> usize {
        match self {
            WidePurgeScope::Tag(number) => number,
            WidePurgeScope::Prefix(number) => TAG_COUNT + number,
            WidePurgeScope::All => TAG_COUNT + PREFIX_COUNT,
        }
    }
}

/// The effect of purges on some keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeReach {
    /// Everything fetched before this is purged.
    pub dead_before: Option<Instant>,
    /// An object may be purged unless a request that began after this time hit it.
    pub doubt_until: Option<Instant>,
    /// The number of purges in flight: until they return, any object may be purged.
    pub under_way: usize,
}

impl PurgeReach {
    fn and(self, other: PurgeReach) -> PurgeReach {
        PurgeReach {
            dead_before: self.dead_before.max(other.dead_before),
            doubt_until: self.doubt_until.max(other.doubt_until),
            under_way: self.under_way + other.under_way,
        }
    }

    /// True if an object that was hit by a request that began at `at` is certain to be untouched by these purges.
    pub fn spares(&self, at: Instant) -> bool {
        self.under_way == 0 && self.doubt_until.is_none_or(|until| until < at)
    }
}

/// The purges of all clients.
#[derive(Debug)]
pub struct WidePurges {
    groups: Mutex<Vec<PurgeReach>>,
}

impl Default for WidePurges {
    fn default() -> Self {
        Self { groups: Mutex::new(vec![PurgeReach::default(); TAG_COUNT + PREFIX_COUNT + 1]) }
    }
}

impl WidePurges {
    /// Records that a purge is about to be sent; returns the time to pass to [`WidePurges::returned`].
    pub fn sent(&self, scope: WidePurgeScope) -> Instant {
        self.groups()[scope.index()].under_way += 1;
        Instant::now()
    }

    /// Records that the purge sent at `sent` has returned.
    pub fn returned(&self, scope: WidePurgeScope, sent: Instant) {
        let group = &mut self.groups()[scope.index()];
        group.under_way -= 1;
        group.dead_before = group.dead_before.max(Some(sent));
        group.doubt_until = Some(Instant::now());
    }

    /// Records that the process was killed: purges in flight will never return.
    pub fn killed(&self) {
        for group in self.groups().iter_mut().filter(|group| group.under_way > 0) {
            group.under_way = 0;
            group.doubt_until = Some(Instant::now());
        }
    }

    /// The effects of purges on keys with this tag and this prefix.
    pub fn reach(&self, tag: usize, prefix: usize) -> PurgeReach {
        let groups = self.groups();
        let of = |scope: WidePurgeScope| groups[scope.index()];
        of(WidePurgeScope::All).and(of(WidePurgeScope::Tag(tag))).and(of(WidePurgeScope::Prefix(prefix)))
    }

    fn groups(&self) -> MutexGuard<'_, Vec<PurgeReach>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until it returns it is in doubt; after that it is certain for all that was stored before it.
    #[test]
    fn purge_is_certain_after_return() {
        let purges = WidePurges::default();
        let before = Instant::now();
        let sent = purges.sent(WidePurgeScope::Tag(3));
        assert!(!purges.reach(3, 0).spares(Instant::now()), "it is under way");
        assert!(purges.reach(4, 0).spares(before), "another tag");
        purges.returned(WidePurgeScope::Tag(3), sent);
        let reach = purges.reach(3, 0);
        assert!(reach.dead_before == Some(sent) && !reach.spares(before) && reach.spares(Instant::now()));
        for scope in [WidePurgeScope::Prefix(5), WidePurgeScope::All] {
            let (sent, never) = (purges.sent(scope), purges.sent(scope));
            purges.returned(scope, sent);
            assert!(!purges.reach(9, 5).spares(Instant::now()), "{scope:?}: one has not returned");
            purges.killed();
            let reach = purges.reach(9, 5);
            assert!(reach.dead_before == Some(sent) && sent <= never && reach.spares(Instant::now()), "{scope:?}");
        }
        assert_eq!(purges.reach(0, 0).dead_before, purges.reach(1, 1).dead_before, "everything reaches every key");
    }
}
