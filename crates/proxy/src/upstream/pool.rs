//! The servers of an origin, and their turns.
//!
//! Owns: what holds for all connections to an origin's servers (times, trust), and the order in which the servers are
//! asked: in turns by weight, those that are failing last. While a server is failing, one request a second begins with it
//! (see `health`), if it may be repeated at another server; so a server that is back gets its share again. If all are
//! failing, all are tried. A server without weight is never asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::OriginTrust;
use super::health::{Health, Probe};
use crate::options::OriginTimes;
use crate::rules::key::Origin;
use crate::rules::serve::Failure;
use crate::stats::OriginState;

/// What holds for all connections to the servers of an origin.
#[derive(Debug)]
pub(crate) struct OriginRules {
    pub times: OriginTimes,
    pub trust: Arc<OriginTrust>,
    /// The name that certificates must have, if it is not the server's.
    pub tls_name: Option<String>,
    /// How often a request is sent again to another server.
    pub retries: usize,
}

/// A server of an origin.
#[derive(Debug)]
pub(crate) struct Server {
    pub origin: Origin,
    /// Host and port, as `Host` has them.
    pub authority: String,
    /// The share of the requests, relative to the other servers'.
    pub weight: u16,
    /// Whether it accepts connections and answers.
    pub state: Arc<OriginState>,
}

impl Server {
    /// A server of which nothing is known yet.
    pub fn new(origin: Origin, weight: u16) -> Server {
        Server { authority: origin.authority(), origin, weight, state: Arc::default() }
    }
}

/// The servers of an origin.
#[derive(Debug)]
pub(crate) struct Pool {
    /// The origin's name; empty if there is only one origin.
    pub name: String,
    pub rules: Arc<OriginRules>,
    pub servers: Vec<Server>,
    turn: AtomicUsize,
}

impl Pool {
    /// The servers of an origin; there is at least one.
    pub fn new(name: String, rules: Arc<OriginRules>, servers: Vec<Server>) -> Pool {
        Pool { name, rules, servers, turn: AtomicUsize::new(0) }
    }

    /// The one server of a reverse proxy's origin.
    pub fn of_one(origin: Origin, rules: Arc<OriginRules>) -> Pool {
        Pool::new(String::new(), rules, vec![Server::new(origin, 1)])
    }

    /// The servers in the order in which they are asked, with the right to probe one that is failing, which is then the
    /// first. If not `may_repeat`, none is probed.
    pub fn order(&self, health: &Arc<Health>, may_repeat: bool, now: Instant) -> Vec<(&Server, Option<Probe>)> {
        let first = self.next();
        let count = self.servers.len();
        let turns = (0..count).map(|at| &self.servers[(first + at) % count]).filter(|server| server.weight > 0);
        let mut order: Vec<_> = turns.map(|server| (server, None)).collect();
        if !health.has_failing() || order.len() < 2 {
            return order;
        }
        let (mut good, mut failing) = (Vec::new(), Vec::new());
        let mut probed = None;
        for (server, _) in order.drain(..) {
            let may_probe = may_repeat && probed.is_none();
            match health.standing(&server.origin, may_probe, now) {
                None => good.push((server, None)),
                Some(Some(probe)) => probed = Some((server, Some(probe))),
                Some(None) => failing.push((server, None)),
            }
        }
        probed.into_iter().chain(good).chain(failing).collect()
    }

    /// The kind of failure if all servers are failing, and the right to probe one if nobody does.
    pub fn failing(&self, health: &Arc<Health>, now: Instant) -> Option<(Failure, Option<Probe>)> {
        let servers = || self.servers.iter().filter(|server| server.weight > 0);
        // The right to probe a server is for a request that is sent to it.
        if servers().any(|server| health.standing(&server.origin, false, now).is_none()) {
            return None;
        }
        let mut found = None;
        for server in servers() {
            let (failure, probe) = health.look_at(&server.origin, now)?;
            found = match found {
                Some((first, Some(probe))) => Some((first, Some(probe))),
                _ => Some((failure, probe)),
            };
        }
        found
    }

    /// The index of the server that has the next turn.
    fn next(&self) -> usize {
        if self.servers.len() == 1 {
            return 0;
        }
        let total: usize = self.servers.iter().map(|server| usize::from(server.weight)).sum();
        let mut at = self.turn.fetch_add(1, Ordering::Relaxed) % total.max(1);
        for (index, server) in self.servers.iter().enumerate() {
            match at.checked_sub(server.weight.into()) {
                Some(left) => at = left,
                None => return index,
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::error::FetchError;
    use super::*;
    use crate::options::Limits;

    fn pool(weights: &[u16]) -> Pool {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let times = OriginTimes::of(&Limits::default());
        let rules = Arc::new(OriginRules { times, trust, tls_name: None, retries: 1 });
        let server = |(port, weight): (usize, &u16)| {
            Server::new(Origin { https: false, host: "a".into(), port: port as u16 + 1 }, *weight)
        };
        Pool::new("a".into(), rules, weights.iter().enumerate().map(server).collect())
    }

    fn ports(order: &[(&Server, Option<Probe>)]) -> Vec<u16> {
        order.iter().map(|(server, _)| server.origin.port).collect()
    }

    #[test]
    fn servers_take_turns_by_weight() {
        let (pool, health, now) = (pool(&[2, 0, 1]), Arc::new(Health::default()), Instant::now());
        let turns: Vec<_> = (0..6).map(|_| ports(&pool.order(&health, true, now))).collect();
        assert_eq!(turns, [[1, 3], [1, 3], [3, 1], [1, 3], [1, 3], [3, 1]]);
        assert_eq!(pool.failing(&health, now).map(|(failure, _)| failure), None);
    }

    #[test]
    fn a_failing_server_is_last_and_probed_by_one() {
        let (pool, health, now) = (pool(&[1, 1]), Arc::new(Health::default()), Instant::now());
        let refused = FetchError::Connect("refused".into());
        (0..3).for_each(|_| health.note_failure(&pool.servers[0].origin, &refused));
        assert_eq!(ports(&pool.order(&health, false, now)), [2, 1], "what cannot be repeated is no probe");
        let probing = pool.order(&health, true, now);
        assert_eq!(ports(&probing), [1, 2]);
        assert!((0..4).all(|_| ports(&pool.order(&health, true, now)) == [2, 1]), "another probe is under way");
        drop(probing);
        assert_eq!(ports(&pool.order(&health, true, now)), [2, 1], "the next probe has time");
        let later = now + Duration::from_secs(10);
        assert!(pool.failing(&health, later).is_none(), "the other works");
        assert_eq!(ports(&pool.order(&health, true, later)), [1, 2], "the next probe was left to a request");
        (0..3).for_each(|_| health.note_failure(&pool.servers[1].origin, &refused));
        assert!(pool.failing(&health, now).is_some());
        assert_eq!(pool.order(&health, false, now).len(), 2, "all are tried");
    }
}
