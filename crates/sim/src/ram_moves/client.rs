//! A client of a run: the machine, and around it what the owner of a live device does for it.
//!
//! Owns: connections, and the messages of a move. Leaves to others: what a move does, and what changes meanwhile, which
//! is the `Mover` of `nectary_ram::device::moves` here as in a live device.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nectary_ram::device::moves::{EndedMove, MovePlan, MoveStage, MoveStep, MoveStop, Mover, PreparationResult};
use nectary_ram::device::owner::DeviceMachine;
use nectary_ram::format::{DonorRecord, RecordStamp};
use nectary_ram::group::{DonorReply, DonorRequest, MachineAction, MachineEvent};

use super::device::donor_bytes;
use super::network::{MILLISECOND, MoveNetworkEvent, RequestPurpose};
use super::world::RamMovesWorld;

/// How long a lost donor is waited for.
pub const LOST_AFTER_US: u64 = 2000 * MILLISECOND;
/// How often donors are asked whether they leave.
pub const LOOK_EVERY_US: u64 = 300 * MILLISECOND;
/// After this time without an answer another donor is no candidate for a place.
const CONNECT_US: u64 = 1000 * MILLISECOND;
/// The least number of parts in which a donor is copied.
const PARTS: u64 = 20;

/// An operation for which a user waits.
#[derive(Debug, Clone)]
pub enum MoveUserOperation {
    Read { block: u64, floor: usize },
    Change { block: u64, version: usize, is_forced: bool },
    Flush { versions: Vec<usize> },
}

/// Both sides of a move under way.
pub struct MoveEndpoints {
    /// The other donor.
    pub host: usize,
    pub connection: Option<usize>,
    /// The former donor, and the connection to it, once the other one has the place.
    pub former: Option<(usize, Option<usize>)>,
    reading: BTreeSet<u64>,
    /// What the other donor calls itself, once it is prepared.
    pub incarnation: Option<u64>,
    /// What the former donor called itself, and what it had, when the other one took its place.
    pub at_switch: (u64, Vec<u8>),
}

/// A client.
pub struct MoveClientModel {
    pub machine: Box<dyn DeviceMachine>,
    pub is_alive: bool,
    pub is_attached: bool,
    pub paused_until_us: u64,
    /// The host of each place.
    pub places: Vec<usize>,
    pub links: Vec<Option<usize>>,
    attempts: Vec<u64>,
    pub mover: Mover<MoveEndpoints>,
    pub spares: Vec<usize>,
    pub pending: BTreeMap<u64, MoveUserOperation>,
    pub next_id: u64,
}

impl MoveClientModel {
    pub fn new(machine: Box<dyn DeviceMachine>, places: Vec<usize>, spares: Vec<usize>) -> MoveClientModel {
        let count = places.len();
        MoveClientModel {
            machine,
            is_alive: true,
            is_attached: false,
            paused_until_us: 0,
            links: vec![None; count],
            attempts: vec![0; count],
            mover: Mover::new(count),
            places,
            spares,
            pending: BTreeMap::new(),
            next_id: 1,
        }
    }
}

impl RamMovesWorld {
    pub fn plan_connect(&mut self, client: usize, place: usize, after_us: u64) {
        let state = &mut self.clients[client];
        state.attempts[place] += 1;
        let attempt = state.attempts[place];
        self.network.plan(self.network.now_us + after_us, MoveNetworkEvent::Connect { client, place, attempt });
    }

    pub fn connect(&mut self, client: usize, place: usize, attempt: u64) {
        let state = &self.clients[client];
        if !state.is_alive || state.machine.has_ended() || state.attempts[place] != attempt {
            return;
        }
        let host = state.places[place];
        if !self.network.is_reachable(client, host) || state.paused_until_us > self.network.now_us {
            return self.plan_connect(client, place, 20 * MILLISECOND);
        }
        let connection = self.network.connect(client, host, Some(place));
        self.clients[client].links[place] = Some(connection);
        self.network.answer(connection, MoveNetworkEvent::Connected { connection }, &mut self.random);
    }

    pub fn connected(&mut self, connection: usize) {
        let at = &self.network.connections[connection];
        let (client, host, place) = (at.client, at.host, at.place);
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let incarnation = self.network.hosts[host].model.incarnation;
        match place {
            Some(donor) => self.step(client, MachineEvent::Connected { donor, incarnation }),
            None => {
                let number = self.clients[client].mover.number();
                self.network.send(
                    connection,
                    RequestPurpose::OtherArea(number),
                    DonorRequest::ReadMetadata,
                    &mut self.random,
                );
            }
        }
    }

    /// The connection to the donor of a place is gone.
    fn lose(&mut self, client: usize, place: usize) {
        let state = &mut self.clients[client];
        state.mover.lost(place);
        let number = state.mover.number();
        if let Some(moving) = state.mover.moving_mut().filter(|moving| moving.donor() == place) {
            let reading = std::mem::take(&mut moving.session.reading);
            reading.into_iter().for_each(|part| state.mover.copied(number, part, false));
        }
        if let Some(connection) = state.links[place].take() {
            self.network.give_up(connection, &mut self.random);
        }
    }

    pub fn client_sees_end(&mut self, connection: usize) {
        let at = &self.network.connections[connection];
        let (client, place) = (at.client, at.place);
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let state = &self.clients[client];
        if let Some(donor) = place.filter(|place| state.links[*place] == Some(connection)) {
            self.lose(client, donor);
            self.step(client, MachineEvent::Disconnected { donor });
            return self.plan_connect(client, donor, 20 * MILLISECOND);
        }
        self.network.connections[connection].is_client_open = false;
        let Some(moving) = self.clients[client].mover.moving_mut() else { return };
        let (stage, sides) = (moving.plan().stage(), &mut moving.session);
        if sides.connection == Some(connection) {
            sides.connection = None;
            self.end_move(client, false);
        } else if sides.former.is_some_and(|(_, of)| of == Some(connection)) {
            sides.former = sides.former.map(|(host, _)| (host, None));
            if stage == MoveStage::Emptying {
                self.end_move(client, true);
            }
        }
        self.drive(client);
    }

    /// Passes an event to a client's machine, and does everything that follows.
    pub fn step(&mut self, client: usize, event: MachineEvent) {
        self.step_only(client, event);
        self.drive(client);
    }

    fn step_only(&mut self, client: usize, event: MachineEvent) {
        let now_us = self.network.now_us;
        let before = self.story.as_ref().map(|_| self.clients[client].machine.describe());
        self.clients[client].machine.step(now_us, event);
        let actions = self.clients[client].machine.take_actions();
        if let Some(before) = before {
            let after = self.clients[client].machine.describe();
            if before != after {
                self.tell(|| format!("client {client}: {after}"));
            }
        }
        for action in actions {
            match action {
                MachineAction::Send { donor, request, body } => self.send(client, donor, request, body),
                MachineAction::Disconnect { donor } => {
                    self.lose(client, donor);
                    self.plan_connect(client, donor, 0);
                }
                MachineAction::Restore { donor } => self.restore(client, donor),
                MachineAction::Complete { id, result } => self.complete(client, id, result),
                MachineAction::Attached => self.attached(client),
                MachineAction::Refused(refusal) => self.refused(client, refusal),
                MachineAction::Superseded | MachineAction::Detached => self.kill(client),
            }
        }
    }

    fn send(&mut self, client: usize, place: usize, request: u64, body: DonorRequest) {
        let state = &mut self.clients[client];
        let link = state.links[place];
        let Some(body) = state.mover.send(place, request, body, link.is_some()) else { return };
        let Some(connection) = link else { return };
        self.network.send(connection, RequestPurpose::Machine(request), body, &mut self.random);
    }

    /// What the owner does after each event.
    pub fn drive(&mut self, client: usize) {
        while self.clients[client].is_alive && self.drive_move(client) {}
        if self.clients[client].is_alive && self.clients[client].is_attached {
            self.use_spares(client);
        }
    }

    /// Does the next thing of a move; returns whether there may be more.
    fn drive_move(&mut self, client: usize) -> bool {
        let now_us = self.network.now_us;
        let state = &mut self.clients[client];
        let next = state.mover.next(now_us, state.machine.group());
        let number = state.mover.number();
        let Some(moving) = state.mover.moving_mut() else { return false };
        let (place, sides) = (moving.donor(), &mut moving.session);
        match next {
            MoveStep::Wait => return false,
            MoveStep::Copy { part, offset, bytes } => match state.links[place] {
                Some(connection) if sides.connection.is_some() => {
                    sides.reading.insert(part);
                    let body = DonorRequest::Read { offset, bytes };
                    self.network.send(connection, RequestPurpose::Read(number, part), body, &mut self.random);
                }
                _ => {
                    state.mover.copied(number, part, false);
                    return false;
                }
            },
            MoveStep::GoOn => {
                let kept = state.mover.take_kept();
                kept.into_iter().for_each(|(request, body)| self.send(client, place, request, body));
            }
            MoveStep::Switch => self.switch(client),
            MoveStep::Empty if !state.machine.group().is_view_stored() => {
                self.break_with(format!("the former donor of place {place} is emptied before all are told"));
            }
            MoveStep::Empty => match sides.former.and_then(|(_, connection)| connection) {
                None => self.end_move(client, true),
                Some(connection) => self.empty(connection, Some(number)),
            },
            MoveStep::Done => self.end_move(client, true),
            MoveStep::Stop(stop) => {
                match stop {
                    MoveStop::OtherLost(_) => self.coverage.met("moves ended for a lost donor", 1),
                    MoveStop::TakerLost => self.coverage.met("other donor lost after the switch", 1),
                    MoveStop::Left | MoveStop::BothLost => {}
                }
                self.end_move(client, false);
            }
        }
        true
    }

    /// Begins to empty a donor.
    fn empty(&mut self, connection: usize, number: Option<u64>) {
        self.network.send(connection, RequestPurpose::Area(number), DonorRequest::ReadMetadata, &mut self.random);
    }

    fn switch(&mut self, client: usize) {
        self.coverage.met("another donor took the place", 1);
        self.check_switch(client);
        let state = &mut self.clients[client];
        let Some(moving) = state.mover.moving_mut() else { return };
        let (donor, sides) = (moving.donor(), &mut moving.session);
        let Some(connection) = sides.connection.take() else { return };
        let host = sides.host;
        let link = state.links[donor].replace(connection);
        if let Some(link) = link {
            self.network.connections[link].place = None;
        }
        let former = std::mem::replace(&mut state.places[donor], host);
        sides.former = Some((former, link));
        let model = &self.network.hosts[former].model;
        sides.at_switch = (model.incarnation, model.memory.clone());
        state.mover.switched();
        self.network.connections[connection].place = Some(donor);
        state.attempts[donor] += 1;
        self.rename(former, host);
        self.tell(|| format!("host {host} takes place {donor} of host {former}"));
        let incarnation = self.network.hosts[host].model.incarnation;
        self.step_only(client, MachineEvent::Replaced { donor, incarnation });
        self.step_only(client, MachineEvent::Connected { donor, incarnation });
    }

    /// The SPEC names another donor.
    fn rename(&mut self, old: usize, new: usize) {
        let place = |host: usize, names: &[usize]| names.iter().position(|name| *name == host);
        if let (Some(old), Some(new)) = (place(old, &self.names), place(new, &self.names)) {
            self.names.swap(old, new);
        }
    }

    fn restore(&mut self, client: usize, donor: usize) {
        self.coverage.met("moves reverted", 1);
        let state = &mut self.clients[client];
        let former = state.mover.moving().filter(|moving| moving.donor() == donor);
        let former = former.and_then(|moving| moving.session.former);
        let other = state.links[donor].take();
        self.lose(client, donor);
        if let Some((host, link)) = former {
            let state = &mut self.clients[client];
            let new = std::mem::replace(&mut state.places[donor], host);
            self.rename(host, new);
            if let Some(link) = link {
                self.network.give_up(link, &mut self.random);
            }
            if let Some(other) = other {
                self.network.connections[other].place = None;
                self.empty(other, None);
            }
            self.clients[client].mover.need.try_again();
            self.end_move(client, false);
        }
        self.plan_connect(client, donor, 0);
    }

    fn end_move(&mut self, client: usize, is_done: bool) {
        if is_done {
            self.check_end(client);
        }
        let state = &mut self.clients[client];
        let Some(EndedMove { donor, stage, kept, session: sides }) = state.mover.end(is_done) else { return };
        let host = sides.host;
        if is_done {
            let is_spare = stage == MoveStage::Filling;
            self.coverage.met(if is_spare { "spares filled" } else { "moves done" }, 1);
            state.spares.retain(|spare| *spare != host);
        }
        self.tell(|| format!("the move of place {donor} to host {host} ends in {stage:?}, done {is_done}"));
        kept.into_iter().for_each(|(request, body)| self.send(client, donor, request, body));
        if let Some(connection) = sides.connection {
            self.empty(connection, None);
        }
    }

    /// Begins to put another donor in the place of one, as a user or for a spare; returns whether it may.
    pub fn replace(&mut self, client: usize, place: usize, host: usize) -> bool {
        let now_us = self.network.now_us;
        let bytes = donor_bytes(&self.geometry);
        let state = &mut self.clients[client];
        let checked = state.mover.check(place, state.machine.group(), state.links[place].is_some());
        let Some(is_left) = checked.ok().filter(|_| !state.places.contains(&host)) else { return false };
        let part_bytes = (bytes / PARTS).max(crate::ram::blocks::BLOCK_BYTES as u64);
        let plan = MovePlan::new(place, bytes, part_bytes, now_us);
        let (reading, incarnation, at_switch) = (BTreeSet::new(), None, (0, Vec::new()));
        let sides = MoveEndpoints { host, connection: None, former: None, reading, incarnation, at_switch };
        let number = state.mover.begin(plan, is_left, sides);
        self.tell(|| format!("place {place} is to be moved to host {host}"));
        let is_reachable = self.network.is_reachable(client, host);
        let connection = is_reachable.then(|| self.network.connect(client, host, None));
        if let Some(moving) = self.clients[client].mover.moving_mut() {
            moving.session.connection = connection;
        }
        match connection {
            Some(connection) => {
                self.network.answer(connection, MoveNetworkEvent::Connected { connection }, &mut self.random);
            }
            None => self.network.plan(now_us + CONNECT_US, MoveNetworkEvent::MoveFails { client, number }),
        }
        // One that is cut off while it is prepared is given up, too.
        self.network.plan(now_us + 2 * CONNECT_US, MoveNetworkEvent::MoveFails { client, number });
        true
    }

    pub fn move_fails(&mut self, client: usize, number: u64) {
        let state = &self.clients[client];
        let moving = state.mover.moving().filter(|_| state.mover.number() == number);
        let is_it = moving.is_some_and(|moving| moving.plan().stage() == MoveStage::Connecting);
        if state.is_alive && is_it {
            self.end_move(client, false);
            self.drive(client);
        }
    }

    fn use_spares(&mut self, client: usize) {
        let now_us = self.network.now_us;
        let state = &mut self.clients[client];
        let (members, filled) =
            (state.machine.group(), state.machine.rebuild_progress().map_or(0, |(_, copied, _)| copied));
        if state.mover.moving().is_some() {
            if state.mover.hopeless(now_us, LOST_AFTER_US, members, filled).is_some() {
                self.give_up_filling(client);
            }
            return;
        }
        state.mover.need.track(now_us, members.standing());
        if let Some((place, spare)) = state.mover.need.begin(now_us, LOST_AFTER_US, state.spares.len()) {
            let spare = state.spares[spare];
            self.replace(client, place, spare);
        }
    }

    fn give_up_filling(&mut self, client: usize) {
        self.coverage.met("spares given up", 1);
        let Some(moving) = self.clients[client].mover.moving() else { return };
        let (place, former, host) = (moving.donor(), moving.session.former, moving.session.host);
        self.end_move(client, false);
        let state = &mut self.clients[client];
        state.mover.need.gave_up(self.network.now_us, state.spares.len());
        let Some((former, _)) = former else { return };
        self.lose(client, place);
        self.clients[client].places[place] = former;
        self.rename(former, host);
        self.step_only(client, MachineEvent::Disconnected { donor: place });
        self.plan_connect(client, place, 0);
    }

    /// An answer arrives at its client.
    pub fn answered(&mut self, connection: usize, tag: RequestPurpose, reply: DonorReply) {
        let at = &self.network.connections[connection];
        let (client, place) = (at.client, at.place);
        match (tag, reply) {
            (RequestPurpose::Machine(request), reply) => {
                let Some(donor) = place.filter(|place| self.clients[client].links[*place] == Some(connection)) else {
                    return;
                };
                self.clients[client].mover.answered(donor, request);
                return self.step(client, MachineEvent::Replied { donor, request, reply });
            }
            (RequestPurpose::Area(of), DonorReply::Metadata { area, .. }) => {
                let body = DonorRequest::SwapMetadata { expected: RecordStamp::of(&area), record: Bytes::new() };
                self.network.send(connection, RequestPurpose::Emptied(of), body, &mut self.random);
            }
            (RequestPurpose::Emptied(None) | RequestPurpose::Area(None), _) => {
                self.network.give_up(connection, &mut self.random)
            }
            (RequestPurpose::Emptied(Some(of)) | RequestPurpose::Area(Some(of)), _) => {
                if self.clients[client].mover.is_present(of) {
                    self.end_move(client, true);
                }
                self.network.give_up(connection, &mut self.random);
            }
            (
                RequestPurpose::OtherArea(of)
                | RequestPurpose::FormerArea(of, _)
                | RequestPurpose::Stored(of)
                | RequestPurpose::Trimmed(of)
                | RequestPurpose::Read(of, _)
                | RequestPurpose::Written(of, _),
                _,
            ) if !self.clients[client].mover.is_present(of) => {}
            (tag, reply) => self.prepare(client, connection, tag, reply),
        }
        self.drive(client);
    }

    /// An answer to what a move has sent.
    fn prepare(&mut self, client: usize, connection: usize, tag: RequestPurpose, reply: DonorReply) {
        let bytes = donor_bytes(&self.geometry);
        let state = &mut self.clients[client];
        let number = state.mover.number();
        let Some(moving) = state.mover.moving_mut() else { return };
        let (place, is_left) = (moving.donor(), moving.is_left());
        match (tag, reply) {
            (RequestPurpose::OtherArea(_), DonorReply::Metadata { area, .. }) => match state.links[place] {
                _ if is_left => {
                    let body = DonorRequest::SwapMetadata { expected: RecordStamp::of(&area), record: Bytes::new() };
                    let tag = if area.is_empty() { None } else { Some(RequestPurpose::Stored(number)) };
                    match tag {
                        Some(tag) => self.network.send(connection, tag, body, &mut self.random),
                        None => self.prepared(client),
                    }
                }
                Some(link) => {
                    let tag = RequestPurpose::FormerArea(number, area);
                    self.network.send(link, tag, DonorRequest::ReadMetadata, &mut self.random);
                }
                None => self.end_move(client, false),
            },
            (RequestPurpose::FormerArea(_, there), DonorReply::Metadata { area, .. }) => {
                let (Ok(record), Some(connection)) = (DonorRecord::decode(&area), moving.session.connection) else {
                    return self.end_move(client, false);
                };
                let expected = RecordStamp::of(&there);
                let stamp = RecordStamp { revision: expected.next_revision(), ..record.stamp };
                let record = DonorRecord { stamp, ..record }.encode().into();
                let body = DonorRequest::SwapMetadata { expected, record };
                self.network.send(connection, RequestPurpose::Stored(number), body, &mut self.random);
            }
            (RequestPurpose::Stored(_), DonorReply::Done) => {
                let body = DonorRequest::Trim { offset: 0, bytes };
                self.network.send(connection, RequestPurpose::Trimmed(number), body, &mut self.random);
            }
            (RequestPurpose::Trimmed(_), DonorReply::Done) => self.prepared(client),
            (RequestPurpose::Read(of, at), reply) => {
                moving.session.reading.remove(&at);
                let (offset, _) = moving.plan().part(at);
                match (moving.session.connection, reply) {
                    (Some(connection), DonorReply::Data(data)) => {
                        let body = DonorRequest::Write { offset, data, force: false };
                        self.network.send(connection, RequestPurpose::Written(of, at), body, &mut self.random);
                    }
                    _ => state.mover.copied(of, at, false),
                }
            }
            (RequestPurpose::Written(of, at), DonorReply::Done) => state.mover.copied(of, at, true),
            _ => self.end_move(client, false),
        }
    }

    /// The other donor is prepared.
    fn prepared(&mut self, client: usize) {
        let state = &mut self.clients[client];
        match state.mover.prepared(state.machine.group()) {
            Some(PreparationResult::TakesPlace) => self.take_left_place(client),
            Some(PreparationResult::IsBack) => self.end_move(client, false),
            Some(PreparationResult::Copies) => {
                if let Some(moving) = state.mover.moving_mut() {
                    let host = moving.session.host;
                    moving.session.incarnation = Some(self.network.hosts[host].model.incarnation);
                }
            }
            None => {}
        }
    }

    /// Another donor takes the place of a left one, and is filled.
    fn take_left_place(&mut self, client: usize) {
        let state = &mut self.clients[client];
        let Some(moving) = state.mover.moving_mut() else { return };
        let (donor, sides) = (moving.donor(), &mut moving.session);
        let host = sides.host;
        let former = std::mem::replace(&mut state.places[donor], host);
        sides.former = Some((former, None));
        if let Some(connection) = sides.connection.take() {
            self.network.give_up(connection, &mut self.random);
        }
        self.lose(client, donor);
        self.rename(former, host);
        self.tell(|| format!("host {host} takes place {donor}, which was left, of host {former}"));
        self.step_only(client, MachineEvent::Disconnected { donor });
        self.plan_connect(client, donor, 0);
    }
}
