//! What must agree: names with inodes, inodes with extents, extents with *space*.

use std::collections::{BTreeMap, HashMap};

use super::records::ROOT;
use crate::format::{Extent, ExtentState, Inode, Key, Name, SPACE_START, Space, Table, VolumeRecord};
use crate::tables::Tables;

/// Compares the records of a volume from all sides; returns what does not agree.
pub fn check(tables: &Tables) -> Vec<String> {
    let mut problems = Vec::new();
    let blocks = match tables.get(&Key::Volume).map(VolumeRecord::decode) {
        Some(Ok(volume)) => volume.blocks,
        _ => {
            problems.push("the record of the volume is missing or damaged".to_owned());
            u64::MAX
        }
    };
    let inodes = inodes(tables, &mut problems);
    names(tables, &inodes, &mut problems);
    let owned = space(tables, blocks, &mut problems);
    extents(tables, &inodes, owned, &mut problems);
    problems
}

fn inodes(tables: &Tables, problems: &mut Vec<String>) -> BTreeMap<u64, Inode> {
    let mut found = BTreeMap::new();
    for (key, value) in tables.table(Table::Inodes) {
        match (Key::decode(Table::Inodes, key), Inode::decode(value)) {
            (Ok(Key::Inode(number)), Ok(inode)) => drop(found.insert(number, inode)),
            (_, result) => problems
                .push(format!("inodes: {key:?}: {}", result.err().map_or_else(String::new, |error| error.to_string()))),
        }
    }
    if !found.contains_key(&ROOT) {
        problems.push("there is no root directory".to_owned());
    }
    found
}

fn names(tables: &Tables, inodes: &BTreeMap<u64, Inode>, problems: &mut Vec<String>) {
    let mut links: HashMap<u64, u32> = HashMap::new();
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for (key, value) in tables.table(Table::Entries) {
        let (Ok(Key::Entry(directory, _)), Ok(name)) = (Key::decode(Table::Entries, key), Name::decode(value)) else {
            problems.push(format!("entries: {key:?} is damaged"));
            continue;
        };
        *counts.entry(directory).or_default() += 1;
        let shown = String::from_utf8_lossy(&name.name).into_owned();
        match inodes.get(&name.inode) {
            None => problems
                .push(format!("directory {directory}: \"{shown}\" names inode {}, which is not there", name.inode)),
            Some(inode) if inode.mode & libc::S_IFMT == libc::S_IFDIR => {
                *links.entry(directory).or_default() += 1;
                *links.entry(name.inode).or_default() += 2;
                if inode.parent != directory {
                    problems.push(format!("directory {}: its parent is {directory}, not {}", name.inode, inode.parent));
                }
            }
            Some(_) => *links.entry(name.inode).or_default() += 1,
        }
    }
    *links.entry(ROOT).or_default() += 2;
    for (number, inode) in inodes {
        let counted = links.get(number).copied().unwrap_or(0);
        if counted != inode.links {
            problems.push(format!("inode {number}: it has {} links, {counted} were counted", inode.links));
        }
        let is_orphan = tables.get(&Key::Orphan(*number)).is_some();
        if (inode.links == 0) != is_orphan {
            problems.push(format!(
                "inode {number}: {} links, and it is {}an orphan",
                inode.links,
                if is_orphan { "" } else { "not " }
            ));
        }
        let is_directory = inode.mode & libc::S_IFMT == libc::S_IFDIR;
        let names = counts.get(number).copied().unwrap_or(0);
        if is_directory && names != inode.device {
            problems.push(format!("directory {number}: it has {} names, {names} were counted", inode.device));
        }
    }
}

/// Checks *space*, and gives the blocks that inodes own by it: start, end, inode.
fn space(tables: &Tables, blocks: u64, problems: &mut Vec<String>) -> Vec<(u64, u64, u64)> {
    let (mut at, mut owned) = (SPACE_START, Vec::new());
    for (key, value) in tables.table(Table::Space) {
        let (Ok(Key::Space(start)), Ok(space)) = (Key::decode(Table::Space, key), Space::decode(value)) else {
            problems.push(format!("space: {key:?} is damaged"));
            continue;
        };
        if start < at {
            problems.push(format!("space: block {start} is used twice"));
        }
        at = start.saturating_add(space.blocks);
        if at > blocks {
            problems.push(format!("space: blocks {start} to {at} are outside of the disk"));
        }
        match space.state {
            ExtentState::Data => owned.push((start, at, space.owner)),
            ExtentState::Granted if tables.get(&Key::Session(space.owner)).is_none() => {
                problems
                    .push(format!("space: block {start} is granted to session {}, which is not there", space.owner));
            }
            _ => {}
        }
    }
    owned
}

fn extents(tables: &Tables, inodes: &BTreeMap<u64, Inode>, owned: Vec<(u64, u64, u64)>, problems: &mut Vec<String>) {
    let mut mapped = Vec::new();
    let mut counts: HashMap<u64, u64> = HashMap::new();
    let mut last = (0, 0);
    for (key, value) in tables.table(Table::Extents) {
        let (Ok(Key::Extent(inode, start)), Ok(extent)) = (Key::decode(Table::Extents, key), Extent::decode(value))
        else {
            problems.push(format!("extents: {key:?} is damaged"));
            continue;
        };
        if last.0 == inode && start < last.1 {
            problems.push(format!("inode {inode}: its block {start} is mapped twice"));
        }
        last = (inode, start + u64::from(extent.blocks));
        *counts.entry(inode).or_default() += u64::from(extent.blocks);
        mapped.push((extent.block, extent.block + u64::from(extent.blocks), inode));
    }
    for (number, inode) in inodes {
        let counted = counts.remove(number).unwrap_or(0);
        if counted != inode.blocks {
            problems.push(format!("inode {number}: it has {} blocks, {counted} were counted", inode.blocks));
        }
    }
    problems.extend(counts.keys().map(|inode| format!("inode {inode} has extents, and is not there")));
    mapped.sort_unstable();
    if joined(mapped) != joined(owned) {
        problems.push("the extents of files are not those that space says files have".to_owned());
    }
}

/// Neighbours of one owner as one.
fn joined(mut list: Vec<(u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
    list.sort_unstable();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for (start, end, owner) in list {
        match out.last_mut() {
            Some(last) if last.1 == start && last.2 == owner => last.1 = end,
            _ => out.push((start, end, owner)),
        }
    }
    out
}
