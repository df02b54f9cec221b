//! The user's operations: reads, writes, zeroes, trims, flushes.
//!
//! Owns: operations in progress and when each is answered. Promises: the durability that `mod.rs` describes; bytes with
//! a wrong checksum are never returned.
//!
//! | operation | answered when |
//! |---|---|
//! | read | its blocks have arrived, and no other client can have the device |
//! | write, zeroes, trim | the client's memory has the change |
//! | the same, forced | the same, and everything that a flush waits for |
//! | flush | every earlier step is done: donors have no cache |
//!
//! A change that a client answers after another one has replaced it is lost with its memory, like the earlier ones that
//! were not flushed; its next flush and its reads fail.

use std::ops::Range;

use bytes::Bytes;

use super::calls::{BlockReadState, ParityLogOperation, ParityLogWork, SlotData};
use super::configuration::STEPS_MAX;
use super::groups::contents;
use super::machine::{ParityLogMachine, ParityLogPhase};
use super::planted::{Bug, planted};
use super::slot_reads::SlotReadPurpose;
use crate::group::{DeviceError, DonorStanding, MachineAction, Moment, OPERATIONS_MAX, REQUEST_BYTES_MAX, UserRequest};
use crate::placement::{NewestLocation, Placement};

impl ParityLogMachine {
    pub(super) fn submitted(&mut self, id: u64, request: UserRequest) {
        let refused = match self.phase {
            ParityLogPhase::Open if self.calls.list.len() >= OPERATIONS_MAX => Some(DeviceError::Busy),
            ParityLogPhase::Open => None,
            _ => Some(DeviceError::NotAttached),
        };
        let (offset, bytes, work, is_forced) = match request {
            UserRequest::Read { offset, bytes } => (offset, bytes, ParityLogWork::Read, false),
            UserRequest::Write { offset, data, force } => {
                (offset, data.len() as u64, ParityLogWork::Write { data }, force)
            }
            UserRequest::WriteZeroes { offset, bytes, force } => (offset, bytes, ParityLogWork::Zeroes, force),
            UserRequest::Trim { offset, bytes } => (offset, bytes, ParityLogWork::Zeroes, false),
            UserRequest::Flush => (0, 0, ParityLogWork::Flush, true),
        };
        let block = u64::from(self.shape.block_bytes);
        let is_whole = offset % block == 0 && bytes % block == 0 && bytes > 0 && bytes <= REQUEST_BYTES_MAX;
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= u64::from(self.shape.blocks) * block);
        let is_good = matches!(work, ParityLogWork::Flush) || is_whole && is_inside;
        if let Some(error) = refused.or((!is_good).then_some(DeviceError::Range { offset, bytes })) {
            self.figures.failed += 1;
            return self.act(MachineAction::Complete { id, result: Err(error) });
        }
        let blocks = (offset / block) as u32..((offset + bytes) / block) as u32;
        self.begin(Some(id), work, is_forced, blocks);
    }

    pub(super) fn begin(&mut self, user: Option<u64>, work: ParityLogWork, is_forced: bool, blocks: Range<u32>) {
        self.calls.last += 1;
        let number = self.calls.last;
        let is_change = !matches!(work, ParityLogWork::Read);
        self.calls.locks.take(number, u64::from(blocks.start)..u64::from(blocks.end), is_change);
        let pieces = match work {
            ParityLogWork::Read => vec![BlockReadState::Unasked; blocks.len()],
            _ => Vec::new(),
        };
        let operation = ParityLogOperation {
            user,
            work,
            is_forced,
            blocks,
            began_us: self.now_us,
            unasked: pieces.len(),
            missing: pieces.len(),
            pieces,
            is_taken: false,
            until: None,
            failed: None,
            is_held: false,
        };
        self.calls.list.insert(number, operation);
    }

    /// Lets every operation continue; returns whether one did.
    pub(super) fn drive_operations(&mut self) -> bool {
        let numbers: Vec<u64> = self.calls.list.keys().copied().collect();
        let mut has_moved = false;
        for number in numbers {
            if !self.calls.locks.has(number)
                || self.calls.list.get(&number).is_some_and(|operation| self.waits(operation))
            {
                continue;
            }
            let Some(mut operation) = self.calls.list.remove(&number) else { continue };
            let result = match operation.work {
                ParityLogWork::Read => self.drive_read(number, &mut operation),
                _ => self.drive_change(&mut operation),
            };
            match result {
                Some(result) => {
                    has_moved = true;
                    self.finish(number, operation.user, result);
                }
                None => _ = self.calls.list.insert(number, operation),
            }
        }
        has_moved
    }

    /// Whether an operation can only wait now: for reads of its blocks, or for steps.
    fn waits(&self, operation: &ParityLogOperation) -> bool {
        match operation.work {
            ParityLogWork::Read => operation.failed.is_none() && operation.unasked == 0 && operation.missing > 0,
            _ => operation.is_taken && operation.until.is_some_and(|until| self.steps.done_below() < until),
        }
    }

    fn finish(&mut self, number: u64, user: Option<u64>, result: Result<Bytes, DeviceError>) {
        self.calls.locks.release(number);
        let Some(id) = user else { return };
        match &result {
            Ok(_) => self.figures.completed += 1,
            Err(_) => self.figures.failed += 1,
        }
        self.act(MachineAction::Complete { id, result });
    }

    fn drive_read(&mut self, number: u64, operation: &mut ParityLogOperation) -> Option<Result<Bytes, DeviceError>> {
        if let Some(error) = operation.failed.take() {
            return Some(Err(error));
        }
        if operation.unasked > 0 {
            (operation.unasked, operation.missing) = (0, 0);
            for at in 0..operation.pieces.len() {
                if matches!(operation.pieces[at], BlockReadState::Unasked) {
                    let block = operation.blocks.start + at as u32;
                    match self.find(number, at, block) {
                        Some(piece) => operation.pieces[at] = piece,
                        None => return Some(Err(DeviceError::Lost { block: u64::from(block) })),
                    }
                }
                operation.unasked += usize::from(matches!(operation.pieces[at], BlockReadState::Unasked));
                operation.missing += usize::from(!matches!(operation.pieces[at], BlockReadState::Got(_)));
            }
        }
        if operation.missing > 0 {
            return None;
        }
        let mut whole = Vec::with_capacity(operation.pieces.len() * self.shape.block_bytes as usize);
        let mut is_from_memory = false;
        for piece in &operation.pieces {
            let BlockReadState::Got(answer) = piece else { return None };
            whole.extend_from_slice(&answer.data);
            is_from_memory |= answer.is_from_memory;
        }
        // A donor refuses reads from a client that was replaced. The client's memory cannot refuse, so a donor must
        // confirm first that the client was not replaced.
        let since_us = if is_from_memory { operation.began_us } else { 0 };
        self.is_proven(operation, since_us).then(|| Ok(Bytes::from(whole)))
    }

    fn is_proven(&mut self, operation: &mut ParityLogOperation, since_us: Moment) -> bool {
        if self.group.is_proven_since(since_us) || planted(Bug::MemoryUnproven) {
            return true;
        }
        self.figures.held += u64::from(!std::mem::replace(&mut operation.is_held, true));
        self.group.prove_again();
        false
    }

    /// Returns a block's data if it is in memory; otherwise begins to read its slot. `None`: the contents are lost.
    fn find(&mut self, number: u64, at: usize, block: u32) -> Option<BlockReadState> {
        let from_memory = |data: Bytes| BlockReadState::Got(SlotData { data, is_from_memory: true });
        if let Some(data) = self.blocks.held.get(&block) {
            return data.clone().map(from_memory);
        }
        Some(match self.placement.locate(block) {
            NewestLocation::Unmapped => from_memory(Bytes::from(vec![0; self.shape.block_bytes as usize])),
            NewestLocation::Memory => BlockReadState::Unasked,
            NewestLocation::Slot(place) => {
                let sequence = self.blocks.newest[block as usize];
                match self.groups.of(place.slot).and_then(|group| group.member(sequence)) {
                    Some(member) => match &member.image {
                        Some(image) => from_memory(contents(image)?),
                        None => BlockReadState::Unasked,
                    },
                    None => {
                        let purpose = SlotReadPurpose::Operation { number, at };
                        self.look_at(place.slot, usize::from(place.donor), Some((block, sequence)), purpose);
                        BlockReadState::Asked
                    }
                }
            }
        })
    }

    /// Handles the result of a slot that was read for an operation.
    pub(super) fn answer(&mut self, number: u64, at: usize, result: Result<SlotData, DeviceError>) {
        let Some(operation) = self.calls.list.get_mut(&number) else { return };
        match result {
            Ok(answer) => {
                operation.missing -= usize::from(!matches!(operation.pieces[at], BlockReadState::Got(_)));
                operation.pieces[at] = BlockReadState::Got(answer);
            }
            Err(error) => operation.failed = Some(error),
        }
    }

    fn drive_change(&mut self, operation: &mut ParityLogOperation) -> Option<Result<Bytes, DeviceError>> {
        // With two donors gone, nothing that is stored now would survive the client.
        if self.group.standing().contains(&DonorStanding::Lost) && !planted(Bug::LostAcknowledged) {
            return Some(Err(DeviceError::Lost { block: u64::from(operation.blocks.start) }));
        }
        if !operation.is_taken {
            if self.steps.tasks.len() >= STEPS_MAX {
                return None;
            }
            // Cleaning takes one free group before it frees another.
            if matches!(operation.work, ParityLogWork::Write { .. }) && self.placement.free_groups() < 2 {
                self.figures.without_room += 1;
                return None;
            }
            self.take(operation);
        }
        if let Some(until) = operation.until
            && self.steps.done_below() < until
        {
            return None;
        }
        Some(Ok(Bytes::new()))
    }

    /// Hands an operation to the placement.
    fn take(&mut self, operation: &mut ParityLogOperation) {
        operation.is_taken = true;
        let blocks = operation.blocks.clone();
        let mut steps = Vec::new();
        let taken = match &operation.work {
            ParityLogWork::Write { data } => {
                let bytes = self.shape.block_bytes as usize;
                for (at, block) in blocks.clone().enumerate() {
                    self.blocks.held.insert(block, Some(data.slice(at * bytes..(at + 1) * bytes)));
                    self.blocks.fetching.remove(&block);
                }
                self.placement.write(blocks, &mut steps)
            }
            ParityLogWork::Zeroes => self.placement.trim(blocks, &mut steps),
            ParityLogWork::Read | ParityLogWork::Flush => Ok(()),
        };
        if let Err(error) = taken {
            unreachable!("the range was checked: {error}");
        }
        self.take_steps(steps);
        self.drop_sent();
        if operation.is_forced {
            let mut steps = Vec::new();
            self.placement.flush(&mut steps);
            self.take_steps(steps);
            self.drop_sent();
            operation.until = Some(self.steps.next);
        }
    }

    /// Fails operations that have waited longer than `patience`. Changes that were handed to the placement may still
    /// take effect.
    pub(super) fn lose_patience(&mut self) {
        let limit_us = self.configuration.times.patience_us;
        let has_lost_two = self.group.has_lost_two();
        let is_late = |number: u64, operation: &ParityLogOperation| {
            operation.began_us + limit_us <= self.now_us || has_lost_two && self.is_in_vain(number, operation)
        };
        let late: Vec<u64> = self
            .calls
            .list
            .iter()
            .filter(|(number, operation)| is_late(**number, operation))
            .map(|(number, _)| *number)
            .collect();
        for number in late {
            let Some(operation) = self.calls.list.remove(&number) else { continue };
            self.figures.impatient += 1;
            let looks: Vec<u64> = self
                .reads
                .list
                .iter()
                .filter(
                    |(_, look)| matches!(look.purpose, SlotReadPurpose::Operation { number: of, .. } if of == number),
                )
                .map(|(look, _)| *look)
                .collect();
            for look in looks {
                if let Some(look) = self.reads.list.remove(&look) {
                    self.unpin(look.row);
                }
            }
            if operation.user.is_none() {
                // Without the last flush it ends as if it had crashed: the donors go on to count it as attached.
                return self.end(MachineAction::Detached);
            }
            let block = u64::from(operation.blocks.start);
            self.finish(number, operation.user, Err(DeviceError::Patience { block }));
        }
    }

    /// Whether an operation waits for two donors, of which one is waited for in vain: counted from its loss, and not
    /// again for each operation.
    fn is_in_vain(&self, number: u64, operation: &ParityLogOperation) -> bool {
        if operation.user.is_none() || !self.calls.locks.has(number) {
            return false;
        }
        match operation.work {
            ParityLogWork::Read => self.reads.list.values().any(|look| {
                let is_its = matches!(look.purpose, SlotReadPurpose::Operation { number: of, .. } if of == number);
                is_its && (!self.is_readable(look.target, look.row) || self.group.is_absent(look.target))
            }),
            _ => true,
        }
    }
}
