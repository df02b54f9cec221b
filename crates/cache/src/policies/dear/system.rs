//! The system manager: it chooses the application that gives up a block.
//!
//! Owns: the order of places over all resident blocks, and the list of sequential applications. Promises: sequential
//! applications give victims first, and among them the one with most blocks. Otherwise the owner of the block in the
//! oldest place must offer a block; if it offers another block than that, the spared block takes the place of the
//! victim. Leaves to others: the choice of the block that an application offers.
//!
//! With only one stream the order of places is not needed and not maintained, so a single program does not pay for a
//! second list. When the second stream begins, the places are initialised from the recency of the first.

use super::application::{ApplicationManager, ReplacementRule};
use super::blocks::{DearBlocks, PLACE};
use crate::structures::timeline::IdTimeline;

/// A victim, and the block in the oldest place, because of which the owner of the victim was chosen; both as places in
/// the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct VictimChoice {
    pub(super) victim: usize,
    /// The block in the oldest place, if the owner was chosen because of it.
    asked: Option<usize>,
}

/// The state from which the next application is chosen.
#[derive(Debug)]
pub(super) struct ApplicationSelector {
    places: IdTimeline,
    /// Whether there has been a second stream; only then places are maintained.
    shared: bool,
    /// The positions of sequential applications.
    sequential: Vec<u16>,
}

impl ApplicationSelector {
    /// The state with one application and no blocks.
    pub(super) fn new() -> ApplicationSelector {
        ApplicationSelector { places: IdTimeline::default(), shared: false, sequential: Vec::new() }
    }

    /// Begins to maintain places, initialised from the recency of the only application so far. *Cost*: O(its blocks),
    /// once.
    pub(super) fn share(&mut self, blocks: &mut DearBlocks, only: &ApplicationManager) {
        if self.shared {
            return;
        }
        self.shared = true;
        for id in only.recency.ids() {
            if let Some(at) = blocks.find(id) {
                blocks.put_newest::<PLACE>(&mut self.places, at, 1);
            }
        }
    }

    /// Adds a resident block in the newest place.
    #[inline]
    pub(super) fn admit(&mut self, blocks: &mut DearBlocks, at: usize) {
        if self.shared {
            blocks.put_newest::<PLACE>(&mut self.places, at, 1);
        }
    }

    /// Gives a resident block the newest place.
    #[inline]
    pub(super) fn refresh(&mut self, blocks: &mut DearBlocks, at: usize) {
        if self.shared {
            blocks.refresh::<PLACE>(&mut self.places, at);
        }
    }

    /// Removes a resident block from its place.
    pub(super) fn dismiss(&mut self, blocks: &mut DearBlocks, at: usize) {
        if self.shared {
            blocks.take::<PLACE>(&mut self.places, at);
        }
    }

    /// Removes a victim from the order; if another block was spared, that block takes the victim's place.
    pub(super) fn vacate(&mut self, blocks: &mut DearBlocks, choice: VictimChoice) {
        match choice.asked {
            Some(asked) if asked != choice.victim => {
                blocks.take_place::<PLACE>(&mut self.places, asked, choice.victim);
            }
            _ => self.dismiss(blocks, choice.victim),
        }
    }

    /// Notes that an application's replacement changed.
    pub(super) fn note(&mut self, position: u16, before: ReplacementRule, after: ReplacementRule) {
        if before == after {
            return;
        }
        if before == ReplacementRule::Sequential {
            self.sequential.retain(|&other| other != position);
        }
        if after == ReplacementRule::Sequential {
            self.sequential.push(position);
        }
    }

    /// The next victim; `None` if no block is resident. `sequential_first` is false after a refusal, so that sequential
    /// applications whose blocks are all refused do not block the others.
    pub(super) fn choose(
        &mut self,
        applications: &mut [ApplicationManager],
        blocks: &mut DearBlocks,
        sequential_first: bool,
    ) -> Option<VictimChoice> {
        if !self.shared {
            return applications.first_mut()?.offer(blocks).map(|victim| VictimChoice { victim, asked: None });
        }
        if sequential_first {
            let positions = self.sequential.iter().map(|&position| usize::from(position));
            let largest = positions.max_by_key(|&position| applications[position].recency.count());
            let offer = largest.and_then(|position| applications[position].offer(blocks));
            if let Some(victim) = offer {
                return Some(VictimChoice { victim, asked: None });
            }
        }
        let oldest = self.places.oldest()?;
        let asked = blocks.find(self.places.id(oldest))?;
        let owner = usize::from(blocks.get(asked).owner);
        let victim = applications[owner].offer(blocks)?;
        Some(VictimChoice { victim, asked: Some(asked) })
    }
}
