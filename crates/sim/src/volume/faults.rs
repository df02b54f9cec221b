//! The faults of a run: hosts pause or are lost, connections are lost, servers crash, and the disk is slow.
//!
//! Owns: the times and kinds of faults. Promises: a run has at least [`FAULTS`](super::FAULTS) faults.

use std::cell::Cell;
use std::rc::Rc;

use super::FAULTS;
use super::client::Client;
use super::executor::MS;
use super::world::{LEASE_MS, World};
use crate::random::Random;

/// The planned faults, and the number of faults so far.
#[derive(Debug, Default)]
pub struct Faults {
    planned: u64,
    pub done: Cell<u64>,
    /// A host whose client will be paused between a check and the step that relies on it, and the duration in
    /// microseconds.
    armed: Cell<Option<(usize, u64)>>,
    /// Whether the server crashes at its next grant.
    crashes_at_grant: Cell<bool>,
    /// For each host, the time until which it cannot reach the server.
    cuts_us: [Cell<u64>; 3],
}

impl Faults {
    pub fn new(random: &mut Random) -> Faults {
        Faults { planned: FAULTS + random.below(4), ..Faults::default() }
    }

    pub fn is_done(&self) -> bool {
        self.done.get() >= self.planned
    }
}

impl World {
    pub fn plan_fault(self: &Rc<World>) {
        let at = self.now() + 20 * MS + self.below(250 * MS);
        self.at(at, |world| {
            if world.is_working() && !world.faults.is_done() {
                world.fault();
                world.plan_fault();
            }
        });
    }

    /// Plans the next loss of a connection; such losses occur in addition to the faults.
    pub fn plan_loss(self: &Rc<World>) {
        let at = self.now() + 20 * MS + self.below(150 * MS);
        self.at(at, |world| {
            if world.is_working() {
                let host = world.below(world.hosts.borrow().len() as u64) as usize;
                world.lose_all(Some(host), &[world.chance(30)]);
                world.plan_loss();
            }
        });
    }

    pub fn is_cut(&self, host: usize) -> bool {
        self.faults.cuts_us[host].get() > self.now()
    }

    /// Ends all faults.
    pub fn heal(self: &Rc<World>) {
        self.faults.armed.set(None);
        self.faults.crashes_at_grant.set(false);
        self.faults.cuts_us.iter().for_each(|cut| cut.set(0));
        self.disk.slow_until.set(0);
    }

    /// Pauses a client if that is planned. The caller has just checked the lease and is about to begin I/O, or has just
    /// received an answer and is about to use it.
    pub fn before_a_pause(self: &Rc<World>, client: &Rc<Client>) {
        if let Some((host, us)) = self.faults.armed.get()
            && host == client.host
        {
            self.faults.armed.set(None);
            self.coverage.met("a client pauses between a check and what follows");
            client.pause(self, us, false);
        }
    }

    /// Crashes the server soon if that is planned. The caller has just sent a grant.
    pub fn after_grant(self: &Rc<World>) {
        if self.faults.crashes_at_grant.replace(false) {
            self.at(self.now() + self.below(300), |world| {
                world.restart(MS + world.below(5 * MS), "a server crashes as it grants");
            });
        }
    }

    fn fault(self: &Rc<World>) {
        let host = self.below(self.hosts.borrow().len() as u64) as usize;
        let client = self.client_of(host);
        let short = MS + self.below(LEASE_MS * MS / 2);
        let long = (LEASE_MS + self.below(2 * LEASE_MS)) * MS;
        self.faults.done.set(self.faults.done.get() + 1);
        let kind = self.below(100);
        self.tell(|| format!("FAULT {kind} of host {host}, client {}", client.number));
        match kind {
            0..12 => self.pause(&client, short, "a client pauses for less than its lease", false),
            12..27 => self.pause(&client, long, "a client pauses for longer than its lease", false),
            27..35 => self.pause(&client, long, "5: a client pauses, and its clock too", true),
            35..47 => self.faults.armed.set(Some((host, if self.chance(70) { long } else { short }))),
            47..59 => {
                self.coverage.met("a client is lost");
                if !client.is_dead.get() {
                    self.kill(&client, MS + self.below(300 * MS));
                }
            }
            59..65 => self.restart(short, "a server restarts"),
            65..71 => self.faults.crashes_at_grant.set(true),
            71..77 => self.restart(long, "6: a server is away for longer than a lease"),
            77..86 => {
                let roles: &[bool] = [&[true][..], &[false], &[true, false]][self.below(3) as usize];
                self.coverage.met("a connection is lost");
                self.lose_all(Some(host), roles);
            }
            86..95 => {
                self.coverage.met("a host has no way to the server for longer than its lease");
                self.faults.cuts_us[host].set(self.now() + long);
                self.lose_all(Some(host), &[true, false]);
            }
            _ => {
                self.coverage.met("the disk is slow");
                self.disk.slow_until.set(self.now() + long);
            }
        }
    }

    fn pause(self: &Rc<World>, client: &Rc<Client>, us: u64, what: &'static str, stops_clock: bool) {
        self.coverage.met(what);
        client.pause(self, us, stops_clock);
    }

    fn restart(self: &Rc<World>, us: u64, what: &'static str) {
        if !self.server.borrow().is_up {
            return;
        }
        self.coverage.met(what);
        self.server.borrow_mut().crash(self);
        self.at(self.now() + us, |world| {
            world.server.borrow_mut().start(world);
            if world.chance(25) {
                // The server crashes again before all clients have reconnected.
                let soon = world.now() + world.below(30 * MS);
                world.at(soon, |world| world.restart(5 * MS, "9: a server crashes again soon"));
            }
        });
    }
}
