//! The processes of the servers. Each runs on a host of its own, with its own clock and its own path to the disk.
//!
//! Owns: starts and ends of processes, stops in which a process does nothing while its sockets and its disk go on, and
//! the I/O of servers. Promises: what happens to a stopped process is handled when it goes on, in an order that keeps
//! the order of each connection; I/O that a process has begun may reach the disk after the process has ended. Leaves to
//! others: what a server does (`server`), leadership (`leader`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::leader;
use super::server::ServerModel;
use crate::volume::executor::{MS, TaskId, TaskOwner};
use crate::volume::network::{ModelConnection, ServerMessage};
use crate::volume::world::VolumeWorld;

/// The lane of events that keep no order among themselves.
const LANE_OF_NONE: u64 = 0;
/// The probability that I/O in flight is lost when its process ends. *Units*: percent.
const LOST_IO_PERCENT: u64 = 40;
/// The probability that the end of a process is proven to the servers on other hosts. *Units*: percent.
const FENCED_PERCENT: u64 = 30;

/// A function to call in a server.
type Call = Box<dyn FnOnce(&Rc<VolumeWorld>, &mut ServerModel)>;

/// The place of a server's process.
pub struct ServerProcess {
    pub index: usize,
    /// The speed of its host's clock relative to true time. *Units*: millionths.
    rate: u64,
    /// The number of the present process, which no other process of the run has.
    pub incarnation: Cell<u64>,
    pub is_alive: Cell<bool>,
    is_stopped: Cell<bool>,
    /// The time at which its clock was stopped, too, and for how long the clock has been stopped before.
    clock_stopped_at: Cell<Option<u64>>,
    clock_stopped_us: Cell<u64>,
    /// The number of stops so far, so that a stop ends only itself.
    stops: Cell<u64>,
    parked: RefCell<Vec<TaskId>>,
    /// Events of a stopped process, each with its lane: the order within a lane is kept.
    events: RefCell<Vec<(u64, Call)>>,
    /// Messages that passed the gate just before the process was stopped.
    passed: RefCell<Vec<(Rc<ModelConnection>, ServerMessage)>>,
    pub server: RefCell<ServerModel>,
    /// The time until which the host's path to the disk hangs.
    pub hung_until: Cell<u64>,
    /// The time until which each I/O takes almost as long as the lease.
    pub slow_until: Cell<u64>,
    /// The I/O of this host's processes that has not reached the disk yet.
    in_work: Cell<u64>,
    /// The number of the I/Os of the present process that were begun, and that have ended.
    begun: Cell<u64>,
    pub done: Cell<u64>,
}

impl ServerProcess {
    pub fn new(index: usize, rate: u64) -> ServerProcess {
        ServerProcess {
            index,
            rate,
            incarnation: Cell::new(0),
            is_alive: Cell::new(false),
            is_stopped: Cell::new(false),
            clock_stopped_at: Cell::new(None),
            clock_stopped_us: Cell::new(0),
            stops: Cell::new(0),
            parked: RefCell::default(),
            events: RefCell::default(),
            passed: RefCell::default(),
            server: RefCell::default(),
            hung_until: Cell::new(0),
            slow_until: Cell::new(0),
            in_work: Cell::new(0),
            begun: Cell::new(0),
            done: Cell::new(0),
        }
    }

    /// Keeps a task until the process goes on; returns false if the process is not stopped.
    pub fn park(&self, task: TaskId) -> bool {
        if self.is_stopped.get() {
            self.parked.borrow_mut().push(task);
        }
        self.is_stopped.get()
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// Whether the process has begun I/O that has not ended.
    pub fn is_waiting(&self) -> bool {
        self.begun.get() > self.done.get()
    }

    /// Whether the process leads as far as it knows.
    pub fn is_leading(&self) -> bool {
        self.is_alive.get() && self.server.borrow().is_leading
    }

    /// Keeps a message that passed the gate until the process goes on.
    pub fn keep_passed(&self, connection: Rc<ModelConnection>, message: ServerMessage) {
        self.passed.borrow_mut().push((connection, message));
    }

    /// Describes the state of the process.
    pub fn describe(&self) -> String {
        let (alive, stopped, hung) = (self.is_alive.get(), self.is_stopped.get(), self.hung_until.get());
        let server = self.server.borrow();
        let (leads, epoch, grace) = (server.is_leading, server.epoch, server.is_grace());
        let index = self.index;
        format!("server {index}: alive {alive}, stopped {stopped}, hung {hung}, leads {leads} {epoch}, grace {grace}")
    }

    fn forget(&self) {
        self.is_stopped.set(false);
        self.parked.borrow_mut().clear();
        self.events.borrow_mut().clear();
        self.passed.borrow_mut().clear();
        self.begun.set(0);
        self.done.set(0);
    }
}

impl VolumeWorld {
    /// The time on a server's clock. *Units*: microseconds.
    pub fn clock_of(&self, index: usize) -> u64 {
        let process = &self.processes[index];
        let now = process.clock_stopped_at.get().unwrap_or(self.now());
        (now - process.clock_stopped_us.get()) * process.rate / 1_000_000
    }

    /// Returns a duration of true time that is at least this long on a server's clock. *Units*: microseconds.
    pub fn true_us(&self, index: usize, clock_us: u64) -> u64 {
        (clock_us * 1_000_000).div_ceil(self.processes[index].rate)
    }

    /// Starts a process.
    pub fn start_process(self: &Rc<VolumeWorld>, index: usize) {
        let process = &self.processes[index];
        if process.is_alive.replace(true) {
            return;
        }
        process.forget();
        process.incarnation.set(self.next_incarnation());
        *process.server.borrow_mut() = ServerModel::new(index, process.incarnation.get());
        self.spawn(TaskOwner::Server(index), leader::serve(self.clone(), index));
    }

    /// Ends a process; another one starts at its place after `after_us` microseconds. The caller has not borrowed the
    /// server.
    pub fn end_process(self: &Rc<VolumeWorld>, index: usize, after_us: u64) {
        let process = &self.processes[index];
        if !process.is_alive.replace(false) {
            return;
        }
        let incarnation = process.incarnation.get();
        self.tell(|| format!("server {index} ends"));
        process.server.borrow_mut().is_leading = false;
        self.start_clock(process);
        process.forget();
        self.end_tasks(TaskOwner::Server(index));
        if self.chance(LOST_IO_PERCENT) {
            self.journal.lose_io_of(incarnation);
        }
        if self.chance(FENCED_PERCENT) {
            self.journal.fence(incarnation);
        }
        self.lose_server(index);
        self.at(self.now() + after_us, move |world| world.start_process(index));
    }

    /// Ends a process that has learned that it does not lead any more. The caller may have borrowed the server.
    pub fn end_soon(self: &Rc<VolumeWorld>, index: usize) {
        let incarnation = self.processes[index].incarnation.get();
        self.at(self.now(), move |world| {
            if world.processes[index].incarnation.get() == incarnation {
                world.end_process(index, MS + world.below(40 * MS));
            }
        });
    }

    /// Whether a process is proven to write nothing any more to the server at `index`: on its host by the lock on the
    /// disk's descriptor, elsewhere by a fence.
    pub fn is_gone(&self, incarnation: u64, of: usize, index: usize) -> bool {
        let process = &self.processes[of];
        let is_over = process.incarnation.get() != incarnation || !process.is_alive.get();
        is_over && process.in_work.get() == 0 && (of == index || self.journal.is_fenced(incarnation))
    }

    /// Stops a process and its host's clock, as when a virtual machine is paused. A leader still believes in its lease
    /// then; what it answers is worth nothing until it has read the lease sectors, but what it stores is safe.
    pub fn stop_with_clock(self: &Rc<VolumeWorld>, index: usize, us: u64) {
        self.stop(index, us, true);
        let process = &self.processes[index];
        if process.is_stopped.get() && process.clock_stopped_at.get().is_none() {
            process.clock_stopped_at.set(Some(self.now()));
        }
    }

    /// Stops a process for `us` microseconds. With `holds_io`, its I/O in flight waits, too.
    pub fn stop(self: &Rc<VolumeWorld>, index: usize, us: u64, holds_io: bool) {
        let process = &self.processes[index];
        if !process.is_alive.get() || process.is_stopped.replace(true) {
            return;
        }
        self.tell(|| format!("server {index} stops for {us} us"));
        process.stops.set(process.stops.get() + 1);
        if holds_io {
            process.hung_until.set(process.hung_until.get().max(self.now() + us));
        }
        let stop = process.stops.get();
        self.at(self.now() + us, move |world| world.go_on_after(index, stop));
    }

    /// Stops a process again and again; it runs for a moment between two stops.
    pub fn stutter(self: &Rc<VolumeWorld>, index: usize, until_us: u64) {
        let incarnation = self.processes[index].incarnation.get();
        let us = (30 + self.below(120)) * MS;
        self.stop(index, us, false);
        self.at(self.now() + us + 50 + self.below(700), move |world| {
            if world.now() < until_us && world.is_working() && world.processes[index].incarnation.get() == incarnation {
                world.stutter(index, until_us);
            }
        });
    }

    /// Ends the present stop of a process.
    pub fn end_stop(self: &Rc<VolumeWorld>, index: usize) {
        self.go_on_after(index, self.processes[index].stops.get());
    }

    fn go_on_after(self: &Rc<VolumeWorld>, index: usize, stop: u64) {
        let process = &self.processes[index];
        if !process.is_stopped.get() || process.stops.get() != stop {
            return;
        }
        self.tell(|| format!("server {index} goes on"));
        process.is_stopped.set(false);
        self.start_clock(process);
        for (connection, message) in process.passed.take() {
            if !process.server.borrow().gate.holds(self.clock_of(index)) {
                self.coverage.met("14: a message leaves after its leader's lease has ended");
            }
            self.down(&connection, message);
        }
        self.wake(process.parked.take());
        let flush: Call = Box::new(|world, server| server.flush(world));
        process.events.borrow_mut().push((LANE_OF_NONE, flush));
        self.drain_later(index, process.incarnation.get());
    }

    fn start_clock(&self, process: &ServerProcess) {
        if let Some(at) = process.clock_stopped_at.take() {
            process.clock_stopped_us.set(process.clock_stopped_us.get() + self.now() - at);
            let is_deposed = self.journal.stored.borrow().epoch > process.server.borrow().epoch;
            if is_deposed && process.server.borrow().gate.holds(self.clock_of(process.index)) {
                self.coverage.met("14: a leader's clock stood still while another server took over");
            }
        }
    }

    /// Handles the events of a stop one after another. Those that come meanwhile wait behind them.
    fn drain_later(self: &Rc<VolumeWorld>, index: usize, incarnation: u64) {
        self.at(self.now() + self.below(60), move |world| {
            let process = &world.processes[index];
            let count = process.events.borrow().len() as u64;
            if process.incarnation.get() != incarnation || process.is_stopped.get() || count == 0 {
                return;
            }
            let call = {
                let mut events = process.events.borrow_mut();
                let lane = events[world.below(count) as usize].0;
                let first = events.iter().position(|(of, _)| *of == lane).unwrap_or(0);
                events.remove(first).1
            };
            call(world, &mut process.server.borrow_mut());
            world.drain_later(index, incarnation);
        });
    }

    /// Calls a function in a process at a given time; if the process is stopped then, when it goes on.
    fn at_process(self: &Rc<VolumeWorld>, index: usize, incarnation: u64, lane: u64, at_us: u64, call: Call) {
        self.at(at_us, move |world| world.handle(index, incarnation, lane, call));
    }

    fn handle(self: &Rc<VolumeWorld>, index: usize, incarnation: u64, lane: u64, call: Call) {
        let process = &self.processes[index];
        if !process.is_alive.get() || process.incarnation.get() != incarnation {
            return;
        }
        if process.is_stopped.get() || !process.events.borrow().is_empty() {
            return process.events.borrow_mut().push((lane, call));
        }
        call(self, &mut process.server.borrow_mut());
    }

    /// Hands a message of a connection to its server.
    pub fn to_server(
        self: &Rc<VolumeWorld>,
        connection: &ModelConnection,
        call: impl FnOnce(&Rc<VolumeWorld>, &mut ServerModel) + 'static,
    ) {
        self.handle(connection.server, connection.incarnation, connection.number(), Box::new(call));
    }

    /// Calls a function in a server at a given time on its clock.
    pub fn at_clock(
        self: &Rc<VolumeWorld>,
        server: &ServerModel,
        clock_us: u64,
        call: impl FnOnce(&Rc<VolumeWorld>, &mut ServerModel) + 'static,
    ) {
        let left = clock_us.saturating_sub(self.clock_of(server.index));
        let at = self.now() + self.true_us(server.index, left);
        self.at_process(server.index, server.incarnation, LANE_OF_NONE, at, Box::new(call));
    }

    fn server_io_us(&self, index: usize) -> u64 {
        if self.processes[index].slow_until.get() > self.now() {
            let lease_us = self.server_lease_ms * MS;
            return lease_us * 9 / 20 + self.below(lease_us / 25);
        }
        match self.below(100) {
            _ if self.disk.slow_until.get() > self.now() => self.below(60 * MS),
            0..3 => self.below(10 * MS),
            _ => 30 + self.below(150),
        }
    }

    /// Begins I/O of a server: `effect` happens on the disk, then `done` in the process.
    pub fn begin_server_io<T: 'static>(
        self: &Rc<VolumeWorld>,
        index: usize,
        effect: impl FnOnce(&Rc<VolumeWorld>) -> T + 'static,
        done: impl FnOnce(&Rc<VolumeWorld>, &mut ServerModel, T) + 'static,
    ) {
        let process = &self.processes[index];
        process.in_work.set(process.in_work.get() + 1);
        process.begun.set(process.begun.get() + 1);
        let (incarnation, at) = (process.incarnation.get(), self.now() + self.server_io_us(index));
        self.at_disk(index, at, move |world| {
            let process = &world.processes[index];
            process.in_work.set(process.in_work.get() - 1);
            let is_over = !process.is_alive.get() || process.incarnation.get() != incarnation;
            if is_over && world.journal.is_io_lost(incarnation) {
                return;
            }
            let result = effect(world);
            let at = world.now() + world.server_io_us(index);
            world.at_disk(index, at, move |world| {
                let call: Call = Box::new(move |world, server| {
                    let process = &world.processes[index];
                    process.done.set(process.done.get() + 1);
                    done(world, server, result);
                });
                world.handle(index, incarnation, LANE_OF_NONE, call);
            });
        });
    }

    /// Calls a function when the path to the disk does not hang.
    fn at_disk(self: &Rc<VolumeWorld>, index: usize, at_us: u64, call: impl FnOnce(&Rc<VolumeWorld>) + 'static) {
        self.at(at_us, move |world| {
            let until = world.processes[index].hung_until.get();
            if until > world.now() {
                let at = until + world.below(2 * MS);
                return world.at_disk(index, at, call);
            }
            call(world);
        });
    }

    /// Does I/O of a server; returns the result of its effect.
    pub async fn server_io<T: 'static>(
        self: &Rc<VolumeWorld>,
        index: usize,
        effect: impl FnOnce(&Rc<VolumeWorld>) -> T + 'static,
    ) -> T {
        let result: Rc<RefCell<Option<T>>> = Rc::new(RefCell::new(None));
        let (seen, task) = (result.clone(), Cell::new(None));
        let task = Rc::new(task);
        let woken = task.clone();
        self.begin_server_io(index, effect, move |world, _, value| {
            *seen.borrow_mut() = Some(value);
            world.wake(woken.get());
        });
        std::future::poll_fn(|_| match result.borrow_mut().take() {
            Some(value) => std::task::Poll::Ready(value),
            None => {
                task.set(Some(self.current()));
                std::task::Poll::Pending
            }
        })
        .await
    }
}
