//! Metadata segments, as *space* names them.

use super::error::Error;
use crate::format::{ExtentState, Key, Label, Space, Table};
use crate::tables::Tables;

/// All metadata segments that *space* has on a disk of so many blocks, and their epochs.
pub(super) fn metadata(tables: &Tables, label: &Label, blocks: u64) -> Result<Vec<(u64, u64)>, Error> {
    let mut segments = Vec::new();
    for (key, value) in tables.table(Table::Space) {
        let damaged = |error: crate::format::FormatError| Error::damaged(0, format!("space: {error}"));
        let Key::Space(block) = Key::decode(Table::Space, key).map_err(damaged)? else { continue };
        let space = Space::decode(value).map_err(damaged)?;
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
