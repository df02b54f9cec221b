//! The servers of an origin, and their turns.
//!
//! Owns: what holds for all servers of an origin (times, trust, checks), and the order in which a request asks them: by level
//! and the origin's balance (`server_set`), those that are failing or do not pass their checks last, so that they get a
//! request only if all are. A server without weight is never asked. The servers may be looked up (`discovery`), so they
//! change while the proxy runs; a request keeps those that it began with.
//!
//! A server that is failing is probed from time to time (see `health`): besides going to a good server, one request is also
//! sent to that one, whose answer nobody waits for. So a server that is silent costs no client its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use nectary_config::LoadBalancing;
use tokio::sync::watch;
use xxhash_rust::xxh3::xxh3_64;

use super::discovery::{ServerDiscovery, ServiceRule};
use super::health::{EjectRule, OriginHealth, OriginProbe, ProbeBy};
use super::server_set::{OriginServer, ServerSet};
use super::{OriginDown, OriginTrust};
use crate::options::OriginTimes;
use crate::rules::key::UrlOrigin;
use crate::rules::serve::OriginFailure;

/// What holds for all servers of an origin.
#[derive(Debug)]
pub(crate) struct OriginRules {
    pub times: OriginTimes,
    pub trust: Arc<OriginTrust>,
    /// The name that certificates must have, if it is not the server's.
    pub tls_name: Option<String>,
    /// Whether requests share connections of HTTP/2, with TLS where a server offers it.
    pub http2: bool,
    /// How often a request is sent again to another server.
    pub retries: usize,
    /// Which server a request goes to.
    pub balance: LoadBalancing,
    /// When a server is failing.
    pub eject: EjectRule,
    /// What asks whether a server works, if anything does.
    pub check: Option<ServerCheck>,
}

impl OriginRules {
    /// The rules of an origin for which nothing else is said.
    pub fn new(times: OriginTimes, trust: Arc<OriginTrust>) -> OriginRules {
        OriginRules {
            times,
            trust,
            tls_name: None,
            http2: false,
            retries: 0,
            balance: LoadBalancing::RoundRobin,
            eject: EjectRule::default(),
            check: None,
        }
    }
}

/// What asks whether a server works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerCheck {
    /// Path and query of the `GET` request.
    pub path: PathAndQuery,
    /// The `Host` of the request, if it is not the server's authority.
    pub host: Option<String>,
    /// The time from one request to the next.
    pub interval: Duration,
    /// The longest time of an answer.
    pub time: Duration,
    /// The statuses that say that the server works; those from 200 to 299 if there are none.
    pub statuses: Vec<u16>,
}

/// The servers of an origin.
#[derive(Debug)]
pub(crate) struct ServerPool {
    /// The origin's name; empty if there is only one origin.
    pub name: String,
    pub rules: Arc<OriginRules>,
    /// What names the origin where no server is chosen: its first server, or the domain of the service that names them.
    pub named: UrlOrigin,
    /// The authority of that, as `Host` has it.
    pub authority: String,
    servers: watch::Sender<Arc<ServerSet>>,
    /// What looks up the servers, if they are.
    pub discovery: Option<ServerDiscovery>,
    turn: AtomicUsize,
}

/// The servers for a request, in the order in which they are asked.
#[derive(Debug)]
pub(crate) struct ServerOrder {
    pub servers: Vec<Arc<OriginServer>>,
    /// A server that is failing, and the right to probe it.
    pub probe: Option<(Arc<OriginServer>, OriginProbe)>,
}

impl ServerPool {
    /// The servers of an origin; there is at least one.
    pub fn new(name: String, rules: Arc<OriginRules>, servers: Vec<OriginServer>) -> ServerPool {
        let named = servers[0].origin.clone();
        let servers = servers.into_iter().map(Arc::new).collect();
        ServerPool::with_set(name, rules, named, ServerSet::new(servers, true))
    }

    fn with_set(name: String, rules: Arc<OriginRules>, named: UrlOrigin, set: ServerSet) -> ServerPool {
        let (authority, turn) = (named.named().authority(), AtomicUsize::new(0));
        ServerPool { name, rules, named, authority, servers: watch::Sender::new(Arc::new(set)), discovery: None, turn }
    }

    /// The one server of a reverse proxy's origin.
    pub fn of_one(origin: UrlOrigin, rules: Arc<OriginRules>) -> ServerPool {
        ServerPool::new(String::new(), rules, vec![OriginServer::new(origin, 1)])
    }

    /// The servers of a service, which are looked up, and those that are asked when all of them are out.
    pub fn of_service(
        name: String,
        rules: Arc<OriginRules>,
        rule: ServiceRule,
        listed: Vec<OriginServer>,
    ) -> ServerPool {
        let named = rule.named.clone();
        let discovery =
            ServerDiscovery::new(rule, listed.into_iter().map(OriginServer::after_found).map(Arc::new).collect());
        let set = ServerSet::new(discovery.listed.clone(), false);
        ServerPool { discovery: Some(discovery), ..ServerPool::with_set(name, rules, named, set) }
    }

    /// The servers as they are now.
    pub fn servers(&self) -> Arc<ServerSet> {
        self.servers.borrow().clone()
    }

    /// What tells of each change of the servers.
    pub fn follow(&self) -> watch::Receiver<Arc<ServerSet>> {
        self.servers.subscribe()
    }

    /// Uses these servers for requests that begin from now on.
    pub(super) fn use_servers(&self, servers: ServerSet) {
        self.servers.send_replace(Arc::new(servers));
    }

    /// Waits until the servers have been looked up for the first time, if they must be, and not longer than this.
    pub(super) async fn wait_until_known(&self, time: Duration) {
        if !self.servers().is_known() {
            let mut sets = self.follow();
            // Without an answer in time, the servers of the configuration are asked, if there are any.
            _ = tokio::time::timeout(time, sets.wait_for(|set| set.is_known())).await;
        }
    }

    /// The hash of a request's key, if the key decides which server the request goes to.
    pub fn hash_of(&self, key: &[u8]) -> u64 {
        if self.rules.balance == LoadBalancing::Hash { xxh3_64(key) } else { 0 }
    }

    /// The servers for a request whose key has this hash ([`hash_of`](ServerPool::hash_of)): as many as it may be sent to.
    /// `probe_by` says what it may do for one that is failing.
    pub fn order(&self, health: &Arc<OriginHealth>, key_hash: u64, probe_by: ProbeBy, now: Instant) -> ServerOrder {
        let set = self.servers();
        let turn = if self.rules.balance == LoadBalancing::Hash { 0 } else { self.turn.fetch_add(1, Relaxed) };
        let mut servers = set.balanced(self.rules.balance, turn, key_hash);
        let asked_max = self.rules.retries.saturating_add(1);
        let has_failing = health.has_failing();
        if servers.len() < 2 || !(has_failing || self.rules.check.is_some()) {
            servers.truncate(asked_max);
            return ServerOrder { servers: servers.into_iter().cloned().collect(), probe: None };
        }
        let standing = |server: &OriginServer, probe_by| match has_failing {
            true => health.standing(&server.origin, &self.rules.eject, probe_by, now),
            false => None,
        };
        let is_good =
            |server: &&Arc<OriginServer>| standing(server, ProbeBy::Nobody).is_none() && !self.is_unhealthy(server);
        let (mut asked, bad): (Vec<_>, Vec<_>) = servers.into_iter().partition(is_good);
        let has_good = !asked.is_empty();
        asked.extend_from_slice(&bad);
        asked.truncate(asked_max);
        // If all are bad, they are asked anyway, and those that are asked need no probe.
        let unprobed = if has_good { 0 } else { asked.len() };
        let probe = bad[unprobed..].iter().find_map(|server| Some((Arc::clone(server), standing(server, probe_by)??)));
        ServerOrder { servers: asked.into_iter().cloned().collect(), probe }
    }

    /// Whether a server does not pass its checks.
    pub(super) fn is_unhealthy(&self, server: &OriginServer) -> bool {
        self.rules.check.is_some() && server.state.failed_checks() >= u64::from(self.rules.eject.failures)
    }

    /// The failures of a server's last checks, if it therefore gets no requests.
    pub fn check_failures(&self, server: &OriginServer) -> Option<OriginDown> {
        self.rules.check.as_ref().and_then(|_| server.state.check_failures(self.rules.eject.failures.into()))
    }

    /// Why a server's last connections, checks or requests failed, if several did in a row.
    pub fn failure_of(&self, server: &OriginServer) -> Option<String> {
        let state = &server.state;
        let found =
            state.connection_failures().or_else(|| self.check_failures(server)).or_else(|| state.answer_failures());
        found.map(|down| down.last)
    }

    /// The kind of failure if all servers are failing, and the right to probe one if nobody does.
    pub fn failing(&self, health: &Arc<OriginHealth>, now: Instant) -> Option<(OriginFailure, Option<OriginProbe>)> {
        let (set, rule) = (self.servers(), &self.rules.eject);
        // The right to probe a server is for a request that is sent to it.
        if set.weighted().any(|server| health.standing(&server.origin, rule, ProbeBy::Nobody, now).is_none()) {
            return None;
        }
        let mut found: Option<(OriginFailure, Option<OriginProbe>)> = None;
        for server in set.weighted() {
            let has_right = found.as_ref().is_some_and(|(_, probe)| probe.is_some());
            let probe_by = if has_right { ProbeBy::Nobody } else { ProbeBy::Request };
            let (failure, probe) = health.look_at(&server.origin, rule, probe_by, now)?;
            found = match found {
                Some((first, None)) => Some((first, probe)),
                Some(known) => Some(known),
                None => Some((failure, probe)),
            };
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::FetchError;
    use super::super::server_limit::LimitRule;
    use super::*;
    use crate::options::ProxyLimits;
    use std::collections::HashMap;

    fn pool_with(weights: &[u16], balance: LoadBalancing) -> ServerPool {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let rules = OriginRules::new(OriginTimes::of(&ProxyLimits::default()), trust);
        let server = |(port, weight): (usize, &u16)| {
            OriginServer::new(UrlOrigin { https: false, host: "a".into(), port: port as u16 + 1 }, *weight)
        };
        let rules = Arc::new(OriginRules { retries: 1, balance, ..rules });
        ServerPool::new("a".into(), rules, weights.iter().enumerate().map(server).collect())
    }

    fn pool(weights: &[u16]) -> ServerPool {
        pool_with(weights, LoadBalancing::RoundRobin)
    }

    fn ports(order: &ServerOrder) -> Vec<u16> {
        order.servers.iter().map(|server| server.origin.port).collect()
    }

    #[test]
    fn servers_take_turns_by_weight() {
        let (pool, health, now) = (pool(&[2, 0, 1]), Arc::new(OriginHealth::default()), Instant::now());
        let turns: Vec<_> = (0..6).map(|_| ports(&pool.order(&health, 0, ProbeBy::Request, now))).collect();
        assert_eq!(turns, [[1, 3], [1, 3], [3, 1], [1, 3], [1, 3], [3, 1]]);
        assert_eq!(pool.failing(&health, now).map(|(failure, _)| failure), None);
    }

    #[test]
    fn failing_server_gets_one_probe() {
        let (pool, health, now) = (pool(&[1, 1]), Arc::new(OriginHealth::default()), Instant::now());
        let order = |by, now| pool.order(&health, 0, by, now);
        (0..3).for_each(|_| health.note_error(&pool.servers().all()[0].origin));
        assert!(order(ProbeBy::Connection, now).probe.is_none(), "what cannot be repeated is no probe");
        let probing = order(ProbeBy::Request, now);
        assert_eq!(ports(&probing), [2, 1], "the probe is sent besides");
        assert_eq!(probing.probe.as_ref().map(|(server, _)| server.origin.port), Some(1));
        assert!((0..4).all(|_| ports(&order(ProbeBy::Request, now)) == [2, 1]));
        assert!(order(ProbeBy::Request, now).probe.is_none(), "another probe is under way");
        drop(probing);
        assert!(order(ProbeBy::Request, now).probe.is_none(), "the next probe has time");
        let later = now + Duration::from_secs(10);
        assert!(pool.failing(&health, later).is_none(), "the other works");
        assert!(order(ProbeBy::Request, later).probe.is_some(), "the next probe was left to a request");
        (0..3)
            .for_each(|_| health.note_failure(&pool.servers().all()[1].origin, &FetchError::Connect("refused".into())));
        assert!(pool.failing(&health, now).is_some());
        let last = order(ProbeBy::Request, later + Duration::from_secs(10));
        assert_eq!((last.servers.len(), last.probe.is_none()), (2, true), "all are tried");
        let once = OriginRules::new(pool.rules.times, pool.rules.trust.clone());
        let pool = ServerPool { rules: Arc::new(once), ..pool };
        let last = pool.order(&health, 0, ProbeBy::Request, later + Duration::from_secs(20));
        let probed = last.probe.as_ref().map(|(server, _)| server.origin.port);
        assert_eq!((last.servers.len(), probed == Some(last.servers[0].origin.port)), (1, false));
        assert!(probed.is_some(), "one that is not tried is probed");
    }

    #[test]
    fn each_failing_server_has_its_probe() {
        // The same key has the same order, so that turns do not hide a server behind another.
        let (pool, health, now) =
            (pool_with(&[1, 1, 1], LoadBalancing::Hash), Arc::new(OriginHealth::default()), Instant::now());
        (0..3).for_each(|_| health.note_error(&pool.servers().all()[0].origin));
        (0..3).for_each(|_| health.note_error(&pool.servers().all()[1].origin));
        let probed = |order: &ServerOrder| order.probe.as_ref().map(|(server, _)| server.origin.port);
        let orders = [0; 3].map(|_| pool.order(&health, 0, ProbeBy::Request, now));
        let mut found: Vec<_> = orders.iter().filter_map(probed).collect();
        found.sort_unstable();
        assert_eq!(found, [1, 2], "one probe at a time for each");
    }

    #[test]
    fn failing_origin_leaves_further_probes_alone() {
        let (pool, health, now) = (pool(&[1, 1]), Arc::new(OriginHealth::default()), Instant::now());
        for server in pool.servers().all() {
            (0..3).for_each(|_| health.note_error(&server.origin));
        }
        let (_, first) = pool.failing(&health, now).expect("all are failing");
        let (_, second) = pool.failing(&health, now).expect("all are failing");
        let (_, third) = pool.failing(&health, now).expect("all are failing");
        assert!(first.is_some() && second.is_some() && third.is_none(), "{first:?} {second:?} {third:?}");
    }

    #[test]
    fn server_without_weight_hides_no_failure() {
        let (pool, health, now) = (pool(&[1, 0]), Arc::new(OriginHealth::default()), Instant::now());
        (0..3).for_each(|_| health.note_error(&pool.servers().all()[0].origin));
        assert!(pool.failing(&health, now).is_some(), "nobody asks the other server");
    }

    #[test]
    fn full_server_is_asked_last() {
        let (pool, health, now) = (pool(&[1, 1]), Arc::new(OriginHealth::default()), Instant::now());
        let rule = LimitRule { connections_max: 2, queue_max: 1, queue_time: Duration::from_secs(1) };
        let limited = |server: &Arc<OriginServer>| OriginServer::new(server.origin.clone(), 1).limited(Some(rule));
        let servers = pool.servers().all().iter().map(limited).collect();
        let pool = ServerPool::new("a".into(), pool.rules.clone(), servers);
        let first = || [0; 2].map(|_| ports(&pool.order(&health, 0, ProbeBy::Request, now))[0]);
        let one = pool.servers().all()[0].state.begin();
        assert_eq!(first(), [1, 2], "it has room for another request");
        let both = (one, pool.servers().all()[0].state.begin());
        assert_eq!(first(), [2, 2]);
        drop(both);
        assert_eq!(first(), [1, 2]);
    }

    #[test]
    fn the_least_busy_server_is_first() {
        let (pool, health) =
            (pool_with(&[1, 2, 1], LoadBalancing::LeastOutstanding), Arc::new(OriginHealth::default()));
        let now = Instant::now();
        let first = || ports(&pool.order(&health, 0, ProbeBy::Request, now))[0];
        let mut requests: Vec<_> = Vec::new();
        let mut counts = HashMap::<u16, usize>::new();
        for _ in 0..40 {
            let port = first();
            *counts.entry(port).or_default() += 1;
            requests.push((port, pool.servers().all()[usize::from(port) - 1].state.begin()));
        }
        assert_eq!([counts[&1], counts[&2], counts[&3]], [10, 20, 10]);
        requests.retain(|(port, _)| *port != 3);
        assert!((0..3).all(|_| first() == 3), "it has no request");
    }

    #[test]
    fn a_key_keeps_its_server() {
        let health = Arc::new(OriginHealth::default());
        let all_asked = |weights: &[u16]| {
            let pool = pool_with(weights, LoadBalancing::Hash);
            let rules = OriginRules::new(pool.rules.times, pool.rules.trust.clone());
            ServerPool { rules: Arc::new(OriginRules { retries: 3, balance: LoadBalancing::Hash, ..rules }), ..pool }
        };
        let (four, three) = (all_asked(&[1, 1, 1, 2]), all_asked(&[1, 1, 0, 2]));
        let now = Instant::now();
        let order = |pool: &ServerPool, key: &str| {
            ports(&pool.order(&health, pool.hash_of(key.as_bytes()), ProbeBy::Nobody, now))
        };
        let mut counts = HashMap::<u16, usize>::new();
        for number in 0..10_000 {
            let key = format!("http://a/{number}");
            let of_four = order(&four, &key);
            *counts.entry(of_four[0]).or_default() += 1;
            assert_eq!(of_four, order(&four, &key), "the same for a key");
            let without: Vec<u16> = of_four.iter().copied().filter(|port| *port != 3).collect();
            assert_eq!(without, order(&three, &key), "only the keys of the lost server go elsewhere");
        }
        let is_near = |port: u16, share: usize| counts[&port].abs_diff(share) < share / 10;
        assert!(is_near(1, 2000) && is_near(2, 2000) && is_near(3, 2000) && is_near(4, 4000), "{counts:?}");
    }

    #[test]
    fn server_with_failed_checks_is_last() {
        let (pool, health, now) = (pool(&[1, 1]), Arc::new(OriginHealth::default()), Instant::now());
        let (path, second) = ("/".parse().expect("a path"), Duration::from_secs(1));
        let check = ServerCheck { path, host: None, interval: second, time: second, statuses: Vec::new() };
        let rules = OriginRules { check: Some(check), ..OriginRules::new(pool.rules.times, pool.rules.trust.clone()) };
        let pool = ServerPool { rules: Arc::new(rules), ..pool };
        let first = || (0..2).map(|_| ports(&pool.order(&health, 0, ProbeBy::Request, now))[0]).collect::<Vec<_>>();
        let state = pool.servers().all()[0].state.clone();
        (0..2).for_each(|_| state.note_check(Some(&"503")));
        assert_eq!(first(), [1, 2], "two may be chance");
        state.note_check(Some(&"503"));
        assert_eq!(first(), [2, 2]);
        (0..3).for_each(|_| pool.servers().all()[1].state.note_check(Some(&"503")));
        assert_eq!(first(), [1, 2], "all are asked");
        state.note_check(None);
        assert_eq!(first(), [1, 1]);
    }
}
