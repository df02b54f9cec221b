//! The purges that a node knows, by the logs of the nodes that accepted them.
//!
//! Owns: [`KnownLogs`]: of each log, up to which number everything is known, and the purges that are kept of it. Each log
//! is contiguous: a purge is taken only after the one before it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use nectary_host::fleet::FleetPurge;

/// The most logs in a message or a file: a node has one, and a new one when it has lost its file.
pub(super) const LOGS_MAX: usize = 1024;

/// A purge, with its place in the log of the node that accepted it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FixedPurge {
    /// The log: the random number of the node's file.
    pub log: u64,
    /// Its number there, from 1.
    pub number: u64,
    /// When it was accepted. *Units*: seconds since 1970.
    pub accepted_s: u64,
    /// The purge.
    pub purge: FleetPurge,
}

impl FixedPurge {
    /// Its bytes in a message, at most: some bytes of a text become five.
    pub fn message_bytes(&self) -> u64 {
        400 + self.purge.scope.texts().iter().map(|text| 5 * text.len() as u64 + 8).sum::<u64>()
    }

    /// Its bytes in memory, about.
    pub fn bytes(&self) -> u64 {
        160 + self.purge.scope.texts().iter().map(|text| text.len() as u64 + 24).sum::<u64>()
    }
}

/// How much of a log somebody has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LogExtent {
    /// Everything up to this number is applied.
    pub through: u64,
    /// Purges up to this number are no longer kept.
    pub floor: u64,
}

/// How much somebody has of each log.
pub(super) type LogExtents = BTreeMap<u64, LogExtent>;

/// Whether `one` has everything that `other` has.
pub(super) fn covers(one: &LogExtents, other: &LogExtents) -> bool {
    other.iter().all(|(log, extent)| one.get(log).map_or(0, |own| own.through) >= extent.through)
}

/// Something that is done in order at a node, and kept in its file.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FixedStep {
    /// A purge of a log.
    Purge(Arc<FixedPurge>),
    /// Everything is purged, in place of what was missed up to these extents.
    Everything(LogExtents),
}

impl FixedStep {
    /// Its bytes in memory, about.
    pub fn bytes(&self) -> u64 {
        match self {
            FixedStep::Purge(purge) => purge.bytes(),
            FixedStep::Everything(extents) => 64 + 48 * extents.len() as u64,
        }
    }
}

/// What is known.
#[derive(Debug, Clone, Default)]
pub(super) struct KnownLogs {
    extents: LogExtents,
    /// The purges that are kept, in the order in which they were taken.
    kept: VecDeque<Arc<FixedPurge>>,
    bytes: u64,
}

impl KnownLogs {
    /// Begins with logs of which nothing is kept.
    pub fn new(extents: LogExtents) -> KnownLogs {
        let extents = extents.into_iter().map(|(log, it)| (log, LogExtent { floor: it.through, ..it })).collect();
        KnownLogs { extents, ..KnownLogs::default() }
    }

    /// How much is known of each log.
    pub fn extents(&self) -> &LogExtents {
        &self.extents
    }

    /// The last number of a log that is known.
    pub fn through(&self, log: u64) -> u64 {
        self.extents.get(&log).map_or(0, |extent| extent.through)
    }

    /// The purges that are kept, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        (self.kept.len() as u64, self.bytes)
    }

    /// The purges that are kept, in the order in which they were taken.
    pub fn kept(&self) -> impl Iterator<Item = &Arc<FixedPurge>> {
        self.kept.iter()
    }

    /// Takes a step. A purge that does not follow is passed over.
    pub fn take(&mut self, step: &FixedStep) {
        match step {
            FixedStep::Purge(purge) => {
                let extent = self.extents.entry(purge.log).or_default();
                if purge.number == extent.through + 1 {
                    extent.through = purge.number;
                    self.bytes += purge.bytes();
                    self.kept.push_back(purge.clone());
                }
            }
            FixedStep::Everything(extents) => {
                for (log, other) in extents {
                    let own = self.extents.entry(*log).or_default();
                    if other.through > own.through {
                        *own = LogExtent { through: other.through, floor: other.through };
                    }
                }
                // What was kept of these logs is no longer contiguous.
                self.forget(|purge, extents| extents.get(&purge.log).is_some_and(|it| purge.number <= it.floor));
            }
        }
    }

    /// The purges above these extents, in their order, up to a number of bytes; at least one if there is one.
    pub fn above(&self, extents: &LogExtents, only: Option<u64>, bytes_max: u64) -> Vec<Arc<FixedPurge>> {
        let mut next: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut bytes, mut found) = (0, Vec::new());
        for purge in self.kept.iter().filter(|purge| only.is_none_or(|only| only == purge.log)) {
            let through = next.entry(purge.log).or_insert_with(|| extents.get(&purge.log).map_or(0, |it| it.through));
            if purge.number != *through + 1 {
                continue;
            }
            if !found.is_empty() && bytes + purge.message_bytes() > bytes_max {
                break;
            }
            *through += 1;
            bytes += purge.message_bytes();
            found.push(purge.clone());
        }
        found
    }

    /// Whether there are more bytes than this, or purges accepted before this time.
    pub fn is_large(&self, bytes_max: u64, oldest_s: u64) -> bool {
        self.bytes > bytes_max || self.kept.front().is_some_and(|first| first.accepted_s < oldest_s)
    }

    /// Keeps no more than this.
    pub fn trim(&mut self, bytes_max: u64, oldest_s: u64) {
        while self.is_large(bytes_max, oldest_s) {
            let Some(first) = self.kept.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(first.bytes());
            if let Some(extent) = self.extents.get_mut(&first.log) {
                extent.floor = extent.floor.max(first.number);
            }
        }
    }

    fn forget(&mut self, is_gone: impl Fn(&FixedPurge, &LogExtents) -> bool) {
        let (extents, mut bytes) = (&self.extents, 0);
        self.kept.retain(|purge| {
            let is_kept = !is_gone(purge, extents);
            bytes += if is_kept { purge.bytes() } else { 0 };
            is_kept
        });
        self.bytes = bytes;
    }
}
