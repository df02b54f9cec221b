//! `none`, `mirror` and `parity`: the slot of a block never changes.
//!
//! Owns: the arithmetic of these slots, and the set of written blocks. Leaves to others: marking a stripe dirty before
//! it changes. Without the mark, a crash of the client could leave a stripe whose copies or parity differ, unnoticed.
//!
//! Block `b` is member `b mod S` of group `b / S`. The second copy of a mirror is in the other half of the slots of the
//! next donor. `parity` needs four transfers, because donors do not compute XOR: the client reads the old data and
//! parity and writes both.

use std::ops::Range;

use super::{Cause, Covering, Error, Layout, Location, Members, Memory, Place, Placement, Policy, Step};

/// A placement that never moves a block.
#[derive(Debug)]
pub struct InPlace {
    layout: Layout,
    /// One bit for each block; it is set if the block was written.
    mapped: Vec<u64>,
    sequence: u64,
}

impl InPlace {
    /// Makes an empty device. The layout must be checked before.
    pub(super) fn new(layout: Layout) -> InPlace {
        let words = layout.blocks.div_ceil(64) as usize;
        InPlace { layout, mapped: vec![0; words], sequence: 0 }
    }

    fn group(&self, block: u32) -> (u32, u8) {
        let members = u32::from(self.layout.members);
        (block / members, (block % members) as u8)
    }

    fn place(&self, block: u32) -> Place {
        let (group, member) = self.group(block);
        let donor = match self.layout.policy {
            Policy::Parity => place_of_member(group, member, self.layout.donors()),
            _ => member,
        };
        Place { donor, slot: group }
    }

    fn set(&mut self, block: u32, is_mapped: bool) {
        let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
        match is_mapped {
            true => self.mapped[word] |= bit,
            false => self.mapped[word] &= !bit,
        }
    }

    /// Adds the steps that send a block and its copy or parity; after a trim, zeroes are sent.
    fn send(&mut self, block: u32, steps: &mut Vec<Step>) {
        let ((group, member), place) = (self.group(block), self.place(block));
        self.sequence += 1;
        let sequence = self.sequence;
        let parity = Place { donor: parity_donor(group, self.layout.donors()), slot: group };
        if self.layout.policy == Policy::Parity {
            steps.push(Step::ReadOld { group, place });
            steps.push(Step::ReadOld { group, place: parity });
        }
        steps.push(Step::Send { block, group, member, place, sequence, cause: Cause::Write });
        match self.layout.policy {
            Policy::Mirror => {
                let slot = self.layout.rows() + group;
                let place = Place { donor: (place.donor + 1) % self.layout.donors(), slot };
                steps.push(Step::Send { block, group, member, place, sequence, cause: Cause::Copy });
            }
            Policy::Parity => {
                let members = Members::first(self.layout.members);
                steps.push(Step::StoreParity { group, place: parity, members, covering: Covering::Sealed });
            }
            _ => {}
        }
    }
}

/// Returns the donor of a group's parity.
pub(super) fn parity_donor(group: u32, donors: u8) -> u8 {
    (group % u32::from(donors)) as u8
}

/// Returns the donor of a member: the members follow the donor of the parity, cyclically.
pub(super) fn place_of_member(group: u32, member: u8, donors: u8) -> u8 {
    ((u32::from(parity_donor(group, donors)) + 1 + u32::from(member)) % u32::from(donors)) as u8
}

impl Placement for InPlace {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn write(&mut self, blocks: Range<u32>, steps: &mut Vec<Step>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        for block in blocks {
            self.send(block, steps);
            self.set(block, true);
        }
        Ok(())
    }

    fn trim(&mut self, blocks: Range<u32>, steps: &mut Vec<Step>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        for block in blocks {
            if self.locate(block) != Location::Unmapped {
                self.send(block, steps);
                self.set(block, false);
            }
        }
        Ok(())
    }

    /// There is nothing to do, because no block waits in memory.
    fn flush(&mut self, _: &mut Vec<Step>) {}

    fn locate(&self, block: u32) -> Location {
        match self.mapped[(block / 64) as usize] >> (block % 64) & 1 {
            1 => Location::Slot(self.place(block)),
            _ => Location::Unmapped,
        }
    }

    fn memory(&self) -> Memory {
        let (rows, donors) = (u64::from(self.layout.rows()), u64::from(self.layout.donors()));
        let copies = if self.layout.policy == Policy::Mirror { 2 } else { 1 };
        Memory {
            tables_bytes: 8 * self.mapped.len() as u64,
            client_blocks_max: if self.layout.policy == Policy::Parity { 3 } else { 1 },
            donor_slots: rows * donors * copies,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const BLOCKS: u32 = 50;

    /// Writes and trims blocks; after each operation, checks the contents of every block with one donor lost.
    fn survives(policy: Policy, members: u8) {
        let mut device = Layout::new(policy, BLOCKS, members).open().expect("a layout");
        let mut stored: BTreeMap<Place, u64> = BTreeMap::new();
        let mut newest = vec![0u64; BLOCKS as usize];
        let mut steps = Vec::new();
        for round in 1..400u64 {
            let first = (round * 7919 % u64::from(BLOCKS)) as u32;
            let blocks = first..BLOCKS.min(first + 1 + (round % 5) as u32);
            steps.clear();
            match round % 6 {
                0 => device.trim(blocks.clone(), &mut steps).expect("blocks of the device"),
                _ => device.write(blocks.clone(), &mut steps).expect("blocks of the device"),
            }
            blocks.for_each(|block| newest[block as usize] = if round % 6 == 0 { 0 } else { round });
            let mut parity = 0;
            for step in &steps {
                match *step {
                    Step::ReadOld { place, .. } => parity ^= stored.get(&place).copied().unwrap_or(0),
                    Step::Send { block, place, .. } => {
                        parity ^= newest[block as usize];
                        stored.insert(place, newest[block as usize]);
                    }
                    Step::StoreParity { place, .. } => drop(stored.insert(place, std::mem::take(&mut parity))),
                    _ => unreachable!("{step:?}"),
                }
            }
            let donors = device.layout().donors();
            for (block, newest) in newest.iter().enumerate() {
                let member = (block % usize::from(members)) as u8;
                let slot = block as u32 / u32::from(members);
                let others: Vec<u64> = match policy {
                    Policy::Mirror => {
                        let donor = (member + 1) % donors;
                        assert_ne!(donor, member);
                        vec![stored.get(&Place { donor, slot: device.layout().rows() + slot }).copied().unwrap_or(0)]
                    }
                    _ => {
                        let own = place_of_member(slot, member, donors);
                        let others = (0..donors).filter(|&donor| donor != own);
                        others.map(|donor| stored.get(&Place { donor, slot }).copied().unwrap_or(0)).collect()
                    }
                };
                assert_eq!(
                    others.iter().fold(0, |all, one| all ^ one),
                    *newest,
                    "{policy}, round {round}, block {block}"
                );
            }
        }
    }

    #[test]
    fn any_one_donor_may_be_lost() {
        for members in [2, 3, 4, 8] {
            survives(Policy::Mirror, members);
            survives(Policy::Parity, members);
        }
    }

    #[test]
    fn ranges_beyond_the_device_are_refused_and_change_nothing() {
        for policy in Policy::ALL {
            let mut device = Layout::new(policy, 4096, 4).open().expect("a layout");
            let mut steps = Vec::new();
            let refused = Error::Range { first: 4000, end: 4097, blocks: 4096 };
            assert_eq!(device.write(4000..4097, &mut steps), Err(refused.clone()));
            assert_eq!(device.trim(4000..4097, &mut steps), Err(refused));
            assert!(steps.is_empty() && device.locate(4000) == Location::Unmapped);
        }
    }
}
