//! Threads that serve a connection. Threads are started when they are needed, up to a limit.
//!
//! Owns: the threads. Each thread has its own descriptor, so its answers do not wait for the answers of other threads.
//! A thread that has received a request starts a further thread, up to the limit, if no other thread waits for the next
//! request. So if only one program reads, one or two threads serve it, and their processor caches stay warm. Promises:
//! if the file system panics, only that request fails, with `EIO`.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::channel::{FuseChannel, ReceiveOutcome};
use crate::connection::{ConnectionWorker, FuseConnection};

/// The stack of each thread. *Units*: bytes.
const STACK_BYTES: usize = 512 << 10;

/// The threads that serve a connection.
///
/// The threads end when the kernel ends the connection. The kernel does so when the file system is unmounted and has no
/// more users.
pub struct WorkerCrew {
    shared: Arc<CrewContext>,
}

struct CrewContext {
    connection: Arc<FuseConnection>,
    /// A descriptor from which no thread reads. Descriptors for further threads are cloned from it.
    channel: FuseChannel,
    name: String,
    /// The number of threads that wait for a request.
    waiting: AtomicUsize,
    state: Mutex<CrewState>,
    changed: Condvar,
}

#[derive(Default)]
struct CrewState {
    running: usize,
    started: usize,
    result: Option<io::Error>,
}

impl WorkerCrew {
    /// Serves `channel` with at most as many threads as the connection's limits allow. The channel must
    /// [block](Channel::open).
    ///
    /// *Errors*: the operating system's error if the first thread cannot be started.
    pub fn start(connection: Arc<FuseConnection>, channel: FuseChannel, name: &str) -> io::Result<WorkerCrew> {
        let shared = Arc::new(CrewContext {
            connection,
            channel: channel.again()?,
            name: name.to_owned(),
            waiting: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        CrewContext::spawn(&shared, Some(channel))?;
        Ok(WorkerCrew { shared })
    }

    /// The connection that is served.
    pub fn connection(&self) -> &Arc<FuseConnection> {
        &self.shared.connection
    }

    /// The number of threads that have been started.
    pub fn started(&self) -> usize {
        self.shared.state().started
    }

    /// Waits until the connection and all threads have ended.
    ///
    /// *Errors*: the first error that the kernel reported on the FUSE connection. The regular end of the connection is
    /// no error.
    pub fn wait(&self) -> io::Result<()> {
        let state = self.shared.state();
        let mut state =
            self.shared.changed.wait_while(state, |state| state.running > 0).unwrap_or_else(PoisonError::into_inner);
        state.result.take().map_or(Ok(()), Err)
    }
}

impl CrewContext {
    fn state(&self) -> MutexGuard<'_, CrewState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts one more thread, unless the limit is reached.
    fn spawn(shared: &Arc<CrewContext>, channel: Option<FuseChannel>) -> io::Result<()> {
        let index = {
            let mut state = shared.state();
            if state.started >= shared.connection.limits().workers {
                return Ok(());
            }
            state.started += 1;
            state.running += 1;
            state.started
        };
        let started = channel.map_or_else(|| shared.channel.again(), Ok).and_then(|channel| {
            let of_thread = shared.clone();
            let thread = std::thread::Builder::new().name(format!("{}-{index}", shared.name)).stack_size(STACK_BYTES);
            thread.spawn(move || {
                let result = of_thread.work(&of_thread, channel);
                of_thread.left(result);
            })
        });
        if started.is_err() {
            let mut state = shared.state();
            state.started -= 1;
            state.running -= 1;
        }
        started.map(drop)
    }

    fn left(&self, result: io::Result<()>) {
        let mut state = self.state();
        state.running -= 1;
        if let Err(error) = result {
            state.result.get_or_insert(error);
        }
        self.changed.notify_all();
    }

    fn work(&self, shared: &Arc<CrewContext>, channel: FuseChannel) -> io::Result<()> {
        let mut worker = ConnectionWorker::new(&self.connection, channel);
        loop {
            worker.prepare_blocking();
            self.waiting.fetch_add(1, Ordering::Relaxed);
            let received = worker.receive();
            let others = self.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
            match received? {
                ReceiveOutcome::Bytes(bytes) => {
                    if others == 0 {
                        // If no further thread can be started, the existing threads go on.
                        let _ = CrewContext::spawn(shared, None);
                    }
                    // A panic drops the reply, which fails the request with `EIO`.
                    let _ = catch_unwind(AssertUnwindSafe(|| worker.dispatch(bytes)));
                }
                ReceiveOutcome::Nothing => {}
                ReceiveOutcome::End => return Ok(()),
            }
        }
    }
}
