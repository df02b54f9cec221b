//! The leader's journal: start, appends, segments.
//!
//! Owns: the position of the next append, the list of segments that are needed, and the lease. Promises: when
//! [`append`](LeaderJournal::append) returns, the transactions are written and flushed, and the lease was still valid after the
//! flush. After a failure that leaves it unknown what is stored, the journal accepts nothing more. Leaves to others:
//! the meaning of operations, and the allocation of segments.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_block::SharedDevice;

use super::cursor::{AppendCursor, AppendPlan, ManifestPlace, end_of, first_block};
use super::disk::{BlockDisk, DiskPulse};
use super::error::Error;
use super::leader_lease::LeaderLease;
use super::leadership::{LeadershipClaim, StartOptions};
use super::replay::{ReplayResult, replay};
use super::segments::{has_room, metadata};
use super::transactions::groups;
use crate::format::{EpochHead, RunRecord, Transaction, VolumeLabel, epoch_block};
use crate::planted::{Bug, planted};
use crate::tables::MetadataTables;

/// The number of spare segments: an append of many transactions may need more than one.
const SPARE_SEGMENTS: usize = 2;
/// A checkpoint is due when the journal has filled this many segments, and has at least as many blocks as the runs.
const JOURNAL_SEGMENTS: u64 = 2;

/// The journal of the epoch that this process leads.
pub struct LeaderJournal {
    pub(super) disk: BlockDisk,
    pub(super) label: VolumeLabel,
    pub(super) lease: LeadershipClaim,
    pub(super) head: EpochHead,
    pub(super) cursor: AppendCursor,
    pub(super) spare: VecDeque<u64>,
    /// The journal segments from the newest manifest on, the oldest first.
    pub(super) journal: Vec<u64>,
    pub(super) runs: Vec<(u64, RunRecord)>,
    pub(super) run_segments: Vec<u64>,
    pub(super) manifest: ManifestPlace,
    /// The number of checkpoint pointers that were written.
    pub(super) pointers: u64,
    /// The number of blocks of the journal since the newest manifest.
    pub(super) journal_blocks: u64,
    pub(super) failed: Option<String>,
    /// A fixed time for appends, instead of the clock's.
    fixed_ns: Option<u64>,
    notes: Vec<String>,
}

impl LeaderJournal {
    /// Becomes leader, and reads all metadata.
    ///
    /// It waits for the lease of a leader that may still be alive; see [`StartOptions`].
    pub async fn start(device: SharedDevice, options: StartOptions) -> Result<(LeaderJournal, MetadataTables), Error> {
        let disk = BlockDisk::new(&device);
        let (label, mut notes) = disk.label().await?;
        let lease = LeadershipClaim::take(&disk, &label, &options).await?;
        let begun = async {
            let found = replay(&disk, &label).await?;
            begin(&disk, &label, &lease, &options, &found).await.map(|(head, cursor)| (found, head, cursor))
        };
        let (found, head, cursor) = match begun.await {
            Ok(begun) => begun,
            Err(error) => {
                // The epoch has no head, so resigning spares the next leader the wait for this lease.
                let _ = lease.resign().await;
                return Err(error);
            }
        };
        notes.extend(found.notes);
        let mut journal = found.journal;
        journal.push(head.journal_segment);
        let mut log = LeaderJournal {
            disk,
            label,
            lease,
            head,
            cursor,
            spare: VecDeque::new(),
            journal,
            runs: found.runs,
            run_segments: found.run_segments,
            manifest: found.manifest,
            pointers: 0,
            journal_blocks: found.journal_blocks,
            failed: None,
            fixed_ns: options.fixed_ns,
            notes,
        };
        log.renew().await?;
        Ok((log, found.tables))
    }

    /// Returns the label of the volume.
    pub fn label(&self) -> &VolumeLabel {
        &self.label
    }

    /// Returns the epoch that this process leads.
    pub fn epoch(&self) -> u64 {
        self.head.epoch
    }

    /// Returns the number of the next append.
    pub fn next_sequence(&self) -> u64 {
        self.cursor.sequence
    }

    /// Returns the server incarnations that were known to be gone at the start: segments of their epochs can be reused.
    pub fn gone(&self) -> &[[u8; 16]] {
        self.lease.gone()
    }

    /// Returns what was noticed during reading: torn appends, a bad copy of the label.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the leader's lease: whatever speaks for the leader asks it at the moment of sending.
    pub fn lease(&self) -> &LeaderLease {
        self.lease.term()
    }

    /// Returns the signs of life of the disk.
    pub fn pulse(&self) -> DiskPulse {
        self.disk.pulse()
    }

    /// Stores transactions in order, each completely or not at all; they are durable when this returns. Returns the
    /// number of the last append.
    ///
    /// *Errors*: [`Error::NoSegment`] and [`Error::Bounds`] before anything is written; after any other error, nothing
    /// more is accepted.
    pub async fn append(&mut self, transactions: Vec<Transaction>) -> Result<u64, Error> {
        self.store(transactions).await.map(|place| place.sequence)
    }

    /// Whether the journal needs another segment soon.
    pub fn wants_segment(&self) -> bool {
        self.spare.len() < SPARE_SEGMENTS
    }

    /// Whether the journal has a spare segment for when the present one is full.
    pub fn has_segment(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Whether less than half of the present segment is left.
    pub fn is_pressed(&self) -> bool {
        let end = end_of(&self.label, self.cursor.segment, self.cursor.number);
        2 * end.saturating_sub(self.cursor.block) < self.label.segment_blocks
    }

    /// Returns the number of segments that the journal has used since the newest checkpoint.
    pub fn segments(&self) -> usize {
        self.journal.len()
    }

    /// Gives the journal a segment, by its first block. The segment must be *metadata* of this epoch in the table
    /// *space*, and the append that records this must be stored.
    pub fn give_segment(&mut self, block: u64) {
        self.spare.push_back(block);
    }

    /// Whether the journal is so long that a checkpoint should be made.
    pub fn checkpoint_due(&self) -> bool {
        let runs: u64 = self.runs.iter().map(|(_, run)| run.blocks).sum();
        self.journal_blocks >= (JOURNAL_SEGMENTS * self.label.segment_blocks).max(runs)
    }

    /// Renews the lease. It must be called at least every third of `lease_ms`.
    ///
    /// *Errors*: [`Error::ConnectionLoss`] if another server took over; then nothing more is acknowledged.
    pub async fn renew(&mut self) -> Result<(), Error> {
        self.check()?;
        let renewed = self.lease.renew().await;
        self.latch(renewed)
    }

    /// Resigns, so that the next start begins at once.
    pub async fn resign(self) -> Result<(), Error> {
        self.check()?;
        self.lease.resign().await
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.failed {
            Some(failed) => Err(Error::Stopped(failed.clone())),
            None => Ok(()),
        }
    }

    /// Makes the journal accept nothing more if `result` is a failure.
    pub(super) fn latch<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.failed = Some(error.to_string());
            self.lease.term().end();
        }
        result
    }

    /// Marks the start of writes. If the caller's future is dropped during the writes, the mark stays, because it is
    /// unknown what is stored.
    pub(super) fn enter(&mut self) {
        self.failed = Some("a write was not waited for".to_owned());
    }

    /// Marks the end of writes: if they failed, nothing more is accepted.
    pub(super) fn leave<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        self.failed = None;
        self.latch(result)
    }

    /// Stores transactions; returns the position of the last append.
    pub(super) async fn store(&mut self, transactions: Vec<Transaction>) -> Result<ManifestPlace, Error> {
        self.check()?;
        let groups = groups(transactions);
        if groups.is_empty() {
            return Ok(ManifestPlace { sequence: self.cursor.sequence - 1, ..ManifestPlace::default() });
        }
        let plan =
            self.cursor.plan(&self.label, groups, &self.spare, self.manifest, self.fixed_ns.unwrap_or_else(now_ns))?;
        let place = plan.last;
        self.enter();
        let stored = self.write(plan).await;
        self.leave(stored)?;
        Ok(place)
    }

    async fn write(&mut self, plan: AppendPlan) -> Result<(), Error> {
        for (block, bytes) in &plan.frames {
            self.disk.write(*block, bytes).await?;
            self.journal_blocks += (bytes.len() / crate::format::BLOCK_BYTES) as u64;
        }
        if !planted(Bug::AcknowledgedBeforeFlush) {
            self.disk.flush().await?;
        }
        self.spare.drain(..plan.segments.len());
        self.journal.extend(plan.segments);
        self.cursor = AppendCursor { flushed: plan.cursor.sequence - 1, ..plan.cursor };
        self.hold().await
    }

    /// Checks that the lease is valid now.
    pub(super) async fn hold(&mut self) -> Result<(), Error> {
        if self.lease.term().is_due() {
            self.lease.renew().await?;
        }
        match self.lease.term().holds() {
            true => Ok(()),
            false => {
                let why = "the disk took longer than the lease".to_owned();
                Err(Error::Lost { epoch: self.head.epoch, why })
            }
        }
    }
}

/// Begins the epoch: writes its first segment, then its head. After that, writes of the previous leader have no effect.
async fn begin(
    disk: &BlockDisk,
    label: &VolumeLabel,
    lease: &LeadershipClaim,
    options: &StartOptions,
    found: &ReplayResult,
) -> Result<(EpochHead, AppendCursor), Error> {
    let epoch = lease.epoch();
    if found.head.epoch >= epoch {
        let what = format!("epoch {} began while epoch {epoch} was about to", found.head.epoch);
        return Err(Error::Lost { epoch, why: what });
    }
    // Everything that was read must be durable before a head declares it valid.
    disk.flush().await?;
    let segment = set_aside(found, label, disk.blocks(), epoch)?;
    is_last_start(found, label, disk.blocks(), lease, options)?;
    let sealed_sequence = found.next_sequence - 1;
    let sequence = found.next_sequence;
    let cursor = AppendCursor {
        epoch,
        segment,
        number: 0,
        block: segment + 1,
        sequence,
        chain: found.chain,
        flushed: sealed_sequence,
    };
    let previous = found.journal.last().copied().unwrap_or(0);
    let first = first_block(&cursor, 0, previous, found.manifest);
    disk.write(segment, &first.encode(label.volume, segment).map_err(Error::Bounds)?).await?;
    disk.flush().await?;
    let head = EpochHead {
        epoch,
        incarnation: options.incarnation,
        previous_epoch: found.head.epoch,
        sealed_sequence,
        sealed_chain: found.chain,
        journal_segment: segment,
        base_segment: found.journal.first().copied().unwrap_or(segment),
        created_s: options.created_s,
    };
    disk.write(epoch_block(epoch), &head.encode(label.volume).map_err(Error::Bounds)?).await?;
    disk.flush().await?;
    Ok((head, cursor))
}

/// Returns the segment that was set aside for an epoch.
fn set_aside(found: &ReplayResult, label: &VolumeLabel, blocks: u64, epoch: u64) -> Result<u64, Error> {
    let all = metadata(&found.tables, label, blocks)?;
    all.into_iter().find(|(_, owner)| *owner == epoch).map(|(block, _)| block).ok_or_else(|| {
        Error::Refused(format!("no segment is set aside for epoch {epoch}: the disk was full during too many starts"))
    })
}

/// Refuses the start if it would use the last segment that is set aside and could set none aside for the next start.
/// The start is allowed if an operator confirms that hosts are gone.
fn is_last_start(
    found: &ReplayResult,
    label: &VolumeLabel,
    blocks: u64,
    lease: &LeadershipClaim,
    options: &StartOptions,
) -> Result<(), Error> {
    let has_more = metadata(&found.tables, label, blocks)?.iter().any(|(_, owner)| *owner > lease.epoch());
    if has_more || !options.said_gone.is_empty() || has_room(&found.tables, label, blocks, lease.gone())? {
        return Ok(());
    }
    Err(Error::Refused(
        "the disk is full, and this would be the last start of a server: `nectary volume info DISK` names earlier \
         servers whose hosts may be gone; say so with `--confirm-gone HOST`, then remove files"
            .to_owned(),
    ))
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
