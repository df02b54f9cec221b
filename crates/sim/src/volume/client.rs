//! A client: its session, its lease, its connections, and its knowledge of files and names.
//!
//! Owns: numbered calls, which are sent again on a new connection, the clock of the client's host, and pauses. It
//! follows `client/session.rs` and `client/link.rs`. Leaves to others: tokens (`hold`), data (`data`), the kernel's
//! pages (`kernel`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use nectary_volume::protocol::{Held, What};
use nectary_volume::tokens::{Lease, level};

use super::bugs::{Bug, planted};
use super::executor::{MS, TaskId};
use super::file::Object;
use super::image::{Answer, Operation, Refusal, Reply};
use super::network::{Connection, Down, Question, Up};
use super::world::{LEASE_MS, World};

/// The number of renewals during the length of a lease.
const RENEWALS_OF_LEASE: u64 = 5;

/// Why a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fail {
    /// The session is over.
    Ended,
    /// The server refused the call.
    Refused(Refusal),
}

/// The answer to a call.
#[derive(Debug, Clone)]
enum Said {
    Reply(Reply),
    Granted(Held),
}

struct Waiting {
    message: Up,
    number: Option<u64>,
    said: Rc<RefCell<Option<Said>>>,
}

/// A client, from its start until its session or its host is lost.
pub struct Client {
    pub number: usize,
    pub host: usize,
    pub session: Cell<u64>,
    pub epoch: Cell<u64>,
    /// Whether the client's host or process is gone.
    pub is_dead: Cell<bool>,
    /// Whether the client knows that its session is over.
    pub ended: Cell<bool>,
    pub is_paused: Cell<bool>,
    /// Whether the client's clock stands still while the client is paused.
    pub stops_clock: Cell<bool>,
    /// Whether it was paused past its lease and its pages are not invalidated yet.
    pub is_exempt: Cell<bool>,
    /// Whether its clock stood still past its lease, so that it may still believe in the lease.
    pub is_deceived: Cell<bool>,
    /// Whether its caches answer nothing, because the lease was not renewed.
    pub is_lapsed: Cell<bool>,
    parked: RefCell<Vec<TaskId>>,
    waiting: RefCell<Vec<TaskId>>,
    inbox: RefCell<Vec<(Rc<Connection>, Down)>>,
    /// The speed of its clock relative to true time. *Units*: millionths.
    rate: u64,
    stopped_us: Cell<u64>,
    paused_at: Cell<u64>,
    lease: Cell<Lease>,
    /// The true time at which the last answered renewal was sent.
    renewal_us: Cell<u64>,
    sent_us: RefCell<BTreeMap<u64, u64>>,
    control: RefCell<Option<Rc<Connection>>>,
    bulk: RefCell<Option<Rc<Connection>>>,
    welcomed: RefCell<[Option<Rc<Connection>>; 2]>,
    next_request: Cell<u64>,
    next_number: Cell<u64>,
    calls: RefCell<BTreeMap<u64, Waiting>>,
    open_numbers: RefCell<BTreeSet<u64>>,
    pub objects: Vec<Object>,
    pub space: RefCell<Vec<u32>>,
    /// The last append that is known to be durable.
    pub durable: Cell<u64>,
    /// For each map that is in use without a token: the last append that was known to be durable when the map was
    /// requested.
    pub maps: RefCell<Vec<u64>>,
}

/// A client and its world. The calls of the model are methods of this type.
#[derive(Clone)]
pub struct Mount {
    pub world: Rc<World>,
    pub client: Rc<Client>,
}

impl Client {
    pub fn new(number: usize, host: usize, rate: u64, objects: Vec<Object>) -> Client {
        Client {
            number,
            host,
            session: Cell::new(0),
            epoch: Cell::new(0),
            is_dead: Cell::new(false),
            ended: Cell::new(false),
            is_paused: Cell::new(false),
            stops_clock: Cell::new(false),
            is_exempt: Cell::new(false),
            is_deceived: Cell::new(false),
            is_lapsed: Cell::new(false),
            parked: RefCell::default(),
            waiting: RefCell::default(),
            inbox: RefCell::default(),
            rate,
            stopped_us: Cell::new(0),
            paused_at: Cell::new(0),
            lease: Cell::default(),
            renewal_us: Cell::new(0),
            sent_us: RefCell::default(),
            control: RefCell::default(),
            bulk: RefCell::default(),
            welcomed: RefCell::default(),
            next_request: Cell::new(1),
            next_number: Cell::new(1),
            calls: RefCell::default(),
            open_numbers: RefCell::default(),
            objects,
            space: RefCell::default(),
            durable: Cell::new(0),
            maps: RefCell::default(),
        }
    }

    /// The time on the client's clock. *Units*: microseconds.
    pub fn clock(&self, world: &World) -> u64 {
        let now = if self.is_paused.get() && self.stops_clock.get() { self.paused_at.get() } else { world.now() };
        (now - self.stopped_us.get()) * self.rate / 1_000_000
    }

    /// Waits until `is_so` returns true; checks this after each change by the client's own tasks or by messages.
    pub fn wait<F: FnMut() -> bool>(
        self: &Rc<Client>,
        world: &Rc<World>,
        mut is_so: F,
    ) -> impl Future<Output = ()> + use<F> {
        let (client, world) = (self.clone(), world.clone());
        std::future::poll_fn(move |_| {
            if is_so() {
                return Poll::Ready(());
            }
            client.waiting.borrow_mut().push(world.current());
            Poll::Pending
        })
    }

    /// Makes the waiting tasks of the client check their conditions again.
    pub fn touch(&self, world: &World) {
        world.wake(self.waiting.take());
    }

    /// Keeps a task until the pause of the client ends; returns false if the client is not paused.
    pub fn park(&self, task: TaskId) -> bool {
        if self.is_paused.get() {
            self.parked.borrow_mut().push(task);
        }
        self.is_paused.get()
    }

    /// Pauses the client's host for `us` microseconds.
    pub fn pause(self: &Rc<Client>, world: &Rc<World>, us: u64, stops_clock: bool) {
        if self.is_paused.replace(true) {
            return;
        }
        self.stops_clock.set(stops_clock);
        self.paused_at.set(world.now());
        let client = self.clone();
        world.at(world.now() + us, move |world| client.resume(world));
    }

    fn resume(self: &Rc<Client>, world: &Rc<World>) {
        let paused = world.now() - self.paused_at.get();
        self.is_paused.set(false);
        if self.stops_clock.get() {
            self.stopped_us.set(self.stopped_us.get() + paused);
        }
        if !self.lease.get().may_cache(self.clock(world)) {
            self.is_exempt.set(true);
            world.coverage.met("a client paused past its lease");
        } else if world.now() - self.renewal_us.get() >= LEASE_MS * MS {
            (self.is_deceived).set(true);
            world.coverage.met("5: a clock stood still past the lease");
        }
        world.wake(self.parked.take());
        for (connection, message) in self.inbox.take() {
            self.deliver(world, &connection, message);
        }
        self.touch(world);
    }

    /// Whether the calls of its programs prove nothing now, because its clock stood still past its lease.
    pub fn is_blind(&self) -> bool {
        self.is_deceived.get()
    }

    pub fn lease(&self) -> Lease {
        self.lease.get()
    }

    /// Handles a message from the server; a paused client handles it after the pause.
    pub fn deliver(self: &Rc<Client>, world: &Rc<World>, connection: &Rc<Connection>, message: Down) {
        if self.is_dead.get() || self.ended.get() || !connection.is_client_open.get() {
            return;
        }
        if self.is_paused.get() {
            return self.inbox.borrow_mut().push((connection.clone(), message));
        }
        if connection.epoch < self.epoch.get() && !planted(Bug::OldEpoch) {
            return world.coverage.met("a message of an older epoch is refused");
        }
        world.tell(|| format!("client {} of epoch {}: {message:?}", self.number, connection.epoch));
        match message {
            Down::Welcome { session } => {
                self.session.set(session);
                self.epoch.set(self.epoch.get().max(connection.epoch));
                self.welcomed.borrow_mut()[usize::from(connection.is_control)] = Some(connection.clone());
                if connection.is_control {
                    *self.control.borrow_mut() = Some(connection.clone());
                    Mount { world: world.clone(), client: self.clone() }.reclaim();
                }
            }
            Down::Renewed { sent, sequence } => {
                self.durable.set(self.durable.get().max(sequence));
                let mut lease = self.lease.get();
                lease.renewed(sent, LEASE_MS * MS);
                self.lease.set(lease);
                if let Some(sent_us) = self.sent_us.borrow_mut().remove(&sent) {
                    self.renewal_us.set(self.renewal_us.get().max(sent_us));
                }
                if world.now() - self.renewal_us.get() < LEASE_MS * MS {
                    self.is_deceived.set(false);
                }
            }
            Down::Recall(held, why) => {
                let mount = Mount { world: world.clone(), client: self.clone() };
                mount.serve_recall((held.sequence, held.level, why), held.token);
            }
            Down::Grant { request, held } => self.answered(request, Said::Granted(held)),
            Down::Answer { reply: Err(Refusal::Ended), .. } | Down::Evicted => self.end(world),
            Down::Answer {
                reply: Err(refusal @ (Refusal::OutOfOrder | Refusal::Forgotten | Refusal::NotGranted)),
                ..
            } => world.break_with(format!("an operation of client {} is refused: {refusal:?}", self.number)),
            Down::Answer { request, reply } => self.answered(request, Said::Reply(reply)),
        }
        self.touch(world);
    }

    fn answered(&self, request: u64, said: Said) {
        let Some(waiting) = self.calls.borrow_mut().remove(&request) else { return };
        if let Some(number) = waiting.number {
            self.open_numbers.borrow_mut().remove(&number);
        }
        *waiting.said.borrow_mut() = Some(said);
    }

    /// Ends the client, because its session is over: every call fails.
    pub fn end(self: &Rc<Client>, world: &Rc<World>) {
        if !self.ended.replace(true) {
            self.calls.borrow_mut().clear();
            world.remount(self);
        }
        self.touch(world);
    }

    /// Describes the state of the client.
    pub fn describe(&self) -> String {
        let calls: Vec<String> = self.calls.borrow().values().map(|call| format!("{:?}", call.message)).collect();
        let (ended, paused) = (self.ended.get(), self.is_paused.get());
        format!("session {}, ended {ended}, paused {paused}, calls {calls:?}", self.session.get())
    }

    /// Whether the last request on the bulk connection arrives at the server later than at this time.
    pub fn is_bulk_behind(&self, at_us: u64) -> bool {
        self.bulk.borrow().as_ref().is_some_and(|bulk| bulk.up_us.get() > at_us)
    }

    fn acknowledged(&self) -> u64 {
        let first = self.open_numbers.borrow().first().copied();
        first.unwrap_or(self.next_number.get()) - 1
    }

    fn drained(&self) -> u64 {
        self.maps.borrow().iter().copied().min().unwrap_or(u64::MAX).min(self.durable.get())
    }
}

impl Mount {
    /// Waits until `is_so` returns true for this client.
    pub async fn wait(&self, is_so: impl FnMut() -> bool) {
        self.client.wait(&self.world, is_so).await;
    }

    pub fn touch(&self) {
        self.client.touch(&self.world);
    }

    /// Starts a task of this client.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.world.spawn(self.client.number, future);
    }

    /// Returns an error if the session is over.
    pub fn failure(&self) -> Result<(), Fail> {
        if self.client.ended.get() { Err(Fail::Ended) } else { Ok(()) }
    }

    /// Waits until the lease allows I/O to begin.
    pub async fn leased(&self) -> Result<(), Fail> {
        let is_leased = || self.client.lease().may_begin(self.client.clock(&self.world));
        if !is_leased() {
            self.world.coverage.met("I/O waits for the lease");
        }
        self.wait(|| is_leased() || self.client.ended.get()).await;
        self.failure()
    }

    /// Returns an error if the lease has ended, unless this bug is planted.
    pub fn still_leased(&self, bug: Bug) -> Result<(), Fail> {
        if self.client.lease().holds(self.client.clock(&self.world)) || planted(bug) {
            return Ok(());
        }
        self.world.coverage.met("4: an answer is refused as the lease ended before it");
        Err(Fail::Ended)
    }

    async fn call(&self, make: impl FnOnce(u64) -> (Up, Option<u64>)) -> Result<Said, Fail> {
        self.world.yields().await;
        self.failure()?;
        let client = &self.client;
        let request = client.next_request.get();
        client.next_request.set(request + 1);
        let (message, number) = make(request);
        if let Some(bulk) = &*client.bulk.borrow() {
            self.world.up(bulk, message.clone());
        }
        let said: Rc<RefCell<Option<Said>>> = Rc::default();
        client.calls.borrow_mut().insert(request, Waiting { message, number, said: said.clone() });
        self.wait(|| said.borrow().is_some() || client.ended.get()).await;
        said.take().ok_or(Fail::Ended)
    }

    /// Sends an operation to the server, and waits for the answer.
    pub async fn operate(&self, operation: Operation) -> Result<Answer, Fail> {
        let make = |request| {
            let number = self.client.next_number.get();
            self.client.next_number.set(number + 1);
            self.client.open_numbers.borrow_mut().insert(number);
            (Up::Operate { request, number, operation }, Some(number))
        };
        match self.call(make).await? {
            Said::Reply(reply) => reply.map_err(Fail::Refused),
            Said::Granted(_) => Err(Fail::Ended),
        }
    }

    /// Sends a question to the server, and waits for the answer.
    pub async fn ask(&self, question: Question) -> Result<Answer, Fail> {
        match self.call(|request| (Up::Ask { request, question }, None)).await? {
            Said::Reply(reply) => reply.map_err(Fail::Refused),
            Said::Granted(_) => Err(Fail::Ended),
        }
    }

    /// Requests a token, and waits for the grant.
    pub async fn acquire(&self, object: usize, level: u8) -> Result<Held, Fail> {
        let token = self.client.objects[object].token;
        match self.call(|request| (Up::Acquire { request, token, level }, None)).await? {
            Said::Granted(held) => Ok(held),
            Said::Reply(_) => Err(Fail::Refused(Refusal::Conflict)),
        }
    }

    /// Sends a message on the control connection, if there is one.
    pub fn say(&self, message: Up) {
        if let Some(control) = &*self.client.control.borrow() {
            self.world.up(control, message);
        }
    }

    /// Keeps the control connection or the bulk connection up for as long as the session lives.
    pub async fn keep(self, is_control: bool) {
        let client = &self.client;
        while !client.ended.get() {
            self.world.sleep(self.world.below(20 * MS)).await;
            if is_control && client.session.get() == 0 {
                continue;
            }
            let Some(connection) = self.world.connect(client.number, is_control) else { continue };
            self.world.up(&connection, Up::Hello { session: client.session.get() });
            let is_welcome = |client: &Client| {
                let welcomed = client.welcomed.borrow();
                welcomed[usize::from(is_control)].as_ref().is_some_and(|welcomed| Rc::ptr_eq(welcomed, &connection))
            };
            self.wait(|| is_welcome(client) || !connection.is_client_open.get() || client.ended.get()).await;
            if is_welcome(client) && connection.is_client_open.get() {
                self.world.yields().await;
                self.serve(&connection).await;
            }
            connection.is_client_open.set(false);
        }
    }

    async fn serve(&self, connection: &Rc<Connection>) {
        let client = &self.client;
        if connection.is_control {
            let mount = self.clone();
            let renewed = connection.clone();
            self.spawn(async move { mount.renew(renewed).await });
        } else {
            for waiting in client.calls.borrow().values() {
                self.world.up(connection, waiting.message.clone());
            }
            *client.bulk.borrow_mut() = Some(connection.clone());
        }
        self.touch();
        self.wait(|| !connection.is_client_open.get() || client.ended.get()).await;
        let of = if connection.is_control { &client.control } else { &client.bulk };
        of.borrow_mut().take_if(|current| Rc::ptr_eq(current, connection));
    }

    async fn renew(&self, connection: Rc<Connection>) {
        let client = &self.client;
        while connection.is_client_open.get() && !client.ended.get() {
            let sent = client.clock(&self.world);
            client.sent_us.borrow_mut().insert(sent, self.world.now());
            let (acknowledged, drained) = (client.acknowledged(), client.drained());
            self.world.up(&connection, Up::Renew { sent, acknowledged, drained });
            self.world.sleep(LEASE_MS * MS / RENEWALS_OF_LEASE).await;
        }
    }

    /// Tells the server which tokens the client holds, because it may be a new server.
    fn reclaim(&self) {
        let held = self.client.objects.iter().filter_map(|object| {
            let state = object.hold.borrow();
            let held = Held { token: object.token, level: state.level(), sequence: state.sequence() };
            (held.level != level::NONE).then_some(held)
        });
        let held: Vec<Held> = held.collect();
        if held.iter().any(|held| held.token.what == What::Data && held.level == level::WRITE) {
            self.world.coverage.met("6: a token for writing is reclaimed, or said again");
        }
        self.say(Up::Reclaim(held, true));
    }
}
