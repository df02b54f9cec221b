//! The lives of clients: looking at the donors, attaching, the end, and the results of requests.

use bytes::Bytes;
use nectary_ram::device::moves::{RecordHolder, unfinished};
use nectary_ram::format::{DonorRecord, RecordGeometry};
use nectary_ram::group::{AttachRefusal, DeviceError, MachineIntent};
use nectary_ram::in_place::RowLayout;
use nectary_ram::placement::RedundancyPolicy;

use super::client::{LOOK_EVERY_US, MoveClientModel, MoveUserOperation};
use super::device::new_machine;
use super::network::{MILLISECOND, MoveNetworkEvent};
use super::world::{MoveRunStage, RamMovesWorld};
use crate::ram::blocks::BLOCK_BYTES;

impl RamMovesWorld {
    pub fn begin_client(&mut self, intent: MachineIntent, geometry: RecordGeometry, places: Vec<usize>) {
        let id = self.random.bits() | 1;
        let machine = new_machine(geometry, id, intent, self.now_us());
        let other = self.other;
        let is_spare = |host: &usize| !places.contains(host) && Some(*host) != other;
        let spares: Vec<usize> = self.names.iter().copied().filter(is_spare).collect();
        let count = places.len();
        self.clients.push(MoveClientModel::new(machine, places, spares));
        self.current = self.clients.len() - 1;
        (0..count).for_each(|place| self.plan_connect(self.current, place, 0));
        self.network.plan(self.now_us(), MoveNetworkEvent::Wake { client: self.current });
        self.network.plan(self.now_us() + LOOK_EVERY_US, MoveNetworkEvent::Look { client: self.current });
    }

    fn again(&mut self, take_over: bool, trust_remaining: bool) {
        let at_us = self.now_us() + 50 * MILLISECOND + self.random.below(100 * MILLISECOND);
        self.network.plan(at_us, MoveNetworkEvent::Start { take_over, trust_remaining });
    }

    /// Starts a client that attaches the device, as `live` does: it looks at all donors, finishes a switch, and finds the
    /// donor of each place.
    pub fn start(&mut self, take_over: bool, trust_remaining: bool) {
        let client = self.clients.len();
        let seen: Vec<usize> =
            self.names.iter().copied().filter(|host| self.network.is_reachable(client, *host)).collect();
        if take_over && !self.policy.is_in_place() {
            self.values.crash();
        }
        self.finish_switch(&seen);
        let record = |host: usize| self.network.hosts[host].model.record.as_ref();
        let newest = seen.iter().filter_map(|host| record(*host)).max_by_key(|record| record.view.number());
        let Some(newest) = newest.cloned() else { return self.again(take_over, trust_remaining) };
        let members = usize::from(newest.geometry.members);
        let mut places: Vec<Option<usize>> = vec![None; members];
        for host in &seen {
            let Some(record) = record(*host) else { continue };
            let (position, incarnation) = (usize::from(record.position), self.network.hosts[*host].model.incarnation);
            if !record.is_of(incarnation) {
                continue;
            }
            let is_member = newest.view.members[position].incarnation == incarnation;
            if places[position].is_none() || is_member {
                places[position] = Some(*host);
            }
        }
        let others = self.names.iter().copied().filter(|host| !places.contains(&Some(*host)));
        let mut others: Vec<usize> = others.collect();
        others.sort_by_key(|host| seen.contains(host) && record(*host).is_some());
        let mut others = others.into_iter();
        let places: Vec<usize> = places.into_iter().map(|place| place.or_else(|| others.next()).unwrap_or(0)).collect();
        let geometry = self.grow_if_wanted(newest.geometry, &places);
        self.geometry = geometry;
        self.tell(|| format!("client {client} attaches with hosts {places:?}"));
        self.begin_client(MachineIntent::Attach { take_over, trust_remaining }, geometry, places);
    }

    fn finish_switch(&mut self, seen: &[usize]) {
        let record = |host: usize| self.network.hosts[host].model.record.as_ref();
        let newest = seen.iter().filter_map(|host| record(*host)).max_by_key(|record| record.view.number());
        let found = |host: usize| {
            let record = record(host)?;
            Some(RecordHolder { record, incarnation: self.network.hosts[host].model.incarnation })
        };
        let pairs = seen.iter().flat_map(|former| seen.iter().map(move |other| (*former, *other)));
        let finished = newest.and_then(|newest| {
            pairs.into_iter().find_map(|(former, other)| {
                let (fenced, finished) = unfinished(newest, found(former)?, found(other)?, 1)?;
                Some([(former, fenced), (other, finished)])
            })
        });
        for (host, record) in finished.into_iter().flatten() {
            self.coverage.met("switches of lost clients finished", 1);
            self.tell(|| format!("host {host} gets the record of a switch that was cut short"));
            self.network.end_all(host, None, true, &mut self.random);
            let model = &mut self.network.hosts[host].model;
            (model.area, model.owner) = (record.encode(), None);
            model.record = Some(record);
        }
    }

    /// The geometry with which the device is attached: the larger one, if it is to grow and all donors are there.
    fn grow_if_wanted(&mut self, geometry: RecordGeometry, places: &[usize]) -> RecordGeometry {
        let client = self.clients.len();
        let are_there = places.iter().all(|host| {
            let is_whole = self.network.hosts[*host].model.record.is_some();
            is_whole && self.network.is_reachable(client, *host)
        });
        if !self.wants_growth || geometry == self.grown || !are_there || !geometry.may_become(&self.grown) {
            return geometry;
        }
        self.wants_growth = false;
        self.coverage.met("devices grown", 1);
        self.grown
    }

    pub fn attached(&mut self, client: usize) {
        self.clients[client].is_attached = true;
        if !self.is_created {
            self.is_created = true;
            let at_us = self.now_us() + 100 * MILLISECOND + self.random.below(400 * MILLISECOND);
            self.network.plan(at_us, MoveNetworkEvent::Begin);
        } else {
            self.coverage.met("attached after the loss of a client", 1);
        }
        match self.stage {
            MoveRunStage::Reread => {
                self.final_left = 0;
                (0..self.values.count()).for_each(|block| self.submit_read(client, block));
            }
            _ => self.start_threads(client),
        }
    }

    pub fn refused(&mut self, client: usize, refusal: AttachRefusal) {
        self.close(client);
        self.tell(|| format!("client {client} is refused: {refusal}"));
        if client != self.current {
            return;
        }
        let trust_remaining = match refusal {
            AttachRefusal::CannotSettle { present, .. } => {
                // The user makes sure that no other client exists, and knows whether the donor that is left has all.
                (0..self.clients.len()).for_each(|other| self.close(other));
                self.has_everything(client, present)
            }
            AttachRefusal::AttachedElsewhere { .. }
            | AttachRefusal::Contended
            | AttachRefusal::TooFew { .. }
            | AttachRefusal::Unreachable
            | AttachRefusal::Slow { .. } => false,
            refusal => return self.break_with(format!("refused: {refusal}")),
        };
        self.again(true, trust_remaining);
    }

    /// Whether a donor of two has the newest acknowledged version of each block.
    fn has_everything(&self, client: usize, donor: usize) -> bool {
        if self.policy != RedundancyPolicy::Mirror {
            return false;
        }
        let (rows, host) = (RowLayout::new(&self.geometry), self.clients[client].places[donor]);
        let memory = &self.network.hosts[host].model.memory;
        (0..self.values.count()).all(|block| {
            // The columns of a mirror are its blocks.
            let Some(member) = rows.member(rows.stripe(block), donor) else { return true };
            let at = rows.offset(block, member) as usize;
            self.values.check(block, self.values.floor(block), &memory[at..at + BLOCK_BYTES]).is_ok()
        })
    }

    /// Ends a client; messages that it sent may still arrive.
    pub fn close(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].is_alive, false) {
            return;
        }
        for at in 0..self.network.connections.len() {
            if self.network.connections[at].client == client {
                self.network.give_up(at, &mut self.random);
            }
        }
        self.clients[client].pending.clear();
        self.tell(|| format!("client {client} has ended"));
    }

    /// Ends a client, and starts another one if it had the device, or was acquiring it.
    pub fn kill(&mut self, client: usize) {
        let was_alive = self.clients[client].is_alive;
        self.close(client);
        if client == self.current && was_alive {
            self.values.crash();
            self.again(true, false);
            self.until_us = self.until_us.max(self.now_us() + 9_000 * MILLISECOND);
        }
    }

    /// Handles the result of a user's request.
    pub fn complete(&mut self, client: usize, id: u64, result: Result<Bytes, DeviceError>) {
        let Some(pending) = self.clients[client].pending.remove(&id) else { return };
        let is_current = client == self.current;
        let is_ended = matches!(result, Err(DeviceError::Superseded | DeviceError::NotAttached));
        if let Err(error) = &result
            && !is_ended
        {
            self.failed += 1;
            self.failed_request(client, &pending, error);
        }
        match pending {
            MoveUserOperation::Read { block, floor } => {
                if let Ok(bytes) = &result
                    && let Err(broken) = self.values.check(block, floor, bytes)
                {
                    self.break_with(format!("{broken}, read by client {client}"));
                }
            }
            MoveUserOperation::Change { block, version, is_forced } => {
                let survives = is_forced || self.policy.is_in_place();
                self.values.end(block, version, result.is_ok() && is_current, survives);
            }
            MoveUserOperation::Flush { versions } if result.is_ok() && is_current => self.values.flushed(&versions),
            MoveUserOperation::Flush { .. } => {}
        }
        if !is_ended && matches!(self.stage, MoveRunStage::Before | MoveRunStage::Procedure) {
            self.plan_submit(client);
        }
    }

    fn failed_request(&mut self, client: usize, pending: &MoveUserOperation, error: &DeviceError) {
        // Parity in place may lose what a missing donor had of unfinished stripes, when the client is lost, too.
        if let (RedundancyPolicy::Parity, MoveUserOperation::Read { block, .. }, DeviceError::Lost { .. }) =
            (self.policy, pending, error)
            && client > 0
        {
            return self.values.forget(*block);
        }
        let is_over = matches!(self.stage, MoveRunStage::Final | MoveRunStage::Reread);
        match error {
            DeviceError::Patience { .. } if !is_over => {}
            error => self.break_with(format!("{pending:?} of client {client} failed: {error}")),
        }
    }

    /// What a donor's record says, for descriptions.
    pub fn describe_hosts(&self) -> Vec<String> {
        let of = |record: &DonorRecord| format!("place {} view {:?}", record.position, record.view.number());
        let hosts = self.network.hosts.iter().enumerate();
        hosts
            .map(|(at, host)| format!("host {at} up {} {:?}", host.is_up, host.model.record.as_ref().map(of)))
            .collect()
    }
}
