//! The table of groups: the state of each group, the block in each slot, and the sealed group with the fewest needed
//! slots.
//!
//! Owns: the owner of each slot, the number of needed slots of each group, and one list for each number of needed
//! slots. Promises: the cost of an operation does not depend on the number of groups. *Memory*: 4 bytes for each slot
//! and 10 bytes for each group. Leaves to others: deciding when a slot is no longer needed.

use super::planted::{PlacementBug, planted};

/// The number that stands for no group, no block and no slot.
pub(super) const NOTHING: u32 = u32::MAX;

/// The state of a group. A sealed group is in the list for its number of needed slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupState {
    Free,
    Open,
    Sealed,
    /// The group is sealed, and its needed blocks are being moved to other groups.
    Emptying,
}

/// A list of groups, the oldest first.
#[derive(Debug, Clone, Copy)]
struct GroupList {
    first: u32,
    last: u32,
    count: u32,
}

const EMPTY: GroupList = GroupList { first: NOTHING, last: NOTHING, count: 0 };

/// All groups.
#[derive(Debug)]
pub(super) struct GroupTable {
    members: u8,
    /// The block of each slot that is needed, by slot.
    owners: Vec<u32>,
    /// The number of needed slots, by group.
    needed: Vec<u8>,
    states: Vec<GroupState>,
    next: Vec<u32>,
    previous: Vec<u32>,
    /// Lists of sealed groups, by the number of needed slots; the last list has the free groups.
    lists: Vec<GroupList>,
}

impl GroupTable {
    /// Makes a table of free groups.
    pub fn new(rows: u32, members: u8) -> GroupTable {
        let count = rows as usize;
        let mut table = GroupTable {
            members,
            owners: vec![NOTHING; count * usize::from(members)],
            needed: vec![0; count],
            states: vec![GroupState::Free; count],
            next: vec![NOTHING; count],
            previous: vec![NOTHING; count],
            lists: vec![EMPTY; usize::from(members) + 2],
        };
        (0..rows).for_each(|row| table.append(table.free_list(), row));
        table
    }

    fn free_list(&self) -> usize {
        self.lists.len() - 1
    }

    /// Returns the number of free groups.
    pub fn free_count(&self) -> u32 {
        self.lists[self.free_list()].count
    }

    /// Returns the number of a member's slot.
    pub fn slot(&self, row: u32, member: u8) -> u32 {
        row * u32::from(self.members) + u32::from(member)
    }

    /// Returns the group and member of a slot.
    pub fn member(&self, slot: u32) -> (u32, u8) {
        (slot / u32::from(self.members), (slot % u32::from(self.members)) as u8)
    }

    /// Returns the block whose data the slot must keep.
    pub fn owner(&self, slot: u32) -> Option<u32> {
        Some(self.owners[slot as usize]).filter(|&owner| owner != NOTHING)
    }

    /// Opens the group that has been free for longest.
    pub fn take(&mut self) -> Option<u32> {
        let row = self.lists[self.free_list()].first;
        if row == NOTHING {
            return None;
        }
        self.remove(self.free_list(), row);
        self.states[row as usize] = GroupState::Open;
        Some(row)
    }

    /// Returns the free groups, in the order in which they will be opened.
    pub fn free(&self) -> impl Iterator<Item = u32> + '_ {
        let is_row = |row: &u32| *row != NOTHING;
        let first = Some(self.lists[self.free_list()].first).filter(is_row);
        std::iter::successors(first, move |row| Some(self.next[*row as usize]).filter(is_row))
    }

    /// Whether a group is free.
    pub fn is_free(&self, row: u32) -> bool {
        self.states[row as usize] == GroupState::Free
    }

    /// Turns a free group into a sealed one that holds the needed blocks; a group without needed blocks stays free.
    pub fn restore(&mut self, row: u32, owners: &[Option<u32>]) {
        let needed = owners.iter().flatten().count();
        if needed == 0 {
            return;
        }
        self.remove(self.free_list(), row);
        for (member, owner) in owners.iter().enumerate() {
            let slot = self.slot(row, member as u8);
            self.owners[slot as usize] = owner.unwrap_or(NOTHING);
        }
        self.needed[row as usize] = needed as u8;
        self.states[row as usize] = GroupState::Sealed;
        self.append(needed, row);
    }

    /// Notes that a block was sent to a slot of an open group.
    pub fn fill(&mut self, slot: u32, block: u32) {
        self.owners[slot as usize] = block;
        let row = self.member(slot).0 as usize;
        self.needed[row] += 1;
    }

    /// Seals a group: no further member joins it. Returns whether the group is free at once, because none of its slots
    /// is needed.
    pub fn seal(&mut self, row: u32) -> bool {
        self.states[row as usize] = GroupState::Sealed;
        self.append(usize::from(self.needed[row as usize]), row);
        self.free_if_dead(row)
    }

    /// Marks a slot as dead. Returns whether its group is free now.
    pub fn kill(&mut self, slot: u32) -> bool {
        if self.owners[slot as usize] == NOTHING {
            return false;
        }
        self.owners[slot as usize] = NOTHING;
        let row = self.member(slot).0;
        let needed = self.needed[row as usize];
        self.needed[row as usize] = needed - 1;
        if self.states[row as usize] == GroupState::Sealed {
            self.remove(usize::from(needed), row);
            self.append(usize::from(needed - 1), row);
        }
        self.free_if_dead(row)
    }

    /// Returns the sealed group with the fewest needed slots, and the oldest of several; `None` if no slot is dead.
    pub fn emptiest(&self) -> Option<u32> {
        let lists = &self.lists[..usize::from(self.members)];
        lists.iter().find(|list| list.count > 0).map(|list| list.first)
    }

    /// Notes that the blocks of a sealed group are being moved to other groups, so that the group is not chosen again.
    pub fn empty(&mut self, row: u32) {
        self.remove(usize::from(self.needed[row as usize]), row);
        self.states[row as usize] = GroupState::Emptying;
    }

    /// Returns the size of the tables. *Units*: bytes.
    pub fn memory_bytes(&self) -> u64 {
        let slots = self.owners.len() as u64;
        let rows = self.states.len() as u64;
        slots * size_of::<u32>() as u64
            + rows * (2 * size_of::<u32>() + size_of::<u8>() + size_of::<GroupState>()) as u64
    }

    fn free_if_dead(&mut self, row: u32) -> bool {
        let needed = self.needed[row as usize];
        let is_closed = matches!(self.states[row as usize], GroupState::Sealed | GroupState::Emptying);
        let is_dead = needed == 0 || (needed == 1 && planted(PlacementBug::FreeWithLiveMember));
        if !is_closed || !is_dead {
            return false;
        }
        if self.states[row as usize] == GroupState::Sealed {
            self.remove(usize::from(needed), row);
        }
        for member in 0..self.members {
            let slot = self.slot(row, member);
            self.owners[slot as usize] = NOTHING;
        }
        self.needed[row as usize] = 0;
        self.states[row as usize] = GroupState::Free;
        self.append(self.free_list(), row);
        true
    }

    fn append(&mut self, list: usize, row: u32) {
        let last = self.lists[list].last;
        self.previous[row as usize] = last;
        self.next[row as usize] = NOTHING;
        match last {
            NOTHING => self.lists[list].first = row,
            last => self.next[last as usize] = row,
        }
        self.lists[list].last = row;
        self.lists[list].count += 1;
    }

    fn remove(&mut self, list: usize, row: u32) {
        let (previous, next) = (self.previous[row as usize], self.next[row as usize]);
        match previous {
            NOTHING => self.lists[list].first = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NOTHING => self.lists[list].last = previous,
            next => self.previous[next as usize] = previous,
        }
        self.lists[list].count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(rows: &mut GroupTable, first: u32) -> u32 {
        let row = rows.take().expect("a free group");
        for member in 0..2 {
            rows.fill(rows.slot(row, member), first + u32::from(member));
        }
        assert!(!rows.seal(row));
        row
    }

    /// The emptiest group is found, and dead groups are reused in the order in which they became free.
    #[test]
    fn emptiest_group_is_found() {
        let mut rows = GroupTable::new(4, 2);
        let (a, b, c) = (filled(&mut rows, 10), filled(&mut rows, 20), filled(&mut rows, 30));
        assert_eq!((rows.free_count(), rows.emptiest()), (1, None));
        assert!(!rows.kill(rows.slot(b, 0)) && !rows.kill(rows.slot(c, 1)));
        assert_eq!(rows.emptiest(), Some(b), "the older of two");
        rows.empty(b);
        assert_eq!(rows.emptiest(), Some(c));
        assert_eq!(rows.owner(rows.slot(b, 1)), Some(21));
        assert!(rows.kill(rows.slot(b, 1)), "an emptying group is free when its last slot is dead");
        assert!(!rows.kill(rows.slot(b, 1)), "a slot dies once");
        assert!(!rows.kill(rows.slot(a, 0)) && rows.kill(rows.slot(a, 1)));
        let order: Vec<u32> = std::iter::from_fn(|| rows.take()).collect();
        assert_eq!(order, [3, b, a]);
    }

    #[test]
    fn dead_open_group_frees_when_sealed() {
        let mut rows = GroupTable::new(1, 2);
        let row = rows.take().expect("a free group");
        rows.fill(rows.slot(row, 0), 7);
        assert!(!rows.kill(rows.slot(row, 0)));
        rows.fill(rows.slot(row, 1), 8);
        assert!(!rows.kill(rows.slot(row, 1)));
        assert!(rows.seal(row));
        assert_eq!(rows.free_count(), 1);
    }
}
