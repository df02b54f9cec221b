//! Checks inodes and directories.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::RangeInclusive;

use super::ProblemList;
use crate::format::{INLINE_BYTES_MAX, Inode, NameRecord, TARGET_BYTES_MAX, TableKey, TableKind, VolumeLabel};
use crate::metadata::names::{first_cookie, is_directory};
use crate::metadata::records::ROOT;
use crate::tables::MetadataTables;

/// The low bits of a cookie, which are a serial number and not part of the hash.
const SERIAL_BITS: u32 = 15;
/// The lengths of link targets that are stored in a block. *Units*: bytes.
const LONG: RangeInclusive<u64> = INLINE_BYTES_MAX as u64 + 1..=TARGET_BYTES_MAX as u64;

/// Checks every inode by itself; returns all readable ones.
pub(super) fn inodes(tables: &MetadataTables, problems: &mut ProblemList) -> BTreeMap<u64, Inode> {
    let mut found = BTreeMap::new();
    for (key, value) in tables.table(TableKind::Inodes) {
        match (TableKey::decode(TableKind::Inodes, key), Inode::decode(value)) {
            (Ok(TableKey::Inode(number)), Ok(inode)) => {
                shape(number, &inode, problems);
                found.insert(number, inode);
            }
            (Err(error), _) | (_, Err(error)) => problems.add(format!("inodes: {key:?}: {error}")),
            _ => problems.add(format!("inodes: {key:?} is a key of another table")),
        }
    }
    match found.get(&ROOT) {
        None => problems.add("there is no root directory".to_owned()),
        Some(root) if !is_directory(root) => problems.add("inode 1, the root, is not a directory".to_owned()),
        Some(root) if root.parent != ROOT => {
            problems.add(format!("the root has the parent {}, and must be its own", root.parent));
        }
        Some(_) => {}
    }
    found
}

/// Checks that size and blocks of an inode fit its type.
fn shape(number: u64, inode: &Inode, problems: &mut ProblemList) {
    let (size, inline) = (inode.size, inode.inline.len() as u64);
    match inode.mode & libc::S_IFMT {
        libc::S_IFREG => {}
        libc::S_IFLNK if inode.blocks == 0 && size == inline => {}
        // The target is too long for the inode, so it is in a block.
        libc::S_IFLNK if inode.blocks == 1 && inline == 0 && LONG.contains(&size) => {}
        libc::S_IFLNK => {
            let blocks = inode.blocks;
            problems.add(format!(
                "inode {number}: a symbolic link of {size} bytes has {inline} in it, and {blocks} blocks"
            ));
        }
        _ if size != 0 || inline != 0 => {
            problems
                .add(format!("inode {number}: neither file nor link, and its size is {size} bytes, {inline} in it"));
        }
        _ => {}
    }
}

/// Compares names in directories with the names that inodes record.
pub(super) fn names(
    tables: &MetadataTables,
    label: &VolumeLabel,
    inodes: &BTreeMap<u64, Inode>,
    problems: &mut ProblemList,
) {
    let mut links: HashMap<u64, u32> = HashMap::new();
    let mut counts: HashMap<u64, u64> = HashMap::new();
    // The parent of each directory.
    let mut parents: HashMap<u64, u64> = HashMap::new();
    let (mut in_directory, mut seen) = (None, HashSet::new());
    for (key, value) in tables.table(TableKind::Entries) {
        let (directory, cookie) = match TableKey::decode(TableKind::Entries, key) {
            Ok(TableKey::Entry(directory, cookie)) => (directory, cookie),
            _ => {
                problems.add(format!("entries: the key {key:?} is damaged"));
                continue;
            }
        };
        let name = match NameRecord::decode(value) {
            Ok(name) => name,
            Err(error) => {
                problems.add(format!("directory {directory}, cookie {cookie:#x}: {error}"));
                continue;
            }
        };
        if in_directory != Some(directory) {
            (in_directory, seen) = (Some(directory), HashSet::new());
            home(directory, inodes.get(&directory), problems);
        }
        let shown = String::from_utf8_lossy(&name.name).into_owned();
        let place = format!("directory {directory}: \"{shown}\"");
        *counts.entry(directory).or_default() += 1;
        if cookie >> SERIAL_BITS != first_cookie(&label.hash_key, &name.name) >> SERIAL_BITS {
            problems.add(format!("{place} has the cookie {cookie:#x}, which is not that of its name"));
        }
        if !seen.insert(name.name.clone()) {
            problems.add(format!("{place} is there twice"));
        }
        let Some(inode) = inodes.get(&name.inode) else {
            problems.add(format!("{place} names inode {}, which is not there", name.inode));
            continue;
        };
        if name.generation != inode.generation {
            let what = format!("generation {} of inode {}", name.generation, name.inode);
            problems.add(format!("{place} names {what}, which has generation {}", inode.generation));
        }
        if u32::from(name.kind) != inode.mode >> 12 {
            let what = format!("of type {}, inode {} has type {}", name.kind, name.inode, inode.mode >> 12);
            problems.add(format!("{place} is {what}"));
        }
        if is_directory(inode) {
            *links.entry(directory).or_default() += 1;
            *links.entry(name.inode).or_default() += 2;
            if name.inode == ROOT {
                problems.add(format!("{place} names the root"));
            } else if parents.insert(name.inode, directory).is_some() {
                problems.add(format!("{place} is a second name of directory {}", name.inode));
            }
            if inode.parent != directory {
                problems.add(format!("directory {}: its parent is {directory}, not {}", name.inode, inode.parent));
            }
        } else {
            *links.entry(name.inode).or_default() += 1;
        }
    }
    *links.entry(ROOT).or_default() += 2;
    for (number, inode) in inodes {
        count(*number, inode, (&links, &counts), tables, problems);
    }
    ways(inodes, &parents, problems);
}

/// Checks that the inode of names exists and is a directory.
fn home(directory: u64, inode: Option<&Inode>, problems: &mut ProblemList) {
    match inode {
        None => problems.add(format!("directory {directory} has names, and is not there")),
        Some(inode) if !is_directory(inode) => {
            problems.add(format!("inode {directory} has names, and is not a directory"));
        }
        Some(inode) if inode.links == 0 => problems.add(format!("directory {directory} was removed, and has names")),
        Some(_) => {}
    }
}

fn count(
    number: u64,
    inode: &Inode,
    (links, counts): (&HashMap<u64, u32>, &HashMap<u64, u64>),
    tables: &MetadataTables,
    problems: &mut ProblemList,
) {
    let counted = links.get(&number).copied().unwrap_or(0);
    if counted != inode.links {
        problems.add(format!("inode {number}: it has {} links, {counted} were counted", inode.links));
    }
    let is_orphan = tables.get(&TableKey::Orphan(number)).is_some();
    if (inode.links == 0) != is_orphan {
        let not = if is_orphan { "" } else { "not " };
        problems.add(format!("inode {number}: {} links, and it is {not}an orphan", inode.links));
    }
    let names = counts.get(&number).copied().unwrap_or(0);
    if is_directory(inode) && names != inode.device {
        problems.add(format!("directory {number}: it has {} names, {names} were counted", inode.device));
    }
}

/// The end of the way up from a directory.
#[derive(Clone, Copy, PartialEq)]
enum AncestryEnd {
    Root,
    /// The way from parent to parent ends at a directory that no entry names.
    Nowhere,
    Circle,
}

/// Follows each directory up to the root.
fn ways(inodes: &BTreeMap<u64, Inode>, parents: &HashMap<u64, u64>, problems: &mut ProblemList) {
    let mut known = HashMap::from([(ROOT, AncestryEnd::Root)]);
    let directories = inodes.iter().filter(|(_, inode)| is_directory(inode) && inode.links > 0);
    for (number, _) in directories {
        let (mut path, mut on_path, mut at) = (Vec::new(), HashSet::new(), *number);
        let way = loop {
            if let Some(way) = known.get(&at) {
                break *way;
            }
            if !on_path.insert(at) {
                break AncestryEnd::Circle;
            }
            path.push(at);
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break AncestryEnd::Nowhere,
            }
        };
        for directory in path {
            known.insert(directory, way);
            match way {
                AncestryEnd::Root => {}
                AncestryEnd::Nowhere if parents.contains_key(&directory) => {
                    problems.add(format!("directory {directory} is below one that hangs nowhere"));
                }
                AncestryEnd::Nowhere => {
                    problems.add(format!("directory {directory} hangs nowhere: no name leads to it"))
                }
                AncestryEnd::Circle => problems.add(format!("directory {directory} is in a circle, or below one")),
            }
        }
    }
}
