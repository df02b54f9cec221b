//! A client of a run: the machine, and around it what the owner of a live device does for it.
//!
//! Owns: connections, moves and spares as `live` handles them, with the plan of `nectary_ram::moving`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nectary_ram::format::{Record, Stamp};
use nectary_ram::mirror::{Action, DonorRequest, Event, LinkState, Reply, Standing};
use nectary_ram::moving::{Need, Next, Plan, Seen, Stage, Stop};

use super::coverage::Scenario;
use super::device::{Machine, donor_bytes};
use super::network::{Happening, MILLISECOND, Tag};
use super::world::World;
use crate::ram::donor::{is_change, range};

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
pub enum Pending {
    Read { block: u64, floor: usize },
    Change { block: u64, version: usize, is_forced: bool },
    Flush { versions: Vec<usize> },
}

/// A move under way.
pub struct Move {
    pub plan: Plan,
    /// The other donor.
    pub host: usize,
    connection: Option<usize>,
    /// The former donor, and the connection to it, once the other one has the place.
    pub former: Option<(usize, Option<usize>)>,
    kept: Vec<(u64, DonorRequest)>,
    reading: BTreeSet<u64>,
}

/// A client.
pub struct Client {
    pub machine: Machine,
    pub is_alive: bool,
    pub is_attached: bool,
    pub paused_until_us: u64,
    /// The host of each place.
    pub places: Vec<usize>,
    pub links: Vec<Option<usize>>,
    attempts: Vec<u64>,
    under_way: Vec<BTreeMap<u64, (u64, u64)>>,
    pub moving: Option<Move>,
    /// Counts moves.
    pub moves: u64,
    pub need: Need,
    pub spares: Vec<usize>,
    next_spare: usize,
    pub pending: BTreeMap<u64, Pending>,
    pub next_id: u64,
}

impl Client {
    pub fn new(machine: Machine, places: Vec<usize>, spares: Vec<usize>) -> Client {
        let count = places.len();
        Client {
            machine,
            is_alive: true,
            is_attached: false,
            paused_until_us: 0,
            links: vec![None; count],
            attempts: vec![0; count],
            under_way: vec![BTreeMap::new(); count],
            places,
            moving: None,
            moves: 0,
            need: Need::default(),
            spares,
            next_spare: 0,
            pending: BTreeMap::new(),
            next_id: 1,
        }
    }
}

impl World {
    pub fn plan_connect(&mut self, client: usize, place: usize, after_us: u64) {
        let state = &mut self.clients[client];
        state.attempts[place] += 1;
        let attempt = state.attempts[place];
        self.network.plan(self.network.now_us + after_us, Happening::Connect { client, place, attempt });
    }

    pub fn connect(&mut self, client: usize, place: usize, attempt: u64) {
        let state = &self.clients[client];
        if !state.is_alive || state.machine.is_ended() || state.attempts[place] != attempt {
            return;
        }
        let host = state.places[place];
        if !self.network.is_reachable(client, host) || state.paused_until_us > self.network.now_us {
            return self.plan_connect(client, place, 20 * MILLISECOND);
        }
        let connection = self.network.connect(client, host, Some(place));
        self.clients[client].links[place] = Some(connection);
        self.network.answer(connection, Happening::Connected { connection }, &mut self.random);
    }

    pub fn connected(&mut self, connection: usize) {
        let at = &self.network.connections[connection];
        let (client, host, place) = (at.client, at.host, at.place);
        if !at.is_client_open || !self.clients[client].is_alive {
            return;
        }
        let incarnation = self.network.hosts[host].model.incarnation;
        match place {
            Some(donor) => self.step(client, Event::Connected { donor, incarnation }),
            None => {
                let number = self.clients[client].moves;
                self.network.send(connection, Tag::OtherArea(number), DonorRequest::ReadMetadata, &mut self.random);
            }
        }
    }

    /// The connection to the donor of a place is gone.
    fn lose(&mut self, client: usize, place: usize) {
        let state = &mut self.clients[client];
        let ranges = std::mem::take(&mut state.under_way[place]);
        if let Some(moving) = state.moving.as_mut().filter(|moving| moving.plan.donor == place) {
            ranges.into_values().for_each(|(offset, bytes)| moving.plan.touch(offset, bytes));
            moving.kept.clear();
            std::mem::take(&mut moving.reading).into_iter().for_each(|part| moving.plan.copied(part, false));
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
            self.step(client, Event::Disconnected { donor });
            return self.plan_connect(client, donor, 20 * MILLISECOND);
        }
        self.network.connections[connection].is_client_open = false;
        let Some(moving) = &mut self.clients[client].moving else { return };
        if moving.connection == Some(connection) {
            moving.connection = None;
            self.end_move(client, false);
        } else if moving.former.is_some_and(|(_, of)| of == Some(connection)) {
            moving.former = moving.former.map(|(host, _)| (host, None));
            if moving.plan.stage() == Stage::Emptying {
                self.end_move(client, true);
            }
        }
        self.drive(client);
    }

    /// Passes an event to a client's machine, and does everything that follows.
    pub fn step(&mut self, client: usize, event: Event) {
        self.step_only(client, event);
        self.drive(client);
    }

    fn step_only(&mut self, client: usize, event: Event) {
        let now_us = self.network.now_us;
        let before = self.story.as_ref().map(|_| self.clients[client].machine.state());
        let actions = self.clients[client].machine.step(now_us, event);
        if let Some(before) = before {
            let after = self.clients[client].machine.state();
            if before != after {
                self.tell(|| format!("client {client}: {after}"));
            }
        }
        for action in actions {
            match action {
                Action::Send { donor, request, body } => self.send(client, donor, request, body),
                Action::Disconnect { donor } => {
                    self.lose(client, donor);
                    self.plan_connect(client, donor, 0);
                }
                Action::Restore { donor } => self.restore(client, donor),
                Action::Complete { id, result } => self.complete(client, id, result),
                Action::Attached => self.attached(client),
                Action::Refused(refusal) => self.refused(client, refusal),
                Action::Superseded | Action::Detached => self.kill(client),
            }
        }
    }

    fn send(&mut self, client: usize, place: usize, request: u64, body: DonorRequest) {
        let state = &mut self.clients[client];
        let changed = if is_change(&body) { range(&body).unwrap_or_default() } else { (0, 0) };
        if let Some(moving) = state.moving.as_mut().filter(|moving| moving.plan.donor == place) {
            if moving.plan.is_paused() {
                return moving.kept.push((request, body));
            }
            moving.plan.touch(changed.0, changed.1);
        }
        let Some(connection) = state.links[place] else { return };
        state.under_way[place].insert(request, changed);
        self.network.send(connection, Tag::Machine(request), body, &mut self.random);
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
        let (number, Some(moving)) = (state.moves, &mut state.moving) else { return false };
        let place = moving.plan.donor;
        let next = moving.plan.next(now_us, state.machine.members(), state.under_way[place].is_empty());
        match next {
            Next::Wait => return false,
            Next::Copy { part, offset, bytes } => match state.links[place] {
                Some(connection) if moving.connection.is_some() => {
                    moving.reading.insert(part);
                    let body = DonorRequest::Read { offset, bytes };
                    self.network.send(connection, Tag::Read(number, part), body, &mut self.random);
                }
                _ => {
                    moving.plan.copied(part, false);
                    return false;
                }
            },
            Next::GoOn => {
                let kept = std::mem::take(&mut moving.kept);
                kept.into_iter().for_each(|(request, body)| self.send(client, place, request, body));
            }
            Next::Switch => self.switch(client),
            Next::Empty => match moving.former.and_then(|(_, connection)| connection) {
                None => self.end_move(client, true),
                Some(connection) => self.empty(connection, Some(number)),
            },
            Next::Done => self.end_move(client, true),
            Next::Stop(stop) => {
                match stop {
                    Stop::OtherLost(_) => {
                        self.coverage.met(Scenario::OtherLost);
                        self.clients[client].need.try_again();
                    }
                    Stop::TakerLost => self.coverage.met(Scenario::TakerLost),
                    Stop::Left | Stop::BothLost => {}
                }
                self.end_move(client, false);
            }
        }
        true
    }

    /// Begins to empty a donor.
    fn empty(&mut self, connection: usize, number: Option<u64>) {
        self.network.send(connection, Tag::Area(number), DonorRequest::ReadMetadata, &mut self.random);
    }

    fn switch(&mut self, client: usize) {
        self.coverage.met(Scenario::Switched);
        let state = &mut self.clients[client];
        let Some(moving) = &mut state.moving else { return };
        let Some(connection) = moving.connection.take() else { return };
        let (donor, host) = (moving.plan.donor, moving.host);
        moving.plan.switched();
        moving.kept.clear();
        state.under_way[donor].clear();
        let link = state.links[donor].replace(connection);
        if let Some(link) = link {
            self.network.connections[link].place = None;
        }
        moving.former = Some((std::mem::replace(&mut state.places[donor], host), link));
        self.network.connections[connection].place = Some(donor);
        state.attempts[donor] += 1;
        let former = moving.former.map_or(host, |(former, _)| former);
        self.rename(former, host);
        self.tell(|| format!("host {host} takes place {donor} of host {former}"));
        let incarnation = self.network.hosts[host].model.incarnation;
        self.step_only(client, Event::Replaced { donor, incarnation });
        self.step_only(client, Event::Connected { donor, incarnation });
    }

    /// The SPEC names another donor.
    fn rename(&mut self, old: usize, new: usize) {
        let place = |host: usize, names: &[usize]| names.iter().position(|name| *name == host);
        if let (Some(old), Some(new)) = (place(old, &self.names), place(new, &self.names)) {
            self.names.swap(old, new);
        }
    }

    fn restore(&mut self, client: usize, donor: usize) {
        self.coverage.met(Scenario::Reverted);
        let state = &mut self.clients[client];
        let former = state.moving.as_ref().filter(|moving| moving.plan.donor == donor).and_then(|moving| moving.former);
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
            self.clients[client].need.try_again();
            self.end_move(client, false);
        }
        self.plan_connect(client, donor, 0);
    }

    fn end_move(&mut self, client: usize, is_done: bool) {
        let state = &mut self.clients[client];
        let Some(mut moving) = state.moving.take() else { return };
        state.moves += 1;
        let (host, place) = (moving.host, moving.plan.donor);
        if is_done {
            let is_spare = moving.plan.stage() == Stage::Filling;
            self.coverage.met(if is_spare { Scenario::Spared } else { Scenario::Moved });
            state.spares.retain(|spare| *spare != host);
            state.need.filled();
        }
        let stage = moving.plan.stage();
        self.tell(|| format!("the move of place {place} to host {host} ends in {stage:?}, done {is_done}"));
        for (request, body) in std::mem::take(&mut moving.kept) {
            self.send(client, place, request, body);
        }
        if let Some(connection) = moving.connection {
            self.empty(connection, None);
        }
    }

    /// Begins to put another donor in the place of one, as a user or for a spare; returns whether it may.
    pub fn replace(&mut self, client: usize, place: usize, host: usize) -> bool {
        let now_us = self.network.now_us;
        let bytes = donor_bytes(&self.geometry);
        let state = &mut self.clients[client];
        let members = state.machine.members();
        let standing = members.standing();
        let are_whole = (0..standing.len()).all(|other| other == place || standing[other] == Standing::Trusted);
        let is_there = match standing[place] {
            Standing::Trusted => state.links[place].is_some(),
            standing => standing == Standing::Out,
        };
        if state.moving.is_some() || !are_whole || !is_there || state.places.contains(&host) {
            return false;
        }
        let part_bytes = (bytes / PARTS).max(crate::ram::blocks::BLOCK_BYTES as u64);
        let plan = Plan::new(place, bytes, part_bytes, now_us);
        let (kept, reading) = (Vec::new(), BTreeSet::new());
        state.moves += 1;
        let number = state.moves;
        self.tell(|| format!("place {place} is to be moved to host {host}"));
        let is_reachable = self.network.is_reachable(client, host);
        let connection = is_reachable.then(|| self.network.connect(client, host, None));
        self.clients[client].moving = Some(Move { plan, host, connection, former: None, kept, reading });
        match connection {
            Some(connection) => {
                self.network.answer(connection, Happening::Connected { connection }, &mut self.random);
            }
            None => self.network.plan(now_us + CONNECT_US, Happening::MoveFails { client, number }),
        }
        // One that is cut off while it is prepared is given up, too.
        self.network.plan(now_us + 2 * CONNECT_US, Happening::MoveFails { client, number });
        true
    }

    pub fn move_fails(&mut self, client: usize, number: u64) {
        let state = &self.clients[client];
        let is_it = state.moves == number
            && state.moving.as_ref().is_some_and(|moving| moving.plan.stage() == Stage::Connecting);
        if state.is_alive && is_it {
            self.end_move(client, false);
            self.drive(client);
        }
    }

    fn use_spares(&mut self, client: usize) {
        let now_us = self.network.now_us;
        let state = &mut self.clients[client];
        let standing = state.machine.members().standing().to_vec();
        if let Some(moving) = &mut state.moving {
            let place = moving.plan.donor;
            let members = state.machine.members();
            let is_well = |other: usize| {
                standing[other] == Standing::Trusted && members.link_state(other) == Some(LinkState::Claimed)
            };
            let are_well = (0..standing.len()).all(|other| other == place || is_well(other));
            let is_away = members.link_state(place) == Some(LinkState::Down);
            let seen = Seen { standing: standing[place], is_away, are_well, filled: state.machine.filled() };
            if moving.plan.hopeless(now_us, LOST_AFTER_US, seen).is_some() {
                self.give_up_filling(client);
            }
            return;
        }
        state.need.track(now_us, &standing);
        if state.spares.is_empty() {
            return;
        }
        if let Some(place) = state.need.donor(now_us, LOST_AFTER_US) {
            let spare = state.spares[state.next_spare % state.spares.len()];
            state.next_spare += 1;
            state.need.tried(now_us);
            self.replace(client, place, spare);
        }
    }

    fn give_up_filling(&mut self, client: usize) {
        self.coverage.met(Scenario::SpareGivenUp);
        let Some(moving) = &self.clients[client].moving else { return };
        let (place, former, host) = (moving.plan.donor, moving.former, moving.host);
        self.end_move(client, false);
        let state = &mut self.clients[client];
        state.need.tried(self.network.now_us);
        if !state.next_spare.is_multiple_of(state.spares.len().max(1)) {
            state.need.try_again();
        }
        let Some((former, _)) = former else { return };
        self.lose(client, place);
        self.clients[client].places[place] = former;
        self.rename(former, host);
        self.step_only(client, Event::Disconnected { donor: place });
        self.plan_connect(client, place, 0);
    }

    /// An answer arrives at its client.
    pub fn answered(&mut self, connection: usize, tag: Tag, reply: Reply) {
        let at = &self.network.connections[connection];
        let (client, place) = (at.client, at.place);
        let number = self.clients[client].moves;
        match (tag, reply) {
            (Tag::Machine(request), reply) => {
                let Some(donor) = place.filter(|place| self.clients[client].links[*place] == Some(connection)) else {
                    return;
                };
                let state = &mut self.clients[client];
                let range = state.under_way[donor].remove(&request);
                if let (Some(moving), Some((offset, bytes))) = (&mut state.moving, range)
                    && moving.plan.donor == donor
                {
                    moving.plan.touch(offset, bytes);
                }
                return self.step(client, Event::Replied { donor, request, reply });
            }
            (Tag::Area(of), Reply::Metadata { area, .. }) => {
                let body = DonorRequest::SwapMetadata { expected: Stamp::of(&area), record: Bytes::new() };
                self.network.send(connection, Tag::Emptied(of), body, &mut self.random);
            }
            (Tag::Emptied(None) | Tag::Area(None), _) => self.network.give_up(connection, &mut self.random),
            (Tag::Emptied(Some(of)) | Tag::Area(Some(of)), _) => {
                if of == number {
                    self.end_move(client, true);
                }
                self.network.give_up(connection, &mut self.random);
            }
            (
                Tag::OtherArea(of)
                | Tag::FormerArea(of, _)
                | Tag::Stored(of)
                | Tag::Trimmed(of)
                | Tag::Read(of, _)
                | Tag::Written(of, _),
                _,
            ) if of != number || self.clients[client].moving.is_none() => {}
            (tag, reply) => self.prepare(client, connection, tag, reply),
        }
        self.drive(client);
    }

    /// An answer to what a move has sent.
    fn prepare(&mut self, client: usize, connection: usize, tag: Tag, reply: Reply) {
        let number = self.clients[client].moves;
        let bytes = donor_bytes(&self.geometry);
        let Some(moving) = &mut self.clients[client].moving else { return };
        let place = moving.plan.donor;
        match (tag, reply) {
            (Tag::OtherArea(_), Reply::Metadata { area, .. }) => {
                let is_left = self.clients[client].machine.members().standing()[place] == Standing::Out;
                match self.clients[client].links[place] {
                    _ if is_left => {
                        let body = DonorRequest::SwapMetadata { expected: Stamp::of(&area), record: Bytes::new() };
                        let tag = if area.is_empty() { None } else { Some(Tag::Stored(number)) };
                        match tag {
                            Some(tag) => self.network.send(connection, tag, body, &mut self.random),
                            None => self.take_left_place(client),
                        }
                    }
                    Some(link) => {
                        let tag = Tag::FormerArea(number, area);
                        self.network.send(link, tag, DonorRequest::ReadMetadata, &mut self.random);
                    }
                    None => self.end_move(client, false),
                }
            }
            (Tag::FormerArea(_, there), Reply::Metadata { area, .. }) => {
                let (Ok(record), Some(connection)) = (Record::decode(&area), moving.connection) else {
                    return self.end_move(client, false);
                };
                let expected = Stamp::of(&there);
                let stamp = Stamp { revision: expected.next_revision(), ..record.stamp };
                let record = Record { stamp, ..record }.encode().into();
                let body = DonorRequest::SwapMetadata { expected, record };
                self.network.send(connection, Tag::Stored(number), body, &mut self.random);
            }
            (Tag::Stored(_), Reply::Done) => {
                let body = DonorRequest::Trim { offset: 0, bytes };
                self.network.send(connection, Tag::Trimmed(number), body, &mut self.random);
            }
            (Tag::Trimmed(_), Reply::Done) => match self.clients[client].machine.members().standing()[place] {
                Standing::Out => self.take_left_place(client),
                _ => self.clients[client].moving.iter_mut().for_each(|moving| moving.plan.prepared()),
            },
            (Tag::Read(_, at), Reply::Data(data)) => {
                moving.reading.remove(&at);
                let (offset, _) = moving.plan.part(at);
                match moving.connection {
                    Some(connection) => {
                        let body = DonorRequest::Write { offset, data, force: false };
                        self.network.send(connection, Tag::Written(number, at), body, &mut self.random);
                    }
                    None => moving.plan.copied(at, false),
                }
            }
            (Tag::Read(_, at), _) => {
                moving.reading.remove(&at);
                moving.plan.copied(at, false);
            }
            (Tag::Written(_, at), Reply::Done) => moving.plan.copied(at, true),
            _ => self.end_move(client, false),
        }
    }

    /// Another donor takes the place of a left one, and is filled.
    fn take_left_place(&mut self, client: usize) {
        let state = &mut self.clients[client];
        let Some(moving) = &mut state.moving else { return };
        let (donor, host) = (moving.plan.donor, moving.host);
        if let Some(connection) = moving.connection.take() {
            self.network.give_up(connection, &mut self.random);
        }
        moving.plan.placed();
        self.lose(client, donor);
        let state = &mut self.clients[client];
        let former = std::mem::replace(&mut state.places[donor], host);
        if let Some(moving) = &mut state.moving {
            moving.former = Some((former, None));
        }
        self.rename(former, host);
        self.tell(|| format!("host {host} takes place {donor}, which was left, of host {former}"));
        self.step_only(client, Event::Disconnected { donor });
        self.plan_connect(client, donor, 0);
    }
}
