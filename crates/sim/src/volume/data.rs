//! Reads, writes and commits files whose contents a client knows under a token.
//!
//! Owns: the order of the steps of a read, a write and a commit, as in `client/data.rs`, `client/commit.rs` and
//! `client/change.rs`, but only for whole blocks.

use super::bugs::{VolumeModelBug, planted};
use super::client::{ModelCallFailure, MountModel};
use super::file::{Kept, ObjectLockGuard, ObjectLockKind};
use super::history::{EntryId, ValueAccess, ValueKey};
use super::hold::DataPermission;
use super::network::ModelQuestion;
use super::servers::image::{ModelAnswer, ModelOperation, ModelRefusal};

/// The number of free blocks that a client requests at a time.
const SPACE_BLOCKS: usize = 4;

/// The place of a write in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteTarget {
    /// A block of the file, by its index.
    Block(u64),
    /// The end of the file.
    End,
}

/// A program's call: the time at which it began, and the entries of its changes in the history.
#[derive(Debug, Default)]
pub struct ProgramCall {
    pub invoked: u64,
    pub entries: Vec<EntryId>,
}

/// The place of a file's block.
enum BlockPlace {
    Kept(u64),
    At(u32),
    Hole,
    Behind,
    Unknown,
}

impl MountModel {
    /// Records an effect of a call; other calls may see it from now on.
    pub fn did(&self, deed: &mut ProgramCall, key: ValueKey, act: ValueAccess) {
        let id = self.world.history.borrow_mut().begin(self.client.number, key, act, deed.invoked);
        deed.entries.push(id);
    }

    /// Records that a call of a program begins.
    pub fn begin(&self) -> ProgramCall {
        ProgramCall { invoked: self.world.history.borrow_mut().tick(), entries: Vec::new() }
    }

    /// Records that a call has succeeded, and that its caller knows this.
    pub fn end(&self, deed: ProgramCall) {
        if !self.client.is_blind() {
            deed.entries.into_iter().for_each(|id| self.world.history.borrow_mut().end(id));
        }
    }

    /// Waits until the contents of a file are known, and locks them for a reader.
    async fn readable(&self, object: usize, access: DataPermission) -> Result<ObjectLockGuard, ModelCallFailure> {
        loop {
            let guard = self.lock(object, ObjectLockKind::Read).await;
            if self.object(object).content.borrow().is_known && self.holds(object, access) {
                return Ok(guard);
            }
            drop(guard);
            drop(self.writable(object, access).await?);
        }
    }

    /// Waits until the contents of a file are known, and locks them for a single writer.
    pub async fn writable(&self, object: usize, access: DataPermission) -> Result<ObjectLockGuard, ModelCallFailure> {
        loop {
            self.admit(object, access).await?;
            let guard = self.lock(object, ObjectLockKind::Write).await;
            if !self.holds(object, access) {
                continue;
            }
            let is_known = self.object(object).content.borrow().is_known;
            if !is_known && object < self.world.files {
                let ModelAnswer::Attributes(inode) = self.ask_now(ModelQuestion::Attributes(object)).await? else {
                    return Err(ModelCallFailure::Ended);
                };
                self.object(object).content.borrow_mut().learn(inode);
            }
            return Ok(guard);
        }
    }

    /// Asks a question that the server answers without waiting for commits: for attributes it requests the map.
    async fn ask_now(&self, question: ModelQuestion) -> Result<ModelAnswer, ModelCallFailure> {
        let question = match question {
            ModelQuestion::Attributes(file) => ModelQuestion::Map(file),
            other => other,
        };
        Ok(match self.ask(question).await? {
            ModelAnswer::Map(inode, _) => ModelAnswer::Attributes(inode),
            other => other,
        })
    }

    fn place(&self, object: usize, block: u64) -> BlockPlace {
        let at = self.object(object);
        if let Some((value, _)) = at.kept.borrow().get(&block) {
            return BlockPlace::Kept(*value);
        }
        let content = at.content.borrow();
        if block >= content.size {
            return BlockPlace::Behind;
        }
        if let Some((disk, _)) = content.fresh.get(&block) {
            return BlockPlace::At(*disk);
        }
        match content.map.get(&block) {
            Some(Some(disk)) => BlockPlace::At(*disk),
            Some(None) => BlockPlace::Hole,
            None if block >= content.inode.size => BlockPlace::Hole,
            None => BlockPlace::Unknown,
        }
    }

    /// Waits until the lease allows I/O to begin. The client may be paused between this check and the I/O, so the I/O
    /// may be late.
    pub async fn begin_io(&self) -> Result<(), ModelCallFailure> {
        self.leased().await?;
        self.world.before_a_pause(&self.client);
        self.world.yields().await;
        Ok(())
    }

    /// Reads a block; returns `None` behind the end of the file.
    pub async fn read(
        &self,
        object: usize,
        block: u64,
        access: DataPermission,
    ) -> Result<Option<u64>, ModelCallFailure> {
        loop {
            self.leased().await?;
            let _guard = self.readable(object, access).await?;
            let value = match self.place(object, block) {
                BlockPlace::Kept(value) => Some(value),
                BlockPlace::Hole => Some(0),
                BlockPlace::Behind => None,
                BlockPlace::At(disk) => {
                    self.begin_io().await?;
                    Some(self.world.io(&self.client, disk, None).await)
                }
                BlockPlace::Unknown => {
                    drop(_guard);
                    let _guard = self.writable(object, access).await?;
                    self.load_map(object).await?;
                    continue;
                }
            };
            self.world.yields().await;
            self.still_leased(VolumeModelBug::ReadAfterLease)?;
            return Ok(value);
        }
    }

    async fn load_map(&self, object: usize) -> Result<(), ModelCallFailure> {
        let ModelAnswer::Attributes(inode) = self.ask_now(ModelQuestion::Attributes(object)).await? else {
            return Err(ModelCallFailure::Ended);
        };
        let mut content = self.object(object).content.borrow_mut();
        for block in 0..self.world.blocks {
            content.map.insert(block, inode.map.get(&block).copied());
        }
        Ok(())
    }

    /// Takes a free block that was granted to the client, and requests further blocks if there is none.
    pub async fn take_space(&self) -> Result<u32, ModelCallFailure> {
        loop {
            if let Some(block) = self.client.space.borrow_mut().pop() {
                return Ok(block);
            }
            match self.ask(ModelQuestion::Space(SPACE_BLOCKS)).await {
                Ok(ModelAnswer::Space(blocks)) => self.client.space.borrow_mut().extend(blocks),
                Ok(_) => return Err(ModelCallFailure::Ended),
                Err(error) => {
                    if error == ModelCallFailure::Refused(ModelRefusal::Full) {
                        self.world.coverage.met("8: the disk is full");
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn write_block(&self, object: usize, block: u64, (value, reserved): Kept) -> Result<(), ModelCallFailure> {
        let known = self.object(object).content.borrow().fresh.get(&block).copied();
        let disk = match (known, reserved) {
            (Some((disk, _)), reserved) => {
                self.client.space.borrow_mut().extend(reserved);
                disk
            }
            (None, Some(reserved)) => reserved,
            (None, None) => self.take_space().await?,
        };
        self.begin_io().await?;
        self.world.io(&self.client, disk, Some(value)).await;
        self.object(object).content.borrow_mut().fresh.insert(block, (disk, value));
        self.world.tell(|| format!("client {}: {block} of {object} is {value} at {disk}", self.client.number));
        // A kept page that is not newer than this write is obsolete; a newer one was kept during the write and stays.
        let mut kept = self.object(object).kept.borrow_mut();
        if let Some((_, reserved)) = kept.get(&block).copied().filter(|kept| kept.0 <= value) {
            kept.remove(&block);
            self.client.space.borrow_mut().extend(reserved.filter(|reserved| *reserved != disk));
        }
        Ok(())
    }

    /// Writes a block; returns its index, or `None` if the file already has its largest size.
    pub async fn write(
        &self,
        object: usize,
        at: WriteTarget,
        deed: &mut ProgramCall,
    ) -> Result<Option<u64>, ModelCallFailure> {
        let guard = self.writable(object, DataPermission::WRITE).await?;
        let block = match at {
            WriteTarget::Block(block) => block,
            WriteTarget::End => self.object(object).content.borrow().size,
        };
        if block >= self.world.blocks {
            return Ok(None);
        }
        // Each value is larger than the value that it replaces.
        let value = self.world.next_value();
        self.did(deed, ValueKey::Block(object, block), ValueAccess::Write(value));
        self.write_block(object, block, (value, None)).await?;
        match at {
            WriteTarget::Block(block) => self.did(deed, ValueKey::Size(object), ValueAccess::Raise(block + 1)),
            WriteTarget::End => self.did(deed, ValueKey::Size(object), ValueAccess::Swap(block, block + 1)),
        }
        {
            let mut content = self.object(object).content.borrow_mut();
            content.size = content.size.max(block + 1);
            content.is_modified = true;
        }
        drop(guard);
        self.world.yields().await;
        self.still_leased(VolumeModelBug::WriteAfterLease)?;
        Ok(Some(block))
    }

    /// Writes a page of the kernel back; keeps it in memory if the lease does not allow I/O to begin.
    pub async fn write_page(&self, object: usize, block: u64, kept: Kept) -> Result<(), ModelCallFailure> {
        if !self.object(object).hold.borrow_mut().begin_page_write() {
            if !self.client.ended.get() && !self.client.is_exempt.get() {
                self.world.break_with(format!("a page of file {object} is dirty without its token"));
            }
            return Err(ModelCallFailure::Ended);
        }
        if self.object(object).hold.borrow().has_pages() && !self.holds(object, DataPermission::WRITE) {
            self.world.coverage.met("3: a page is written back under the token that is given back");
        }
        let result = if self.client.lease().may_begin(self.client.clock(&self.world)) {
            let _guard = self.lock(object, ObjectLockKind::Write).await;
            let result = self.write_block(object, block, kept).await;
            self.object(object).content.borrow_mut().is_modified = true;
            result
        } else {
            self.world.coverage.met("6: a dirty page is kept while the server is away");
            let before = self.object(object).kept.borrow_mut().insert(block, kept);
            self.client.space.borrow_mut().extend(before.and_then(|(_, reserved)| reserved));
            Ok(())
        };
        self.object(object).hold.borrow_mut().page_call_ended();
        self.touch();
        result
    }

    /// Commits the writes to a file. The caller holds the lock of its contents.
    pub async fn commit_locked(&self, object: usize) -> Result<(), ModelCallFailure> {
        let at = self.object(object);
        if object >= self.world.files {
            return Ok(());
        }
        loop {
            let Some((block, kept)) = at.kept.borrow().first_key_value().map(|(at, kept)| (*at, *kept)) else {
                break;
            };
            at.kept.borrow_mut().insert(block, (kept.0, None));
            self.write_block(object, block, kept).await?;
            at.content.borrow_mut().is_modified = true;
        }
        if !at.content.borrow().is_dirty() {
            return Ok(());
        }
        self.world.flush_disk().await;
        let (operation, written) = {
            let content = at.content.borrow();
            let extents = content.fresh.iter().map(|(block, (disk, _))| (*block, *disk)).collect();
            let generation = content.inode.generation;
            let operation = ModelOperation::Commit { file: object, generation, size: content.size, extents };
            (operation, content.fresh.clone())
        };
        let ModelAnswer::Attributes(inode) = self.operate(operation).await? else {
            return Err(ModelCallFailure::Ended);
        };
        let mut content = at.content.borrow_mut();
        for (block, (disk, value)) in written {
            content.map.insert(block, Some(disk));
            content.fresh.remove(&block);
            self.world.history.borrow_mut().keep(ValueKey::Block(object, block), value);
        }
        content.inode = inode;
        content.size = content.size.max(content.inode.size);
        content.is_modified = false;
        Ok(())
    }

    /// Makes the writes to a file durable.
    pub async fn sync(&self, object: usize) -> Result<(), ModelCallFailure> {
        let _guard = self.lock(object, ObjectLockKind::Write).await;
        self.commit_locked(object).await?;
        self.world.check_synced(object, &self.object(object).content.borrow());
        Ok(())
    }

    /// Forgets the writes to a file that could not be committed. The client does not use their blocks again.
    pub fn drop_fresh(&self, object: usize) {
        let mut content = self.object(object).content.borrow_mut();
        content.fresh.clear();
        content.is_modified = false;
        content.failed = true;
    }

    /// Truncates or extends a file.
    pub async fn truncate(&self, object: usize, size: u64, deed: &mut ProgramCall) -> Result<(), ModelCallFailure> {
        let _guard = self.writable(object, DataPermission::WRITE).await?;
        // Until the answer is here, a stat shows the server's size, and not an older uncommitted one.
        self.commit_locked(object).await?;
        self.did(deed, ValueKey::Size(object), ValueAccess::Write(size));
        for block in size..self.world.blocks {
            self.did(deed, ValueKey::Block(object, block), ValueAccess::Write(0));
        }
        self.world.cut(object, size);
        let ModelAnswer::Attributes(inode) = self.operate(ModelOperation::Truncate { file: object, size }).await?
        else {
            return Err(ModelCallFailure::Ended);
        };
        let mut content = self.object(object).content.borrow_mut();
        let dropped = content.fresh.split_off(&size);
        self.client.space.borrow_mut().extend(dropped.into_values().map(|(disk, _)| disk));
        content.map.split_off(&size);
        let kept = self.object(object).kept.borrow_mut().split_off(&size);
        self.client.space.borrow_mut().extend(kept.into_values().filter_map(|(_, reserved)| reserved));
        content.inode = inode;
        content.size = content.inode.size;
        Ok(())
    }

    /// Returns the size that a `stat` shows. If the client knows a newer version than that of the server's answer, it
    /// shows the newer one.
    pub async fn stat(&self, object: usize) -> Result<u64, ModelCallFailure> {
        let ModelAnswer::Attributes(inode) = self.ask(ModelQuestion::Attributes(object)).await? else {
            return Err(ModelCallFailure::Ended);
        };
        self.world.before_a_pause(&self.client);
        self.world.sleep(1).await;
        let content = self.object(object).content.borrow();
        if content.is_dirty() {
            // An uncommitted size may be lost with the session.
            self.still_leased(VolumeModelBug::StatAfterLease)?;
            return Ok(content.size);
        }
        if content.inode.version > inode.version && !planted(VolumeModelBug::OldStat) {
            self.world.coverage.met("a stat is answered with what was committed here meanwhile");
            return Ok(content.inode.size);
        }
        Ok(inode.size)
    }
}
