//! Which connection of a session is the newest of its role.
//!
//! Owns: the numbers of greetings. Promises: a connection that is heard of late never replaces a later one.

use std::collections::HashMap;

/// The newest connections.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// By session and role.
    numbers: HashMap<(u64, u8), u64>,
}

impl Newest {
    /// A connection introduced itself. Returns whether it is the newest of its role.
    pub fn greet(&mut self, session: u64, role: u8, connection: u64) -> bool {
        let newest = self.numbers.entry((session, role)).or_default();
        let is_later = connection > *newest;
        *newest = connection.max(*newest);
        is_later
    }

    /// Whether no later one of its role introduced itself.
    pub fn is_newest(&self, session: u64, role: u8, connection: u64) -> bool {
        self.numbers.get(&(session, role)).is_none_or(|newest| connection >= *newest)
    }

    /// A session is over.
    pub fn forget(&mut self, session: u64) {
        self.numbers.retain(|(of, _), _| *of != session);
    }
}
