//! Operations on attributes and on the map of a file.
//!
//! Owns: extents of files, and the checks of a commit. Promises: extents of files never overlap; a commit maps only
//! blocks that were granted to its session.

use std::ops::Bound;

use super::access;
use super::change::{Result, TableChange, damaged};
use super::image::{AppendStamp, FREED_MAX, ImageParts};
use super::names::{store_access, store_inode};
use super::open::is_being_freed;
use super::records::{inode, keys_of, posix, put_xattr};
use super::reserve::full;
use crate::format::{
    BLOCK_BYTES, ExtentRecord, ExtentState, Inode, TableKey, TableKind, XATTR_HEAD_BYTES, XATTR_VALUE_BYTES_MAX,
};
use crate::protocol::{
    AttributeChanges, FILE_BLOCKS_MAX, FileAccess, FileId, InodeAttributes, MappedExtent, MetadataOperation,
    RefusalCode, ServerAnswer, ServerRefusal, TimeChange,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
const EXTENT_BLOCKS_MAX: u32 = 1 << 20;
const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// A flag of setting an access control list: the caller may not keep the set-group-ID bit of the file.
const XATTR_KILL_GROUP_ID: u32 = 4;
/// The maximum length of all attributes of an inode together: of their names, each with a zero byte, as they are listed;
/// and of their records. *Units*: bytes.
pub(super) const XATTR_NAMES_BYTES_MAX: usize = 64 << 10;
const XATTRS_BYTES_MAX: usize = 1 << 20;
/// The maximum number of unwritten blocks that one operation takes, and of their pieces: the answer is stored as a reply,
/// which has at most 4096 bytes.
const TAKEN_BLOCKS_MAX: u64 = 1 << 14;
const TAKEN_PIECES_MAX: usize = 128;

/// Stores times of access.
fn access_all(change: &mut TableChange<'_>, accesses: &[FileAccess]) -> Result<ServerAnswer> {
    for accessed in accesses {
        let Ok(mut found) = inode(change.tables, accessed.file) else { continue };
        if accessed.counts(found.times_ns, found.time_generation) {
            found.times_ns[0] = accessed.at_ns;
            store_access(change, accessed.file.inode, &found)?;
        }
    }
    Ok(ServerAnswer::Done)
}

impl ImageParts<'_> {
    /// Does an operation on an inode.
    pub fn operate_file(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        session: u64,
        operation: &MetadataOperation,
    ) -> Result<ServerAnswer> {
        let file = match operation {
            MetadataOperation::SetAttributes { file, .. }
            | MetadataOperation::SetXattr { file, .. }
            | MetadataOperation::RemoveXattr { file, .. }
            | MetadataOperation::Commit { file, .. }
            | MetadataOperation::Truncate { file, .. }
            | MetadataOperation::Allocate { file, .. }
            | MetadataOperation::TakeReserved { file, .. } => *file,
            MetadataOperation::Access { accesses } => return access_all(change, accesses),
            MetadataOperation::ReturnSpace { extents } => return self.return_space(change, session, extents),
            _ => return Err(posix(libc::EINVAL)),
        };
        let mut found = inode(change.tables, file)?;
        if found.links == 0 && is_being_freed(change.tables, file.inode) {
            return Err(posix(libc::ESTALE));
        }
        match operation {
            MetadataOperation::SetAttributes { changes, .. } => self.set(change, stamp, file, &mut found, changes)?,
            MetadataOperation::SetXattr { name, value, flags, .. } => {
                if set_xattr(change, file, &mut found, (name, value), *flags)? {
                    self.may_grow()?;
                }
                found.times_ns[2] = stamp.now_ns;
            }
            MetadataOperation::RemoveXattr { name, .. } => {
                let key = TableKey::Xattr(file.inode, name.clone());
                change.tables.get(&key).ok_or(posix(libc::ENODATA))?;
                change.delete(&key);
                found.times_ns[2] = stamp.now_ns;
            }
            MetadataOperation::Commit { .. } if found.mode & libc::S_IFMT != libc::S_IFREG => {
                return Err(posix(libc::EINVAL));
            }
            MetadataOperation::Commit { truncate_generation, size, modified_ns, changed_ns, extents, .. } => {
                if *truncate_generation < found.truncate_generation {
                    let words = "the file was truncated meanwhile".to_owned();
                    return Err(ServerRefusal { code: RefusalCode::Stale, errno: libc::ESTALE, words });
                }
                for extent in extents {
                    self.show(change, stamp, session, file, &mut found, extent)?;
                }
                found.size = found.size.max(*size);
                found.times_ns[1] = found.times_ns[1].max(*modified_ns);
                found.times_ns[2] = found.times_ns[2].max(*changed_ns);
            }
            MetadataOperation::Truncate { size, .. } => self.truncate(change, stamp, file, &mut found, *size)?,
            MetadataOperation::Allocate { start, end, mode, .. } => {
                self.allocate(change, stamp, file, &mut found, (*start, *end), *mode)?;
            }
            MetadataOperation::TakeReserved { start, end, .. } => {
                return take_reserved(change, stamp, session, file, found, (*start, *end));
            }
            _ => return Err(posix(libc::EINVAL)),
        }
        store_inode(change, file.inode, &mut found)?;
        Ok(ServerAnswer::Attributes(InodeAttributes { number: file.inode, inode: found }))
    }

    fn set(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        file: FileId,
        found: &mut Inode,
        changes: &AttributeChanges,
    ) -> Result<()> {
        if changes.judged.is_some_and(|judged| judged.owner != found.owner) {
            return Err(posix(libc::EPERM));
        }
        if let Some(size) = changes.size {
            self.truncate(change, stamp, file, found, size)?;
        }
        if let Some(mode) = changes.mode {
            let is_of_group = changes.judged.is_none_or(|judged| judged.group == found.group);
            let mode = if is_of_group { mode } else { mode & !libc::S_ISGID };
            found.mode = found.mode & libc::S_IFMT | mode & 0o7777;
            access::follow_mode(change, file.inode, mode);
        }
        let is_given = changes.mode.is_none() && (changes.owner.is_some() || changes.group.is_some());
        if (changes.drops_rights || is_given) && found.mode & libc::S_IFMT != libc::S_IFDIR {
            found.mode = access::without_rights(found.mode);
        }
        found.owner = changes.owner.unwrap_or(found.owner);
        found.group = changes.group.unwrap_or(found.group);
        let time = |change: TimeChange| match change {
            TimeChange::Now => stamp.now_ns,
            TimeChange::At(ns) => ns,
        };
        if let Some(accessed) = changes.accessed {
            found.times_ns[0] = time(accessed);
        }
        if let Some(modified) = changes.modified {
            found.times_ns[1] = time(modified);
        }
        found.time_generation += u64::from(changes.accessed.is_some() || changes.modified.is_some());
        found.times_ns[2] = stamp.now_ns;
        Ok(())
    }

    /// Maps one extent of a commit, or of a new symbolic link.
    pub(super) fn show(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        session: u64,
        file: FileId,
        found: &mut Inode,
        extent: &MappedExtent,
    ) -> Result<()> {
        let blocks = u64::from(extent.blocks);
        let end =
            extent.file_block.checked_add(blocks).filter(|end| *end <= FILE_BLOCKS_MAX).ok_or(posix(libc::EFBIG))?;
        let is_sound = blocks > 0 && blocks <= EXTENT_BLOCKS_MAX.into();
        if is_sound && is_unwritten(change, file.inode, extent)? {
            return if extent.is_unwritten { Ok(()) } else { clear_unwritten(change, file.inode, found, extent) };
        }
        let is_granted = is_sound && change.unuse_space(extent.block, blocks, ExtentState::Granted, session)?;
        if !is_granted {
            let words = format!("blocks {} to {} are not granted", extent.block, extent.block.saturating_add(blocks));
            return Err(ServerRefusal { code: RefusalCode::Posix, errno: libc::EIO, words });
        }
        self.unmap(change, stamp, file.inode, found, (extent.file_block, end))?;
        change.use_space(extent.block, blocks, ExtentState::Data, file.inode, 0)?;
        map(change, file.inode, found, extent)
    }

    /// Removes blocks of a file from its map and lets them drain: they are freed when no session's cached map has them.
    fn unmap(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        number: u64,
        found: &mut Inode,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut at = start;
        if let Some((before, _)) = extent_before(change, number, start)? {
            at = before;
        }
        let keys = keys_of(
            change.tables,
            TableKind::Extents,
            &TableKey::Extent(number, at),
            |key| matches!(key, TableKey::Extent(of, block) if *of == number && *block < end),
        );
        for key in keys {
            let TableKey::Extent(_, first) = key else { continue };
            let Some(value) = change.tables.get(&key) else { continue };
            let extent = ExtentRecord::decode(value).map_err(damaged)?;
            let stop = first + u64::from(extent.blocks);
            let (cut_start, cut_end) = (first.max(start), stop.min(end));
            if cut_start >= cut_end {
                continue;
            }
            cut(change, number, (first, extent), (cut_start, cut_end));
            let (block, blocks) = (extent.block + (cut_start - first), cut_end - cut_start);
            found.blocks = found.blocks.saturating_sub(blocks);
            if !change.unuse_space(block, blocks, ExtentState::Data, number)? {
                return Err(damaged(format!("inode {number}: block {block} is not its own in space")));
            }
            change.use_space(block, blocks, ExtentState::Draining, stamp.sequence, stamp.sequence)?;
        }
        Ok(())
    }

    fn truncate(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        file: FileId,
        found: &mut Inode,
        size: u64,
    ) -> Result<()> {
        match found.mode & libc::S_IFMT {
            libc::S_IFREG => {}
            libc::S_IFDIR => return Err(posix(libc::EISDIR)),
            _ => return Err(posix(libc::EINVAL)),
        }
        if size > i64::MAX as u64 {
            return Err(posix(libc::EFBIG));
        }
        // A file that grows keeps the blocks that it has reserved behind its end.
        if size <= found.size {
            self.unmap(change, stamp, file.inode, found, (size.div_ceil(BLOCK), u64::MAX))?;
        }
        found.size = size;
        found.truncate_generation += 1;
        found.times_ns[1] = stamp.now_ns;
        found.times_ns[2] = stamp.now_ns;
        Ok(())
    }

    fn allocate(
        &mut self,
        change: &mut TableChange<'_>,
        stamp: AppendStamp,
        file: FileId,
        found: &mut Inode,
        (start, end): (u64, u64),
        mode: u32,
    ) -> Result<()> {
        if start >= end || end > i64::MAX as u64 || found.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(posix(libc::EINVAL));
        }
        let inside = (start.div_ceil(BLOCK), end / BLOCK);
        match mode & !KEEP_SIZE {
            0 => {}
            PUNCH_HOLE if inside.0 < inside.1 => self.unmap(change, stamp, file.inode, found, inside)?,
            ZERO_RANGE if inside.0 < inside.1 => make_unwritten(change, file.inode, found, inside)?,
            PUNCH_HOLE | ZERO_RANGE => {}
            _ => return Err(posix(libc::EOPNOTSUPP)),
        }
        if mode & PUNCH_HOLE == 0 {
            let last = end.div_ceil(BLOCK);
            let mut at = start / BLOCK;
            while at < last {
                let (is_mapped, stop) = mapped_at(change, file.inode, at)?;
                let stop = stop.min(last);
                if !is_mapped {
                    self.allocate_hole(change, file.inode, found, (at, stop))?;
                }
                at = stop;
            }
        }
        if mode & KEEP_SIZE == 0 {
            found.size = found.size.max(end);
        }
        found.times_ns[1] = stamp.now_ns;
        found.times_ns[2] = stamp.now_ns;
        Ok(())
    }

    fn allocate_hole(
        &mut self,
        change: &mut TableChange<'_>,
        number: u64,
        found: &mut Inode,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let granted = self.free.take((end - at).min(EXTENT_BLOCKS_MAX.into()), self.reserve.data);
            let granted = granted.ok_or_else(|| full(self.is_freeing))?;
            change.use_space(granted.block, granted.blocks, ExtentState::Data, number, 0)?;
            let blocks = granted.blocks as u32;
            map(
                change,
                number,
                found,
                &MappedExtent { file_block: at, blocks, block: granted.block, is_unwritten: true },
            )?;
            at += granted.blocks;
        }
        Ok(())
    }

    fn return_space(
        &mut self,
        change: &mut TableChange<'_>,
        session: u64,
        extents: &[(u64, u64)],
    ) -> Result<ServerAnswer> {
        for (block, blocks) in extents {
            if *blocks == 0 || !change.unuse_space(*block, *blocks, ExtentState::Granted, session)? {
                let words = format!("block {block} is not granted");
                return Err(ServerRefusal { code: RefusalCode::Posix, errno: libc::EINVAL, words });
            }
        }
        extents.iter().for_each(|(block, blocks)| self.free.add(*block, *blocks));
        Ok(ServerAnswer::Done)
    }

    /// Frees an inode without a name, or a part of its blocks and attributes if it has many. Returns whether all of it is
    /// freed.
    pub fn free_inode(&mut self, change: &mut TableChange<'_>, number: u64, stamp: AppendStamp) -> Result<bool> {
        let Ok(mut found) = inode(change.tables, FileId { inode: number, generation: 0 }) else { return Ok(true) };
        let extents = keys_of(
            change.tables,
            TableKind::Extents,
            &TableKey::Extent(number, 0),
            |key| matches!(key, TableKey::Extent(of, _) if *of == number),
        );
        if let Some(TableKey::Extent(_, from)) = extents.get(extents.len().saturating_sub(FREED_MAX)) {
            let from = *from;
            self.unmap(change, stamp, number, &mut found, (from, u64::MAX))?;
        }
        let xattrs = keys_of(
            change.tables,
            TableKind::Xattrs,
            &TableKey::Xattr(number, vec![1]),
            |key| matches!(key, TableKey::Xattr(of, _) if *of == number),
        );
        xattrs.iter().take(FREED_MAX).for_each(|key| change.delete(key));
        if extents.len() > FREED_MAX || xattrs.len() > FREED_MAX {
            store_inode(change, number, &mut found)?;
            return Ok(false);
        }
        change.delete(&TableKey::Inode(number));
        change.delete(&TableKey::Orphan(number));
        Ok(true)
    }
}

/// Sets an extended attribute; returns whether it is longer than before.
fn set_xattr(
    change: &mut TableChange<'_>,
    file: FileId,
    found: &mut Inode,
    (name, value): (&[u8], &[u8]),
    flags: u32,
) -> Result<bool> {
    if name.is_empty() || name.len() > 255 || name.contains(&0) {
        return Err(posix(libc::ERANGE));
    }
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(posix(libc::E2BIG));
    }
    let before = change.tables.get(&TableKey::Xattr(file.inode, name.to_vec())).map(<[u8]>::len);
    match (flags & (XATTR_CREATE | XATTR_REPLACE), before) {
        (XATTR_CREATE, Some(_)) => return Err(posix(libc::EEXIST)),
        (XATTR_REPLACE, None) => return Err(posix(libc::ENODATA)),
        _ => {}
    }
    let is_longer = before.is_none_or(|before| XATTR_HEAD_BYTES + value.len() > before);
    if is_longer && !has_xattr_room(change, file.inode, name, value.len()) {
        return Err(posix(libc::ENOSPC));
    }
    if access::is_list(name) {
        access::set_list(change, file.inode, found, (name, value))?;
        if flags & XATTR_KILL_GROUP_ID != 0 {
            found.mode &= !libc::S_ISGID;
        }
        return Ok(is_longer);
    }
    put_xattr(change, file.inode, name, value);
    Ok(is_longer)
}

/// Whether the attributes of an inode stay within their bounds if one of them gets a value of this length.
fn has_xattr_room(change: &TableChange<'_>, inode: u64, name: &[u8], value_bytes: usize) -> bool {
    let (mut names, mut records) = (name.len() + 1, name.len() + XATTR_HEAD_BYTES + value_bytes);
    for (key, value) in change.tables.from(&TableKey::Xattr(inode, vec![1])) {
        match TableKey::decode(TableKind::Xattrs, key) {
            Ok(TableKey::Xattr(of, other)) if of == inode => {
                if other != name {
                    names += other.len() + 1;
                    records += other.len() + value.len();
                }
            }
            _ => break,
        }
    }
    names <= XATTR_NAMES_BYTES_MAX && records <= XATTRS_BYTES_MAX
}

/// Removes a part of an extent from the map.
fn cut(change: &mut TableChange<'_>, number: u64, (first, extent): (u64, ExtentRecord), (start, end): (u64, u64)) {
    let stop = first + u64::from(extent.blocks);
    change.delete(&TableKey::Extent(number, first));
    if first < start {
        change
            .put(&TableKey::Extent(number, first), ExtentRecord { blocks: (start - first) as u32, ..extent }.encode());
    }
    if stop > end {
        let rest = ExtentRecord { block: extent.block + (end - first), blocks: (stop - end) as u32, ..extent };
        change.put(&TableKey::Extent(number, end), rest.encode());
    }
}

/// Adds an extent to the map, in one record with those before and behind it that continue it.
fn map(change: &mut TableChange<'_>, number: u64, found: &mut Inode, extent: &MappedExtent) -> Result<()> {
    let MappedExtent { file_block, block, blocks, is_unwritten } = *extent;
    found.blocks += u64::from(blocks);
    let (mut start, mut made) = (file_block, ExtentRecord { block, blocks, is_unwritten, epoch: 0 });
    let continues = |(at, before): (u64, &ExtentRecord), (next, behind): (u64, &ExtentRecord)| {
        at + u64::from(before.blocks) == next
            && before.block + u64::from(before.blocks) == behind.block
            && before.is_unwritten == behind.is_unwritten
            && before.blocks + behind.blocks <= EXTENT_BLOCKS_MAX
    };
    if let Some((before, old)) = extent_before(change, number, start)?
        && continues((before, &old), (start, &made))
    {
        start = before;
        made = ExtentRecord { block: old.block, blocks: old.blocks + made.blocks, ..made };
    }
    let next = file_block + u64::from(blocks);
    if let Some(value) = change.tables.get(&TableKey::Extent(number, next))
        && let old = ExtentRecord::decode(value).map_err(damaged)?
        && continues((start, &made), (next, &old))
    {
        change.delete(&TableKey::Extent(number, next));
        made = ExtentRecord { blocks: made.blocks + old.blocks, ..made };
    }
    change.put(&TableKey::Extent(number, start), made.encode());
    Ok(())
}

/// Marks blocks that were mapped as unwritten as written.
fn clear_unwritten(change: &mut TableChange<'_>, number: u64, found: &mut Inode, extent: &MappedExtent) -> Result<()> {
    let (start, end) = (extent.file_block, extent.file_block + u64::from(extent.blocks));
    for (first, old) in extents_in(change, number, (start, end))? {
        cut(change, number, (first, old), (start, end));
    }
    found.blocks = found.blocks.saturating_sub(extent.blocks.into());
    map(change, number, found, extent)
}

/// Marks the blocks of a range that are mapped as unwritten; they stay where they are. Nobody has a cached map of them,
/// because the caller's session holds the file's data token.
fn make_unwritten(
    change: &mut TableChange<'_>,
    number: u64,
    found: &mut Inode,
    (start, end): (u64, u64),
) -> Result<()> {
    for (first, extent) in extents_in(change, number, (start, end))? {
        let (from, to) = (first.max(start), (first + u64::from(extent.blocks)).min(end));
        if extent.is_unwritten {
            continue;
        }
        let (block, blocks) = (extent.block + (from - first), (to - from) as u32);
        cut(change, number, (first, extent), (from, to));
        found.blocks = found.blocks.saturating_sub(blocks.into());
        map(change, number, found, &MappedExtent { file_block: from, blocks, block, is_unwritten: true })?;
    }
    Ok(())
}

/// Takes unwritten blocks out of a file's map, and grants them to the session. No cached map has to be drained, because
/// nobody reads unwritten blocks from the disk.
fn take_reserved(
    change: &mut TableChange<'_>,
    stamp: AppendStamp,
    session: u64,
    file: FileId,
    mut found: Inode,
    (start, end): (u64, u64),
) -> Result<ServerAnswer> {
    if start >= end || found.mode & libc::S_IFMT != libc::S_IFREG {
        return Err(posix(libc::EINVAL));
    }
    let (mut taken, mut left, mut answered_to) = (Vec::new(), TAKEN_BLOCKS_MAX, end);
    for (first, extent) in extents_in(change, file.inode, (start, end))? {
        if !extent.is_unwritten {
            continue;
        }
        let (from, stop) = (first.max(start), (first + u64::from(extent.blocks)).min(end));
        let to = if taken.len() < TAKEN_PIECES_MAX { stop.min(from + left) } else { from };
        if from < to {
            let (block, blocks) = (extent.block + (from - first), to - from);
            cut(change, file.inode, (first, extent), (from, to));
            if !change.unuse_space(block, blocks, ExtentState::Data, file.inode)? {
                return Err(damaged(format!("inode {}: block {block} is not its own in space", file.inode)));
            }
            change.use_space(block, blocks, ExtentState::Granted, session, stamp.sequence)?;
            found.blocks = found.blocks.saturating_sub(blocks);
            left -= blocks;
            taken.push(MappedExtent { file_block: from, blocks: blocks as u32, block, is_unwritten: true });
        }
        if to < stop {
            answered_to = to;
            break;
        }
    }
    if !taken.is_empty() {
        store_inode(change, file.inode, &mut found)?;
    }
    Ok(ServerAnswer::Map { extents: taken, answered_to })
}

fn extent_before(change: &TableChange<'_>, number: u64, block: u64) -> Result<Option<(u64, ExtentRecord)>> {
    let table = change.tables.table(TableKind::Extents);
    let range = (
        Bound::Included(TableKey::Extent(number, 0).encode()),
        Bound::Excluded(TableKey::Extent(number, block).encode()),
    );
    let Some((key, value)) = table.range::<Vec<u8>, _>(range).next_back() else { return Ok(None) };
    match TableKey::decode(TableKind::Extents, key).map_err(damaged)? {
        TableKey::Extent(_, start) => Ok(Some((start, ExtentRecord::decode(value).map_err(damaged)?))),
        _ => Err(damaged("extents: a key of another table")),
    }
}

/// Returns the extents of a file that have blocks in a range.
fn extents_in(change: &TableChange<'_>, number: u64, (start, end): (u64, u64)) -> Result<Vec<(u64, ExtentRecord)>> {
    let from = extent_before(change, number, start + 1)?.map_or(start, |(first, _)| first);
    let mut found = Vec::new();
    for (key, value) in change.tables.from(&TableKey::Extent(number, from)) {
        match TableKey::decode(TableKind::Extents, key).map_err(damaged)? {
            TableKey::Extent(of, first) if of == number && first < end => {
                let extent = ExtentRecord::decode(value).map_err(damaged)?;
                if first + u64::from(extent.blocks) > start {
                    found.push((first, extent));
                }
            }
            _ => break,
        }
    }
    Ok(found)
}

/// Whether all blocks of an extent are already mapped at that place in the file and are unwritten.
fn is_unwritten(change: &TableChange<'_>, number: u64, extent: &MappedExtent) -> Result<bool> {
    let (mut at, end) = (extent.file_block, extent.file_block + u64::from(extent.blocks));
    for (first, old) in extents_in(change, number, (at, end))? {
        let is_here = first <= at && old.is_unwritten;
        if !is_here || old.block + (at - first) != extent.block.wrapping_add(at - extent.file_block) {
            return Ok(false);
        }
        at = first + u64::from(old.blocks);
    }
    Ok(at >= end)
}

/// Whether a block of a file is mapped, and the end of the mapped or unmapped range that it is in.
fn mapped_at(change: &TableChange<'_>, number: u64, block: u64) -> Result<(bool, u64)> {
    if let Some((start, extent)) = extent_before(change, number, block + 1)? {
        let stop = start + u64::from(extent.blocks);
        if stop > block {
            return Ok((true, stop));
        }
    }
    let next = change.tables.from(&TableKey::Extent(number, block)).next();
    match next.and_then(|(key, _)| TableKey::decode(TableKind::Extents, key).ok()) {
        Some(TableKey::Extent(of, start)) if of == number => Ok((false, start)),
        _ => Ok((false, u64::MAX)),
    }
}
