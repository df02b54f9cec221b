//! What waits at the server for long, for its status.
//!
//! Owns: when a wait is long, and how many are listed. Leaves to others: the waits themselves (`grants`, `locking`,
//! `pushes`, `owner`), and the words for people.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::connection::ReplySender;

/// The status lists what has waited for longer than this.
pub const WAIT_SHOWN: Duration = Duration::from_secs(30);
/// The most waits that are listed.
const LISTED_MAX: usize = 16;

/// What a wait is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitSubject {
    /// A session waits for the token of an inode.
    Token,
    /// A session asked for attributes, and others must commit first.
    Commit,
    /// A session waits for a file lock.
    Lock,
    /// A session waits for a file lock until every session has named those that it had before a restart.
    EarlyLock,
    /// A session waits until the kernels of others know an end of file.
    Push,
    /// A session waits for an answer that must first be stored.
    Storing,
    /// A session must give the token of an inode back, or commit.
    Asked,
    /// A session must say what it held before a restart, and others wait for that.
    Expected,
}

impl WaitSubject {
    /// Whether such a wait may take any time, because programs wait for other programs.
    pub fn is_lock(self) -> bool {
        self == WaitSubject::Lock
    }
}

/// A wait at the server that is long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWait {
    /// What it is about.
    pub subject: WaitSubject,
    /// The session that waits; for [`WaitSubject::Asked`] and [`WaitSubject::Expected`], the one that others wait for.
    pub session: u64,
    /// The host of the session.
    pub host: String,
    /// The inode, or 0.
    pub inode: u64,
    /// The time since it began.
    pub age: Duration,
}

/// The waits at a server that are long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerWaits {
    /// The longest, the longest first; those for locks come last.
    pub longest: Vec<LongWait>,
    /// The number of requests that wait, without those for locks.
    pub requests: usize,
    /// The number of requests that wait for locks.
    pub locks: usize,
}

/// Collects waits that are longer than a time.
pub(super) struct WaitCollector {
    longer_than: Duration,
    now: Instant,
    found: Vec<(WaitSubject, u64, u64, Duration)>,
}

impl WaitCollector {
    /// Collects none yet.
    pub fn new(longer_than: Duration) -> WaitCollector {
        WaitCollector { longer_than, now: Instant::now(), found: Vec::new() }
    }

    /// Adds a request that waits.
    pub fn request(&mut self, subject: WaitSubject, inode: u64, reply: &ReplySender) {
        let (session, since) = reply.asked();
        self.add(subject, session, inode, self.now.saturating_duration_since(since));
    }

    /// Adds a wait.
    pub fn add(&mut self, subject: WaitSubject, session: u64, inode: u64, age: Duration) {
        if age > self.longer_than {
            self.found.push((subject, session, inode, age));
        }
    }

    /// Whether there is any.
    pub fn has_some(&self) -> bool {
        !self.found.is_empty()
    }

    /// Returns the longest ones, with the hosts of their sessions.
    pub fn waits(mut self, hosts: &HashMap<u64, &str>) -> ServerWaits {
        let locks = self.found.iter().filter(|(subject, ..)| subject.is_lock()).count();
        let others = |subject: &WaitSubject| matches!(subject, WaitSubject::Asked | WaitSubject::Expected);
        let requests = self.found.iter().filter(|(subject, ..)| !subject.is_lock() && !others(subject)).count();
        self.found.sort_unstable_by_key(|(subject, session, inode, age)| {
            (subject.is_lock(), Reverse(*age), *subject, *session, *inode)
        });
        let longest = self.found.into_iter().take(LISTED_MAX).map(|(subject, session, inode, age)| {
            let host = hosts.get(&session).map_or_else(String::new, |host| (*host).to_owned());
            LongWait { subject, session, host, inode, age }
        });
        ServerWaits { longest: longest.collect(), requests, locks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_waits_listed_locks_last() {
        let seconds = Duration::from_secs;
        let mut collected = WaitCollector::new(WAIT_SHOWN);
        collected.add(WaitSubject::Lock, 1, 5, seconds(900));
        collected.add(WaitSubject::Token, 2, 6, seconds(30));
        for second in 31..60 {
            collected.add(WaitSubject::Token, 2, 6, seconds(second));
        }
        collected.add(WaitSubject::Asked, 3, 6, seconds(70));
        let waits = collected.waits(&HashMap::from([(3, "h3")]));
        let asked =
            LongWait { subject: WaitSubject::Asked, session: 3, host: "h3".to_owned(), inode: 6, age: seconds(70) };
        assert_eq!((waits.longest.len(), waits.requests, waits.locks), (LISTED_MAX, 29, 1));
        assert_eq!((&waits.longest[0], waits.longest[1].age), (&asked, seconds(59)));
        let mut collected = WaitCollector::new(WAIT_SHOWN);
        collected.add(WaitSubject::Lock, 1, 5, seconds(900));
        collected.add(WaitSubject::Push, 1, 5, seconds(40));
        let waits = collected.waits(&HashMap::new());
        assert_eq!(
            waits.longest.iter().map(|wait| wait.subject).collect::<Vec<_>>(),
            [WaitSubject::Push, WaitSubject::Lock]
        );
    }
}
