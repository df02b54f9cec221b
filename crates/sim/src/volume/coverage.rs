//! The scenarios that runs have to reach, with counts.
//!
//! Owns: the names of the scenarios. A number in a name is a topic that a simulation of the volume must cover: 1 the
//! sizes that kernels see, 2 appends in pieces, 3 invalidations that write back, 4 answers after the lease, 5 clocks, 6
//! absent servers, 7 late writes of lost hosts, 8 full disks, 9 servers that crash in a loop, 10 late extensions and
//! replies, 11 freed extents, 12 renewals behind bulk traffic, 13 fairness, 14 leaders without their lease, 15 clients
//! between two servers, 16 file locks.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// All scenarios.
pub const SCENARIOS: &[&str] = &[
    "1: the size that another host extended is seen",
    "2: another host appends between the pieces of an append",
    "3: a page is read during an invalidation, which is done again",
    "3: a page is written back under the token that is given back",
    "4: a page comes after its lease, and is forgotten",
    "4: a page is forgotten as the lease ends",
    "4: an answer is refused as the lease ended before it",
    "5: a client pauses, and its clock too",
    "5: a clock stood still past the lease",
    "6: a barred session is heard again",
    "6: a dirty page is kept while the server is away",
    "6: a server is away for longer than a lease",
    "6: a session is ended for another one",
    "6: a suspended session resumes",
    "6: a token for writing is reclaimed, or said again",
    "7: a write of a session that is over reaches the disk",
    "7: blocks of a lost session are released after its last write",
    "8: the disk is full",
    "9: a server crashes again soon",
    "9: a server crashes before all sessions have reclaimed",
    "9: sessions that a new server waits for",
    "10: a late extension is refused after a truncate",
    "10: an operation comes again",
    "11: freed blocks that waited for every map",
    "12: a renewal arrives before a request that was sent earlier",
    "13: a holder commits for a stat",
    "13: a recall waited until a grant was held long enough",
    "13: a session gives back too slowly",
    "13: a stat waits for a commit",
    "14: a leader is stopped between the gate's check and the send",
    "14: a leader is stopped for less than its lease",
    "14: a leader is stopped for longer than its lease",
    "14: a client believes a leader whose clock stood still",
    "14: a leader's clock stood still while another server took over",
    "14: the sectors show that an append may not count",
    "14: a leader learns that it has lost its lease",
    "14: a leader renews a lease that had lapsed",
    "14: a leader whose disk is silent ends",
    "14: a leader's disk hangs during an append",
    "14: a leader's disk hangs for less than its lease",
    "14: a leader's disk hangs for longer than its lease",
    "14: a leader's network is cut while its disk works",
    "14: a message leaves after its leader's lease has ended",
    "14: a message waits at the gate",
    "14: a new leader is lost during grace",
    "14: a seal of an old leader is ignored",
    "14: an append of an old leader is lost between the read and the seal",
    "14: an append of an old leader reaches the disk after the seal",
    "14: an append that was not acknowledged is read by the next leader",
    "14: another server leads",
    "14: a leader runs only for moments",
    "14: each I/O of a leader takes almost as long as its lease",
    "14: the disk of a server that takes over hangs before its seal",
    "15: a Welcome of a higher epoch closes the other connection",
    "15: a Welcome of a lower epoch is refused",
    "15: a grant of an older epoch is not used",
    "15: a host does not reach the leader",
    "15: a host reaches only the next leader",
    "15: a host reaches only the old leader",
    "15: a renewal has no answer, and the client turns to all servers",
    "15: a server answers nothing to a client that knows a higher epoch",
    "15: the control and the bulk connection are to different servers",
    "16: a lock is claimed from a new server",
    "16: a lock waits for its holder",
    "16: a lock's request waits for the end of grace",
    "16: a request is held back until the server knows the locks",
    "16: the answer to a lock's request waits for the lease",
    "I/O waits for the lease",
    "a client is lost",
    "a client paused past its lease",
    "a client pauses between a check and what follows",
    "a client pauses between a renewal and its answer",
    "a client pauses for less than its lease",
    "a client pauses for longer than its lease",
    "a connection is lost",
    "a host has no way to a server for longer than its lease",
    "a load from a map",
    "a lookup from the cache",
    "a message of a lost connection arrives late",
    "a message of an older epoch is refused",
    "a recall came before its grant",
    "a recall has no connection yet",
    "a recall is answered at once",
    "a recall of an older grant is ignored",
    "a renewal is not answered",
    "a request of a connection that another one replaced is not served",
    "a server crashes as it grants",
    "a server restarts",
    "a stat is answered with what was committed here meanwhile",
    "a store to a map",
    "a token is given back without a recall",
    "a token waits for I/O in work before it goes",
    "a writer comes where pages are of a lower level",
    "the disk is slow",
    "what was not committed is lost with its session",
];

/// How often each scenario was reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumeCoverage {
    counts: RefCell<BTreeMap<&'static str, u64>>,
}

impl VolumeCoverage {
    /// Counts a scenario. *Panics* in a debug build if it is none of [`SCENARIOS`].
    pub fn met(&self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts a scenario `count` times. *Panics* in a debug build if it is none of [`SCENARIOS`].
    pub fn add(&self, name: &'static str, count: u64) {
        debug_assert!(SCENARIOS.contains(&name), "{name} is no scenario");
        *self.counts.borrow_mut().entry(name).or_default() += count;
    }

    /// How often a scenario was reached.
    pub fn count(&self, name: &str) -> u64 {
        self.counts.borrow().get(name).copied().unwrap_or(0)
    }

    /// Adds the counts of another run.
    pub fn merge(&self, other: &VolumeCoverage) {
        other.counts.borrow().iter().for_each(|(name, count)| self.add(name, *count));
    }

    /// The scenarios that were never reached.
    pub fn missing(&self) -> Vec<&'static str> {
        SCENARIOS.iter().copied().filter(|name| self.count(name) == 0).collect()
    }
}
