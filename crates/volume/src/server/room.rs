//! Room for the journal: its next segments, checkpoints, segments for the next epochs.
//!
//! Owns: the decisions when to take a segment and when to make a checkpoint. Promises: as long as the journal can
//! continue without them, it does not take the segments that a checkpoint needs. A checkpoint for which there is no
//! room changes nothing and is tried again later, because removing files makes room. Leaves to others: the choice of
//! free segments (`metadata`).

use std::time::Duration;

use nectary_host::log::{LogLevel, write as log_line};
use tokio::time::Instant;

use super::ServerError;
use super::batch::AppendBatch;
use crate::format::{BLOCK_BYTES, Transaction};
use crate::journal::{Error, LeaderJournal};
use crate::metadata::MetadataImage;
use crate::protocol::{RefusalCode, ServerRefusal};

/// The time after which a checkpoint that had no room is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// The segment that the journal gets next, and the checkpoint that waits for room.
#[derive(Default)]
pub(super) struct JournalRoom {
    /// A segment for the journal, taken by an append that is not stored yet.
    taken: Option<u64>,
    /// Set if there was no room for a checkpoint: the time of the next attempt.
    again_at: Option<Instant>,
    /// When the server's own lease was last renewed.
    renewed: Option<Instant>,
}

impl JournalRoom {
    /// Whether a checkpoint waits for room.
    pub fn is_short(&self) -> bool {
        self.again_at.is_some()
    }

    /// Takes the next segment for the journal, if the journal wants one and one can be spared. Otherwise the journal
    /// continues in its present segments.
    pub fn feed(&mut self, image: &mut MetadataImage, log: &LeaderJournal) -> Option<Transaction> {
        if !log.wants_segment() || self.taken.is_some() {
            return None;
        }
        let (free, checkpoint) = (image.free_segments(), image.checkpoint_segments());
        let has_some = match log.has_segment() {
            true => free > checkpoint + 1,
            false => free > checkpoint || log.is_pressed(),
        };
        let (block, transaction) = has_some.then(|| image.take_segment(log.epoch()).ok()).flatten()?;
        self.taken = Some(block);
        Some(transaction)
    }

    /// Gives the journal its next segment, once the append that took the segment is stored.
    pub fn stored(&mut self, log: &mut LeaderJournal) {
        self.taken.take().into_iter().for_each(|block| log.give_segment(block));
    }

    /// Renews the server's lease when it is time.
    pub async fn renew(&mut self, log: &mut LeaderJournal) -> Result<(), Error> {
        let after = Duration::from_millis(u64::from(log.label().lease_ms) / 4);
        if self.renewed.is_none_or(|renewed| renewed.elapsed() >= after) {
            log.renew().await?;
            self.renewed = Some(Instant::now());
        }
        Ok(())
    }

    /// Tells the image whether a checkpoint would free segments.
    pub fn tell(&self, image: &mut MetadataImage, log: &LeaderJournal) {
        // A checkpoint frees all segments of the journal except the newest.
        image.set_journal_long(log.segments() > 1 && !self.is_short());
    }

    /// Takes the segments for a checkpoint, if one is due and there is room. It is due earlier while a request waits
    /// for space. The transactions of taking them are added to `next`.
    pub fn for_checkpoint(
        &mut self,
        image: &mut MetadataImage,
        log: &LeaderJournal,
        next: &mut AppendBatch,
        is_awaited: bool,
    ) -> Result<Option<Vec<u64>>, ServerRefusal> {
        let is_tight = is_awaited || image.free_segments() <= image.checkpoint_segments() + 1;
        let is_due = log.checkpoint_due() || (is_tight && log.segments() > 1);
        if !is_due {
            self.again_at = None;
            return Ok(None);
        }
        if self.again_at.is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        let mut segments = Vec::new();
        loop {
            // Taking a segment changes records that the checkpoint contains, so the number is computed again.
            let needed = log.segments_for_checkpoint(image.tables());
            if segments.len() >= needed {
                break;
            }
            // If the attempt cannot succeed, nothing is taken and no transaction is stored.
            if segments.is_empty() && image.free_segments() < needed as u64 {
                self.postpone(image);
                return Ok(None);
            }
            for _ in segments.len()..needed {
                match image.take_segment(log.epoch()) {
                    Ok((block, transaction)) => {
                        segments.push(block);
                        next.push(transaction);
                    }
                    Err(failure) if failure.code == RefusalCode::Full => {
                        self.postpone(image);
                        for block in segments {
                            next.push(image.retire_segment(block)?);
                        }
                        return Ok(None);
                    }
                    Err(failure) => return Err(failure),
                }
            }
        }
        self.again_at = None;
        Ok(Some(segments))
    }

    /// Notes that there is no room for a checkpoint now, and sets the time of the next attempt.
    pub fn postpone(&mut self, image: &MetadataImage) {
        if self.again_at.is_none() {
            let needed = image.checkpoint_segments();
            let remedy = remedy(image);
            log_line(
                LogLevel::Warning,
                "volume",
                format_args!("no room for a checkpoint, which needs {needed} segments; it is tried again: {remedy}"),
            );
        }
        self.again_at = Some(Instant::now() + AGAIN);
    }
}

/// Returns the reason why the server ends after this failure.
pub(super) fn why(error: Error, image: &MetadataImage) -> ServerError {
    match error {
        Error::NoSegment => ServerError::NoRoom(remedy(image)),
        error => error.into(),
    }
}

fn remedy(image: &MetadataImage) -> String {
    match (image.quarantined() * BLOCK_BYTES as u64) >> 20 {
        0 => "remove files".to_owned(),
        mib => format!(
            "remove files; and {mib} MiB are kept because nobody said that the hosts of earlier servers are gone: \
             `nectary volume info DISK` names them, `nectary volume serve DISK --confirm-gone HOST` says so"
        ),
    }
}
