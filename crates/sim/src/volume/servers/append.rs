//! A leader's appends, and what waits for them.
//!
//! Owns: the append in flight, and the outputs that wait until it counts. Promises: an output leaves only after every
//! change before it is stored, and after the lease sectors, read later than that, have shown that no other contender
//! was there: so every later leader reads the append, whatever the clocks did. It follows `server/owner.rs` and
//! `server/batch.rs`.

use std::rc::Rc;

use super::gate::Path;
use super::journal::{Loss, Sector};
use super::server::Server;
use crate::volume::bugs::{Bug, planted};
use crate::volume::network::{Connection, Down};
use crate::volume::world::World;

/// An output that waits until all changes before it are durable.
pub enum Out {
    Say(Rc<Connection>, Down),
    /// A session is over.
    Lost(Loss),
}

impl Server {
    /// Sends or records something once everything that was changed before is stored.
    pub fn hold(&mut self, out: Out) {
        match (&self.in_flight, self.is_dirty) {
            (Some(_), false) => self.held.push(out),
            _ => self.next_held.push(out),
        }
    }

    /// Begins to store the changes, if there are any and no append is in flight.
    pub fn begin_append(&mut self, world: &Rc<World>) {
        if self.in_flight.is_some() {
            return;
        }
        if !self.is_dirty {
            let held = std::mem::take(&mut self.next_held);
            held.into_iter().for_each(|out| self.out(world, out, Path::Direct));
            if std::mem::take(&mut self.has_actions) {
                self.go_on(world);
            }
            return;
        }
        self.is_dirty = false;
        let image = Rc::new(self.image.clone());
        self.in_flight = Some(image.clone());
        self.held = std::mem::take(&mut self.next_held);
        let loss = |out: &Out| if let Out::Lost(loss) = out { Some(loss.clone()) } else { None };
        let losses = self.held.iter().filter_map(loss).collect();
        let (epoch, sequence) = (self.epoch, self.sequence + 1);
        world.begin_server_io(
            self.index,
            move |world| world.journal.append(world, epoch, sequence, image, losses),
            |world, server, ()| server.verify(world),
        );
        world.after_append_began(self.index);
    }

    /// Reads the lease sectors after an append: only that shows that the append counts, because the clock may have
    /// stood still.
    fn verify(&mut self, world: &Rc<World>) {
        if planted(Bug::AppendByClock) {
            return self.appended(world);
        }
        let done = |world: &Rc<World>, server: &mut Server, (sectors, _): (Vec<Sector>, u64)| {
            if !world.is_deposed(server.index, &sectors) || planted(Bug::AppendAfterLease) || planted(Bug::NoGate) {
                return server.appended(world);
            }
            world.coverage.met("14: the sectors show that an append may not count");
            world.end_soon(server.index);
        };
        world.begin_server_io(self.index, |world| world.journal.read_sectors(), done);
    }

    fn appended(&mut self, world: &Rc<World>) {
        self.sequence += 1;
        if self.gate.holds(world.clock_of(self.index)) {
            world.journal.acknowledged.set(world.journal.acknowledged.get().max(self.sequence));
        }
        if let Some(image) = self.in_flight.take() {
            self.durable = image;
        }
        for out in std::mem::take(&mut self.held) {
            self.out(world, out, Path::Appended);
        }
        self.go_on(world);
    }

    fn out(&mut self, world: &Rc<World>, out: Out, path: Path) {
        match out {
            Out::Say(connection, message) => {
                let is_welcome = matches!(message, Down::Welcome { .. });
                self.send(world, &connection, message, path);
                let session = connection.session.get();
                if is_welcome && connection.is_control && !self.image.is_active(session) {
                    // The session was ended after the greeting.
                    self.hold(Out::Say(connection, Down::Evicted));
                } else if is_welcome && connection.is_control {
                    self.controls.insert(session, connection);
                    self.arbiter.repeat(session);
                    self.has_actions = true;
                }
            }
            Out::Lost(loss) => {
                let session = loss.0;
                self.send_lost(world, loss);
                // Its client gives up what it has, so it must not learn an end that a crash or a takeover could undo.
                self.tell(world, session, Down::Evicted);
                self.controls.remove(&session);
                // Grant the tokens of the session to others only now: before its end was durable, a crash could have
                // brought the session back.
                self.arbiter.forget(self.ms(world), session);
                let said = self.locking.forget(session);
                self.say_locks(world, said);
                self.has_actions = true;
            }
        }
    }
}
