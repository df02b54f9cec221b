//! What the donors have of each block, with each redundancy code.
//!
//! Owns: the places of blocks in the donors' memory, wrong bytes that a fault put there, and blocks that a crash may
//! have lost. Leaves to others: what has to be there (`check`).

use std::ops::Range;

use nectary_ram::group::{Donor, DonorStanding, GroupPhase};
use nectary_ram::in_place::{InPlacePhase, lost_bytes};

use super::InPlaceLayout;
use crate::ram::blocks::{BLOCK_BYTES, number_of};
use crate::ram::network::ClientId;
use crate::ram::world::RamWorld;

/// Wrong bytes that no read has detected yet.
#[derive(Debug, Clone)]
pub struct UndetectedDamage {
    pub donor: Donor,
    /// The offset on the donor. *Units*: bytes.
    pub offset: u64,
    /// The bytes that were there.
    right: Vec<u8>,
}

impl RamWorld<InPlaceLayout> {
    /// Returns the stripe of a block.
    pub fn stripe(&self, block: u64) -> u64 {
        block / self.layout.geometry.stripe_blocks()
    }

    /// Returns the donors that store the mark of a stripe.
    pub fn markers(&self, stripe: u64) -> Option<[Donor; 2]> {
        self.layout.rows.markers(stripe)
    }

    /// Returns where a block is: donors and offsets.
    pub fn places(&self, block: u64) -> Vec<(Donor, u64)> {
        let rows = &self.layout.rows;
        let own = if rows.is_copied() { rows.all_members() } else { rows.member_of(block)..rows.member_of(block) + 1 };
        own.map(|member| self.member_place(rows.column(block), member)).collect()
    }

    /// Returns the donor and the offset of a member in a column.
    pub fn member_place(&self, column: u64, member: usize) -> (Donor, u64) {
        (self.layout.rows.donor(self.stripe_of_column(column), member), self.layout.rows.offset(column, member))
    }

    /// Returns the stripe of a column.
    pub fn stripe_of_column(&self, column: u64) -> u64 {
        self.layout.rows.stripe(column)
    }

    fn bytes(&self, (donor, offset): (Donor, u64)) -> Option<&[u8]> {
        self.donors[donor].memory.get(offset as usize..offset as usize + BLOCK_BYTES)
    }

    /// Returns the bytes of a block on a donor; `None` if the block is not placed on that donor.
    pub fn copy(&self, donor: Donor, block: u64) -> Option<&[u8]> {
        self.bytes(self.places(block).into_iter().find(|(other, _)| *other == donor)?)
    }

    /// With parity: returns the XOR of all members of a column, or of all but one.
    pub fn sum(&self, column: u64, except: Option<usize>) -> Vec<u8> {
        let mut sum = vec![0; BLOCK_BYTES];
        for member in (0..=self.layout.rows.parity()).filter(|member| Some(*member) != except) {
            let bytes = self.bytes(self.member_place(column, member)).unwrap_or_default();
            sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    }

    /// Returns the blocks that a range of a donor's memory has a part in: with parity, all of its columns.
    pub fn blocks_at(&self, donor: Donor, offset: u64, bytes: u64) -> Vec<u64> {
        let block = BLOCK_BYTES as u64;
        if self.layout.geometry.is_parity() {
            let columns = offset / block..(offset + bytes).div_ceil(block);
            let of =
                |column: u64| (0..self.layout.rows.parity()).map(move |member| self.layout.rows.block(column, member));
            return columns.flat_map(of).filter(|block| *block < self.layout.geometry.blocks()).collect();
        }
        if self.layout.is_plain() {
            let is_in = |(other, at): (Donor, u64)| other == donor && (offset..offset + bytes).contains(&at);
            return (0..self.layout.geometry.blocks())
                .filter(|block| self.places(*block).into_iter().any(is_in))
                .collect();
        }
        let stripe_bytes = u64::from(self.layout.geometry.stripe_bytes);
        let (slot, donors) = (offset / stripe_bytes, self.donors.len() as u64);
        let column = if slot.is_multiple_of(2) { donor as u64 } else { (donor as u64 + donors - 1) % donors };
        let stripe = slot / 2 * donors + column;
        let first = stripe * self.layout.geometry.stripe_blocks() + offset % stripe_bytes / block;
        (first..first + bytes / block).collect()
    }

    /// Whether a block may have these bytes.
    pub fn may_have(&self, block: u64, bytes: &[u8]) -> bool {
        self.layout.blocks.may_be(block, bytes)
            || self.layout.may_be_lost.contains_key(&block)
                && bytes == lost_bytes(&self.layout.geometry.device, block, BLOCK_BYTES)
    }

    /// Whether a donor's copy of a block has possible contents; `true` if the donor has no copy.
    pub fn is_good(&self, donor: Donor, block: u64) -> bool {
        let place = self.places(block).into_iter().find(|(other, _)| *other == donor);
        place
            .is_none_or(|place| self.bytes(place).is_none_or(|bytes| self.may_have(block, bytes)) || self.is_lie(place))
    }

    /// Describes what a donor has of a block.
    pub fn describe(&self, donor: Donor, block: u64) -> String {
        let number = self.copy(donor, block).and_then(|copy| number_of(copy, block));
        format!("donor {donor}, block {block}: {number:?} where {} belongs", self.layout.blocks.expected(block))
    }

    /// Whether a fault put wrong bytes at a place.
    pub fn is_lie(&self, (donor, offset): (Donor, u64)) -> bool {
        self.layout.lies.iter().any(|lie| lie.donor == donor && lie.offset == offset)
    }

    /// Whether a fault put wrong bytes where they concern a block: on one of its copies, or in its column.
    pub fn has_lie(&self, block: u64) -> bool {
        match self.layout.geometry.is_parity() {
            true => self
                .layout
                .lies
                .iter()
                .any(|lie| lie.offset == self.layout.rows.offset(self.layout.rows.column(block), 0)),
            false => self.places(block).into_iter().any(|place| self.is_lie(place)),
        }
    }

    /// Makes a donor change bytes of a random block or parity; returns false if the client does not know their
    /// checksum, or if this fault is not allowed now.
    pub fn lie(&mut self) -> bool {
        let is_everywhere = self.layout.is_told && self.layout.believed.iter().all(|believed| *believed);
        let place = match self.layout.geometry.is_parity() {
            true => self.draw_member(),
            false => self.draw_copy(),
        };
        let Some(place) = place.filter(|_| is_everywhere && self.is_whole()) else { return false };
        self.spoil(place);
        true
    }

    /// Draws a copy of a block that the client knows.
    fn draw_copy(&mut self) -> Option<(usize, u64)> {
        let block = self.random.below(self.layout.geometry.blocks());
        let places = self.places(block);
        let place = places[self.random.below(places.len() as u64) as usize];
        let is_known =
            self.clients[self.current].machine.knows_checksum(block) && !self.layout.blocks.is_pending(block);
        (is_known && !self.has_lie(block)).then_some(place)
    }

    /// Draws a member of a column that the client knows.
    fn draw_member(&mut self) -> Option<(usize, u64)> {
        let column = self.random.below(self.layout.rows.columns());
        let member = self.random.below(self.donors.len() as u64) as usize;
        let mut blocks = (0..self.layout.rows.parity()).map(|member| self.layout.rows.block(column, member));
        let is_pending = |block: u64| block < self.layout.geometry.blocks() && self.layout.blocks.is_pending(block);
        let is_known = self.clients[self.current].machine.knows_member(column, member);
        let is_free = !blocks.any(is_pending) && !self.has_lie(self.layout.rows.block(column, 0));
        (is_known && is_free).then(|| self.member_place(column, member))
    }

    /// Puts wrong bytes at a place.
    pub fn spoil(&mut self, (donor, offset): (Donor, u64)) {
        let right = self.bytes((donor, offset)).unwrap_or_default().to_vec();
        self.tell(|| format!("donor {donor} has wrong bytes at {offset}"));
        self.donors[donor].memory[offset as usize + 3] ^= 0x10;
        self.layout.lies.push(UndetectedDamage { donor, offset, right });
        self.layout.had_lies = true;
    }

    /// Forgets wrong bytes that were overwritten.
    pub fn forget_lies(&mut self, donor: Donor, written: Range<u64>) {
        let before = self.layout.lies.len();
        self.layout.lies.retain(|lie| lie.donor != donor || !written.contains(&lie.offset));
        if self.layout.lies.len() < before {
            self.tell(|| format!("wrong bytes of donor {donor} are overwritten"));
        }
    }

    /// Corrects wrong bytes, because the next fault must not be a second one for the same block.
    pub fn heal_lies(&mut self) {
        for UndetectedDamage { donor, offset, right } in std::mem::take(&mut self.layout.lies) {
            self.donors[donor].memory[offset as usize..][..right.len()].copy_from_slice(&right);
        }
    }

    /// Notes which blocks a client that attaches cannot know: those of a missing donor, in stripes that the others have
    /// marked.
    pub fn note_lost(&mut self, client: ClientId) {
        let machine = &self.clients[client].machine;
        let is_opening = machine.group().phase() == GroupPhase::Opening;
        let is_attaching = is_opening || machine.phase() == InPlacePhase::Resync;
        if !self.layout.geometry.is_parity() || client != self.current || !is_attaching {
            return;
        }
        let standing = machine.group().standing().to_vec();
        let is_marked = |donor: Donor, stripe: u64| {
            let record = self.donors[donor].record.as_ref();
            standing[donor] == DonorStanding::Trusted && record.is_some_and(|record| record.dirty.has(stripe))
        };
        let is_lost = |block: &u64| {
            let stripe = self.stripe(*block);
            let is_there = self.places(*block).iter().any(|(donor, _)| standing[*donor] == DonorStanding::Trusted);
            !is_there && (0..standing.len()).any(|donor| is_marked(donor, stripe))
        };
        let lost: Vec<u64> = (0..self.layout.geometry.blocks()).filter(is_lost).collect();
        self.layout.may_be_lost.extend(lost.into_iter().map(|block| (block, client)));
    }

    /// Without redundancy: notes that a donor loses what it has.
    pub fn note_loss(&mut self, donor: Donor) {
        if !self.layout.is_plain() {
            return;
        }
        (self.layout.is_unfilled, _) = (true, self.layout.losses.insert(self.current));
        let bytes = self.layout.rows.donor_bytes(donor);
        let lost = self.blocks_at(donor, 0, bytes).into_iter().map(|block| (block, self.current));
        self.layout.may_be_lost.extend(lost.collect::<Vec<_>>());
    }

    /// Notes that a client was told that blocks are written: they are not lost any more, unless a later client found
    /// them so, or their donor may have lost them meanwhile.
    pub fn note_written(&mut self, client: ClientId, blocks: Range<u64>) {
        let is_there = |block: u64| {
            !self.layout.is_plain() || self.places(block).iter().all(|(donor, _)| self.layout.believed[*donor])
        };
        let found: Vec<u64> = self
            .layout
            .may_be_lost
            .range(blocks)
            .filter(|(block, by)| **by <= client && is_there(**block))
            .map(|(block, _)| *block)
            .collect();
        let now = self.layout.history.tick();
        for block in found {
            self.layout.may_be_lost.remove(&block);
            self.layout.were_lost.insert(block, now);
        }
    }

    /// Whether a read may find a block lost that began at this time of the history.
    pub fn may_find_lost(&self, block: u64, began: u64) -> bool {
        self.layout.may_be_lost.contains_key(&block)
            || self.layout.were_lost.get(&block).is_some_and(|until| began < *until)
    }
}
