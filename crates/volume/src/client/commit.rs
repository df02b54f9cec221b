//! Commits: written data is flushed, and then made visible to all hosts in one operation.
//!
//! Owns: the order of a commit: data, device flush, one transaction. Promises: after a failed commit everything is
//! committed again later, and the next `fsync` reports the failure; committed data is never overwritten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nectary_block::IoContext;
use nectary_host::progress::went_on;

use super::VolumeClient;
use super::error::Error;
use super::extents::ExtentPlace;
use super::file::{ActiveFile, BLOCK, CommitFailures, FileContent};
use super::wait_kinds::WaitKind;
use crate::planted::{Bug, planted};
use crate::protocol::{GrantedSpace, MappedExtent, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer};

/// The maximum number of extents of one commit.
pub(super) const EXTENTS_MAX: usize = 1024;
/// The longest extent of a commit. *Units*: blocks.
const EXTENT_BLOCKS_MAX: u64 = 1 << 20;

/// What a commit does with reserved blocks that were taken and are not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReservationFate {
    /// The file maps them as unwritten again.
    MappedBack,
    /// The session keeps them.
    Stay,
}

impl VolumeClient {
    /// Makes the data written to a file durable and visible. Calls that wait for each other share a commit.
    ///
    /// *Errors*: also that of a commit in the background, if `failed` finds one to report.
    pub(crate) async fn sync(
        &self,
        file: &Arc<ActiveFile>,
        failed: impl FnOnce(&mut CommitFailures) -> Option<i32>,
    ) -> Result<(), Error> {
        let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
        // Reserved blocks that were taken ahead stay: they are for the next write.
        let result = match content.has_data() {
            true => self.flush_and_commit(file, &mut content, ReservationFate::Stay).await,
            false => Ok(()),
        };
        let failed = failed(&mut file.failures());
        drop(content);
        result?;
        failed.map_or(Ok(()), |errno| Err(Error::posix(errno)))
    }

    /// Commits what was written to a file, as far as it is not committed. Waits for no token: a file with uncommitted
    /// data has it.
    pub(super) async fn commit_dirty(&self, file: &Arc<ActiveFile>) -> Result<(), Error> {
        if !file.shown().is_dirty {
            return Ok(());
        }
        let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
        self.commit_locked(file, &mut content).await
    }

    /// Commits while the caller holds the lock of the contents.
    pub(super) async fn commit_locked(&self, file: &Arc<ActiveFile>, content: &mut FileContent) -> Result<(), Error> {
        match content.is_dirty() {
            true => self.flush_and_commit(file, content, ReservationFate::MappedBack).await,
            false => Ok(()),
        }
    }

    async fn flush_and_commit(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        reserved: ReservationFate,
    ) -> Result<(), Error> {
        self.flush_data().await?;
        self.commit_flushed(file, content, reserved).await
    }

    pub(super) async fn flush_data(&self) -> Result<(), Error> {
        match planted(Bug::CommitBeforeFlush) {
            true => Ok(()),
            false => Ok(WaitKind::Disk.during(0, self.device().flush(IoContext::default())).await?),
        }
    }

    /// Commits data that is already flushed.
    async fn commit_flushed(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        reserved: ReservationFate,
    ) -> Result<(), Error> {
        let mut result = self.commit_parts(file, content, reserved).await;
        if let Err(Error::Refused(failure)) = &result
            && failure.code == RefusalCode::Stale
            && let ServerAnswer::Attributes(now) = self.ask(MetadataQuestion::GetAttributes { file: file.id }).await?
        {
            // Another host has truncated the file; the data written here is newer than that.
            self.note_change(file, 0..u64::MAX);
            content.inode = now.inode;
            content.map.clear();
            result = self.commit_parts(file, content, reserved).await;
        }
        if result.is_ok() {
            content.modified_ns = None;
        }
        file.show(content);
        result
    }

    async fn commit_parts(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        reserved: ReservationFate,
    ) -> Result<(), Error> {
        let extents = extents_of(content, reserved);
        let modified_ns = content.modified_ns.unwrap_or(0);
        let mut parts: VecDeque<Vec<MappedExtent>> =
            extents.chunks(EXTENTS_MAX).map(<[MappedExtent]>::to_vec).collect();
        if parts.is_empty() {
            parts.push_back(Vec::new());
        }
        while let Some(part) = parts.pop_front() {
            let operation = MetadataOperation::Commit {
                file: file.id,
                truncate_generation: content.inode.truncate_generation,
                // The size is set with the last part, because the file may have holes before its end.
                size: if parts.is_empty() { content.size } else { content.inode.size },
                modified_ns,
                changed_ns: modified_ns,
                extents: part.clone(),
            };
            let attributes = match self.operate(operation).await {
                Ok(ServerAnswer::Attributes(attributes)) => attributes,
                Ok(_) => return Err(Error::posix(libc::EIO)),
                Err(error) if error.is_too_large() => {
                    let (left, right) = halves(part).ok_or(error)?;
                    parts.push_front(right);
                    parts.push_front(left);
                    continue;
                }
                Err(error) => return Err(error),
            };
            went_on();
            for extent in part {
                let range = extent.file_block..extent.file_block + u64::from(extent.blocks);
                let place = if extent.is_unwritten { ExtentPlace::Unwritten } else { ExtentPlace::Data };
                content.map.set(range.clone(), place(extent.block));
                content.fresh.remove(range);
            }
            content.inode = attributes.inode;
        }
        content.size = content.size.max(content.inode.size);
        Ok(())
    }

    /// Commits all files with uncommitted data, after a single flush. Errors are kept for the next `fsync` of each
    /// file.
    pub(crate) async fn commit_all(&self) {
        let files = self.take_dirty();
        if files.is_empty() {
            return;
        }
        let mut locked = Vec::new();
        for file in &files {
            // A file that is written in the meantime has uncommitted data again, and is committed in the next round.
            match file.content.try_write() {
                Ok(content) => locked.push((file, content)),
                Err(_) => self.mark_dirty(file.id),
            }
        }
        let flushed = self.flush_data().await;
        let commits = locked.into_iter().map(|(file, mut content)| {
            let flushed = &flushed;
            async move {
                let result = match flushed {
                    Ok(()) if content.is_dirty() => {
                        self.commit_flushed(file, &mut content, ReservationFate::MappedBack).await
                    }
                    Ok(()) => Ok(()),
                    Err(error) => Err(error.clone()),
                };
                if let Err(error) = result {
                    file.failures().note(error.errno());
                    self.note_failure(file.id, &error);
                    self.mark_dirty(file.id);
                }
            }
        });
        futures_util::future::join_all(commits).await;
        for file in files {
            self.settle(&file).await;
        }
    }

    /// Closes a file at the server if it has no handle and everything is committed.
    pub(super) async fn settle(&self, file: &Arc<ActiveFile>) {
        if file.is_used() || file.shown().is_dirty {
            return;
        }
        let mut at_server = WaitKind::File.during(file.id.inode, file.at_server.lock()).await;
        if file.is_used() || file.shown().is_dirty {
            return;
        }
        if std::mem::take(&mut *at_server) {
            file.is_direct.store(false, Ordering::Release);
            if !self.shared.session.close_untold(file.id) {
                // An error means that the session has ended, so the server does not count the file as open.
                let _ = self.ask(MetadataQuestion::Close { file: file.id }).await;
            }
        }
        drop(at_server);
        self.give_up(file).await;
        self.forget_file(file);
    }

    /// Drops uncommitted data of a file that has no name and no handle any more, and gives its token back.
    ///
    /// The caller may hold locks of the kernel, so this waits for no token: a file with uncommitted data has the token,
    /// and for other files there is nothing to drop. It is a user of the file meanwhile, so the token stays.
    pub(super) async fn abandon(&self, file: &Arc<ActiveFile>) {
        if !self.use_again(file) {
            return;
        }
        if file.has_one_user() {
            let mut content = WaitKind::File.during(file.id.inode, file.content.write()).await;
            // A program may have opened the file by a handle that it got before the name was removed.
            if content.is_dirty() && file.has_one_user() {
                self.note_change(file, 0..u64::MAX);
                self.drop_fresh(&mut content, 0).await;
                content.modified_ns = None;
                content.size = content.inode.size;
                file.show(&content);
            }
        }
        self.end_use(file).await;
    }

    /// Frees uncommitted blocks from a block of the file on.
    pub(super) async fn drop_fresh(&self, content: &mut FileContent, from: u64) {
        let pieces = content.fresh.look(from..u64::MAX / BLOCK);
        let given = pieces.iter().filter_map(|piece| match piece.place {
            Some(ExtentPlace::Data(block) | ExtentPlace::Unwritten(block)) => {
                Some(GrantedSpace { block, blocks: piece.blocks })
            }
            _ => None,
        });
        self.put_space(given.collect()).await;
        content.fresh.remove(from..u64::MAX / BLOCK);
    }
}

/// Splits a part of a commit in two. Returns `None` if the part is a single block.
fn halves(mut part: Vec<MappedExtent>) -> Option<(Vec<MappedExtent>, Vec<MappedExtent>)> {
    if part.len() > 1 {
        let right = part.split_off(part.len() / 2);
        return Some((part, right));
    }
    let whole = part.pop().filter(|extent| extent.blocks > 1)?;
    let blocks = whole.blocks / 2;
    let (file_block, block) = (whole.file_block + u64::from(blocks), whole.block + u64::from(blocks));
    let right = MappedExtent { file_block, block, blocks: whole.blocks - blocks, ..whole };
    Some((vec![MappedExtent { blocks, ..whole }], vec![right]))
}

fn extents_of(content: &FileContent, reserved: ReservationFate) -> Vec<MappedExtent> {
    let mut extents = Vec::new();
    for piece in content.fresh.iter() {
        let (block, is_unwritten) = match piece.place {
            Some(ExtentPlace::Data(block)) => (block, false),
            Some(ExtentPlace::Unwritten(block)) if reserved == ReservationFate::MappedBack => (block, true),
            _ => continue,
        };
        let mut done = 0;
        while done < piece.blocks {
            let blocks = (piece.blocks - done).min(EXTENT_BLOCKS_MAX);
            extents.push(MappedExtent {
                file_block: piece.start + done,
                blocks: blocks as u32,
                block: block + done,
                is_unwritten,
            });
            done += blocks;
        }
    }
    extents
}
