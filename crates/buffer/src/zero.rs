//! Executes discards and zeroings, ordered with the reads, writes and write-backs of the same blocks.
//!
//! Promises: a zeroing takes effect when it ends: its range then reads as zeroes, whatever versions memory had before.
//! A discard leaves dirty blocks unchanged, even those written during the discard. A discard permits that such a block
//! keeps its bytes.

use std::sync::Arc;

use nectary_block::{DeviceOperation, Error, IoContext};

use crate::names::block_of;
use crate::planted::{Bug, planted};
use crate::shared::{FileRange, IoTicket, SharedCache};
use crate::state::CacheState;

impl SharedCache {
    /// Discards or zeroes a range of the source, and then its blocks in memory.
    pub(crate) async fn zero(self: Arc<SharedCache>, span: FileRange, operation: DeviceOperation) -> Result<(), Error> {
        let _operation = self.operations.acquire().await;
        let mut ticket = IoTicket::draw(&self, &mut self.lock(), span.ids());
        ticket.granted().await;
        let context = IoContext::default();
        let result = match operation {
            DeviceOperation::Discard => span.source.discard(span.offset, span.length, context).await,
            _ => span.source.write_zeroes(span.offset, span.length, context).await,
        };
        let mut state = self.lock();
        for id in state.present(&span.ids()) {
            self.zeroed(&mut state, &span, id, operation, result.is_ok());
        }
        drop(state);
        self.changed.notify_waiters();
        result
    }

    fn zeroed(&self, state: &mut CacheState, span: &FileRange, id: u64, operation: DeviceOperation, is_good: bool) {
        let Some(entry) = state.entries.get(&id) else { return };
        if entry.frame().is_none() {
            // The block's read takes place after this operation.
            return;
        }
        if !is_good || operation == DeviceOperation::Discard {
            if entry.dirty.is_none() || (is_good && planted(Bug::DiscardDropsWrite)) {
                state.forget(id);
            }
            return;
        }
        let block = block_of(id);
        let part = span.part(block, self.block_bytes);
        if span.is_whole(block, &part, self.block_bytes) {
            state.forget(id);
        } else {
            state.change(id, part, self.block_bytes, || None, |into| into.fill(0));
        }
    }
}
