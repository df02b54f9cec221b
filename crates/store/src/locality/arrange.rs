//! The order of the records in an append: objects that hints tie together are side by side, in as few clusters as
//! possible.
//!
//! Owns: this order, and the number that marks tied neighbours. Leaves to others: which records an append has (`pack`
//! always takes the next ones by sequence, so promises about sequences do not depend on hints).
//!
//! # How
//! A cluster is an aligned window of a segment: the extent of one read. A *group* is an object (the seed) and the
//! objects that hints tie to it. Groups are placed in the order of their first objects. If a group does not fit into
//! the rest of a cluster, the next group that fits is placed first; up to [`LOOKAHEAD`] groups are tried. No padding is
//! added: if no group fits, the first one begins in this cluster and ends in the next. Long records, fragments and
//! their heads come last.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use crate::locality::hints::HintId;
use crate::names::key::KeyHasher;

/// The number of groups that are tried for the rest of a cluster.
const LOOKAHEAD: usize = 64;
/// A record of more than 1/`LONG_SHARE` of a cluster is in no group.
const LONG_SHARE: u64 = 2;

/// The properties of a record to be placed.
#[derive(Debug, Clone, Copy)]
pub struct UnplacedRecord {
    /// The id of the object; `None` if the record is not a whole object.
    pub id: Option<HintId>,
    /// The group to which the record is tied.
    pub tie: Option<GroupTie>,
    /// The length of the record with padding, in bytes.
    pub bytes: u64,
}

/// The reason why records belong to one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupTie {
    /// Hints tie the records to this object.
    Seed(HintId),
    /// The records were in the same group before they were rewritten.
    Former(u16),
}

/// A record in the new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedRecord {
    /// The index of the record in the input.
    pub index: usize,
    /// The number that tied records of one group have in common; 0 for a record that is tied to no other.
    pub cluster: u16,
}

struct RecordGroup {
    /// The indices of the group's records in the input: first the `seeds` records of the seed, then the others. Each
    /// part is in the order of sequences.
    members: Vec<usize>,
    seeds: usize,
    bytes: u64,
}

/// Orders records for an append whose first record is at `position` of its segment. The input is in the order of
/// sequences.
///
/// With `cluster_bytes` 0 the order stays unchanged. `number` must be different for each append.
pub fn arrange(records: &[UnplacedRecord], position: u64, cluster_bytes: u64, number: u64) -> Vec<PlacedRecord> {
    let mut placed = Vec::with_capacity(records.len());
    if cluster_bytes == 0 {
        placed.extend((0..records.len()).map(|index| PlacedRecord { index, cluster: 0 }));
        return placed;
    }
    let (groups, last) = groups_of(records, cluster_bytes);
    let mut waiting: Vec<Option<RecordGroup>> = groups.into_iter().map(Some).collect();
    let (mut first, mut count, mut position) = (0, 0u64, position);
    while first < waiting.len() {
        let room = cluster_bytes - position % cluster_bytes;
        let fits = |slot: &Option<RecordGroup>| slot.as_ref().is_some_and(|group| group.bytes <= room);
        let next = waiting[first..].iter().take(LOOKAHEAD).position(fits).unwrap_or(0);
        if let Some(group) = waiting[first + next].take() {
            count += 1;
            let tied = group.members.len() > 1;
            let cluster = if tied { 1 + (number.wrapping_add(count) % u64::from(u16::MAX)) as u16 } else { 0 };
            position += group.bytes;
            placed.extend(group.members.into_iter().map(|index| PlacedRecord { index, cluster }));
        }
        while first < waiting.len() && waiting[first].is_none() {
            first += 1;
        }
    }
    placed.extend(last.into_iter().map(|index| PlacedRecord { index, cluster: 0 }));
    placed
}

/// Returns the groups in the order of their first members, and the records that are in no group because they are long
/// or are not whole objects.
fn groups_of(records: &[UnplacedRecord], cluster_bytes: u64) -> (Vec<RecordGroup>, Vec<usize>) {
    let seeds: HashSet<HintId, BuildHasherDefault<KeyHasher>> = records
        .iter()
        .filter_map(|record| match record.tie {
            Some(GroupTie::Seed(seed)) => Some(seed),
            _ => None,
        })
        .collect();
    let mut groups: Vec<RecordGroup> = Vec::new();
    let mut by_tie: HashMap<GroupTie, usize, BuildHasherDefault<KeyHasher>> = HashMap::default();
    by_tie.reserve(records.len());
    let mut last = Vec::new();
    for (index, record) in records.iter().enumerate() {
        let Some(id) = record.id.filter(|_| record.bytes <= cluster_bytes / LONG_SHARE) else {
            last.push(index);
            continue;
        };
        // An object to which other objects belong is a seed, even if it belongs to another object itself: groups are
        // one level deep.
        let tie = match record.tie {
            Some(tie) if !seeds.contains(&id) => tie,
            _ => GroupTie::Seed(id),
        };
        let group = *by_tie.entry(tie).or_insert_with(|| {
            groups.push(RecordGroup { members: Vec::new(), seeds: 0, bytes: 0 });
            groups.len() - 1
        });
        let group = &mut groups[group];
        if tie == GroupTie::Seed(id) {
            group.members.insert(group.seeds, index);
            group.seeds += 1;
        } else {
            group.members.push(index);
        }
        group.bytes += record.bytes;
    }
    (groups, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::key::PrimaryHash;

    fn id(number: u32) -> HintId {
        HintId::of(PrimaryHash(number.into()))
    }

    fn record(number: u32, seed: Option<u32>, bytes: u64) -> UnplacedRecord {
        UnplacedRecord { id: Some(id(number)), tie: seed.map(|seed| GroupTie::Seed(id(seed))), bytes }
    }

    fn order(placed: &[PlacedRecord]) -> Vec<usize> {
        placed.iter().map(|placed| placed.index).collect()
    }

    /// Tied records are placed side by side behind their seed and share a cluster number.
    #[test]
    fn tied_records_follow_their_seed() {
        let records = [
            record(1, None, 1024),
            record(2, Some(9), 1024),
            record(3, Some(1), 1024),
            record(9, None, 1024),
            record(4, Some(1), 1024),
            record(5, None, 1024),
        ];
        let placed = arrange(&records, 0, 65536, 7);
        assert_eq!(order(&placed), [0, 2, 4, 3, 1, 5]);
        let numbers: Vec<u16> = placed.iter().map(|placed| placed.cluster).collect();
        assert!(numbers[0] != 0 && numbers[0] == numbers[1] && numbers[1] == numbers[2]);
        assert!(numbers[3] != 0 && numbers[3] == numbers[4] && numbers[3] != numbers[0]);
        assert_eq!(numbers[5], 0);
        assert_eq!(order(&arrange(&records, 0, 0, 7)), [0, 1, 2, 3, 4, 5]);
    }

    /// A group that does not fit waits while another fits, and straddles where none does.
    #[test]
    fn nonfitting_group_waits_or_straddles() {
        let records = [record(1, None, 1024), record(2, None, 2000), record(3, None, 512)];
        assert_eq!(order(&arrange(&records, 8192 - 1600, 8192, 0)), [0, 2, 1]);
        assert_eq!(order(&arrange(&records[1..2], 8192 - 64, 8192, 0)), [0]);
    }

    /// Long records and fragments come last; each record appears once, whatever the hints.
    #[test]
    fn long_records_come_last() {
        let mut random = 1u64;
        for count in 0..200 {
            let records: Vec<UnplacedRecord> = (0..count)
                .map(|number| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let draw = (random >> 33) as u32;
                    let seed = draw.is_multiple_of(3).then_some(draw / 3 % 40);
                    let mut record = record(number % 40, seed, u64::from(draw % 50_000));
                    if draw.is_multiple_of(7) {
                        record.id = None;
                    }
                    if draw.is_multiple_of(11) {
                        record.tie = Some(GroupTie::Former((draw % 5) as u16));
                    }
                    record
                })
                .collect();
            let placed = arrange(&records, 300 * 64, 65536, u64::MAX);
            let mut indices = order(&placed);
            let short = |index: &usize| records[*index].id.is_some() && records[*index].bytes <= 32768;
            assert!(indices.is_sorted_by_key(|index| !short(index)));
            indices.sort_unstable();
            assert!(indices.into_iter().eq(0..records.len()));
        }
    }
}
