//! The faults of a run: hosts pause or are lost, connections are lost or silent, servers crash or are stopped, and the
//! disk is slow or hangs.
//!
//! Owns: the times and kinds of faults. Promises: a run has at least [`FAULTS`](super::FAULTS) faults.

use std::cell::Cell;
use std::rc::Rc;

use super::FAULTS;
use super::client::VolumeClientModel;
use super::executor::MS;
use super::network::ServerMessage;
use super::world::{LEASE_MS, VolumeWorld};
use crate::random::SimulationRandom;

/// The planned faults, and the number of faults so far.
#[derive(Debug, Default)]
pub struct VolumeFaults {
    planned: u64,
    pub done: Cell<u64>,
    /// A host whose client will be paused between a check and the step that relies on it, and the duration in
    /// microseconds.
    armed: Cell<Option<(usize, u64)>>,
    /// A server that crashes at its next grant.
    crashes_at_grant: Cell<Option<usize>>,
    /// A server that is stopped between the gate's check and the send, and the duration in microseconds.
    stops_at_gate: Cell<Option<(usize, u64)>>,
    /// A server whose disk hangs from its next append on, the duration, and whether the server is stopped, too.
    hangs_at_append: Cell<Option<(usize, u64, bool)>>,
    /// The server that led last.
    last_leader: Cell<Option<usize>>,
    /// Whether the next server that takes over is stopped or crashes during grace.
    disturbs_grace: Cell<bool>,
    /// Whether the disk of the next server that takes over hangs before its seal.
    disturbs_seal: Cell<bool>,
    /// For each host and server, the time until which the host cannot reach the server.
    cuts_us: [[Cell<u64>; 2]; 3],
    /// For each host and server, the time until which messages between them do not arrive.
    silent_us: [[Cell<u64>; 2]; 3],
}

impl VolumeFaults {
    pub fn new(random: &mut SimulationRandom) -> VolumeFaults {
        VolumeFaults { planned: FAULTS + random.below(4), ..VolumeFaults::default() }
    }

    pub fn is_done(&self) -> bool {
        self.done.get() >= self.planned
    }
}

impl VolumeWorld {
    pub fn plan_fault(self: &Rc<VolumeWorld>) {
        let at = self.now() + 20 * MS + self.below(250 * MS);
        self.at(at, |world| {
            if world.is_working() && !world.faults.is_done() {
                world.fault();
                world.plan_fault();
            }
        });
    }

    /// Plans the next loss of a connection; such losses occur in addition to the faults.
    pub fn plan_loss(self: &Rc<VolumeWorld>) {
        let at = self.now() + 20 * MS + self.below(150 * MS);
        self.at(at, |world| {
            if world.is_working() {
                let host = world.below(world.hosts.borrow().len() as u64) as usize;
                world.lose_host(host, &[world.chance(30)]);
                world.plan_loss();
            }
        });
    }

    /// Whether a host cannot reach a server.
    pub fn is_cut(&self, host: usize, index: usize) -> bool {
        self.faults.cuts_us[host][index].get() > self.now()
    }

    /// The time until which messages between a host and a server do not arrive.
    pub fn silent_until(&self, host: usize, index: usize) -> u64 {
        self.faults.silent_us[host][index].get()
    }

    /// Ends all faults.
    pub fn heal(self: &Rc<VolumeWorld>) {
        let faults = &self.faults;
        faults.armed.set(None);
        faults.crashes_at_grant.set(None);
        faults.stops_at_gate.set(None);
        faults.hangs_at_append.set(None);
        faults.disturbs_grace.set(false);
        faults.disturbs_seal.set(false);
        faults.cuts_us.iter().chain(&faults.silent_us).flatten().for_each(|until| until.set(0));
        self.disk.slow_until.set(0);
        for process in &self.processes {
            process.hung_until.set(0);
            process.slow_until.set(0);
            self.end_stop(process.index);
        }
    }

    /// Pauses a client if that is planned. The caller has just checked the lease and is about to begin I/O, or has just
    /// received an answer and is about to use it.
    pub fn before_a_pause(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>) {
        if let Some((host, us)) = self.faults.armed.get()
            && host == client.host
        {
            self.faults.armed.set(None);
            self.coverage.met("a client pauses between a check and what follows");
            client.pause(self, us, false);
        }
    }

    /// Pauses a client if that is planned, and loses its connections once the answer has reached its host. The caller
    /// has just sent a renewal.
    pub fn after_renewal(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>) {
        if self.chance(10) && self.faults.armed.get().is_some_and(|(host, _)| host == client.host) {
            self.coverage.met("a client pauses between a renewal and its answer");
            self.before_a_pause(client);
            let host = client.host;
            self.at(self.now() + 5 * MS, move |world| world.lose_host(host, &[true, false]));
        }
    }

    /// Crashes a server soon if that is planned. The caller has just sent a grant.
    pub fn after_grant(self: &Rc<VolumeWorld>, index: usize) {
        if self.faults.crashes_at_grant.get() == Some(index) {
            self.faults.crashes_at_grant.set(None);
            self.at(self.now() + self.below(300), move |world| {
                world.restart(index, MS + world.below(5 * MS), "a server crashes as it grants");
            });
        }
    }

    /// Stops a server if that is planned, and returns whether it is stopped. The caller has just seen that the lease
    /// holds, and is about to send a message.
    pub fn stops_at_gate(self: &Rc<VolumeWorld>, index: usize, message: &ServerMessage) -> bool {
        let planned = self.faults.stops_at_gate.get().filter(|(of, _)| *of == index);
        let percent = if matches!(message, ServerMessage::Welcome { .. }) { 70 } else { 15 };
        let Some((_, us)) = planned.filter(|_| self.chance(percent)) else { return false };
        self.faults.stops_at_gate.set(None);
        self.coverage.met("14: a leader is stopped between the gate's check and the send");
        self.stop(index, us, self.chance(30));
        true
    }

    /// Lets a server's disk hang if that is planned. The caller has just begun an append.
    pub fn after_append_began(self: &Rc<VolumeWorld>, index: usize) {
        let Some((of, us, stops)) = self.faults.hangs_at_append.get() else { return };
        if of == index {
            self.faults.hangs_at_append.set(None);
            self.coverage.met("14: a leader's disk hangs during an append");
            self.hang(index, us);
            if stops {
                self.stop(index, us + self.below(20 * MS), true);
            }
        }
    }

    /// Lets the disk of a server that is about to take over hang, if that is planned.
    pub fn before_seal(self: &Rc<VolumeWorld>, index: usize) {
        if self.faults.disturbs_seal.replace(false) {
            self.coverage.met("14: the disk of a server that takes over hangs before its seal");
            self.hang(index, self.longer_than_lease());
        }
    }

    /// Disturbs a new leader if that is planned.
    pub fn after_takeover(self: &Rc<VolumeWorld>, index: usize) {
        if self.processes.len() > 1 && self.faults.last_leader.replace(Some(index)).is_some_and(|last| last != index) {
            self.coverage.met("14: another server leads");
        }
        if !self.faults.disturbs_grace.replace(false) {
            return;
        }
        self.at(self.now() + self.below(20 * MS), move |world| {
            let process = &world.processes[index];
            if process.is_leading() && process.server.borrow().is_grace() {
                world.coverage.met("14: a new leader is lost during grace");
                match world.chance(50) {
                    true => world.end_process(index, world.below(50 * MS)),
                    false => world.stop(index, world.longer_than_lease(), false),
                }
            }
        });
    }

    /// Chooses a time after which another server leads.
    fn longer_than_lease(&self) -> u64 {
        (self.server_lease_ms * 3 / 2 + self.below(2 * LEASE_MS)) * MS
    }

    fn shorter_than_lease(&self) -> u64 {
        MS + self.below(self.server_lease_ms * MS * 3 / 4)
    }

    fn hang(self: &Rc<VolumeWorld>, index: usize, us: u64) {
        let until = self.now() + us;
        self.tell(|| format!("the disk of server {index} hangs for {us} us"));
        let process = &self.processes[index];
        process.hung_until.set(process.hung_until.get().max(until));
    }

    /// Cuts a host from a server: connections are lost, or nothing arrives any more.
    fn cut_off(self: &Rc<VolumeWorld>, host: usize, index: usize, us: u64) {
        self.tell(|| format!("host {host} is cut from server {index} for {us} us"));
        let until = self.now() + us;
        self.faults.cuts_us[host][index].set(until);
        match self.chance(50) {
            true => self.lose_between(host, index),
            false => self.faults.silent_us[host][index].set(until),
        }
    }

    fn fault(self: &Rc<VolumeWorld>) {
        self.faults.done.set(self.faults.done.get() + 1);
        let leader = self.processes.iter().filter(|process| process.is_leading() && !process.is_stopped());
        let leader = leader.max_by_key(|process| process.server.borrow().epoch).map(|process| process.index);
        match leader.filter(|_| self.chance(45)) {
            Some(leader) => self.fault_of_server(leader),
            None => self.fault_of_host(leader.unwrap_or(0)),
        }
    }

    fn fault_of_host(self: &Rc<VolumeWorld>, leader: usize) {
        let host = self.below(self.hosts.borrow().len() as u64) as usize;
        let client = self.client_of(host);
        let short = MS + self.below(LEASE_MS * MS / 2);
        let long = (LEASE_MS + self.below(2 * LEASE_MS)) * MS;
        let kind = self.below(100);
        self.tell(|| format!("FAULT {kind} of host {host}, client {}", client.number));
        match kind {
            0..12 => self.pause(&client, short, "a client pauses for less than its lease", false),
            12..27 => self.pause(&client, long, "a client pauses for longer than its lease", false),
            27..35 => self.pause(&client, long, "5: a client pauses, and its clock too", true),
            35..47 => self.faults.armed.set(Some((host, if self.chance(70) { long } else { short }))),
            47..60 => {
                self.coverage.met("a client is lost");
                if !client.is_dead.get() {
                    self.kill(&client, MS + self.below(300 * MS));
                }
            }
            60..66 => self.restart(leader, short, "a server restarts"),
            66..72 => self.faults.crashes_at_grant.set(Some(leader)),
            72..78 => self.restart(leader, long, "6: a server is away for longer than a lease"),
            78..87 => {
                let roles: &[bool] = [&[true][..], &[false], &[true, false]][self.below(3) as usize];
                self.coverage.met("a connection is lost");
                self.lose_host(host, roles);
            }
            87..95 => {
                self.coverage.met("a host has no way to a server for longer than its lease");
                (0..self.processes.len()).for_each(|index| self.cut_off(host, index, long));
            }
            _ => {
                self.coverage.met("the disk is slow");
                self.disk.slow_until.set(self.now() + long);
            }
        }
    }

    fn fault_of_server(self: &Rc<VolumeWorld>, leader: usize) {
        let (short, long) = (self.shorter_than_lease(), self.longer_than_lease());
        let host = self.below(self.hosts.borrow().len() as u64) as usize;
        let kind = self.below(100);
        self.tell(|| format!("FAULT {kind} of server {leader}"));
        self.faults.disturbs_grace.set(self.chance(25));
        self.faults.disturbs_seal.set(self.chance(15));
        if self.processes.len() > 1 {
            match self.below(100) {
                0..30 => {
                    self.coverage.met("15: a host reaches only the old leader");
                    self.cut_off(host, 1 - leader, long + LEASE_MS * MS);
                }
                30..50 => {
                    self.coverage.met("15: a host reaches only the next leader");
                    self.cut_off(host, leader, long + LEASE_MS * MS);
                }
                _ => {}
            }
        }
        match kind {
            0..8 => {
                self.coverage.met("14: a leader is stopped for less than its lease");
                self.stop(leader, short, self.chance(30));
            }
            8..18 => {
                self.coverage.met("14: a leader is stopped for longer than its lease");
                self.stop(leader, long, self.chance(50));
            }
            18..24 => {
                self.coverage.met("14: a leader runs only for moments");
                self.stutter(leader, self.now() + long + LEASE_MS * MS);
            }
            24..31 => self.stop_with_clock(leader, long),
            31..47 => {
                self.faults.stops_at_gate.set(Some((leader, long)));
                if self.chance(40) {
                    self.lose_host(host, &[self.chance(50)]);
                }
            }
            47..53 => {
                self.coverage.met("14: a leader's disk hangs for less than its lease");
                self.hang(leader, short);
            }
            53..62 => {
                self.coverage.met("14: a leader's disk hangs for longer than its lease");
                self.hang(leader, long);
            }
            62..72 => {
                self.coverage.met("14: each I/O of a leader takes almost as long as its lease");
                let us = self.server_lease_ms * 4 * MS;
                self.processes[leader].slow_until.set(self.now() + us);
                if self.processes.len() > 1 {
                    // Some hosts use the old leader as long as it lives, others the next one.
                    self.cut_off(host, leader, us);
                    self.cut_off((host + 1) % self.hosts.borrow().len(), 1 - leader, us);
                }
            }
            72..82 => self.faults.hangs_at_append.set(Some((leader, long, self.chance(60)))),
            82..89 => {
                self.coverage.met("14: a leader's network is cut while its disk works");
                (0..self.hosts.borrow().len()).for_each(|host| self.cut_off(host, leader, long));
            }
            _ => {
                self.coverage.met("15: a host does not reach the leader");
                self.cut_off(host, leader, long);
            }
        }
    }

    fn pause(self: &Rc<VolumeWorld>, client: &Rc<VolumeClientModel>, us: u64, what: &'static str, stops_clock: bool) {
        self.coverage.met(what);
        client.pause(self, us, stops_clock);
    }

    fn restart(self: &Rc<VolumeWorld>, index: usize, us: u64, what: &'static str) {
        let process = &self.processes[index];
        if !process.is_alive.get() {
            return;
        }
        self.coverage.met(what);
        if process.is_leading() && process.server.borrow().is_grace() {
            self.coverage.met("9: a server crashes before all sessions have reclaimed");
        }
        self.end_process(index, us);
        if self.chance(25) {
            // It crashes again before all clients have reconnected.
            let soon = self.now() + us + self.below(30 * MS);
            self.at(soon, move |world| world.restart(index, 5 * MS, "9: a server crashes again soon"));
        }
    }
}
