//! Files of a volume that is read without a server.
//!
//! Owns: the way from a path to an inode and its extents. Promises: damaged records are errors. Symbolic links are not
//! followed.

use std::collections::HashSet;

use super::change::{Result, damaged};
use super::names::{find, is_directory};
use super::records::{ROOT, inode, posix};
use crate::format::{ExtentRecord, TableKey, TableKind, VolumeLabel};
use crate::protocol::{FileId, InodeAttributes};
use crate::tables::MetadataTables;

/// A file and the places of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileMap {
    /// The inode.
    pub attributes: InodeAttributes,
    /// The extents, each after its first block in the file. *Units*: blocks.
    pub extents: Vec<(u64, ExtentRecord)>,
}

/// Finds the file at a path below the root, and its extents.
///
/// *Errors*: ENOENT, ENOTDIR; damaged records.
pub fn file_map(tables: &MetadataTables, label: &VolumeLabel, path: &[u8]) -> Result<FileMap> {
    let at = |number| inode(tables, FileId { inode: number, generation: 0 });
    let (mut number, mut found, mut passed) = (ROOT, at(ROOT)?, HashSet::new());
    for name in path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")) {
        if !is_directory(&found) {
            return Err(posix(libc::ENOTDIR));
        }
        if !passed.insert(number) {
            return Err(damaged(format!("directory {number} is below itself")));
        }
        let (_, entry) = find(tables, &label.hash_key, number, name)?.ok_or(posix(libc::ENOENT))?;
        (number, found) = (entry.inode, at(entry.inode)?);
    }
    Ok(FileMap { extents: extents(tables, number)?, attributes: InodeAttributes { number, inode: found } })
}

fn extents(tables: &MetadataTables, number: u64) -> Result<Vec<(u64, ExtentRecord)>> {
    let mut extents = Vec::new();
    for (key, value) in tables.from(&TableKey::Extent(number, 0)) {
        match TableKey::decode(TableKind::Extents, key) {
            Ok(TableKey::Extent(of, start)) if of == number => {
                extents.push((start, ExtentRecord::decode(value).map_err(damaged)?));
            }
            _ => break,
        }
    }
    Ok(extents)
}
