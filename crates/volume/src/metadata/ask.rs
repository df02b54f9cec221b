//! Questions: requests that change nothing, and grants of space.

use std::ops::{Bound, Range};

use super::change::{Result, damaged};
use super::files::XATTR_NAMES_BYTES_MAX;
use super::image::{AppendStamp, MetadataImage, QuestionAnswer};
use super::names::{find, is_directory};
use super::records::{decode_xattr, inode, keys_of, posix, server};
use super::reserve::full;
use crate::format::{ExtentRecord, ExtentState, NameRecord, TableKey, TableKind};
use crate::protocol::{
    FILE_BLOCKS_MAX, FileId, FileShape, ListedName, MappedExtent, MetadataQuestion, ServerAnswer, VolumeStatistics,
};
use crate::tokens::level;

/// The maximum number of names in an answer.
const ENTRIES_MAX: u32 = 1024;
/// The maximum number of bytes of an answer with names. This is well below the bound of a message, because the last
/// name may be long.
const LISTING_BYTES_MAX: usize = 512 << 10;
/// The maximum number of extents in an answer.
const EXTENTS_MAX: usize = 4096;
/// Extents that come with a data token.
const SHAPE_EXTENTS_MAX: usize = 64;
/// One grant is at most this part of the free space, and at most `SPACE_BLOCKS_MAX`. *Units*: parts, blocks.
const SPACE_PART: u64 = 16;
const SPACE_BLOCKS_MAX: u64 = 1 << 18;
/// The maximum number of pieces of one grant.
const PIECES_MAX: usize = 256;

impl MetadataImage {
    pub(super) fn answer(
        &mut self,
        stamp: AppendStamp,
        session: u64,
        question: &MetadataQuestion,
    ) -> Result<QuestionAnswer> {
        let answer = match question {
            MetadataQuestion::Lookup { directory, name } => self.look_up(*directory, name)?,
            MetadataQuestion::GetAttributes { file } => ServerAnswer::Attributes(self.attributes(*file)?),
            MetadataQuestion::ReadDirectory { directory, cookie, entries } => {
                self.list(*directory, *cookie, *entries)?
            }
            MetadataQuestion::ReadMap { file, start, end } => {
                let (extents, answered_to) = self.map_of(*file, *start..*end, EXTENTS_MAX)?;
                ServerAnswer::Map { extents, answered_to }
            }
            MetadataQuestion::ReadXattr { file, name } => {
                inode(&self.tables, *file)?;
                let value = self.tables.get(&TableKey::Xattr(file.inode, name.clone())).ok_or(posix(libc::ENODATA))?;
                ServerAnswer::Bytes(decode_xattr(value))
            }
            MetadataQuestion::ListXattrs { file } => {
                inode(&self.tables, *file)?;
                let keys = keys_of(
                    &self.tables,
                    TableKind::Xattrs,
                    &TableKey::Xattr(file.inode, vec![1]),
                    |key| matches!(key, TableKey::Xattr(of, _) if *of == file.inode),
                );
                let names = keys.into_iter().filter_map(|key| match key {
                    TableKey::Xattr(_, name) => Some(name),
                    _ => None,
                });
                let names: Vec<Vec<u8>> = names.collect();
                if names.iter().map(|name| name.len() + 1).sum::<usize>() > XATTR_NAMES_BYTES_MAX {
                    return Err(posix(libc::E2BIG));
                }
                ServerAnswer::Names(names)
            }
            MetadataQuestion::Statistics => {
                let (free, blocks) = self.room();
                // What is being freed counts as free, because a call that needs it waits for it.
                let free = free - self.reserved() + self.freeing();
                let inodes = self.tables.table(TableKind::Inodes).len() as u64;
                ServerAnswer::Statistics(VolumeStatistics { blocks, free, inodes })
            }
            MetadataQuestion::Open { file, level, .. } => {
                let attributes = self.attributes(*file)?;
                if !self.may_open(session, file.inode, *level == level::NONE) {
                    return Err(posix(libc::ESTALE));
                }
                self.open(session, file.inode);
                ServerAnswer::Attributes(attributes)
            }
            MetadataQuestion::Close { file } => {
                self.close(session, file.inode);
                ServerAnswer::Done
            }
            // The owner answers it when everything is durable.
            MetadataQuestion::Stored => ServerAnswer::Done,
            // The owner task handles these before they get here.
            MetadataQuestion::Push { .. }
            | MetadataQuestion::Siblings
            | MetadataQuestion::Gone { .. }
            | MetadataQuestion::Unproven => {
                return Err(posix(libc::EINVAL));
            }
            MetadataQuestion::Space { blocks } => return self.grant(stamp, session, *blocks),
            MetadataQuestion::Numbers { count } => return self.grant_numbers(*count),
        };
        Ok(QuestionAnswer { answer, transaction: None })
    }

    fn look_up(&self, directory: FileId, name: &[u8]) -> Result<ServerAnswer> {
        let parent = inode(&self.tables, directory)?;
        if !is_directory(&parent) {
            return Err(posix(libc::ENOTDIR));
        }
        let number = match name {
            b".." => parent.parent,
            _ => find(&self.tables, &self.hash_key, directory.inode, name)?.ok_or(posix(libc::ENOENT))?.1.inode,
        };
        Ok(ServerAnswer::Attributes(self.attributes(FileId { inode: number, generation: 0 })?))
    }

    fn list(&self, directory: FileId, cookie: u64, entries: u32) -> Result<ServerAnswer> {
        if !is_directory(&inode(&self.tables, directory)?) {
            return Err(posix(libc::ENOTDIR));
        }
        let from = if cookie == 0 { 0 } else { cookie.saturating_add(1).min((1 << 63) - 1) };
        let (mut names, mut is_end, mut bytes) = (Vec::new(), true, 0);
        for (key, value) in self.tables.from(&TableKey::Entry(directory.inode, from)) {
            let Ok(TableKey::Entry(of, cookie)) = TableKey::decode(TableKind::Entries, key) else { break };
            if of != directory.inode {
                break;
            }
            if names.len() >= entries.clamp(1, ENTRIES_MAX) as usize || bytes >= LISTING_BYTES_MAX {
                is_end = false;
                break;
            }
            let name = NameRecord::decode(value).map_err(damaged)?;
            let attributes = self.attributes(FileId { inode: name.inode, generation: 0 })?;
            bytes += 256 + name.name.len() + attributes.inode.inline.len();
            names.push(ListedName { cookie, name: name.name, attributes });
        }
        Ok(ServerAnswer::Listing { names, is_end })
    }

    /// Returns attributes and extents of a file, for a session that gets its data token. `None`: the inode is no
    /// regular file, or no longer exists.
    pub fn shape(&self, file: FileId) -> Option<FileShape> {
        let attributes = self.attributes(file).ok()?;
        if attributes.inode.mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let (extents, answered_to) = self.map_of(file, 0..FILE_BLOCKS_MAX, SHAPE_EXTENTS_MAX).ok()?;
        Some(FileShape { attributes, extents, answered_to })
    }

    /// Returns the extents of a range of a file, and the block up to which the answer is complete.
    fn map_of(&self, file: FileId, range: Range<u64>, most: usize) -> Result<(Vec<MappedExtent>, u64)> {
        inode(&self.tables, file)?;
        let Range { start, end } = range;
        let number = file.inode;
        let table = self.tables.table(TableKind::Extents);
        let before = (
            Bound::Included(TableKey::Extent(number, 0).encode()),
            Bound::Excluded(TableKey::Extent(number, start).encode()),
        );
        let from = match table.range::<Vec<u8>, _>(before).next_back() {
            Some((key, _)) => TableKey::decode(TableKind::Extents, key).map_err(damaged)?,
            None => TableKey::Extent(number, start),
        };
        let (mut extents, mut answered_to) = (Vec::new(), end);
        for (key, value) in self.tables.from(&from) {
            let TableKey::Extent(of, file_block) = TableKey::decode(TableKind::Extents, key).map_err(damaged)? else {
                break;
            };
            if of != number || file_block >= end {
                break;
            }
            if extents.len() >= most {
                answered_to = file_block;
                break;
            }
            let ExtentRecord { block, blocks, is_unwritten, .. } = ExtentRecord::decode(value).map_err(damaged)?;
            if file_block + u64::from(blocks) > start {
                extents.push(MappedExtent { file_block, blocks, block, is_unwritten });
            }
        }
        Ok((extents, answered_to))
    }

    fn grant(&mut self, stamp: AppendStamp, session: u64, blocks: u64) -> Result<QuestionAnswer> {
        let kept = self.reserve().data;
        let free = self.free.blocks_beside(kept);
        let wanted = blocks.min(SPACE_BLOCKS_MAX).min((free / SPACE_PART).max(64)).min(free);
        if wanted == 0 {
            return Err(full(self.is_freeing()));
        }
        let (granted, mutations) = self.attempt(|change, parts| {
            let (mut granted, mut left) = (Vec::new(), wanted);
            while left > 0 && granted.len() < PIECES_MAX {
                let Some(piece) = parts.free.take(left, kept) else { break };
                change.use_space(piece.block, piece.blocks, ExtentState::Granted, session, stamp.sequence)?;
                left -= piece.blocks;
                granted.push(piece);
            }
            Ok(granted)
        })?;
        Ok(QuestionAnswer { answer: ServerAnswer::Space(granted), transaction: Some(server(mutations)) })
    }
}
