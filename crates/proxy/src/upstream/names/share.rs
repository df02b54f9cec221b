//! The share that each client has in a worker's lookups of names.
//!
//! Owns: the limit for each client, so that names without an answer delay only the client that asks for them, and the
//! limit for all together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::rc::Rc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// The maximum number of lookups of one client at the same time, per worker.
pub(super) const OF_CLIENT_MAX: usize = 16;

/// The maximum number of lookups of all clients at the same time, per worker.
const OF_ALL_MAX: usize = 512;

/// The shares of clients.
pub(super) struct LookupShares {
    all: Semaphore,
    clients: RefCell<HashMap<IpAddr, Rc<Semaphore>>>,
}

impl Default for LookupShares {
    fn default() -> LookupShares {
        LookupShares { all: Semaphore::new(OF_ALL_MAX), clients: RefCell::default() }
    }
}

impl LookupShares {
    /// Waits until a client may look up a name, which it may until the returned value is dropped.
    pub async fn take(&self, client: IpAddr) -> LookupShare<'_> {
        let client = network_of(client);
        let own =
            self.clients.borrow_mut().entry(client).or_insert_with(|| Rc::new(Semaphore::new(OF_CLIENT_MAX))).clone();
        let mut share = LookupShare { shares: self, client, own, has_own: false, all: None };
        if let Ok(permit) = share.own.acquire().await {
            permit.forget();
            share.has_own = true;
        }
        share.all = self.all.acquire().await.ok();
        share
    }
}

/// The clients that share one limit: those of one IPv6 network of 64 bits count as one, because one machine may have all
/// of its addresses. Those at a Unix socket that have no name have the address of this machine and share its limit, as
/// nothing tells the clients of one peer apart.
fn network_of(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// The right to look up one name.
pub(super) struct LookupShare<'a> {
    shares: &'a LookupShares,
    client: IpAddr,
    own: Rc<Semaphore>,
    has_own: bool,
    all: Option<SemaphorePermit<'a>>,
}

impl Drop for LookupShare<'_> {
    fn drop(&mut self) {
        self.all = None;
        if self.has_own {
            self.own.add_permits(1);
        }
        // The map and this share.
        if Rc::strong_count(&self.own) == 2 {
            self.shares.clients.borrow_mut().remove(&self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_client_waits_only_for_itself() {
        let shares = LookupShares::default();
        let [one, other] = ["2001:db8::1", "192.0.2.1"].map(|text| text.parse::<IpAddr>().expect("an address"));
        let same_network = "2001:db8::ffff".parse().expect("an address");
        let mut taken: Vec<_> = (0..OF_CLIENT_MAX).map(|_| shares.take(one).now_or_never().expect("free")).collect();
        assert!(shares.take(same_network).now_or_never().is_none());
        let second = shares.take(other).now_or_never().expect("free");
        taken.pop();
        assert!(shares.take(same_network).now_or_never().is_some());
        drop((taken, second));
        assert!(shares.clients.borrow().is_empty());
    }

    #[test]
    fn all_clients_together_have_a_limit() {
        let shares = LookupShares::default();
        let client = |number: usize| IpAddr::V4((number as u32).into());
        let taken: Vec<_> =
            (0..OF_ALL_MAX).map(|number| shares.take(client(number)).now_or_never().expect("free")).collect();
        assert!(shares.take(client(OF_ALL_MAX)).now_or_never().is_none());
        drop(taken);
        assert!(shares.take(client(OF_ALL_MAX)).now_or_never().is_some() && shares.clients.borrow().is_empty());
    }
}
