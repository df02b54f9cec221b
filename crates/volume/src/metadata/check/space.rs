//! Checks *space* and the extents of files.

use std::collections::{BTreeMap, HashMap};

use super::ProblemList;
use crate::format::{
    EpochRecord, ExtentRecord, ExtentState, Inode, SPACE_START, SpaceRecord, TableKey, TableKind, VolumeLabel,
};
use crate::tables::MetadataTables;

/// The maximum number of blocks of a file. *Units*: blocks.
const FILE_BLOCKS_MAX: u64 = 1 << 51;

/// The extents in *space*: start, then end and record.
type Used = BTreeMap<u64, (u64, SpaceRecord)>;
/// Blocks of an inode: start, end, inode.
type Owned = (u64, u64, u64);

/// Checks *space*; returns its extents by their first block.
pub(super) fn space(
    tables: &MetadataTables,
    label: &VolumeLabel,
    blocks: u64,
    inodes: &BTreeMap<u64, Inode>,
    problems: &mut ProblemList,
) -> Used {
    let (mut at, mut used) = (SPACE_START, Used::new());
    for (key, value) in tables.table(TableKind::Space) {
        let (Ok(TableKey::Space(start)), Ok(space)) =
            (TableKey::decode(TableKind::Space, key), SpaceRecord::decode(value))
        else {
            problems.add(format!("space: {key:?} is damaged"));
            continue;
        };
        let end = start.saturating_add(space.blocks);
        if start < SPACE_START {
            problems.add(format!("space: blocks {start} to {end} are before the start of space"));
        } else if start < at {
            problems.add(format!("space: block {start} is used twice"));
        }
        at = at.max(end);
        if end > blocks {
            problems.add(format!("space: blocks {start} to {end} are outside of the disk"));
        }
        let size = label.segment_blocks.max(1);
        match space.state {
            ExtentState::Data if !inodes.contains_key(&space.owner) => {
                problems.add(format!("space: block {start} is data of inode {}, which is not there", space.owner));
            }
            ExtentState::Granted | ExtentState::Quarantined
                if tables.get(&TableKey::Session(space.owner)).is_none() =>
            {
                problems.add(format!("space: block {start} is granted to session {}, which is not there", space.owner));
            }
            ExtentState::Metadata | ExtentState::QuarantinedMetadata
                if !start.is_multiple_of(size) || !space.blocks.is_multiple_of(size) =>
            {
                problems.add(format!("space: blocks {start} to {end} of metadata are not whole segments"));
            }
            _ => {}
        }
        used.insert(start, (end, space));
    }
    used
}

/// Compares the quarantined segments in *space* with the number that each epoch's record says.
pub(super) fn quarantined(tables: &MetadataTables, label: &VolumeLabel, used: &Used, problems: &mut ProblemList) {
    for (key, value) in tables.table(TableKind::Epochs) {
        // `others` reports damaged records.
        let (Ok(TableKey::Epoch(epoch)), Ok(record)) =
            (TableKey::decode(TableKind::Epochs, key), EpochRecord::decode(value))
        else {
            continue;
        };
        let of_it = used.values().map(|(_, space)| space);
        let of_it = of_it.filter(|space| space.state == ExtentState::QuarantinedMetadata && space.owner == epoch);
        let counted = of_it.map(|space| space.blocks / label.segment_blocks.max(1)).fold(0, u64::saturating_add);
        if record.segments != counted {
            let said = record.segments;
            problems.add(format!("epoch {epoch}: {said} segments are quarantined under it, {counted} were counted"));
        }
    }
}

/// Checks the extents of files by themselves, against each other, and against *space*.
pub(super) fn extents(
    tables: &MetadataTables,
    blocks: u64,
    inodes: &BTreeMap<u64, Inode>,
    used: &Used,
    problems: &mut ProblemList,
) {
    let mut mapped: Vec<Owned> = Vec::new();
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let mut last = (0, 0);
    for (key, value) in tables.table(TableKind::Extents) {
        let (Ok(TableKey::Extent(number, start)), Ok(extent)) =
            (TableKey::decode(TableKind::Extents, key), ExtentRecord::decode(value))
        else {
            problems.add(format!("extents: {key:?} is damaged"));
            continue;
        };
        let count = u64::from(extent.blocks);
        let (stop, end) = (start.saturating_add(count), extent.block.saturating_add(count));
        if last.0 == number && start < last.1 {
            problems.add(format!("inode {number}: its block {start} is mapped twice"));
        }
        if stop > FILE_BLOCKS_MAX {
            problems.add(format!("inode {number}: its blocks {start} to {stop} are beyond the largest file"));
        }
        if end > blocks {
            problems.add(format!("inode {number}: its blocks {} to {end} are outside of the disk", extent.block));
        }
        // The target of a symbolic link has an extent if it is too long for the inode.
        let has_extents = |inode: &Inode| matches!(inode.mode & libc::S_IFMT, libc::S_IFREG | libc::S_IFLNK);
        if last.0 != number && inodes.get(&number).is_some_and(|inode| !has_extents(inode)) {
            problems.add(format!("inode {number} has extents, and is no file"));
        }
        last = (number, stop);
        *counts.entry(number).or_default() += count;
        mapped.push((extent.block, end, number));
    }
    for (number, inode) in inodes {
        let counted = counts.remove(number).unwrap_or(0);
        if counted != inode.blocks {
            problems.add(format!("inode {number}: it has {} blocks, {counted} were counted", inode.blocks));
        }
    }
    let mut left: Vec<u64> = counts.into_keys().collect();
    left.sort_unstable();
    left.iter().for_each(|inode| problems.add(format!("inode {inode} has extents, and is not there")));
    overlaps(&mut mapped, problems);
    compare(joined(mapped), used, problems);
}

/// Reports extents that share blocks.
fn overlaps(mapped: &mut [Owned], problems: &mut ProblemList) {
    mapped.sort_unstable();
    let mut furthest: Option<Owned> = None;
    for &(start, end, owner) in mapped.iter() {
        if let Some((_, stop, other)) = furthest.filter(|(_, stop, _)| *stop > start) {
            let stop = stop.min(end);
            problems.add(format!("blocks {start} to {stop} are in extents of inode {other} and of inode {owner}"));
        }
        if furthest.is_none_or(|(_, stop, _)| end > stop) {
            furthest = Some((start, end, owner));
        }
    }
}

/// Compares the blocks that files map with the blocks that *space* assigns to them, in both directions.
fn compare(mapped: Vec<Owned>, used: &Used, problems: &mut ProblemList) {
    for &(start, end, inode) in &mapped {
        let mut at = start;
        while at < end {
            let here = used.range(..=at).next_back().filter(|(_, (stop, _))| *stop > at);
            let (stop, what) = match here {
                Some((_, (stop, space))) if space.state == ExtentState::Data && space.owner == inode => (*stop, None),
                Some((_, (stop, space))) => (*stop, Some(words(space))),
                None => (used.range(at..).next().map_or(end, |(next, _)| *next), Some("free".to_owned())),
            };
            let stop = stop.min(end);
            if let Some(what) = what {
                problems.add(format!("inode {inode} maps blocks {at} to {stop}, which are {what} in space"));
            }
            at = stop;
        }
    }
    let data = used.iter().filter(|(_, (_, space))| space.state == ExtentState::Data);
    let data = joined(data.map(|(start, (end, space))| (*start, *end, space.owner)).collect());
    let mut mapped = mapped.iter().filter(|(start, end, _)| start < end).peekable();
    for (start, end, inode) in data {
        let mut at = start;
        while at < end {
            while mapped.next_if(|(_, stop, _)| *stop <= at).is_some() {}
            let (stop, is_mapped) = match mapped.peek() {
                Some((first, stop, owner)) if *first <= at => (*stop, *owner == inode),
                Some((first, ..)) => (*first, false),
                None => (end, false),
            };
            let stop = stop.min(end);
            if !is_mapped {
                problems
                    .add(format!("space: blocks {at} to {stop} are data of inode {inode}, which does not map them"));
            }
            at = stop;
        }
    }
}

fn words(space: &SpaceRecord) -> String {
    let owner = space.owner;
    match space.state {
        ExtentState::Data => format!("data of inode {owner}"),
        ExtentState::Granted => format!("granted to session {owner}"),
        ExtentState::Quarantined => format!("quarantined with session {owner}"),
        ExtentState::Draining => format!("draining since append {owner}"),
        ExtentState::Metadata | ExtentState::QuarantinedMetadata => format!("metadata of epoch {owner}"),
        ExtentState::Bad => "bad".to_owned(),
    }
}

/// Joins neighbouring extents of one owner.
fn joined(mut list: Vec<Owned>) -> Vec<Owned> {
    list.sort_unstable();
    let mut out: Vec<Owned> = Vec::new();
    for (start, end, owner) in list {
        match out.last_mut() {
            Some(last) if last.1 == start && last.2 == owner => last.1 = end,
            _ => out.push((start, end, owner)),
        }
    }
    out
}
