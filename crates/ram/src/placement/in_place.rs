//! `none`, `mirror` and `parity`: the slot of a block never changes.
//!
//! Owns: the arithmetic of these slots, and the set of written blocks. Leaves to others: marking a stripe dirty before
//! it changes. Without the mark, a crash of the client could leave a stripe whose copies or parity differ, unnoticed.
//!
//! Block `b` is member `b mod S` of group `b / S`. The second copy of a mirror is in the other half of the slots of the
//! next donor. `parity` needs four transfers, because donors do not compute XOR: the client reads the old data and
//! parity and writes both.

use std::ops::Range;

use super::{
    DonorSlot, Error, MemberSet, NewestLocation, ParityCause, Placement, PlacementMemory, PlacementSettings,
    PlacementStep, RedundancyPolicy, SendCause,
};

/// A placement that never moves a block.
#[derive(Debug)]
pub struct InPlace {
    layout: PlacementSettings,
    /// One bit for each block; it is set if the block was written.
    mapped: Vec<u64>,
    sequence: u64,
}

impl InPlace {
    /// Makes an empty device. The layout must be checked before.
    pub(super) fn new(layout: PlacementSettings) -> InPlace {
        let words = layout.blocks.div_ceil(64) as usize;
        InPlace { layout, mapped: vec![0; words], sequence: 0 }
    }

    fn group(&self, block: u32) -> (u32, u8) {
        let members = u32::from(self.layout.members);
        (block / members, (block % members) as u8)
    }

    fn place(&self, block: u32) -> DonorSlot {
        let (group, member) = self.group(block);
        let donor = match self.layout.policy {
            RedundancyPolicy::Parity => place_of_member(group, member, self.layout.donors()),
            _ => member,
        };
        DonorSlot { donor, slot: group }
    }

    fn set(&mut self, block: u32, is_mapped: bool) {
        let (word, bit) = ((block / 64) as usize, 1 << (block % 64));
        match is_mapped {
            true => self.mapped[word] |= bit,
            false => self.mapped[word] &= !bit,
        }
    }

    /// Adds the steps that send a block and its copy or parity; after a trim, zeroes are sent.
    fn send(&mut self, block: u32, steps: &mut Vec<PlacementStep>) {
        let ((group, member), place) = (self.group(block), self.place(block));
        self.sequence += 1;
        let sequence = self.sequence;
        let parity = DonorSlot { donor: parity_donor(group, self.layout.donors()), slot: group };
        if self.layout.policy == RedundancyPolicy::Parity {
            steps.push(PlacementStep::ReadOld { group, place });
            steps.push(PlacementStep::ReadOld { group, place: parity });
        }
        steps.push(PlacementStep::Send { block, group, member, place, sequence, cause: SendCause::Write });
        match self.layout.policy {
            RedundancyPolicy::Mirror => {
                let slot = self.layout.rows() + group;
                let place = DonorSlot { donor: (place.donor + 1) % self.layout.donors(), slot };
                steps.push(PlacementStep::Send { block, group, member, place, sequence, cause: SendCause::Copy });
            }
            RedundancyPolicy::Parity => {
                let members = MemberSet::first(self.layout.members);
                steps.push(PlacementStep::StoreParity { group, place: parity, members, covering: ParityCause::Sealed });
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
    fn layout(&self) -> &PlacementSettings {
        &self.layout
    }

    fn write(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        for block in blocks {
            self.send(block, steps);
            self.set(block, true);
        }
        Ok(())
    }

    fn trim(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        for block in blocks {
            if self.locate(block) != NewestLocation::Unmapped {
                self.send(block, steps);
                self.set(block, false);
            }
        }
        Ok(())
    }

    /// There is nothing to do, because no block waits in memory.
    fn flush(&mut self, _: &mut Vec<PlacementStep>) {}

    fn locate(&self, block: u32) -> NewestLocation {
        match self.mapped[(block / 64) as usize] >> (block % 64) & 1 {
            1 => NewestLocation::Slot(self.place(block)),
            _ => NewestLocation::Unmapped,
        }
    }

    fn memory(&self) -> PlacementMemory {
        let (rows, donors) = (u64::from(self.layout.rows()), u64::from(self.layout.donors()));
        let copies = if self.layout.policy == RedundancyPolicy::Mirror { 2 } else { 1 };
        PlacementMemory {
            tables_bytes: 8 * self.mapped.len() as u64,
            client_blocks_max: if self.layout.policy == RedundancyPolicy::Parity { 3 } else { 1 },
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
    fn survives(policy: RedundancyPolicy, members: u8) {
        let mut device = PlacementSettings::new(policy, BLOCKS, members).open().expect("a layout");
        let mut stored: BTreeMap<DonorSlot, u64> = BTreeMap::new();
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
                    PlacementStep::ReadOld { place, .. } => parity ^= stored.get(&place).copied().unwrap_or(0),
                    PlacementStep::Send { block, place, .. } => {
                        parity ^= newest[block as usize];
                        stored.insert(place, newest[block as usize]);
                    }
                    PlacementStep::StoreParity { place, .. } => drop(stored.insert(place, std::mem::take(&mut parity))),
                    _ => unreachable!("{step:?}"),
                }
            }
            let donors = device.layout().donors();
            for (block, newest) in newest.iter().enumerate() {
                let member = (block % usize::from(members)) as u8;
                let slot = block as u32 / u32::from(members);
                let others: Vec<u64> = match policy {
                    RedundancyPolicy::Mirror => {
                        let donor = (member + 1) % donors;
                        assert_ne!(donor, member);
                        vec![
                            stored.get(&DonorSlot { donor, slot: device.layout().rows() + slot }).copied().unwrap_or(0),
                        ]
                    }
                    _ => {
                        let own = place_of_member(slot, member, donors);
                        let others = (0..donors).filter(|&donor| donor != own);
                        others.map(|donor| stored.get(&DonorSlot { donor, slot }).copied().unwrap_or(0)).collect()
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
            survives(RedundancyPolicy::Mirror, members);
            survives(RedundancyPolicy::Parity, members);
        }
    }

    #[test]
    fn range_past_device_changes_nothing() {
        for policy in RedundancyPolicy::ALL {
            let mut device = PlacementSettings::new(policy, 4096, 4).open().expect("a layout");
            let mut steps = Vec::new();
            let refused = Error::Range { first: 4000, end: 4097, blocks: 4096 };
            assert_eq!(device.write(4000..4097, &mut steps), Err(refused.clone()));
            assert_eq!(device.trim(4000..4097, &mut steps), Err(refused));
            assert!(steps.is_empty() && device.locate(4000) == NewestLocation::Unmapped);
        }
    }
}
