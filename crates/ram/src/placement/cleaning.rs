//! Empties groups with dead slots when too few groups are free.
//!
//! Owns: the choice of the group to empty, and of the cache that its blocks go to. Promises: a write always finds a
//! free group; an old copy never replaces newer data. Leaves to others: groups in which every slot is dead, because
//! they become free without cleaning.
//!
//! The sealed group with the fewest needed slots is chosen (greedy). Its needed blocks go to the cache of survivors:
//! they are fetched, or moved from another cache if newer data waits there. When survivors have filled a new group and
//! its parity is stored, the old group becomes free. Each emptied group has at least one dead slot, so the blocks of
//! `S` such groups fit into `S - 1` new groups, and fewer than `S` emptied groups wait at a time.

use super::log::{LogPlacement, RESERVE_ROWS};
use super::planted::{PlacementBug, planted};
use super::{ParityCause, PlacementStep};

impl LogPlacement {
    /// Frees groups until a write may take one.
    pub(super) fn make_room(&mut self, steps: &mut Vec<PlacementStep>) {
        while self.rows.free_count() <= RESERVE_ROWS {
            self.clean(steps);
        }
    }

    /// Empties one group.
    fn clean(&mut self, steps: &mut Vec<PlacementStep>) {
        let row = self.rows.emptiest().expect("the overflow leaves a group with a dead slot");
        self.rows.empty(row);
        let survivors = self.survivors();
        let mut is_uncovered = false;
        for member in 0..self.layout.members {
            let slot = self.rows.slot(row, member);
            let Some(block) = self.rows.owner(slot) else { continue };
            if self.slots[block as usize] != slot {
                // A newer copy was sent to a group whose parity is not stored yet.
                is_uncovered = true;
                continue;
            }
            match self.waiting.get(&block).copied() {
                // Newer data is already in a cache, so it is sent instead of the old data.
                None if self.arriving.contains(&block) => self.put(block, survivors, false),
                None => {
                    steps.push(PlacementStep::Fetch { block, group: row, place: self.place(slot) });
                    self.put(block, survivors, true);
                }
                Some(waiting) if waiting.cache != survivors => {
                    if planted(PlacementBug::CleaningDropsNewest) {
                        steps.push(PlacementStep::Fetch { block, group: row, place: self.place(slot) });
                    }
                    self.caches[waiting.cache].remove(block);
                    self.put(block, survivors, false);
                }
                Some(_) => {}
            }
        }
        if is_uncovered {
            self.cover_all(ParityCause::Room, steps);
        }
        self.send_whole(survivors, steps);
    }
}
