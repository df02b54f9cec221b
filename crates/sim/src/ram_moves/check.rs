//! What has to be so at every moment of a move, whatever the machine repeats later.
//!
//! Promises: a run breaks at the first event after which a rule of `nectary_ram::device::moves` does not hold, also where no user
//! reads the bytes.
//!
//! | while | then |
//! |---|---|
//! | a donor is copied | where the other one differs from it, the part will be copied, or a request that changes it is on its way |
//! | the other one takes the place | both have the same |
//! | the others are told | the former one has what it had at the switch |
//! | nothing has failed but connections, or a donor for a moment | no donor is left |
//! | all count as told of the view | each trusted donor has it |
//! | the former one is to be emptied | all were told |
//! | the move is done | the other one is trusted, and all were told |

use nectary_ram::device::moves::MoveStage as Of;
use nectary_ram::group::DonorStanding;

use super::world::{MoveProcedure, MoveRunStage, RamMovesWorld};

impl RamMovesWorld {
    /// Checks the move of the present client.
    pub fn check_move(&mut self) {
        let broken = self.find_left().or_else(|| self.find_untold()).or_else(|| self.find_difference());
        if let Some(broken) = broken {
            self.break_with(broken);
        }
    }

    /// Finds a donor that is left although nothing has failed for long.
    fn find_left(&self) -> Option<String> {
        let is_moved = matches!(self.procedure, MoveProcedure::Replace | MoveProcedure::Drain);
        let client = &self.clients[self.current];
        if self.stage != MoveRunStage::Procedure || !is_moved || self.faults.have_cost || !client.is_attached {
            return None;
        }
        let standing = client.machine.group().standing();
        let left = standing.iter().position(|standing| *standing != DonorStanding::Trusted)?;
        Some(format!("the donor of place {left} is left, and nothing has failed for long"))
    }

    /// Finds a donor that counts as told of the view, and has another one.
    fn find_untold(&self) -> Option<String> {
        let client = &self.clients[self.current];
        let (members, view) = (client.machine.group(), client.machine.group().view());
        if !client.is_attached || !members.is_view_stored() {
            return None;
        }
        let has_other = |place: &usize| {
            let host = client.places[*place];
            let record = self.network.hosts[host].model.record.as_ref();
            let is_own = self.is_own(host, view.members[*place].incarnation);
            is_own
                && members.standing()[*place] == DonorStanding::Trusted
                && record.is_none_or(|record| record.view != *view)
        };
        let place = (0..client.places.len()).find(has_other)?;
        Some(format!("the donor of place {place} counts as told, and has another view"))
    }

    /// Whether a host has what this client has stored there since it called itself so.
    fn is_own(&self, host: usize, incarnation: u64) -> bool {
        let model = &self.network.hosts[host].model;
        let owner = model.owner.map(|connection| self.network.connections[connection].client);
        model.incarnation == incarnation && owner == Some(self.current)
    }

    /// The place that is moved, the former donor and the other one, if both have what this client has stored there.
    fn both(&self, client: usize) -> Option<(usize, usize, usize)> {
        let client = &self.clients[client];
        let moving = client.mover.moving()?;
        let (place, other) = (moving.donor(), moving.session.host);
        let former = client.places[place];
        let incarnation = client.machine.group().view().members[place].incarnation;
        let are_own = self.is_own(former, incarnation) && self.is_own(other, moving.session.incarnation?);
        are_own.then_some((place, former, other))
    }

    fn find_difference(&self) -> Option<String> {
        let client = &self.clients[self.current];
        let moving = client.mover.moving()?;
        let (plan, sides) = (moving.plan(), &moving.session);
        let memory = |host: usize| &self.network.hosts[host].model.memory;
        match plan.stage() {
            Of::Copying => {
                let (place, former, other) = self.both(self.current)?;
                let differs = |part: &u64| {
                    let (offset, bytes) = plan.part(*part);
                    let range = offset as usize..(offset + bytes) as usize;
                    memory(former)[range.clone()] != memory(other)[range]
                };
                let part = (0..plan.parts()).find(|part| differs(part) && !client.mover.may_differ(*part))?;
                Some(format!("part {part} of place {place} differs on host {other}, and is not to be copied"))
            }
            Of::Settling => {
                let ((former, _), (incarnation, before)) = (sides.former?, &sides.at_switch);
                let is_changed = self.is_own(former, *incarnation) && memory(former) != before;
                is_changed.then(|| format!("host {former} has changed after another one took its place"))
            }
            _ => None,
        }
    }

    /// Checks that the other donor has what the former one has, before it takes its place.
    pub fn check_switch(&mut self, client: usize) {
        let Some((place, former, other)) = self.both(client) else { return };
        let memory = |host: usize| &self.network.hosts[host].model.memory;
        if memory(former) != memory(other) {
            self.break_with(format!("host {other} takes place {place}, and lacks something that host {former} has"));
        }
    }

    /// Checks a move that ends as done.
    pub fn check_end(&mut self, client: usize) {
        let state = &self.clients[client];
        let Some(moving) = state.mover.moving() else { return };
        let (place, stage, members) = (moving.donor(), moving.plan().stage(), state.machine.group());
        let is_good = members.standing()[place] == DonorStanding::Trusted && members.is_view_stored();
        if matches!(stage, Of::Settling | Of::Filling) && !is_good {
            self.break_with(format!("the move of place {place} is done in {stage:?}, and its donor is not trusted"));
        }
    }
}
