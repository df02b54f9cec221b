//! Groups that are open, or whose parity is not stored yet: the client's memory has their slots.
//!
//! Owns: the images of these slots, and their parity. Promises: the image of a slot never changes; a group is dropped
//! only when its parity is stored. Each use of a group is a separate entry, a *life*: its number is that of the step
//! that opened the group.

use std::collections::BTreeMap;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use super::planted::{Bug, planted};
use crate::format::slots::{CoveredMember, GroupSummary, SLOT_HEADER_BYTES, SlotHeader, SummaryKind, xor};
use crate::placement::MemberSet;

/// A slot of a group.
#[derive(Debug)]
pub(super) struct GroupMember {
    pub sequence: u64,
    /// The whole slot; `None` while its data is being fetched.
    pub image: Option<Bytes>,
    /// The step that sends the slot.
    pub step: u64,
}

/// A parity of an open group, with its summary.
#[derive(Debug, Clone)]
pub(super) struct SpareParity {
    pub offset: u64,
    pub bytes: Bytes,
}

/// A group in the client's memory.
#[derive(Debug)]
pub(super) struct BufferedGroup {
    pub row: u32,
    pub members: Vec<GroupMember>,
    /// Whether the row's previous life is over, and its summary is being erased.
    pub is_opening: bool,
    /// Whether slots may be written: the summary of the row's previous life is erased.
    pub is_open: bool,
    /// The newest parity that is stored or being stored, and its members.
    pub spare: Option<SpareParity>,
    pub covered: MemberSet,
    /// The parity before it, in the other spare: it counts until the newest one and its members are stored.
    pub spare_before: Option<SpareParity>,
}

/// The groups by life, and the newest life of each row.
#[derive(Debug, Default)]
pub(super) struct BufferedGroups {
    pub lives: BTreeMap<u64, BufferedGroup>,
    pub newest: BTreeMap<u32, u64>,
}

impl BufferedGroups {
    pub fn open(&mut self, row: u32, life: u64) {
        let (members, covered) = (Vec::new(), MemberSet::first(0));
        let (is_opening, is_open, spare, spare_before) = (false, false, None, None);
        self.lives.insert(life, BufferedGroup { row, members, is_opening, is_open, spare, covered, spare_before });
        self.newest.insert(row, life);
    }

    /// Returns the newest group of a row.
    pub fn of(&self, row: u32) -> Option<&BufferedGroup> {
        self.newest.get(&row).and_then(|life| self.lives.get(life))
    }

    pub fn forget(&mut self, life: u64) {
        if let Some(group) = self.lives.remove(&life)
            && self.newest.get(&group.row) == Some(&life)
        {
            self.newest.remove(&group.row);
        }
    }
}

impl BufferedGroup {
    /// Returns these members, each with its number.
    pub fn chosen(&self, chosen: MemberSet) -> impl Iterator<Item = (usize, &GroupMember)> {
        self.members.iter().enumerate().filter(move |(number, _)| chosen.has(*number as u8))
    }

    /// Returns the member that has the copy with this sequence.
    pub fn member(&self, sequence: u64) -> Option<&GroupMember> {
        self.members.iter().find(|member| member.sequence == sequence)
    }

    /// Computes the parity of members, and its summary; the images of all these members must be in memory.
    pub fn parity(&self, chosen: MemberSet, slot_bytes: usize, summary: GroupSummary) -> (Vec<u8>, GroupSummary) {
        let mut parity = vec![0; slot_bytes];
        let mut members = summary.members.clone();
        for (number, member) in self.chosen(chosen) {
            let Some(image) = &member.image else { continue };
            xor(&mut parity, image);
            members[number] = named(image);
        }
        if planted(Bug::HeadersOutside) {
            parity[..SLOT_HEADER_BYTES].fill(0);
        }
        let parity_checksum = xxh3_64(&parity);
        (parity, GroupSummary { parity_checksum, members, ..summary })
    }
}

/// Returns the summary of a group without members.
pub(super) fn empty_summary(kind: SummaryKind, device: u64, generation: u64, group: u32, members: u8) -> GroupSummary {
    let members = vec![None; usize::from(members)];
    GroupSummary { kind, device, generation, group, parity_checksum: 0, members }
}

/// Returns the summary's entry for a slot; `None` if the bytes have no header. The data may be damaged: then reading the
/// block is an error, and not an older copy.
pub(super) fn named(image: &[u8]) -> Option<CoveredMember> {
    let slot = SlotHeader::decode(image).ok()?;
    Some(CoveredMember { block: slot.block, sequence: slot.sequence, checksum: SlotHeader::checksum_of(image) })
}

/// Whether a slot has the data that its entry in a summary names.
pub(super) fn is_whole(image: &[u8], wanted: CoveredMember) -> bool {
    named(image) == Some(wanted) && SlotHeader::decode_whole(image).is_ok()
}

/// Returns a block's contents from its slot; `None`: they are lost.
pub(super) fn contents(image: &Bytes) -> Option<Bytes> {
    let is_lost = SlotHeader::decode(image).is_ok_and(|slot| slot.is_lost);
    (!is_lost).then(|| image.slice(SLOT_HEADER_BYTES..))
}
