//! The users of clients: they submit operations, and every operation is recorded.
//!
//! Owns: the choice and the submission of operations. Leaves to others: the record, and the allowed answers (the
//! layouts).

use std::ops::Range;

use bytes::Bytes;
use nectary_ram::group::{MachineEvent, UserRequest};

use super::blocks::{BLOCK_BYTES, contents};
use super::client::RamUserOperation;
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld, SimulatedLayout};

/// The largest number of blocks of an operation.
const OPERATION_BLOCKS_MAX: u64 = 6;

impl<L: SimulatedLayout> RamWorld<L> {
    pub fn plan_submit(&mut self, client: ClientId) {
        let wait_us = match self.random.below(10) {
            0..5 => self.random.below(2 * MILLISECOND),
            _ => self.random.below(40 * MILLISECOND),
        };
        self.network.plan(self.now_us() + wait_us, RamNetworkEvent::Submit { client });
    }

    pub fn submit(&mut self, client: ClientId) {
        let state = &self.clients[client];
        if !state.is_alive || self.stage != RamRunStage::Work {
            return;
        }
        if state.paused_until_us > self.now_us() {
            return self.network.plan(state.paused_until_us, RamNetworkEvent::Submit { client });
        }
        L::before_operation(self);
        self.numbers += 1;
        let (mix, blocks) = (self.layout.mix(), self.layout.blocks());
        let is_near = !mix.is_even && self.random.chance(50);
        let first = if is_near { self.random.below(blocks.min(6)) } else { self.random.below(blocks) };
        let count = 1 + self.random.below(OPERATION_BLOCKS_MAX).min(self.random.below(OPERATION_BLOCKS_MAX));
        let range = first..(first + count).min(blocks);
        let (offset, bytes) = (first * BLOCK_BYTES as u64, (range.end - first) * BLOCK_BYTES as u64);
        let force = self.random.chance(mix.forced_percent);
        let kind = self.random.below(100);
        let [writes, zeroes, trims, reads] = mix.below;
        let (number, request, is_forced) = match kind {
            _ if kind < writes => {
                let data: Vec<u8> = range.clone().flat_map(|block| contents(self.numbers, block)).collect();
                (self.numbers, UserRequest::Write { offset, data: Bytes::from(data), force }, force)
            }
            _ if kind < zeroes => (0, UserRequest::WriteZeroes { offset, bytes, force }, force),
            _ if kind < trims => (0, UserRequest::Trim { offset, bytes }, false),
            _ if kind < reads => return self.submit_read(client, range),
            _ => {
                self.coverage.met("flush beside a write", u64::from(self.clients[client].is_changing()));
                let began = self.layout.tick();
                return self.hand_in(client, RamUserOperation::Flush { began }, UserRequest::Flush);
            }
        };
        self.coverage.met("overlapping writes", u64::from(self.clients[client].changes(&range)));
        let place = self.layout.begin_change(client, range.clone(), number);
        let pending = RamUserOperation::Change { place, blocks: range, is_forced, is_write: number != 0 };
        self.hand_in(client, pending, request);
    }

    pub fn submit_read(&mut self, client: ClientId, blocks: Range<u64>) {
        let (offset, bytes) = (blocks.start * BLOCK_BYTES as u64, (blocks.end - blocks.start) * BLOCK_BYTES as u64);
        let began = self.layout.tick();
        self.hand_in(client, RamUserOperation::Read { blocks, began }, UserRequest::Read { offset, bytes });
    }

    fn hand_in(&mut self, client: ClientId, pending: RamUserOperation, request: UserRequest) {
        self.counts.operations += 1;
        let state = &mut self.clients[client];
        let id = state.next_id;
        state.next_id += 1;
        state.pending.insert(id, pending);
        self.step(client, MachineEvent::Submitted { id, request });
    }
}
