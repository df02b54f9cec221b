//! The gate through which every message of a leader leaves: it is open while the leader's lease holds.
//!
//! Owns: the messages that wait, in their order. Promises: a message passes only if the lease holds at that moment. The
//! process may be stopped between this check and the send, so a message may leave late; clients have rules for that.

use std::collections::VecDeque;
use std::rc::Rc;

use super::image::ModelAnswer;
use super::journal::Loss;
use super::server::ServerModel;
use crate::volume::bugs::{VolumeModelBug, planted};
use crate::volume::executor::MS;
use crate::volume::network::{ModelConnection, ServerMessage};
use crate::volume::world::VolumeWorld;

/// Why a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendReason {
    /// An append was stored before.
    Appended,
    /// Nothing had to be stored.
    Direct,
    /// It answers a request for a file lock.
    Locked,
}

/// What waits at the gate.
enum GateItem {
    Message(Rc<ModelConnection>, ServerMessage, SendReason),
    /// A session is over as soon as others may learn it.
    Lost(Loss),
}

/// The gate of a leader.
#[derive(Default)]
pub struct LeaderGate {
    /// The time on the server's clock before the last successful renewal was written. *Units*: microseconds.
    since_us: u64,
    /// The length of the lease. *Units*: microseconds.
    lease_us: u64,
    queue: VecDeque<GateItem>,
}

impl LeaderGate {
    pub fn new(since_us: u64, lease_ms: u64) -> LeaderGate {
        LeaderGate { since_us, lease_us: lease_ms * MS, queue: VecDeque::new() }
    }

    /// Whether the lease holds at this time on the server's clock.
    pub fn holds(&self, clock_us: u64) -> bool {
        clock_us.saturating_sub(self.since_us) < self.lease_us
    }

    /// Extends the lease.
    pub fn renewed(&mut self, since_us: u64) {
        self.since_us = self.since_us.max(since_us);
    }
}

/// Whether a planted bug lets a message leave without the lease.
fn is_leaked(message: &ServerMessage, path: SendReason) -> bool {
    planted(VolumeModelBug::NoGate)
        || match (message, path) {
            (ServerMessage::Renewed { .. }, _) => planted(VolumeModelBug::RenewedWithoutLeadership),
            (_, SendReason::Locked) => planted(VolumeModelBug::LockWithoutLease),
            (_, SendReason::Appended) => planted(VolumeModelBug::AppendAfterLease),
            (ServerMessage::Answer { reply: Ok(ModelAnswer::Done), .. }, SendReason::Direct) => false,
            (ServerMessage::Answer { .. }, SendReason::Direct) => planted(VolumeModelBug::AnswerAfterLease),
            _ => false,
        }
}

impl GateItem {
    /// Whether a planted bug lets it leave without the lease.
    fn is_leaked(&self) -> bool {
        match self {
            GateItem::Message(_, message, path) => is_leaked(message, *path),
            GateItem::Lost(_) => planted(VolumeModelBug::NoGate) || planted(VolumeModelBug::AppendAfterLease),
        }
    }

    fn leave(self, world: &Rc<VolumeWorld>) {
        match self {
            GateItem::Message(connection, message, _) => world.down(&connection, message),
            GateItem::Lost(loss) => world.lost(loss),
        }
    }
}

impl ServerModel {
    /// Sends a message as soon as the lease holds.
    pub fn send(
        &mut self,
        world: &Rc<VolumeWorld>,
        connection: &Rc<ModelConnection>,
        message: ServerMessage,
        path: SendReason,
    ) {
        self.gate.queue.push_back(GateItem::Message(connection.clone(), message, path));
        self.flush(world);
    }

    /// Records that a session is over as soon as the lease holds.
    pub fn send_lost(&mut self, world: &Rc<VolumeWorld>, loss: Loss) {
        self.gate.queue.push_back(GateItem::Lost(loss));
        self.flush(world);
    }

    /// Sends what waits, if the lease holds.
    pub fn flush(&mut self, world: &Rc<VolumeWorld>) {
        let process = &world.processes[self.index];
        while !process.is_stopped() && self.gate.holds(world.clock_of(self.index)) {
            let Some(item) = self.gate.queue.pop_front() else { return };
            match item {
                GateItem::Message(connection, message, _) if world.stops_at_gate(self.index, &message) => {
                    process.keep_passed(connection, message);
                }
                item => {
                    if let GateItem::Message(connection, ..) = &item
                        && world.journal.stored.borrow().epoch > self.epoch
                    {
                        connection.is_deceived.set(true);
                    }
                    item.leave(world);
                }
            }
        }
        if process.is_stopped() {
            return;
        }
        // Without the lease, only what a planted bug lets through leaves.
        for item in std::mem::take(&mut self.gate.queue) {
            match item.is_leaked() {
                true => item.leave(world),
                false => self.gate.queue.push_back(item),
            }
        }
        if !self.gate.queue.is_empty() {
            world.coverage.met("14: a message waits at the gate");
        }
    }
}
