//! How groups with dead slots are emptied, when too few are free.
//!
//! Owns: which group is emptied, and where its blocks go. Promises: a write finds a free group, whatever was written
//! before; no copy replaces newer data. Leaves to others: groups that are dead as a whole, which are free without it.
//!
//! The sealed group with the fewest needed slots is chosen (greedy). What it needs is put into the cache of survivors:
//! blocks are fetched, and blocks whose newer data wait in another cache move from there. Once the survivors fill a
//! group and its parity is stored, the old group is free. So `S` emptied groups with at least one dead slot each cost
//! at most `S - 1` groups, and the groups that wait are fewer than `S`.

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
                // Its new data are there already: they are sent in place of the old ones.
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
