//! Checkpoints: all tables as runs, then a manifest, then the pointer to the manifest.
//!
//! Promises: a manifest is written after its runs are flushed, the pointer after the manifest is flushed, and no
//! segment is reported as free before the pointer is flushed.

use super::cursor::POINTERS;
use super::error::Error;
use super::log::LeaderJournal;
use super::run::{RunFrames, RunWriter, segment_of, segments_needed};
use super::segments::metadata;
use crate::format::{
    BLOCK_BYTES, Mutation, MutationAction, SegmentHeader, SegmentUse, TableKey, Transaction, TransactionKind,
};
use crate::planted::{Bug, planted};
use crate::tables::MetadataTables;

impl LeaderJournal {
    /// Returns how many segments a checkpoint of these tables needs.
    pub fn segments_for_checkpoint(&self, tables: &MetadataTables) -> usize {
        segments_needed(tables, self.label.segment_blocks)
    }

    /// Writes a checkpoint of the tables, after all appends so far, into segments that are *metadata* of this epoch in
    /// *space*. Returns the metadata segments in *space* that are not needed any more, including segments that this
    /// checkpoint did not use and segments that were taken but not given to the journal yet. Segments of this epoch,
    /// and of epochs whose hosts are known to be gone, are free. The caller must quarantine all others, including those
    /// of an epoch that never had a head.
    ///
    /// *Errors*: [`Error::NoSegment`] if there are too few segments; the previous checkpoint is then still complete.
    pub async fn checkpoint(&mut self, tables: &MetadataTables, segments: Vec<u64>) -> Result<Vec<u64>, Error> {
        self.check()?;
        if segments.len() < self.segments_for_checkpoint(tables) {
            return Err(Error::NoSegment);
        }
        self.enter();
        let written = self.write_runs(tables, &segments).await;
        let (runs, used) = self.leave(written)?;
        let put = |(number, run): &(u64, crate::format::RunRecord)| {
            let key = TableKey::Run(*number);
            Mutation { table: key.table(), key: key.encode(), action: MutationAction::Put(run.encode()) }
        };
        let mutations = runs.iter().rev().map(put).collect();
        let (kind, reply) = (TransactionKind::Manifest, Vec::new());
        let manifest = Transaction { kind, session: 0, number: 0, reply, mutations };
        self.manifest = self.store(vec![manifest]).await?;
        (self.runs, self.run_segments) = (runs.into_iter().rev().collect(), used);
        self.journal_blocks = 0;
        if !planted(Bug::PointerSkipped) {
            self.enter();
            let pointed = self.point().await;
            self.leave(pointed)?;
        }
        let start = segment_of(&self.label, self.manifest.block);
        let from = self.journal.iter().rposition(|segment| *segment == start).unwrap_or(0);
        self.journal.drain(..from);
        self.not_needed(tables)
    }

    /// Writes the runs and flushes them.
    async fn write_runs(
        &mut self,
        tables: &MetadataTables,
        segments: &[u64],
    ) -> Result<(Vec<(u64, crate::format::RunRecord)>, Vec<u64>), Error> {
        let (disk, label) = (self.disk.clone(), self.label.clone());
        let number = self.runs.iter().map(|(number, _)| number.saturating_add(1)).max().unwrap_or(1);
        let writing =
            RunWriter { label: &label, epoch: self.head.epoch, number, replay_sequence: self.cursor.sequence };
        let mut frames = RunFrames::new(&writing, tables, segments);
        loop {
            let placed = frames.next()?;
            if placed.is_empty() {
                break;
            }
            for (block, bytes) in placed {
                disk.write(block, &bytes).await?;
            }
            self.hold().await?;
        }
        let (used, runs) = (frames.used().to_vec(), frames.runs);
        if !planted(Bug::ManifestBeforeRuns) {
            disk.flush().await?;
        }
        Ok((runs, used))
    }

    /// Writes a pointer to the newest manifest.
    async fn point(&mut self) -> Result<(), Error> {
        self.pointers += 1;
        let segment = self.head.journal_segment;
        let block = segment + self.label.segment_blocks - POINTERS + self.pointers % POINTERS;
        let pointer = SegmentHeader {
            epoch: self.head.epoch,
            segment_use: SegmentUse::Journal,
            number: self.pointers,
            previous: segment_of(&self.label, self.manifest.block),
            first_sequence: self.manifest.sequence,
            manifest_sequence: self.manifest.sequence,
            manifest_block: self.manifest.block,
            chain: self.manifest.chain,
            manifest_chain: self.manifest.chain,
        };
        let bytes = pointer.encode(self.label.volume, block).map_err(Error::Bounds)?;
        debug_assert_eq!(bytes.len(), BLOCK_BYTES);
        self.disk.write(block, &bytes).await?;
        self.disk.flush().await?;
        self.hold().await
    }

    /// Returns the metadata segments of *space* that nothing refers to any more.
    fn not_needed(&self, tables: &MetadataTables) -> Result<Vec<u64>, Error> {
        let needed = |block: &u64| {
            self.journal.contains(block)
                || self.run_segments.contains(block)
                || self.spare.contains(block)
                || *block == self.head.journal_segment
        };
        let all = metadata(tables, &self.label, self.disk.blocks())?.into_iter();
        Ok(all.filter(|(block, owner)| *owner <= self.head.epoch && !needed(block)).map(|(block, _)| block).collect())
    }
}
