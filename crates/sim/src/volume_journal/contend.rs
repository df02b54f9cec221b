//! Several servers contend for one disk. Each server can pause in the middle of any operation, also for longer than its
//! lease.
//!
//! Checks: no epoch has two leaders; every acknowledged record is on the volume at the end; no server acknowledges
//! anything after a server has acknowledged something in a later epoch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{DeviceRequest, Filter, IoFuture, SharedDevice};
use nectary_volume::format::{Mutation, MutationAction, TableKey};
use nectary_volume::journal::{Error, format, read};

use super::server::{JournalServer, VOLUME_BYTES, first, format_options, start_options, transaction};
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::random::SimulationRandom;

/// The number of servers of a run.
const SERVERS: u32 = 3;
/// The number of starts of each server.
const STARTS: u64 = 4;
/// The longest pause. *Units*: milliseconds.
const PAUSE_MS_MAX: u64 = 4000;

/// The counts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentionReport {
    /// Starts that became leader.
    pub led: u64,
    /// Starts that found a live leader, or gave up.
    pub refused: u64,
    /// Leaders that noticed that they had been replaced.
    pub lost: u64,
    /// Appends that were acknowledged.
    pub acknowledged: u64,
    /// The first violation, in words.
    pub broken: Option<String>,
}

/// A filter that delays operations, sometimes by seconds.
struct PauseFilter {
    inner: SharedDevice,
    random: Mutex<SimulationRandom>,
    percent: u64,
}

impl Filter for PauseFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("paused({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        _: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (before, after) = {
            let mut random = lock(&self.random);
            let mut delay = |percent| {
                let most = if random.chance(percent) { PAUSE_MS_MAX } else { 4 };
                Duration::from_millis(random.below(most))
            };
            (delay(self.percent), delay(self.percent))
        };
        let inner = self.inner.clone();
        Box::pin(async move {
            tokio::time::sleep(before).await;
            let result = operation(&inner).await;
            tokio::time::sleep(after).await;
            result
        })
    }
}

/// What the servers of a run report.
#[derive(Default)]
struct ContentionState {
    contention: ContentionReport,
    leaders: BTreeMap<u64, u64>,
    /// Records that were acknowledged.
    records: Vec<TableKey>,
    /// The newest epoch in which something was acknowledged.
    newest: u64,
}

/// Runs a seed.
pub async fn run(seed: u64) -> ContentionReport {
    let disk: SharedDevice =
        SimulatedDisk::new(VOLUME_BYTES, DiskOptions { seed, late_percent: 0, ..DiskOptions::default() });
    let shared = Arc::new(Mutex::new(ContentionState::default()));
    if let Err(error) = format(&disk, &format_options(), first).await {
        lock(&shared).contention.broken = Some(format!("format: {error}"));
    }
    let mut random = SimulationRandom::new(seed);
    let servers: Vec<_> = (0..SERVERS)
        .map(|number| {
            let random = SimulationRandom::new(random.bits());
            tokio::spawn(serve(disk.clone(), number, random, shared.clone()))
        })
        .collect();
    for server in servers {
        let _ = server.await;
    }
    let found = read(&disk).await;
    let mut shared = lock(&shared);
    let wrong = match found {
        Err(error) => Some(format!("the volume cannot be read: {error}")),
        Ok(volume) => {
            let missing = shared.records.iter().find(|key| volume.tables.get(key).is_none());
            missing.map(|key| format!("{key:?} was acknowledged and is gone"))
        }
    };
    let mut contention = std::mem::take(&mut shared.contention);
    contention.broken = contention.broken.or(wrong);
    contention
}

async fn serve(disk: SharedDevice, number: u32, mut random: SimulationRandom, shared: Arc<Mutex<ContentionState>>) {
    for start in 0..STARTS {
        tokio::time::sleep(Duration::from_millis(random.below(3000))).await;
        let percent = random.below(4);
        let delays = Mutex::new(SimulationRandom::new(random.bits()));
        let device: SharedDevice = Arc::new(PauseFilter { inner: disk.clone(), random: delays, percent });
        let incarnation = u64::from(number) * STARTS + start + 1;
        match JournalServer::start(device, start_options(number, incarnation)).await {
            Ok(server) => lead(server, incarnation, &mut random, &shared).await,
            Err(error) => tell(&error, &shared),
        }
    }
}

/// Counts an expected error of a server, and reports any other.
fn tell(error: &Error, shared: &Mutex<ContentionState>) {
    let contention = &mut lock(shared).contention;
    match error {
        Error::Lost { .. } => contention.lost += 1,
        Error::Led { .. } | Error::Refused(_) => contention.refused += 1,
        error => contention.broken = contention.broken.take().or(Some(error.to_string())),
    }
}

async fn lead(
    mut server: JournalServer,
    incarnation: u64,
    random: &mut SimulationRandom,
    shared: &Mutex<ContentionState>,
) {
    let epoch = server.log.epoch();
    {
        let mut shared = lock(shared);
        shared.contention.led += 1;
        if let Some(other) = shared.leaders.insert(epoch, incarnation) {
            let what = format!("epoch {epoch} was led by incarnations {other} and {incarnation}");
            shared.contention.broken = shared.contention.broken.take().or(Some(what));
        }
    }
    for step in 0..2 + random.below(12) {
        let key = TableKey::Inode(incarnation << 16 | step);
        let mutation = Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(vec![1]) };
        let done = match random.below(4) {
            0 => server.log.renew().await,
            1 => {
                tokio::time::sleep(Duration::from_millis(random.below(700))).await;
                Ok(())
            }
            _ => server.append(vec![transaction(vec![mutation])], &mut LeaderRecorder { shared, epoch, key }).await,
        };
        if let Err(error) = done {
            return tell(&error, shared);
        }
    }
    if random.chance(50)
        && let Err(error) = server.log.resign().await
    {
        tell(&error, shared);
    }
}

/// Records the acknowledged appends of a leader.
struct LeaderRecorder<'a> {
    shared: &'a Mutex<ContentionState>,
    epoch: u64,
    key: TableKey,
}

impl super::server::AppendObserver for LeaderRecorder<'_> {
    fn begun(&mut self, _: &[nectary_volume::format::Transaction]) {}

    fn acknowledged(&mut self) {
        let mut shared = lock(self.shared);
        shared.contention.acknowledged += 1;
        shared.records.push(self.key.clone());
        if shared.newest > self.epoch {
            let what = format!("epoch {} acknowledged after epoch {}", self.epoch, shared.newest);
            shared.contention.broken = shared.contention.broken.take().or(Some(what));
        }
        shared.newest = shared.newest.max(self.epoch);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
