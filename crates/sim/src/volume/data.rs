//! Reads, writes and commits files whose contents a client knows under a token.
//!
//! Owns: the order of the steps of a read, a write and a commit, as in `client/data.rs`, `client/commit.rs` and
//! `client/change.rs`, but only for whole blocks.

use super::bugs::{Bug, planted};
use super::client::{Fail, Mount};
use super::file::{Guard, Kept, Kind};
use super::history::{Act, EntryId, Key};
use super::hold::Access;
use super::network::Question;
use super::servers::image::{Answer, Operation, Refusal};

/// The number of free blocks that a client requests at a time.
const SPACE_BLOCKS: usize = 4;

/// The place of a write in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// A block of the file, by its index.
    Block(u64),
    /// The end of the file.
    End,
}

/// A program's call: the time at which it began, and the entries of its changes in the history.
#[derive(Debug, Default)]
pub struct Deed {
    pub invoked: u64,
    pub entries: Vec<EntryId>,
}

/// The place of a file's block.
enum Place {
    Kept(u64),
    At(u32),
    Hole,
    Behind,
    Unknown,
}

impl Mount {
    /// Records an effect of a call; other calls may see it from now on.
    pub fn did(&self, deed: &mut Deed, key: Key, act: Act) {
        let id = self.world.history.borrow_mut().begin(self.client.number, key, act, deed.invoked);
        deed.entries.push(id);
    }

    /// Records that a call of a program begins.
    pub fn begin(&self) -> Deed {
        Deed { invoked: self.world.history.borrow_mut().tick(), entries: Vec::new() }
    }

    /// Records that a call has succeeded, and that its caller knows this.
    pub fn end(&self, deed: Deed) {
        if !self.client.is_blind() {
            deed.entries.into_iter().for_each(|id| self.world.history.borrow_mut().end(id));
        }
    }

    /// Waits until the contents of a file are known, and locks them for a reader.
    async fn readable(&self, object: usize, access: Access) -> Result<Guard, Fail> {
        loop {
            let guard = self.lock(object, Kind::Read).await;
            if self.object(object).content.borrow().is_known && self.holds(object, access) {
                return Ok(guard);
            }
            drop(guard);
            drop(self.writable(object, access).await?);
        }
    }

    /// Waits until the contents of a file are known, and locks them for a single writer.
    pub async fn writable(&self, object: usize, access: Access) -> Result<Guard, Fail> {
        loop {
            self.admit(object, access).await?;
            let guard = self.lock(object, Kind::Write).await;
            if !self.holds(object, access) {
                continue;
            }
            let is_known = self.object(object).content.borrow().is_known;
            if !is_known && object < self.world.files {
                let Answer::Attributes(inode) = self.ask_now(Question::Attributes(object)).await? else {
                    return Err(Fail::Ended);
                };
                self.object(object).content.borrow_mut().learn(inode);
            }
            return Ok(guard);
        }
    }

    /// Asks a question that the server answers without waiting for commits: for attributes it requests the map.
    async fn ask_now(&self, question: Question) -> Result<Answer, Fail> {
        let question = match question {
            Question::Attributes(file) => Question::Map(file),
            other => other,
        };
        Ok(match self.ask(question).await? {
            Answer::Map(inode, _) => Answer::Attributes(inode),
            other => other,
        })
    }

    fn place(&self, object: usize, block: u64) -> Place {
        let at = self.object(object);
        if let Some((value, _)) = at.kept.borrow().get(&block) {
            return Place::Kept(*value);
        }
        let content = at.content.borrow();
        if block >= content.size {
            return Place::Behind;
        }
        if let Some((disk, _)) = content.fresh.get(&block) {
            return Place::At(*disk);
        }
        match content.map.get(&block) {
            Some(Some(disk)) => Place::At(*disk),
            Some(None) => Place::Hole,
            None if block >= content.inode.size => Place::Hole,
            None => Place::Unknown,
        }
    }

    /// Waits until the lease allows I/O to begin. The client may be paused between this check and the I/O, so the I/O
    /// may be late.
    pub async fn begin_io(&self) -> Result<(), Fail> {
        self.leased().await?;
        self.world.before_a_pause(&self.client);
        self.world.yields().await;
        Ok(())
    }

    /// Reads a block; returns `None` behind the end of the file.
    pub async fn read(&self, object: usize, block: u64, access: Access) -> Result<Option<u64>, Fail> {
        loop {
            self.leased().await?;
            let _guard = self.readable(object, access).await?;
            let value = match self.place(object, block) {
                Place::Kept(value) => Some(value),
                Place::Hole => Some(0),
                Place::Behind => None,
                Place::At(disk) => {
                    self.begin_io().await?;
                    Some(self.world.io(&self.client, disk, None).await)
                }
                Place::Unknown => {
                    drop(_guard);
                    let _guard = self.writable(object, access).await?;
                    self.load_map(object).await?;
                    continue;
                }
            };
            self.world.yields().await;
            self.still_leased(Bug::ReadAfterLease)?;
            return Ok(value);
        }
    }

    async fn load_map(&self, object: usize) -> Result<(), Fail> {
        let Answer::Attributes(inode) = self.ask_now(Question::Attributes(object)).await? else {
            return Err(Fail::Ended);
        };
        let mut content = self.object(object).content.borrow_mut();
        for block in 0..self.world.blocks {
            content.map.insert(block, inode.map.get(&block).copied());
        }
        Ok(())
    }

    /// Takes a free block that was granted to the client, and requests further blocks if there is none.
    pub async fn take_space(&self) -> Result<u32, Fail> {
        loop {
            if let Some(block) = self.client.space.borrow_mut().pop() {
                return Ok(block);
            }
            match self.ask(Question::Space(SPACE_BLOCKS)).await {
                Ok(Answer::Space(blocks)) => self.client.space.borrow_mut().extend(blocks),
                Ok(_) => return Err(Fail::Ended),
                Err(error) => {
                    if error == Fail::Refused(Refusal::Full) {
                        self.world.coverage.met("8: the disk is full");
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn write_block(&self, object: usize, block: u64, (value, reserved): Kept) -> Result<(), Fail> {
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
    pub async fn write(&self, object: usize, at: At, deed: &mut Deed) -> Result<Option<u64>, Fail> {
        let guard = self.writable(object, Access::WRITE).await?;
        let block = match at {
            At::Block(block) => block,
            At::End => self.object(object).content.borrow().size,
        };
        if block >= self.world.blocks {
            return Ok(None);
        }
        // Each value is larger than the value that it replaces.
        let value = self.world.next_value();
        self.did(deed, Key::Block(object, block), Act::Write(value));
        self.write_block(object, block, (value, None)).await?;
        match at {
            At::Block(block) => self.did(deed, Key::Size(object), Act::Raise(block + 1)),
            At::End => self.did(deed, Key::Size(object), Act::Swap(block, block + 1)),
        }
        {
            let mut content = self.object(object).content.borrow_mut();
            content.size = content.size.max(block + 1);
            content.is_modified = true;
        }
        drop(guard);
        self.world.yields().await;
        self.still_leased(Bug::WriteAfterLease)?;
        Ok(Some(block))
    }

    /// Writes a page of the kernel back; keeps it in memory if the lease does not allow I/O to begin.
    pub async fn write_page(&self, object: usize, block: u64, kept: Kept) -> Result<(), Fail> {
        if !self.object(object).hold.borrow_mut().begin_page_write() {
            if !self.client.ended.get() && !self.client.is_exempt.get() {
                self.world.break_with(format!("a page of file {object} is dirty without its token"));
            }
            return Err(Fail::Ended);
        }
        if self.object(object).hold.borrow().has_pages() && !self.holds(object, Access::WRITE) {
            self.world.coverage.met("3: a page is written back under the token that is given back");
        }
        let result = if self.client.lease().may_begin(self.client.clock(&self.world)) {
            let _guard = self.lock(object, Kind::Write).await;
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
    pub async fn commit_locked(&self, object: usize) -> Result<(), Fail> {
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
            let operation = Operation::Commit { file: object, generation, size: content.size, extents };
            (operation, content.fresh.clone())
        };
        let Answer::Attributes(inode) = self.operate(operation).await? else { return Err(Fail::Ended) };
        let mut content = at.content.borrow_mut();
        for (block, (disk, value)) in written {
            content.map.insert(block, Some(disk));
            content.fresh.remove(&block);
            self.world.history.borrow_mut().keep(Key::Block(object, block), value);
        }
        content.inode = inode;
        content.size = content.size.max(content.inode.size);
        content.is_modified = false;
        Ok(())
    }

    /// Makes the writes to a file durable.
    pub async fn sync(&self, object: usize) -> Result<(), Fail> {
        let _guard = self.lock(object, Kind::Write).await;
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
    pub async fn truncate(&self, object: usize, size: u64, deed: &mut Deed) -> Result<(), Fail> {
        let _guard = self.writable(object, Access::WRITE).await?;
        // Until the answer is here, a stat shows the server's size, and not an older uncommitted one.
        self.commit_locked(object).await?;
        self.did(deed, Key::Size(object), Act::Write(size));
        for block in size..self.world.blocks {
            self.did(deed, Key::Block(object, block), Act::Write(0));
        }
        self.world.cut(object, size);
        let Answer::Attributes(inode) = self.operate(Operation::Truncate { file: object, size }).await? else {
            return Err(Fail::Ended);
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
    pub async fn stat(&self, object: usize) -> Result<u64, Fail> {
        let Answer::Attributes(inode) = self.ask(Question::Attributes(object)).await? else {
            return Err(Fail::Ended);
        };
        self.world.before_a_pause(&self.client);
        self.world.sleep(1).await;
        let content = self.object(object).content.borrow();
        if content.is_dirty() {
            // An uncommitted size may be lost with the session.
            self.still_leased(Bug::StatAfterLease)?;
            return Ok(content.size);
        }
        if content.inode.version > inode.version && !planted(Bug::OldStat) {
            self.world.coverage.met("a stat is answered with what was committed here meanwhile");
            return Ok(content.inode.size);
        }
        Ok(inode.size)
    }
}
