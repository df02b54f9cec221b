//! The users of clients: they submit operations, and every operation is recorded.
//!
//! Owns: submitting operations, and the history. Leaves to others: the choice of operations (`client`), the allowed
//! answers (`check`).

use nectary_ram::mirror::{MirrorEvent, MirrorRequest};

use super::blocks::BLOCK_BYTES;
use super::client::{RamUserOperation, WishKind, wish};
use super::coverage::Scenario;
use super::network::{ClientId, MILLISECOND, RamNetworkEvent};
use super::world::{RamRunStage, RamWorld};
use crate::cache::history::{CellEffect, CellRead};

impl RamWorld {
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
        self.numbers += 1;
        let number = self.numbers;
        let wish = wish(&mut self.random, self.geometry.blocks(), number);
        if wish.kind == WishKind::Read {
            return self.submit_read(client, wish.blocks);
        }
        let has_write = state.pending.values().any(|pending| matches!(pending, RamUserOperation::Change { .. }));
        let pending = if wish.kind == WishKind::Flush {
            if has_write {
                self.coverage.met(Scenario::FlushBesideWrite);
            }
            RamUserOperation::Flush
        } else {
            if state.changes(&wish.blocks) {
                self.coverage.met(Scenario::OverlappingWrites);
            }
            let is_write = wish.kind == WishKind::Write;
            let (change, number) = if is_write { (CellEffect::Write(number), number) } else { (CellEffect::Zero, 0) };
            let cells = wish.blocks.start as usize..wish.blocks.end as usize;
            let place = self.history.begin(cells, change, false);
            self.blocks.begin(client, place, wish.blocks.clone(), number);
            RamUserOperation::Change { place, blocks: wish.blocks, is_write }
        };
        self.hand_in(client, pending, wish.request);
    }

    pub fn submit_read(&mut self, client: ClientId, blocks: std::ops::Range<u64>) {
        let (offset, bytes) = (blocks.start * BLOCK_BYTES as u64, (blocks.end - blocks.start) * BLOCK_BYTES as u64);
        let began = self.history.tick();
        let request = MirrorRequest::Read { offset, bytes };
        self.hand_in(client, RamUserOperation::Read { blocks, began }, request);
    }

    pub fn hand_in(&mut self, client: ClientId, pending: RamUserOperation, request: MirrorRequest) {
        self.operations += 1;
        let state = &mut self.clients[client];
        let id = state.next_id;
        state.next_id += 1;
        state.pending.insert(id, pending);
        self.step(client, MirrorEvent::Submitted { id, request });
    }

    /// Records a read's result.
    pub fn note_read(&mut self, blocks: std::ops::Range<u64>, began: u64, numbers: &[u64]) {
        let ended = self.history.tick();
        for (block, number) in blocks.zip(numbers) {
            self.history.reads.push(CellRead { cell: block as usize, number: *number, began, ended });
        }
    }
}
