//! Makes random calls on a volume, each on one of several mounts, and on a directory of this machine's file system; the
//! results must be the same, also when mounts and the server are killed, stopped and cut off in between.
//!
//! | file | what it has |
//! |---|---|
//! | `calls` | the calls, and how they are drawn |
//! | `sides` | a call on both sides, and the comparison of its errno and returned values |
//! | `snapshot` | whole trees: modes, owners, names of one inode, extended attributes, times that were set, links and bytes |
//! | `burst` | what may be lost of the last calls of a host that is lost |
//! | `hosts` | the mounts, their networks, and the faults |
//! | `rounds` | the rounds: calls on all mounts, a comparison, a burst of calls on one mount, a fault, a comparison |
//!
//! Promises: no process that is started has files of the volume open; a seed repeats the calls of a run and the kinds and
//! places of its faults, but not the moment at which a signal interrupts a call. Leaves to others: a server on another
//! host (`takeover`).

mod burst;
mod calls;
mod hosts;
mod rounds;
mod sides;
mod snapshot;

use std::collections::BTreeMap;
use std::fmt;

pub use calls::ModifiedTime;
pub use hosts::TreeFault;
pub use rounds::run;

/// A mistake that a run must notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedMistake {
    /// Later writes to the mounts have a wrong byte.
    WrongByte,
    /// The directory beside the volume skips a call of each burst: the volume has more than there was.
    SkippedBeside,
    /// The volume skips a call of each burst, after which all is synced: the volume has lost it.
    SkippedOnVolume,
    /// The volume skips the setting of a time in each burst, after which all is synced.
    SkippedTime,
}

/// What a run does.
#[derive(Debug, Clone)]
pub struct TreePlan {
    /// The least number of calls.
    pub calls: u64,
    /// The seed.
    pub seed: u64,
    /// The number of mounts; two at least if there are faults.
    pub hosts: usize,
    /// The number of faults.
    pub faults: u64,
    /// The kinds of faults. Each one comes once in as many faults.
    pub kinds: Vec<TreeFault>,
    /// A mistake.
    pub planted: Option<PlantedMistake>,
}

/// The counts of a run.
#[derive(Debug, Clone, Default)]
pub struct TreeCallCounts {
    /// Calls.
    pub calls: u64,
    /// Calls that failed, with the same errno on both sides.
    pub failed: u64,
    /// For each kind of call, the number of calls that succeeded.
    pub succeeded: BTreeMap<&'static str, u64>,
    /// Comparisons of the whole tree of a mount.
    pub compared: u64,
    /// Entries that were compared.
    pub entries: u64,
    /// Faults of each kind.
    pub faults: BTreeMap<TreeFault, u64>,
    /// Calls that a signal interrupted.
    pub interrupted: u64,
    /// Calls that changed the tree and were lost with their host.
    pub lost_calls: u64,
    /// Files whose last data was lost with their host.
    pub lost_files: u64,
    /// Faults after which nothing may have been lost, of those that can lose something.
    pub strict: u64,
}

impl TreeCallCounts {
    /// What is too little for a plan.
    pub fn shortfalls(&self, plan: &TreePlan) -> Vec<String> {
        let mut short = Vec::new();
        let mut least = |what: String, found: u64, wanted: u64| {
            if found < wanted {
                short.push(format!("{found} {what} instead of {wanted}"));
            }
        };
        least("calls".to_owned(), self.calls, plan.calls);
        for kind in plan.kinds.iter().filter(|_| plan.faults > 0) {
            let wanted = plan.faults / plan.kinds.len() as u64;
            least(format!("faults {kind:?}"), self.faults.get(kind).copied().unwrap_or(0), wanted.max(1));
        }
        least("comparisons".to_owned(), self.compared, plan.hosts as u64 * (2 * plan.faults).max(1));
        short
    }
}

impl fmt::Display for TreeCallCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} calls, {} failed with the same errno; {} comparisons of trees with {} entries in all; faults {:?}, {} of \
             them may lose nothing although a host was lost; {} calls were interrupted, {} changes lost, {} files lost \
             their last data; succeeded: {:?}",
            self.calls,
            self.failed,
            self.compared,
            self.entries,
            self.faults,
            self.strict,
            self.interrupted,
            self.lost_calls,
            self.lost_files,
            self.succeeded
        )
    }
}
