//! Damage in the memory of donors, which the scrub has to find.
//!
//! Owns: one damaged byte at a time, in a slot, a parity or a summary of a sealed group, or in a slot or parity of an
//! open one, in runs whose clients scrub.
//! Promises: nothing else is lost while a byte is damaged, except in some runs; the byte is healed before. Every
//! invariant is checked as if the byte were right, so a client that takes a damaged byte for a right one breaks it. In
//! the excepted runs a byte of data stays damaged while a donor is lost: after that, blocks may be unreadable, but none
//! may have other contents.

use nectary_ram::format::slots::{SLOT_HEADER_BYTES, SlotHeader};

use super::LoggedLayout;
use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::network::{ClientId, MILLISECOND};
use crate::ram::world::{LAST_DAMAGE_MAX, RamWorld};

/// No byte is damaged so soon after another one was healed, because reads of that one may be on their way.
const PAUSE_US: u64 = 300 * MILLISECOND;

/// A damaged byte.
#[derive(Debug, Clone, Copy)]
pub struct DamagedByte {
    donor: usize,
    at: usize,
    group: u32,
    /// Whether the byte is in a slot that the group did not use.
    is_unused: bool,
}

/// The damage of a run.
#[derive(Debug, Default)]
pub struct DonorDamage {
    pub lie: Option<DamagedByte>,
    /// Whether a byte is damaged, and stays so, when a donor is lost.
    pub is_kept_at_loss: bool,
    /// Whether this has happened, so that some blocks may be unreadable.
    pub is_kept: bool,
    /// The number of bytes that were damaged.
    pub count: u64,
    until_us: u64,
}

impl RamWorld<LoggedLayout> {
    /// Damages a byte of a group in use, if everything is whole; returns whether it did.
    pub fn lie(&mut self) -> bool {
        let (now_us, group) = (self.now_us(), self.random.below(u64::from(self.layout.shape.groups)) as u32);
        let client = &self.clients[self.current];
        let is_due = self.layout.lies.lie.is_none() && !self.layout.lies.is_kept && now_us >= self.layout.lies.until_us;
        let may_lie = self.scrub_us > 0 && is_due;
        if !may_lie || !self.is_whole() || !self.is_told() {
            return false;
        }
        let is_sealed = client.machine.is_sealed(group);
        let place = if is_sealed { Some(self.draw_sealed(group)) } else { self.draw_open(group) };
        let Some((donor, from, bytes)) = place else { return false };
        let at = (from + self.random.below(bytes)) as usize;
        self.tell(|| format!("donor {donor} has a wrong byte at {at}, of group {group}"));
        let is_slot = bytes == self.layout.areas.slot_bytes && donor != self.layout.areas.parity_donor(group);
        let slot = &self.donors[donor].memory[from as usize..(from + bytes) as usize];
        let is_unused = is_sealed && is_slot && SlotHeader::decode_whole(slot).is_err();
        self.layout.lies.lie = Some(DamagedByte { donor, at, group, is_unused });
        self.layout.lies.count += 1;
        self.flip_lie();
        true
    }

    /// Draws a slot, the parity or the summary of a sealed group.
    fn draw_sealed(&mut self, group: u32) -> (usize, u64, u64) {
        match self.random.chance(80) {
            true => {
                let donor = self.random.below(self.donors.len() as u64) as usize;
                (donor, self.layout.areas.slot(group), self.layout.areas.slot_bytes)
            }
            false => (
                self.layout.areas.parity_donor(group),
                self.layout.areas.summary(group),
                self.layout.areas.summary_bytes,
            ),
        }
    }

    /// Draws something that is stored of an open group.
    fn draw_open(&mut self, group: u32) -> Option<(usize, u64, u64)> {
        let stored = self.clients[self.current].machine.stored_of_open(group);
        let at = self.random.below(stored.len().max(1) as u64) as usize;
        stored.get(at).copied()
    }

    /// Whether the client needs the bytes of which one is damaged.
    fn is_needed(&self, client: ClientId, lie: &DamagedByte) -> bool {
        let machine = &self.clients[client].machine;
        let has_it = |(donor, from, bytes): &(usize, u64, u64)| {
            *donor == lie.donor && (*from..from + bytes).contains(&(lie.at as u64))
        };
        machine.is_sealed(lie.group) || machine.stored_of_open(lie.group).iter().any(has_it)
    }

    /// Makes the damaged byte right, or damaged again.
    pub fn flip_lie(&mut self) {
        if let Some(DamagedByte { donor, at, .. }) = self.layout.lies.lie.filter(|_| !self.layout.lies.is_kept) {
            self.donors[donor].memory[at] ^= 0x10;
        }
    }

    /// Damages a byte of a block's data on another donor than the one that is about to be lost, in some runs. It stays.
    pub fn lie_at_loss(&mut self, donor: usize) {
        if !self.layout.lies.is_kept_at_loss || self.layout.lies.is_kept {
            return;
        }
        for _ in 0..LAST_DAMAGE_MAX {
            self.heal_lie();
            self.layout.lies.until_us = 0;
            if !self.lie() {
                continue;
            }
            let Some(DamagedByte { at, group, donor: damaged, .. }) = self.layout.lies.lie else { continue };
            let from = self.layout.areas.slot(group) + SLOT_HEADER_BYTES as u64;
            let is_data = (from..from + BLOCK_BYTES as u64).contains(&(at as u64));
            if is_data && damaged != donor && damaged != self.layout.areas.parity_donor(group) {
                self.layout.lies.is_kept = true;
                return self.coverage.met("donor lost while a slot is damaged", 1);
            }
        }
    }

    /// Corrects the damaged byte, because more must not be lost while it is there.
    pub fn heal_lie(&mut self) {
        if self.layout.lies.lie.is_some() && !self.layout.lies.is_kept {
            self.flip_lie();
            self.layout.lies.lie = None;
            self.layout.lies.until_us = self.now_us() + PAUSE_US;
        }
    }

    /// Notes that bytes of a donor were overwritten. Of slots that a group did not use, the scrub may overwrite another
    /// one than the damaged one, since only their sum counts.
    pub fn overwritten(&mut self, donor: usize, offset: u64, bytes: u64) {
        let is_there = |lie: &DamagedByte| {
            lie.donor == donor && (offset..offset + bytes).contains(&(lie.at as u64))
                || lie.is_unused
                    && offset == self.layout.areas.slot(lie.group)
                    && donor != self.layout.areas.parity_donor(lie.group)
        };
        if self.layout.lies.lie.is_some_and(|lie| is_there(&lie)) {
            self.layout.lies.lie = None;
            self.layout.lies.until_us = self.now_us() + PAUSE_US;
        }
    }

    /// Corrects the damage if the client does not need the group any more or a donor is not trusted, and checks that the
    /// scrub finds damage only where there is some.
    pub fn check_scrub(&mut self, client: ClientId) {
        let machine = &self.clients[client].machine;
        let is_whole = self.clients[client].is_whole();
        let is_needed = self.layout.lies.lie.is_none_or(|lie| self.is_needed(client, &lie));
        let progress = machine.scrub_progress();
        if !is_whole || !is_needed {
            self.heal_lie();
        }
        let is_lost = [progress.last, progress.present].iter().any(|found| found.lost + found.doubtful > 0);
        let has_more = is_lost || progress.repaired > self.layout.lies.count;
        if has_more && !self.layout.lies.is_kept {
            self.break_with(format!("the scrub found damage where there is none: {progress:?}"));
        }
    }
}
