//! A seeded workload on a recorded volume: epochs with appends, new segments and checkpoints. A server ends by
//! resigning, by a crash, or by a pause after which it continues too late as the old leader.
//!
//! Owns: the operations, and the promises at each moment, which it records as marks. Promises: the appends of a
//! replaced leader do not count as transactions.

use nectary_block::{Recorder, Recording, SharedDevice};
use nectary_volume::format::{Mutation, MutationAction, TableKey, Transaction, TransactionKind};
use nectary_volume::journal::{Error, VolumeLayout, apply, format};
use nectary_volume::tables::MetadataTables;

use super::server::{
    AppendObserver, JournalServer, VOLUME_BYTES, first, format_options, gone, start_options, transaction,
};
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::random::SimulationRandom;

/// The mark of a volume that was created.
const FORMATTED: u64 = 3 << 32;
/// The mark of transactions that were begun. A mark contains the total number of transactions so far.
const BEGUN: u64 = 1 << 32;
/// The mark of transactions that were acknowledged.
const ACKNOWLEDGED: u64 = 2 << 32;

/// A recorded workload.
pub struct JournalWorkload {
    /// The seed.
    pub seed: u64,
    /// The recorded writes, on a disk that is empty at first.
    pub recording: Recording,
    /// The tables of the new volume.
    pub base: MetadataTables,
    /// All transactions, in order.
    pub transactions: Vec<Transaction>,
    /// Epochs that began.
    pub epochs: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Appends of an old leader after a new one took over.
    pub late: u64,
    /// Transactions so large that the journal continues in other segments.
    pub large: u64,
    /// The first error of the workload itself, without a crash.
    pub broken: Option<String>,
}

/// The promises at a moment, according to the marks before it.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalPromise {
    /// Whether the volume was created.
    pub is_formatted: bool,
    /// The number of transactions that were begun.
    pub begun: usize,
    /// The number of transactions that were acknowledged.
    pub acknowledged: usize,
}

impl JournalPromise {
    /// Reads the promises from marks.
    pub fn of(marks: &[u64]) -> JournalPromise {
        let mut promised = JournalPromise::default();
        for mark in marks {
            let count = (mark & u64::from(u32::MAX)) as usize;
            match mark & !u64::from(u32::MAX) {
                BEGUN => promised.begun = count,
                ACKNOWLEDGED => promised.acknowledged = count,
                _ => promised.is_formatted = true,
            }
        }
        promised
    }
}

/// The transactions so far, and their marks.
struct TransactionMarks {
    recorder: Recorder,
    transactions: Vec<Transaction>,
}

impl AppendObserver for TransactionMarks {
    fn begun(&mut self, transactions: &[Transaction]) {
        self.transactions.extend_from_slice(transactions);
        self.recorder.mark(BEGUN | self.transactions.len() as u64);
    }

    fn acknowledged(&mut self) {
        self.recorder.mark(ACKNOWLEDGED | self.transactions.len() as u64);
    }
}

/// Draws transactions with random changes of a few records.
pub fn changes(random: &mut SimulationRandom, is_large: bool) -> Vec<Transaction> {
    let count = if is_large { 60 } else { 1 + random.below(5) };
    (0..count).map(|_| change(random, is_large)).collect()
}

fn change(random: &mut SimulationRandom, is_large: bool) -> Transaction {
    let count = if is_large { 1 } else { 1 + random.below(4) };
    let mutations = (0..count).map(|_| {
        let (left, right) = (random.below(6), random.below(4));
        let key = match random.below(4) {
            0 => TableKey::Inode(left),
            1 => TableKey::Entry(left, right),
            2 => TableKey::Extent(left, right),
            _ => TableKey::Project(left as u32),
        };
        let length = if is_large { 60_000 } else { random.below(400) as usize };
        let action = match random.chance(25) && !is_large {
            true => MutationAction::Delete,
            false => MutationAction::Put(vec![random.bits() as u8; length]),
        };
        Mutation { table: key.table(), key: key.encode(), action }
    });
    let mutations = mutations.collect();
    match random.chance(50) {
        true => transaction(mutations),
        false => {
            let (session, number) = (random.below(3) + 1, random.below(8));
            let reply = vec![random.bits() as u8; random.below(40) as usize];
            Transaction { kind: TransactionKind::Operation, session, number, reply, mutations }
        }
    }
}

/// Runs a workload.
pub async fn run(seed: u64) -> JournalWorkload {
    let recorder = Recorder::new();
    let disk = SimulatedDisk::new(VOLUME_BYTES, DiskOptions { seed, late_percent: 0, ..DiskOptions::default() });
    let device = recorder.wrap(disk);
    let mut workload = JournalWorkload {
        seed,
        recording: Recording::default(),
        base: MetadataTables::default(),
        transactions: Vec::new(),
        epochs: 0,
        checkpoints: 0,
        late: 0,
        large: 0,
        broken: None,
    };
    let mut marks = TransactionMarks { recorder: recorder.clone(), transactions: Vec::new() };
    if let Err(error) = lives(&device, &mut workload, &mut marks).await {
        workload.broken = Some(format!("without a crash: {error}"));
    }
    workload.transactions = marks.transactions;
    workload.recording = recorder.take();
    workload
}

async fn lives(
    device: &SharedDevice,
    workload: &mut JournalWorkload,
    marks: &mut TransactionMarks,
) -> Result<(), Error> {
    let mut random = SimulationRandom::new(workload.seed);
    let base = &mut workload.base;
    let records = |layout: &VolumeLayout| {
        let records = first(layout);
        records.iter().for_each(|record| base.apply(record));
        records
    };
    format(device, &format_options(), records).await?;
    marks.recorder.mark(FORMATTED);
    let mut expected = workload.base.clone();
    let mut old: Option<JournalServer> = None;
    let mut ended = None;
    for life in 1..=2 + random.below(3) {
        let mut options = start_options(random.below(2) as u32, life);
        let by_lock = old.is_none();
        if by_lock {
            // All former servers have ended, so their sectors and segments may be used again.
            options.confirmed_gone = (1..life).map(|life| start_options(0, life).incarnation).collect();
        }
        let mut server = JournalServer::start(device.clone(), options).await?;
        workload.epochs += 1;
        if server.tables != expected {
            return Err(Error::Refused(format!("epoch {} found other tables", server.log.epoch())));
        }
        if let Some(late) = old.take() {
            workload.late += wake(late, &mut random).await?;
        } else if let Some(epoch) = ended {
            server.append(vec![transaction(vec![gone(epoch)])], marks).await?;
        }
        steps(&mut server, &mut random, workload, marks).await?;
        expected = server.tables.clone();
        ended = Some(server.log.epoch());
        match random.below(3) {
            0 => server.log.resign().await?,
            1 => drop(server),
            _ => old = Some(server),
        }
    }
    Ok(())
}

async fn steps(
    server: &mut JournalServer,
    random: &mut SimulationRandom,
    workload: &mut JournalWorkload,
    marks: &mut TransactionMarks,
) -> Result<(), Error> {
    for _ in 0..2 + random.below(5) {
        match random.below(10) {
            0..=2 => workload.checkpoints += u64::from(server.checkpoint(marks).await?),
            3 if workload.large < 4 && server.feed(marks).await? => {
                workload.large += 1;
                server.append(changes(random, true), marks).await?;
            }
            4 => server.log.renew().await?,
            _ => server.append(changes(random, false), marks).await?,
        }
    }
    Ok(())
}

/// Lets the old leader append after a new one took over; the append must fail. Returns the number of failed appends.
async fn wake(mut late: JournalServer, random: &mut SimulationRandom) -> Result<u64, Error> {
    match late.log.append(changes(random, false)).await {
        Err(Error::Lost { .. }) => Ok(1),
        Err(error) => Err(error),
        Ok(_) => Err(Error::Refused("an old leader acknowledged an append".to_owned())),
    }
}

/// Returns the tables after the first `count` transactions.
pub fn tables_after(workload: &JournalWorkload, count: usize) -> MetadataTables {
    let mut tables = workload.base.clone();
    for transaction in &workload.transactions[..count] {
        // A transaction that could not be applied was not acknowledged.
        let _ = apply(&mut tables, transaction);
    }
    tables
}
