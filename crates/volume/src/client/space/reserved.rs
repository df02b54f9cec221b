//! Blocks that a file has reserved with `fallocate`: the server maps them as unwritten.
//!
//! Owns: taking them before a write. The server grants them to the session, so a write to them needs no free space, and
//! nobody else writes to them. Promises: a block is mapped as unwritten again only if this session never wrote to it.
//! The next commit in the background does that, and each commit that gives a token back.
//! Leaves to others: the commit (`commit`).
//!
//! A sequential writer takes blocks ahead, twice as many each time, so it does not ask for each write.

use std::ops::Range;
use std::sync::Arc;

use crate::client::VolumeClient;
use crate::client::data::MAP_ROUNDS_MAX;
use crate::client::error::Error;
use crate::client::extents::ExtentPlace;
use crate::client::file::{ActiveFile, FileContent};
use crate::protocol::{GrantedSpace, MetadataOperation, MetadataQuestion, ServerAnswer};

/// The most blocks that one request takes; the server takes no more. *Units*: blocks.
const TAKEN_BLOCKS_MAX: u64 = 1 << 14;
/// The free blocks that the session keeps for overwriting once a file has reserved blocks: a block of which a part was
/// written and committed moves when the next part is written. *Units*: blocks.
const KEPT_BLOCKS: u64 = 16;

impl VolumeClient {
    /// Takes the reserved blocks of a range, which is about to be written. They are then among the uncommitted blocks.
    pub(in crate::client) async fn take_reserved(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        blocks: Range<u64>,
    ) -> Result<(), Error> {
        for _ in 0..MAP_ROUNDS_MAX {
            let Some(start) = self.first_reserved(file, content, blocks.clone()).await? else { return Ok(()) };
            self.keep_some_space().await;
            let ahead = match content.taken_to == start {
                true => (content.taken_ahead * 2).clamp(1, TAKEN_BLOCKS_MAX),
                false => 1,
            };
            let end = blocks.end.max(start + ahead);
            let taken = self.operate(MetadataOperation::TakeReserved { file: file.id, start, end }).await?;
            let ServerAnswer::Map { extents, answered_to } = taken else { return Err(Error::posix(libc::EIO)) };
            // If the server has no such blocks at `start`, the map that is known here is wrong.
            content.map.remove(start..start + 1);
            let mut spare = Vec::new();
            for extent in extents {
                let (first, count) = (extent.file_block, u64::from(extent.blocks));
                content.map.set(first..first + count, ExtentPlace::Hole);
                for piece in content.fresh.look(first..first + count) {
                    let block = extent.block + (piece.start - first);
                    match piece.place {
                        None => {
                            content.fresh.set(piece.start..piece.start + piece.blocks, ExtentPlace::Unwritten(block))
                        }
                        Some(_) => spare.push(GrantedSpace { block, blocks: piece.blocks }),
                    }
                }
            }
            self.put_space(spare).await;
            (content.taken_to, content.taken_ahead) = (answered_to.min(end), end - start);
        }
        Err(Error::posix(libc::EIO))
    }

    /// Returns the first block of a range that is reserved and not taken.
    async fn first_reserved(
        &self,
        file: &Arc<ActiveFile>,
        content: &mut FileContent,
        blocks: Range<u64>,
    ) -> Result<Option<u64>, Error> {
        for piece in content.fresh.look(blocks).into_iter().filter(|piece| piece.place.is_none()) {
            let range = piece.start..piece.start + piece.blocks;
            let mut mapped = content.map.look(range.clone());
            if mapped.iter().any(|piece| piece.place.is_none()) {
                self.load_map(file, content, range.clone()).await?;
                mapped = content.map.look(range);
            }
            let found = mapped.iter().find(|piece| matches!(piece.place, Some(ExtentPlace::Unwritten(_))));
            if let Some(found) = found {
                return Ok(Some(found.start));
            }
        }
        Ok(None)
    }

    /// Makes the session keep a few free blocks for overwriting, as long as there are any.
    pub(in crate::client) async fn keep_some_space(&self) {
        let mut pool = self.shared.space.lock().await;
        pool.kept = KEPT_BLOCKS;
        let missing = KEPT_BLOCKS.saturating_sub(pool.space.blocks());
        // On an error there are none now. The next overwriting asks again.
        if missing > 0
            && let Ok(ServerAnswer::Space(granted)) = self.ask(MetadataQuestion::Space { blocks: missing }).await
        {
            granted.into_iter().for_each(|granted| pool.space.add(granted));
        }
    }
}
