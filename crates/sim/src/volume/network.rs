//! Messages between clients and servers.
//!
//! Owns: connections, and when messages arrive. Promises: messages of one connection arrive in order; messages of two
//! connections may overtake each other; messages that are on their way when a connection is lost are lost, or arrive
//! late; every message names an epoch.

use std::cell::Cell;
use std::rc::Rc;

use nectary_volume::protocol::{FileLockRange, Token, TokenGrant};
use nectary_volume::tokens::RecallReason;

use super::bugs::{VolumeModelBug, planted};
use super::executor::MS;
use super::servers::image::{ModelOperation, Reply};
use super::world::VolumeWorld;

/// A request that changes no file and no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelQuestion {
    /// The attributes of a file.
    Attributes(usize),
    /// The map of a file.
    Map(usize),
    /// The inode of a name.
    Lookup(u64),
    /// This many free blocks to write to.
    Space(usize),
}

/// What a client wants from a file lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelLockRequest {
    /// To get the lock; the flag says whether to wait for it. From a client of an earlier server that has not said what
    /// it holds, a request that does not wait is the claim of a lock that it holds.
    Lock(FileLockRange, bool),
    /// To release the lock.
    Unlock(FileLockRange),
}

/// A message from a client to the server.
#[derive(Debug, Clone)]
pub enum ClientMessage {
    Hello { session: u64 },
    Renew { sent: u64, acknowledged: u64, drained: u64 },
    Return(TokenGrant),
    Reclaim { request: u64, held: Vec<TokenGrant> },
    Wish { request: u64, wish: ModelLockRequest },
    Acquire { request: u64, token: Token, level: u8 },
    Operate { request: u64, number: u64, operation: ModelOperation },
    Ask { request: u64, question: ModelQuestion },
}

/// A message from the server to a client.
#[derive(Debug, Clone)]
pub enum ServerMessage {
    Welcome { session: u64 },
    Renewed { sent: u64, sequence: u64 },
    Recall(TokenGrant, RecallReason),
    Grant { request: u64, held: TokenGrant },
    Answer { request: u64, reply: Reply },
    Evicted,
}

/// A connection.
#[derive(Debug)]
pub struct ModelConnection {
    /// Its number, in the order in which connections are made.
    number: u64,
    pub client: usize,
    pub is_control: bool,
    /// The server, the number of its process, and its epoch.
    pub server: usize,
    pub incarnation: u64,
    pub epoch: u64,
    /// The connection's session; 0 until the server knows the session.
    pub session: Cell<u64>,
    pub is_client_open: Cell<bool>,
    is_lost: Cell<bool>,
    /// Whether its leader has answered something because its clock stood still, after another server took over.
    pub is_deceived: Cell<bool>,
    /// The extra delay of messages that are on their way when the connection is lost; `None` if they are lost.
    late_us: Option<u64>,
    /// The time at which the last message arrives at the server; `down_us` is that of the client.
    pub up_us: Cell<u64>,
    down_us: Cell<u64>,
}

impl ModelConnection {
    /// Whether it was made later than another connection of its session.
    pub fn is_newer(&self, other: &ModelConnection) -> bool {
        self.number > other.number
    }

    pub fn number(&self) -> u64 {
        self.number
    }
}

impl VolumeWorld {
    /// Makes a connection to a server, if the client's host can reach it now and it listens. A stopped server does.
    pub fn connect(
        self: &Rc<VolumeWorld>,
        client: usize,
        is_control: bool,
        index: usize,
    ) -> Option<Rc<ModelConnection>> {
        let process = &self.processes[index];
        if !process.is_leading() || self.is_cut(self.client(client).host, index) {
            return None;
        }
        let connection = Rc::new(ModelConnection {
            number: self.next_connection(),
            client,
            is_control,
            server: index,
            incarnation: process.incarnation.get(),
            epoch: process.server.borrow().epoch,
            session: Cell::new(0),
            is_client_open: Cell::new(true),
            is_lost: Cell::new(false),
            is_deceived: Cell::new(false),
            late_us: self.chance(60).then(|| self.below(if self.chance(30) { 100 * MS } else { 20 * MS })),
            up_us: Cell::new(0),
            down_us: Cell::new(0),
        });
        self.connections.borrow_mut().push(connection.clone());
        Some(connection)
    }

    fn delay_us(&self, is_control: bool) -> u64 {
        match self.below(100) {
            0..2 => self.below(15 * MS),
            2..12 if !is_control => self.below(8 * MS),
            _ => 20 + self.below(280),
        }
    }

    /// The time at which a message arrives. What is sent while the network is silent arrives after that.
    fn arrival_us(&self, connection: &ModelConnection) -> u64 {
        let silent_until = self.silent_until(self.client(connection.client).host, connection.server);
        silent_until.max(self.now()) + self.delay_us(connection.is_control)
    }

    /// Sends a message to the server. It names the highest epoch that the client knows.
    pub fn up(&self, connection: &Rc<ModelConnection>, message: ClientMessage) {
        let at = connection.up_us.get().max(self.arrival_us(connection));
        connection.up_us.set(at);
        let client = self.client(connection.client);
        if matches!(message, ClientMessage::Renew { .. }) && client.is_bulk_behind(at) {
            self.coverage.met("12: a renewal arrives before a request that was sent earlier");
        }
        let epoch = if planted(VolumeModelBug::LowerEpoch) { connection.epoch } else { client.epoch.get() };
        let (connection, message) = (connection.clone(), (epoch, message));
        self.at(at, move |world| {
            if !connection.is_lost.get() {
                return world.at_server(&connection, message);
            }
            let Some(late_us) = connection.late_us else { return };
            let at = world.now() + late_us;
            world.at(at, move |world| {
                world.coverage.met("a message of a lost connection arrives late");
                world.at_server(&connection, message);
            });
        });
    }

    fn at_server(self: &Rc<VolumeWorld>, connection: &Rc<ModelConnection>, (epoch, message): (u64, ClientMessage)) {
        let of = connection.clone();
        self.to_server(connection, move |world, server| {
            world.tell(|| format!("server {} from client {}: {message:?}", server.index, of.client));
            if epoch > server.epoch && !planted(VolumeModelBug::NoGate) {
                world.coverage.met("15: a server answers nothing to a client that knows a higher epoch");
                return world.lose(&of);
            }
            server.hear(world, &of, message);
            server.go_on(world);
        });
    }

    /// Sends a message to the client.
    pub fn down(&self, connection: &Rc<ModelConnection>, message: ServerMessage) {
        if connection.is_lost.get() {
            return;
        }
        let at = connection.down_us.get().max(self.arrival_us(connection));
        connection.down_us.set(at);
        let connection = connection.clone();
        self.at(at, move |world| {
            let (is_lost, late_us) = (connection.is_lost.get(), connection.late_us);
            let deliver = move |world: &Rc<VolumeWorld>| {
                world.client(connection.client).deliver(world, &connection, message);
            };
            match (is_lost, late_us) {
                (false, _) => deliver(world),
                (true, Some(late_us)) => world.at(world.now() + late_us, deliver),
                (true, None) => {}
            }
        });
    }

    /// Loses a connection; its client sees that a little later.
    pub fn lose(&self, connection: &Rc<ModelConnection>) {
        if connection.is_lost.replace(true) {
            return;
        }
        let connection = connection.clone();
        let seen_us = if self.chance(25) { self.below(60 * MS) } else { self.below(5 * MS) };
        self.at(self.now() + seen_us, move |world| {
            world.client(connection.client).lost(world, connection);
        });
    }

    /// Loses the connections of a host whose `is_control` is one of `roles`.
    pub fn lose_host(&self, host: usize, roles: &[bool]) {
        self.lose_if(|connection| {
            self.client(connection.client).host == host && roles.contains(&connection.is_control)
        });
    }

    /// Loses all connections to a server.
    pub fn lose_server(&self, index: usize) {
        self.lose_if(|connection| connection.server == index);
    }

    /// Loses the connections between a host and a server.
    pub fn lose_between(&self, host: usize, index: usize) {
        self.lose_if(|connection| connection.server == index && self.client(connection.client).host == host);
    }

    fn lose_if(&self, is_meant: impl Fn(&ModelConnection) -> bool) {
        let connections = self.connections.borrow().clone();
        connections.iter().filter(|connection| is_meant(connection)).for_each(|connection| self.lose(connection));
        self.connections.borrow_mut().retain(|connection| !connection.is_lost.get());
    }
}
