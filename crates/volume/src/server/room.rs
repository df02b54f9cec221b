//! Room for the journal: its next segments, checkpoints, segments for the next epochs.
//!
//! Owns: when segments are taken, and when a checkpoint is made. Promises: the journal leaves a checkpoint the segments
//! that it needs, as long as it can go on without them. A checkpoint without room changes nothing and is tried again:
//! removing files makes room. Leaves to others: which segments are free (`metadata`).

use std::time::Duration;

use nectary_host::log::{Level, write as log_line};
use tokio::time::Instant;

use super::ServerError;
use super::batch::Batch;
use crate::format::{BLOCK_BYTES, Transaction};
use crate::journal::{Error, Log};
use crate::metadata::Image;
use crate::protocol::{Code, Failure};

/// When a checkpoint without room is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What the journal was given, and what it waits for.
#[derive(Default)]
pub(super) struct Room {
    /// A segment that was taken by an append that is not stored yet.
    taken: Option<u64>,
    /// There was no room for a checkpoint; the next attempt is then.
    again_at: Option<Instant>,
    /// When the server's own lease was last renewed.
    renewed: Option<Instant>,
}

impl Room {
    /// Whether a checkpoint waits for room.
    pub fn is_short(&self) -> bool {
        self.again_at.is_some()
    }

    /// Takes the next segment of the journal, if it wants one and there is one to spare. Without room the journal
    /// continues in its present segments.
    pub fn feed(&mut self, image: &mut Image, log: &Log) -> Option<Transaction> {
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

    /// Everything that was applied is stored: the journal may use what was taken for it.
    pub fn stored(&mut self, log: &mut Log) {
        self.taken.take().into_iter().for_each(|block| log.give_segment(block));
    }

    /// Renews the server's lease when it is time.
    pub async fn renew(&mut self, log: &mut Log) -> Result<(), Error> {
        let after = Duration::from_millis(u64::from(log.label().lease_ms) / 4);
        if self.renewed.is_none_or(|renewed| renewed.elapsed() >= after) {
            log.renew().await?;
            self.renewed = Some(Instant::now());
        }
        Ok(())
    }

    /// Takes the segments of a checkpoint, if one is due and has room. What it does is added to `next`.
    pub fn for_checkpoint(
        &mut self,
        image: &mut Image,
        log: &Log,
        next: &mut Batch,
    ) -> Result<Option<Vec<u64>>, Failure> {
        // A checkpoint frees the journal's segments before the newest one.
        let is_tight = image.free_segments() <= image.checkpoint_segments() + 1 && log.segments() > 1;
        if !log.checkpoint_due() && !is_tight {
            self.again_at = None;
            return Ok(None);
        }
        if self.again_at.is_some_and(|at| Instant::now() < at) {
            return Ok(None);
        }
        let mut segments = Vec::new();
        loop {
            // Records of the segments that are taken belong to the checkpoint.
            let needed = log.segments_for_checkpoint(image.tables());
            if segments.len() >= needed {
                break;
            }
            // Nothing is taken, and stored, for an attempt that cannot succeed.
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
                    Err(failure) if failure.code == Code::Full => {
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

    /// There is no room for a checkpoint now.
    pub fn postpone(&mut self, image: &Image) {
        if self.again_at.is_none() {
            let needed = image.checkpoint_segments();
            let remedy = remedy(image);
            log_line(
                Level::Warning,
                "volume",
                format_args!("no room for a checkpoint, which needs {needed} segments; it is tried again: {remedy}"),
            );
        }
        self.again_at = Some(Instant::now() + AGAIN);
    }
}

/// Why the server ends after this failure.
pub(super) fn why(error: Error, image: &Image) -> ServerError {
    match error {
        Error::NoSegment => ServerError::NoRoom(remedy(image)),
        error => error.into(),
    }
}

fn remedy(image: &Image) -> String {
    match (image.quarantined() * BLOCK_BYTES as u64) >> 20 {
        0 => "remove files".to_owned(),
        mib => format!(
            "remove files; and {mib} MiB are kept because nobody said that the hosts of earlier servers are gone: \
             `nectary volume info DISK` names them, `nectary volume serve DISK --confirm-gone HOST` says so"
        ),
    }
}
