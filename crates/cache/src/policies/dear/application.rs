//! The application manager: one stream's blocks, its detector, and the choice of its victims.
//!
//! Owns: the stream's recency order, its LFU order and the active replacement. Promises: it offers the block that the
//! active replacement chooses. Leaves to others: the choice of the application that must offer a block, and the blocks
//! themselves.
//!
//! # LFU without a heap
//! Resident blocks are filed by frequency, one timeline per frequency. A hit only raises the count in the block; the
//! block stays filed under its old frequency. Counts only grow, so a block is never filed above its frequency, and no
//! block has a lower frequency than the lowest timeline with blocks. To find a victim, the newest block of the lowest
//! timeline is checked. If it is still filed under its frequency, it is a least frequently used block; otherwise it is
//! filed again and the next block is checked. Each refiling corresponds to a hit, so LFU is O(1) amortised. A hit
//! itself costs LFU nothing, which matters while another replacement is active.
//!
//! An eviction by another replacement does not remove the block from its timeline either: the ghost stays filed. The
//! search for a victim drops it, unless the block is resident again by then.
//!
//! Among blocks of equal frequency, the one filed last is evicted. It has the shortest history; and if LFU has to
//! replace a loop, a part of the loop stays resident. Frequencies above `RANK_MAX` are filed as `RANK_MAX`.

use super::blocks::{DearBlockState, DearBlocks, RANK, RECENCY, UNFILED};
use crate::StreamId;
use crate::detect::{Detector, PatternVerdict};
use crate::structures::timeline::IdTimeline;

/// The highest rank; higher frequencies are filed under it.
const RANK_MAX: u16 = 1023;
/// The number of steps by which a block is prefetched before the search for a victim reaches it.
const AHEAD: usize = 8;
const RANK_WORDS: usize = (RANK_MAX as usize + 1) / 64;

/// The rule by which an application chooses among its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReplacementRule {
    /// Least recently used; the initial replacement.
    Lru,
    /// Most recently used.
    Mru,
    /// Most recently used, and before any other application's blocks.
    Sequential,
    /// Least frequently used.
    Lfu,
}

impl ReplacementRule {
    /// The replacement for a verdict; for [`PatternVerdict::None`] the replacement stays.
    pub(super) fn after(self, verdict: PatternVerdict) -> ReplacementRule {
        match verdict {
            PatternVerdict::None => self,
            PatternVerdict::Sequential => ReplacementRule::Sequential,
            PatternVerdict::Looping => ReplacementRule::Mru,
            PatternVerdict::Clustered => ReplacementRule::Lru,
            PatternVerdict::Probabilistic => ReplacementRule::Lfu,
        }
    }

    /// The name of the replacement in explanations.
    pub(super) fn name(self) -> &'static str {
        match self {
            ReplacementRule::Lru => "lru",
            ReplacementRule::Mru => "mru",
            ReplacementRule::Sequential => "mru first",
            ReplacementRule::Lfu => "lfu",
        }
    }
}

/// The manager of one stream's blocks.
#[derive(Debug)]
pub(super) struct ApplicationManager {
    pub(super) stream: StreamId,
    pub(super) detector: Detector,
    pub(super) replacement: ReplacementRule,
    /// The time of the application's last reference. *Units*: references of all streams.
    pub(super) last: u64,
    /// The number of the application's hits that are not counted yet.
    pub(super) uncounted: u32,
    /// The resident blocks of the stream, with their weights.
    pub(super) recency: IdTimeline,
    /// The LFU order: one timeline per rank, up to the highest rank seen.
    ranks: Vec<IdTimeline>,
    /// One bit per rank, which is set if blocks are filed under the rank.
    occupied: [u64; RANK_WORDS],
}

impl ApplicationManager {
    /// A manager without blocks.
    pub(super) fn new(stream: StreamId, detector: Detector) -> ApplicationManager {
        ApplicationManager {
            stream,
            detector,
            replacement: ReplacementRule::Lru,
            last: 0,
            uncounted: 0,
            recency: IdTimeline::default(),
            ranks: Vec::new(),
            occupied: [0; RANK_WORDS],
        }
    }

    /// Gives the manager and all its blocks to another stream, which starts without a verdict.
    pub(super) fn hand_over(&mut self, stream: StreamId) {
        self.stream = stream;
        self.replacement = ReplacementRule::Lru;
        self.detector.begin_anew();
    }

    /// Adds a resident block as the most recent; its history already includes this reference.
    pub(super) fn admit(&mut self, blocks: &mut DearBlocks, at: usize, weight: u64) {
        blocks.put_newest::<RECENCY>(&mut self.recency, at, weight);
        self.keep_filed(blocks, at);
    }

    /// Removes a resident block that becomes a ghost. *Returns* its weight.
    pub(super) fn evict(&mut self, blocks: &mut DearBlocks, at: usize) -> u64 {
        if self.replacement == ReplacementRule::Lfu {
            self.unfile(blocks, at);
        }
        blocks.take::<RECENCY>(&mut self.recency, at)
    }

    /// Removes a resident block that is forgotten. *Returns* its weight.
    pub(super) fn dismiss(&mut self, blocks: &mut DearBlocks, at: usize) -> u64 {
        self.unfile(blocks, at);
        blocks.take::<RECENCY>(&mut self.recency, at)
    }

    /// Makes a resident block the most recent.
    #[inline]
    pub(super) fn refresh(&mut self, blocks: &mut DearBlocks, at: usize) {
        blocks.refresh::<RECENCY>(&mut self.recency, at);
    }

    /// Files a block under its frequency, if it is not filed yet, or was filed higher because it was a refused victim.
    #[inline]
    pub(super) fn keep_filed(&mut self, blocks: &mut DearBlocks, at: usize) {
        let block = blocks.get(at);
        if u32::from(block.rank()) > block.history.frequency() {
            let rank = true_rank(blocks, at);
            self.unfile(blocks, at);
            self.file(blocks, at, rank, true);
        }
    }

    /// The next victim of the active replacement; `None` if there are no blocks.
    pub(super) fn offer(&mut self, blocks: &mut DearBlocks) -> Option<usize> {
        let position = match self.replacement {
            ReplacementRule::Lru => {
                while let Some(soon) = self.recency.next_ahead() {
                    blocks.prepare(soon);
                }
                self.recency.oldest()?
            }
            ReplacementRule::Mru | ReplacementRule::Sequential => self.recency.newest()?,
            ReplacementRule::Lfu => return self.least_frequent(blocks),
        };
        blocks.find(self.recency.id(position))
    }

    /// Puts a refused victim at the end of its order, so that all other blocks are offered before it.
    pub(super) fn defer(&mut self, blocks: &mut DearBlocks, at: usize) {
        match self.replacement {
            ReplacementRule::Lru => blocks.refresh::<RECENCY>(&mut self.recency, at),
            ReplacementRule::Mru | ReplacementRule::Sequential => {
                let weight = blocks.take::<RECENCY>(&mut self.recency, at);
                blocks.put_oldest::<RECENCY>(&mut self.recency, at, weight);
            }
            ReplacementRule::Lfu => {
                self.unfile(blocks, at);
                self.file(blocks, at, RANK_MAX, false);
            }
        }
    }

    fn least_frequent(&mut self, blocks: &mut DearBlocks) -> Option<usize> {
        loop {
            let word = self.occupied.iter().position(|&word| word != 0)?;
            let lowest = word * 64 + self.occupied[word].trailing_zeros() as usize;
            let newest = self.ranks[lowest].newest()?;
            blocks.prepare(self.ranks[lowest].id_before(newest, AHEAD));
            let at = blocks.find(self.ranks[lowest].id(newest))?;
            let rank = true_rank(blocks, at);
            let resident = blocks.get(at).state() == DearBlockState::Resident;
            if resident && usize::from(rank) <= lowest {
                return Some(at);
            }
            self.unfile(blocks, at);
            if resident {
                self.file(blocks, at, rank, true);
            }
        }
    }

    fn file(&mut self, blocks: &mut DearBlocks, at: usize, rank: u16, newest: bool) {
        let position = usize::from(rank);
        if position >= self.ranks.len() {
            self.ranks.resize_with(position + 1, IdTimeline::default);
        }
        blocks.get_mut(at).set_rank(rank);
        if newest {
            blocks.put_newest::<RANK>(&mut self.ranks[position], at, 1);
        } else {
            blocks.put_oldest::<RANK>(&mut self.ranks[position], at, 1);
        }
        self.occupied[position / 64] |= 1 << (position % 64);
    }

    /// Removes a block from the LFU order, if it is there.
    pub(super) fn unfile(&mut self, blocks: &mut DearBlocks, at: usize) {
        let rank = blocks.get(at).rank();
        if rank == UNFILED {
            return;
        }
        blocks.get_mut(at).set_rank(UNFILED);
        let position = usize::from(rank);
        blocks.take::<RANK>(&mut self.ranks[position], at);
        if self.ranks[position].count() == 0 {
            self.occupied[position / 64] &= !(1 << (position % 64));
        }
    }
}

fn true_rank(blocks: &DearBlocks, at: usize) -> u16 {
    blocks.get(at).history.frequency().min(u32::from(RANK_MAX)) as u16
}
