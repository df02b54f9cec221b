//! Messages between clients and donors, in virtual time.
//!
//! Owns: the queue of future events, connections and cuts. Promises: messages of one connection arrive in order;
//! messages that a client sent before it abandoned a connection may still arrive, late. Leaves to others: the handling
//! of messages (`world`).

use std::collections::BTreeMap;

use nectary_ram::group::{DonorRequest, MachineEvent, RequestId};

use super::donor::ConnectionId;
use crate::random::SimulationRandom;

/// The number of a client.
pub type ClientId = usize;
/// A millisecond. *Units*: microseconds.
pub const MILLISECOND: u64 = 1000;

/// A future event.
#[derive(Debug)]
pub enum RamNetworkEvent {
    /// A client tries to connect to a donor.
    Connect { client: ClientId, donor: usize },
    /// A request arrives.
    AtDonor { connection: ConnectionId, request: RequestId, body: DonorRequest, is_late: bool },
    /// A request that has arrived is executed.
    Execute { connection: ConnectionId, request: RequestId, body: DonorRequest },
    /// An event arrives at a client.
    AtClient { connection: ConnectionId, event: MachineEvent },
    /// The donor sees that a connection has ended.
    DonorSeesEnd { connection: ConnectionId },
    /// The client sees that a connection has ended.
    ClientSeesEnd { connection: ConnectionId },
    /// A client's timer expires.
    Wake { client: ClientId },
    /// A thread of a client's user does its next operation.
    Submit { client: ClientId },
    /// The next fault happens.
    Fault,
    /// A client is started.
    Start { take_over: bool, trust_remaining: bool },
    /// A client is killed.
    Kill { client: ClientId },
    /// The end of a pause of a client that was cut off from all donors during the pause.
    PauseEnds { client: ClientId },
}

/// A connection.
#[derive(Debug)]
pub struct RamConnection {
    pub client: ClientId,
    pub donor: usize,
    /// Whether the client still uses it.
    pub is_client_open: bool,
    /// Whether the donor still serves it.
    pub is_donor_open: bool,
    /// Whether the donor finishes the requests that it was executing when it saw the end.
    pub is_finished: bool,
    /// The extra delay of messages in flight when the client abandoned the connection; `None` if they are lost.
    pub late_us: Option<u64>,
    /// The times at which the last message arrives at the donor and at the client.
    down_us: u64,
    up_us: u64,
}

/// The queue of events, the connections and the cuts.
#[derive(Debug)]
pub struct RamNetwork {
    pub now_us: u64,
    queue: BTreeMap<(u64, u64), RamNetworkEvent>,
    next: u64,
    pub connections: Vec<RamConnection>,
    cuts: BTreeMap<(ClientId, usize), u64>,
}

impl RamNetwork {
    pub fn new() -> RamNetwork {
        RamNetwork { now_us: 0, queue: BTreeMap::new(), next: 0, connections: Vec::new(), cuts: BTreeMap::new() }
    }

    /// Plans an event at `at_us`, after events planned earlier for the same time.
    pub fn plan(&mut self, at_us: u64, happening: RamNetworkEvent) {
        self.next += 1;
        self.queue.insert((at_us.max(self.now_us), self.next), happening);
    }

    /// Returns the next event, and advances the time to it.
    pub fn pop(&mut self) -> Option<RamNetworkEvent> {
        let ((at_us, _), happening) = self.queue.pop_first()?;
        self.now_us = at_us;
        Some(happening)
    }

    /// Cuts a client and a donor off from each other until `until_us`.
    pub fn cut(&mut self, client: ClientId, donor: usize, until_us: u64) {
        let until = self.cuts.entry((client, donor)).or_default();
        *until = (*until).max(until_us);
    }

    /// Ends all cuts.
    pub fn heal(&mut self) {
        self.cuts.clear();
    }

    /// Returns the time until which a client and a donor are cut off from each other, if they are.
    pub fn cut_until(&self, client: ClientId, donor: usize) -> Option<u64> {
        self.cuts.get(&(client, donor)).copied().filter(|until_us| *until_us > self.now_us)
    }

    pub fn connect(&mut self, client: ClientId, donor: usize, random: &mut SimulationRandom) -> ConnectionId {
        let late_us = if random.chance(70) { Some(random.below(700) * MILLISECOND * random.below(2)) } else { None };
        self.connections.push(RamConnection {
            client,
            donor,
            is_client_open: true,
            is_donor_open: true,
            is_finished: random.chance(50),
            late_us,
            down_us: 0,
            up_us: 0,
        });
        self.connections.len() - 1
    }

    /// The arrival time of a message that a client sends now.
    pub fn down(&mut self, connection: ConnectionId, random: &mut SimulationRandom) -> u64 {
        let connection = &mut self.connections[connection];
        connection.down_us = connection.down_us.max(self.now_us + delay_us(random));
        connection.down_us
    }

    /// The arrival time of a message that a donor sends now.
    pub fn up(&mut self, connection: ConnectionId, random: &mut SimulationRandom) -> u64 {
        let connection = &mut self.connections[connection];
        connection.up_us = connection.up_us.max(self.now_us + delay_us(random));
        connection.up_us
    }

    /// The client abandons a connection; the donor sees that before or after the messages in flight.
    pub fn give_up(&mut self, connection: ConnectionId, random: &mut SimulationRandom) {
        if !std::mem::replace(&mut self.connections[connection].is_client_open, false) {
            return;
        }
        let late_us = self.connections[connection].late_us.unwrap_or(0);
        let at_us = self.now_us + late_us + random.below(20) * MILLISECOND;
        self.plan(at_us, RamNetworkEvent::DonorSeesEnd { connection });
    }

    /// The donor ends a connection.
    pub fn end(&mut self, connection: ConnectionId, random: &mut SimulationRandom) {
        if std::mem::replace(&mut self.connections[connection].is_donor_open, false)
            && self.connections[connection].is_client_open
        {
            let at_us = self.up(connection, random);
            self.plan(at_us, RamNetworkEvent::ClientSeesEnd { connection });
        }
    }

    /// Whether no message of a connection is on its way, and no request is being executed.
    pub fn is_idle(&self, connection: ConnectionId) -> bool {
        let is_its = |happening: &RamNetworkEvent| match happening {
            RamNetworkEvent::AtDonor { connection: of, .. }
            | RamNetworkEvent::Execute { connection: of, .. }
            | RamNetworkEvent::AtClient { connection: of, .. } => *of == connection,
            _ => false,
        };
        !self.queue.values().any(is_its)
    }

    /// Returns the connections that a donor serves.
    pub fn served(&self, donor: usize) -> Vec<ConnectionId> {
        let is_served = |at: &usize| self.connections[*at].donor == donor && self.connections[*at].is_donor_open;
        (0..self.connections.len()).filter(is_served).collect()
    }

    /// Removes and returns the requests of some connections that have arrived and are not executed yet.
    pub fn take_arrived(&mut self, connections: &[ConnectionId]) -> Vec<(ConnectionId, DonorRequest)> {
        let is_theirs = |happening: &RamNetworkEvent| matches!(happening, RamNetworkEvent::Execute { connection, .. } if connections.contains(connection));
        let numbers: Vec<_> =
            self.queue.iter().filter(|(_, happening)| is_theirs(happening)).map(|(number, _)| *number).collect();
        let taken = numbers.into_iter().filter_map(|number| self.queue.remove(&number));
        taken
            .filter_map(|happening| match happening {
                RamNetworkEvent::Execute { connection, body, .. } => Some((connection, body)),
                _ => None,
            })
            .collect()
    }
}

fn delay_us(random: &mut SimulationRandom) -> u64 {
    match random.below(100) {
        0..3 => random.below(8 * MILLISECOND),
        _ => 20 + random.below(280),
    }
}
