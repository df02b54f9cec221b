//! Another donor takes the place of one, as at the end of `ram drain` and `ram replace`.
//!
//! Owns: the state in which the live move hands a donor over: the other donor has the memory and the record of the former
//! one, nothing is on its way to the former one, and this client owns the other one. Leaves to others: copying (the tests
//! of `nectary-ram`), telling the donors (the machine).

use nectary_ram::format::DonorRecord;
use nectary_ram::mirror::{DonorStanding, LinkState, MirrorEvent, MirrorPhase};
use nectary_ram::planted::{MirrorBug, is_planted};

use super::blocks::BLOCK_BYTES;
use super::donor::DonorModel;
use super::network::ClientId;
use super::world::{RamRunStage, RamWorld};

impl RamWorld {
    /// Moves a donor now and then while users work, in some runs.
    pub fn replace_sometimes(&mut self, client: ClientId) {
        if self.has_moves && self.stage == RamRunStage::Work && client == self.current && self.random.chance(2) {
            self.replace();
        }
    }

    /// Puts another donor in the place of one, if everything is whole and nothing is on its way to the former one.
    fn replace(&mut self) {
        let (client, now_us) = (self.current, self.now_us());
        let donor = self.random.below(self.donors.len() as u64) as usize;
        let (state, model) = (&self.clients[client], &self.donors[donor]);
        let is_open = state.is_alive && state.machine.phase() == MirrorPhase::Open && state.paused_until_us <= now_us;
        let is_alone = self.clients.iter().filter(|client| client.is_alive).count() == 1;
        let is_whole = state.machine.standing().iter().all(|standing| *standing == DonorStanding::Trusted);
        let is_there = state.machine.link_state(donor) == Some(LinkState::Claimed) && model.paused_until_us <= now_us;
        let is_told = state.machine.is_view_stored() && self.is_told;
        let Some(connection) = state.connections[donor].filter(|connection| self.network.is_idle(*connection)) else {
            return;
        };
        let is_reached = self.network.cut_until(client, donor).is_none();
        if !is_open || !is_alone || !is_whole || !is_there || !is_told || !is_reached {
            return;
        }
        let Some(former) = self.donors[donor].record.clone() else { return };
        self.tell(|| format!("another donor takes the place of donor {donor}"));
        self.heal_lies();
        let incarnation = self.random.bits();
        let mut other = DonorModel::new(incarnation, self.donors[donor].memory.len() as u64, donor);
        other.memory.clone_from(&self.donors[donor].memory);
        if is_planted(MirrorBug::DrainForgets)
            && let Some(block) = other.memory.chunks_mut(BLOCK_BYTES).find(|block| block.iter().any(|byte| *byte != 0))
        {
            block.fill(0);
        }
        let mut record = DonorRecord { ..former };
        record.stamp.revision += 1;
        other.area = record.encode();
        other.record = Some(record);
        for served in self.network.served(donor) {
            self.network.end(served, &mut self.random);
        }
        self.network.give_up(connection, &mut self.random);
        let connection = self.network.connect(client, donor, &mut self.random);
        other.owner = Some(connection);
        self.clients[client].connections[donor] = Some(connection);
        self.clients[client].incarnations[donor] = incarnation;
        self.former = Some((donor, std::mem::replace(&mut self.donors[donor], other)));
        self.records_changed();
        self.step(client, MirrorEvent::Replaced { donor, incarnation });
        self.step(client, MirrorEvent::Connected { donor, incarnation });
    }

    /// The former donor has its place again, with the memory that it had.
    pub fn restored(&mut self, client: ClientId, donor: usize) {
        if let Some(connection) = self.clients[client].connections[donor].take() {
            self.network.give_up(connection, &mut self.random);
        }
        if let Some((_, former)) = self.former.take_if(|(place, _)| *place == donor) {
            self.tell(|| format!("the former donor {donor} is back"));
            for served in self.network.served(donor) {
                self.network.end(served, &mut self.random);
            }
            self.clients[client].incarnations[donor] = former.incarnation;
            self.donors[donor] = former;
            self.records_changed();
        }
        self.plan_connect(client, donor);
    }
}
