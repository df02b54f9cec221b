//! How many connections a server has, at all its addresses together.
//!
//! Owns: the places. Promises: a session has two connections, and one that begins leaves a place for its second. Leaves to
//! others: telling clients that there is none (`connection`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nectary_host::descriptors;

/// The least number of connections with which a server starts: those of four mounts.
const PLACES_MIN: usize = 8;

/// The places of a server's connections.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    taken: AtomicUsize,
}

/// The place of one connection, until this value is dropped.
#[derive(Debug)]
pub(super) struct Place(Arc<Places>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Places {
    /// As many places as the limit on open files allows, but at most `wanted`. *Errors*: a text if they are too few to
    /// serve.
    pub fn new(wanted: usize) -> Result<Arc<Places>, String> {
        let allowed = descriptors::for_connections(0);
        if allowed < PLACES_MIN as u64 {
            let (limit, open) = (descriptors::limit().soft, descriptors::open_now());
            let needed = open + descriptors::KEPT_BACK + PLACES_MIN as u64;
            return Err(format!("{needed} file descriptors are needed to serve, and no more than {limit} may be open"));
        }
        let max = usize::try_from(allowed).map_or(wanted, |allowed| allowed.min(wanted));
        Ok(Arc::new(Places { max, taken: AtomicUsize::new(0) }))
    }

    /// The number of places.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Takes a place, if one is left.
    pub fn take(self: &Arc<Self>) -> Option<Place> {
        let place = self.take_anyway();
        (self.taken.load(Ordering::Relaxed) <= self.max).then_some(place)
    }

    /// Takes a place that another connection is about to give back.
    pub fn take_anyway(self: &Arc<Self>) -> Place {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Place(self.clone())
    }

    /// Whether no place is left.
    pub fn is_full(&self) -> bool {
        self.taken.load(Ordering::Relaxed) >= self.max
    }

    /// Why a connection has no place, and what can be done.
    pub fn refusal(&self) -> String {
        format!(
            "the server has {} connections, which is its limit, and each mount needs two: unmount elsewhere, or raise the \
             server's limit on open files (`ulimit -Hn`, LimitNOFILE= in a unit of systemd) and start it again",
            self.max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_come_back() {
        let places = Places::new(2).expect("tests may open some files");
        let (first, second) = (places.take(), places.take());
        assert!(first.is_some() && second.is_some() && places.is_full() && places.take().is_none());
        assert!(places.is_full(), "a refused one takes no place");
        drop(second);
        assert!(!places.is_full() && places.take().is_some());
        assert!(places.refusal().starts_with("the server has 2 connections"), "{}", places.refusal());
    }
}
