//! Damage in the memory of donors, which the scrub has to find.
//!
//! Owns: one damaged byte at a time, in a slot, a parity or a summary of a sealed group, or in a slot or parity of an
//! open one, in runs whose clients scrub.
//! Promises: nothing else is lost while a byte is damaged, except in some runs; the byte is healed before. Every
//! invariant is checked as if the byte were right, so a client that takes a damaged byte for a right one breaks it. In
//! the excepted runs a byte of data stays damaged while a donor is lost: after that, blocks may be unreadable, but none
//! may have other contents.

use nectary_ram::format::slots::{SLOT_HEADER_BYTES, SlotHeader};
use nectary_ram::log::ParityLogPhase;
use nectary_ram::mirror::DonorStanding;

use super::world::RamLogWorld;
use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::network::{ClientId, MILLISECOND};

/// No byte is damaged so soon after another one was healed, because reads of that one may be on their way.
const PAUSE_US: u64 = 300 * MILLISECOND;

/// The most attempts to damage a byte at the end of a run.
const LAST_LIES_MAX: u64 = 20;

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
    /// The time between two steps of a scrub by a client. If it is 0, clients do not scrub, and the run damages
    /// nothing.
    pub scrub_us: u64,
    pub lie: Option<DamagedByte>,
    /// Whether a byte is damaged, and stays so, when a donor is lost.
    pub is_kept_at_loss: bool,
    /// Whether this has happened, so that some blocks may be unreadable.
    pub is_kept: bool,
    /// The number of bytes that were damaged.
    pub count: u64,
    until_us: u64,
    /// The client with which everything else was restored, and the passes of its scrub until then.
    left: Option<(ClientId, u64)>,
}

impl RamLogWorld {
    /// Damages a byte of a group in use, if everything is whole; returns whether it did.
    pub fn lie(&mut self) -> bool {
        let (now_us, group) = (self.now_us(), self.random.below(u64::from(self.shape.groups)) as u32);
        let client = &self.clients[self.current];
        let is_alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        let is_open = client.is_alive && client.machine.phase() == ParityLogPhase::Open;
        let is_whole = client.machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_due = self.lies.lie.is_none() && !self.lies.is_kept && now_us >= self.lies.until_us;
        let may_lie = self.lies.scrub_us > 0 && is_due;
        if !may_lie || !is_alone || !is_open || !is_whole || !self.is_told() {
            return false;
        }
        let is_sealed = client.machine.is_sealed(group);
        let place = if is_sealed { Some(self.draw_sealed(group)) } else { self.draw_open(group) };
        let Some((donor, from, bytes)) = place else { return false };
        let at = (from + self.random.below(bytes)) as usize;
        self.tell(|| format!("donor {donor} has a wrong byte at {at}, of group {group}"));
        let is_slot = bytes == self.areas.slot_bytes && donor != self.areas.parity_donor(group);
        let slot = &self.donors[donor].memory[from as usize..(from + bytes) as usize];
        let is_unused = is_sealed && is_slot && SlotHeader::decode_whole(slot).is_err();
        self.lies.lie = Some(DamagedByte { donor, at, group, is_unused });
        self.lies.count += 1;
        self.flip_lie();
        true
    }

    /// Draws a slot, the parity or the summary of a sealed group.
    fn draw_sealed(&mut self, group: u32) -> (usize, u64, u64) {
        match self.random.chance(80) {
            true => {
                let donor = self.random.below(self.donors.len() as u64) as usize;
                (donor, self.areas.slot(group), self.areas.slot_bytes)
            }
            false => (self.areas.parity_donor(group), self.areas.summary(group), self.areas.summary_bytes),
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
        if let Some(DamagedByte { donor, at, .. }) = self.lies.lie.filter(|_| !self.lies.is_kept) {
            self.donors[donor].memory[at] ^= 0x10;
        }
    }

    /// Damages a byte of a block's data on another donor than the one that is about to be lost, in some runs. It stays.
    pub fn lie_at_loss(&mut self, donor: usize) {
        if !self.lies.is_kept_at_loss || self.lies.is_kept {
            return;
        }
        for _ in 0..LAST_LIES_MAX {
            self.heal_lie();
            self.lies.until_us = 0;
            if !self.lie() {
                continue;
            }
            let Some(DamagedByte { at, group, donor: damaged, .. }) = self.lies.lie else { continue };
            let from = self.areas.slot(group) + SLOT_HEADER_BYTES as u64;
            let is_data = (from..from + BLOCK_BYTES as u64).contains(&(at as u64));
            if is_data && damaged != donor && damaged != self.areas.parity_donor(group) {
                self.lies.is_kept = true;
                return self.coverage.met("donor lost while a slot is damaged", 1);
            }
        }
    }

    /// Corrects the damaged byte, because more must not be lost while it is there.
    pub fn heal_lie(&mut self) {
        if self.lies.lie.is_some() && !self.lies.is_kept {
            self.flip_lie();
            self.lies.lie = None;
            self.lies.until_us = self.now_us() + PAUSE_US;
        }
    }

    /// Notes that bytes of a donor were overwritten. Of slots that a group did not use, the scrub may overwrite another
    /// one than the damaged one, since only their sum counts.
    pub fn overwritten(&mut self, donor: usize, offset: u64, bytes: u64) {
        let is_there = |lie: &DamagedByte| {
            lie.donor == donor && (offset..offset + bytes).contains(&(lie.at as u64))
                || lie.is_unused && offset == self.areas.slot(lie.group) && donor != self.areas.parity_donor(lie.group)
        };
        if self.lies.lie.is_some_and(|lie| is_there(&lie)) {
            self.lies.lie = None;
            self.lies.until_us = self.now_us() + PAUSE_US;
        }
    }

    /// Corrects the damage if the client does not need the group any more or a donor is not trusted, and checks that the
    /// scrub finds damage only where there is some.
    pub fn check_scrub(&mut self, client: ClientId) {
        let machine = &self.clients[client].machine;
        let is_whole = machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_needed = self.lies.lie.is_none_or(|lie| self.is_needed(client, &lie));
        let progress = machine.scrub_progress();
        if !is_whole || !is_needed {
            self.heal_lie();
        }
        let is_lost = [progress.last, progress.present].iter().any(|found| found.lost + found.doubtful > 0);
        let has_more = is_lost || progress.repaired > self.lies.count;
        if has_more && !self.lies.is_kept {
            self.break_with(format!("the scrub found damage where there is none: {progress:?}"));
        }
    }

    /// Whether the scrub still has to repair damage; it must have done so after two passes. In a run whose clients scrub,
    /// a byte is damaged once more at the end.
    pub fn awaits_scrub(&mut self) -> bool {
        if self.lies.scrub_us == 0 || self.lies.is_kept {
            return false;
        }
        let passes = self.clients[self.current].machine.scrub_progress().passes;
        if self.lies.left.is_none_or(|(client, _)| client != self.current) {
            self.lies.left = Some((self.current, passes));
            (0..LAST_LIES_MAX).find(|_| self.lie());
        }
        let before = self.lies.left.map_or(passes, |(_, before)| before);
        let Some(lie) = self.lies.lie else { return false };
        if passes > before + 1 {
            self.break_with(format!("the scrub has left damage: {lie:?}"));
        }
        true
    }
}
