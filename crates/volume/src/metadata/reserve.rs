//! The reserve: free segments that stay for metadata when files fill the disk.
//!
//! Owns: how many there are. Promises: data leave them alone, and what lets metadata grow leaves about half of them.
//! Removing and cutting files, ending sessions and work in the background need none of them. So a full disk has room for
//! its journal, for a checkpoint and for the next start, unless segments of lost servers fill it.
//!
//! A checkpoint frees the segments of the one before only when it is complete, and until then the journal grows. For
//! tables that fill `n` segments this is the reserve:
//!
//! | segments | for |
//! |---|---|
//! | n | the next checkpoint |
//! | n | growth of the tables until then |
//! | n, at least 2 | the journal until then |
//! | 2 | segments that the journal has ready |
//! | 2 | what a start sets aside |
//!
//! A small disk keeps an eighth of its segments, but never fewer than one checkpoint and three.

use super::change::Result;
use super::image::{Image, Parts};
use crate::format::SPACE_START;
use crate::journal::segments_at_most;
use crate::protocol::{Code, Failure};

/// The least that the journal needs between two checkpoints, that it has ready, and that a start sets aside. *Units*:
/// segments.
const JOURNAL: u64 = 2;
const READY: u64 = 2;
const STARTS: u64 = 2;
/// The part of a small disk that is kept.
const DISK_PART: u64 = 8;
/// What is kept in any case, in addition to a checkpoint: below `AT_LEAST`, data are refused, below `TO_GROW`, metadata
/// may not grow. *Units*: segments.
const AT_LEAST: u64 = 3;
const TO_GROW: u64 = 2;

/// Free segments that stay for metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reserve {
    /// Data leave so many.
    pub data: u64,
    /// With fewer, nothing is done that lets metadata grow.
    pub growth: u64,
}

impl Reserve {
    /// The reserve of a disk of so many segments, with tables of which a checkpoint needs `checkpoint`.
    pub fn new(segments: u64, checkpoint: u64) -> Reserve {
        let wanted = 2 * checkpoint + checkpoint.max(JOURNAL) + READY + STARTS;
        let data = wanted.min(segments.div_ceil(DISK_PART).max(checkpoint + AT_LEAST));
        Reserve { data, growth: (data / 2).max(checkpoint + TO_GROW) }
    }
}

pub(super) fn full() -> Failure {
    Failure { code: Code::Full, errno: libc::ENOSPC, words: String::new() }
}

impl Image {
    /// The most segments that a checkpoint of the present tables can need.
    pub fn checkpoint_segments(&self) -> u64 {
        segments_at_most(self.tables.bytes(), self.segment_blocks)
    }

    /// Whole segments that are free.
    pub fn free_segments(&self) -> u64 {
        self.free.segments()
    }

    pub(super) fn reserve(&self) -> Reserve {
        let segments = self.volume.blocks.saturating_sub(SPACE_START) / self.segment_blocks;
        Reserve::new(segments, self.checkpoint_segments())
    }

    /// Free blocks that are kept for metadata: data do not get them.
    pub fn reserved(&self) -> u64 {
        self.free.blocks() - self.free.blocks_beside(self.reserve().data)
    }
}

impl Parts<'_> {
    /// Checks that metadata may grow.
    ///
    /// *Errors*: ENOSPC.
    pub fn may_grow(&self) -> Result<()> {
        match self.free.segments() < self.reserve.growth {
            true => Err(full()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_disk_keeps_an_eighth_and_what_a_checkpoint_needs() {
        for (segments, checkpoint, data, growth) in
            [(31, 1, 4, 3), (127, 1, 8, 4), (31, 10, 13, 12), (1 << 20, 40, 124, 62), (400, 40, 50, 42)]
        {
            assert_eq!(Reserve::new(segments, checkpoint), Reserve { data, growth }, "{segments} {checkpoint}");
        }
    }
}
