//! Checks records that belong to the volume, to inodes, or to sessions.

use std::collections::{BTreeMap, HashMap};

use super::ProblemList;
use crate::format::{
    EpochRecord, GrantRecord, Inode, OrphanRecord, ProjectRecord, ReplyRecord, SessionRecord, TableKey, TableKind,
    VolumeRecord, XATTR_HEAD_BYTES,
};
use crate::metadata::access;
use crate::tables::MetadataTables;

/// The maximum number of blocks that one grant lets a session overwrite in place. *Units*: blocks.
const IN_PLACE_BLOCKS_MAX: u64 = 1 << 18;
/// The kinds of grants whose record names an inode.
const GRANT_IN_PLACE: u8 = 2;
const GRANT_DIRECTORY: u8 = 4;

/// Checks the record of the volume and its counters. If the record is missing or damaged, returns a record that
/// contradicts nothing.
pub(super) fn volume(
    tables: &MetadataTables,
    inodes: &BTreeMap<u64, Inode>,
    problems: &mut ProblemList,
) -> VolumeRecord {
    let unknown =
        VolumeRecord { blocks: u64::MAX, next_inode: u64::MAX, next_session: u64::MAX, ..VolumeRecord::default() };
    let volume = match tables.get(&TableKey::Volume).map(VolumeRecord::decode) {
        Some(Ok(volume)) => volume,
        Some(Err(error)) => {
            problems.add(format!("the record of the volume: {error}"));
            return unknown;
        }
        None => {
            problems.add("the record of the volume is missing".to_owned());
            return unknown;
        }
    };
    if let Some(words) = volume.refusal() {
        problems.add(words);
    }
    if let Some((last, _)) = inodes.last_key_value()
        && *last >= volume.next_inode
    {
        problems.add(format!("volume: next_inode is {}, and inode {last} is there", volume.next_inode));
    }
    volume
}

/// Compares the count of used blocks in the volume's record with *space*; a count of 0 means that the volume never
/// counted.
pub(super) fn used(volume: &VolumeRecord, counts: impl Iterator<Item = u64>, problems: &mut ProblemList) {
    let counted = counts.fold(0_u64, u64::saturating_add);
    if volume.used_blocks != 0 && volume.used_blocks != counted {
        problems.add(format!("volume: {} blocks are used, {counted} were counted", volume.used_blocks));
    }
}

/// Checks extended attributes.
pub(super) fn attributes(tables: &MetadataTables, inodes: &BTreeMap<u64, Inode>, problems: &mut ProblemList) {
    for (key, value) in tables.table(TableKind::Xattrs) {
        let Ok(TableKey::Xattr(inode, name)) = TableKey::decode(TableKind::Xattrs, key) else {
            problems.add(format!("xattrs: the key {key:?} is damaged"));
            continue;
        };
        let shown = String::from_utf8_lossy(&name).into_owned();
        if !inodes.contains_key(&inode) {
            problems.add(format!("xattrs: \"{shown}\" belongs to inode {inode}, which is not there"));
        }
        let said = value.get(..4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_le_bytes);
        let found = value.len().checked_sub(XATTR_HEAD_BYTES);
        if found != Some(said as usize) {
            let found = found.unwrap_or(0);
            problems.add(format!("xattrs: \"{shown}\" of inode {inode} is to have {said} bytes, and has {found}"));
        }
        let list = value.get(XATTR_HEAD_BYTES..).filter(|_| access::is_list(&name)).zip(inodes.get(&inode));
        if let Some(problem) = list.and_then(|(list, found)| access::problem(&name, list, found)) {
            problems.add(format!("xattrs: \"{shown}\" of inode {inode} {problem}"));
        }
    }
}

/// Checks the records of inodes without a name.
pub(super) fn orphans(tables: &MetadataTables, inodes: &BTreeMap<u64, Inode>, problems: &mut ProblemList) {
    for (key, value) in tables.table(TableKind::Orphans) {
        let Ok(TableKey::Orphan(inode)) = TableKey::decode(TableKind::Orphans, key) else {
            problems.add(format!("orphans: the key {key:?} is damaged"));
            continue;
        };
        if !inodes.contains_key(&inode) {
            problems.add(format!("orphans: inode {inode} is not there"));
        }
        if let Err(error) = OrphanRecord::decode(value) {
            problems.add(format!("orphans: the record of inode {inode} is damaged: {error}"));
        }
    }
}

/// Checks sessions and the records that belong to them.
pub(super) fn sessions(tables: &MetadataTables, inodes: &BTreeMap<u64, Inode>, next: u64, problems: &mut ProblemList) {
    for (key, value) in tables.table(TableKind::Sessions) {
        match (TableKey::decode(TableKind::Sessions, key), SessionRecord::decode(value)) {
            (Ok(TableKey::Session(number)), Ok(_)) if number < next => {}
            (Ok(TableKey::Session(number)), Ok(_)) => {
                problems.add(format!("volume: next_session is {next}, and session {number} is there"));
            }
            (Ok(TableKey::Session(number)), Err(error)) => problems.add(format!("session {number}: {error}")),
            _ => problems.add(format!("sessions: the key {key:?} is damaged")),
        }
    }
    for (key, value) in tables.table(TableKind::Replies) {
        let Ok(TableKey::Reply(session, number)) = TableKey::decode(TableKind::Replies, key) else {
            problems.add(format!("replies: the key {key:?} is damaged"));
            continue;
        };
        if tables.get(&TableKey::Session(session)).is_none() {
            problems.add(format!("replies: {number} belongs to session {session}, which is not there"));
        }
        if let Err(error) = ReplyRecord::decode(value) {
            problems.add(format!("replies: {number} of session {session}: {error}"));
        }
    }
    grants(tables, inodes, problems);
}

fn grants(tables: &MetadataTables, inodes: &BTreeMap<u64, Inode>, problems: &mut ProblemList) {
    let mut reserved: HashMap<u64, u64> = HashMap::new();
    for (key, value) in tables.table(TableKind::Grants) {
        let Ok(TableKey::Grant(session, kind, start)) = TableKey::decode(TableKind::Grants, key) else {
            problems.add(format!("grants: the key {key:?} is damaged"));
            continue;
        };
        let place = format!("grants: kind {kind} from {start} on");
        if tables.get(&TableKey::Session(session)).is_none() {
            problems.add(format!("{place} belongs to session {session}, which is not there"));
        }
        match GrantRecord::decode(value) {
            Err(error) => problems.add(format!("{place} of session {session}: {error}")),
            Ok(grant) => {
                let has_inode = matches!(kind, GRANT_IN_PLACE | GRANT_DIRECTORY);
                if has_inode && !inodes.contains_key(&grant.inode) {
                    problems.add(format!("{place} is of inode {}, which is not there", grant.inode));
                }
                let sum = reserved.entry(session).or_default();
                *sum = sum.saturating_add(grant.reserved_blocks);
            }
        }
    }
    for (session, blocks) in reserved.iter().filter(|(_, blocks)| **blocks > IN_PLACE_BLOCKS_MAX) {
        problems.add(format!("grants: session {session} may overwrite {blocks} blocks in place, which is too much"));
    }
}

/// Checks projects and epochs, and that the table of runs is empty, because only a manifest lists runs.
pub(super) fn others(tables: &MetadataTables, problems: &mut ProblemList) {
    for (key, value) in tables.table(TableKind::Projects) {
        if let Err(error) = TableKey::decode(TableKind::Projects, key).and_then(|_| ProjectRecord::decode(value)) {
            problems.add(format!("projects: {key:?}: {error}"));
        }
    }
    for (key, value) in tables.table(TableKind::Epochs) {
        if let Err(error) = TableKey::decode(TableKind::Epochs, key).and_then(|_| EpochRecord::decode(value)) {
            problems.add(format!("epochs: {key:?}: {error}"));
        }
    }
    for key in tables.table(TableKind::Runs).keys() {
        problems.add(format!("runs: {key:?} is no record of a table"));
    }
}
