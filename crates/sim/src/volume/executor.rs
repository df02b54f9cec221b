//! Runs tasks in virtual time, on one thread, in an order that the seed decides.
//!
//! Owns: the time, the events that are due, and the choice of the next task. Promises: a seed repeats a run exactly; a
//! task of a paused host or a stopped server continues after that, at the point where it was. Leaves to others: the work of hosts
//! and tasks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::world::VolumeWorld;

/// The number of a task.
pub type TaskId = usize;
/// A millisecond. *Units*: microseconds.
pub const MS: u64 = 1000;

/// A function to call at a given time.
type Call = Box<dyn FnOnce(&Rc<VolumeWorld>)>;

/// An event at a given time.
enum ExecutorEvent {
    Wake(TaskId),
    Call(Call),
}

/// The process that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskOwner {
    /// A client, by its number.
    Client(usize),
    /// A server, by its index.
    Server(usize),
}

/// A task of a client or of a server.
struct OwnedTask {
    owner: TaskOwner,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// The time, the planned events and the tasks.
#[derive(Default)]
pub struct SeededExecutor {
    now_us: Cell<u64>,
    next: Cell<u64>,
    queue: RefCell<BTreeMap<(u64, u64), ExecutorEvent>>,
    tasks: RefCell<Vec<Option<OwnedTask>>>,
    ready: RefCell<Vec<TaskId>>,
    current: Cell<TaskId>,
    /// The owner of the task that is running, and whether the owner has ended meanwhile.
    running: Cell<Option<TaskOwner>>,
    is_over: Cell<bool>,
}

impl SeededExecutor {
    /// Drops all tasks and planned events.
    pub fn clear(&self) {
        let tasks = self.tasks.take();
        let queue = self.queue.take();
        drop((tasks, queue));
    }
}

impl VolumeWorld {
    /// The current time. *Units*: microseconds.
    pub fn now(&self) -> u64 {
        self.executor.now_us.get()
    }

    fn plan(&self, at_us: u64, event: ExecutorEvent) {
        let next = self.executor.next.get() + 1;
        self.executor.next.set(next);
        self.executor.queue.borrow_mut().insert((at_us.max(self.now()), next), event);
    }

    /// Calls a function at a given time.
    pub fn at(&self, at_us: u64, call: impl FnOnce(&Rc<VolumeWorld>) + 'static) {
        self.plan(at_us, ExecutorEvent::Call(Box::new(call)));
    }

    /// Starts a task of a client or a server.
    pub fn spawn(&self, owner: TaskOwner, future: impl Future<Output = ()> + 'static) {
        let mut tasks = self.executor.tasks.borrow_mut();
        tasks.push(Some(OwnedTask { owner, future: Box::pin(future) }));
        self.executor.ready.borrow_mut().push(tasks.len() - 1);
    }

    /// Drops all tasks of a process at the points that they have reached.
    pub fn end_tasks(&self, owner: TaskOwner) {
        if self.executor.running.get() == Some(owner) {
            self.executor.is_over.set(true);
        }
        let of = |task: &mut Option<OwnedTask>| task.take_if(|task| task.owner == owner);
        let ended: Vec<OwnedTask> = self.executor.tasks.borrow_mut().iter_mut().filter_map(of).collect();
        drop(ended);
    }

    /// Lets waiting tasks continue.
    pub fn wake(&self, tasks: impl IntoIterator<Item = TaskId>) {
        self.executor.ready.borrow_mut().extend(tasks);
    }

    /// The task that is running.
    pub fn current(&self) -> TaskId {
        self.executor.current.get()
    }

    /// Waits for this many microseconds.
    pub fn sleep(self: &Rc<VolumeWorld>, us: u64) -> impl Future<Output = ()> + use<> {
        let (world, until, mut is_planned) = (self.clone(), self.now() + us, false);
        std::future::poll_fn(move |_| {
            if world.now() >= until && is_planned {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut is_planned, true) {
                world.plan(until, ExecutorEvent::Wake(world.current()));
            }
            Poll::Pending
        })
    }

    /// Sometimes lets other tasks run first.
    pub async fn yields(self: &Rc<VolumeWorld>) {
        if self.chance(40) {
            self.sleep(self.below(60)).await;
        }
    }

    /// Handles one event or polls one task; returns false if nothing is left to do.
    pub fn step(self: &Rc<VolumeWorld>) -> bool {
        let due = {
            let mut queue = self.executor.queue.borrow_mut();
            let is_idle = self.executor.ready.borrow().is_empty();
            match queue.first_key_value() {
                Some(((at, _), _)) if is_idle || *at <= self.now() => queue.pop_first(),
                _ => None,
            }
        };
        if let Some(((at, _), event)) = due {
            self.executor.now_us.set(at.max(self.now()));
            match event {
                ExecutorEvent::Wake(task) => self.wake([task]),
                ExecutorEvent::Call(call) => call(self),
            }
            return true;
        }
        let count = self.executor.ready.borrow().len() as u64;
        if count == 0 {
            return false;
        }
        let task = self.executor.ready.borrow_mut().swap_remove(self.below(count) as usize);
        self.poll(task);
        true
    }

    fn poll(self: &Rc<VolumeWorld>, id: TaskId) {
        let Some(task) = self.executor.tasks.borrow_mut()[id].take() else { return };
        let is_parked = match task.owner {
            TaskOwner::Client(number) => self.client(number).park(id),
            TaskOwner::Server(index) => self.processes[index].park(id),
        };
        if is_parked {
            self.executor.tasks.borrow_mut()[id] = Some(task);
            return;
        }
        self.executor.now_us.set(self.now() + 1);
        self.executor.current.set(id);
        self.executor.running.set(Some(task.owner));
        let mut task = task;
        let polled = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.executor.running.set(None);
        if !self.executor.is_over.replace(false) && polled.is_pending() {
            self.executor.tasks.borrow_mut()[id] = Some(task);
        }
    }
}
