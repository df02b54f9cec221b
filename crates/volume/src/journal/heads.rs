//! The heads of epochs, and which epoch is the current one.

use super::disk::BlockDisk;
use super::error::Error;
use crate::format::{BLOCK_BYTES, EPOCH_HEADS, EPOCH_START, EpochHead, VolumeLabel};

/// Reads all valid heads, the oldest first.
pub(super) async fn read(disk: &BlockDisk, label: &VolumeLabel) -> Result<Vec<EpochHead>, Error> {
    let bytes = disk.read(EPOCH_START, EPOCH_HEADS).await?;
    let blocks = bytes.chunks_exact(BLOCK_BYTES).zip(EPOCH_START..);
    let mut heads: Vec<EpochHead> =
        blocks.filter_map(|(bytes, block)| EpochHead::decode(label.volume, block, bytes).ok()).collect();
    heads.sort_by_key(|head| head.epoch);
    Ok(heads)
}

/// Returns the current head.
pub(super) fn current(heads: &[EpochHead]) -> Result<EpochHead, Error> {
    heads.last().copied().ok_or_else(|| Error::damaged(EPOCH_START, "there is no valid head of an epoch"))
}

/// Returns the heads from `epoch` to the current one, the oldest first. Each head names the previous epoch.
pub(super) fn line(heads: &[EpochHead], epoch: u64) -> Result<Vec<EpochHead>, Error> {
    let mut line = vec![current(heads)?];
    while let Some(newer) = line.last().filter(|head| head.epoch > epoch) {
        let older = heads.iter().find(|head| head.epoch == newer.previous_epoch);
        let what =
            || format!("the head of epoch {} is missing, which epoch {} seals", newer.previous_epoch, newer.epoch);
        line.push(*older.ok_or_else(|| Error::damaged(EPOCH_START, what()))?);
    }
    line.reverse();
    match line.first() {
        Some(head) if head.epoch == epoch => Ok(line),
        _ => Err(Error::damaged(EPOCH_START, format!("the current epoch does not follow epoch {epoch}"))),
    }
}
