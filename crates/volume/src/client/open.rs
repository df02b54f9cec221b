//! Open files.
//!
//! Owns: handles, and telling the server which files are open: a file without a name stays while a session has it open.
//! Promises: however often a file is opened, the server is told only once, until all handles are closed and all data is
//! committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::Buffer;

use super::VolumeClient;
use super::bytes::ReadContents;
use super::data::WritePosition;
use super::error::Error;
use super::file::ActiveFile;
use super::hold::{DataAccess, holds};
use super::names::NewInode;
use super::wait_kinds::WaitKind;
use crate::protocol::{FileId, InodeAttributes};
use crate::tokens::level;

/// A handle on a file.
pub struct OpenFile {
    client: VolumeClient,
    file: Arc<ActiveFile>,
    is_writable: bool,
    /// Whether each change of data through the handle is durable when its call returns.
    is_synced: bool,
    /// The number of failed commits of the file that the handle has reported, or need not report.
    reported: AtomicU64,
}

/// A file at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileView {
    /// The size, including uncommitted writes. *Units*: bytes.
    pub size: u64,
    /// The version of the inode as the server last reported it.
    pub version: u64,
}

/// The access that a handle is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenAccess {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Reading and writing; a program may map the file and write to the mapping.
    Both,
}

impl VolumeClient {
    /// Opens a file.
    ///
    /// With `is_direct` a program reads the file with `O_DIRECT`: the kernel is told of each new end.
    pub async fn open(&self, id: FileId, opening: OpenAccess, is_direct: bool) -> Result<OpenFile, Error> {
        let file = self.use_file(id, false);
        let is_writable = opening != OpenAccess::Read;
        let open = OpenFile::new(self, file, is_writable);
        let mut at_server = WaitKind::File.during(id.inode, open.file.at_server.lock()).await;
        let is_new = is_direct && !open.file.is_direct.load(Ordering::Acquire);
        if !*at_server || is_new {
            let wanted = if opening == OpenAccess::Write { level::WRITE } else { level::READ };
            // Level 0 says that the file is open already: a new server must know this of a file without a name.
            let level = if *at_server { level::NONE } else { wanted };
            // `wants` records the request, so that a recall that arrives before the grant is kept until the grant.
            let is_wanted = level != level::NONE && open.file.hold.state().wants(level);
            self.shared.session.tell_open(id);
            let opened = self.shared.session.open(id, level, is_direct).await;
            let (granted, failed) = match opened {
                Ok((_, granted)) => (granted, None),
                Err(error) => (None, Some(error)),
            };
            // Otherwise another call requests it, or it is being given back.
            match granted {
                Some(grant) if !is_wanted => self.return_unwanted(&open.file, grant.held.sequence),
                granted if is_wanted => self.end_request(&open.file, granted).await,
                _ => {}
            }
            match failed {
                None => {
                    *at_server = true;
                    open.file.is_direct.fetch_or(is_direct, Ordering::AcqRel);
                }
                Some(error) => return self.not_open(&open, error),
            }
        }
        drop(at_server);
        if is_writable {
            self.add_writer(&open.file).await;
        }
        if is_direct {
            // A session that writes to the file now first returns its token; its next grant says that it must push new
            // ends.
            let size = match self.readable(&open.file, DataAccess::READ).await {
                Ok(content) => content.size,
                Err(error) => {
                    open.close().await;
                    return Err(error);
                }
            };
            self.show_end(id.inode, size).await;
        }
        Ok(open)
    }

    /// Tells a restarted server which files are open. Returns `false` if that was replaced, too.
    pub(super) async fn open_all_again(&self, epoch: u64) -> bool {
        for file in self.files() {
            // A call that opens the file waits until every session has begun to say what it holds: this one, too, if the
            // server is replaced.
            let is_open = tokio::select! {
                at_server = file.at_server.lock() => *at_server,
                () = self.shared.session.replaced(epoch) => return false,
            };
            if is_open {
                // An error means that the file no longer exists; every later call on it reports this.
                let is_direct = file.is_direct.load(Ordering::Acquire);
                let _ = self.shared.session.open_again(file.id, is_direct).await;
            }
        }
        true
    }

    fn not_open(&self, open: &OpenFile, error: Error) -> Result<OpenFile, Error> {
        if open.file.remove_user() {
            self.forget_file(&open.file);
        }
        Err(error)
    }

    /// Makes a file and opens it. With an empty name the file has no name: it is freed when it is closed, unless
    /// [`link`](Self::link) gives it a name before.
    pub async fn create_open(
        &self,
        directory: FileId,
        name: &[u8],
        new: NewInode,
    ) -> Result<(InodeAttributes, OpenFile), Error> {
        if !name.is_empty() && new.mode & libc::S_IFMT == libc::S_IFREG {
            let local = self.shared.session.locally(|inner| inner.create_locally(directory, name, &new, true)).await;
            if let Some(made) = local {
                return made.map(|made| self.opened_here(made));
            }
        }
        let (attributes, file) = self.create_held(new.operation(directory, name, true)).await?;
        self.add_writer(&file).await;
        Ok((attributes, OpenFile::new(self, file, true)))
    }
}

impl VolumeClient {
    /// Makes a file and opens it, if this can be done without the server; waits for nothing.
    pub fn create_open_now(
        &self,
        directory: FileId,
        name: &[u8],
        new: &NewInode,
    ) -> Option<Result<(InodeAttributes, OpenFile), Error>> {
        let made = self.shared.session.locally_now(|inner| inner.create_locally(directory, name, new, true))?;
        Some(made.map(|made| self.opened_here(made)))
    }

    /// A file that was made and opened without the server, which learns of both in order.
    fn opened_here(&self, made: InodeAttributes) -> (InodeAttributes, OpenFile) {
        let file = self.use_file(made.id(), true);
        // The kernel has no page of a new file.
        file.hold.state().add_writer();
        (made, OpenFile::new(self, file, true))
    }
}

impl OpenFile {
    fn new(client: &VolumeClient, file: Arc<ActiveFile>, is_writable: bool) -> OpenFile {
        let reported = AtomicU64::new(file.failures().known_to_new());
        OpenFile { client: client.clone(), file, is_writable, is_synced: false, reported }
    }

    /// Makes each change of data through this handle durable before its call returns, as `O_SYNC` and `O_DSYNC` do.
    pub fn synced(self, is_synced: bool) -> OpenFile {
        OpenFile { is_synced, ..self }
    }

    /// Returns the identity of the file.
    pub fn id(&self) -> FileId {
        self.file.id
    }

    pub(super) fn parts(&self) -> (&VolumeClient, &Arc<ActiveFile>) {
        (&self.client, &self.file)
    }

    /// Reads; fewer than `length` bytes mean that the file ends there.
    pub async fn read(&self, offset: u64, length: usize) -> Result<ReadContents, Error> {
        self.client.read(&self.file, offset, length, DataAccess::READ).await
    }

    /// Reads like [`read`](Self::read), but only if the session holds the file's token now.
    ///
    /// *Errors*: EAGAIN if it does not.
    pub async fn read_held(&self, offset: u64, length: usize) -> Result<ReadContents, Error> {
        // The handle may be closed meanwhile.
        if !holds(&self.file, DataAccess::READ) || !self.client.use_again(&self.file) {
            return Err(Error::posix(libc::EAGAIN));
        }
        let read = self.read(offset, length).await;
        self.client.end_use(&self.file).await;
        read
    }

    /// Calls `look` at a moment of this call, while the contents of the file cannot change on any host.
    pub async fn view<T>(&self, look: impl FnOnce(FileView) -> T) -> Result<T, Error> {
        self.client.leased().await?;
        let content = self.client.readable(&self.file, DataAccess::READ).await?;
        let seen = look(FileView { size: content.size, version: content.inode.version });
        self.client.still_leased()?;
        Ok(seen)
    }

    /// Reads for the kernel's page cache, which keeps the pages locked during the read.
    pub async fn read_pages(&self, offset: u64, length: usize) -> Result<ReadContents, Error> {
        let _paging = self.client.begin_page_read(&self.file, offset..offset.saturating_add(length as u64)).await?;
        self.client.read(&self.file, offset, length, DataAccess::Admitted).await
    }

    /// Writes all of `data`; returns the offset in the file, and buffers that can be reused.
    pub async fn write(&self, at: WritePosition, data: Vec<Buffer>) -> Result<(u64, Vec<Buffer>), Error> {
        match self.is_synced {
            true => self.write_synced(at, data).await,
            false => self.client.write(&self.file, at, data, DataAccess::WRITE).await,
        }
    }

    /// Writes like [`write`](Self::write); the data is durable when this returns.
    ///
    /// *Errors*: also those of the commit. The data may then become durable later.
    pub async fn write_synced(&self, at: WritePosition, data: Vec<Buffer>) -> Result<(u64, Vec<Buffer>), Error> {
        let before = self.file.failures().count();
        let written = self.client.write(&self.file, at, data, DataAccess::WRITE).await?;
        self.client.sync(&self.file, |failures| failures.since(before)).await?;
        Ok(written)
    }

    /// Writes pages of the kernel's page cache.
    pub async fn write_pages(&self, offset: u64, data: Vec<Buffer>) -> Result<(u64, Vec<Buffer>), Error> {
        let _paging = self.client.begin_page_write(&self.file)?;
        self.client.write(&self.file, WritePosition::Offset(offset), data, DataAccess::Admitted).await
    }

    /// Makes all written data durable, and all changes of names and attributes that were made before.
    ///
    /// *Errors*: also those of earlier commits in the background, each reported once by each handle.
    pub async fn sync(&self) -> Result<(), Error> {
        if self.is_over() {
            return Err(self.client.why_over());
        }
        self.client.sync(&self.file, |failures| failures.report(&self.reported)).await?;
        self.client.stored().await
    }

    /// Handles the close of a descriptor. What replaces the contents of a file that was cut to nothing is durable then, so
    /// that a crash leaves the new contents, not none; other data, about a second later.
    ///
    /// *Errors*: those of [`sync`](Self::sync), also of earlier commits in the background.
    pub async fn flush(&self) -> Result<(), Error> {
        let has_failed = self.file.failures().count() > self.reported.load(Ordering::Acquire);
        let is_dirty = self.file.shown().is_dirty;
        // A shell closes a copy of the descriptor before anything is written.
        let is_emptied = is_dirty && self.file.is_emptied.swap(false, Ordering::AcqRel);
        let is_committed = is_emptied || (is_dirty && self.client.are_names_synced());
        let synced = if is_committed || has_failed { self.sync().await } else { Ok(()) };
        if is_emptied && synced.is_err() {
            self.file.is_emptied.store(true, Ordering::Release);
        }
        synced
    }

    /// Whether [`flush`](Self::flush) has nothing to do: no commit has failed, and what is written may be committed later.
    /// Waits for nothing.
    pub fn is_flushed(&self) -> bool {
        let has_failed = self.file.failures().count() > self.reported.load(Ordering::Acquire);
        let is_awaited = self.file.is_emptied.load(Ordering::Acquire) || self.client.are_names_synced();
        !(has_failed || is_awaited && self.file.shown().is_dirty)
    }

    /// Truncates or extends the file.
    pub async fn truncate(&self, size: u64) -> Result<(), Error> {
        self.client.truncate(&self.file, size).await
    }

    /// Does what `fallocate` does.
    pub async fn allocate(&self, offset: u64, length: u64, mode: u32) -> Result<(), Error> {
        self.client.allocate(&self.file, offset, length, mode).await
    }

    /// Finds the next data, or the next hole. *Errors*: ENXIO if the offset is behind the end, or if no data follows.
    pub async fn seek(&self, offset: u64, is_data: bool) -> Result<u64, Error> {
        self.client.seek(&self.file, offset, is_data).await
    }

    /// Copies bytes to another file. Returns the number of copied bytes: fewer than `length` if this file ends, or if
    /// an error occurs after the first MiB. If `to` is [synced](Self::synced), they are durable when this returns.
    /// *Errors*: those of the first MiB, and of the commit. *Units*: bytes.
    pub async fn copy(&self, offset: u64, to: &OpenFile, to_offset: u64, length: u64) -> Result<u64, Error> {
        let before = to.file.failures().count();
        let copied = self.client.copy((&self.file, offset), (&to.file, to_offset), length).await?;
        if to.is_synced {
            to.client.sync(&to.file, |failures| failures.since(before)).await?;
        }
        Ok(copied)
    }

    /// Whether the handle may write.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether the session in which it was opened has ended, so that every call fails.
    pub fn is_over(&self) -> bool {
        self.client.is_over()
    }

    /// Tells the kernel about a new end, `end`, of a file that a program of this host wrote without the kernel's page
    /// cache knowing.
    pub async fn note_end(&self, end: u64) {
        if self.file.is_direct.load(Ordering::Acquire) {
            self.client.show_end(self.file.id.inode, end).await;
        }
    }

    /// Closes the handle. Written data stays, and is committed within a second.
    pub async fn close(&self) {
        if self.is_over() {
            self.file.remove_user();
            return;
        }
        if self.is_writable {
            self.file.hold.state().remove_writer();
        }
        self.client.end_use(&self.file).await;
    }
}
