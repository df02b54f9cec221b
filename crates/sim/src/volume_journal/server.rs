//! A small server: a journal, its tables, and the segments of a volume.
//!
//! Owns: the choice of free segments. It depends on the *space* table alone, so each crash state decides for itself
//! which segments are free. A checkpoint frees an unused segment as soon as that is allowed: if the segment's epoch is
//! the current one, or if no server of that epoch is left.

use nectary_block::SharedDevice;
use nectary_volume::format::{
    ExtentState, Mutation, MutationAction, SPACE_START, SpaceRecord, TableKey, TableKind, Transaction, TransactionKind,
    VolumeIdentity,
};
use nectary_volume::journal::{Error, FormatOptions, LeaderJournal, StartOptions, VolumeLayout, apply};
use nectary_volume::tables::MetadataTables;

/// Size of a segment. *Units*: blocks.
pub const SEGMENT_BLOCKS: u64 = 2048;
/// The size of the smallest volume. *Units*: bytes.
pub const VOLUME_BYTES: u64 = 256 << 20;
/// Size of the volume. *Units*: blocks.
const VOLUME_BLOCKS: u64 = VOLUME_BYTES / 4096;
/// The inode that stands for the first epoch whose segments may be used again; later epochs have the next inodes.
const GONE: u64 = 1 << 40;

/// The settings of the tests' volumes.
pub fn format_options() -> FormatOptions {
    FormatOptions {
        name: "simulated".to_owned(),
        segment_blocks: SEGMENT_BLOCKS,
        lease_ms: 1000,
        drift_per_mille: 10,
        force: false,
        volume: VolumeIdentity([5; 16]),
        hash_key: [6; 16],
        created_s: 1,
    }
}

/// Returns the options with which a server starts.
pub fn start_options(server: u32, incarnation: u64) -> StartOptions {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&incarnation.to_le_bytes());
    bytes[8] = 1;
    StartOptions {
        server,
        host: format!("host{server}"),
        incarnation: bytes,
        fixed_ns: Some(1),
        ..StartOptions::default()
    }
}

/// Returns the first records of a volume: the segments that are reserved for the journal.
pub fn first(layout: &VolumeLayout) -> Vec<Mutation> {
    layout.segments.iter().map(|segment| space(segment.block, segment.epoch)).collect()
}

fn space(block: u64, epoch: u64) -> Mutation {
    let space = SpaceRecord { blocks: SEGMENT_BLOCKS, state: ExtentState::Metadata, owner: epoch, since: 1 };
    Mutation {
        table: TableKind::Space,
        key: TableKey::Space(block).encode(),
        action: MutationAction::Put(space.encode()),
    }
}

/// Makes a transaction of the server.
pub fn transaction(mutations: Vec<Mutation>) -> Transaction {
    Transaction { kind: TransactionKind::Server, session: 0, number: 0, reply: Vec::new(), mutations }
}

/// Returns the record which says that no server of an epoch is left.
pub fn gone(epoch: u64) -> Mutation {
    let key = TableKey::Inode(GONE + epoch);
    Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(Vec::new()) }
}

/// Observes each append.
pub trait AppendObserver {
    /// These transactions are about to be appended.
    fn begun(&mut self, transactions: &[Transaction]);
    /// The transactions of the last `begun` were acknowledged.
    fn acknowledged(&mut self);
}

/// An observer that ignores everything.
impl AppendObserver for () {
    fn begun(&mut self, _: &[Transaction]) {}
    fn acknowledged(&mut self) {}
}

/// A server.
pub struct JournalServer {
    /// Its journal.
    pub log: LeaderJournal,
    /// Its tables.
    pub tables: MetadataTables,
}

impl JournalServer {
    /// Becomes leader.
    pub async fn start(device: SharedDevice, options: StartOptions) -> Result<JournalServer, Error> {
        let (log, tables) = LeaderJournal::start(device, options).await?;
        Ok(JournalServer { log, tables })
    }

    /// Appends transactions, and applies those that were acknowledged.
    pub async fn append(
        &mut self,
        transactions: Vec<Transaction>,
        observer: &mut impl AppendObserver,
    ) -> Result<(), Error> {
        observer.begun(&transactions);
        self.log.append(transactions.clone()).await?;
        observer.acknowledged();
        for transaction in &transactions {
            apply(&mut self.tables, transaction).map_err(|error| Error::Refused(error.to_string()))?;
        }
        Ok(())
    }

    /// Takes free segments, if there are enough.
    pub async fn take(&mut self, count: usize, observer: &mut impl AppendObserver) -> Result<Option<Vec<u64>>, Error> {
        let is_used = |block: &u64| self.tables.get(&TableKey::Space(*block)).is_some();
        let blocks = (SPACE_START..VOLUME_BLOCKS).step_by(SEGMENT_BLOCKS as usize);
        let free: Vec<u64> = blocks.filter(|block| !is_used(block)).take(count).collect();
        if free.len() < count {
            return Ok(None);
        }
        if count > 0 {
            let epoch = self.log.epoch();
            let mutations = free.iter().map(|block| space(*block, epoch)).collect();
            self.append(vec![transaction(mutations)], observer).await?;
        }
        Ok(Some(free))
    }

    /// Gives the journal the segments that it wants; returns whether there were enough.
    pub async fn feed(&mut self, observer: &mut impl AppendObserver) -> Result<bool, Error> {
        while self.log.wants_segment() {
            let Some(taken) = self.take(1, observer).await? else { return Ok(false) };
            taken.into_iter().for_each(|block| self.log.give_segment(block));
        }
        Ok(true)
    }

    /// Writes a checkpoint and frees unused segments; returns whether there was room for it.
    pub async fn checkpoint(&mut self, observer: &mut impl AppendObserver) -> Result<bool, Error> {
        // Each segment that is taken needs one more record.
        let count = self.log.segments_for_checkpoint(&self.tables) + 1;
        let Some(segments) = self.take(count, observer).await? else { return Ok(false) };
        let unneeded = self.log.checkpoint(&self.tables, segments).await?;
        let freed: Vec<Mutation> = unneeded
            .into_iter()
            .filter(|block| self.may_free(*block))
            .map(|block| {
                let key = TableKey::Space(block);
                Mutation { table: key.table(), key: key.encode(), action: MutationAction::Delete }
            })
            .collect();
        if !freed.is_empty() {
            self.append(vec![transaction(freed)], observer).await?;
        }
        Ok(true)
    }

    fn may_free(&self, block: u64) -> bool {
        let space = self.tables.get(&TableKey::Space(block)).map(SpaceRecord::decode);
        let Some(Ok(space)) = space else { return false };
        space.owner == self.log.epoch() || self.tables.get(&TableKey::Inode(GONE + space.owner)).is_some()
    }
}
