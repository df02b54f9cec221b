//! A file that several hosts read and write at the same time without a token. Nothing of it is cached, and a map is
//! used only until the read ends. A commit can only raise the size, and is refused if its truncate generation is
//! outdated.

use super::bugs::Bug;
use super::client::{Fail, Mount};
use super::executor::MS;
use super::history::{Act, Key};
use super::network::Question;
use super::servers::image::{Answer, Inode, Operation, Refusal};

impl Mount {
    fn direct(&self) -> usize {
        self.world.files
    }

    async fn look_direct(&self) -> Result<Inode, Fail> {
        match self.ask(Question::Map(self.direct())).await? {
            Answer::Map(inode, _) => Ok(inode),
            _ => Err(Fail::Ended),
        }
    }

    /// Reads a block.
    pub async fn read_direct(&self, block: u64) -> Result<(), Fail> {
        // Blocks that are freed from now on are not used again until this map is forgotten.
        let since = self.client.durable.get();
        self.client.maps.borrow_mut().push(since);
        let result = self.read_mapped(block).await;
        let at = self.client.maps.borrow().iter().position(|map| *map == since);
        at.map(|at| self.client.maps.borrow_mut().swap_remove(at));
        result
    }

    async fn read_mapped(&self, block: u64) -> Result<(), Fail> {
        let deed = self.begin();
        let inode = self.look_direct().await?;
        if self.world.chance(30) {
            self.world.sleep(self.world.below(20 * MS)).await;
        }
        let value = match inode.map.get(&block) {
            Some(disk) => {
                self.begin_io().await?;
                self.world.io(&self.client, *disk, None).await
            }
            None => 0,
        };
        self.still_leased(Bug::ReadAfterLease)?;
        if block < inode.size {
            self.saw(Key::Block(self.direct(), block), Act::Read(value), deed.invoked);
            self.saw(Key::Size(self.direct()), Act::AtLeast(block + 1), deed.invoked);
        } else {
            self.saw(Key::Size(self.direct()), Act::AtMost(block), deed.invoked);
        }
        Ok(())
    }

    /// Writes a block, and commits it.
    pub async fn write_direct(&self, block: u64) -> Result<(), Fail> {
        let (mut deed, value) = (self.begin(), self.world.next_value());
        let mut inode = self.look_direct().await?;
        let disk = self.take_space().await?;
        self.begin_io().await?;
        self.world.io(&self.client, disk, Some(value)).await;
        self.world.flush_disk().await;
        self.did(&mut deed, Key::Block(self.direct(), block), Act::Write(value));
        self.did(&mut deed, Key::Size(self.direct()), Act::Raise(block + 1));
        loop {
            let (generation, size) = (inode.generation, inode.size.max(block + 1));
            let extents = vec![(block, disk)];
            match self.operate(Operation::Commit { file: self.direct(), generation, size, extents }).await {
                Ok(_) => break,
                Err(Fail::Refused(Refusal::Stale)) => inode = self.look_direct().await?,
                Err(error) => return Err(error),
            }
        }
        self.end(deed);
        Ok(())
    }

    /// Truncates or extends the file.
    pub async fn truncate_direct(&self, size: u64) -> Result<(), Fail> {
        let mut deed = self.begin();
        self.did(&mut deed, Key::Size(self.direct()), Act::Write(size));
        for block in size..self.world.blocks {
            self.did(&mut deed, Key::Block(self.direct(), block), Act::Write(0));
        }
        self.operate(Operation::Truncate { file: self.direct(), size }).await?;
        self.end(deed);
        Ok(())
    }

    /// Reads the size, as a `stat` does.
    pub async fn stat_direct(&self) -> Result<(), Fail> {
        let deed = self.begin();
        if let Answer::Attributes(inode) = self.ask(Question::Attributes(self.direct())).await? {
            self.saw(Key::Size(self.direct()), Act::Read(inode.size), deed.invoked);
        }
        Ok(())
    }
}
