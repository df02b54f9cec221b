//! The counters of the proxy.
//!
//! Owns: each counter's definition. Every worker has its own counters, which only it writes, so counting shares no
//! cache line between workers. A snapshot adds up the counters of all workers. All values only grow, except the values
//! that are marked as gauges.
//!
//! Leaves to others: which URLs and origins are requested most (`origin_traffic`).
//!
//! *Circle*: `access_log` counts the outcome of each request, and a snapshot has the state of its writer.

mod latency;
mod origin_traffic;
mod space_saving;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::latency::WorkerLatencies;
pub use self::latency::{LATENCY_BOUNDS_US, OutcomeLatency};
use self::origin_traffic::OriginTraffic;
pub(crate) use self::origin_traffic::{AskedUrl, OriginRequest};
pub use self::origin_traffic::{TopTraffic, TrafficRow};
use crate::accept::{ShownCertificate, TlsService};
use crate::access_log::LogQueue;
use crate::acme::AcmeName;
use crate::room::ConnectionLimits;
use crate::sites::LiveSites;
use crate::upstream::{OriginDown, ServerFigures, ServerPool, ServiceFigures};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of one worker.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct WorkerStats {
            $($(#[$doc])* pub $name: Counter,)*
            /// How long requests took.
            pub latencies: WorkerLatencies,
            /// What was requested from origins.
            pub traffic: Arc<OriginTraffic>,
        }

        /// The counters of all workers at one moment.
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
        #[non_exhaustive]
        pub struct ProxyStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl WorkerStats {
            fn add_to(&self, sum: &mut ProxyStats) {
                $(sum.$name += self.$name.get();)*
            }
        }
    };
}

counters! {
    /// Requests whose head was read and accepted.
    requests,
    /// Requests that were answered from the store without a request to an origin.
    hits,
    /// Requests whose response was fetched in order to store it, whether or not the store admits it to its disk.
    misses,
    /// Requests that waited for another request's fetch and were answered with the fetched response.
    collapsed,
    /// Requests for which the origin said that the stored response is still valid.
    revalidated,
    /// Requests that were answered with a stale stored response because the origin failed.
    stale,
    /// Requests whose response was passed on from the origin and not stored.
    passed,
    /// Requests whose response was not stored because its body is longer than the store accepts; part of `passed`.
    too_large,
    /// Requests that the proxy itself refused or answered.
    own_responses,
    /// Requests that failed at the origin (the client got 502 or 504).
    origin_failures,
    /// Requests that opened a tunnel: `CONNECT`, and those that switched to WebSocket.
    tunnels,
    /// `PURGE` requests whose purge was done.
    purges,
    /// `PURGE` requests that were refused because of their sender or their form; part of `own_responses`.
    purges_refused,
    /// Keys that were purged because an unsafe request may have changed their resource.
    invalidations,
    /// Connections that were refused because their bytes did not form a valid request.
    refused_connections,
    /// Connections of clients that were refused, and connections to origins that were not opened, because there were
    /// too many.
    excess_connections,
    /// Connections of clients that were refused because their network had too many.
    limited_connections,
    /// Requests that were refused because their client's network sent too many; part of `own_responses`.
    limited_requests,
    /// Connections of idle clients that were ended to make room for other clients.
    displaced_connections,
    /// Connections that were ended because a time limit passed.
    overdue_connections,
    /// Streams of HTTP/2 that were ended because a time limit passed.
    cut_streams,
    /// Connections accepted.
    connections,
    /// Connections on which TLS was agreed.
    handshakes,
    /// Connections that were ended because TLS could not be agreed in time.
    failed_handshakes,
    /// Connections that were ended because no valid header of the PROXY protocol came in time.
    failed_proxy_headers,
    /// Connections that spoke HTTP/2.
    http2_connections,
    /// Connections open now (gauge).
    connections_open,
    /// Connections opened to origins.
    origin_connections,
    /// Requests sent to origins, with those that only ask whether a server works.
    origin_requests,
    /// Requests that waited for a connection to a server, because it had as many as it may have.
    queued,
    /// Requests that got no connection to a server, because too many waited for one or it took too long.
    queue_refusals,
    /// Informational responses (1xx) that came from origins before final ones.
    informational,
    /// Stored bodies, and ranges of them, whose rest came from the origin, because the store no longer gave it; and bodies
    /// that another node of the fleet broke off.
    resumed,
    /// Stored bodies that were cut off, because neither the store nor the origin gave the rest; and those of other nodes.
    cut_off,
    /// Responses that could not be fetched or stored to their end. No part of such a response is kept.
    failed_fills,
    /// Requests that were answered with a status from 200 to 299, tunnels included.
    responses_2xx,
    /// Requests that were answered with a status from 300 to 399.
    responses_3xx,
    /// Requests that were answered with a status from 400 to 499.
    responses_4xx,
    /// Requests that were answered with a status of 500 or above, by the origin or by the proxy.
    responses_5xx,
    /// Body bytes sent to clients.
    body_bytes_sent,
    /// Lines of the access log that were lost because the file or pipe failed or was too slow.
    log_lines_lost,
}

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    /// Adds `count`. Only the owning worker may call this.
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    /// Subtracts `count`, for gauges. Only the owning worker may call this.
    pub fn subtract(&self, count: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(count), Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that several threads write.
#[derive(Debug, Default)]
pub(crate) struct SharedCounter(AtomicU64);

impl SharedCounter {
    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reader of a running proxy's counters. It is cheap to clone, and any thread can use it.
#[derive(Debug, Clone)]
pub struct StatsReader {
    workers: Arc<[Arc<WorkerStats>]>,
    sites: Option<LiveSites>,
    log: Option<Arc<LogQueue>>,
    limits: Option<ConnectionLimits>,
    tls: Option<Arc<TlsService>>,
}

impl StatsReader {
    pub(crate) fn new(workers: Vec<Arc<WorkerStats>>) -> StatsReader {
        StatsReader { workers: workers.into(), sites: None, log: None, limits: None, tls: None }
    }

    /// A reader that also tells which servers of origins fail.
    pub(crate) fn with_sites(self, sites: LiveSites) -> StatsReader {
        StatsReader { sites: Some(sites), ..self }
    }

    /// A reader that also tells how many connections the proxy may have.
    pub(crate) fn with_limits(self, limits: ConnectionLimits) -> StatsReader {
        StatsReader { limits: Some(limits), ..self }
    }

    /// A reader that also tells which certificates clients are shown.
    pub(crate) fn with_tls(self, tls: Option<Arc<TlsService>>) -> StatsReader {
        StatsReader { tls, ..self }
    }

    /// The certificates that clients are shown; none if they do not use TLS.
    pub fn certificates(&self) -> Vec<ShownCertificate> {
        self.tls.as_ref().map(|tls| tls.certificates.shown()).unwrap_or_default()
    }

    /// Whether clients use TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The names whose certificates the proxy orders, and how far each is.
    pub fn ordered_names(&self) -> Vec<AcmeName> {
        let acme = self.tls.as_ref().and_then(|tls| tls.certificates.acme());
        acme.map(|acme| acme.progress()).unwrap_or_default()
    }

    /// How many connections the proxy may have.
    pub fn connection_limits(&self) -> Option<ConnectionLimits> {
        self.limits
    }

    /// A reader that also tells the state of the access log.
    pub(crate) fn with_log(self, log: Option<Arc<LogQueue>>) -> StatsReader {
        StatsReader { log, ..self }
    }

    /// Why the access log cannot be written at present; `None` if it can be, or if there is none.
    pub fn log_failure(&self) -> Option<String> {
        self.log.as_ref().and_then(|log| log.failure())
    }

    /// The first of [`origins_down`](StatsReader::origins_down): the state of a reverse proxy's origin.
    pub fn origin_down(&self) -> Option<OriginDown> {
        self.origins_down().into_iter().next()
    }

    /// The first of [`origins_failing`](StatsReader::origins_failing): the state of a reverse proxy's origin.
    pub fn origin_failing(&self) -> Option<OriginDown> {
        self.origins_failing().into_iter().next()
    }

    /// The servers of origins to which the last few connections all failed; none of a forward proxy.
    pub fn origins_down(&self) -> Vec<OriginDown> {
        self.sites
            .as_ref()
            .map(|sites| sites.servers_with(|_, server| server.state.connection_failures()))
            .unwrap_or_default()
    }

    /// The servers of origins of which the last few `GET`, `HEAD` and `OPTIONS` requests all got no answer, or one that
    /// says that the server failed; none of a forward proxy.
    pub fn origins_failing(&self) -> Vec<OriginDown> {
        self.sites
            .as_ref()
            .map(|sites| sites.servers_with(|_, server| server.state.answer_failures()))
            .unwrap_or_default()
    }

    /// The servers of origins that get no requests because they did not pass their last checks.
    pub fn origins_unhealthy(&self) -> Vec<OriginDown> {
        self.sites.as_ref().map(|sites| sites.servers_with(ServerPool::check_failures)).unwrap_or_default()
    }

    /// The servers of all origins, as they are now; none of a forward proxy.
    pub fn servers(&self) -> Vec<ServerFigures> {
        self.sites.as_ref().map(LiveSites::servers).unwrap_or_default()
    }

    /// How looking up the servers of origins goes, of those whose servers are looked up.
    pub fn services(&self) -> Vec<ServiceFigures> {
        self.sites.as_ref().map(LiveSites::services).unwrap_or_default()
    }

    /// How long requests took, by what the cache did with them, of all workers together.
    pub fn latencies(&self) -> Vec<OutcomeLatency> {
        latency::sum(self.workers.iter().map(|worker| &worker.latencies))
    }

    /// What was requested from origins most, of all workers together: at most `count` rows in each list. *Cost*: copies
    /// what the workers remember, while each holds its lock.
    pub fn top_traffic(&self, count: usize) -> TopTraffic {
        origin_traffic::top(self.workers.iter().map(|worker| &worker.traffic), count)
    }

    /// Adds up the counters of all workers.
    pub fn snapshot(&self) -> ProxyStats {
        let mut sum = ProxyStats::default();
        self.workers.iter().for_each(|worker| worker.add_to(&mut sum));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OriginTimes, ProxyOptions};
    use crate::sites::preset;
    use crate::upstream::{OriginRules, OriginTrust, ServerState};

    /// After three failures in a row an origin is down.
    #[test]
    fn snapshot_sums_all_workers() {
        let workers: Vec<_> = (0..3).map(|_| Arc::new(WorkerStats::default())).collect();
        let (sites, state) = sites_of_one();
        let reader = StatsReader::new(workers.clone()).with_sites(sites);
        workers.iter().for_each(|worker| worker.hits.add(2));
        workers[0].connections_open.add(5);
        workers[0].connections_open.subtract(1);
        let sum = reader.snapshot();
        assert_eq!((sum.hits, sum.connections_open, sum.misses), (6, 4, 0));
        assert_eq!(reader.origins_down(), []);
        for _ in 0..2 {
            state.note_connection(Some(&"refused"));
            assert_eq!(reader.origins_down(), [], "it may be chance");
        }
        state.note_connection(Some(&"gone"));
        let down = reader.origins_down();
        assert_eq!((down[0].failures, &*down[0].last, &*down[0].server_url), (3, "gone", "http://a:81"));
        state.note_connection(None);
        assert_eq!((reader.origins_down(), reader.origins_failing()), (vec![], vec![]));
        assert_eq!(serde_json::to_value(&sum).expect("serialisable")["hits"], 6);
    }

    fn sites_of_one() -> (LiveSites, Arc<ServerState>) {
        let options =
            ProxyOptions { origin: Some("http://a:81".parse().expect("an origin")), ..ProxyOptions::default() };
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let sites = preset(&options, Arc::new(OriginRules::new(OriginTimes::of(&options.limits), trust)));
        let state = sites.pools()[0].servers().all()[0].state.clone();
        (LiveSites::new(sites), state)
    }
}
