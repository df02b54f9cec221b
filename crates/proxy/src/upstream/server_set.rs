//! The servers of an origin at one moment, by the level at which they are asked.
//!
//! Owns: what a server is, and the order in which the servers of an origin are asked if all of them work: those of the
//! lowest level first, and within a level by the origin's balance. Servers that records of a service name have the level of
//! their priority; servers of the configuration are all at one level, the last if there are such records. Leaves to others:
//! which servers work (`pool`).
//!
//! *Turns.* Each server of a level has as many of the level's turns as its weight says, without a common divisor. They are
//! spread: the turn after one is about 0.618 of all turns further, so that a large weight is not one long run of requests.

use std::cmp::Ordering;
use std::sync::Arc;

use nectary_config::LoadBalancing;
use xxhash_rust::xxh3::xxh3_64;

use super::ServerState;
use super::server_limit::{LimitRule, ServerLimit};
use crate::rules::key::UrlOrigin;

/// The level of servers of the configuration where records of a service name others: after all priorities.
const LISTED_LEVEL: u32 = u16::MAX as u32 + 1;

/// The part of all turns by which the next one is further: the golden ratio, of which no small multiple is near to a whole
/// number. *Units*: 1/1000.
const STEP_PERMILLE: u64 = 618;

/// A server of an origin.
#[derive(Debug)]
pub(crate) struct OriginServer {
    pub origin: UrlOrigin,
    /// Host and port, as `Host` has them. For a server that records of a service name, the name of the service's domain.
    pub authority: String,
    /// The share of the requests, relative to the other servers'.
    pub weight: u16,
    /// Those with a lower level are asked first.
    level: u32,
    /// Whether a record of a service names it. Its name is whole then: no domain is appended to it.
    pub is_found: bool,
    /// Whether it accepts connections and answers.
    pub state: Arc<ServerState>,
    /// The limit on connections to it, if there is one.
    pub limit: Option<Arc<ServerLimit>>,
    /// The hash of its URL.
    hash: u64,
}

impl OriginServer {
    /// A server of which nothing is known yet.
    pub fn new(origin: UrlOrigin, weight: u16) -> OriginServer {
        let authority = origin.named().authority();
        let (state, limit) = (Arc::default(), None);
        let server = OriginServer { authority, origin, weight, level: 0, is_found: false, state, limit, hash: 0 };
        OriginServer { hash: xxh3_64(server.url().as_bytes()), ..server }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.origin.shown()
    }

    /// The same server, to which connections are limited.
    pub fn limited(self, rule: Option<LimitRule>) -> OriginServer {
        OriginServer { limit: rule.map(ServerLimit::new), ..self }
    }

    /// The same server, whose connections share this limit with others to it.
    pub fn limited_by(self, limit: Arc<ServerLimit>) -> OriginServer {
        OriginServer { limit: Some(limit), ..self }
    }

    /// The same server, which is asked after all that records of a service name.
    pub fn after_found(self) -> OriginServer {
        OriginServer { level: LISTED_LEVEL, ..self }
    }

    /// The same server as one that a record with this priority names. It gets this `Host`.
    pub fn found(self, priority: u16, authority: &str) -> OriginServer {
        OriginServer { level: priority.into(), is_found: true, authority: authority.to_owned(), ..self }
    }

    /// The same server with another share. What is known of it stays.
    pub fn with_share(&self, priority: u16, weight: u16) -> OriginServer {
        OriginServer {
            origin: self.origin.clone(),
            authority: self.authority.clone(),
            weight,
            level: priority.into(),
            is_found: self.is_found,
            state: self.state.clone(),
            limit: self.limit.clone(),
            hash: self.hash,
        }
    }

    /// The priority of the record that names it, if one does.
    pub fn priority(&self) -> Option<u16> {
        self.is_found.then(|| u16::try_from(self.level).unwrap_or(u16::MAX))
    }

    /// Whether the server has this share.
    pub fn has_share(&self, priority: u16, weight: u16) -> bool {
        (self.level, self.weight) == (priority.into(), weight)
    }

    /// Whether it has as many requests as it may have connections.
    fn is_full(&self) -> bool {
        self.limit.as_ref().is_some_and(|limit| self.state.under_way() >= limit.connections_max())
    }

    /// The rank of the server for a key. Of several servers, each has the highest rank for its share of the keys by weight;
    /// when one is gone, only its keys have another. *Source*: weighted rendezvous hashing (Schindelhauer, Schomaker: Weighted
    /// Distributed Hash Tables).
    #[expect(clippy::cast_precision_loss, reason = "53 bits of a hash")]
    fn rank(&self, key_hash: u64) -> f64 {
        let mixed = xxh3_64(&(self.hash ^ key_hash).to_le_bytes()) >> 11;
        let share = (mixed as f64 + 0.5) / (1u64 << 53) as f64;
        -f64::from(self.weight) / share.ln()
    }
}

/// The requests of a server relative to its weight.
struct ServerLoad {
    requests: usize,
    weight: u16,
}

impl Ord for ServerLoad {
    fn cmp(&self, other: &ServerLoad) -> Ordering {
        let product = |one: &ServerLoad, by: &ServerLoad| one.requests.saturating_mul(by.weight.into());
        product(self, other).cmp(&product(other, self))
    }
}

impl PartialOrd for ServerLoad {
    fn partial_cmp(&self, other: &ServerLoad) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ServerLoad {
    fn eq(&self, other: &ServerLoad) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ServerLoad {}

/// The servers of an origin at one moment.
#[derive(Debug)]
pub(crate) struct ServerSet {
    /// The servers, the lowest level first.
    servers: Vec<Arc<OriginServer>>,
    levels: Vec<ServerLevel>,
    /// Whether they have been looked up, if they must be.
    is_known: bool,
}

/// The turns of the servers of one level.
#[derive(Debug)]
struct ServerLevel {
    /// The servers that have a weight.
    servers: Vec<Arc<OriginServer>>,
    /// How many turns the servers have together.
    turns: u64,
    /// What all weights are multiples of.
    divisor: u64,
    /// How many turns the next one is further.
    step: u64,
}

impl ServerSet {
    /// These servers; if they do not have to be looked up first, they are known.
    pub fn new(mut servers: Vec<Arc<OriginServer>>, is_known: bool) -> ServerSet {
        // The sort keeps the order of equals.
        servers.sort_by_key(|server| server.level);
        let levels = servers.chunk_by(|one, other| one.level == other.level).map(ServerLevel::new).collect();
        ServerSet { servers, levels, is_known }
    }

    /// All servers, the lowest level first.
    pub fn all(&self) -> &[Arc<OriginServer>] {
        &self.servers
    }

    /// The servers that have a weight.
    pub fn weighted(&self) -> impl Iterator<Item = &Arc<OriginServer>> {
        self.levels.iter().flat_map(|level| &level.servers)
    }

    /// Whether the servers have been looked up, if they must be.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The servers that have a weight, in the order in which the request with this turn and this key asks them.
    pub fn balanced(&self, balance: LoadBalancing, turn: usize, key_hash: u64) -> Vec<&Arc<OriginServer>> {
        let mut servers = Vec::with_capacity(self.servers.len());
        for level in &self.levels {
            let begin = servers.len();
            servers.extend(level.in_turn(if balance == LoadBalancing::Hash { 0 } else { turn }));
            level_order(&mut servers[begin..], balance, key_hash);
        }
        servers
    }
}

/// Sorts servers of one level, which are in turn.
fn level_order(servers: &mut [&Arc<OriginServer>], balance: LoadBalancing, key_hash: u64) {
    // The counts change while they are sorted by, so each is read once; sorts keep the turns of equals.
    match balance {
        LoadBalancing::RoundRobin => {}
        LoadBalancing::LeastOutstanding => {
            servers
                .sort_by_cached_key(|server| ServerLoad { requests: server.state.under_way(), weight: server.weight });
        }
        LoadBalancing::Hash => {
            let mut ranked: Vec<_> = servers.iter().map(|server| (server.rank(key_hash), *server)).collect();
            ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
            ranked.into_iter().zip(servers.iter_mut()).for_each(|((_, server), place)| *place = server);
        }
    }
    // A request waits for a connection only where all servers of the level have as many requests as they may.
    if servers.iter().any(|server| server.limit.is_some()) {
        servers.sort_by_cached_key(|server| server.is_full());
    }
}

impl ServerLevel {
    fn new(servers: &[Arc<OriginServer>]) -> ServerLevel {
        let servers: Vec<_> = servers.iter().filter(|server| server.weight > 0).cloned().collect();
        let weights = || servers.iter().map(|server| u64::from(server.weight));
        let divisor = weights().fold(0, common_divisor).max(1);
        let turns = weights().map(|weight| weight / divisor).sum::<u64>().max(1);
        // Servers with equal weights take turns in their order.
        let step = if turns <= servers.len() as u64 { 1 } else { spread_step(turns) };
        ServerLevel { servers, turns, divisor, step }
    }

    /// The servers, beginning with the one that has this turn.
    fn in_turn(&self, turn: usize) -> impl Iterator<Item = &Arc<OriginServer>> {
        let mut at = turn as u64 % self.turns * self.step % self.turns;
        let has_turn = |server: &Arc<OriginServer>| match at.checked_sub(u64::from(server.weight) / self.divisor) {
            Some(left) => {
                at = left;
                false
            }
            None => true,
        };
        let first = self.servers.iter().position(has_turn).unwrap_or(0);
        let (before, from) = self.servers.split_at(first);
        from.iter().chain(before)
    }
}

fn common_divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// A step that comes to every one of so many turns, and not soon again near to where it was.
fn spread_step(turns: u64) -> u64 {
    let wanted = turns * STEP_PERMILLE / 1000;
    (wanted.max(1)..turns).find(|step| common_divisor(turns, *step) == 1).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(port: u16, weight: u16) -> OriginServer {
        OriginServer::new(UrlOrigin { https: false, host: "a".into(), port }, weight)
    }

    fn first_ports(set: &ServerSet, turns: usize) -> Vec<u16> {
        let first = |turn| set.balanced(LoadBalancing::RoundRobin, turn, 0)[0].origin.port;
        (0..turns).map(first).collect()
    }

    #[test]
    fn turns_are_shares_without_long_runs() {
        for weights in [&[1, 1, 1][..], &[60_000, 5_000], &[65_535, 1, 0], &[100, 10, 1], &[7], &[65_535, 65_534, 3]] {
            let servers = weights.iter().zip(1..).map(|(weight, port)| Arc::new(server(port, *weight))).collect();
            let set = ServerSet::new(servers, true);
            let turns = set.levels[0].turns as usize;
            let ports = first_ports(&set, 2 * turns);
            for (port, weight) in (1..).zip(weights) {
                let share = ports[..turns].iter().filter(|found| **found == port).count() as u64;
                assert_eq!(share, u64::from(*weight) / set.levels[0].divisor, "{weights:?}: {port}");
            }
            assert_eq!(ports[..turns], ports[turns..], "{weights:?}");
        }
        let set = ServerSet::new(vec![Arc::new(server(1, 60_000)), Arc::new(server(2, 5_000))], true);
        let ports = first_ports(&set, 130);
        assert!(ports.windows(20).all(|run| run.contains(&2)), "{ports:?}");
    }

    #[test]
    fn lower_levels_are_asked_first() {
        let at = |port, weight, priority| Arc::new(server(port, weight).found(priority, "a"));
        let servers = vec![
            Arc::new(server(9, 5).after_found()),
            at(3, 2, 20),
            at(1, 1, 10),
            at(2, 1, 10),
            at(4, 1, u16::MAX),
            at(5, 0, 10),
        ];
        let set = ServerSet::new(servers, true);
        for balance in [LoadBalancing::RoundRobin, LoadBalancing::LeastOutstanding, LoadBalancing::Hash] {
            let mut first = [0; 3];
            for number in 0..64_u64 {
                let order = set.balanced(balance, number as usize, xxh3_64(&number.to_le_bytes()));
                let ports: Vec<u16> = order.iter().map(|server| server.origin.port).collect();
                assert_eq!(ports[2..], [3, 4, 9], "{balance:?}");
                first[usize::from(ports[0])] += 1;
            }
            assert!(first[1] > 16 && first[2] > 16, "{balance:?}: {first:?}");
        }
        let second = set.servers.iter().find(|server| server.origin.port == 2).expect("the second");
        let _busy = second.state.begin();
        let order = set.balanced(LoadBalancing::LeastOutstanding, 0, 0);
        assert_eq!(order.iter().map(|server| server.origin.port).collect::<Vec<_>>(), [1, 2, 3, 4, 9]);
    }

    #[test]
    fn full_server_comes_last() {
        let rule = LimitRule { connections_max: 1, queue_max: 1, queue_time: std::time::Duration::from_secs(1) };
        let at = |port, priority| Arc::new(server(port, 1).limited(Some(rule)).found(priority, "a"));
        let set = ServerSet::new(vec![at(1, 1), at(2, 1), at(3, 2)], true);
        let busy: Vec<_> = set.servers[..1].iter().map(|server| server.state.begin()).collect();
        let ports = |turn| -> Vec<u16> {
            set.balanced(LoadBalancing::RoundRobin, turn, 0).iter().map(|server| server.origin.port).collect()
        };
        assert_eq!([ports(0), ports(1)], [[2, 1, 3], [2, 1, 3]]);
        let _more = set.servers[1].state.begin();
        assert_eq!([ports(0), ports(1)], [[1, 2, 3], [2, 1, 3]], "a level that is full is not out");
        drop(busy);
    }
}
