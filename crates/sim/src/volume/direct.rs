//! A file that several hosts read and write at the same time without a token. Nothing of it is cached, and a map is
//! used only until the read ends. A commit can only raise the size, and is refused if its truncate generation is
//! outdated.

use super::bugs::VolumeModelBug;
use super::client::{ModelCallFailure, MountModel};
use super::executor::MS;
use super::history::{ValueAccess, ValueKey};
use super::network::ModelQuestion;
use super::servers::image::{InodeModel, ModelAnswer, ModelOperation, ModelRefusal};

impl MountModel {
    fn direct(&self) -> usize {
        self.world.files
    }

    async fn look_direct(&self) -> Result<InodeModel, ModelCallFailure> {
        match self.ask(ModelQuestion::Map(self.direct())).await? {
            ModelAnswer::Map(inode, _) => Ok(inode),
            _ => Err(ModelCallFailure::Ended),
        }
    }

    /// Reads a block.
    pub async fn read_direct(&self, block: u64) -> Result<(), ModelCallFailure> {
        // Blocks that are freed from now on are not used again until this map is forgotten.
        let since = self.client.durable.get();
        self.client.maps.borrow_mut().push(since);
        let result = self.read_mapped(block).await;
        let at = self.client.maps.borrow().iter().position(|map| *map == since);
        at.map(|at| self.client.maps.borrow_mut().swap_remove(at));
        result
    }

    async fn read_mapped(&self, block: u64) -> Result<(), ModelCallFailure> {
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
        self.still_leased(VolumeModelBug::ReadAfterLease)?;
        if block < inode.size {
            self.saw(ValueKey::Block(self.direct(), block), ValueAccess::Read(value), deed.invoked);
            self.saw(ValueKey::Size(self.direct()), ValueAccess::AtLeast(block + 1), deed.invoked);
        } else {
            self.saw(ValueKey::Size(self.direct()), ValueAccess::AtMost(block), deed.invoked);
        }
        Ok(())
    }

    /// Writes a block, and commits it.
    pub async fn write_direct(&self, block: u64) -> Result<(), ModelCallFailure> {
        let (mut deed, value) = (self.begin(), self.world.next_value());
        let mut inode = self.look_direct().await?;
        let disk = self.take_space().await?;
        self.begin_io().await?;
        self.world.io(&self.client, disk, Some(value)).await;
        self.world.flush_disk().await;
        self.did(&mut deed, ValueKey::Block(self.direct(), block), ValueAccess::Write(value));
        self.did(&mut deed, ValueKey::Size(self.direct()), ValueAccess::Raise(block + 1));
        loop {
            let (generation, size) = (inode.generation, inode.size.max(block + 1));
            let extents = vec![(block, disk)];
            match self.operate(ModelOperation::Commit { file: self.direct(), generation, size, extents }).await {
                Ok(_) => break,
                Err(ModelCallFailure::Refused(ModelRefusal::Stale)) => inode = self.look_direct().await?,
                Err(error) => return Err(error),
            }
        }
        self.end(deed);
        Ok(())
    }

    /// Truncates or extends the file.
    pub async fn truncate_direct(&self, size: u64) -> Result<(), ModelCallFailure> {
        let mut deed = self.begin();
        self.did(&mut deed, ValueKey::Size(self.direct()), ValueAccess::Write(size));
        for block in size..self.world.blocks {
            self.did(&mut deed, ValueKey::Block(self.direct(), block), ValueAccess::Write(0));
        }
        self.operate(ModelOperation::Truncate { file: self.direct(), size }).await?;
        self.end(deed);
        Ok(())
    }

    /// Reads the size, as a `stat` does.
    pub async fn stat_direct(&self) -> Result<(), ModelCallFailure> {
        let deed = self.begin();
        if let ModelAnswer::Attributes(inode) = self.ask(ModelQuestion::Attributes(self.direct())).await? {
            self.saw(ValueKey::Size(self.direct()), ValueAccess::Read(inode.size), deed.invoked);
        }
        Ok(())
    }
}
