//! The limits that hold for each network of clients: its connections at a time, and how often it sends requests, to the
//! proxy and to each site or route that has a rule for that.
//!
//! Owns: which network an address belongs to, the count of its open connections, and its token buckets. All workers
//! share them. A network is an IPv4 address, or the first 64 bits of an IPv6 address: a client can choose the others.
//!
//! Promises: a network gets a request for each token. Its bucket holds the requests of a period, is full at first, and
//! fills evenly. Memory is bounded: there are at most [`NETWORKS_MAX`] buckets of the proxy, and as many of all its
//! sites together. Beyond that, those that were not used for longest are forgotten, and such a network begins with a
//! full bucket. The buckets of a site's rule are found by its name and its rate, so a reload that changes neither keeps
//! them.
//!
//! *Cost*: without limits, a look at an option. With them, a lock for each connection, and for each request the lock of
//! one of [`SHARDS`] parts of the buckets; two, if its site has a rule, too.

use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use nectary_config::RequestRate;

use crate::options::NetworkLimits;

/// The maximum number of buckets in a table of them.
const NETWORKS_MAX: usize = 100_000;
/// The number of parts of the buckets, each with its own lock.
const SHARDS: usize = 64;
/// The maximum number of buckets in one generation of a part. A part has two generations.
const GENERATION_MAX: usize = NETWORKS_MAX / SHARDS / 2;

const SECOND_NS: u64 = 1_000_000_000;

/// The limits of a proxy for each network of clients; `None` is for no limit.
#[derive(Debug, Clone)]
pub(crate) struct ClientLimits {
    pub connections: Option<Arc<NetworkConnections>>,
    pub requests: Option<Arc<NetworkRequests>>,
    /// The buckets of sites and routes.
    of_sites: Arc<BucketTable>,
}

impl ClientLimits {
    /// Starts without connections, and with full buckets.
    pub fn new(limits: &NetworkLimits) -> ClientLimits {
        let connections = limits.connections_max.map(NetworkConnections::new).map(Arc::new);
        let requests = limits.requests.map(|rate| Arc::new(NetworkRequests::new(rate)));
        ClientLimits { connections, requests, of_sites: Arc::new(BucketTable::new()) }
    }

    /// Takes a token for a request to a site or a route with this rule. *Errors*: there is none; the whole seconds
    /// after which there will be one.
    pub fn take_of_site(&self, rule: Option<&RequestRule>, client: IpAddr, now: Instant) -> Result<(), u64> {
        rule.map_or(Ok(()), |rule| self.of_sites.take(rule, client, now))
    }

    /// Takes the tokens that a request needs, which is to a site or a route with this rule. *Errors*: one is missing,
    /// and none is taken.
    pub fn take_all(&self, rule: Option<&RequestRule>, client: IpAddr, now: Instant) -> Result<(), u64> {
        self.take_of_site(rule, client, now)?;
        let Some(Err(wait_s)) = self.requests.as_ref().map(|requests| requests.take(client, now)) else {
            return Ok(());
        };
        if let Some(rule) = rule {
            self.of_sites.put_back(rule, client, now);
        }
        Err(wait_s)
    }

    /// Takes a token for a request to a site or a route with this rule, which has taken one of the proxy. *Errors*: there is
    /// none, and the proxy's is put back.
    pub fn take_after_proxy(&self, rule: Option<&RequestRule>, client: IpAddr, now: Instant) -> Result<(), u64> {
        let taken = self.take_of_site(rule, client, now);
        if taken.is_err() {
            self.put_back_of_proxy(client, now);
        }
        taken
    }

    /// Puts back a token of the proxy that was taken for a request.
    pub fn put_back_of_proxy(&self, client: IpAddr, now: Instant) {
        if let Some(requests) = &self.requests {
            requests.buckets.put_back(&requests.rule, client, now);
        }
    }

    /// Counts a new connection of a client; nothing is counted without a limit. *Errors*: its network has too many.
    pub fn count(&self, client: IpAddr) -> Result<Option<NetworkPlace>, TooMany> {
        self.connections.as_ref().map(|limit| limit.take(client).ok_or(TooMany)).transpose()
    }
}

/// A network has as many connections as it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooMany;

/// The network of a client.
fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(((u128::from(address) >> 64) << 64).into()),
        address => address,
    }
}

/// The open connections of each network.
#[derive(Debug)]
pub(crate) struct NetworkConnections {
    max: u32,
    /// The networks that have connections, with their number.
    open: Mutex<HashMap<IpAddr, u32>>,
}

/// An open connection, which counts for its client's network until this value is dropped.
#[derive(Debug)]
pub(crate) struct NetworkPlace {
    connections: Arc<NetworkConnections>,
    network: IpAddr,
}

impl NetworkConnections {
    fn new(max: u32) -> NetworkConnections {
        NetworkConnections { max: max.max(1), open: Mutex::default() }
    }

    /// Counts a new connection; `None` if the client's network has too many.
    pub fn take(self: &Arc<Self>, client: IpAddr) -> Option<NetworkPlace> {
        let network = network_of(client);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(network).or_default();
        if *count >= self.max {
            return None;
        }
        *count += 1;
        Some(NetworkPlace { connections: self.clone(), network })
    }
}

impl Drop for NetworkPlace {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.network);
            }
        }
    }
}

/// How often each network may send requests to a site or a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestRule {
    /// A number that rules of other sites, routes and rates do not have.
    number: u64,
    rate: BucketRate,
}

impl RequestRule {
    /// The rule of a site with this first name, or of its route with this path.
    pub fn new(site: &str, path: Option<&str>, rate: RequestRate) -> RequestRule {
        // Names, paths and rates are the operator's, so nobody looks for two with the same hash.
        let mut hasher = DefaultHasher::new();
        (site, path, rate.count, rate.period).hash(&mut hasher);
        RequestRule { number: hasher.finish(), rate: BucketRate::of(rate) }
    }
}

/// The requests of the networks to the proxy.
#[derive(Debug)]
pub(crate) struct NetworkRequests {
    rule: RequestRule,
    buckets: BucketTable,
}

/// The token buckets of networks under some rules.
#[derive(Debug)]
struct BucketTable {
    /// The time from which buckets count.
    started: Instant,
    /// Chooses the part of a network. Clients do not know its key, so they cannot choose networks of one part.
    hasher: RandomState,
    shards: Vec<Mutex<BucketShard>>,
}

/// Whose bucket it is: the number of a rule, and a network.
type BucketOwner = (u64, IpAddr);

/// The rate at which buckets fill. A token is `period_ns` drops, and `count` drops come in a nanosecond: so everything
/// is a whole number, and at most 2 * 10^17.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BucketRate {
    count: u64,
    period_ns: u64,
}

/// The drops in a bucket at a time.
#[derive(Debug, Clone, Copy)]
struct ClientBucket {
    drops: u64,
    at_ns: u64,
}

/// A part of the buckets, in two generations: those that were used since the last change, and those that were used
/// before it. When the first is full, it takes the place of the other.
#[derive(Debug, Default)]
struct BucketShard {
    recent: HashMap<BucketOwner, ClientBucket>,
    before: HashMap<BucketOwner, ClientBucket>,
}

impl NetworkRequests {
    fn new(rate: RequestRate) -> NetworkRequests {
        NetworkRequests { rule: RequestRule::new("", None, rate), buckets: BucketTable::new() }
    }

    /// Takes a token for a request. *Errors*: there is none; the whole seconds after which there will be one.
    pub fn take(&self, client: IpAddr, now: Instant) -> Result<(), u64> {
        self.buckets.take(&self.rule, client, now)
    }
}

impl BucketTable {
    fn new() -> BucketTable {
        BucketTable {
            started: Instant::now(),
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Takes a token under a rule. *Errors*: there is none; the whole seconds after which there will be one.
    fn take(&self, rule: &RequestRule, client: IpAddr, now: Instant) -> Result<(), u64> {
        self.with_bucket(rule, client, now, |bucket, now_ns| bucket.take(rule.rate, now_ns))
    }

    /// Puts back a token that was taken for a request.
    fn put_back(&self, rule: &RequestRule, client: IpAddr, now: Instant) {
        self.with_bucket(rule, client, now, |bucket, _| bucket.put_back(rule.rate));
    }

    fn with_bucket<R>(
        &self,
        rule: &RequestRule,
        client: IpAddr,
        now: Instant,
        then: impl FnOnce(&mut ClientBucket, u64) -> R,
    ) -> R {
        let owner: BucketOwner = (rule.number, network_of(client));
        let since = now.saturating_duration_since(self.started);
        let now_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let shard = &self.shards[self.hasher.hash_one(owner) as usize % SHARDS];
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let full = ClientBucket { drops: rule.rate.full(), at_ns: now_ns };
        then(shard.bucket(owner, full), now_ns)
    }
}

impl BucketRate {
    fn of(rate: RequestRate) -> BucketRate {
        let period_ns = u64::try_from(rate.period.as_nanos()).unwrap_or(u64::MAX).clamp(1, 60 * SECOND_NS);
        BucketRate { count: rate.count.clamp(1, RequestRate::COUNT_MAX).into(), period_ns }
    }

    /// The drops of a full bucket.
    fn full(self) -> u64 {
        self.count * self.period_ns
    }
}

impl ClientBucket {
    /// Takes a token. Workers may ask in another order than that of their times.
    fn take(&mut self, rate: BucketRate, now_ns: u64) -> Result<(), u64> {
        let elapsed_ns = now_ns.saturating_sub(self.at_ns).min(rate.period_ns);
        self.at_ns = self.at_ns.max(now_ns);
        self.drops = (self.drops + elapsed_ns * rate.count).min(rate.full());
        match self.drops.checked_sub(rate.period_ns) {
            Some(left) => {
                self.drops = left;
                Ok(())
            }
            None => {
                let wait_ns = (rate.period_ns - self.drops).div_ceil(rate.count);
                Err(wait_ns.div_ceil(SECOND_NS))
            }
        }
    }

    /// Puts a token back.
    fn put_back(&mut self, rate: BucketRate) {
        self.drops = (self.drops + rate.period_ns).min(rate.full());
    }
}

impl BucketShard {
    /// The bucket of an owner, which is `new` if the owner is not known.
    fn bucket(&mut self, owner: BucketOwner, new: ClientBucket) -> &mut ClientBucket {
        let mut known = None;
        if !self.recent.contains_key(&owner) {
            known = self.before.remove(&owner);
            if self.recent.len() >= GENERATION_MAX {
                self.before = std::mem::take(&mut self.recent);
            }
        }
        self.recent.entry(owner).or_insert(known.unwrap_or(new))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn requests(count: u32, seconds: u64) -> NetworkRequests {
        NetworkRequests::new(RequestRate { count, period: Duration::from_secs(seconds) })
    }

    #[test]
    fn addresses_of_one_network_count_together() {
        for (one, other, is_same) in [
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "::ffff:192.0.2.7", true),
            ("192.0.2.7", "192.0.2.8", false),
            ("2001:db8::1", "2001:db8::ffff:0:0:2", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("127.0.0.1", "::1", false),
        ] {
            assert_eq!(network_of(address(one)) == network_of(address(other)), is_same, "{one} {other}");
        }
    }

    #[test]
    fn connections_are_counted_until_dropped() {
        let limits = NetworkLimits { connections_max: Some(2), requests: None };
        let connections = ClientLimits::new(&limits).connections.expect("a limit");
        let both = (connections.take(address("::1")), connections.take(address("::2")));
        assert!(both.0.is_some() && both.1.is_some() && connections.take(address("::3")).is_none());
        assert!(connections.take(address("127.0.0.1")).is_some(), "another network");
        drop(both.0);
        assert!(connections.take(address("::3")).is_some());
        drop(both.1);
        assert!(connections.open.lock().expect("no panic").is_empty(), "nothing is kept of those that are gone");
    }

    #[test]
    fn bucket_drains_and_fills_evenly() {
        let requests = requests(4, 60);
        let (client, begun) = (address("192.0.2.7"), requests.buckets.started);
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        assert!((0..4).all(|_| requests.take(client, at(1.0)).is_ok()));
        assert_eq!(requests.take(client, at(1.0)), Err(15));
        assert_eq!(requests.take(client, at(1.5)), Err(15), "rounded up");
        assert_eq!(requests.take(client, at(15.9)), Err(1));
        assert_eq!(requests.take(address("192.0.2.8"), at(15.9)), Ok(()), "another network");
        assert_eq!(requests.take(client, at(16.0)), Ok(()));
        assert_eq!(requests.take(client, at(16.0)), Err(15));
        assert_eq!(requests.take(client, at(15.0)), Err(15), "a worker whose clock was read before");
        assert_eq!(requests.take(client, at(30.9)), Err(1), "no time counts twice");
        assert!((0..4).all(|_| requests.take(client, at(10_000.0)).is_ok()));
        assert_eq!(requests.take(client, at(10_000.0)), Err(15), "no more than a full bucket");
    }

    #[test]
    fn largest_rates_are_exact() {
        for (count, seconds) in [(RequestRate::COUNT_MAX, 1), (RequestRate::COUNT_MAX, 60), (999_983, 1), (1, 60)] {
            let rate = requests(count, seconds).rule.rate;
            let mut bucket = ClientBucket { drops: rate.full(), at_ns: 0 };
            for now_ns in [0, seconds * SECOND_NS, 1_000_000 * SECOND_NS] {
                assert!((0..count).all(|_| bucket.take(rate, now_ns).is_ok()), "{count} in {seconds} s");
                assert!(bucket.take(rate, now_ns).is_err(), "{count} in {seconds} s");
            }
        }
    }

    #[test]
    fn each_rule_has_its_own_buckets() {
        let limits = ClientLimits::new(&NetworkLimits::default());
        let (client, now) = (address("192.0.2.7"), limits.of_sites.started);
        let rate = |count| RequestRate { count, period: Duration::from_secs(60) };
        let short = RequestRate { count: 1, period: Duration::from_secs(30) };
        let rules = [
            RequestRule::new("one", None, short),
            RequestRule::new("one", None, rate(1)),
            RequestRule::new("one", Some("/"), rate(1)),
            RequestRule::new("two", None, rate(1)),
            RequestRule::new("one", None, rate(2)),
        ];
        for rule in &rules {
            assert_eq!(limits.take_of_site(Some(rule), client, now), Ok(()), "{rule:?}");
        }
        // A reload makes the same rule again.
        let again = RequestRule::new("one", None, rate(1));
        assert_eq!(limits.take_of_site(Some(&again), client, now), Err(60));
        assert_eq!(limits.take_of_site(Some(&again), address("192.0.2.8"), now), Ok(()), "another network");
        assert_eq!(limits.take_of_site(None, client, now), Ok(()));
    }

    #[test]
    fn request_takes_all_tokens_or_none() {
        let requests = Some(RequestRate { count: 1, period: Duration::from_secs(60) });
        let limits = ClientLimits::new(&NetworkLimits { connections_max: None, requests });
        let (client, now) = (address("192.0.2.7"), limits.of_sites.started);
        let rule = RequestRule::new("one", None, RequestRate { count: 2, period: Duration::from_secs(60) });
        assert_eq!(limits.take_all(Some(&rule), client, now), Ok(()));
        assert_eq!(limits.take_all(Some(&rule), client, now), Err(60), "the proxy's");
        assert_eq!(limits.take_of_site(Some(&rule), client, now), Ok(()), "it was put back");
        assert_eq!(limits.take_all(Some(&rule), client, now), Err(30), "the site's");
    }

    #[test]
    fn site_refusal_costs_no_token() {
        let requests = Some(RequestRate { count: 2, period: Duration::from_secs(60) });
        let limits = ClientLimits::new(&NetworkLimits { connections_max: None, requests });
        let (client, now) = (address("192.0.2.7"), limits.of_sites.started);
        let rule = RequestRule::new("one", None, RequestRate { count: 1, period: Duration::from_secs(60) });
        let of_proxy = || limits.requests.as_ref().expect("a limit").take(client, now);
        assert_eq!((of_proxy(), limits.take_after_proxy(Some(&rule), client, now)), (Ok(()), Ok(())));
        for _ in 0..3 {
            assert_eq!((of_proxy(), limits.take_after_proxy(Some(&rule), client, now)), (Ok(()), Err(60)));
        }
        assert_eq!((of_proxy(), limits.take_after_proxy(None, client, now)), (Ok(()), Ok(())), "another site");
        assert_eq!(of_proxy(), Err(30));
        limits.put_back_of_proxy(client, now);
        assert_eq!((of_proxy(), of_proxy()), (Ok(()), Err(30)));
    }

    #[test]
    fn many_networks_forget_only_the_oldest() {
        let requests = requests(1, 60);
        let now = requests.buckets.started;
        let network = |number: usize| IpAddr::V4((number as u32).into());
        let busy = address("2001:db8::1");
        assert_eq!(requests.take(busy, now), Ok(()));
        for number in 0..2 * NETWORKS_MAX {
            assert_eq!(requests.take(network(number), now), Ok(()));
            if number % 1000 == 0 {
                assert_eq!(requests.take(busy, now), Err(60), "it is used again and again");
            }
        }
        let kept = |shard: &Mutex<BucketShard>| {
            let shard = shard.lock().expect("no panic");
            shard.recent.len() + shard.before.len()
        };
        let count: usize = requests.buckets.shards.iter().map(kept).sum();
        assert!(count <= NETWORKS_MAX && count > NETWORKS_MAX / 3, "{count}");
        assert_eq!(requests.take(network(2 * NETWORKS_MAX - 1), now), Err(60), "the newest is known");
        assert_eq!(requests.take(network(0), now), Ok(()), "the oldest is forgotten");
    }
}
