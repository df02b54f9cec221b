//! One worker: the state that the requests of one thread share.
//!
//! Owns: putting the parts of a worker together, and the worker's clock. Each part has its own file. Code that needs
//! only one part gets only that part: the code for origins and bodies does not know the worker. Workers share only the
//! store and the readers of the counters. Leaves to others: connections (`accept`), requests (`service`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderValue, Version};
use nectary_host::fleet::{NodeStanding, RulesHash};
use nectary_store::SpanSet;
use serde_json::json;

use crate::accept::TlsService;
use crate::access_log::{LogBuffer, RequestLog};
use crate::client_limits::ClientLimits;
use crate::connections::WorkerConnections;
use crate::fleet::{FleetPeers, FleetSeat};
use crate::hit_for_miss::HitForMiss;
use crate::options::ProxyOptions;
use crate::rendered_values::RenderedValues;
use crate::room::ConnectionRoom;
use crate::rules::cache_status::CACHE_NAME;
use crate::service::{PartPurges, PeerPaces};
use crate::sites::{LiveSites, SiteTable};
use crate::stats::WorkerStats;
use crate::successor::SuccessorNotice;
use crate::upstream::{KnownOrigins, Upstream, check_all, find_all};

/// The longest request head that can be answered without hyper, in bytes.
const ROOM_BYTES: usize = 8 * 1024;

/// What all workers of a proxy share.
#[derive(Clone)]
pub(crate) struct WorkerCommon {
    pub options: Arc<ProxyOptions>,
    pub store: SpanSet,
    pub sites: LiveSites,
    pub known: Arc<KnownOrigins>,
    pub room: Arc<ConnectionRoom>,
    pub client_limits: ClientLimits,
    pub successor: SuccessorNotice,
    pub part_purges: Arc<PartPurges>,
    pub fleet: Option<FleetSeat>,
    pub peers: Option<Arc<FleetPeers>>,
    pub tls: Option<Arc<TlsService>>,
    /// A number that distinguishes this proxy from others.
    pub instance: u32,
}

/// The state that all requests of one thread share.
pub(crate) struct ProxyWorker {
    /// Which of the workers this is, from 0.
    pub index: usize,
    pub options: Arc<ProxyOptions>,
    /// The table of sites. A request keeps the route that it has found in it.
    pub sites: RefCell<Arc<SiteTable>>,
    /// What replaces the table.
    pub live_sites: LiveSites,
    pub store: SpanSet,
    pub stats: Arc<WorkerStats>,
    pub log: Rc<RequestLog>,
    pub connections: Rc<WorkerConnections>,
    pub client_limits: ClientLimits,
    pub upstream: Rc<Upstream>,
    pub hit_for_miss: RefCell<HitForMiss>,
    pub rendered: RefCell<RenderedValues>,
    /// When URLs were purged because their bodies in parts have changed.
    pub part_purges: Arc<PartPurges>,
    /// Buffers for the two parts of a key (URL and variant) while a request is looked up.
    pub scratch: RefCell<(Vec<u8>, Vec<u8>)>,
    /// The buffer into which a request's head is read before it is known whether hyper must answer the request.
    pub room: RefCell<Box<[u8]>>,
    /// What clients with TLS need, if there are any.
    pub tls: Option<Arc<TlsService>>,
    /// The values that this proxy appends to `Via` for messages of HTTP/1.1 and of HTTP/2, and the name by which it
    /// recognises its own values there.
    pub via: HeaderValue,
    via_http2: HeaderValue,
    pub pseudonym: String,
    /// The number of fetches for the store that are under way.
    pub fills: Cell<usize>,
    /// Whether the worker stops: it serves the requests of open connections without the store, which another process
    /// may have opened.
    pub is_leaving: Cell<bool>,
    /// The fleet of which this proxy is a node, if there is one.
    pub fleet: Option<FleetSeat>,
    /// What requests between nodes need, if this one shares keys with others.
    pub peers: Option<Arc<FleetPeers>>,
    pub peer_paces: RefCell<PeerPaces>,
    /// The process that serves next.
    successor: SuccessorNotice,
    /// The keys that the unsafe requests under way may change.
    pub changing: RefCell<Vec<Vec<u8>>>,
    /// The same moment on two clocks: on the monotonic clock, and in Unix milliseconds.
    epoch: Cell<(Instant, u64)>,
}

impl ProxyWorker {
    /// Makes a worker that does not listen yet.
    pub fn new(index: usize, common: WorkerCommon, stats: Arc<WorkerStats>, log: Option<LogBuffer>) -> Rc<ProxyWorker> {
        let WorkerCommon {
            options,
            store,
            sites,
            known,
            room,
            client_limits,
            successor,
            part_purges,
            fleet,
            peers,
            tls,
            instance,
        } = common;
        let pseudonym = format!("{CACHE_NAME}-{instance:08x}");
        let via = |version: &str| HeaderValue::from_str(&format!("{version} {pseudonym}")).expect("visible ASCII");
        let (via, via_http2) = (via("1.1"), via("2"));
        let connections = WorkerConnections::new(&options, room);
        Rc::new(ProxyWorker {
            index,
            sites: RefCell::new(sites.now()),
            live_sites: sites,
            store,
            log: RequestLog::new(stats.clone(), log),
            upstream: Upstream::new(options.clone(), stats.clone(), connections.clone(), known),
            connections,
            client_limits,
            stats,
            hit_for_miss: RefCell::new(HitForMiss::new()),
            rendered: RefCell::new(RenderedValues::new()),
            part_purges,
            scratch: RefCell::default(),
            room: RefCell::new(vec![0; ROOM_BYTES].into()),
            tls,
            via,
            via_http2,
            pseudonym,
            fills: Cell::new(0),
            is_leaving: Cell::new(false),
            changing: RefCell::default(),
            fleet,
            peers,
            peer_paces: RefCell::default(),
            successor,
            epoch: Cell::new((Instant::now(), unix_ms())),
            options,
        })
    }

    /// What may be done now with what the store has, by the table of sites in use. Read it after the request came. *Cost*:
    /// nothing without a fleet; else a clock and some loads.
    #[inline]
    pub fn standing(&self) -> NodeStanding {
        self.fleet.as_ref().map_or(NodeStanding::Member, |seat| seat.gate().standing_by(self.sites.borrow().rules()))
    }

    /// The same by the rules of a table that may have been replaced.
    pub fn standing_by(&self, rules: RulesHash) -> NodeStanding {
        self.fleet.as_ref().map_or(NodeStanding::Member, |seat| seat.gate().standing_by(rules))
    }

    /// Purges a key at this node; its owner has to purge what it has, next time. Once this worker has left the store, the
    /// next process is told. *Errors*: the purge is not durable.
    pub async fn purge_key(&self, key: &[u8]) -> Result<(), String> {
        if let Some(peers) = &self.peers {
            peers.note_invalidated(key);
        }
        self.purge_copies(key).await
    }

    /// Like [`purge_key`](ProxyWorker::purge_key), at this node alone: what the key's owner has is newer.
    pub async fn purge_copies(&self, key: &[u8]) -> Result<(), String> {
        if self.is_leaving.get() && self.successor.is_expected() {
            return self.successor.purge(json!({ "key": String::from_utf8_lossy(key) })).await;
        }
        match self.store.purge_key(key).await {
            // It was purged when this worker left the store.
            Err(_) if self.is_leaving.get() && self.changing.borrow().iter().any(|changing| changing == key) => Ok(()),
            purged => purged.map_err(|error| error.to_string()),
        }
    }

    /// Purges a tag, as [`purge_key`](ProxyWorker::purge_key) does a key.
    pub async fn purge_tag(&self, tag: &[u8]) -> Result<(), String> {
        if let Some(peers) = &self.peers {
            peers.note_invalidated_tag(tag, self.now_ms());
        }
        if self.is_leaving.get() && self.successor.is_expected() {
            return self.successor.purge(json!({ "tags": [String::from_utf8_lossy(tag)] })).await;
        }
        self.store.purge_tag(tag).await.map_err(|error| error.to_string())
    }

    /// The value that is appended to `Via` of a message of this version.
    pub fn via_of(&self, version: Version) -> &HeaderValue {
        if version > Version::HTTP_11 { &self.via_http2 } else { &self.via }
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

    /// Uses each new table of sites from the moment at which there is one, until the task is dropped.
    pub async fn follow_sites(self: Rc<Self>) {
        let mut tables = self.live_sites.follow();
        while tables.changed().await.is_ok() {
            let table = tables.borrow_and_update().clone();
            self.sites.replace(table);
            // Those of the former table are not used again.
            self.upstream.close_unused();
        }
    }

    /// Checks the servers of the table in use, of whose origins a check is asked for, until the task is dropped.
    pub async fn check_servers(self: Rc<Self>) {
        let mut tables = self.live_sites.follow();
        loop {
            let pools = tables.borrow_and_update().pools();
            tokio::select! {
                () = check_all(&self.upstream, &pools) => {}
                changed = tables.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Looks up the servers of the table in use, of whose origins records name the servers, until the task is dropped.
    pub async fn find_servers(self: Rc<Self>) {
        let mut tables = self.live_sites.follow();
        loop {
            let pools = tables.borrow_and_update().pools();
            tokio::select! {
                () = find_all(&self.upstream, &pools) => {}
                changed = tables.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Reads both clocks again, so that [`ProxyWorker::now`] follows changes of the system's clock.
    pub fn look_at_clocks(&self) {
        self.epoch.set((Instant::now(), unix_ms()));
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
