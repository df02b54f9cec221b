//! Servers of an origin that the records of a service name.
//!
//! Owns: looking the records up (SRV), again when their time is over, and which servers an origin therefore has. One worker
//! looks up for all. A look-up that fails, and an answer without records, keep the last good servers: servers of names that
//! are out must not take working servers away, and some answer so when no server passes their own checks. A record whose
//! target is `.` says that there is no server, and is believed. Promises: a server that stays keeps its connections, its
//! counts and what is known of it; one that is gone finishes the requests that it has, and its unused connections are
//! closed. If it is back before that, the limit on its connections is the same (`left_limits`). Leaves to others: the
//! questions (`names`), what a record may say (`records`), which server a request gets (`pool`, `server_set`). *Source*:
//! RFC 2782.
//!
//! Servers with TLS must have certificates for the domain of the service, not for the target of a record: who can change
//! an answer on its way could name any target. The domain is also the `Host` that they get. *Source*: RFC 6125, 6.5.1.

mod left_limits;
mod records;

use std::future::pending;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nectary_host::log::{LogLevel, LogThrottles};

use self::left_limits::LeftLimits;
use self::records::{FoundServer, FoundServers, NoServer, servers_of};
use super::names::{ServiceRecord, look_up_service_once};
use super::server_limit::LimitRule;
use super::server_set::{OriginServer, ServerSet};
use super::server_state::FAILURES_MIN;
use super::{ServerPool, Upstream};
use crate::options::NameFiles;
use crate::rules::key::UrlOrigin;

/// The longest time for which it is not noticed that other servers of names are to be asked.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Limits how often changes and failures are logged, by the origin's name.
static CHANGED: LogThrottles = LogThrottles::every(Duration::from_secs(10));
static FAILED: LogThrottles = LogThrottles::every(Duration::from_secs(60));
static IGNORED: LogThrottles = LogThrottles::every(Duration::from_secs(60));

/// The service whose servers an origin has.
#[derive(Debug, Clone)]
pub(crate) struct ServiceRule {
    /// The name of its records.
    pub name: String,
    /// What its servers are called: its scheme and its domain.
    pub named: UrlOrigin,
    /// The limit on connections to each server.
    pub limit: Option<LimitRule>,
}

/// What looks up the servers of an origin.
#[derive(Debug)]
pub(crate) struct ServerDiscovery {
    rule: ServiceRule,
    /// The servers of the configuration, which are asked when all others are out.
    pub(super) listed: Vec<Arc<OriginServer>>,
    last: Mutex<LastAnswer>,
    /// The limits of servers that are gone.
    left: LeftLimits,
}

/// What the look-ups said.
#[derive(Debug, Clone, Default)]
struct LastAnswer {
    /// The last good answer.
    found: FoundServers,
    /// The look-ups in a row that were not good.
    failures: u64,
    /// Why the last one was not.
    failure: Option<String>,
    /// Whether one since the last good one said that there is no server.
    is_withdrawn: bool,
}

/// The look-ups of the servers of an origin, as they are now.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServiceFigures {
    /// The name of the origin.
    pub origin: String,
    /// The name of the records.
    pub srv: String,
    /// The servers that it has by them.
    pub servers: usize,
    /// The records of the last good answer that are ignored.
    pub records_ignored: usize,
    /// Why the first of these is.
    pub ignored_reason: Option<String>,
    /// The look-ups in a row that gave no server.
    pub failures: u64,
    /// Why the last one gave none; `None` if it did.
    pub failure: Option<String>,
    /// Whether somebody should look after it: it has failed several times, or the service says that it has no server.
    pub is_failing: bool,
}

impl ServerDiscovery {
    /// Nothing is looked up yet.
    pub fn new(rule: ServiceRule, listed: Vec<Arc<OriginServer>>) -> ServerDiscovery {
        ServerDiscovery { rule, listed, last: Mutex::default(), left: LeftLimits::default() }
    }

    fn last(&self) -> MutexGuard<'_, LastAnswer> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerPool {
    /// How looking up the servers goes, if they are looked up.
    pub fn service_figures(&self) -> Option<ServiceFigures> {
        let discovery = self.discovery.as_ref()?;
        let last = discovery.last();
        Some(ServiceFigures {
            origin: self.name.clone(),
            srv: discovery.rule.name.clone(),
            servers: last.found.servers.len(),
            records_ignored: last.found.ignored,
            ignored_reason: last.found.reason.clone(),
            failures: last.failures,
            failure: last.failure.clone(),
            is_failing: last.failures >= FAILURES_MIN || last.is_withdrawn,
        })
    }

    /// Goes on from the servers that another pool has of the same service.
    pub fn continue_from(&self, former: &ServerPool) {
        let (Some(discovery), Some(before)) = (&self.discovery, &former.discovery) else { return };
        let is_same = |one: &ServiceRule, other: &ServiceRule| (&one.name, &one.named) == (&other.name, &other.named);
        if is_same(&discovery.rule, &before.rule) && former.servers().is_known() {
            let last = before.last().clone();
            self.use_found(discovery, &last.found.servers);
            *discovery.last() = last;
        }
    }

    /// Uses what a look-up said.
    fn note_records(&self, discovery: &ServerDiscovery, records: Result<Vec<ServiceRecord>, String>) {
        let (name, srv) = (&self.name, &discovery.rule.name);
        let said = match records.map(servers_of) {
            Ok(said) => said.map_err(|error| (error.to_string(), error == NoServer::Withdrawn)),
            Err(error) => Err((error, false)),
        };
        let failure = match said {
            Ok(found) => {
                let mut last = discovery.last();
                if found.ignored > 0 && last.found != found {
                    let (count, reason) = (found.ignored, found.reason.as_deref().unwrap_or_default());
                    let text = format_args!("origin {name}: {count} SRV records of {srv} are ignored: {reason}");
                    IGNORED.write(name, LogLevel::Warning, "proxy", text);
                }
                *last = LastAnswer { found, ..LastAnswer::default() };
                None
            }
            Err((failure, is_withdrawn)) => {
                let mut last = discovery.last();
                if is_withdrawn {
                    last.found = FoundServers::default();
                }
                last.failures += 1;
                // A failure after that gives no server back.
                last.is_withdrawn |= is_withdrawn;
                last.failure = Some(failure.clone());
                Some(failure)
            }
        };
        let found = discovery.last().found.servers.clone();
        let (added, removed) = self.use_found(discovery, &found);
        let count = found.len();
        if let Some(failure) = failure {
            let text =
                format_args!("origin {name}: cannot look up {srv}: {failure}; it has the {count} servers of before");
            FAILED.write(name, LogLevel::Warning, "proxy", text);
        }
        if !added.is_empty() || !removed.is_empty() {
            let listed = |servers: &[String]| if servers.is_empty() { "none".to_owned() } else { servers.join(", ") };
            let (new, gone) = (listed(&added), listed(&removed));
            let text = format_args!("origin {name}: {srv} has {count} servers now; new: {new}; gone: {gone}");
            CHANGED.write(name, LogLevel::Note, "proxy", text);
        }
    }

    /// Uses these servers, and those of the configuration after them. *Returns*: the URLs of those that are new, and of
    /// those that are gone.
    fn use_found(&self, discovery: &ServerDiscovery, found: &[FoundServer]) -> (Vec<String>, Vec<String>) {
        let former = self.servers();
        let named = &discovery.rule.named;
        let is_listed = |server: &Arc<OriginServer>| discovery.listed.iter().any(|listed| Arc::ptr_eq(listed, server));
        let before: Vec<_> = former.all().iter().filter(|server| !is_listed(server)).collect();
        let mut added = Vec::new();
        let mut servers: Vec<Arc<OriginServer>> = Vec::new();
        for FoundServer { priority, weight, port, host } in found {
            let origin = UrlOrigin { https: named.https, host: host.clone(), port: *port };
            servers.push(match before.iter().find(|server| server.origin == origin) {
                Some(same) if same.has_share(*priority, *weight) => Arc::clone(same),
                Some(same) => Arc::new(same.with_share(*priority, *weight)),
                None => {
                    let server = match discovery.left.take(&origin) {
                        Some(limit) => OriginServer::new(origin, *weight).limited_by(limit),
                        None => OriginServer::new(origin, *weight).limited(discovery.rule.limit),
                    };
                    added.push(server.url());
                    Arc::new(server.found(*priority, &named.authority()))
                }
            });
        }
        let stays = |server: &OriginServer| servers.iter().any(|found| Arc::ptr_eq(&found.state, &server.state));
        let gone: Vec<_> = before.into_iter().filter(|server| !stays(server)).collect();
        for server in &gone {
            server.state.leave();
            discovery.left.keep(server);
        }
        let removed = gone.iter().map(|server| server.url()).collect();
        // One that is found, too, has the place that its record gives it.
        let found: Vec<_> = servers.iter().map(|server| server.origin.clone()).collect();
        servers.extend(discovery.listed.iter().filter(|listed| !found.contains(&listed.origin)).cloned());
        self.use_servers(ServerSet::new(servers, true));
        (added, removed)
    }
}

/// Looks up the servers of the pools that have a service, until the future is dropped.
pub(crate) async fn find_all(upstream: &Rc<Upstream>, pools: &[Arc<ServerPool>]) {
    let mut finding: FuturesUnordered<_> = pools.iter().map(|pool| keep_finding(upstream, pool)).collect();
    while finding.next().await.is_some() {}
    pending().await
}

async fn keep_finding(upstream: &Rc<Upstream>, pool: &ServerPool) {
    let Some(discovery) = &pool.discovery else { return };
    loop {
        let changes = upstream.known.names.changes();
        let answer = upstream.lookups.look_up_service(&discovery.rule.name).await;
        pool.note_records(discovery, answer.records);
        let until = Instant::now() + answer.lifetime;
        // Other servers of names may know better.
        while Instant::now() < until && upstream.known.names.changes() == changes {
            tokio::time::sleep(until.saturating_duration_since(Instant::now()).min(LOOK_AROUND)).await;
        }
    }
}

/// Looks up the servers of a service once. *Returns*: how many it has, and why some of its records are ignored, if they are.
///
/// *Errors*: why it has none.
pub async fn count_service_servers(files: NameFiles, name: &str) -> Result<(usize, Option<String>), String> {
    let found = servers_of(look_up_service_once(files, name).await?).map_err(|error| error.to_string())?;
    Ok((found.servers.len(), found.reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OriginTimes, ProxyLimits};
    use crate::upstream::{OriginRules, OriginTrust};

    fn pool(listed: Vec<OriginServer>) -> ServerPool {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let rules = Arc::new(OriginRules::new(OriginTimes::of(&ProxyLimits::default()), trust));
        let named = UrlOrigin { https: false, host: "s.test".into(), port: 80 };
        let limit = LimitRule { connections_max: 9, queue_max: 9, queue_time: LOOK_AROUND };
        let rule = ServiceRule { name: "_http._tcp.s.test".into(), named, limit: Some(limit) };
        ServerPool::of_service("o".into(), rules, rule, listed)
    }

    fn say(pool: &ServerPool, records: Result<&[(u16, u16, u16, &str)], &str>) {
        let record = |&(priority, weight, port, target): &(u16, u16, u16, &str)| ServiceRecord {
            priority,
            weight,
            port,
            target: target.to_owned(),
        };
        let records = records.map(|records| records.iter().map(record).collect()).map_err(str::to_owned);
        pool.note_records(pool.discovery.as_ref().expect("a service"), records);
    }

    fn urls(pool: &ServerPool) -> Vec<String> {
        pool.servers().all().iter().map(|server| server.url()).collect()
    }

    #[test]
    fn rediscovered_server_keeps_record() {
        let pool = pool(Vec::new());
        assert_eq!((urls(&pool).len(), pool.servers().is_known()), (0, false));
        say(&pool, Ok(&[(1, 1, 81, "a.test"), (1, 1, 82, "b.test")]));
        let before = pool.servers();
        let _request = before.all()[0].state.begin();
        say(&pool, Ok(&[(1, 1, 83, "c.test"), (2, 7, 81, "a.test")]));
        assert_eq!(urls(&pool), ["http://c.test:83", "http://a.test:81"]);
        let now = pool.servers();
        let (stayed, was) = (&now.all()[1], &before.all()[0]);
        assert!(Arc::ptr_eq(&stayed.state, &was.state) && stayed.has_share(2, 7) && was.has_share(1, 1));
        let limits = [stayed, was].map(|server| server.limit.clone().expect("a limit"));
        assert!(Arc::ptr_eq(&limits[0], &limits[1]));
        assert_eq!((stayed.state.requests(), stayed.state.under_way()), (1, 1));
        assert!(before.all()[1].state.has_left() && !was.state.has_left() && !now.all()[0].state.has_left());
        assert_eq!((stayed.authority.as_str(), pool.service_figures().expect("figures").servers), ("s.test", 2));
        say(&pool, Ok(&[(2, 7, 81, "a.test"), (1, 1, 82, "b.test")]));
        let back = pool.servers().all()[0].clone();
        assert!(back.url() == "http://b.test:82" && !back.state.has_left(), "it begins again");
    }

    #[test]
    fn look_ups_that_fail_keep_servers() {
        let pool = pool(Vec::new());
        say(&pool, Err("silence"));
        assert!(pool.servers().is_known() && urls(&pool).is_empty(), "nobody waits any longer");
        say(&pool, Ok(&[(1, 1, 81, "a.test"), (1, 1, 0, "b.test")]));
        let figures = || pool.service_figures().expect("figures");
        assert_eq!((figures().failures, figures().records_ignored, figures().is_failing), (0, 1, false));
        for (records, why) in [
            (Err("silence"), "silence"),
            (Ok(&[][..]), "it has no SRV record"),
            (Ok(&[(1, 1, 0, "a.test")][..]), "none of its 1 SRV records can be used: a.test has the port 0"),
        ] {
            assert!(!figures().is_failing, "it may be chance");
            say(&pool, records);
            assert_eq!((urls(&pool), figures().failure.as_deref()), (vec!["http://a.test:81".to_owned()], Some(why)));
        }
        assert_eq!((figures().failures, figures().servers, figures().is_failing), (3, 1, true));
        say(&pool, Ok(&[(1, 1, 81, "a.test")]));
        assert_eq!((figures().failures, figures().failure), (0, None));
        say(&pool, Ok(&[(0, 0, 0, "")]));
        assert_eq!((urls(&pool).len(), figures().is_failing, figures().servers), (0, true, 0), "it is believed");
        say(&pool, Err("silence"));
        assert_eq!((figures().failures, figures().is_failing), (2, true), "there is still no server");
        say(&pool, Ok(&[(1, 1, 81, "a.test")]));
        assert!(!figures().is_failing);
    }

    #[test]
    fn listed_servers_come_last() {
        let listed = |port| OriginServer::new(UrlOrigin { https: false, host: "a.test".into(), port }, 1);
        let pool = pool(vec![listed(81), listed(82)]);
        assert_eq!(urls(&pool), ["http://a.test:81", "http://a.test:82"]);
        say(&pool, Ok(&[(u16::MAX, 1, 82, "a.test"), (3, 1, 83, "a.test")]));
        assert_eq!(urls(&pool), ["http://a.test:83", "http://a.test:82", "http://a.test:81"]);
        say(&pool, Ok(&[(0, 0, 0, "")]));
        assert_eq!(urls(&pool), ["http://a.test:81", "http://a.test:82"]);
    }

    #[test]
    fn next_pool_keeps_found_servers() {
        let (former, next) = (pool(Vec::new()), pool(Vec::new()));
        next.continue_from(&former);
        assert!(!next.servers().is_known(), "nothing is known yet");
        say(&former, Ok(&[(1, 1, 81, "a.test")]));
        say(&former, Err("silence"));
        next.continue_from(&former);
        assert_eq!((urls(&next), next.service_figures()), (urls(&former), former.service_figures()));
    }
}
