//! Empties groups with dead slots when too few groups are free.
//!
//! Owns: which group is emptied, and where its blocks go. Promises: a write always finds a free group; no copy replaces
//! newer data. Leaves to others: groups in which every slot is dead: they become free by themselves.
//!
//! The sealed group with the fewest needed slots is chosen (greedy). Its needed blocks go to the cache of survivors:
//! they are fetched, or, if newer data wait in another cache, moved from there. When survivors have filled a new group
//! and its parity is stored, the old group is free. Each emptied group has at least one dead slot, so `S` of them fit
//! into `S - 1` new groups, and fewer than `S` groups wait at a time.

use super::log::{Log, RESERVE_ROWS};
use super::planted::{Bug, planted};
use super::{Covering, Step};

impl Log {
    /// Frees groups until a write may take one.
    pub(super) fn make_room(&mut self, steps: &mut Vec<Step>) {
        while self.rows.free_count() <= RESERVE_ROWS {
            self.clean(steps);
        }
    }

    /// Empties one group.
    fn clean(&mut self, steps: &mut Vec<Step>) {
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
                // Newer data are already in a cache: they are sent instead of the old data.
                None if self.arriving.contains(&block) => self.put(block, survivors, false),
                None => {
                    steps.push(Step::Fetch { block, group: row, place: self.place(slot) });
                    self.put(block, survivors, true);
                }
                Some(waiting) if waiting.cache != survivors => {
                    if planted(Bug::CleaningDropsNewest) {
                        steps.push(Step::Fetch { block, group: row, place: self.place(slot) });
                    }
                    self.caches[waiting.cache].remove(block);
                    self.put(block, survivors, false);
                }
                Some(_) => {}
            }
        }
        if is_uncovered {
            self.cover_all(Covering::Room, steps);
        }
        self.send_whole(survivors, steps);
    }
}
