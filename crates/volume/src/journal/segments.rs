//! Finds metadata segments and free segments in the table *space*.

use super::error::Error;
use crate::format::{EpochRecord, ExtentState, SPACE_START, SpaceRecord, TableKey, TableKind, VolumeLabel};
use crate::tables::MetadataTables;

/// Returns all metadata segments in *space*, for a disk of `blocks` blocks, with their epochs.
pub(super) fn metadata(tables: &MetadataTables, label: &VolumeLabel, blocks: u64) -> Result<Vec<(u64, u64)>, Error> {
    let mut segments = Vec::new();
    for (key, value) in tables.table(TableKind::Space) {
        let damaged = |error: crate::format::FormatError| Error::damaged(0, format!("space: {error}"));
        let TableKey::Space(block) = TableKey::decode(TableKind::Space, key).map_err(damaged)? else { continue };
        let space = SpaceRecord::decode(value).map_err(damaged)?;
        if block.checked_add(space.blocks).is_none_or(|end| end > blocks) {
            return Err(Error::damaged(block, format!("space has {} blocks here, beyond the disk", space.blocks)));
        }
        if space.state != ExtentState::Metadata || !block.is_multiple_of(label.segment_blocks) {
            continue;
        }
        let count = space.blocks / label.segment_blocks;
        segments.extend((0..count).map(|index| (block + index * label.segment_blocks, space.owner)));
    }
    Ok(segments)
}

/// Whether a segment is free, or becomes free because these incarnations are gone.
pub(super) fn has_room(
    tables: &MetadataTables,
    label: &VolumeLabel,
    blocks: u64,
    gone: &[[u8; 16]],
) -> Result<bool, Error> {
    let damaged = |error: crate::format::FormatError| Error::damaged(0, format!("space: {error}"));
    let is_gone = |epoch: u64| {
        let record = tables.get(&TableKey::Epoch(epoch)).and_then(|value| EpochRecord::decode(value).ok());
        record.is_some_and(|record| gone.contains(&record.incarnation))
    };
    let is_whole = |start: u64, end: u64| start.next_multiple_of(label.segment_blocks) + label.segment_blocks <= end;
    let mut at = SPACE_START;
    for (key, value) in tables.table(TableKind::Space) {
        let TableKey::Space(start) = TableKey::decode(TableKind::Space, key).map_err(damaged)? else { continue };
        let space = SpaceRecord::decode(value).map_err(damaged)?;
        if is_whole(at, start) || (space.state == ExtentState::QuarantinedMetadata && is_gone(space.owner)) {
            return Ok(true);
        }
        at = start.saturating_add(space.blocks);
    }
    Ok(is_whole(at, blocks))
}
