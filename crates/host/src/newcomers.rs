//! Connections that have not done anything useful yet, in the order in which they came.
//!
//! Owns: the choice of the connection that gives its place up when a server has no room for another one. A connection
//! is a newcomer until its server says that it is used. Promises: a connection that is used is never displaced, so
//! idle connections keep no client out, and no client that works loses its connection. Leaves to others: the limit, and
//! the end of the displaced connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Shutdown;

/// The newcomers of one server. All clones share them.
///
/// # Examples
/// ```
/// let newcomers = nectary_host::Newcomers::default();
/// let (mut first, second) = (newcomers.add(), newcomers.add());
/// first.is_used();
/// assert!(newcomers.displace() && second.is_displaced() && !first.is_displaced());
/// assert!(!newcomers.displace());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Newcomers {
    state: Arc<Mutex<NewcomerState>>,
}

#[derive(Debug, Default)]
struct NewcomerState {
    next: u64,
    waiting: BTreeMap<u64, Shutdown>,
}

impl Newcomers {
    /// Adds a connection.
    pub fn add(&self) -> Newcomer {
        let end = Shutdown::new();
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, end.clone());
        Newcomer { newcomers: self.clone(), number, end }
    }

    /// Displaces the newcomer that has been one for longest. *Returns* false if there is none.
    pub fn displace(&self) -> bool {
        let oldest = self.lock().waiting.pop_first();
        if let Some((_, end)) = &oldest {
            end.request();
        }
        oldest.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, NewcomerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that can be displaced until it is used.
#[derive(Debug)]
pub struct Newcomer {
    newcomers: Newcomers,
    number: u64,
    end: Shutdown,
}

impl Newcomer {
    /// Records that the connection is used; it is not displaced from now on, unless it was already.
    pub fn is_used(&mut self) {
        self.newcomers.lock().waiting.remove(&self.number);
    }

    /// Whether the connection has to end.
    pub fn is_displaced(&self) -> bool {
        self.end.is_requested()
    }

    /// Waits until the connection has to end. *Cancel safety*: the future can be dropped and the method called again.
    pub async fn displaced(&self) {
        self.end.requested().await;
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.is_used();
    }
}
