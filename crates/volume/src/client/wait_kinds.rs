//! What a client's calls wait for, for the status of a mount.
//!
//! Owns: the kinds of waits, and the list of the client's own work that others wait for. Leaves to others: which calls
//! are in progress, and the words for people.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nectary_host::progress::{self, CallProgress, waiting};

use super::{VolumeClient, lock};
use crate::simulated::since_boot;

/// The kind of a wait; the number that goes with it is that of an inode, or 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitKind {
    /// An answer of the server.
    Server = 1,
    /// An answer of the server that shows attributes: other hosts may have to commit first.
    Look,
    /// The bound on calls without an answer.
    Turn,
    /// The token of an inode, which another host may have to give back.
    Token,
    /// A file lock on an inode.
    Lock,
    /// Free space.
    Space,
    /// The disk.
    Disk,
    /// The session's lease, which must be renewed before I/O.
    Lease,
    /// The next session, after one was ended.
    Session,
    /// Another call on the same inode.
    File,
    /// The kernel, which drops pages of an inode.
    Kernel,
}

impl WaitKind {
    const EVERY: [WaitKind; 11] = [
        WaitKind::Server,
        WaitKind::Look,
        WaitKind::Turn,
        WaitKind::Token,
        WaitKind::Lock,
        WaitKind::Space,
        WaitKind::Disk,
        WaitKind::Lease,
        WaitKind::Session,
        WaitKind::File,
        WaitKind::Kernel,
    ];

    /// Returns the kind with this number in a [`progress::WaitState`].
    pub fn of(kind: u8) -> Option<WaitKind> {
        WaitKind::EVERY.into_iter().find(|wait| *wait as u8 == kind)
    }

    /// Waits for `ready`, and says so.
    pub async fn during<F: Future>(self, number: u64, ready: F) -> F::Output {
        let _waiting = waiting(progress::WaitState { kind: self as u8, number });
        ready.await
    }
}

/// Work of a client that others wait for: tokens that are being given back, and commits in the background.
#[derive(Default)]
pub(super) struct ClientWork {
    list: Mutex<WorkList>,
}

#[derive(Default)]
struct WorkList {
    last: u64,
    works: BTreeMap<u64, (u64, Arc<CallProgress>)>,
}

/// Work of a client that takes long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LongWork {
    /// The inode whose token is being given back, or whose data is committed for another host; 0: the commit in the
    /// background.
    pub inode: u64,
    /// The time since it began.
    pub age: Duration,
    /// What it waits for.
    pub wait: progress::WaitState,
}

impl VolumeClient {
    /// Does work that others wait for, and lists it meanwhile.
    pub(super) async fn work<F: Future>(&self, inode: u64, work: F) -> F::Output {
        let progress = CallProgress::begin(since_boot());
        let number = {
            let mut listed = lock(&self.shared.works.list);
            listed.last += 1;
            let number = listed.last;
            listed.works.insert(number, (inode, progress.clone()));
            number
        };
        let done = progress.of(work).await;
        lock(&self.shared.works.list).works.remove(&number);
        done
    }

    /// Returns the work that takes longer than `longer_than`; the longest first, `most` at most.
    pub fn long_works(&self, longer_than: Duration, most: usize) -> Vec<LongWork> {
        let (now, listed) = (since_boot(), lock(&self.shared.works.list));
        let long = listed.works.values().map(|(inode, progress)| LongWork {
            inode: *inode,
            age: progress.age(now),
            wait: progress.wait(),
        });
        // They are in the order of their begin.
        long.filter(|work| work.age > longer_than).take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_kind_numbers_are_fixed() {
        for (index, wait) in WaitKind::EVERY.into_iter().enumerate() {
            assert_eq!((wait as usize, WaitKind::of(wait as u8)), (index + 1, Some(wait)));
        }
        assert_eq!((WaitKind::of(0), WaitKind::of(12)), (None, None));
    }
}
