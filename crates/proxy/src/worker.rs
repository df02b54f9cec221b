//! One worker: the state that the requests of one thread share.
//!
//! Owns: putting the parts of a worker together, and the worker's clock. Each part has its own file. Code that needs
//! only one part gets only that part: the code for origins and bodies does not know the worker. Workers share only the
//! store and the readers of the counters. Leaves to others: connections (`accept`), requests (`service`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue};
use nectary_store::Spans;
use serde_json::json;

use crate::access_log::{LogBuffer, RequestLog};
use crate::connections::Connections;
use crate::hit_for_miss::HitForMiss;
use crate::options::ProxyOptions;
use crate::rendered_values::RenderedValues;
use crate::room::Room;
use crate::rules::cache_status::CACHE_NAME;
use crate::rules::default_ttl::DefaultTtl;
use crate::rules::invalidate::origin_of;
use crate::rules::key::Origin;
use crate::rules::key_headers;
use crate::rules::origin::host_sent::{HostChoice, OriginHost, push_host};
use crate::rules::origin::references::OwnReferences;
use crate::rules::policy::Policy;
use crate::stats::{OriginState, WorkerStats};
use crate::successor::Successor;
use crate::upstream::{KnownOrigins, Upstream};

/// The longest request head that can be answered without hyper, in bytes.
const ROOM_BYTES: usize = 8 * 1024;

/// The origins whose responses the proxy stores.
pub(crate) enum Mode {
    /// Any origin that clients name.
    Forward,
    /// One origin.
    Reverse(ReverseMode),
}

/// The one origin of a reverse proxy.
pub(crate) struct ReverseMode {
    /// The origin.
    pub origin: Origin,
    /// The origin's references to itself, which clients get in a form that is right for each of them.
    pub references: OwnReferences,
    /// The `Host` that the origin gets, unless the client's is used.
    authority: String,
    /// The prefix of the keys of the origin's URLs: scheme and authority.
    key_prefix: Vec<u8>,
    /// Whether the host that the client names is the one that the origin gets and that is in the key.
    is_client_host: bool,
}

impl ReverseMode {
    fn new(origin: &Origin, host: &OriginHost) -> ReverseMode {
        let mut own = vec![origin.clone()];
        let mut authority = Vec::new();
        match &host.0 {
            HostChoice::Fixed(host) if push_host(&mut authority, host.as_bytes(), origin.https) => {
                own.extend(Authority::try_from(&authority[..]).ok().and_then(|host| Origin::new(origin.https, &host)));
            }
            _ => authority = origin.authority().into_bytes(),
        }
        let key_prefix = [origin.scheme().as_bytes(), b"://", &authority].concat();
        ReverseMode {
            origin: origin.clone(),
            references: OwnReferences::new(own),
            authority: String::from_utf8(authority).expect("a host is ASCII"),
            key_prefix,
            is_client_host: host.0 == HostChoice::Client,
        }
    }

    /// Appends scheme and authority of the key for a request that names `host`; false if it is not a host.
    pub fn push_key_prefix(&self, out: &mut Vec<u8>, host: Option<&[u8]>) -> bool {
        match host.filter(|_| self.is_client_host) {
            Some(host) => {
                out.extend_from_slice(self.origin.scheme().as_bytes());
                out.extend_from_slice(b"://");
                push_host(out, host, self.origin.https)
            }
            None => {
                out.extend_from_slice(&self.key_prefix);
                true
            }
        }
    }

    /// The `Host` that the origin gets with a request that has this key.
    pub fn host_for<'a>(&'a self, key: &'a [u8]) -> &'a str {
        let named = self.is_client_host.then(|| origin_of(key)).and_then(|prefix| std::str::from_utf8(prefix).ok());
        named.and_then(|prefix| prefix.split_once("://")).map_or(&self.authority, |(_, host)| host)
    }
}

/// The state that all requests of one thread share.
pub(crate) struct Worker {
    pub options: Arc<ProxyOptions>,
    pub mode: Mode,
    pub policy: Policy,
    /// The request headers that are part of every key, sorted.
    pub key_headers: Vec<HeaderName>,
    pub store: Spans,
    pub stats: Arc<WorkerStats>,
    pub log: Rc<RequestLog>,
    pub connections: Rc<Connections>,
    pub upstream: Rc<Upstream>,
    pub hit_for_miss: RefCell<HitForMiss>,
    pub rendered: RefCell<RenderedValues>,
    /// Buffers for the two parts of a key (URL and variant) while a request is looked up.
    pub scratch: RefCell<(Vec<u8>, Vec<u8>)>,
    /// The buffer into which a request's head is read before it is known whether hyper must answer the request.
    pub room: RefCell<Box<[u8]>>,
    /// The value that this proxy appends to `Via`, and the name by which it recognises its own value there.
    pub via: HeaderValue,
    pub pseudonym: String,
    /// The number of fetches for the store that are under way.
    pub fills: Cell<usize>,
    /// Whether the worker stops: it serves the requests of open connections without the store, which another process
    /// may have opened.
    pub is_leaving: Cell<bool>,
    /// The process that serves next.
    successor: Successor,
    /// The keys that the unsafe requests under way may change.
    pub changing: RefCell<Vec<Vec<u8>>>,
    /// The same moment on two clocks: on the monotonic clock, and in Unix milliseconds.
    epoch: Cell<(Instant, u64)>,
}

impl Worker {
    /// Makes a worker that does not listen yet.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        options: Arc<ProxyOptions>,
        store: Spans,
        stats: Arc<WorkerStats>,
        origin: Arc<OriginState>,
        known: Arc<KnownOrigins>,
        log: Option<LogBuffer>,
        room: Arc<Room>,
        successor: Successor,
        instance: u32,
    ) -> Rc<Worker> {
        let mode = match &options.origin {
            None => Mode::Forward,
            Some(url) => Mode::Reverse(ReverseMode::new(&url.0, &options.origin_rules.host)),
        };
        let pseudonym = format!("{CACHE_NAME}-{instance:08x}");
        let via = HeaderValue::from_str(&format!("1.1 {pseudonym}")).expect("visible ASCII");
        let connections = Connections::new(&options, room);
        let origin = options.origin.as_ref().map(|_| origin);
        Rc::new(Worker {
            policy: Policy {
                default_ttl: DefaultTtl::new(options.default_ttl.clone()),
                is_for_origin: matches!(mode, Mode::Reverse { .. }),
                stores_cookies: options.store_set_cookie,
                stale_unreachable_s: options.stale_unreachable.as_secs(),
            },
            mode,
            key_headers: key_headers::names(&options.origin_rules.key_headers),
            store,
            log: RequestLog::new(stats.clone(), log),
            upstream: Upstream::new(options.clone(), stats.clone(), connections.clone(), origin, known),
            connections,
            stats,
            hit_for_miss: RefCell::new(HitForMiss::new()),
            rendered: RefCell::new(RenderedValues::new()),
            scratch: RefCell::default(),
            room: RefCell::new(vec![0; ROOM_BYTES].into()),
            via,
            pseudonym,
            fills: Cell::new(0),
            is_leaving: Cell::new(false),
            changing: RefCell::default(),
            successor,
            epoch: Cell::new((Instant::now(), unix_ms())),
            options,
        })
    }

    /// Purges a key; once this worker has left the store, the next process is told. *Errors*: the purge is not durable.
    pub async fn purge_key(&self, key: &[u8]) -> Result<(), String> {
        if self.is_leaving.get() && self.successor.is_expected() {
            return self.successor.purge(json!({ "key": String::from_utf8_lossy(key) })).await;
        }
        match self.store.purge_key(key).await {
            // It was purged when this worker left the store.
            Err(_) if self.is_leaving.get() && self.changing.borrow().iter().any(|changing| changing == key) => Ok(()),
            purged => purged.map_err(|error| error.to_string()),
        }
    }

    /// Purges a tag, as [`purge_key`](Worker::purge_key) does a key.
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), String> {
        if self.is_leaving.get() && self.successor.is_expected() {
            return self.successor.purge(json!({ "tags": [String::from_utf8_lossy(tag)] })).await;
        }
        self.store.purge_tag(tag).await.map_err(|error| error.to_string())
    }

    /// The current time, on the monotonic clock and in Unix milliseconds.
    pub fn now(&self) -> (Instant, u64) {
        let now = Instant::now();
        let (then, then_ms) = self.epoch.get();
        (now, then_ms + now.saturating_duration_since(then).as_millis() as u64)
    }

    /// The current time in Unix milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now().1
    }

    /// Makes an origin's response fit for all clients, before anything else is read from its headers.
    pub fn adapt(&self, headers: &mut HeaderMap) {
        if let Mode::Reverse(reverse) = &self.mode {
            reverse.references.rewrite(headers);
        }
    }

    /// Reads both clocks again, so that [`Worker::now`] follows changes of the system's clock.
    pub fn look_at_clocks(&self) {
        self.epoch.set((Instant::now(), unix_ms()));
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
