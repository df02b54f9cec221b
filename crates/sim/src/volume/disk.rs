//! The shared disk: it completes each operation that a host has begun, even if the host is lost.
//!
//! Owns: the contents of each block, and the I/O in flight. Promises: an operation takes effect at one moment between
//! its start and its end; a write that has begun takes effect even if its host is lost.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::client::VolumeClientModel;
use super::executor::MS;
use super::world::VolumeWorld;

/// The contents of a block that was never written.
pub const UNWRITTEN: u64 = u64::MAX;

/// The disk.
pub struct SharedDiskModel {
    blocks: RefCell<Vec<u64>>,
    /// The number of operations in flight of each client.
    pub in_work: RefCell<Vec<u64>>,
    /// The time until which the disk is slow.
    pub slow_until: Cell<u64>,
}

impl SharedDiskModel {
    pub fn new(blocks: u32) -> SharedDiskModel {
        let blocks = vec![UNWRITTEN; blocks as usize];
        SharedDiskModel { blocks: RefCell::new(blocks), in_work: RefCell::default(), slow_until: Cell::new(0) }
    }

    /// The current contents of a block.
    pub fn value(&self, block: u32) -> u64 {
        self.blocks.borrow()[block as usize]
    }

    /// The number of operations in flight of a client.
    pub fn in_work_of(&self, client: usize) -> u64 {
        self.in_work.borrow().get(client).copied().unwrap_or(0)
    }

    fn count(&self, client: usize, change: i64) {
        let mut in_work = self.in_work.borrow_mut();
        if in_work.len() <= client {
            in_work.resize(client + 1, 0);
        }
        in_work[client] = in_work[client].wrapping_add_signed(change);
    }
}

impl VolumeWorld {
    fn io_us(&self) -> u64 {
        match self.below(100) {
            _ if self.disk.slow_until.get() > self.now() => self.below(900 * MS),
            0..3 => self.below(40 * MS),
            _ => 50 + self.below(400),
        }
    }

    /// Reads a block, or writes `write` to it; returns its contents.
    pub async fn io(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>, block: u32, write: Option<u64>) -> u64 {
        let (first, second) = (self.io_us(), self.io_us());
        let result: Rc<Cell<Option<u64>>> = Rc::default();
        self.disk.count(client.number, 1);
        let (of, seen) = (client.number, result.clone());
        self.at(self.now() + first, move |world| {
            let value = {
                let mut blocks = world.disk.blocks.borrow_mut();
                if let Some(value) = write {
                    blocks[block as usize] = value;
                }
                blocks[block as usize]
            };
            if write.is_some() && world.client(of).ended.get() {
                world.coverage.met("7: a write of a session that is over reaches the disk");
            }
            world.at(world.now() + second, move |world| {
                world.disk.count(of, -1);
                seen.set(Some(value));
                world.client(of).touch(world);
            });
        });
        let seen = result.clone();
        client.wait(self, move || seen.get().is_some()).await;
        result.get().unwrap_or(UNWRITTEN)
    }

    /// Takes the time of a flush. It has no other effect, because this disk loses no writes.
    pub async fn flush_disk(self: &Rc<VolumeWorld>) {
        let us = self.io_us();
        self.sleep(us).await;
    }
}
