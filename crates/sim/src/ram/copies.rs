//! What the donors have of each block, with either redundancy code.
//!
//! Owns: the places of blocks in the donors' memory, wrong bytes that a fault put there, and blocks that a crash may
//! have lost. Leaves to others: what has to be there (`check`).

use std::ops::Range;

use nectary_ram::mirror::{Donor, DonorStanding, MirrorPhase, StripeLayout, lost_bytes};

use super::blocks::{BLOCK_BYTES, number_of};
use super::network::ClientId;
use super::world::RamWorld;

/// Wrong bytes that no read has detected yet.
#[derive(Debug, Clone)]
pub struct UndetectedDamage {
    pub donor: Donor,
    /// The offset on the donor. *Units*: bytes.
    pub offset: u64,
    /// The bytes that were there.
    right: Vec<u8>,
}

impl RamWorld {
    /// Returns the stripe of a block.
    pub fn stripe(&self, block: u64) -> u64 {
        block / self.geometry.stripe_blocks()
    }

    /// Returns the donors that store the mark of a stripe.
    pub fn markers(&self, stripe: u64) -> [Donor; 2] {
        match self.geometry.is_parity() {
            true => self.rows.markers(stripe),
            false => self.ring.markers(stripe),
        }
    }

    /// Returns where a block is: donors and offsets.
    pub fn places(&self, block: u64) -> Vec<(Donor, u64)> {
        if self.geometry.is_parity() {
            return vec![self.member_place(self.rows.column(block), self.rows.member_of(block))];
        }
        let inside = block % self.geometry.stripe_blocks() * BLOCK_BYTES as u64;
        self.ring.places(self.stripe(block)).iter().map(|place| (place.donor, place.offset + inside)).collect()
    }

    /// With parity: returns the donor and the offset of a member in a column.
    pub fn member_place(&self, column: u64, member: usize) -> (Donor, u64) {
        (self.rows.donor(self.stripe_of_column(column), member), self.rows.offset(column))
    }

    /// With parity: returns the stripe of a column.
    pub fn stripe_of_column(&self, column: u64) -> u64 {
        self.stripe(self.rows.block(column, 0))
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
        for member in (0..=self.rows.parity()).filter(|member| Some(*member) != except) {
            let bytes = self.bytes(self.member_place(column, member)).unwrap_or_default();
            sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    }

    /// Returns the blocks that a range of a donor's memory has a part in: with parity, all of its columns.
    pub fn blocks_at(&self, donor: Donor, offset: u64, bytes: u64) -> Vec<u64> {
        let block = BLOCK_BYTES as u64;
        if self.geometry.is_parity() {
            let columns = offset / block..(offset + bytes).div_ceil(block);
            let of = |column: u64| (0..self.rows.parity()).map(move |member| self.rows.block(column, member));
            return columns.flat_map(of).filter(|block| *block < self.geometry.blocks()).collect();
        }
        let stripe_bytes = u64::from(self.geometry.stripe_bytes);
        let (slot, donors) = (offset / stripe_bytes, self.donors.len() as u64);
        let column = if slot.is_multiple_of(2) { donor as u64 } else { (donor as u64 + donors - 1) % donors };
        let stripe = slot / 2 * donors + column;
        let first = stripe * self.geometry.stripe_blocks() + offset % stripe_bytes / block;
        (first..first + bytes / block).collect()
    }

    /// Whether a block may have these bytes.
    pub fn may_have(&self, block: u64, bytes: &[u8]) -> bool {
        self.blocks.may_be(block, bytes)
            || self.may_be_lost.contains_key(&block) && bytes == lost_bytes(&self.geometry.device, block, BLOCK_BYTES)
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
        format!("donor {donor}, block {block}: {number:?} where {} belongs", self.blocks.expected(block))
    }

    /// Whether a fault put wrong bytes at a place.
    pub fn is_lie(&self, (donor, offset): (Donor, u64)) -> bool {
        self.lies.iter().any(|lie| lie.donor == donor && lie.offset == offset)
    }

    /// Whether a fault put wrong bytes where they concern a block: on one of its copies, or in its column.
    pub fn has_lie(&self, block: u64) -> bool {
        match self.geometry.is_parity() {
            true => self.lies.iter().any(|lie| lie.offset == self.rows.offset(self.rows.column(block))),
            false => self.places(block).into_iter().any(|place| self.is_lie(place)),
        }
    }

    /// Puts wrong bytes at a place.
    pub fn spoil(&mut self, (donor, offset): (Donor, u64)) {
        let right = self.bytes((donor, offset)).unwrap_or_default().to_vec();
        self.tell(|| format!("donor {donor} has wrong bytes at {offset}"));
        self.donors[donor].memory[offset as usize + 3] ^= 0x10;
        self.lies.push(UndetectedDamage { donor, offset, right });
        self.had_lies = true;
    }

    /// Forgets wrong bytes that were overwritten.
    pub fn forget_lies(&mut self, donor: Donor, written: Range<u64>) {
        let before = self.lies.len();
        self.lies.retain(|lie| lie.donor != donor || !written.contains(&lie.offset));
        if self.lies.len() < before {
            self.tell(|| format!("wrong bytes of donor {donor} are overwritten"));
        }
    }

    /// Corrects wrong bytes, because the next fault must not be a second one for the same block.
    pub fn heal_lies(&mut self) {
        for UndetectedDamage { donor, offset, right } in std::mem::take(&mut self.lies) {
            self.donors[donor].memory[offset as usize..][..right.len()].copy_from_slice(&right);
        }
    }

    /// Notes which blocks a client that attaches cannot know: those of a missing donor, in stripes that the others have
    /// marked.
    pub fn note_lost(&mut self, client: ClientId) {
        let machine = &self.clients[client].machine;
        let is_attaching = matches!(machine.phase(), MirrorPhase::Opening | MirrorPhase::Resync);
        if !self.geometry.is_parity() || client != self.current || !is_attaching {
            return;
        }
        let standing = machine.standing().to_vec();
        let is_marked = |donor: Donor, stripe: u64| {
            let record = self.donors[donor].record.as_ref();
            standing[donor] == DonorStanding::Trusted && record.is_some_and(|record| record.dirty.has(stripe))
        };
        let is_lost = |block: &u64| {
            let stripe = self.stripe(*block);
            let is_there = self.places(*block).iter().any(|(donor, _)| standing[*donor] == DonorStanding::Trusted);
            !is_there && (0..standing.len()).any(|donor| is_marked(donor, stripe))
        };
        let lost: Vec<u64> = (0..self.geometry.blocks()).filter(is_lost).collect();
        self.may_be_lost.extend(lost.into_iter().map(|block| (block, client)));
    }

    /// Notes that a client was told that blocks are written: they are not lost any more, unless a later client found
    /// them so.
    pub fn note_written(&mut self, client: ClientId, blocks: Range<u64>) {
        let found: Vec<u64> =
            self.may_be_lost.range(blocks).filter(|(_, by)| **by <= client).map(|(block, _)| *block).collect();
        let now = self.history.tick();
        for block in found {
            self.may_be_lost.remove(&block);
            self.were_lost.insert(block, now);
        }
    }

    /// Whether a read may find a block lost that began at this time of the history.
    pub fn may_find_lost(&self, block: u64, began: u64) -> bool {
        self.may_be_lost.contains_key(&block) || self.were_lost.get(&block).is_some_and(|until| began < *until)
    }
}
