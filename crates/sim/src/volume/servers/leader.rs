//! Leadership: how a server becomes leader by the lease sectors on the disk, takes over, and renews its lease.
//!
//! Owns: the life of a server's process. It follows `journal/leadership.rs` and `server/leading.rs`. Promises: a contender
//! begins only after it has seen a possible leader's sector unchanged for a lease plus the drift on its own clock, or
//! after that leader is proven gone; the contender then reads the whole journal, seals it, and stores a first append
//! before it answers anybody. Leaves to others: what a leader does (`server`), and what leaves it (`gate`).

use std::rc::Rc;

use super::journal::{ContenderState, LeaseSectorModel};
use crate::volume::bugs::{VolumeModelBug, planted};
use crate::volume::executor::{MS, TaskOwner};
use crate::volume::world::{SERVER_LEASES_MS, VolumeWorld};

/// The number of renewals during a lease.
const RENEWALS_OF_LEASE: u64 = 4;
/// The number of times that a watched sector is read during a lease.
const LOOKS: u64 = 8;
/// The number of checks for a silent disk during a lease.
const CHECKS_OF_LEASE: u64 = 16;
/// The drift of the servers' clocks over a lease, as a part of the lease.
const DRIFT_OF_LEASE: (u64, u64) = (1, 4);

/// A server that leads, or wants to.
struct LeaderContender {
    world: Rc<VolumeWorld>,
    index: usize,
    mine: LeaseSectorModel,
    lease_us: u64,
    /// The time on the server's clock before the last successful renewal was written.
    since_us: u64,
}

/// Runs a server until its process ends.
pub async fn serve(world: Rc<VolumeWorld>, index: usize) {
    let incarnation = world.processes[index].incarnation.get();
    let mine = LeaseSectorModel {
        server: index,
        incarnation,
        state: ContenderState::Contends,
        ballot: 0,
        accepted: 0,
        epoch: 0,
        renewal: 0,
    };
    let lease_us = world.server_lease_ms * MS;
    let mut contender = LeaderContender { world: world.clone(), index, mine, lease_us, since_us: 0 };
    contender.take().await;
    world.spawn(TaskOwner::Server(index), watch_disk(world.clone(), index));
    if contender.take_over().await {
        contender.lead().await;
    }
    world.coverage.met("14: a leader learns that it has lost its lease");
    world.end_process(index, MS + world.below(40 * MS));
}

/// Ends a server whose disk has been silent for longer than the lease. Only time in which the process ran counts.
async fn watch_disk(world: Rc<VolumeWorld>, index: usize) {
    let process = &world.processes[index];
    let (mut silent, mut seen) = (0, process.done.get());
    while silent <= CHECKS_OF_LEASE {
        world.sleep(world.true_us(index, world.server_lease_ms * MS / CHECKS_OF_LEASE)).await;
        silent = if process.is_waiting() && process.done.get() == seen { silent + 1 } else { 0 };
        seen = process.done.get();
        if planted(VolumeModelBug::NoGate) {
            silent = 0;
        }
    }
    world.coverage.met("14: a leader whose disk is silent ends");
    world.end_process(index, MS + world.below(40 * MS));
}

impl LeaderContender {
    fn clock(&self) -> u64 {
        self.world.clock_of(self.index)
    }

    async fn sleep(&self, clock_us: u64) {
        let until = self.clock() + clock_us;
        while self.clock() < until {
            self.world.sleep(self.world.true_us(self.index, until - self.clock())).await;
        }
    }

    async fn write(&mut self) {
        self.mine.renewal += 1;
        let mine = self.mine.clone();
        self.world.server_io(self.index, move |world| world.journal.write_sector(mine)).await;
        self.world.server_io(self.index, |_| ()).await;
    }

    async fn read(&self) -> (Vec<LeaseSectorModel>, u64) {
        self.world.server_io(self.index, |world| world.journal.read_sectors()).await
    }

    fn is_gone(&self, sector: &LeaseSectorModel) -> bool {
        self.world.is_gone(sector.incarnation, sector.server, self.index)
    }

    /// Whether the writer of a sector may lead now.
    fn is_rival(&self, sector: &LeaseSectorModel, newest: u64) -> bool {
        sector.incarnation != self.mine.incarnation
            && sector.accepted > 0
            && sector.epoch >= newest
            && !self.is_gone(sector)
    }

    fn rivals(&self, (sectors, newest): &(Vec<LeaseSectorModel>, u64)) -> Vec<LeaseSectorModel> {
        sectors.iter().filter(|sector| self.is_rival(sector, *newest)).cloned().collect()
    }

    /// Waits until a lease plus the drift has passed without a write of a possible leader; returns the rivals.
    async fn watch(&self) -> Vec<LeaseSectorModel> {
        'again: loop {
            let watched = self.rivals(&self.read().await);
            if watched.is_empty() {
                return watched;
            }
            let whole = self.lease_us + self.lease_us * DRIFT_OF_LEASE.0 / DRIFT_OF_LEASE.1;
            for _ in 0..LOOKS {
                self.sleep(whole / LOOKS + 1).await;
                if self.rivals(&self.read().await) != watched {
                    continue 'again;
                }
            }
            return watched;
        }
    }

    /// Becomes leader of a new epoch.
    async fn take(&mut self) {
        let mut watched = self.watch().await;
        loop {
            if self.ballot(&watched).await {
                return;
            }
            (self.mine.accepted, self.mine.epoch) = (0, 0);
            self.mine.state = ContenderState::Contends;
            self.write().await;
            self.sleep(self.lease_us / 64 * (1 + self.index as u64)).await;
            watched = self.watch().await;
        }
    }

    /// Runs one ballot; returns whether it was won.
    async fn ballot(&mut self, watched: &[LeaseSectorModel]) -> bool {
        let (sectors, _) = self.read().await;
        let highest = sectors.iter().map(|sector| sector.ballot).max().unwrap_or(0).max(self.mine.ballot);
        let servers = self.world.processes.len() as u64;
        self.mine.ballot = (highest / servers + 1) * servers + self.index as u64;
        (self.mine.accepted, self.mine.epoch) = (0, 0);
        self.write().await;
        let seen = self.read().await;
        if self.is_beaten(&seen.0) || self.rivals(&seen).iter().any(|rival| !watched.contains(rival)) {
            return false;
        }
        self.mine.accepted = self.mine.ballot;
        self.mine.epoch = seen
            .0
            .iter()
            .filter(|sector| sector.accepted > 0)
            .map(|sector| sector.epoch)
            .max()
            .unwrap_or(0)
            .max(seen.1)
            + 1;
        self.write().await;
        let seen = self.read().await;
        !self.is_beaten(&seen.0) && self.renew().await
    }

    fn is_beaten(&self, sectors: &[LeaseSectorModel]) -> bool {
        is_beaten(&self.mine, sectors, |other| self.is_gone(other))
    }

    /// Renews the lease; returns false if it is lost.
    async fn renew(&mut self) -> bool {
        let begun = self.clock();
        self.mine.state = ContenderState::Leads;
        self.write().await;
        let (sectors, _) = self.read().await;
        if self.is_beaten(&sectors) {
            return false;
        }
        self.since_us = begun;
        true
    }

    /// Reads the journal, seals it and stores the first append; returns whether the lease was kept.
    async fn take_over(&mut self) -> bool {
        let (world, index, epoch) = (self.world.clone(), self.index, self.mine.epoch);
        let (prefix, appends) = world.server_io(index, |world| world.journal.read(world)).await;
        let sealed = prefix.clone();
        world.before_seal(index);
        world.server_io(index, move |world| world.journal.seal(world, epoch, sealed, appends)).await;
        let (sequence, image) = (prefix.sequence + 2, prefix.image.clone());
        world.server_io(index, move |world| world.journal.append(world, epoch, sequence, image, Vec::new())).await;
        if !self.renew().await {
            return false;
        }
        world.lead(index, epoch, self.since_us, (sequence, prefix));
        true
    }

    /// Renews the lease until it is lost.
    async fn lead(&mut self) {
        loop {
            let due = self.since_us + self.lease_us / RENEWALS_OF_LEASE;
            self.sleep(due.saturating_sub(self.clock())).await;
            if !self.renew().await {
                return;
            }
            let mut server = self.world.processes[self.index].server.borrow_mut();
            if !server.gate.holds(self.clock()) {
                self.world.coverage.met("14: a leader renews a lease that had lapsed");
            }
            server.gate.renewed(self.since_us);
            server.flush(&self.world);
            server.go_on(&self.world);
        }
    }
}

/// Whether another contender has a higher ballot, or was given the same or a later epoch and is not known to be gone.
fn is_beaten(
    mine: &LeaseSectorModel,
    sectors: &[LeaseSectorModel],
    is_gone: impl Fn(&LeaseSectorModel) -> bool,
) -> bool {
    sectors.iter().filter(|other| other.incarnation != mine.incarnation).any(|other| {
        let is_later = mine.accepted > 0 && other.accepted > 0 && other.epoch >= mine.epoch;
        other.ballot > mine.ballot || (is_later && !is_gone(other))
    })
}

impl VolumeWorld {
    /// Whether the sectors show that a leader has lost its lease. A leader that finds no such sector after an append is
    /// stored knows, without a clock, that every later leader reads this append.
    pub fn is_deposed(&self, index: usize, sectors: &[LeaseSectorModel]) -> bool {
        let incarnation = self.processes[index].incarnation.get();
        let mine = sectors.iter().find(|sector| sector.incarnation == incarnation);
        mine.is_none_or(|mine| is_beaten(mine, sectors, |other| self.is_gone(other.incarnation, other.server, index)))
    }
}

/// Chooses the length of the servers' lease for a run. *Units*: milliseconds.
pub fn lease_ms(random: &mut crate::random::SimulationRandom) -> u64 {
    SERVER_LEASES_MS[random.below(SERVER_LEASES_MS.len() as u64) as usize]
}
