//! Another donor takes the place of one, as at the end of `ram drain` and `ram replace`.
//!
//! Owns: the state in which the live move hands a donor over: the other donor has the memory and the record of the former
//! one, nothing is on its way to the former one, and this client owns the other one. Leaves to others: copying (the tests
//! of `nectary-ram`), telling the donors (the machine).

use nectary_ram::device::moves::{RecordHolder, unfinished};
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
        if self.donors.len() < 2 || !is_open || !is_there || !is_told || !is_reached {
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
        self.layout.moved = Some((donor, std::mem::replace(&mut self.donors[donor], other)));
        self.records_changed();
        self.step(client, MachineEvent::Replaced { donor, incarnation });
        self.step(client, MachineEvent::Connected { donor, incarnation });
    }

    /// Returns the place that another donor took if an attaching client cannot begin with the one that is there: its
    /// record is still that of the former one, or the newest view names the one that is not there.
    pub fn switching(&self) -> Option<usize> {
        let (place, beside) = self.layout.moved.as_ref()?;
        let views = self.donors.iter().filter_map(|at| Some(&at.record.as_ref()?.view));
        let named = views.max_by_key(|view| view.number()).map(|view| view.members[*place].incarnation);
        (is_copy(&self.donors[*place]) || named == Some(beside.incarnation)).then_some(*place)
    }

    /// Without redundancy: finishes the switch of a lost client as the live device does, or uses the former donor if nobody
    /// was told. With redundancy, an attaching client needs neither.
    pub fn finish_move(&mut self, take_over: bool) {
        let is_owned = self.clients.iter().any(|client| client.is_alive);
        let is_asked = self.layout.is_plain() && (take_over || !is_owned);
        let Some(place) = self.switching().filter(|_| is_asked) else { return };
        let Some((_, beside)) = self.layout.moved.take() else { return };
        let here = std::mem::replace(&mut self.donors[place], DonorModel::new(0, 0, place));
        let (is_there, is_beside) = (is_copy(&here), is_copy(&beside));
        let (mut former, mut other) = if is_there { (beside, here) } else { (here, beside) };
        let records = self.donors.iter().chain([&former, &other]).filter_map(|at| at.record.as_ref());
        let newest = records.max_by_key(|record| record.view.number());
        let holder = |of: &'_ DonorModel| Some((of.record.clone()?, of.incarnation));
        let found = newest.cloned().zip(holder(&former)).zip(holder(&other));
        let finished = found.and_then(|((newest, (former, was)), (other, is))| {
            let former = RecordHolder { record: &former, incarnation: was };
            unfinished(&newest, former, RecordHolder { record: &other, incarnation: is }, 1)
        });
        self.tell(|| format!("the switch of donor {place} is finished: {}", finished.is_some()));
        // Otherwise nobody was told, or a view names the one that is not there.
        let is_other = finished.is_some() || if is_there { is_owned } else { !is_beside };
        if let Some((fenced, finished)) = finished {
            for (at, record) in [(&mut former, fenced), (&mut other, finished)] {
                (at.area, at.record, at.owner) = (record.encode(), Some(record), None);
            }
        }
        let (here, beside) = if is_other { (other, former) } else { (former, other) };
        (self.donors[place], self.layout.moved) = (here, Some((place, beside)));
        for served in self.network.served(place) {
            self.network.end(served, &mut self.random);
        }
        self.records_changed();
    }

    /// The former donor has its place again, with the memory that it had.
    pub fn take_back(&mut self, client: ClientId, donor: usize) {
        if let Some(connection) = self.clients[client].connections[donor].take() {
            self.network.give_up(connection, &mut self.random);
        }
        // A client whose device was taken over finds another client's record on the former donor, too.
        let is_its = client == self.current || !self.layout.is_plain();
        if let Some((_, former)) = self.layout.moved.take_if(|(place, _)| is_its && *place == donor) {
            self.tell(|| format!("the former donor {donor} is back"));
            for served in self.network.served(donor) {
                self.network.end(served, &mut self.random);
            }
            self.clients[client].incarnations[donor] = former.incarnation;
            let other = std::mem::replace(&mut self.donors[donor], former);
            // Until the others are told, it is what they name.
            self.layout.moved = Some((donor, other));
            self.records_changed();
        }
        self.plan_connect(client, donor);
    }
}

/// Whether a donor has the record of another one, whose place it was about to take.
fn is_copy(at: &DonorModel) -> bool {
    at.record.as_ref().is_some_and(|record| !record.is_of(at.incarnation))
}
