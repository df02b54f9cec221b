//! A client: its session, its lease, its connections, and its knowledge of files and names.
//!
//! Owns: numbered calls, which are sent again on a new connection, the clock of the client's host, and pauses. It
//! follows `client/session.rs` and `client/calls.rs`. Promises: no message of an earlier epoch than the highest known
//! one has an effect. Leaves to others: connections (`link`), tokens (`hold`), data (`data`), file locks (`locks`), the
//! kernel's pages (`kernel`).

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;

use nectary_volume::protocol::TokenGrant;
use nectary_volume::tokens::ClientLease;

use super::bugs::{VolumeModelBug, planted};
use super::executor::{MS, TaskId, TaskOwner};
use super::file::ProtectedObject;
use super::locks::{Lock, locked};
use super::network::{ClientMessage, ModelConnection, ModelLockRequest, ModelQuestion, ServerMessage};
use super::servers::image::{ModelAnswer, ModelOperation, ModelRefusal, Reply};
use super::world::{LEASE_MS, VolumeWorld};

/// Why a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelCallFailure {
    /// The session is over.
    Ended,
    /// The server refused the call.
    Refused(ModelRefusal),
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub enum ModelCallAnswer {
    Reply(Reply),
    /// A token, and the epoch of the server that granted it.
    Granted(TokenGrant, u64),
    /// The call told an earlier server what is held; the next one is told again.
    Dropped,
}

/// A call without an answer.
pub struct ModelPendingCall {
    pub message: ClientMessage,
    number: Option<u64>,
    /// Whether it tells a new server what the client holds.
    pub is_restart: bool,
    said: Rc<RefCell<Option<ModelCallAnswer>>>,
}

impl ModelPendingCall {
    /// Whether it requests a lock without waiting for it.
    pub fn is_try_lock(&self) -> bool {
        matches!(self.message, ClientMessage::Wish { wish: ModelLockRequest::Lock(_, false), .. }) && !self.is_restart
    }

    pub fn drop_call(&self) {
        *self.said.borrow_mut() = Some(ModelCallAnswer::Dropped);
    }
}

/// A client, from its start until its session or its host is lost.
pub struct VolumeClientModel {
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
    /// The epoch of a leader that it had an answer from although another server had taken over: the leader's clock stood
    /// still.
    believed_epoch: Cell<u64>,
    /// Whether its caches answer nothing, because the lease was not renewed.
    pub is_lapsed: Cell<bool>,
    parked: RefCell<Vec<TaskId>>,
    waiting: RefCell<Vec<TaskId>>,
    inbox: RefCell<Vec<(Rc<ModelConnection>, ServerMessage)>>,
    /// Connections that were lost during a pause; it sees that after what came on them before.
    lost: RefCell<Vec<Rc<ModelConnection>>>,
    /// The speed of its clock relative to true time. *Units*: millionths.
    rate: u64,
    stopped_us: Cell<u64>,
    paused_at: Cell<u64>,
    lease: Cell<ClientLease>,
    /// The true time at which the last answered renewal was sent.
    renewal_us: Cell<u64>,
    pub sent_us: RefCell<BTreeMap<u64, u64>>,
    /// The time on the client's clock of the first renewal after the last answered one.
    pub unanswered: Cell<Option<u64>>,
    pub control: RefCell<Option<Rc<ModelConnection>>>,
    pub bulk: RefCell<Option<Rc<ModelConnection>>>,
    pub welcomed: RefCell<[Option<Rc<ModelConnection>>; 2]>,
    /// The epoch of the last bulk connection.
    pub bulk_epoch: Cell<u64>,
    /// Whether the server of that epoch has not been told yet what the client holds.
    pub is_reclaiming: Cell<bool>,
    /// The file locks that programs hold, as far as the client knows.
    pub locks: RefCell<BTreeSet<Lock>>,
    next_request: Cell<u64>,
    next_number: Cell<u64>,
    pub calls: RefCell<BTreeMap<u64, ModelPendingCall>>,
    open_numbers: RefCell<BTreeSet<u64>>,
    pub objects: Vec<ProtectedObject>,
    pub space: RefCell<Vec<u32>>,
    /// The last append that is known to be durable.
    pub durable: Cell<u64>,
    /// For each map that is in use without a token: the last append that was known to be durable when the map was
    /// requested.
    pub maps: RefCell<Vec<u64>>,
}

/// A client and its world. The calls of the model are methods of this type.
#[derive(Clone)]
pub struct MountModel {
    pub world: Rc<VolumeWorld>,
    pub client: Rc<VolumeClientModel>,
}

impl VolumeClientModel {
    pub fn new(number: usize, host: usize, rate: u64, objects: Vec<ProtectedObject>) -> VolumeClientModel {
        VolumeClientModel {
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
            believed_epoch: Cell::new(0),
            is_lapsed: Cell::new(false),
            parked: RefCell::default(),
            waiting: RefCell::default(),
            inbox: RefCell::default(),
            lost: RefCell::default(),
            rate,
            stopped_us: Cell::new(0),
            paused_at: Cell::new(0),
            lease: Cell::default(),
            renewal_us: Cell::new(0),
            sent_us: RefCell::default(),
            unanswered: Cell::new(None),
            control: RefCell::default(),
            bulk: RefCell::default(),
            welcomed: RefCell::default(),
            bulk_epoch: Cell::new(0),
            is_reclaiming: Cell::new(false),
            locks: RefCell::default(),
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
    pub fn clock(&self, world: &VolumeWorld) -> u64 {
        let now = if self.is_paused.get() && self.stops_clock.get() { self.paused_at.get() } else { world.now() };
        (now - self.stopped_us.get()) * self.rate / 1_000_000
    }

    /// Waits until `is_so` returns true; checks this after each change by the client's own tasks or by messages.
    pub fn wait<F: FnMut() -> bool>(
        self: &Rc<VolumeClientModel>,
        world: &Rc<VolumeWorld>,
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
    pub fn touch(&self, world: &VolumeWorld) {
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
    pub fn pause(self: &Rc<VolumeClientModel>, world: &Rc<VolumeWorld>, us: u64, stops_clock: bool) {
        if self.is_paused.replace(true) {
            return;
        }
        self.stops_clock.set(stops_clock);
        self.paused_at.set(world.now());
        let client = self.clone();
        world.at(world.now() + us, move |world| client.resume(world));
    }

    fn resume(self: &Rc<VolumeClientModel>, world: &Rc<VolumeWorld>) {
        let paused = world.now() - self.paused_at.get();
        self.is_paused.set(false);
        if self.stops_clock.get() {
            self.stopped_us.set(self.stopped_us.get() + paused);
        }
        if !self.lease.get().may_cache(self.clock(world)) {
            self.is_exempt.set(true);
            world.coverage.met("a client paused past its lease");
        }
        // It may begin nothing and show nothing from its caches, but acknowledge what it finishes now.
        if self.lease.get().holds(self.clock(world)) && world.now() - self.renewal_us.get() >= LEASE_MS * MS {
            self.is_deceived.set(true);
            world.coverage.met("5: a clock stood still past the lease");
        }
        world.wake(self.parked.take());
        for (connection, message) in self.inbox.take() {
            self.deliver(world, &connection, message);
        }
        self.lost.take().into_iter().for_each(|connection| self.lost(world, connection));
        self.touch(world);
    }

    /// Handles the loss of a connection.
    pub fn lost(&self, world: &VolumeWorld, connection: Rc<ModelConnection>) {
        match self.is_paused.get() {
            true => self.lost.borrow_mut().push(connection),
            false => self.close(world, &connection),
        }
    }

    /// Whether a program that holds a lock may act on it now or after the present pause.
    pub fn may_act(&self, world: &VolumeWorld) -> bool {
        let is_known = !(self.is_blind() || self.is_paused.get() && self.stops_clock.get());
        is_known && !self.is_dead.get() && !self.ended.get() && self.lease.get().holds(self.clock(world))
    }

    /// Whether the calls of its programs prove nothing now, because its clock or its leader's stood still past the
    /// lease.
    pub fn is_blind(&self) -> bool {
        self.is_deceived.get() || self.believed_epoch.get() == self.epoch.get() && self.epoch.get() != 0
    }

    pub fn lease(&self) -> ClientLease {
        self.lease.get()
    }

    /// Handles a message from the server; a paused client handles it after the pause.
    pub fn deliver(
        self: &Rc<VolumeClientModel>,
        world: &Rc<VolumeWorld>,
        connection: &Rc<ModelConnection>,
        message: ServerMessage,
    ) {
        if self.is_dead.get() || self.ended.get() {
            return;
        }
        let is_lower = connection.epoch < self.epoch.get();
        let name = match message {
            ServerMessage::Welcome { .. } => "15: a Welcome of a lower epoch is refused",
            _ => "a message of an older epoch is refused",
        };
        if !connection.is_client_open.get() {
            // Usually the higher epoch has closed the connection already.
            if is_lower {
                world.coverage.met(name);
            }
            return;
        }
        if self.is_paused.get() {
            return self.inbox.borrow_mut().push((connection.clone(), message));
        }
        if is_lower && !planted(VolumeModelBug::LowerEpoch) {
            world.coverage.met(name);
            return self.close(world, connection);
        }
        world.tell(|| format!("client {} of epoch {}: {message:?}", self.number, connection.epoch));
        if connection.is_deceived.get() {
            self.believed_epoch.set(self.believed_epoch.get().max(connection.epoch));
            world.coverage.met("14: a client believes a leader whose clock stood still");
        }
        match message {
            ServerMessage::Welcome { session } => self.welcome(world, connection, session),
            ServerMessage::Renewed { sent, sequence } => {
                self.durable.set(self.durable.get().max(sequence));
                self.unanswered.set(None);
                let mut lease = self.lease.get();
                match planted(VolumeModelBug::CountedFromAnswer) {
                    true => lease.renewed(self.clock(world), LEASE_MS * MS),
                    false => lease.renewed(sent, LEASE_MS * MS),
                }
                self.lease.set(lease);
                if let Some(sent_us) = self.sent_us.borrow_mut().remove(&sent) {
                    self.renewal_us.set(self.renewal_us.get().max(sent_us));
                }
                if world.now() - self.renewal_us.get() < LEASE_MS * MS {
                    self.is_deceived.set(false);
                }
                world.check_locks();
            }
            ServerMessage::Recall(held, why) => {
                let mount = MountModel { world: world.clone(), client: self.clone() };
                mount.serve_recall((held.sequence, held.level, why), held.token);
            }
            ServerMessage::Grant { request, held } => {
                self.answered(request, ModelCallAnswer::Granted(held, connection.epoch))
            }
            ServerMessage::Answer { reply: Err(ModelRefusal::Ended), .. } | ServerMessage::Evicted => self.end(world),
            ServerMessage::Answer {
                reply: Err(refusal @ (ModelRefusal::OutOfOrder | ModelRefusal::Forgotten | ModelRefusal::NotGranted)),
                ..
            } => world.break_with(format!("an operation of client {} is refused: {refusal:?}", self.number)),
            ServerMessage::Answer { request, reply } => self.answered(request, ModelCallAnswer::Reply(reply)),
        }
        self.touch(world);
    }

    fn answered(&self, request: u64, said: ModelCallAnswer) {
        let Some(waiting) = self.calls.borrow_mut().remove(&request) else { return };
        // The lock is on the list from now on, so that also a server that takes over before its program goes on is told.
        if let (ClientMessage::Wish { wish: ModelLockRequest::Lock(lock, _), .. }, false) =
            (&waiting.message, waiting.is_restart)
            && matches!(said, ModelCallAnswer::Reply(Ok(_)))
        {
            self.locks.borrow_mut().insert(locked(lock));
        }
        if let Some(number) = waiting.number {
            self.open_numbers.borrow_mut().remove(&number);
        }
        *waiting.said.borrow_mut() = Some(said);
    }

    /// Ends the client, because its session is over: every call fails.
    pub fn end(self: &Rc<VolumeClientModel>, world: &Rc<VolumeWorld>) {
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

    pub fn acknowledged(&self) -> u64 {
        let first = self.open_numbers.borrow().first().copied();
        first.unwrap_or(self.next_number.get()) - 1
    }

    pub fn drained(&self) -> u64 {
        self.maps.borrow().iter().copied().min().unwrap_or(u64::MAX).min(self.durable.get())
    }
}

impl MountModel {
    /// Waits until `is_so` returns true for this client.
    pub async fn wait(&self, is_so: impl FnMut() -> bool) {
        self.client.wait(&self.world, is_so).await;
    }

    pub fn touch(&self) {
        self.client.touch(&self.world);
    }

    /// Starts a task of this client.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.world.spawn(TaskOwner::Client(self.client.number), future);
    }

    /// Returns an error if the session is over.
    pub fn failure(&self) -> Result<(), ModelCallFailure> {
        if self.client.ended.get() { Err(ModelCallFailure::Ended) } else { Ok(()) }
    }

    /// Waits until the lease allows I/O to begin.
    pub async fn leased(&self) -> Result<(), ModelCallFailure> {
        let is_leased = || self.client.lease().may_begin(self.client.clock(&self.world));
        if !is_leased() {
            self.world.coverage.met("I/O waits for the lease");
        }
        self.wait(|| is_leased() || self.client.ended.get()).await;
        self.failure()
    }

    /// Returns an error if the lease has ended, unless this bug is planted.
    pub fn still_leased(&self, bug: VolumeModelBug) -> Result<(), ModelCallFailure> {
        if self.client.lease().holds(self.client.clock(&self.world)) || planted(bug) {
            return Ok(());
        }
        self.world.coverage.met("4: an answer is refused as the lease ended before it");
        Err(ModelCallFailure::Ended)
    }

    /// Makes a call, and waits for its answer. Calls with `is_restart` tell a new server what the client holds.
    pub async fn call(
        &self,
        is_restart: bool,
        make: impl FnOnce(u64) -> Option<(ClientMessage, Option<u64>)>,
    ) -> Result<ModelCallAnswer, ModelCallFailure> {
        self.world.yields().await;
        self.failure()?;
        let client = &self.client;
        let request = client.next_request.get();
        client.next_request.set(request + 1);
        let Some((message, number)) = make(request) else { return Ok(ModelCallAnswer::Dropped) };
        let said: Rc<RefCell<Option<ModelCallAnswer>>> = Rc::default();
        let waiting = ModelPendingCall { message, number, is_restart, said: said.clone() };
        // A new server would take such a request as the claim of a lock that the client holds.
        let is_held_back =
            client.is_reclaiming.get() && waiting.is_try_lock() && !planted(VolumeModelBug::TryLockInGrace);
        if is_held_back {
            self.world.coverage.met("16: a request is held back until the server knows the locks");
        }
        if let Some(bulk) = client.bulk.borrow().as_ref().filter(|_| !is_held_back) {
            self.world.up(bulk, waiting.message.clone());
        }
        client.calls.borrow_mut().insert(request, waiting);
        self.wait(|| said.borrow().is_some() || client.ended.get()).await;
        said.take().ok_or(ModelCallFailure::Ended)
    }

    /// Sends an operation to the server, and waits for the answer.
    pub async fn operate(&self, operation: ModelOperation) -> Result<ModelAnswer, ModelCallFailure> {
        let make = |request| {
            let number = self.client.next_number.get();
            self.client.next_number.set(number + 1);
            self.client.open_numbers.borrow_mut().insert(number);
            Some((ClientMessage::Operate { request, number, operation }, Some(number)))
        };
        match self.call(false, make).await? {
            ModelCallAnswer::Reply(reply) => reply.map_err(ModelCallFailure::Refused),
            _ => Err(ModelCallFailure::Ended),
        }
    }

    /// Sends a question to the server, and waits for the answer.
    pub async fn ask(&self, question: ModelQuestion) -> Result<ModelAnswer, ModelCallFailure> {
        match self.call(false, |request| Some((ClientMessage::Ask { request, question }, None))).await? {
            ModelCallAnswer::Reply(reply) => reply.map_err(ModelCallFailure::Refused),
            _ => Err(ModelCallFailure::Ended),
        }
    }

    /// Requests a token, and waits for the grant.
    pub async fn acquire(&self, object: usize, level: u8) -> Result<TokenGrant, ModelCallFailure> {
        let token = self.client.objects[object].token;
        match self.call(false, |request| Some((ClientMessage::Acquire { request, token, level }, None))).await? {
            ModelCallAnswer::Granted(held, epoch) => {
                if self.world.chance(3) {
                    self.world.sleep(self.world.below(40 * MS)).await;
                }
                // A new server has been told what the client holds, and that was without this token.
                if epoch < self.client.bulk_epoch.get() && !planted(VolumeModelBug::OldEpoch) {
                    self.world.coverage.met("15: a grant of an older epoch is not used");
                    return Err(ModelCallFailure::Refused(ModelRefusal::Conflict));
                }
                Ok(held)
            }
            _ => Err(ModelCallFailure::Refused(ModelRefusal::Conflict)),
        }
    }

    /// Sends a message on the control connection, if there is one.
    pub fn say(&self, message: ClientMessage) {
        if let Some(control) = &*self.client.control.borrow() {
            self.world.up(control, message);
        }
    }
}
