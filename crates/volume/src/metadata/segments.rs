//! Metadata segments, and the epochs that they belong to.
//!
//! Owns: taking segments, setting them aside for the next epochs, and freeing or quarantining segments that are not
//! needed. Promises: a segment of an epoch is not reused until its leader is confirmed gone: until a later start knows
//! this, the segment is quarantined. So a paused leader that wakes up writes only to segments that no server reads.

use std::collections::{BTreeMap, BTreeSet};

use super::change::{Result, TableChange, damaged};
use super::image::MetadataImage;
use super::records::{keys_of, server, spaces};
use crate::format::{EpochRecord, EpochState, ExtentState, SpaceRecord, TableKey, TableKind, Transaction};
use crate::protocol::{RefusalCode, ServerRefusal};

/// The number of the epoch that `format` writes. This epoch has no leader. The label is written last, so a volume with
/// a label has a complete first epoch, and `format` writes nothing more.
const FORMATTED: u64 = 1;
/// The number of next epochs that get a segment set aside.
pub const SET_ASIDE: u64 = 16;
/// The number of free segments that setting aside leaves, in addition to those of a checkpoint and of inode numbers in
/// hand.
const BESIDE: u64 = 2;

fn epoch(change: &TableChange<'_>, epoch: u64) -> Result<Option<EpochRecord>> {
    change.tables.get(&TableKey::Epoch(epoch)).map(|value| EpochRecord::decode(value).map_err(damaged)).transpose()
}

impl MetadataImage {
    /// Records who leads this epoch and the state of earlier epochs. `gone` are server incarnations that cannot write
    /// any more: segments quarantined under their epochs become free. The record of an epoch is deleted if its leader
    /// is gone and it has no segment.
    pub fn begin_epoch(&mut self, incarnation: [u8; 16], gone: &[[u8; 16]]) -> Result<Vec<Transaction>> {
        let (mut needed, mut quarantined) = (BTreeSet::new(), BTreeMap::<u64, Vec<(u64, SpaceRecord)>>::new());
        for (start, space) in spaces(&self.tables)? {
            match space.state {
                ExtentState::Metadata => drop(needed.insert(space.owner)),
                ExtentState::QuarantinedMetadata => quarantined.entry(space.owner).or_default().push((start, space)),
                _ => {}
            }
        }
        let mut transactions = Vec::new();
        let current = self.epoch;
        let is_before = |key: &TableKey| matches!(key, TableKey::Epoch(number) if *number < current);
        for key in keys_of(&self.tables, TableKind::Epochs, &TableKey::Epoch(0), is_before) {
            let TableKey::Epoch(number) = key else { continue };
            let ((), mutations) = self.attempt(|change, parts| {
                let Some(mut record) = epoch(change, number)? else { return Ok(()) };
                let before = record;
                record.state = match record.state {
                    _ if gone.contains(&record.incarnation) => EpochState::ConfirmedGone,
                    EpochState::Leads => EpochState::Sealed,
                    state => state,
                };
                if record.state == EpochState::ConfirmedGone {
                    for (start, space) in quarantined.get(&number).into_iter().flatten() {
                        change.delete(&TableKey::Space(*start));
                        parts.free.add(*start, space.blocks);
                    }
                    record.segments = 0;
                }
                if record.state == EpochState::ConfirmedGone && !needed.contains(&number) {
                    change.delete(&TableKey::Epoch(number));
                } else if record != before {
                    change.put(&TableKey::Epoch(number), record.encode());
                }
                Ok(())
            })?;
            if !mutations.is_empty() {
                transactions.push(server(mutations));
            }
        }
        let ((), mutations) = self.attempt(|change, _| {
            let record = EpochRecord { incarnation, state: EpochState::Leads, segments: 0 };
            change.put(&TableKey::Epoch(current), record.encode());
            Ok(())
        })?;
        transactions.push(server(mutations));
        Ok(transactions)
    }

    /// Takes a metadata segment for an epoch.
    pub fn take_segment(&mut self, epoch: u64) -> Result<(u64, Transaction)> {
        let size = self.segment_blocks;
        let (block, mutations) = self.attempt(|change, parts| {
            let full = || ServerRefusal {
                code: RefusalCode::Full,
                errno: libc::ENOSPC,
                words: "no room for metadata".to_owned(),
            };
            let block = parts.free.take_aligned(size).ok_or_else(full)?;
            change.use_space(block, size, ExtentState::Metadata, epoch, 0)?;
            Ok(block)
        })?;
        Ok((block, server(mutations)))
    }

    /// Takes segments for the next epochs that have none, as long as the segments of a checkpoint and of the journal
    /// stay free. If no next epoch has a segment, the last free segment is taken: without it the next start would be
    /// refused.
    pub fn set_aside(&mut self) -> Result<Vec<Transaction>> {
        let has_room = |image: &MetadataImage, count| match count {
            0 => image.free_segments() > 0,
            SET_ASIDE.. => false,
            _ => image.free_segments() > image.checkpoint_segments() + BESIDE + image.kept_for_numbers(),
        };
        let mut transactions = Vec::new();
        if self.starts.is_some_and(|count| !has_room(self, count)) {
            return Ok(transactions);
        }
        let spaces = spaces(&self.tables)?.into_iter();
        let owned = spaces.filter(|(_, space)| space.state == ExtentState::Metadata).map(|(_, space)| space.owner);
        let next = self.epoch + 1..=self.epoch + SET_ASIDE;
        let owners: BTreeSet<u64> = owned.filter(|owner| next.contains(owner)).collect();
        let mut count = owners.len() as u64;
        for epoch in next.filter(|epoch| !owners.contains(epoch)) {
            if !has_room(self, count) {
                break;
            }
            match self.take_segment(epoch) {
                Ok((_, transaction)) => transactions.push(transaction),
                Err(failure) if failure.code == RefusalCode::Full => break,
                Err(failure) => return Err(failure),
            }
            count += 1;
        }
        self.starts = Some(count);
        Ok(transactions)
    }

    /// Returns how many of the next 16 epochs have a segment set aside. `None`: [`set_aside`](Self::set_aside) has not
    /// run yet.
    pub fn starts(&self) -> Option<u64> {
        self.starts
    }

    /// Returns the space that stays quarantined until an operator confirms that the hosts of earlier servers are gone.
    /// *Units*: blocks.
    pub fn quarantined(&self) -> u64 {
        let records = self.tables.table(TableKind::Epochs).values().filter_map(|value| EpochRecord::decode(value).ok());
        records.map(|record| record.segments.saturating_mul(self.segment_blocks)).fold(0, u64::saturating_add)
    }

    /// Gives up a metadata segment that is not needed any more: it is freed if no late write to it is possible,
    /// otherwise quarantined.
    pub fn retire_segment(&mut self, block: u64) -> Result<Transaction> {
        let (size, current) = (self.segment_blocks, self.epoch);
        let ((), mutations) = self.attempt(|change, parts| {
            let missing = || damaged(format!("segment {block} is in no record of metadata"));
            let (_, space) = change.space_before(block + 1)?.ok_or_else(missing)?;
            let owner = space.owner;
            if !change.unuse_space(block, size, ExtentState::Metadata, owner)? {
                return Err(missing());
            }
            let record = epoch(change, owner)?;
            let is_gone = record.is_some_and(|record| record.state == EpochState::ConfirmedGone);
            if is_gone || owner == current || owner == FORMATTED {
                parts.free.add(block, size);
                return Ok(());
            }
            change.use_space(block, size, ExtentState::QuarantinedMetadata, owner, 0)?;
            // An epoch that never began has no record; only the state of its segment changes.
            if let Some(mut record) = record {
                record.segments += 1;
                change.put(&TableKey::Epoch(owner), record.encode());
            }
            Ok(())
        })?;
        Ok(server(mutations))
    }
}
