//! Reading and writing a file's data on the shared disk.
//!
//! Owns: the order of steps in a read and in a write. Promises: a write goes to granted blocks that no other host can
//! see yet, in whole blocks; committed blocks are never overwritten; bytes after the end of a file in its last block
//! are never shown, and are zeroed on the disk before the file grows over them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use nectary_block::{Buffer, IoContext, WriteFlags};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::bytes::{self, ReadContents};
use super::error::Error;
use super::extents::{ExtentPiece, ExtentPlace};
use super::file::{ActiveFile, BLOCK, FileContent};
use super::hold::{DataAccess, PagingGuard, holds};
use super::wait_kinds::WaitKind;
use super::{BlockPurpose, VolumeClient};
use crate::protocol::{FILE_BLOCKS_MAX, GrantedSpace, MetadataQuestion, ServerAnswer};

/// The size of the largest file. *Units*: bytes.
const SIZE_MAX: u64 = i64::MAX as u64;
/// The number of times that a read requests a map which others keep changing, before it fails.
pub(super) const MAP_ROUNDS_MAX: usize = 64;

/// The position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePosition {
    /// An offset in the file. *Units*: bytes.
    Offset(u64),
    /// The end of the file.
    End,
}

impl VolumeClient {
    /// Reads; fewer than `length` bytes mean that the file ends there.
    pub(crate) async fn read(
        &self,
        file: &Arc<ActiveFile>,
        offset: u64,
        length: usize,
        access: DataAccess,
    ) -> Result<ReadContents, Error> {
        let mut contents = ReadContents::default();
        for _ in 0..MAP_ROUNDS_MAX {
            self.leased().await?;
            let content = self.readable(file, access).await?;
            let end = offset.saturating_add(length as u64).min(content.size);
            if offset >= end {
                self.still_leased()?;
                return Ok(contents);
            }
            let blocks = offset / BLOCK..end.div_ceil(BLOCK);
            if let Some(pieces) = content.resolve(blocks.clone()) {
                self.read_pieces(&pieces, offset..end, &mut contents).await?;
                return Ok(contents);
            }
            drop(content);
            let mut content = self.writable(file, access).await?;
            self.load_map(file, &mut content, blocks).await?;
        }
        Err(Error::posix(libc::EIO))
    }

    /// Reads mapped blocks, and appends the bytes in `range` of them to `contents`.
    async fn read_pieces(
        &self,
        pieces: &[ExtentPiece],
        range: Range<u64>,
        contents: &mut ReadContents,
    ) -> Result<(), Error> {
        self.leased().await?;
        let mut reads = Vec::new();
        for piece in pieces {
            let (start, end) = (piece.start * BLOCK, (piece.start + piece.blocks) * BLOCK);
            let cut = start.max(range.start) - start..end.min(range.end) - start;
            let read = match piece.place {
                Some(ExtentPlace::Data(block)) => {
                    let buffers = bytes::buffers((piece.blocks * BLOCK) as usize);
                    Some(self.device().read_at(block * BLOCK, buffers, IoContext::default()))
                }
                _ => None,
            };
            reads.push((cut, read));
        }
        for (cut, read) in reads {
            match read {
                None => contents.push_zeroes((cut.end - cut.start) as usize),
                Some(read) => {
                    let mut at = 0;
                    let buffers = WaitKind::Disk.during(0, read).await?;
                    self.still_leased()?;
                    for buffer in buffers {
                        let length = buffer.len() as u64;
                        let start = cut.start.clamp(at, at + length) - at;
                        let end = cut.end.clamp(at, at + length) - at;
                        contents.push(buffer, start as usize, end as usize);
                        at += length;
                    }
                }
            }
        }
        Ok(())
    }

    /// Requests the part of the map that contains `blocks`.
    pub(super) async fn load_map(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        blocks: Range<u64>,
    ) -> Result<(), Error> {
        // The whole rest of the file is requested, so that a sequential reader sends one request only. Blocks behind the
        // end of the file may be reserved.
        let (mut start, end) = (blocks.start, FILE_BLOCKS_MAX);
        while start < blocks.end {
            let question = MetadataQuestion::ReadMap { file: file.id, start, end };
            let ServerAnswer::Map { extents, answered_to } = self.ask(question).await? else {
                return Err(Error::posix(libc::EIO));
            };
            if answered_to <= start {
                return Err(Error::posix(libc::EIO));
            }
            content.learn_map(start..answered_to.min(end), &extents);
            start = answered_to;
        }
        Ok(())
    }

    /// Writes all of `data`; returns the offset in the file, and buffers that can be reused.
    pub(crate) async fn write(
        &self,
        file: &Arc<ActiveFile>,
        at: WritePosition,
        data: Vec<Buffer>,
        access: DataAccess,
    ) -> Result<(u64, Vec<Buffer>), Error> {
        let length = bytes::total(&data) as u64;
        let mut content = self.writable(file, access).await?;
        let offset = match at {
            WritePosition::Offset(offset) => offset,
            WritePosition::End => content.size,
        };
        let end = offset.checked_add(length).filter(|end| *end <= SIZE_MAX).ok_or(Error::posix(libc::EFBIG))?;
        if length == 0 {
            return Ok((offset, data));
        }
        self.note_change(file, offset..end);
        let result = self.write_locked(file, &mut content, offset..end, data).await;
        if self.is_over() {
            // What was written is lost. The next session may already have begun: its caches must not get these bytes.
            return Err(self.why_over());
        }
        let has_grown = end > content.size;
        if result.is_ok() {
            content.size = content.size.max(end);
            content.modified_ns = Some(self.now_ns());
        }
        if let Ok(buffers) = &result {
            self.shared.holds.note_written(file.id, offset, buffers, content.size);
        }
        file.show(&content);
        let is_much =
            content.fresh.count() >= super::commit::EXTENTS_MAX || content.fresh.blocks() >= super::BLOCKS_MAX;
        if result.is_ok() && is_much {
            self.commit_locked(file, &mut content).await?;
        }
        drop(content);
        self.mark_dirty(file.id);
        if result.is_ok() && has_grown {
            self.push_end(file, end).await?;
        }
        result.map(|buffers| (offset, buffers))
    }

    async fn write_locked(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        range: Range<u64>,
        data: Vec<Buffer>,
    ) -> Result<Vec<Buffer>, Error> {
        if range.start / BLOCK > content.size / BLOCK {
            self.clear_tail(file, content).await?;
        }
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let is_whole = range.start.is_multiple_of(BLOCK) && range.end.is_multiple_of(BLOCK);
        if is_whole {
            return self.write_blocks(file, content, blocks, data).await;
        }
        let widened = self.widened(file, content, &range, &data).await?;
        self.write_blocks(file, content, blocks, widened).await?;
        Ok(data)
    }

    /// Extends the data to whole blocks: the missing parts of the first and the last block are read.
    async fn widened(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        range: &Range<u64>,
        data: &[Buffer],
    ) -> Result<Vec<Buffer>, Error> {
        let (first, last) = (range.start / BLOCK, range.end.div_ceil(BLOCK));
        let mut whole = bytes::buffers(((last - first) * BLOCK) as usize);
        let is_first_cut = !range.start.is_multiple_of(BLOCK);
        // Bytes after the end of the file are zeroes.
        let is_last_cut = !range.end.is_multiple_of(BLOCK);
        if is_first_cut {
            let old = self.old_block(file, content, first).await?;
            bytes::fill(&mut whole, 0, &old);
        }
        if is_last_cut && !(is_first_cut && last - first == 1) {
            let old = match range.end < content.size {
                true => self.old_block(file, content, last - 1).await?,
                false => vec![0; BLOCK as usize],
            };
            bytes::fill(&mut whole, ((last - 1 - first) * BLOCK) as usize, &old);
        }
        let mut at = (range.start - first * BLOCK) as usize;
        for buffer in data {
            bytes::fill(&mut whole, at, buffer);
            at += buffer.len();
        }
        Ok(whole)
    }

    /// Returns a block as the file shows it, with zeroes after the end.
    pub(super) async fn old_block(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        block: u64,
    ) -> Result<Vec<u8>, Error> {
        let (start, mut old) = (block * BLOCK, ReadContents::default());
        let end = (start + BLOCK).min(content.size);
        if start < end {
            if content.resolve(block..block + 1).is_none() {
                self.load_map(file, content, block..block + 1).await?;
            }
            let pieces = content.resolve(block..block + 1).ok_or(Error::posix(libc::EIO))?;
            self.read_pieces(&pieces, start..end, &mut old).await?;
        }
        let mut old = old.to_vec();
        old.resize(BLOCK as usize, 0);
        Ok(old)
    }

    /// Writes whole blocks: uncommitted blocks are overwritten in place, reserved blocks are taken, and all others go to
    /// free blocks that this session holds.
    pub(super) async fn write_blocks(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        blocks: Range<u64>,
        data: Vec<Buffer>,
    ) -> Result<Vec<Buffer>, Error> {
        self.take_reserved(file, content, blocks.clone()).await?;
        let mut places: Vec<(Range<u64>, u64)> = Vec::new();
        let mut taken: Vec<GrantedSpace> = Vec::new();
        for piece in content.fresh.look(blocks.clone()) {
            let (mut start, end) = (piece.start, piece.start + piece.blocks);
            if let Some(ExtentPlace::Data(block) | ExtentPlace::Unwritten(block)) = piece.place {
                places.push((start..end, block));
                continue;
            }
            let mapped = content.map.look(start..end);
            let is_overwrite = mapped.iter().all(|piece| matches!(piece.place, Some(ExtentPlace::Data(_))));
            let use_for = if is_overwrite { BlockPurpose::Overwrite } else { BlockPurpose::New };
            while start < end {
                let granted = match self.take_space(content.last_block, end - start, use_for).await {
                    Ok(granted) => granted,
                    Err(error) => {
                        self.put_space(taken).await;
                        return Err(error);
                    }
                };
                places.push((start..start + granted.blocks, granted.block));
                start += granted.blocks;
                content.last_block = Some(granted.block + granted.blocks - 1);
                taken.push(granted);
            }
        }
        self.leased().await?;
        let mut data = VecDeque::from(data);
        let mut writes = Vec::new();
        for (range, block) in &places {
            let part = bytes::split(&mut data, ((range.end - range.start) * BLOCK) as usize);
            writes.push(self.device().write_at(block * BLOCK, part, WriteFlags::default(), IoContext::default()));
        }
        let (mut failed, mut buffers) = (None, Vec::new());
        for write in writes {
            match WaitKind::Disk.during(0, write).await {
                Ok(written) => buffers.extend(written),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        // Blocks of a failed write are not reused in this session, because the device may still write to them. So
        // reserved ones are not mapped as unwritten again.
        if let Some(error) = failed {
            let reserved = content.fresh.look(blocks).into_iter();
            let reserved = reserved.filter(|piece| matches!(piece.place, Some(ExtentPlace::Unwritten(_))));
            reserved.for_each(|piece| content.fresh.remove(piece.start..piece.start + piece.blocks));
            return Err(error.into());
        }
        for (range, block) in places {
            content.fresh.set(range, ExtentPlace::Data(block));
        }
        Ok(buffers)
    }

    /// Writes one block that is in no file yet, and flushes it.
    pub(super) async fn write_aside(&self, bytes: &[u8]) -> Result<GrantedSpace, Error> {
        let granted = self.take_space(None, 1, BlockPurpose::New).await?;
        self.leased().await?;
        let (block, flags) = (vec![Buffer::copy_of(bytes)], WriteFlags::default());
        // The block of a failed write is not reused in this session, because the device may still write to it.
        let written = self.device().write_at(granted.block * BLOCK, block, flags, IoContext::default());
        WaitKind::Disk.during(0, written).await?;
        self.flush_data().await?;
        Ok(granted)
    }

    /// Zeroes the bytes after the end in the last block, before the file grows over it. Returns whether the end was
    /// inside a block.
    pub(super) async fn clear_tail(&self, file: &Arc<ActiveFile>, content: &mut FileContent) -> Result<bool, Error> {
        if content.size.is_multiple_of(BLOCK) {
            return Ok(false);
        }
        let block = content.size / BLOCK;
        if content.resolve(block..block + 1).is_none() {
            self.load_map(file, content, block..block + 1).await?;
        }
        match content.resolve(block..block + 1).as_deref() {
            Some([ExtentPiece { place: Some(ExtentPlace::Data(_)), .. }]) => {
                let old = self.old_block(file, content, block).await?;
                self.write_blocks(file, content, block..block + 1, vec![Buffer::copy_of(&old)]).await?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the contents for a reader: they are valid as long as their lock is held.
    pub(super) async fn readable<'a>(
        &self,
        file: &'a Arc<ActiveFile>,
        access: DataAccess,
    ) -> Result<RwLockReadGuard<'a, FileContent>, Error> {
        loop {
            let content = WaitKind::File.during(file.id.inode, file.content.read()).await;
            if content.is_known && holds(file, access) {
                return Ok(content);
            }
            drop(content);
            drop(self.writable(file, access).await?);
        }
    }

    /// Returns the contents for a writer, locked exclusively.
    pub(super) async fn writable<'a>(
        &self,
        file: &'a Arc<ActiveFile>,
        access: DataAccess,
    ) -> Result<RwLockWriteGuard<'a, FileContent>, Error> {
        loop {
            self.admit(file, access).await?;
            let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
            if holds(file, access) {
                self.learn(file, &mut content).await?;
                return Ok(content);
            }
        }
    }

    /// Returns the contents for a truncation, locked exclusively, and what keeps the token until the truncation ends.
    pub(super) async fn truncatable<'a>(
        &self,
        file: &'a Arc<ActiveFile>,
    ) -> Result<(RwLockWriteGuard<'a, FileContent>, Option<PagingGuard<'a>>), Error> {
        loop {
            let paging = self.begin_truncation(file).await?;
            let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
            if paging.is_some() || holds(file, DataAccess::WRITE) {
                self.learn(file, &mut content).await?;
                return Ok((content, paging));
            }
        }
    }

    /// Requests the attributes if they are not known. Those of a file that nobody else knows are what the session keeps.
    async fn learn(&self, file: &ActiveFile, content: &mut FileContent) -> Result<(), Error> {
        if !content.is_known {
            let is_own = file.hold.state().is_ahead();
            if let Some(own) = self.kept_own(file.id).filter(|_| is_own) {
                content.learn(own.inode);
                return Ok(());
            }
            let question = MetadataQuestion::GetAttributes { file: file.id };
            let ServerAnswer::Attributes(attributes) = self.ask(question).await? else {
                return Err(Error::posix(libc::EIO));
            };
            content.learn(attributes.inode);
        }
        Ok(())
    }
}
