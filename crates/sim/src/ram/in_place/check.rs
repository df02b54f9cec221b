//! The invariants that must hold after every step.
//!
//! Owns: the invariants of a device that is changed in place, and the allowed answers to its users.
//!
//! - The data that the current client may read from a donor are of the last acknowledged change, or of a change that is
//!   in progress or failed.
//! - The same holds for the data that an attaching client would accept, from all donors or, with more than two donors,
//!   without any one of them. So no data depend on the client's memory.
//! - Two copies that an attaching client would accept differ only in a stripe that one of their donors has marked as
//!   dirty. With parity, the XOR of all members is zero, or both donors with the stripe's mark have it; if one donor is
//!   missing, the others yield what it had, or one of them has the mark.
//! - No read returns bytes that were never written there; no request fails as lost unless more was lost than the policy
//!   survives. With parity, a read may also fail for a block of a donor that was missing when the client was lost, in a
//!   stripe that was marked then, if it began before the block was written again.
//! - Without redundancy, the loss of a donor's memory makes exactly its blocks fail, until each is written again; no flush
//!   of that client succeeds once it knows; nobody attaches while a donor is missing or not filled again.
//! - After the last fault, both copies of every stripe become equal, or the XOR of its members zero. The scrub repairs
//!   every wrong copy in two passes, and finds no damage where there is none.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use nectary_ram::group::{AttachRefusal, DeviceError, Donor, DonorContent, OPERATIONS_MAX, merge};
use nectary_ram::in_place::InPlacePhase;
use nectary_ram::scrub::ScrubFindings;

use super::InPlaceLayout;
use crate::cache::history::CellRead;
use crate::ram::blocks::{BLOCK_BYTES, number_of};
use crate::ram::client::RamUserOperation;
use crate::ram::network::ClientId;
use crate::ram::world::{RamRunStage, RamWorld};

/// The largest number of concurrent copy operations of a client, in addition to its user's operations.
const COPIES_BESIDE_MAX: usize = 8;

impl RamWorld<InPlaceLayout> {
    fn check_believed(&mut self, donor: Donor, blocks: impl IntoIterator<Item = u64>, what: &str) {
        if !self.layout.believed[donor] || !self.is_created || self.is_lossy {
            return;
        }
        if let Some(block) = blocks.into_iter().find(|block| !self.is_good(donor, *block)) {
            let what = format!("{what}: an attacher would believe a wrong copy: {}", self.describe(donor, block));
            self.break_with(what);
        }
    }

    /// Whether a donor has all acknowledged changes of the blocks that are placed on it.
    pub fn has_everything(&self, donor: Donor) -> bool {
        (0..self.layout.geometry.blocks()).all(|block| self.is_good(donor, block))
    }

    /// Checks the invariants after a change of a donor's memory.
    pub fn memory_changed(&mut self, donor: Donor, offset: u64, bytes: u64) {
        self.forget_lies(donor, offset..offset + bytes);
        let blocks = self.blocks_at(donor, offset, bytes);
        self.check_believed(donor, blocks.iter().copied(), "after a change");
        self.check_marks(blocks, "after a change");
    }

    fn is_marked(&self, donor: Donor, stripe: u64) -> bool {
        self.donors[donor].record.as_ref().is_some_and(|record| record.dirty.has(stripe))
    }

    /// Checks that the two copies of each block are equal, unless one of their donors has marked the stripe as dirty.
    /// Blocks are skipped if an attaching client would not accept both copies, or if one copy was made wrong by a
    /// fault. With parity, checks columns.
    fn check_marks(&mut self, blocks: impl IntoIterator<Item = u64>, what: &str) {
        if !self.is_created || self.is_lossy {
            return;
        }
        let mut blocks = blocks.into_iter();
        if self.layout.geometry.is_parity() {
            let columns: BTreeSet<u64> = blocks.map(|block| self.layout.rows.column(block)).collect();
            return self.check_columns(columns, what);
        }
        let is_unmarked = |block: &u64| {
            let stripe = self.stripe(*block);
            let Some([first, second]) = self.markers(stripe) else { return false };
            self.layout.believed[first]
                && self.layout.believed[second]
                && !self.is_marked(first, stripe)
                && !self.is_marked(second, stripe)
                && self.copy(first, *block) != self.copy(second, *block)
                && !self.has_lie(*block)
        };
        if let Some(block) = blocks.find(is_unmarked) {
            self.break_with(format!("{what}: the copies of block {block} differ and nobody has marked that"));
        }
    }

    fn check_columns(&mut self, columns: BTreeSet<u64>, what: &str) {
        let missing: Vec<Donor> = (0..self.donors.len()).filter(|donor| !self.layout.believed[*donor]).collect();
        let is_zero = |column: u64| self.sum(column, None).iter().all(|byte| *byte == 0);
        let is_wrong = |column: &u64| {
            let stripe = self.stripe_of_column(*column);
            let Some(markers) = self.markers(stripe) else { return false };
            if self.has_lie(self.layout.rows.block(*column, 0)) {
                return false;
            }
            match missing[..] {
                [] => !is_zero(*column) && !markers.iter().all(|donor| self.is_marked(*donor, stripe)),
                [missing] => {
                    let Some(member) = self.layout.rows.member(stripe, missing) else { return false };
                    let block = self.layout.rows.block(*column, member);
                    let is_data = member < self.layout.rows.parity() && block < self.layout.geometry.blocks();
                    let mut others = markers.iter().filter(|donor| **donor != missing);
                    is_data
                        && !self.may_have(block, &self.sum(*column, Some(member)))
                        && !others.any(|donor| self.is_marked(*donor, stripe))
                }
                _ => false,
            }
        };
        if let Some(column) = columns.into_iter().find(is_wrong) {
            let what = format!("{what}: the members of column {column} do not yield each other, without {missing:?}");
            self.break_with(format!("{what}, and this is not marked"));
        }
    }

    /// Finds the donors that an attaching client would accept, after a record was stored or lost.
    pub fn records_changed(&mut self) {
        if !self.is_created || self.is_lossy {
            return;
        }
        let now_us = self.now_us();
        let found = |donor: Donor| match &self.donors[donor] {
            at if at.down_until_us > now_us => DonorContent::Missing,
            at => match &at.record {
                Some(record) => DonorContent::Record { record, incarnation: at.incarnation },
                None => DonorContent::Empty,
            },
        };
        let all: Vec<DonorContent<'_>> = (0..self.donors.len()).map(found).collect();
        let numbers = self.donors.iter().map(|at| at.record.as_ref().map(|record| record.view.number()));
        let numbers: BTreeSet<Option<(u64, u64)>> = numbers.collect();
        // While a view is being stored, an attaching client may need the first donor that has the new view.
        let is_told = numbers.len() == 1 && !numbers.contains(&None);
        let mut believed = vec![false; all.len()];
        let mut broken = None;
        match merge(&all, false) {
            Ok(merged) => {
                let is_whole = merged.trusted.iter().all(|trusted| *trusted) && is_told;
                believed.clone_from(&merged.trusted);
                for missing in 0..all.len() {
                    let mut rest = all.clone();
                    rest[missing] = DonorContent::Missing;
                    match merge(&rest, false) {
                        Ok(_) if self.layout.is_plain() => {
                            broken = Some(format!("a client could attach without donor {missing}"));
                        }
                        Ok(merged) => {
                            believed.iter_mut().zip(merged.trusted).for_each(|(believed, more)| *believed |= more);
                        }
                        Err(_) if self.layout.is_plain() => {}
                        Err(refusal) if is_whole && all.len() > 2 => {
                            broken = Some(format!("without donor {missing} nobody could attach: {refusal}"));
                        }
                        Err(_) => {}
                    }
                }
            }
            Err(AttachRefusal::CannotSettle { .. }) if all.len() == 2 => {}
            Err(AttachRefusal::TooFew { missing, .. })
                if self.layout.is_unfilled
                    || self.layout.is_plain() && missing.iter().copied().eq(self.switching()) =>
            {
                (0..all.len()).for_each(|donor| believed[donor] = !missing.contains(&donor));
            }
            Err(AttachRefusal::Empty | AttachRefusal::Incomplete) if self.layout.is_unfilled => {}
            Err(refusal) => broken = Some(format!("nobody could attach: {refusal}")),
        }
        let new: Vec<Donor> =
            (0..believed.len()).filter(|donor| believed[*donor] && !self.layout.believed[*donor]).collect();
        self.layout.is_unfilled &= !(is_told && believed.iter().all(|believed| *believed));
        (self.layout.believed, self.layout.is_told) = (believed, is_told);
        if let Some(broken) = broken {
            self.break_with(broken);
        }
        for donor in new {
            self.check_believed(donor, 0..self.layout.geometry.blocks(), "after a record");
        }
        self.check_marks(0..self.layout.geometry.blocks(), "after a record");
    }

    /// Checks a client after its machine has processed an event.
    pub fn check_client(&mut self, client: ClientId) {
        self.note_lost(client);
        let machine = &self.clients[client].machine;
        if machine.operations() > OPERATIONS_MAX + COPIES_BESIDE_MAX {
            let what = format!("{} operations under way", machine.operations());
            return self.break_with(what);
        }
        let is_serving = matches!(machine.phase(), InPlacePhase::Resync | InPlacePhase::Open | InPlacePhase::Detaching);
        if client != self.current || !is_serving || !self.is_created {
            return;
        }
        if !self.clients[client].is_whole() {
            self.heal_lies();
        }
        for donor in 0..self.donors.len() {
            let machine = &self.clients[client].machine;
            // A restarted donor is detected by its incarnation before anything is read from it.
            let is_known = machine.group().view().members[donor].incarnation == self.donors[donor].incarnation;
            if !is_known {
                continue;
            }
            let is_bad = |block: &u64| machine.is_readable(donor, self.stripe(*block)) && !self.is_good(donor, *block);
            if let Some(block) = (0..self.layout.geometry.blocks()).find(is_bad) {
                let what = format!("the client would read a wrong copy: {}", self.describe(donor, block));
                return self.break_with(what);
            }
            self.note_return(client, donor);
        }
        self.check_scrub(client);
        self.hunt(client);
    }

    /// Checks that the scrub finds damage only where a donor lied. The other copy of such a block is right.
    fn check_scrub(&mut self, client: ClientId) {
        let progress = self.clients[client].machine.scrub_progress();
        let found = [progress.last, progress.present];
        let is_known = self.layout.is_plain() && self.layout.had_lies;
        let is_wrong = |found: &ScrubFindings| found.doubtful > 0 || found.lost > 0 && !is_known;
        if found.iter().any(is_wrong) || progress.repaired > 0 && !self.layout.had_lies {
            self.break_with(format!("the scrub found damage where there is none: {progress:?}"));
        }
    }

    /// Checks the result of a user's request.
    pub fn judge(&mut self, client: ClientId, pending: RamUserOperation, result: Result<Bytes, DeviceError>) {
        match (result, pending) {
            (Ok(data), RamUserOperation::Read { blocks, began }) => self.check_read(blocks, began, &data),
            (Ok(_), RamUserOperation::Change { place, is_write, .. }) => {
                let blocks = self.layout.blocks.acknowledge(place as usize);
                self.layout.history.end(place as usize);
                self.note_written(client, blocks.clone());
                self.counts.writes += u64::from(is_write);
                for donor in 0..self.donors.len() {
                    self.check_believed(donor, blocks.clone(), "after an acknowledgement");
                }
            }
            (Ok(_), RamUserOperation::Flush { .. }) => {
                self.counts.flushes += 1;
                if self.layout.is_plain() && self.clients[client].machine.group().figures().left > 0 {
                    self.break_with("a flush succeeded after a donor had lost what it had".to_owned());
                }
            }
            (Err(error), pending) => {
                let may_be_lost = match (&error, &pending) {
                    (DeviceError::Lost { block }, RamUserOperation::Read { blocks, began }) => {
                        blocks.contains(block) && self.may_find_lost(*block, *began)
                    }
                    (DeviceError::Lost { block }, RamUserOperation::Change { blocks, .. })
                        if self.layout.is_plain() =>
                    {
                        blocks.contains(block) && self.may_find_lost(*block, 0)
                    }
                    (DeviceError::Lost { .. }, RamUserOperation::Flush { .. }) => self.layout.losses.contains(&client),
                    _ => false,
                };
                self.coverage.met("read of a lost block failed", u64::from(may_be_lost));
                let is_allowed = match error {
                    DeviceError::Patience { .. } => self.stage != RamRunStage::Reread,
                    DeviceError::Superseded | DeviceError::NotAttached => true,
                    DeviceError::Lost { .. } => self.is_lossy || may_be_lost,
                    DeviceError::Corrupt { .. } => {
                        let is_single = self.layout.is_plain() || !self.clients[client].is_whole();
                        self.is_lossy || self.layout.had_lies && is_single
                    }
                    DeviceError::Busy | DeviceError::Range { .. } => false,
                };
                if !is_allowed {
                    self.break_with(format!("a request failed: {error}"));
                }
            }
        }
    }

    fn check_read(&mut self, blocks: Range<u64>, began: u64, data: &[u8]) {
        let copies = data.chunks(BLOCK_BYTES);
        let numbers: Vec<Option<u64>> =
            blocks.clone().zip(copies).map(|(block, copy)| number_of(copy, block)).collect();
        let is_whole = numbers.len() as u64 == blocks.end - blocks.start;
        match numbers.into_iter().collect::<Option<Vec<u64>>>().filter(|_| is_whole) {
            Some(numbers) => {
                let ended = self.layout.history.tick();
                let read = |(cell, number)| CellRead { cell: cell as usize, number, began, ended };
                self.layout.history.reads.extend(blocks.zip(numbers).map(read));
            }
            None => self.break_with(format!("blocks {blocks:?} were read with bytes that nobody wrote there")),
        }
    }

    /// Checks that both copies of each block are equal, or the members of each column yield each other, once everything
    /// is restored.
    pub fn check_copies(&mut self) {
        for block in (0..self.layout.geometry.blocks()).filter(|block| !self.has_lie(*block)).collect::<Vec<_>>() {
            let is_right = match self.layout.geometry.is_parity() {
                true => self.sum(self.layout.rows.column(block), None).iter().all(|byte| *byte == 0),
                false => match self.markers(self.stripe(block)) {
                    Some([first, second]) => self.copy(first, block) == self.copy(second, block),
                    None => (0..self.donors.len()).all(|donor| self.is_good(donor, block)),
                },
            };
            if !is_right {
                let all: Vec<String> =
                    self.places(block).iter().map(|(donor, _)| self.describe(*donor, block)).collect();
                return self.break_with(format!("the copies differ though nothing is under way: {}", all.join("; ")));
            }
        }
    }
}
