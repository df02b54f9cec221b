//! How many sessions and connections a server has, at all its addresses together.
//!
//! Owns: the seats of sessions, each of which is for two connections, and the bound on connections that have not greeted.
//! Promises: a session that has begun always has room for both of its connections; connections that do not greet take no
//! seat. Leaves to others: giving up those that have not greeted (`Newcomers`), and telling clients that there is no seat
//! (`connection`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_host::descriptors;

/// The least number of connections with which a server starts: those of four mounts.
const CONNECTIONS_MIN: usize = 8;
/// The connections of a session: one in use of each role, and one of each that it has lost and the server has not.
const CONNECTIONS_OF_SESSION_MAX: usize = 4;
/// The connections beside those of sessions: of clients that have not greeted, or are told that there is no seat.
const NEWCOMERS_MAX: usize = 8;

/// The seats of a server's sessions.
#[derive(Debug)]
pub(super) struct ServerSeats {
    sessions_max: usize,
    open: AtomicUsize,
    seats: Mutex<SeatTable>,
}

#[derive(Debug, Default)]
struct SeatTable {
    /// The connections of each session that has any.
    sessions: HashMap<u64, usize>,
    /// Sessions that begin, and have no number yet.
    beginning: usize,
}

/// An open connection, until this value is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection(Arc<ServerSeats>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's part in the seat of its session, until this value is dropped.
#[derive(Debug)]
pub(super) struct SessionSeat {
    places: Arc<ServerSeats>,
    /// `None` while the session begins.
    session: Option<u64>,
}

impl SessionSeat {
    /// The session has begun, and has this number.
    pub fn of_session(mut self, session: u64) -> SessionSeat {
        let mut seats = self.places.seats();
        seats.beginning -= usize::from(self.session.is_none());
        *seats.sessions.entry(session).or_default() += 1;
        drop(seats);
        self.session = Some(session);
        self
    }
}

impl Drop for SessionSeat {
    fn drop(&mut self) {
        let mut seats = self.places.seats();
        let Some(session) = self.session else {
            seats.beginning -= 1;
            return;
        };
        if let Some(count) = seats.sessions.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                seats.sessions.remove(&session);
            }
        }
    }
}

impl ServerSeats {
    /// Places for as many connections as the limit on open files allows, but for at most `wanted`. *Errors*: a text if they
    /// are too few to serve.
    pub fn new(wanted: usize) -> Result<Arc<ServerSeats>, String> {
        let allowed = descriptors::for_connections(0);
        if allowed < CONNECTIONS_MIN as u64 {
            let (limit, open) = (descriptors::limit().soft, descriptors::open_now());
            let needed = open + descriptors::KEPT_BACK + CONNECTIONS_MIN as u64;
            return Err(format!("{needed} file descriptors are needed to serve, and no more than {limit} may be open"));
        }
        let connections_max = usize::try_from(allowed).map_or(wanted, |allowed| allowed.min(wanted));
        let (sessions_max, open) = ((connections_max / 2).max(1), AtomicUsize::new(0));
        Ok(Arc::new(ServerSeats { sessions_max, open, seats: Mutex::default() }))
    }

    fn seats(&self) -> MutexGuard<'_, SeatTable> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection, unless too many have not greeted.
    pub fn open(self: &Arc<Self>) -> Option<OpenConnection> {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        let opened = OpenConnection(self.clone());
        (before < 2 * self.sessions_max + NEWCOMERS_MAX).then_some(opened)
    }

    /// Takes a connection beyond the bound, as another one is about to end.
    pub fn open_anyway(self: &Arc<Self>) -> OpenConnection {
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }

    /// A seat for a session that begins. *Errors*: there is none, with the reason and what can be done.
    pub fn begin(self: &Arc<Self>) -> Result<SessionSeat, String> {
        let mut seats = self.seats();
        if seats.sessions.len() + seats.beginning >= self.sessions_max {
            return Err(self.refusal());
        }
        seats.beginning += 1;
        Ok(SessionSeat { places: self.clone(), session: None })
    }

    /// A part in the seat of a session, which gets a seat if it has none. *Errors*: as [`begin`](ServerSeats::begin).
    pub fn resume(self: &Arc<Self>, session: u64) -> Result<SessionSeat, String> {
        let mut seats = self.seats();
        let is_full = seats.sessions.len() + seats.beginning >= self.sessions_max;
        match seats.sessions.get_mut(&session) {
            Some(count) if *count >= CONNECTIONS_OF_SESSION_MAX => {
                Err("the session has too many connections".to_owned())
            }
            Some(count) => {
                *count += 1;
                Ok(SessionSeat { places: self.clone(), session: Some(session) })
            }
            None if is_full => Err(self.refusal()),
            None => {
                seats.sessions.insert(session, 1);
                Ok(SessionSeat { places: self.clone(), session: Some(session) })
            }
        }
    }

    /// Why a session has no seat, and what can be done.
    pub fn refusal(&self) -> String {
        format!(
            "the server serves {} mounts, which is its limit: unmount elsewhere, or raise the server's limit on open files \
             (`ulimit -Hn`, LimitNOFILE= in a unit of systemd; each mount takes two) and start it again",
            self.sessions_max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_sessions_reserve_two_seats() {
        let places = ServerSeats::new(5).expect("tests may open some files");
        let (first, second) = (places.begin().expect("a seat"), places.begin().expect("a seat"));
        assert!(places.begin().is_err(), "two begin");
        assert!(places.resume(9).is_err(), "the seats of those that begin are taken");
        let first = first.of_session(1);
        drop(second);
        let second = places.begin().expect("a seat").of_session(2);
        let controls = (places.resume(1).expect("its own"), places.resume(2).expect("its own"));
        assert!(places.begin().is_err_and(|why| why.starts_with("the server serves 2 mounts")));
        assert!(places.resume(3).is_err());
        drop(first);
        assert!(places.resume(3).is_err(), "one connection keeps the seat");
        drop(controls.0);
        let third = places.resume(3).expect("a seat");
        drop((second, third));
        assert!(places.begin().is_ok());
    }

    #[test]
    fn lost_connections_are_bounded() {
        let places = ServerSeats::new(8).expect("tests may open some files");
        let kept: Vec<_> =
            (0..CONNECTIONS_OF_SESSION_MAX).map(|_| places.resume(7).expect("it may reconnect")).collect();
        assert!(places.resume(7).is_err() && places.resume(8).is_ok());
        drop(kept);
        assert!(places.resume(7).is_ok());
    }

    #[test]
    fn newcomers_are_bounded() {
        let places = ServerSeats::new(2).expect("tests may open some files");
        let open: Vec<_> = (0..2 + NEWCOMERS_MAX).map(|_| places.open().expect("room")).collect();
        assert!(places.open().is_none());
        let anyway = places.open_anyway();
        drop(open);
        let again: Vec<_> =
            (1..2 + NEWCOMERS_MAX).map(|_| places.open().expect("a refused one is not counted")).collect();
        assert!(places.open().is_none());
        drop((anyway, again));
        assert!(places.open().is_some());
    }
}
