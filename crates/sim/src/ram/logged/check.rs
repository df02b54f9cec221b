//! The invariants that must hold after every step.
//!
//! Owns: the invariants of a device that logs parity, and the allowed answers to its users.
//!
//! - A recovery finds the flushed data or newer data on the donors that an attaching client would believe, even if any
//!   one of them is missing.
//! - The current client has the last acknowledged data or newer data in its memory, or can read them from the donors,
//!   even if any one of them is missing.
//! - The parity of a sealed group is the XOR of its slots with their headers, live or dead. The group's summary names
//!   these slots.
//! - Members of a group and its parity are on different donors.
//! - No read returns bytes that were never written there, or data that are older than an earlier read returned or an
//!   earlier acknowledgement confirmed. No request fails as lost, unless more was lost than the policy survives.
//! - The data that a client finds when it attaches do not change later.
//! - The scrub repairs every damaged byte in two passes, and finds no damage where there is none.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nectary_ram::format::slots::SlotHeader;
use nectary_ram::group::{DeviceError, DonorContent, DonorStanding, merge};
use nectary_ram::logged::{NewestData, ParityLogPhase, STEPS_MAX};

use super::LoggedLayout;
use super::oracle::{Memory, RecoveryOracle};
use crate::ram::blocks::{BLOCK_BYTES, number_of};
use crate::ram::client::RamUserOperation;
use crate::ram::network::ClientId;
use crate::ram::world::{RamRunStage, RamWorld};

/// The largest number of steps above the limit that one operation may add, such as a write of a few blocks with
/// cleaning, or the filling of a donor.
const STEPS_BESIDE_MAX: usize = 1000;

impl RamWorld<LoggedLayout> {
    fn oracle(&self, is_believed: impl Fn(usize) -> bool) -> RecoveryOracle<'_> {
        let donors = (0..self.donors.len()).filter(|donor| is_believed(*donor));
        let memory: Memory<'_> = donors.map(|donor| (donor, &self.donors[donor].memory[..])).collect();
        RecoveryOracle { shape: self.layout.shape, areas: self.layout.areas, memory }
    }

    /// Returns for each donor whether an attaching client would believe it if donor `missing` were absent; `None` if
    /// the client could not attach.
    fn believed_without(&self, missing: Option<usize>) -> Option<Vec<bool>> {
        let now_us = self.now_us();
        let found = |donor: usize| match &self.donors[donor] {
            _ if Some(donor) == missing => DonorContent::Missing,
            at if at.down_until_us > now_us => DonorContent::Missing,
            at => match &at.record {
                Some(record) => DonorContent::Record { record, incarnation: at.incarnation },
                None => DonorContent::Empty,
            },
        };
        let all: Vec<DonorContent<'_>> = (0..self.donors.len()).map(found).collect();
        merge(&all, false).ok().map(|merged| merged.trusted)
    }

    /// Checks the data that a recovery would find, after a change of the donors' memory or of the flushed data.
    pub fn check_recoveries(&mut self, what: &str) {
        self.flip_lie();
        self.check_recoveries_unharmed(what);
        self.flip_lie();
    }

    fn check_recoveries_unharmed(&mut self, what: &str) {
        if !self.is_created || self.is_lossy || self.broken.is_some() {
            return;
        }
        let mut seen = BTreeSet::new();
        for missing in std::iter::once(None).chain((0..self.donors.len()).map(Some)) {
            let Some(believed) = self.believed_without(missing) else { continue };
            if !seen.insert(believed.clone()) {
                continue;
            }
            let numbers = self.oracle(|donor| believed[donor]).numbers();
            let may_lack = self.layout.lies.is_kept;
            let is_wrong = |(block, number): &(usize, &Option<u64>)| {
                let is_lacking = may_lack && number.is_none();
                !is_lacking && !self.layout.values.may_be_found(*block as u32, **number)
            };
            if let Some((block, number)) = numbers.iter().enumerate().find(is_wrong) {
                let expected = self.layout.values.expected(block as u32);
                let what = format!(
                    "{what}: a recovery with donors {believed:?} would find {number:?} in block {block} where \
                     {expected} belongs"
                );
                return self.break_with(what);
            }
        }
        if seen.is_empty() && self.is_told() {
            self.break_with(format!("{what}: nobody could attach"));
        }
    }

    /// Whether every donor has the same view.
    pub fn is_told(&self) -> bool {
        let numbers = self.donors.iter().map(|at| at.record.as_ref().map(|record| record.view.number()));
        let numbers: BTreeSet<Option<(u64, u64)>> = numbers.collect();
        numbers.len() == 1 && !numbers.contains(&None)
    }

    /// Checks a client after its machine has processed an event.
    pub fn check_client(&mut self, client: ClientId) {
        let machine = &self.clients[client].machine;
        let (steps, stores) = machine.under_way();
        if steps > STEPS_MAX + STEPS_BESIDE_MAX {
            return self.break_with(format!("{steps} steps and {stores} writes under way"));
        }
        let is_serving = matches!(machine.phase(), ParityLogPhase::Open | ParityLogPhase::Detaching);
        if client != self.current || !is_serving || !self.is_created || self.is_lossy {
            return;
        }
        let believed: Vec<bool> = (0..self.donors.len())
            .map(|donor| {
                let is_same = machine.group().view().members[donor].incarnation == self.donors[donor].incarnation;
                is_same && machine.group().standing()[donor] == DonorStanding::Trusted
            })
            .collect();
        self.flip_lie();
        let oracle = self.oracle(|donor| believed[donor]);
        let broken = (0..self.layout.shape.blocks).find_map(|block| self.check_block(client, &oracle, block));
        let broken =
            broken.or_else(|| (0..self.layout.shape.groups).find_map(|group| self.check_group(client, &oracle, group)));
        self.flip_lie();
        if let Some(broken) = broken {
            return self.break_with(broken);
        }
        self.check_scrub(client);
        for donor in 0..self.donors.len() {
            self.note_return(client, donor);
        }
        self.slow_on_leave(client);
        self.hunt(client);
    }

    /// Checks that a block can be read from the client's memory or from the donors. A slot must have a possible number
    /// both directly and through parity.
    fn check_block(&self, client: ClientId, oracle: &RecoveryOracle<'_>, block: u32) -> Option<String> {
        let expected = || self.layout.values.expected(block);
        let may_lack = self.layout.lies.is_kept;
        let check = |bytes: &[u8], how: &str| {
            let number = number_of(bytes, u64::from(block));
            let is_good = self.layout.values.may_be_held(block, number) || may_lack && number.is_none();
            (!is_good).then(|| format!("block {block} is {number:?} {how} where {} belongs", expected()))
        };
        match self.clients[client].machine.holds(block) {
            NewestData::Memory(data) => check(&data, "in the client's memory"),
            NewestData::Zeroes => check(&[0; BLOCK_BYTES], "as zeroes"),
            NewestData::Coming => None,
            NewestData::Lost => (!may_lack).then(|| format!("block {block} is lost")),
            NewestData::Slot { donor, group } => {
                let direct = oracle.slot(donor, group).map(<[u8]>::to_vec);
                let member = oracle.areas.member_on(group, donor)?;
                let ways = [("in its slot", direct), ("through parity", oracle.computed(donor, group))];
                for (how, bytes) in ways.iter().filter_map(|(how, bytes)| bytes.as_ref().map(|bytes| (how, bytes))) {
                    let number = oracle.contents(bytes, group, member).filter(|(of, ..)| *of == block);
                    let number = number.and_then(|(.., number)| number);
                    let is_right = self.layout.values.may_be_held(block, number) || may_lack && number.is_none();
                    if !is_right {
                        let expected = expected();
                        return Some(format!(
                            "block {block} of group {group} is {number:?} {how} where {expected} belongs"
                        ));
                    }
                }
                let is_there = ways.iter().any(|(_, bytes)| bytes.is_some());
                (!is_there && !may_lack).then(|| format!("block {block} of group {group} is in no way to be had"))
            }
        }
    }

    /// Checks the parity and the summary of a sealed group.
    fn check_group(&self, client: ClientId, oracle: &RecoveryOracle<'_>, group: u32) -> Option<String> {
        let is_whole = oracle.memory.len() == self.donors.len() && !self.layout.lies.is_kept;
        if !self.clients[client].machine.is_sealed(group) || !is_whole {
            return None;
        }
        let parity = oracle.areas.parity_donor(group);
        let sum = oracle.computed(parity, group)?;
        if Some(&sum[..]) != oracle.slot(parity, group) {
            return Some(format!("the parity of sealed group {group} is not the XOR of its slots"));
        }
        let Some(summary) = oracle.summary(group) else { return Some(format!("sealed group {group} has no summary")) };
        for (member, named) in summary.members.iter().enumerate() {
            let Some(named) = named else { continue };
            let donor = oracle.areas.member_donor(group, member as u8);
            if donor == parity {
                return Some(format!("member {member} of group {group} is on the donor of the parity"));
            }
            let slot = oracle.slot(donor, group).map(SlotHeader::checksum_of);
            if slot != Some(named.checksum) {
                return Some(format!("member {member} of sealed group {group} is not what its summary names"));
            }
        }
        None
    }

    /// Checks the result of a user's request.
    pub fn judge(&mut self, client: ClientId, pending: RamUserOperation, result: Result<Bytes, DeviceError>) {
        let is_read = matches!(pending, RamUserOperation::Read { .. });
        if self.was_lost && !is_read && result.is_ok() {
            self.break_with("a change was acknowledged after the loss of two donors".to_owned());
        }
        let checked = match (result, pending) {
            (Ok(data), RamUserOperation::Read { blocks, began }) => {
                self.check_read(blocks.start as u32..blocks.end as u32, began, &data)
            }
            (Ok(_), RamUserOperation::Change { place, is_forced, is_write, .. }) => {
                self.counts.writes += u64::from(is_write);
                let checked = self.layout.values.acknowledge(place, is_forced);
                if is_forced {
                    self.check_recoveries("after a forced change");
                }
                checked
            }
            (Ok(_), RamUserOperation::Flush { began }) => {
                let checked = self.layout.values.flush(client, began);
                self.counts.flushes += 1;
                self.check_recoveries("after a flush");
                checked
            }
            (Err(error), _) => {
                let is_allowed = match error {
                    DeviceError::Patience { .. } => self.stage != RamRunStage::Reread,
                    DeviceError::Superseded | DeviceError::NotAttached => true,
                    DeviceError::Corrupt { .. } if self.layout.lies.count > 0 => true,
                    DeviceError::Lost { .. } if self.layout.lies.is_kept && is_read => true,
                    DeviceError::Lost { .. } | DeviceError::Corrupt { .. } => self.is_lossy,
                    DeviceError::Busy | DeviceError::Range { .. } => false,
                };
                if is_allowed { Ok(()) } else { Err(format!("a request failed: {error}")) }
            }
        };
        // What is read after more was lost than the policy survives is still right.
        let is_checked = !self.is_lossy || is_read && self.lost_client == Some(client);
        if let Err(broken) = checked
            && is_checked
        {
            self.break_with(broken);
        }
    }

    fn check_read(&mut self, blocks: std::ops::Range<u32>, began: u64, data: &[u8]) -> Result<(), String> {
        if data.len() != blocks.len() * BLOCK_BYTES {
            return Err(format!("blocks {blocks:?} were read as {} bytes", data.len()));
        }
        let mut numbers = BTreeMap::new();
        for (block, bytes) in blocks.zip(data.chunks(BLOCK_BYTES)) {
            let number = number_of(bytes, u64::from(block));
            let number = number.ok_or_else(|| format!("block {block} was read with bytes that nobody wrote there"))?;
            numbers.insert(block, number);
        }
        numbers.into_iter().try_for_each(|(block, number)| self.layout.values.read(block, number, began))
    }
}
