//! Another donor takes the place of one, as at the end of `ram drain` and `ram replace`.
//!
//! Owns: the state in which the live move hands a donor over: the other donor has the memory and the record of the former
//! one, nothing is on its way to the former one, and this client owns the other one. Leaves to others: copying (the tests
//! of `nectary-ram`), telling the donors (the machine).

use nectary_ram::format::DonorRecord;
use nectary_ram::group::{LinkState, MachineEvent};
use nectary_ram::planted::{MirrorBug, is_planted};

use super::InPlaceLayout;
use crate::ram::blocks::BLOCK_BYTES;
use crate::ram::donor::DonorModel;
use crate::ram::network::ClientId;
use crate::ram::world::{RamRunStage, RamWorld};

impl RamWorld<InPlaceLayout> {
    /// Moves a donor now and then while users work, in some runs.
    pub fn replace_sometimes(&mut self, client: ClientId) {
        if self.layout.has_moves && self.stage == RamRunStage::Work && client == self.current && self.random.chance(2) {
            self.replace();
        }
    }

    /// Puts another donor in the place of one, if everything is whole and nothing is on its way to the former one.
    fn replace(&mut self) {
        let (client, now_us) = (self.current, self.now_us());
        let donor = self.random.below(self.donors.len() as u64) as usize;
        let (state, model) = (&self.clients[client], &self.donors[donor]);
        let is_open = self.is_whole() && state.paused_until_us <= now_us;
        let is_there =
            state.machine.group().link_state(donor) == Some(LinkState::Claimed) && model.paused_until_us <= now_us;
        let is_told = state.machine.group().is_view_stored() && self.layout.is_told;
        let Some(connection) = state.connections[donor].filter(|connection| self.network.is_idle(*connection)) else {
            return;
        };
        let is_reached = self.network.cut_until(client, donor).is_none();
        if !is_open || !is_there || !is_told || !is_reached {
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
        self.layout.former = Some((donor, std::mem::replace(&mut self.donors[donor], other)));
        self.records_changed();
        self.step(client, MachineEvent::Replaced { donor, incarnation });
        self.step(client, MachineEvent::Connected { donor, incarnation });
    }

    /// The former donor has its place again, with the memory that it had.
    pub fn take_back(&mut self, client: ClientId, donor: usize) {
        if let Some(connection) = self.clients[client].connections[donor].take() {
            self.network.give_up(connection, &mut self.random);
        }
        if let Some((_, former)) = self.layout.former.take_if(|(place, _)| *place == donor) {
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
