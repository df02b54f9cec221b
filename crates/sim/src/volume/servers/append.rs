//! A leader's appends, and what waits for them.
//!
//! Owns: the append in flight, and the outputs that wait until it counts. Promises: an output leaves only after every
//! change before it is stored, and after the lease sectors, read later than that, have shown that no other contender
//! was there: so every later leader reads the append, whatever the clocks did. It follows `server/owner.rs` and
//! `server/batch.rs`.

use std::rc::Rc;

use super::gate::SendReason;
use super::journal::{LeaseSectorModel, Loss};
use super::server::ServerModel;
use crate::volume::bugs::{VolumeModelBug, planted};
use crate::volume::network::{ModelConnection, ServerMessage};
use crate::volume::world::VolumeWorld;

/// An output that waits until all changes before it are durable.
pub enum DurableOutput {
    Say(Rc<ModelConnection>, ServerMessage),
    /// A session is over.
    Lost(Loss),
}

impl ServerModel {
    /// Sends or records something once everything that was changed before is stored.
    pub fn hold(&mut self, out: DurableOutput) {
        match (&self.in_flight, self.is_dirty) {
            (Some(_), false) => self.held.push(out),
            _ => self.next_held.push(out),
        }
    }

    /// Begins to store the changes, if there are any and no append is in flight.
    pub fn begin_append(&mut self, world: &Rc<VolumeWorld>) {
        if self.in_flight.is_some() {
            return;
        }
        if !self.is_dirty {
            let held = std::mem::take(&mut self.next_held);
            held.into_iter().for_each(|out| self.out(world, out, SendReason::Direct));
            if std::mem::take(&mut self.has_actions) {
                self.go_on(world);
            }
            return;
        }
        self.is_dirty = false;
        let image = Rc::new(self.image.clone());
        self.in_flight = Some(image.clone());
        self.held = std::mem::take(&mut self.next_held);
        let loss = |out: &DurableOutput| if let DurableOutput::Lost(loss) = out { Some(loss.clone()) } else { None };
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
    fn verify(&mut self, world: &Rc<VolumeWorld>) {
        if planted(VolumeModelBug::AppendByClock) {
            return self.appended(world);
        }
        let done = |world: &Rc<VolumeWorld>, server: &mut ServerModel, (sectors, _): (Vec<LeaseSectorModel>, u64)| {
            if !world.is_deposed(server.index, &sectors)
                || planted(VolumeModelBug::AppendAfterLease)
                || planted(VolumeModelBug::NoGate)
            {
                return server.appended(world);
            }
            world.coverage.met("14: the sectors show that an append may not count");
            world.end_soon(server.index);
        };
        world.begin_server_io(self.index, |world| world.journal.read_sectors(), done);
    }

    fn appended(&mut self, world: &Rc<VolumeWorld>) {
        self.sequence += 1;
        if self.gate.holds(world.clock_of(self.index)) {
            world.journal.acknowledged.set(world.journal.acknowledged.get().max(self.sequence));
        }
        if let Some(image) = self.in_flight.take() {
            self.durable = image;
        }
        for out in std::mem::take(&mut self.held) {
            self.out(world, out, SendReason::Appended);
        }
        self.go_on(world);
    }

    fn out(&mut self, world: &Rc<VolumeWorld>, out: DurableOutput, path: SendReason) {
        match out {
            DurableOutput::Say(connection, message) => {
                let is_welcome = matches!(message, ServerMessage::Welcome { .. });
                self.send(world, &connection, message, path);
                let session = connection.session.get();
                if is_welcome && connection.is_control && !self.image.is_active(session) {
                    // The session was ended after the greeting.
                    self.hold(DurableOutput::Say(connection, ServerMessage::Evicted));
                } else if is_welcome && connection.is_control {
                    self.controls.insert(session, connection);
                    self.arbiter.repeat(session);
                    self.has_actions = true;
                }
            }
            DurableOutput::Lost(loss) => {
                let session = loss.0;
                self.send_lost(world, loss);
                // Its client gives up what it has, so it must not learn an end that a crash or a takeover could undo.
                self.tell(world, session, ServerMessage::Evicted);
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
