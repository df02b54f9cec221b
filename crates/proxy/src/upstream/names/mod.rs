//! The addresses of names, without blocking a thread.
//!
//! Owns: the cache of names, which all workers share, and each worker's lookups. `/etc/hosts` counts first, then the
//! servers of `/etc/resolv.conf` are asked (`files`, `host_addresses`). Answers are kept for their lifetime, failures for a short
//! time. If no server answers, addresses whose lifetime is over are used. The lookups of one client wait for each other
//! when there are many, so they do not delay those of other clients; requests for the same name share one lookup.
//! *Source*: RFC 8767 (old addresses).
//!
//! The records of a service are looked up at the same servers, and kept by the caller (`services`).
//!
//! Not used: the other sources of `/etc/nsswitch.conf`, such as multicast DNS.

mod files;
mod host_addresses;
mod query;
mod services;
mod share;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use nectary_host::descriptors;

use self::files::{FilesNow, SystemFiles, local_addresses};
use self::host_addresses::SaidAddresses;
use self::query::NameReply;
pub(super) use self::services::ServiceRecord;
use self::share::LookupShares;
use super::FetchError;
use crate::options::NameFiles;
use crate::room::{ConnectionPeer, ConnectionPlace, ConnectionRoom};

/// The longest time of a lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of names in the cache. When there are more, those are dropped whose time is over, or else any.
const NAMES_MAX: usize = 4096;

/// The bounds on the time for which addresses are kept.
const ADDRESSES_LIFETIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// The bounds on the time for which it is remembered that a name has no address.
const NOTHING_LIFETIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The time for which it is remembered that no server has answered.
const FAILURE_LIFETIME: Duration = Duration::from_secs(3);

/// The longest time beyond their lifetime for which addresses are used if no server answers.
const OLD_ADDRESSES_MAX: Duration = Duration::from_secs(24 * 3600);

/// The places for descriptors that a lookup takes. It rarely has more sockets open.
const SOCKETS: usize = 4;

/// The error of a name without addresses.
pub(super) const NO_ADDRESS: &str = "the name has no address";

/// The addresses of a name, or why there are none.
pub(super) type Answer = Result<Arc<[IpAddr]>, Arc<str>>;

/// The records of a service, none if it has none, or why they are not known; and how long that counts.
pub(super) struct ServiceAnswer {
    pub records: Result<Vec<ServiceRecord>, String>,
    pub lifetime: Duration,
}

/// What is known about a name.
#[derive(Debug, Clone)]
struct CachedName {
    answer: Answer,
    /// The answer counts until this time.
    until: Instant,
    /// The time at which the lifetime of the addresses was or is over.
    lifetime_end: Instant,
}

/// The names that all workers know.
#[derive(Debug)]
pub(super) struct SharedNames {
    files: SystemFiles,
    cache: Mutex<NameCache>,
}

#[derive(Debug, Default)]
struct NameCache {
    names: HashMap<String, CachedName>,
    /// The servers of which the names are known have changed this often.
    changes: u64,
}

impl SharedNames {
    /// Starts without names.
    pub fn new(files: NameFiles) -> SharedNames {
        SharedNames { files: SystemFiles::new(files), cache: Mutex::default() }
    }

    /// What is known about a name without asking a server. The name is in lower case.
    fn known(&self, name: &str, now: Instant) -> Option<Answer> {
        let FilesNow { hosts, changes, .. } = self.files.look_at(now);
        let bare = name.trim_end_matches('.');
        if let Some(found) = hosts.get(bare) {
            return Some(Ok(found.as_slice().into()));
        }
        if let Some(found) = local_addresses(bare) {
            return Some(Ok(found.as_slice().into()));
        }
        if never_exists(bare) {
            return Some(Err(NO_ADDRESS.into()));
        }
        let mut cache = self.cache();
        if cache.changes != changes {
            *cache = NameCache { names: HashMap::new(), changes };
        }
        cache.names.get(name).filter(|known| known.until > now).map(|known| known.answer.clone())
    }

    /// Asks the servers for a name, and remembers the answer.
    async fn ask(&self, name: &str, timeout: Duration) -> Answer {
        let FilesNow { servers, changes, .. } = self.files.look_at(Instant::now());
        let said = tokio::time::timeout(timeout, host_addresses::ask(&servers, name)).await;
        let said = said.unwrap_or_else(|_| Err("no name server answers".into()));
        self.remember(name, said, changes, Instant::now())
    }

    /// Asks the servers for the records of a service, which are not remembered here.
    async fn ask_service(&self, name: &str, timeout: Duration) -> ServiceAnswer {
        if never_exists(name.trim_end_matches('.')) {
            return ServiceAnswer { records: Ok(Vec::new()), lifetime: NOTHING_LIFETIME.1 };
        }
        let FilesNow { servers, .. } = self.files.look_at(Instant::now());
        let said = tokio::time::timeout(timeout, services::ask(&servers, name)).await;
        let within = |time: Duration, (min, max): (Duration, Duration)| time.clamp(min, max);
        let (records, lifetime) = match said.unwrap_or_else(|_| Err("no name server answers".to_owned())) {
            Ok(NameReply::Found(found, lifetime)) => (Ok(found), within(lifetime, ADDRESSES_LIFETIME)),
            Ok(NameReply::Nothing(lifetime)) => (Ok(Vec::new()), within(lifetime, NOTHING_LIFETIME)),
            Err(error) => (Err(error), FAILURE_LIFETIME),
        };
        ServiceAnswer { records, lifetime }
    }

    /// The number of times that the servers of names have changed.
    pub fn changes(&self) -> u64 {
        self.files.look_at(Instant::now()).changes
    }

    fn remember(&self, name: &str, said: Result<SaidAddresses, String>, changes: u64, now: Instant) -> Answer {
        let within = |time: Duration, (min, max): (Duration, Duration)| now + time.clamp(min, max);
        let mut cache = self.cache();
        let known = match said {
            Ok(NameReply::Found(found, lifetime)) => {
                let until = within(lifetime, ADDRESSES_LIFETIME);
                CachedName { answer: Ok(found.into()), until, lifetime_end: until }
            }
            Ok(NameReply::Nothing(lifetime)) => {
                let until = within(lifetime, NOTHING_LIFETIME);
                CachedName { answer: Err(NO_ADDRESS.into()), until, lifetime_end: now }
            }
            Err(error) => {
                let is_usable =
                    |known: &&CachedName| known.answer.is_ok() && now < known.lifetime_end + OLD_ADDRESSES_MAX;
                let (until, failed) = (now + FAILURE_LIFETIME, Err(format!("{name}: {error}").into()));
                match cache.names.get(name).filter(is_usable) {
                    Some(old) => CachedName { until, ..old.clone() },
                    None => CachedName { answer: failed, until, lifetime_end: now },
                }
            }
        };
        let answer = known.answer.clone();
        // If the servers have changed meanwhile, the answer counts only for those who wait for it.
        if cache.changes == changes {
            cache.insert(name, known, now);
        }
        answer
    }

    fn cache(&self) -> MutexGuard<'_, NameCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NameCache {
    fn insert(&mut self, name: &str, known: CachedName, now: Instant) {
        if self.names.len() >= NAMES_MAX && !self.names.contains_key(name) {
            self.names.retain(|_, known| known.until > now);
            while self.names.len() >= NAMES_MAX
                && let Some(any) = self.names.keys().next().cloned()
            {
                self.names.remove(&any);
            }
        }
        self.names.insert(name.to_owned(), known);
    }
}

/// Whether a name, without the dot at its end, is one of those that never exist. *Source*: RFC 6761, 6.4.
fn never_exists(name: &str) -> bool {
    name == "invalid" || name.ends_with(".invalid")
}

/// Looks up the records of a service once, outside a proxy.
pub(super) async fn look_up_service_once(files: NameFiles, name: &str) -> Result<Vec<ServiceRecord>, String> {
    SharedNames::new(files).ask_service(name, LOOKUP_TIMEOUT).await.records
}

type Lookup = LocalBoxFuture<'static, Answer>;

/// The lookups of one worker.
pub(super) struct NameLookups {
    names: Arc<SharedNames>,
    under_way: RefCell<HashMap<String, WeakShared<Lookup>>>,
    shares: LookupShares,
    room: Arc<ConnectionRoom>,
    timeout: Duration,
}

impl NameLookups {
    /// Starts without lookups. Those who look up names wait for `patience`; lookups end before that, so that their
    /// failure is remembered.
    pub fn new(names: Arc<SharedNames>, room: Arc<ConnectionRoom>, patience: Duration) -> NameLookups {
        let timeout = LOOKUP_TIMEOUT.min(patience * 4 / 5);
        NameLookups { names, under_way: RefCell::default(), shares: LookupShares::default(), room, timeout }
    }

    /// The addresses of a host, which may be an address itself. *Errors*: if there is none, if no server answers, or if
    /// there are no places for the lookup's sockets.
    ///
    /// *Cancel safety*: a lookup goes on if others wait for it, else it ends.
    pub async fn look_up(&self, host: &str, client: IpAddr) -> Result<Arc<[IpAddr]>, FetchError> {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok([address].as_slice().into());
        }
        let failed = |why: Arc<str>| FetchError::Connect(why.to_string());
        let name = host.to_ascii_lowercase();
        if let Some(answer) = self.names.known(&name, Instant::now()) {
            return answer.map_err(failed);
        }
        let _share = self.shares.take(client).await;
        // It may have become known while this client's other lookups were waited for.
        match self.names.known(&name, Instant::now()) {
            Some(answer) => answer.map_err(failed),
            None => self.join(name)?.await.map_err(failed),
        }
    }

    /// The lookup of a name that is under way, or a new one.
    fn join(&self, name: String) -> Result<Shared<Lookup>, FetchError> {
        let mut under_way = self.under_way.borrow_mut();
        if let Some(lookup) = under_way.get(&name).and_then(WeakShared::upgrade) {
            return Ok(lookup);
        }
        under_way.retain(|_, lookup| lookup.upgrade().is_some());
        let places = self.places()?;
        let (names, asked, timeout) = (self.names.clone(), name.clone(), self.timeout);
        let lookup = async move {
            let answer = names.ask(&asked, timeout).await;
            drop(places);
            answer
        };
        let lookup = lookup.boxed_local().shared();
        under_way.extend(lookup.downgrade().map(|weak| (name, weak)));
        Ok(lookup)
    }

    /// The records of a service. *Cancel safety*: the look-up ends.
    pub async fn look_up_service(&self, name: &str) -> ServiceAnswer {
        match self.places() {
            Ok(_places) => self.names.ask_service(name, self.timeout).await,
            Err(error) => ServiceAnswer { records: Err(error.to_string()), lifetime: FAILURE_LIFETIME },
        }
    }

    /// The places for the sockets of a lookup.
    fn places(&self) -> Result<Vec<ConnectionPlace>, FetchError> {
        // A process that may have few descriptors has room for less.
        let wanted = SOCKETS.min(usize::try_from(self.room.max(ConnectionPeer::Origin)).unwrap_or(SOCKETS));
        let places: Vec<_> = (0..wanted).map_while(|_| self.room.take(ConnectionPeer::Origin)).collect();
        if places.len() < wanted {
            descriptors::note_refused("so many connections to origins are open that no name could be looked up");
            return Err(FetchError::Crowded);
        }
        Ok(places)
    }
}

#[cfg(test)]
mod tests;
