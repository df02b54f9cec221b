//! The first records of a volume, and functions that find records.

use super::change::{Result, TableChange, damaged};
use crate::format::{
    ExtentState, Inode, Mutation, SpaceRecord, TableKey, TableKind, Transaction, TransactionKind, VolumeRecord,
    XATTR_HEAD_BYTES,
};
use crate::journal::VolumeLayout;
use crate::protocol::{FileId, ServerRefusal};
use crate::tables::MetadataTables;

/// The inode number of the root directory.
pub(super) const ROOT: u64 = 1;
/// Inode numbers below this one are reserved.
pub(super) const FIRST_INODE: u64 = 16;

/// Returns the first records of a volume.
pub fn first(layout: &VolumeLayout, now_ns: i64) -> Vec<Mutation> {
    let mut tables = MetadataTables::default();
    let mut change = TableChange::new(&mut tables);
    let volume = VolumeRecord {
        blocks: layout.blocks,
        next_inode: FIRST_INODE,
        next_session: 1,
        next_run: 1,
        used_blocks: layout.segments.iter().map(|segment| segment.blocks).sum(),
        ..VolumeRecord::default()
    };
    change.put(&TableKey::Volume, volume.encode());
    let root = Inode {
        mode: libc::S_IFDIR | 0o755,
        links: 2,
        generation: 1,
        times_ns: [now_ns; 4],
        version: 1,
        parent: ROOT,
        ..Inode::default()
    };
    change.put(&TableKey::Inode(ROOT), root.encode().unwrap_or_default());
    for segment in &layout.segments {
        let space =
            SpaceRecord { blocks: segment.blocks, state: ExtentState::Metadata, owner: segment.epoch, since: 0 };
        change.put(&TableKey::Space(segment.block), space.encode());
    }
    change.mutations
}

pub(super) fn posix(errno: i32) -> ServerRefusal {
    ServerRefusal::posix(errno)
}

/// Returns the inode with this number and generation.
pub(super) fn inode(tables: &MetadataTables, file: FileId) -> Result<Inode> {
    let found = tables.get(&TableKey::Inode(file.inode)).ok_or(posix(libc::ESTALE))?;
    let found = Inode::decode(found).map_err(damaged)?;
    match file.generation == 0 || file.generation == found.generation {
        true => Ok(found),
        false => Err(posix(libc::ESTALE)),
    }
}

pub(super) fn server(mutations: Vec<Mutation>) -> Transaction {
    Transaction { kind: TransactionKind::Server, session: 0, number: 0, reply: Vec::new(), mutations }
}

pub(super) fn spaces(tables: &MetadataTables) -> Result<Vec<(u64, SpaceRecord)>> {
    let mut found = Vec::new();
    for (key, value) in tables.table(TableKind::Space) {
        if let TableKey::Space(start) = TableKey::decode(TableKind::Space, key).map_err(damaged)? {
            found.push((start, SpaceRecord::decode(value).map_err(damaged)?));
        }
    }
    Ok(found)
}

/// Returns the keys of a table that follow `from`, up to the first key that `belongs` rejects.
pub(super) fn keys_of(
    tables: &MetadataTables,
    table: TableKind,
    from: &TableKey,
    belongs: impl Fn(&TableKey) -> bool,
) -> Vec<TableKey> {
    let keys = tables.from(from).filter_map(|(key, _)| TableKey::decode(table, key).ok());
    keys.take_while(belongs).collect()
}

/// Decodes the value of an extended attribute.
pub(super) fn decode_xattr(bytes: &[u8]) -> Vec<u8> {
    bytes.get(XATTR_HEAD_BYTES..).unwrap_or_default().to_vec()
}

/// Stores an extended attribute.
pub(super) fn put_xattr(change: &mut TableChange<'_>, number: u64, name: &[u8], value: &[u8]) {
    let head = [&(value.len() as u32).to_le_bytes()[..], &[0; 4]].concat();
    change.put(&TableKey::Xattr(number, name.to_vec()), [&head[..], value].concat());
}
