//! A client's connections: one for calls (bulk) and one for renewals (control), each to any of the servers.
//!
//! Owns: connecting again, renewals, and what a new server is told. It follows `client/link.rs`, and `reclaim` of
//! `client/hold.rs`. Promises: a connection to a server of a higher epoch closes the other connection if that is to an
//! earlier one; a client whose renewals have no answer turns to all servers.

use std::rc::Rc;

use nectary_volume::protocol::{TokenAspect, TokenGrant};
use nectary_volume::tokens::level;

use super::bugs::{VolumeModelBug, planted};
use super::client::{ModelCallAnswer, MountModel, VolumeClientModel};
use super::executor::MS;
use super::locks::whole;
use super::network::{ClientMessage, ModelConnection, ModelLockRequest};
use super::world::{LEASE_MS, VolumeWorld};

/// The number of renewals during the length of a lease.
const RENEWALS_OF_LEASE: u64 = 5;
/// The part of a lease after which a renewal or a greeting without an answer makes the client turn to all servers.
const PATIENCE_OF_LEASE: (u64, u64) = (2, 5);
/// The same. *Units*: microseconds.
const PATIENCE_US: u64 = LEASE_MS * MS * PATIENCE_OF_LEASE.0 / PATIENCE_OF_LEASE.1;

impl VolumeClientModel {
    /// Closes a connection.
    pub fn close(&self, world: &VolumeWorld, connection: &ModelConnection) {
        connection.is_client_open.set(false);
        self.touch(world);
    }

    /// Handles a server's answer to a greeting. Only the first one counts.
    pub fn welcome(&self, world: &VolumeWorld, connection: &Rc<ModelConnection>, session: u64) {
        let role = usize::from(connection.is_control);
        let current = self.welcomed.borrow()[role].clone();
        if current.is_some_and(|current| current.is_client_open.get()) {
            return connection.is_client_open.set(false);
        }
        self.session.set(session);
        let others = [self.control.borrow().clone(), self.bulk.borrow().clone()];
        for other in others.iter().flatten().filter(|other| other.is_control != connection.is_control) {
            if other.server != connection.server {
                world.coverage.met("15: the control and the bulk connection are to different servers");
            }
            if other.epoch < connection.epoch && !planted(VolumeModelBug::LowerEpoch) {
                world.coverage.met("15: a Welcome of a higher epoch closes the other connection");
                // Another task does that, a little later.
                let (us, other) = (world.below(if world.chance(20) { 20 * MS } else { 400 }), other.clone());
                world.at(world.now() + us, move |world| world.client(other.client).close(world, &other));
            }
        }
        match planted(VolumeModelBug::LowerEpoch) {
            true => self.epoch.set(connection.epoch),
            false => self.epoch.set(self.epoch.get().max(connection.epoch)),
        }
        self.welcomed.borrow_mut()[role] = Some(connection.clone());
        match connection.is_control {
            true => *self.control.borrow_mut() = Some(connection.clone()),
            // A session begins with this epoch; a server of a later one is told what the client holds, even if nothing
            // was sent to this one.
            false if self.bulk_epoch.get() == 0 => self.bulk_epoch.set(connection.epoch),
            false => {}
        }
    }
}

impl MountModel {
    /// Keeps the control connection or the bulk connection up for as long as the session lives.
    pub async fn keep(self, is_control: bool) {
        let client = &self.client;
        // Greetings without an answer: a server that is stopped may still answer one.
        let mut greeted: Vec<Rc<ModelConnection>> = Vec::new();
        while !client.ended.get() {
            self.world.sleep(self.world.below(20 * MS)).await;
            if is_control && client.session.get() == 0 {
                continue;
            }
            greeted.retain(|connection| connection.is_client_open.get());
            for index in 0..self.world.processes.len() {
                if greeted.iter().any(|connection| connection.server == index) && self.world.chance(50) {
                    continue;
                }
                if let Some(connection) = self.world.connect(client.number, is_control, index) {
                    self.world.up(&connection, ClientMessage::Hello { session: client.session.get() });
                    greeted.push(connection);
                }
            }
            let until = self.world.now() + PATIENCE_US;
            let touched = client.clone();
            self.world.at(until, move |world| touched.touch(world));
            let welcomed = || {
                let welcomed = client.welcomed.borrow()[usize::from(is_control)].clone();
                let is_this = |welcomed: &Rc<ModelConnection>| {
                    welcomed.is_client_open.get() && greeted.iter().any(|connection| Rc::ptr_eq(connection, welcomed))
                };
                welcomed.filter(is_this)
            };
            let is_over = || {
                let is_open = greeted.iter().any(|connection| connection.is_client_open.get());
                !is_open || self.world.now() >= until || client.ended.get()
            };
            self.wait(|| welcomed().is_some() || is_over()).await;
            if let Some(connection) = welcomed() {
                let others = greeted.iter().filter(|other| !Rc::ptr_eq(other, &connection));
                others.for_each(|other| other.is_client_open.set(false));
                self.world.yields().await;
                self.serve(&connection).await;
                connection.is_client_open.set(false);
            }
        }
    }

    async fn serve(&self, connection: &Rc<ModelConnection>) {
        let client = &self.client;
        if connection.is_control {
            let mount = self.clone();
            let renewed = connection.clone();
            self.spawn(async move { mount.renew(renewed).await });
        } else if connection.is_client_open.get() {
            self.begin_bulk(connection);
        }
        self.touch();
        self.wait(|| !connection.is_client_open.get() || client.ended.get()).await;
        let of = if connection.is_control { &client.control } else { &client.bulk };
        of.borrow_mut().take_if(|current| Rc::ptr_eq(current, connection));
    }

    /// Sends all calls without an answer on a new bulk connection; a new server is also told what the client holds. What
    /// the highest known epoch is does not matter for that: it may be known from the control connection.
    fn begin_bulk(&self, connection: &Rc<ModelConnection>) {
        let client = &self.client;
        if client.bulk_epoch.replace(connection.epoch) != connection.epoch {
            client.is_reclaiming.set(true);
            client.calls.borrow_mut().retain(|_, call| {
                call.is_restart.then(|| call.drop_call());
                !call.is_restart
            });
            let (mount, epoch) = (self.clone(), connection.epoch);
            self.spawn(async move { mount.reclaim(epoch).await });
        }
        for call in client.calls.borrow().values() {
            if !(client.is_reclaiming.get() && call.is_try_lock()) || planted(VolumeModelBug::TryLockInGrace) {
                self.world.up(connection, call.message.clone());
            }
        }
        *client.bulk.borrow_mut() = Some(connection.clone());
    }

    async fn renew(&self, connection: Rc<ModelConnection>) {
        let client = &self.client;
        let mut is_due = true;
        client.unanswered.set(None);
        while connection.is_client_open.get() && !client.ended.get() {
            let clock = client.clock(&self.world);
            let waited = client.unanswered.get().map(|since| clock - since);
            if waited.is_some_and(|waited| waited > PATIENCE_US) && !planted(VolumeModelBug::NoGate) {
                self.world.coverage.met("15: a renewal has no answer, and the client turns to all servers");
                return client.close(&self.world, &connection);
            }
            if is_due {
                client.sent_us.borrow_mut().insert(clock, self.world.now());
                client.unanswered.set(Some(client.unanswered.get().unwrap_or(clock)));
                let (acknowledged, drained) = (client.acknowledged(), client.drained());
                self.world.up(&connection, ClientMessage::Renew { sent: clock, acknowledged, drained });
                self.world.after_renewal(client);
            }
            is_due = !is_due;
            self.world.sleep(LEASE_MS * MS / RENEWALS_OF_LEASE / 2).await;
        }
    }

    /// Tells a new server which file locks and tokens the client holds. If that server is replaced meanwhile, the next
    /// one is told all of it.
    async fn reclaim(&self, epoch: u64) {
        let client = &self.client;
        let is_current = || client.bulk_epoch.get() == epoch && !client.ended.get();
        let mut claimed = Vec::new();
        loop {
            let next = |claimed: &[_]| client.locks.borrow().iter().find(|lock| !claimed.contains(*lock)).copied();
            let Some(lock) = next(&claimed).filter(|_| is_current()) else { break };
            claimed.push(lock);
            // A lock that a program releases meanwhile must not be claimed.
            let make = |request| {
                let is_held = client.locks.borrow().contains(&lock) && is_current();
                is_held
                    .then(|| (ClientMessage::Wish { request, wish: ModelLockRequest::Lock(whole(lock), false) }, None))
            };
            self.world.coverage.met("16: a lock is claimed from a new server");
            match self.call(true, make).await {
                Ok(ModelCallAnswer::Reply(Err(refusal))) => {
                    let (client, file) = (client.number, lock.0);
                    self.world.break_with(format!("client {client} loses the lock of file {file}: {refusal:?}"));
                }
                Ok(_) => {}
                Err(_) => return,
            }
        }
        let held = client.objects.iter().filter_map(|object| {
            let state = object.hold.borrow();
            let held = TokenGrant { token: object.token, level: state.level(), sequence: state.sequence() };
            (held.level != level::NONE).then_some(held)
        });
        let make = |request| {
            let held: Vec<TokenGrant> = held.collect();
            if held.iter().any(|held| held.token.what == TokenAspect::Data && held.level == level::WRITE) {
                self.world.coverage.met("6: a token for writing is reclaimed, or said again");
            }
            is_current().then_some((ClientMessage::Reclaim { request, held }, None))
        };
        if self.call(true, make).await.is_err() || !is_current() {
            return;
        }
        client.is_reclaiming.set(false);
        if let Some(bulk) = &*client.bulk.borrow() {
            for call in client.calls.borrow().values().filter(|call| call.is_try_lock()) {
                self.world.up(bulk, call.message.clone());
            }
        }
    }
}
