//! Hosts that lend memory, connections to them, and the queue of events, in virtual time.
//!
//! Owns: the order of messages, and what cuts, pauses and kills do to them. Promises: answers of one connection arrive
//! in order; a host executes the requests of one connection in any order, as they may overtake each other there; those
//! that a client sent before it gave a connection up may still be executed.

use std::collections::BTreeMap;

use nectary_ram::group::{DonorReply, DonorRequest};

use crate::ram::donor::DonorModel;
use crate::random::SimulationRandom;

/// A millisecond. *Units*: microseconds.
pub const MILLISECOND: u64 = 1000;
/// After this time a connection without answers ends.
const UNSEEN_US: u64 = 3000 * MILLISECOND;

/// Why a client sent a request.
#[derive(Debug, Clone)]
pub enum RequestPurpose {
    /// The machine did.
    Machine(u64),
    /// A move: the metadata area of the other donor, then that of the former one, then the record, then the trim.
    OtherArea(u64),
    FormerArea(u64, bytes::Bytes),
    Stored(u64),
    Trimmed(u64),
    /// A part is copied: read from the former donor, written to the other one.
    Read(u64, u64),
    Written(u64, u64),
    /// A donor is emptied: its metadata area, then the exchange. The number is that of the move that waits for it.
    Area(Option<u64>),
    Emptied(Option<u64>),
}

/// A future event.
#[derive(Debug)]
pub enum MoveNetworkEvent {
    /// A client tries to connect to the donor of a place.
    Connect { client: usize, place: usize, attempt: u64 },
    /// A connection is there.
    Connected { connection: usize },
    /// A host executes a request.
    AtHost { connection: usize, tag: RequestPurpose, body: DonorRequest },
    /// An answer arrives at its client.
    AtClient { connection: usize, tag: RequestPurpose, reply: DonorReply },
    /// The host sees the end of a connection.
    HostSeesEnd { connection: usize },
    /// The client sees the end of a connection.
    ClientSeesEnd { connection: usize },
    /// The timer of a client.
    Wake { client: usize },
    /// A client asks which donors are leaving.
    Look { client: usize },
    /// The other donor of a move does not answer.
    MoveFails { client: usize, number: u64 },
    /// A thread of the user does its next operation.
    Submit { client: usize },
    /// A client is started.
    Start { take_over: bool, trust_remaining: bool },
    /// The procedure of the run begins.
    Begin,
    /// A client ends.
    Kill { client: usize },
    /// A host is there again, with empty memory.
    Return { host: usize },
    /// A host that is leaving ends.
    Leaves { host: usize },
}

/// A host.
#[derive(Debug)]
pub struct LendingHost {
    pub model: DonorModel,
    pub is_up: bool,
    pub is_leaving: bool,
    pub paused_until_us: u64,
}

/// A connection.
#[derive(Debug)]
pub struct HostConnection {
    pub client: usize,
    pub host: usize,
    /// The place whose donor it reaches; `None`: that of a move.
    pub place: Option<usize>,
    pub is_client_open: bool,
    pub is_host_open: bool,
    down_us: u64,
    up_us: u64,
}

/// The queue, the hosts and the connections.
pub struct HostNetwork {
    pub now_us: u64,
    queue: BTreeMap<(u64, u64), MoveNetworkEvent>,
    next: u64,
    pub hosts: Vec<LendingHost>,
    pub connections: Vec<HostConnection>,
    /// Until when a client and a host are cut off from each other.
    pub cuts: BTreeMap<(usize, usize), u64>,
}

impl HostNetwork {
    pub fn new(hosts: Vec<LendingHost>) -> HostNetwork {
        let (queue, cuts) = (BTreeMap::new(), BTreeMap::new());
        HostNetwork { now_us: 0, queue, next: 0, hosts, connections: Vec::new(), cuts }
    }

    pub fn plan(&mut self, at_us: u64, happening: MoveNetworkEvent) {
        self.next += 1;
        self.queue.insert((at_us.max(self.now_us), self.next), happening);
    }

    pub fn pop(&mut self) -> Option<MoveNetworkEvent> {
        let ((at_us, _), happening) = self.queue.pop_first()?;
        self.now_us = at_us;
        Some(happening)
    }

    /// Until when messages between a client and a host wait; `None`: they do not.
    pub fn held_until(&self, client: usize, host: usize) -> Option<u64> {
        let cut_us = self.cuts.get(&(client, host)).copied().unwrap_or(0);
        Some(cut_us.max(self.hosts[host].paused_until_us)).filter(|until_us| *until_us > self.now_us)
    }

    pub fn is_reachable(&self, client: usize, host: usize) -> bool {
        self.hosts[host].is_up && self.held_until(client, host).is_none()
    }

    pub fn connect(&mut self, client: usize, host: usize, place: Option<usize>) -> usize {
        let (is_client_open, is_host_open) = (true, true);
        self.connections.push(HostConnection {
            client,
            host,
            place,
            is_client_open,
            is_host_open,
            down_us: 0,
            up_us: 0,
        });
        self.connections.len() - 1
    }

    pub fn send(&mut self, connection: usize, tag: RequestPurpose, body: DonorRequest, random: &mut SimulationRandom) {
        let at = &mut self.connections[connection];
        at.down_us = at.down_us.max(self.now_us + delay_us(random));
        let at_us = at.down_us + delay_us(random);
        self.plan(at_us, MoveNetworkEvent::AtHost { connection, tag, body });
    }

    pub fn answer(&mut self, connection: usize, happening: MoveNetworkEvent, random: &mut SimulationRandom) {
        let at = &mut self.connections[connection];
        at.up_us = at.up_us.max(self.now_us + delay_us(random));
        let at_us = at.up_us;
        self.plan(at_us, happening);
    }

    /// The client gives a connection up; what it sent may be executed until the host sees that.
    pub fn give_up(&mut self, connection: usize, random: &mut SimulationRandom) {
        if std::mem::replace(&mut self.connections[connection].is_client_open, false) {
            let at_us = self.now_us + random.below(2) * random.below(300) * MILLISECOND;
            self.plan(at_us, MoveNetworkEvent::HostSeesEnd { connection });
        }
    }

    /// A host ends all connections but one. If it was cut off from its power, clients see that late.
    pub fn end_all(&mut self, host: usize, except: Option<usize>, is_seen: bool, random: &mut SimulationRandom) {
        for at in 0..self.connections.len() {
            if self.connections[at].host != host || Some(at) == except {
                continue;
            }
            let was_open = std::mem::replace(&mut self.connections[at].is_host_open, false);
            if was_open && self.connections[at].is_client_open {
                match is_seen {
                    true => self.answer(at, MoveNetworkEvent::ClientSeesEnd { connection: at }, random),
                    false => self.plan(self.now_us + UNSEEN_US, MoveNetworkEvent::ClientSeesEnd { connection: at }),
                }
            }
        }
    }
}

fn delay_us(random: &mut SimulationRandom) -> u64 {
    match random.below(100) {
        0..3 => random.below(8 * MILLISECOND),
        _ => 20 + random.below(280),
    }
}
