//! The metadata on the shared disk: the journal of the newest sealed epoch, and the lease sectors of the servers.
//!
//! Owns: what an append, a seal and a sector become when they reach the disk. Promises: an append counts only if no
//! later epoch was sealed before it reached the disk; each process writes only its own sector. Leaves to others: who
//! leads (`leader`), and when I/O reaches the disk (`process`).

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use super::image::MetadataModel;
use crate::volume::bugs::{VolumeModelBug, planted};
use crate::volume::history::ValueKey;
use crate::volume::world::VolumeWorld;

/// A session that an image calls over: its number, the time since when, and the value that each key with a lost change
/// has from then on.
pub type Loss = (u64, u64, Vec<(ValueKey, u64)>);

/// The state of a lease sector's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContenderState {
    Contends,
    Leads,
}

/// A lease sector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseSectorModel {
    pub server: usize,
    pub incarnation: u64,
    pub state: ContenderState,
    pub ballot: u64,
    /// The ballot in which the epoch was accepted; 0 for none.
    pub accepted: u64,
    pub epoch: u64,
    pub renewal: u64,
}

/// The durable metadata.
#[derive(Debug, Clone, Default)]
pub struct DurableMetadata {
    pub epoch: u64,
    /// The number of the last append.
    pub sequence: u64,
    pub image: Rc<MetadataModel>,
    /// The sessions that are over in the image.
    pub losses: Vec<Loss>,
}

/// The area of the disk that belongs to servers.
#[derive(Debug, Default)]
pub struct JournalModel {
    pub stored: RefCell<DurableMetadata>,
    sectors: RefCell<Vec<LeaseSectorModel>>,
    /// The last append that a client may know of.
    pub acknowledged: Cell<u64>,
    /// The number of appends that have reached the disk.
    appends: Cell<u64>,
    lost_io: RefCell<BTreeSet<u64>>,
    fenced: RefCell<BTreeSet<u64>>,
}

impl JournalModel {
    /// Makes the journal of a new volume.
    pub fn new(image: MetadataModel) -> JournalModel {
        let stored = DurableMetadata { image: Rc::new(image), ..DurableMetadata::default() };
        JournalModel { stored: RefCell::new(stored), ..JournalModel::default() }
    }

    /// Loses what an ended process has in flight.
    pub fn lose_io_of(&self, incarnation: u64) {
        self.lost_io.borrow_mut().insert(incarnation);
    }

    pub fn is_io_lost(&self, incarnation: u64) -> bool {
        self.lost_io.borrow().contains(&incarnation)
    }

    /// Proves to every server that a process is gone.
    pub fn fence(&self, incarnation: u64) {
        self.fenced.borrow_mut().insert(incarnation);
    }

    pub fn is_fenced(&self, incarnation: u64) -> bool {
        self.fenced.borrow().contains(&incarnation)
    }

    /// Returns all sectors, and the newest epoch.
    pub fn read_sectors(&self) -> (Vec<LeaseSectorModel>, u64) {
        (self.sectors.borrow().clone(), self.stored.borrow().epoch)
    }

    pub fn write_sector(&self, sector: LeaseSectorModel) {
        let mut sectors = self.sectors.borrow_mut();
        match sectors.iter_mut().find(|known| known.incarnation == sector.incarnation) {
            Some(known) => *known = sector,
            None => sectors.push(sector),
        }
    }

    /// Stores an append of the leader of `epoch`.
    pub fn append(&self, world: &VolumeWorld, epoch: u64, sequence: u64, image: Rc<MetadataModel>, losses: Vec<Loss>) {
        let mut stored = self.stored.borrow_mut();
        if epoch < stored.epoch {
            world.coverage.met("14: an append of an old leader reaches the disk after the seal");
            if !planted(VolumeModelBug::SealIgnored) {
                return;
            }
        }
        self.appends.set(self.appends.get() + 1);
        (stored.sequence, stored.image) = (sequence, image);
        stored.losses.extend(losses);
    }

    /// Returns the whole prefix of the journal, and the number of appends so far.
    pub fn read(&self, world: &VolumeWorld) -> (DurableMetadata, u64) {
        let stored = self.stored.borrow().clone();
        if stored.sequence > self.acknowledged.get() {
            world.coverage.met("14: an append that was not acknowledged is read by the next leader");
        }
        (stored, self.appends.get())
    }

    /// Records that `epoch` continues the prefix that was read when there were `appends` appends.
    pub fn seal(&self, world: &VolumeWorld, epoch: u64, prefix: DurableMetadata, appends: u64) {
        let mut stored = self.stored.borrow_mut();
        if epoch <= stored.epoch {
            return world.coverage.met("14: a seal of an old leader is ignored");
        }
        if self.appends.get() != appends {
            world.coverage.met("14: an append of an old leader is lost between the read and the seal");
        }
        *stored = DurableMetadata { epoch, ..prefix };
    }
}
