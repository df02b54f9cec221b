//! Changes of a file's size and allocation: truncation, allocation, holes; and finding data and holes.
//!
//! Owns: zeroing within blocks, which the server leaves to clients. Promises: truncated bytes read as zeroes when the
//! file grows again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nectary_block::Buffer;
use nectary_host::progress::went_on;

use super::VolumeClient;
use super::data::WritePosition;
use super::error::Error;
use super::extents::{ExtentPiece, ExtentPlace};
use super::file::{ActiveFile, BLOCK, FileContent};
use super::hold::DataAccess;
use crate::planted::{Bug, planted};
use crate::protocol::{FILE_BLOCKS_MAX, InodeAttributes, MetadataOperation, ServerAnswer};

/// The number of bytes that `copy` moves at a time. *Units*: bytes.
const COPY_BYTES: u64 = 1 << 20;
/// The number of blocks of a map that are read at a time. *Units*: blocks.
const SEEK_BLOCKS: u64 = 1 << 20;

const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

impl VolumeClient {
    /// Truncates or extends a file.
    pub(crate) async fn truncate(&self, file: &Arc<ActiveFile>, size: u64) -> Result<(), Error> {
        if size > i64::MAX as u64 {
            return Err(Error::posix(libc::EFBIG));
        }
        let (mut content, paging) = self.truncatable(file).await?;
        self.note_change(file, size.min(content.size)..size.max(content.size));
        if size > content.size && self.clear_tail(file, &mut content).await? {
            self.commit_locked(file, &mut content).await?;
        }
        let end = size.div_ceil(BLOCK);
        // The server makes the new size durable at once. The data that the file keeps must be durable before that:
        // otherwise it would read as zeroes after a crash. And until the server's answer is here, a look at the file on
        // this host must show the size that the server has, which other hosts see, and not an older uncommitted one.
        if content.is_dirty() && !planted(Bug::SizeBeforeData) {
            self.commit_locked(file, &mut content).await?;
        }
        let has_grown = size > content.size;
        let attributes = self.cut(file, content.size, size).await?;
        if size == 0 && content.size > 0 {
            file.is_emptied.store(true, Ordering::Release);
        }
        self.drop_fresh(&mut content, end).await;
        if !has_grown {
            content.map.set(end..FILE_BLOCKS_MAX, ExtentPlace::Hole);
        }
        content.inode = attributes.inode;
        content.size = content.inode.size;
        content.modified_ns = None;
        file.show(&content);
        drop((content, paging));
        if has_grown { self.push_end(file, size).await } else { Ok(()) }
    }

    /// Truncates or extends a file at the server; a file with very many extents is truncated in several parts, from its
    /// end.
    async fn cut(&self, file: &Arc<ActiveFile>, mut from: u64, size: u64) -> Result<InodeAttributes, Error> {
        let (mut to, mut is_partly_done) = (size, false);
        loop {
            match self.operate(MetadataOperation::Truncate { file: file.id, size: to }).await {
                Ok(ServerAnswer::Attributes(attributes)) if to == size => return Ok(attributes),
                Ok(ServerAnswer::Attributes(_)) => {
                    went_on();
                    is_partly_done = true;
                    (from, to) = (to, size);
                }
                Ok(_) => return Err(Error::posix(libc::EIO)),
                Err(error) if error.is_too_large() && from.saturating_sub(to) > BLOCK => to += (from - to) / 2,
                Err(error) if is_partly_done => return Err(error.after_change()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Does what `fallocate` does.
    pub(crate) async fn allocate(
        &self,
        file: &Arc<ActiveFile>,
        offset: u64,
        length: u64,
        mode: u32,
    ) -> Result<(), Error> {
        let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64).ok_or(Error::posix(libc::EFBIG))?;
        let mut content = self.writable(file, DataAccess::WRITE).await?;
        self.note_change(file, offset..end);
        let (start, stop) = match mode {
            0 | KEEP_SIZE => (offset, end),
            _ if mode == PUNCH_HOLE | KEEP_SIZE || mode & !KEEP_SIZE == ZERO_RANGE => {
                self.zero_edges(file, &mut content, offset..end).await?;
                // If the file ends in the last block, this block counts as whole.
                let whole = if end >= content.size { end.div_ceil(BLOCK) * BLOCK } else { end / BLOCK * BLOCK };
                (offset.div_ceil(BLOCK) * BLOCK, whole)
            }
            _ => return Err(Error::posix(libc::EOPNOTSUPP)),
        };
        let grows = mode & KEEP_SIZE == 0 && end > content.size;
        if grows {
            self.clear_tail(file, &mut content).await?;
        }
        if mode & PUNCH_HOLE == 0 {
            self.keep_some_space().await;
        }
        // The commit tells the server about all blocks of the file.
        self.commit_locked(file, &mut content).await?;
        if start < stop {
            // Nothing is known of these blocks, also if only a part of it is done.
            content.map.remove(start / BLOCK..stop.div_ceil(BLOCK));
            content.inode = self.allocate_at_server(file, start..stop, mode | KEEP_SIZE).await?.inode;
        }
        if grows {
            // A commit, because a truncation would free the blocks that the file has reserved behind `end`.
            content.size = end;
            self.commit_locked(file, &mut content).await.map_err(Error::after_change)?;
        }
        file.show(&content);
        drop(content);
        if grows { self.push_end(file, end).await } else { Ok(()) }
    }

    /// Changes the blocks of a range at the server, in several parts if they are very many extents.
    async fn allocate_at_server(
        &self,
        file: &Arc<ActiveFile>,
        range: Range<u64>,
        mode: u32,
    ) -> Result<InodeAttributes, Error> {
        let (mut start, mut end) = (range.start, range.end);
        let (mut may_return_space, mut is_partly_done) = (true, false);
        loop {
            match self.operate(MetadataOperation::Allocate { file: file.id, start, end, mode }).await {
                Ok(ServerAnswer::Attributes(attributes)) if end == range.end => return Ok(attributes),
                Ok(ServerAnswer::Attributes(_)) => {
                    went_on();
                    is_partly_done = true;
                    (start, end) = (end, range.end);
                }
                Ok(_) => return Err(Error::posix(libc::EIO)),
                Err(error) if error.is_too_large() && end - start > 2 * BLOCK => {
                    end = (start + (end - start) / 2).next_multiple_of(BLOCK);
                }
                // The server allocates what is free, which what this session has in hand is not.
                Err(error) if error.errno() == libc::ENOSPC && may_return_space => {
                    may_return_space = false;
                    self.return_all_space().await?;
                }
                Err(error) if is_partly_done => return Err(error.after_change()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes zeroes to the parts of a range that are not whole blocks, up to the end of the file.
    async fn zero_edges(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        range: Range<u64>,
    ) -> Result<(), Error> {
        let end = range.end.min(content.size);
        if range.start >= end {
            return Ok(());
        }
        let (first, last) = (range.start / BLOCK, (end - 1) / BLOCK);
        for block in if first == last { vec![first] } else { vec![first, last] } {
            let (start, stop) = (block * BLOCK, (block + 1) * BLOCK);
            let cut = range.start.max(start)..end.min(stop);
            let is_whole = cut.start == start && (cut.end == stop || cut.end == content.size);
            if is_whole {
                continue;
            }
            let mut old = self.old_block(file, content, block).await?;
            if old.iter().all(|&byte| byte == 0) {
                continue;
            }
            old[(cut.start - start) as usize..(cut.end - start) as usize].fill(0);
            self.write_blocks(file, content, block..block + 1, vec![Buffer::copy_of(&old)]).await?;
            content.modified_ns = Some(self.now_ns());
        }
        Ok(())
    }

    /// Finds the next data, or the next hole. *Errors*: ENXIO if the offset is behind the end, or if no data follows.
    pub(crate) async fn seek(&self, file: &Arc<ActiveFile>, offset: u64, is_data: bool) -> Result<u64, Error> {
        let mut content = self.writable(file, DataAccess::READ).await?;
        let size = content.size;
        if offset >= size {
            return Err(Error::posix(libc::ENXIO));
        }
        let (mut at, end) = (offset / BLOCK, size.div_ceil(BLOCK));
        while at < end {
            let stop = end.min(at + SEEK_BLOCKS);
            if content.resolve(at..stop).is_none() {
                self.load_map(file, &mut content, at..stop).await?;
            }
            let pieces = content.resolve(at..stop).ok_or(Error::posix(libc::EIO))?;
            let matches = |piece: &&ExtentPiece| matches!(piece.place, Some(ExtentPlace::Data(_))) == is_data;
            if let Some(found) = pieces.iter().find(matches) {
                return Ok((found.start * BLOCK).max(offset).min(size));
            }
            at = stop;
        }
        if is_data { Err(Error::posix(libc::ENXIO)) } else { Ok(size) }
    }

    /// Copies bytes between files, or within one. Returns the number of copied bytes: fewer than `length` if the source
    /// ends, or if an error occurs after the first MiB. *Errors*: those of the first MiB.
    pub(crate) async fn copy(
        &self,
        (from, offset): (&Arc<ActiveFile>, u64),
        (to, to_offset): (&Arc<ActiveFile>, u64),
        length: u64,
    ) -> Result<u64, Error> {
        let mut done = 0;
        while done < length {
            let count = (length - done).min(COPY_BYTES) as usize;
            let read = match self.read(from, offset + done, count, DataAccess::READ).await {
                Ok(read) => read,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            if read.is_empty() {
                break;
            }
            let bytes = read.to_vec();
            let written = self
                .write(to, WritePosition::Offset(to_offset + done), vec![Buffer::copy_of(&bytes)], DataAccess::WRITE)
                .await;
            match written {
                Ok(_) => {
                    went_on();
                    done += bytes.len() as u64;
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}
