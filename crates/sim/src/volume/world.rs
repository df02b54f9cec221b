//! A run: hosts, servers and a disk, in virtual time.
//!
//! Owns: the lives of clients, the changes that are lost with a client, the end of the run, and the violation that ends
//! it. Promises: a seed repeats a run exactly. Leaves to others: the choice of faults (`faults`).
//!
//! *Circle*: files that this file imports add methods to [`VolumeWorld`], or keep references to it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nectary_volume::protocol::{FileId, TokenAspect};

use super::check::{OrderVerdict, explain};
use super::client::{MountModel, VolumeClientModel};
use super::coverage::VolumeCoverage;
use super::disk::{SharedDiskModel, UNWRITTEN};
use super::executor::{MS, SeededExecutor, TaskOwner};
use super::faults::VolumeFaults;
use super::file::{FileContentModel, ProtectedObject};
use super::history::{HistoryEntry, ValueAccess, ValueHistory, ValueKey};
use super::locks::LockHolders;
use super::names::{DIRECTORY, PROTECTS};
use super::network::ModelConnection;
use super::servers::image::MetadataModel;
use super::servers::journal::{DurableMetadata, JournalModel, Loss};
use super::servers::leader;
use super::servers::process::ServerProcess;
use super::servers::server::token;
use super::{OPERATIONS, TIME_MAX_US};
use crate::random::SimulationRandom;

/// The length of a session's lease. *Units*: milliseconds.
pub const LEASE_MS: u64 = 400;
/// The time that the server adds to a lease, because clocks may differ by this much over a lease. *Units*:
/// milliseconds.
pub const DRIFT_MS: u64 = 100;
/// The lengths of a server's lease, shorter and longer than that of a session. *Units*: milliseconds.
pub const SERVER_LEASES_MS: [u64; 2] = [160, 800];
/// The factor by which the time limit for giving a token back is shorter than in a real server.
pub const SLOWER: u64 = 20;
/// The largest deviation of the speed of a host's clock; between two hosts a lease differs by less than the drift.
/// *Units*: millionths.
const RATE: u64 = 100_000;
/// The number of programs of a host whose calls count. One more takes turns with a file lock.
const PROGRAMS: u64 = 3;

/// The stage of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VolumeRunStage {
    Work,
    Settle,
    Read,
    Done,
}

/// A run.
pub struct VolumeWorld {
    pub executor: SeededExecutor,
    random: RefCell<SimulationRandom>,
    /// The servers: one, or two on different hosts.
    pub processes: Vec<ServerProcess>,
    /// The length of the servers' lease. *Units*: milliseconds.
    pub server_lease_ms: u64,
    pub journal: JournalModel,
    pub disk: SharedDiskModel,
    pub connections: RefCell<Vec<Rc<ModelConnection>>>,
    clients: RefCell<Vec<Rc<VolumeClientModel>>>,
    /// The current client of each host.
    pub hosts: RefCell<Vec<usize>>,
    /// For each client, the number of its programs that still run.
    programs: RefCell<BTreeMap<usize, u64>>,
    pub faults: VolumeFaults,
    pub holders: LockHolders,
    /// The sessions whose end was recorded.
    over: RefCell<BTreeSet<u64>>,
    pub history: RefCell<ValueHistory>,
    pub coverage: VolumeCoverage,
    broken: RefCell<Option<String>>,
    pub story: RefCell<Option<Vec<String>>>,
    /// The number of files that tokens protect; one more file is used without a token.
    pub files: usize,
    /// The largest size of a file. *Units*: blocks.
    pub blocks: u64,
    values: Cell<u64>,
    connected: Cell<u64>,
    incarnations: Cell<u64>,
    cuts: RefCell<BTreeMap<ValueKey, u64>>,
    pub operations: Cell<u64>,
    pub failed: Cell<u64>,
    pub undecided: Cell<u64>,
    stage: Cell<VolumeRunStage>,
}

impl VolumeWorld {
    pub fn new(seed: u64) -> Rc<VolumeWorld> {
        let mut random = SimulationRandom::new(seed);
        let hosts = if random.chance(20) { 2 } else { 3 };
        let files = 1 + random.below(2) as usize;
        let blocks = 3 + random.below(2);
        let disk_blocks = if random.chance(20) { 30 } else { 120 } as u32;
        let server_lease_ms = leader::lease_ms(&mut random);
        let servers = if random.chance(25) { 1 } else { 2 };
        let process = |index| ServerProcess::new(index, 1_000_000 - RATE + random.below(2 * RATE));
        let processes = (0..servers).map(process).collect();
        let faults = VolumeFaults::new(&mut random);
        let world = Rc::new(VolumeWorld {
            executor: SeededExecutor::default(),
            random: RefCell::new(random),
            processes,
            server_lease_ms,
            journal: JournalModel::new(MetadataModel::new(files + 1, disk_blocks)),
            disk: SharedDiskModel::new(disk_blocks),
            connections: RefCell::default(),
            clients: RefCell::default(),
            hosts: RefCell::new(vec![0; hosts]),
            programs: RefCell::default(),
            faults,
            holders: LockHolders::default(),
            over: RefCell::default(),
            history: RefCell::default(),
            coverage: VolumeCoverage::default(),
            broken: RefCell::default(),
            story: RefCell::default(),
            files,
            blocks,
            values: Cell::new(0),
            connected: Cell::new(0),
            incarnations: Cell::new(0),
            cuts: RefCell::default(),
            operations: Cell::new(0),
            failed: Cell::new(0),
            undecided: Cell::new(0),
            stage: Cell::new(VolumeRunStage::Work),
        });
        (0..servers).for_each(|index| world.start_process(index));
        (0..hosts).for_each(|host| world.mount(host));
        world.plan_fault();
        if world.chance(50) {
            world.plan_loss();
        }
        world
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    pub fn chance(&self, percent: u64) -> bool {
        self.random.borrow_mut().chance(percent)
    }

    /// The number of clients so far.
    pub fn clients(&self) -> usize {
        self.clients.borrow().len()
    }

    pub fn client(&self, number: usize) -> Rc<VolumeClientModel> {
        self.clients.borrow()[number].clone()
    }

    /// Returns the current client of a host.
    pub fn client_of(&self, host: usize) -> Rc<VolumeClientModel> {
        self.client(self.hosts.borrow()[host])
    }

    pub fn file_id(&self, file: usize) -> FileId {
        FileId { inode: file as u64 + 1, generation: 1 }
    }

    /// Returns a new value for a block, which is larger than all values before.
    pub fn next_value(&self) -> u64 {
        self.values.set(self.values.get() + 1);
        self.values.get()
    }

    /// Returns the number of a new connection.
    pub fn next_connection(&self) -> u64 {
        self.connected.set(self.connected.get() + 1);
        self.connected.get()
    }

    /// Returns the number of a new process of a server.
    pub fn next_incarnation(&self) -> u64 {
        self.incarnations.set(self.incarnations.get() + 1);
        self.incarnations.get()
    }

    /// Records an event, if a description of the run is requested.
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut *self.story.borrow_mut() {
            story.push(format!("{} us: {}", self.now(), what()));
        }
    }

    /// Notes that an invariant is broken.
    pub fn break_with(&self, what: String) {
        let at = self.now();
        self.broken.borrow_mut().get_or_insert(format!("{what} (at {at} us)"));
    }

    pub fn take_broken(&self) -> Option<String> {
        self.broken.borrow_mut().take()
    }

    pub fn is_working(&self) -> bool {
        self.stage.get() == VolumeRunStage::Work
    }

    pub fn finish(&self) {
        self.stage.set(VolumeRunStage::Done);
    }

    pub fn count_operation(&self, is_done: bool) {
        let count = if is_done { &self.operations } else { &self.failed };
        count.set(count.get() + 1);
    }

    pub fn program_ended(&self, client: usize) {
        if let Some(count) = self.programs.borrow_mut().get_mut(&client) {
            *count -= 1;
        }
    }

    /// Starts a client on a host.
    pub fn mount(self: &Rc<VolumeWorld>, host: usize) {
        let number = self.clients.borrow().len();
        let rate = 1_000_000 - RATE + self.below(2 * RATE);
        let tokens = (0..self.files).map(|file| token(self.file_id(file), TokenAspect::Data));
        let tokens = tokens.chain([token(DIRECTORY, PROTECTS)]);
        let client = Rc::new(VolumeClientModel::new(number, host, rate, tokens.map(ProtectedObject::new).collect()));
        self.clients.borrow_mut().push(client.clone());
        self.hosts.borrow_mut()[host] = number;
        let mount = MountModel { world: self.clone(), client };
        mount.spawn(mount.clone().keep(false));
        mount.spawn(mount.clone().keep(true));
        mount.spawn(mount.clone().watch_lease());
        mount.spawn(mount.clone().commit_sometimes());
        if self.is_working() {
            self.programs.borrow_mut().insert(number, PROGRAMS + 1);
            (0..PROGRAMS).for_each(|_| mount.spawn(mount.clone().program()));
            mount.spawn(mount.clone().take_turns());
            mount.spawn(mount.clone().look_at_sizes());
            mount.spawn(mount.clone().gaze());
        } else if self.stage.get() == VolumeRunStage::Read {
            mount.spawn(mount.clone().read_all());
        }
    }

    /// Ends the process of a client that knows that its session is over, and starts another one.
    pub fn remount(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>) {
        let client = client.clone();
        self.at(self.now() + MS + self.below(50 * MS), move |world| {
            if client.is_paused.get() {
                return world.remount(&client);
            }
            if !client.is_dead.get() {
                world.kill(&client, 0);
            }
        });
    }

    /// Kills a client, whose knowledge is lost; another client starts on its host after `after_us` microseconds.
    pub fn kill(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>, after_us: u64) {
        client.is_dead.set(true);
        self.end_tasks(TaskOwner::Client(client.number));
        self.holders.forget(client.number);
        self.programs.borrow_mut().remove(&client.number);
        for connection in self.connections.borrow().clone() {
            if connection.client == client.number {
                self.lose(&connection);
            }
        }
        let host = client.host;
        self.at(self.now() + after_us, move |world| world.mount(host));
        self.retire(client.clone());
    }

    /// Frees the blocks that were granted to a client, once its writes have ended and its session is over.
    fn retire(self: &Rc<VolumeWorld>, client: Rc<VolumeClientModel>) {
        self.at(self.now() + 20 * MS, move |world| {
            let session = client.session.get();
            let image = world.journal.stored.borrow().image.clone();
            let is_over = image.sessions.get(&session).is_some_and(|found| found.is_ended);
            let is_left = !is_over || image.granted.values().any(|of| *of == session);
            if world.disk.in_work_of(client.number) == 0 {
                for process in world.processes.iter().filter(|process| process.is_leading() && !process.is_stopped()) {
                    let mut server = process.server.borrow_mut();
                    if let Some(count) = server.release(session) {
                        let name = "7: blocks of a lost session are released after its last write";
                        world.coverage.add(name, count as u64);
                        server.go_on(world);
                    }
                }
            }
            if session != 0 && is_left && world.stage.get() != VolumeRunStage::Done {
                world.retire(client);
            }
        });
    }

    /// Makes a server the leader of an epoch; it continues what was stored.
    pub fn lead(self: &Rc<VolumeWorld>, index: usize, epoch: u64, since_us: u64, stored: (u64, DurableMetadata)) {
        self.tell(|| format!("server {index} leads epoch {epoch}"));
        stored.1.losses.iter().cloned().for_each(|loss| self.lost(loss));
        self.processes[index].server.borrow_mut().lead(self, epoch, since_us, stored);
        self.after_takeover(index);
    }

    fn of_session(&self, session: u64) -> Option<Rc<VolumeClientModel>> {
        self.clients.borrow().iter().find(|client| client.session.get() == session).cloned()
    }

    /// Returns the current time and, for each key that an ending session has changed and not committed, the server's
    /// value.
    pub fn unsaved(&self, session: u64, image: &MetadataModel) -> (u64, Vec<(ValueKey, u64)>) {
        let (mut values, since) = (Vec::new(), self.history.borrow_mut().tick());
        let Some(client) = self.of_session(session) else { return (since, values) };
        for (file, object) in client.objects.iter().enumerate().take(self.files) {
            let (content, pages, inode) = (object.content.borrow(), object.pages.borrow(), &image.files[file]);
            if content.is_known && content.is_dirty() && content.size != inode.size {
                values.push((ValueKey::Size(file), inode.size));
            }
            for block in 0..self.blocks {
                let is_dirty = content.fresh.contains_key(&block)
                    || object.kept.borrow().contains_key(&block)
                    || pages.get(&block).is_some_and(|page| page.is_dirty);
                if is_dirty {
                    values.push((ValueKey::Block(file, block), self.value_of(image, file, block)));
                }
            }
        }
        (since, values)
    }

    fn value_of(&self, image: &MetadataModel, file: usize, block: u64) -> u64 {
        image.files[file].map.get(&block).map_or(0, |disk| self.disk.value(*disk))
    }

    /// Records that a session is over for good: its uncommitted changes are lost.
    pub fn lost(&self, (session, since, values): Loss) {
        let Some(client) = self.of_session(session).filter(|_| self.over.borrow_mut().insert(session)) else { return };
        self.holders.forget(client.number);
        let mut history = self.history.borrow_mut();
        self.tell(|| format!("session {session} of client {} is over: {values:?}", client.number));
        for (key, value) in values {
            let cut = self.cuts.borrow().get(&key).copied().unwrap_or(0);
            if matches!(key, ValueKey::Block(..)) && value.max(cut) < history.floor(key) {
                self.break_with(format!("{key:?} was committed with {}, and is {value}", history.floor(key)));
            }
            history.add(usize::MAX, key, ValueAccess::Write(value), since);
            self.coverage.met("what was not committed is lost with its session");
        }
        history.close(client.number);
    }

    /// Records that a file is truncated: committed data behind the new end may be gone.
    pub fn cut(&self, file: usize, size: u64) {
        let value = self.next_value();
        self.cuts.borrow_mut().extend((size..self.blocks).map(|block| (ValueKey::Block(file, block), value)));
    }

    /// Checks that the data which a program synced are durable.
    pub fn check_synced(&self, file: usize, content: &FileContentModel) {
        let stored = self.journal.stored.borrow();
        for block in 0..self.blocks {
            let key = ValueKey::Block(file, block);
            let value = self.value_of(&stored.image, file, block);
            let cut = self.cuts.borrow().get(&key).copied().unwrap_or(0);
            let floor = self.history.borrow().floor(key);
            if value.max(cut) < floor || value == UNWRITTEN {
                self.break_with(format!("{key:?} of {content:?} is synced with {floor}, and {value} is durable"));
            }
        }
    }

    /// Runs to the end.
    pub fn run(self: &Rc<VolumeWorld>) {
        while self.stage.get() != VolumeRunStage::Done && self.broken.borrow().is_none() {
            if !self.step() {
                self.break_with("nothing happens any more".to_owned());
            }
            if self.now() > TIME_MAX_US {
                self.describe();
                self.break_with(format!("stuck in {:?}", self.stage.get()));
            }
            self.go_on();
        }
        if self.broken.borrow().is_none() {
            self.check();
        }
        self.executor.clear();
    }

    fn go_on(self: &Rc<VolumeWorld>) {
        match self.stage.get() {
            VolumeRunStage::Work if self.operations.get() >= OPERATIONS && self.faults.is_done() => {
                self.stage.set(VolumeRunStage::Settle);
                self.heal();
            }
            VolumeRunStage::Settle if self.programs.borrow().values().all(|count| *count == 0) => {
                self.stage.set(VolumeRunStage::Read);
                let client = self.client_of(0);
                if !client.ended.get() && !client.is_dead.get() {
                    let mount = MountModel { world: self.clone(), client };
                    mount.spawn(mount.clone().read_all());
                }
            }
            _ => {}
        }
    }

    /// Records the state of all clients, for a run that hangs.
    fn describe(&self) {
        for process in &self.processes {
            self.tell(|| process.describe());
        }
        for client in self.clients.borrow().iter().filter(|client| !client.is_dead.get()) {
            self.tell(|| {
                format!("client {} programs {:?} {}", client.number, self.programs.borrow(), client.describe())
            });
            for object in &client.objects {
                self.tell(|| object.describe());
            }
        }
    }

    fn check(&self) {
        let history = self.history.borrow();
        for (key, entries) in history.keys() {
            let entries: Vec<HistoryEntry> =
                entries.iter().filter(|entry| entry.invoked <= entry.returned).copied().collect();
            match explain(&entries, 0) {
                OrderVerdict::Explained => {}
                OrderVerdict::Broken => {
                    for entry in &entries {
                        self.tell(|| format!("{key:?}: {entry:?}"));
                    }
                    return self.break_with(format!("{key:?}: no order explains its {} calls", entries.len()));
                }
                OrderVerdict::Unknown => self.undecided.set(self.undecided.get() + 1),
            }
        }
    }
}

impl MountModel {
    /// Commits the client's writes from time to time.
    async fn commit_sometimes(self) {
        while self.failure().is_ok() {
            self.world.sleep((50 + self.world.below(100)) * MS).await;
            for object in 0..self.world.files {
                if let Some(_guard) = self.try_lock(object, super::file::ObjectLockKind::Write)
                    && self.commit_locked(object).await.is_err()
                {
                    self.object(object).content.borrow_mut().failed = true;
                }
            }
        }
    }
}
