//! The users of clients: they submit operations, and every operation is recorded.

use std::ops::Range;

use bytes::Bytes;
use nectary_ram::mirror::{MirrorEvent, MirrorRequest};

use super::client::LogUserOperation;
use super::world::{LogRunStage, RamLogWorld};
use crate::ram::blocks::{BLOCK_BYTES, contents};
use crate::ram::network::{ClientId, MILLISECOND, RamNetworkEvent};

/// The largest number of blocks of an operation.
const OPERATION_BLOCKS_MAX: u64 = 6;

impl RamLogWorld {
    pub fn plan_submit(&mut self, client: ClientId) {
        let wait_us = match self.random.below(10) {
            0..5 => self.random.below(2 * MILLISECOND),
            _ => self.random.below(40 * MILLISECOND),
        };
        self.network.plan(self.now_us() + wait_us, RamNetworkEvent::Submit { client });
    }

    pub fn submit(&mut self, client: ClientId) {
        let state = &self.clients[client];
        if !state.is_alive || self.stage != LogRunStage::Work {
            return;
        }
        if state.paused_until_us > self.now_us() {
            return self.network.plan(state.paused_until_us, RamNetworkEvent::Submit { client });
        }
        if self.lies.scrub_us > 0 && self.random.chance(3) {
            self.lie();
        }
        self.numbers += 1;
        let number = self.numbers;
        let blocks = u64::from(self.shape.blocks);
        // Half of the operations are on the same few blocks.
        let meets = !self.is_full && self.random.chance(50);
        let first = if meets { self.random.below(blocks.min(6)) } else { self.random.below(blocks) };
        let count = 1 + self.random.below(OPERATION_BLOCKS_MAX).min(self.random.below(OPERATION_BLOCKS_MAX));
        let range = first as u32..(first + count).min(blocks) as u32;
        let (offset, bytes) = (first * BLOCK_BYTES as u64, range.len() as u64 * BLOCK_BYTES as u64);
        let force = self.random.chance(15);
        let (number, request, is_forced) = match self.random.below(100) {
            kind @ 0..62 if kind < 50 || self.is_full => {
                let data: Vec<u8> = range.clone().flat_map(|block| contents(number, u64::from(block))).collect();
                (number, MirrorRequest::Write { offset, data: Bytes::from(data), force }, force)
            }
            50..55 => (0, MirrorRequest::WriteZeroes { offset, bytes, force }, force),
            55..62 => (0, MirrorRequest::Trim { offset, bytes }, false),
            62..92 => return self.submit_read(client, range),
            _ => {
                let is_change = |pending: &LogUserOperation| matches!(pending, LogUserOperation::Change { .. });
                if self.clients[client].pending.values().any(is_change) {
                    self.coverage.met("flush beside a write", 1);
                }
                let began = self.values.tick();
                return self.hand_in(client, LogUserOperation::Flush { began }, MirrorRequest::Flush);
            }
        };
        if self.clients[client].changes(&range) {
            self.coverage.met("overlapping writes", 1);
        }
        let place = self.values.begin(client, range.clone(), number);
        let pending = LogUserOperation::Change { place, blocks: range, is_forced, is_write: number != 0 };
        self.hand_in(client, pending, request);
    }

    pub fn submit_read(&mut self, client: ClientId, blocks: Range<u32>) {
        let offset = u64::from(blocks.start) * BLOCK_BYTES as u64;
        let request = MirrorRequest::Read { offset, bytes: blocks.len() as u64 * BLOCK_BYTES as u64 };
        let began = self.values.tick();
        self.hand_in(client, LogUserOperation::Read { blocks, began }, request);
    }

    fn hand_in(&mut self, client: ClientId, pending: LogUserOperation, request: MirrorRequest) {
        self.operations += 1;
        let state = &mut self.clients[client];
        let id = state.next_id;
        state.next_id += 1;
        state.pending.insert(id, pending);
        self.step(client, MirrorEvent::Submitted { id, request });
    }
}
