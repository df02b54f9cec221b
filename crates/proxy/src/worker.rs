//! One worker: a thread with its own runtime, listeners, connections and memories.
//!
//! Owns: the common state of a thread's requests, accepting, and sweeping: on every tick of [`TICK`] it ends overdue
//! work, hands the access log over and checks kept connections. Nothing here is shared with other workers but the store
//! and the counters' readers.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use nectary_host::Shutdown;
use nectary_host::log::{Level, Throttle};
use nectary_store::Spans;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::access_log::{Line, LogBuffer};
use crate::hit_for_miss::HitForMiss;
use crate::options::ProxyOptions;
use crate::rendered_values::RenderedValues;
use crate::rules::cache_status::CACHE_NAME;
use crate::rules::default_ttl::DefaultTtl;
use crate::rules::key::Origin;
use crate::rules::policy::Policy;
use crate::service::connection;
use crate::stats::{OriginState, WorkerStats};
use crate::upstream::Upstream;
use crate::wire::deadlines::{Clock, Deadlines, Side, TICK, Watch};

/// A worker's answer when it has too many connections.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\n\
    cache-status: nectary; detail=too-many-connections\r\ncontent-length: 0\r\n\r\n";

/// The longest head of a request that can be answered at once.
const ROOM_BYTES: usize = 8 * 1024;

/// How long cut-off work may take to end.
const CUT_OFF: Duration = Duration::from_secs(1);

/// Says that connections cannot be accepted, most likely for want of descriptors.
static ACCEPT_FAILED: Throttle = Throttle::every(Duration::from_secs(60));

/// The purpose of an address that the proxy listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// Clients.
    Clients,
    /// Administration alone.
    Admin,
}

/// The origins whose responses the proxy stores.
pub(crate) enum Mode {
    /// Any origin that clients name.
    Forward,
    /// One origin.
    Reverse {
        /// The origin.
        origin: Origin,
        /// Its authority, for `Host`.
        authority: String,
        /// The prefix of its URLs' keys.
        key_prefix: Vec<u8>,
    },
}

/// The state that all requests of one thread share.
pub(crate) struct Worker {
    pub options: Arc<ProxyOptions>,
    pub mode: Mode,
    pub policy: Policy,
    pub store: Spans,
    pub stats: Arc<WorkerStats>,
    /// Whether the origin of a reverse proxy takes connections, as all workers see it.
    pub origin: Arc<OriginState>,
    pub upstream: Upstream,
    pub hit_for_miss: RefCell<HitForMiss>,
    pub rendered: RefCell<RenderedValues>,
    /// Room for the two parts of a key while a request is looked up.
    pub scratch: RefCell<(Vec<u8>, Vec<u8>)>,
    /// The buffer for requests until it is known which part answers them.
    pub room: RefCell<Box<[u8]>>,
    /// The name that this proxy appends to `Via`, and by which it recognises itself there.
    pub via: HeaderValue,
    pub pseudonym: String,
    pub tasks: TaskTracker,
    log: RefCell<Option<LogBuffer>>,
    clock: Rc<Clock>,
    watches: RefCell<Watches>,
    client_deadlines: Deadlines,
    origin_deadlines: Deadlines,
    connections_max: usize,
    /// Fetches for the store under way.
    pub fills: Cell<usize>,
    stopping: Cell<bool>,
    /// A moment on both clocks.
    epoch: Cell<(Instant, u64)>,
}

/// The watches of open connections.
#[derive(Default)]
struct Watches {
    next: u64,
    open: HashMap<u64, Rc<Watch>>,
}

impl Worker {
    /// A worker that has not begun to listen.
    pub fn new(
        options: Arc<ProxyOptions>,
        store: Spans,
        stats: Arc<WorkerStats>,
        origin: Arc<OriginState>,
        log: Option<LogBuffer>,
        instance: u32,
    ) -> Rc<Worker> {
        let limits = &options.limits;
        let ticks = Deadlines::ticks;
        let client_deadlines = Deadlines {
            idle: ticks(limits.keep_alive_timeout),
            head: ticks(limits.head_timeout),
            body: ticks(limits.body_timeout),
            write: ticks(limits.write_timeout),
            tunnel: ticks(limits.tunnel_timeout),
            linger: ticks(Duration::from_secs(1)),
        };
        let origin_deadlines = Deadlines {
            idle: ticks(limits.origin_idle_timeout),
            head: ticks(limits.response_timeout),
            ..client_deadlines
        };
        let mode = match &options.origin {
            None => Mode::Forward,
            Some(url) => {
                let mut key_prefix = Vec::new();
                url.0.push(&mut key_prefix);
                Mode::Reverse { origin: url.0.clone(), authority: url.0.authority(), key_prefix }
            }
        };
        let pseudonym = format!("{CACHE_NAME}-{instance:08x}");
        let via = HeaderValue::from_str(&format!("1.1 {pseudonym}")).expect("visible ASCII");
        Rc::new(Worker {
            connections_max: limits.connections_max.div_ceil(options.worker_count()),
            policy: Policy {
                default_ttl: DefaultTtl::new(options.default_ttl.clone()),
                is_for_origin: matches!(mode, Mode::Reverse { .. }),
                stores_cookies: options.store_set_cookie,
                stale_unreachable_s: options.stale_unreachable.as_secs(),
            },
            mode,
            store,
            stats,
            origin,
            upstream: Upstream::default(),
            hit_for_miss: RefCell::new(HitForMiss::new()),
            rendered: RefCell::new(RenderedValues::new()),
            scratch: RefCell::default(),
            room: RefCell::new(vec![0; ROOM_BYTES].into()),
            via,
            pseudonym,
            tasks: TaskTracker::new(),
            log: RefCell::new(log),
            clock: Rc::default(),
            watches: RefCell::default(),
            client_deadlines,
            origin_deadlines,
            fills: Cell::new(0),
            stopping: Cell::new(false),
            epoch: Cell::new((Instant::now(), unix_ms())),
            options,
        })
    }

    /// This moment, and its Unix milliseconds.
    pub fn now(&self) -> (Instant, u64) {
        let now = Instant::now();
        let (then, then_ms) = self.epoch.get();
        (now, then_ms + now.saturating_duration_since(then).as_millis() as u64)
    }

    /// Unix milliseconds of now.
    pub fn now_ms(&self) -> u64 {
        self.now().1
    }

    /// Whether the worker is about to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// Whether there is an access log.
    pub fn has_log(&self) -> bool {
        self.log.borrow().is_some()
    }

    /// Logs and counts a request.
    pub fn log(&self, line: &Line<'_>) {
        line.outcome.count(&self.stats);
        if let Some(log) = &mut *self.log.borrow_mut() {
            log.push(line);
        }
    }

    /// A watch for a new connection.
    pub fn new_watch(&self, side: Side) -> Rc<Watch> {
        let limits = &self.options.limits;
        let (deadlines, head_bytes_max) = match side {
            Side::Client => (self.client_deadlines, limits.request_head_bytes_max),
            Side::Origin => (self.origin_deadlines, limits.response_head_bytes_max),
        };
        Watch::new(side, self.clock.clone(), deadlines, head_bytes_max)
    }

    /// Puts a connection under the sweeper's eye until the returned value is dropped.
    pub fn enlist(self: &Rc<Self>, watch: Rc<Watch>) -> Enlisted {
        let mut watches = self.watches.borrow_mut();
        let number = watches.next;
        watches.next += 1;
        watches.open.insert(number, watch);
        Enlisted { worker: self.clone(), number }
    }

    /// Runs a connection to an origin until it ends or its watch ends it.
    pub fn supervise<F: Future + 'static>(self: &Rc<Self>, watch: Rc<Watch>, connection: F) {
        let enlisted = self.enlist(watch.clone());
        self.tasks.spawn_local(async move {
            let mut connection = pin!(connection);
            poll_fn(|context| {
                watch.register(context);
                if watch.is_killed() {
                    return Poll::Ready(());
                }
                connection.as_mut().poll(context).map(drop)
            })
            .await;
            drop(enlisted);
        });
    }

    /// Serves until a stop is requested, then finishes requests under way, within the drain timeout.
    pub async fn run(self: Rc<Self>, listeners: Vec<(StdListener, Door)>, shutdown: Shutdown) -> std::io::Result<()> {
        let mut accepting = Vec::new();
        for (listener, door) in listeners {
            let listener = TcpListener::from_std(listener)?;
            accepting.push(self.tasks.spawn_local(accept(self.clone(), listener, door)));
        }
        let sweeping = sweep(self.clone());
        tokio::select! {
            () = sweeping => {}
            () = shutdown.requested() => {}
        }
        accepting.iter().for_each(|task| task.abort());
        self.stopping.set(true);
        self.upstream.close();
        self.watches.borrow().open.values().for_each(|watch| watch.drain());
        self.tasks.close();
        let drained = async {
            tokio::select! {
                () = sweep(self.clone()) => {}
                () = self.tasks.wait() => {}
            }
        };
        if tokio::time::timeout(self.options.limits.drain_timeout, drained).await.is_err() {
            // What is still under way is cut off: fills fail, clients see their connection abort.
            self.watches.borrow().open.values().for_each(|watch| watch.kill());
            _ = tokio::time::timeout(CUT_OFF, self.tasks.wait()).await;
        }
        if let Some(log) = &mut *self.log.borrow_mut() {
            log.flush();
        }
        Ok(())
    }
}

/// A connection under the sweeper's eye.
pub(crate) struct Enlisted {
    worker: Rc<Worker>,
    number: u64,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        self.worker.watches.borrow_mut().open.remove(&self.number);
    }
}

/// Accepts for ever.
async fn accept(worker: Rc<Worker>, listener: TcpListener, door: Door) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => admit(&worker, stream, client, door),
            Err(error) => {
                // Out of descriptors, most likely: those that are open must end first.
                ACCEPT_FAILED.write(Level::Warning, "proxy", format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

fn admit(worker: &Rc<Worker>, stream: TcpStream, client: SocketAddr, door: Door) {
    if worker.stats.connections_open() >= worker.connections_max as u64 {
        worker.stats.excess_connections.add(1);
        // A new connection has room for this; if it has not, closing says enough.
        _ = stream.try_write(TOO_MANY);
        return;
    }
    worker.stats.connections.add(1);
    worker.stats.connections_open.add(1);
    _ = stream.set_nodelay(true);
    let watch = worker.new_watch(Side::Client);
    let enlisted = worker.enlist(watch.clone());
    let worker = worker.clone();
    worker.clone().tasks.spawn_local(async move {
        connection::serve(worker.clone(), watch, stream, client, door).await;
        worker.stats.connections_open.subtract(1);
        drop(enlisted);
    });
}

/// Ticks for ever.
async fn sweep(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        worker.clock.advance();
        worker.epoch.set((Instant::now(), unix_ms()));
        for watch in worker.watches.borrow().open.values() {
            if !watch.is_killed() && watch.is_overdue() {
                worker.stats.overdue_connections.add(1);
                watch.kill();
            }
        }
        worker.upstream.sweep();
        if let Some(log) = &mut *worker.log.borrow_mut() {
            log.flush();
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
