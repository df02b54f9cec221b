//! The connections that a proxy may have, to clients and to origins.
//!
//! Owns: the division of the process's file descriptors between the two sides, and the places that open connections
//! take. All workers share the places, so a worker that gets more clients than others refuses none that the proxy has
//! room for. A place is taken when a connection is accepted or opened, and no request on it looks at the places. If there
//! is none, a worker can ask the others for the place of an idle client.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use nectary_host::descriptors;
use tokio::sync::{mpsc, oneshot};

/// The descriptors that a worker has beside its connections: those of its runtime and its listeners, and some that are
/// open for a moment.
const WORKER_DESCRIPTORS: u64 = 16;

/// The maximum number of connections for administration.
const ADMINS_MAX: u64 = 16;

/// The number of requests for a place that wait at a worker. Beyond it, a new client is refused.
const ASKERS_MAX: usize = 64;

/// A request of another worker for the place of an idle client.
pub(crate) type Asker = oneshot::Sender<Option<ConnectionPlace>>;

/// How many connections a proxy may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct ConnectionLimits {
    /// The number of file descriptors that the process may have open.
    pub descriptors: u64,
    /// The maximum number of connections of clients. It is less than the wanted number if the descriptors do not
    /// suffice.
    pub clients_max: u64,
    /// The maximum number of connections to origins, tunnels included.
    pub origins_max: u64,
}

impl ConnectionLimits {
    /// The limits that this process's descriptors allow. *Cost*: reads a directory.
    pub(crate) fn new(clients_wanted: usize, workers: usize) -> ConnectionLimits {
        let kept = WORKER_DESCRIPTORS * workers as u64 + ADMINS_MAX;
        ConnectionLimits::divided(descriptors::limit().soft, descriptors::for_connections(kept), clients_wanted as u64)
    }

    /// Each client may need a connection to an origin, so clients get at most half of the descriptors.
    fn divided(descriptors: u64, room: u64, clients_wanted: u64) -> ConnectionLimits {
        let clients_max = clients_wanted.min(room / 2).max(1);
        ConnectionLimits { descriptors, clients_max, origins_max: room.saturating_sub(clients_max).max(1) }
    }
}

/// The places for connections that all workers of a proxy share.
#[derive(Debug)]
pub(crate) struct ConnectionRoom {
    pub limits: ConnectionLimits,
    taken: [AtomicU64; 3],
    /// The workers that can give up a place.
    givers: Mutex<Vec<mpsc::Sender<Asker>>>,
}

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionPeer {
    /// A client.
    Client,
    /// An origin, also through a tunnel.
    Origin,
    /// A client on an address for administration. Such clients have places of their own, so that somebody can purge
    /// when there are too many other clients.
    Admin,
}

/// The place of one open connection. It is free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    room: Arc<ConnectionRoom>,
    peer: ConnectionPeer,
}

impl ConnectionRoom {
    /// Starts without connections.
    pub fn new(limits: ConnectionLimits) -> Arc<ConnectionRoom> {
        Arc::new(ConnectionRoom { limits, taken: Default::default(), givers: Mutex::default() })
    }

    /// The maximum number of connections to such peers.
    pub fn max(&self, peer: ConnectionPeer) -> u64 {
        match peer {
            ConnectionPeer::Client => self.limits.clients_max,
            ConnectionPeer::Origin => self.limits.origins_max,
            ConnectionPeer::Admin => ADMINS_MAX,
        }
    }

    /// A place for a connection; `None` if there are too many to such peers.
    pub fn take(self: &Arc<Self>, peer: ConnectionPeer) -> Option<ConnectionPlace> {
        if self.taken[peer as usize].fetch_add(1, Ordering::Relaxed) >= self.max(peer) {
            self.taken[peer as usize].fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(ConnectionPlace { room: self.clone(), peer })
    }

    /// Lets other workers ask the caller for places of idle clients, until it drops the receiver.
    pub fn give(&self) -> mpsc::Receiver<Asker> {
        let (giver, askers) = mpsc::channel(ASKERS_MAX);
        self.givers.lock().unwrap_or_else(PoisonError::into_inner).push(giver);
        askers
    }

    /// The place of an idle client of some worker; `None` if none has one, or if too many ask. *Cancel safety*: a place
    /// that comes too late is free again.
    pub async fn ask(&self) -> Option<ConnectionPlace> {
        let givers = self.givers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for giver in givers {
            let (asker, place) = oneshot::channel();
            if giver.try_send(asker).is_ok()
                && let Ok(Some(place)) = place.await
            {
                return Some(place);
            }
        }
        None
    }

    /// Whether so many connections to origins are open that an unused one should be closed.
    pub fn is_crowded(&self) -> bool {
        self.taken[ConnectionPeer::Origin as usize].load(Ordering::Relaxed) > self.limits.origins_max / 2
    }
}

impl ConnectionPlace {
    /// The peer of the connection that has the place.
    pub fn peer(&self) -> ConnectionPeer {
        self.peer
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.room.taken[self.peer as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_divided_between_both_sides() {
        let divided = |room, wanted| {
            let limits = ConnectionLimits::divided(1024, room, wanted);
            (limits.clients_max, limits.origins_max)
        };
        assert_eq!(divided(900, 10_000), (450, 450));
        assert_eq!(divided(900, 100), (100, 800));
        assert_eq!(divided(0, 100), (1, 1));
    }

    #[tokio::test]
    async fn asked_workers_give_places_or_not() {
        let room = ConnectionRoom::new(ConnectionLimits::divided(1024, 2, 10));
        let place = room.take(ConnectionPeer::Client);
        assert!(place.is_some() && room.ask().await.is_none(), "no worker gives places yet");
        drop(room.give());
        let (mut poor, mut rich) = (room.give(), room.give());
        let answers = async {
            let asker = poor.recv().await.expect("asked first");
            asker.send(None).expect("it waits");
            let asker = rich.recv().await.expect("asked next");
            asker.send(place).expect("it waits");
        };
        let (given, ()) = tokio::join!(room.ask(), answers);
        assert!(given.is_some() && room.take(ConnectionPeer::Client).is_none(), "the place was passed on");
        drop((poor, rich));
        assert!(room.ask().await.is_none());
        // One more than the limit is not kept waiting.
        let full = room.give();
        let mut waiting: Vec<_> = (0..ASKERS_MAX).map(|_| Box::pin(room.ask())).collect();
        for ask in &mut waiting {
            assert!(futures_util::poll!(ask).is_pending());
        }
        assert!(room.ask().await.is_none());
        drop(full);
    }

    #[test]
    fn dropped_place_is_free_again() {
        let room = ConnectionRoom::new(ConnectionLimits::divided(1024, 4, 10));
        let both = (room.take(ConnectionPeer::Client), room.take(ConnectionPeer::Client));
        assert!(both.0.is_some() && both.1.is_some() && room.take(ConnectionPeer::Client).is_none());
        assert!(room.take(ConnectionPeer::Admin).is_some(), "an operator still gets in");
        drop(both.0);
        assert!(room.take(ConnectionPeer::Client).is_some());
        let first = room.take(ConnectionPeer::Origin);
        assert!(first.is_some() && !room.is_crowded());
        let second = room.take(ConnectionPeer::Origin);
        assert!(second.is_some() && room.is_crowded() && room.take(ConnectionPeer::Origin).is_none());
    }
}
