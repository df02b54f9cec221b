//! The newest connection of each session and role.
//!
//! Owns: the connection numbers of greetings. Promises: a connection whose greeting arrives late never replaces a later
//! connection.

use std::collections::HashMap;

/// The newest connections.
#[derive(Debug, Default)]
pub(super) struct NewestConnections {
    /// Connection numbers, by session and role.
    numbers: HashMap<(u64, u8), u64>,
}

impl NewestConnections {
    /// Records the greeting of a connection. Returns whether the connection is the newest of its role.
    pub fn greet(&mut self, session: u64, role: u8, connection: u64) -> bool {
        let newest = self.numbers.entry((session, role)).or_default();
        let is_later = connection > *newest;
        *newest = connection.max(*newest);
        is_later
    }

    /// Whether no later connection of its role has sent a greeting.
    pub fn is_newest(&self, session: u64, role: u8, connection: u64) -> bool {
        self.numbers.get(&(session, role)).is_none_or(|newest| connection >= *newest)
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.numbers.retain(|(of, _), _| *of != session);
    }
}
