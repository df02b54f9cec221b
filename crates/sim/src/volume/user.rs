//! Programs: several run on each host, and each makes one call after another.

use super::client::{ModelCallFailure, MountModel};
use super::data::WriteTarget;
use super::executor::MS;
use super::history::{ValueAccess, ValueKey};

/// The number of names that programs use.
const NAMES: u64 = 3;
/// The number of pieces into which the kernel cuts a large append.
const PIECES: usize = 3;

impl MountModel {
    /// Records a value that a program saw.
    pub fn saw(&self, key: ValueKey, act: ValueAccess, invoked: u64) {
        if !self.client.is_blind() {
            self.world.history.borrow_mut().add(self.client.number, key, act, invoked);
        }
    }

    /// Makes one call after another, until the session or the run is over.
    pub async fn program(self) {
        while self.world.is_working() && self.failure().is_ok() {
            let pause = if self.world.chance(30) { self.world.below(15 * MS) } else { self.world.below(2 * MS) };
            self.world.sleep(pause).await;
            let done = self.do_something().await;
            self.world.count_operation(done.is_ok());
            if done.is_err() {
                self.world.sleep(self.world.below(3 * MS)).await;
            }
        }
        self.world.program_ended(self.client.number);
    }

    /// Asks for sizes again and again. Unlike other programs it does not need the lease, so it soon shows an answer of a
    /// server that another one has replaced.
    pub async fn look_at_sizes(self) {
        while self.world.is_working() && self.failure().is_ok() {
            self.world.sleep(2 * MS + self.world.below(15 * MS)).await;
            // An error means that the session is over.
            let _ = match self.world.chance(80) {
                true => self.stat_direct().await,
                false => self.stat_once(self.world.below(self.world.files as u64) as usize).await,
            };
        }
    }

    /// Locks files again and again, as several programs do that take turns.
    pub async fn take_turns(self) {
        while self.world.is_working() && self.failure().is_ok() {
            self.world.sleep(self.world.below(20 * MS)).await;
            // An error means that the session is over.
            let _ = self.lock_once().await;
        }
        self.world.program_ended(self.client.number);
    }

    async fn do_something(&self) -> Result<(), ModelCallFailure> {
        let world = &self.world;
        let (object, block) = (world.below(world.files as u64) as usize, world.below(world.blocks));
        match world.below(103) {
            0..20 => self.read_block(object, block).await,
            20..36 => self.write_once(object, WriteTarget::Block(block)).await.map(drop),
            36..43 => self.write_once(object, WriteTarget::End).await.map(drop),
            43..46 => self.append(object).await,
            46..52 => self.cut(object, block).await,
            52..62 => self.stat_once(object).await,
            62..68 => self.sync(object).await,
            68..74 => self.map(object, false, &[block, (block + 1) % world.blocks]).await,
            74..80 => self.map(object, true, &[block, (block + 1) % world.blocks]).await,
            80..82 => {
                self.give_up(object).await;
                Ok(())
            }
            82..88 => self.look_up(world.below(NAMES)).await,
            88..92 => self.change_name(world.below(NAMES), world.below(NAMES)).await,
            92..95 => self.read_direct(block).await,
            95..98 => self.write_direct(block).await,
            98..101 => self.truncate_direct(block).await,
            101 => self.stat_direct().await,
            _ => self.lock_once().await,
        }
    }

    async fn read_block(&self, object: usize, block: u64) -> Result<(), ModelCallFailure> {
        let deed = self.begin();
        self.unmapped(object, false).await;
        let value = self.read(object, block, super::hold::DataPermission::READ).await?;
        match value {
            Some(value) => {
                self.saw(ValueKey::Block(object, block), ValueAccess::Read(value), deed.invoked);
                self.saw(ValueKey::Size(object), ValueAccess::AtLeast(block + 1), deed.invoked);
            }
            None => self.saw(ValueKey::Size(object), ValueAccess::AtMost(block), deed.invoked),
        }
        Ok(())
    }

    async fn write_once(&self, object: usize, at: WriteTarget) -> Result<Option<u64>, ModelCallFailure> {
        let mut deed = self.begin();
        let _alone = self.unmapped(object, true).await;
        let written = self.write(object, at, &mut deed).await?;
        self.end(deed);
        Ok(written)
    }

    /// Makes an append that the kernel cuts into pieces.
    async fn append(&self, object: usize) -> Result<(), ModelCallFailure> {
        let mut last = None;
        for _ in 0..PIECES {
            let block = self.write_once(object, WriteTarget::End).await?;
            if let (Some(last), Some(block)) = (last, block)
                && block != last + 1
            {
                self.world.coverage.met("2: another host appends between the pieces of an append");
            }
            last = block;
        }
        Ok(())
    }

    async fn cut(&self, object: usize, size: u64) -> Result<(), ModelCallFailure> {
        let mut deed = self.begin();
        let _alone = self.unmapped(object, true).await;
        self.truncate(object, size, &mut deed).await?;
        self.end(deed);
        Ok(())
    }

    async fn stat_once(&self, object: usize) -> Result<(), ModelCallFailure> {
        let deed = self.begin();
        let known = self.object(object).content.borrow().size;
        let size = self.stat(object).await?;
        if size > known && self.object(object).content.borrow().size == known {
            self.world.coverage.met("1: the size that another host extended is seen");
        }
        self.saw(ValueKey::Size(object), ValueAccess::Read(size), deed.invoked);
        Ok(())
    }

    /// Reads all files and names at the end of a run.
    pub async fn read_all(self) {
        let done = self.read_everything().await;
        if done.is_ok() {
            self.world.finish();
        }
    }

    async fn read_everything(&self) -> Result<(), ModelCallFailure> {
        for object in 0..self.world.files {
            self.stat_once(object).await?;
            for block in 0..self.world.blocks {
                self.read_block(object, block).await?;
            }
            self.sync(object).await?;
        }
        for name in 0..NAMES {
            self.look_up(name).await?;
        }
        for block in 0..self.world.blocks {
            self.read_direct(block).await?;
        }
        self.stat_direct().await
    }
}
