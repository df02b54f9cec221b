//! What programs did and saw, by key.
//!
//! Owns: calls with their begin and end, what a lost host lost, and what must not be lost. Leaves to others: whether
//! there is an order that explains them (`check`).

use std::collections::BTreeMap;

/// What a call is about. Calls about several are checked for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A block of a file.
    Block(usize, u64),
    /// The size of a file, in blocks.
    Size(usize),
    /// What a name leads to; 0 is nothing.
    Name(u64),
}

/// What a call does to the value of its key, and what it saw of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// It saw this.
    Read(u64),
    /// It made it this.
    Write(u64),
    /// It saw the one and made it the other.
    Swap(u64, u64),
    /// It raised it to at least this.
    Raise(u64),
    /// It saw something.
    Some,
    /// It saw that it is at least this.
    AtLeast(u64),
    /// It saw that it is at most this.
    AtMost(u64),
}

impl Act {
    /// The value after it; `None`: it cannot have happened with this one before.
    pub fn apply(self, value: u64) -> Option<u64> {
        match self {
            Act::Read(seen) => (seen == value).then_some(value),
            Act::Write(to) => Some(to),
            Act::Swap(from, to) => (from == value).then_some(to),
            Act::Raise(to) => Some(value.max(to)),
            Act::Some => (value != 0).then_some(value),
            Act::AtLeast(least) => (value >= least).then_some(value),
            Act::AtMost(most) => (value <= most).then_some(value),
        }
    }
}

/// The end of a call that never came.
pub const NEVER: u64 = u64::MAX;

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Counted over all calls, as `returned`.
    pub invoked: u64,
    /// When it was over. Later it did nothing any more.
    pub returned: u64,
    /// Its outcome is not known: it may have happened, or not.
    pub is_optional: bool,
    /// What it did.
    pub act: Act,
    /// The client that it was done on.
    pub client: usize,
}

/// All calls.
#[derive(Debug, Default)]
pub struct History {
    entries: BTreeMap<Key, Vec<Entry>>,
    /// The smallest value that a lost host may leave, as it was committed.
    floors: BTreeMap<Key, u64>,
    /// When the sessions of clients were over.
    closed: BTreeMap<usize, u64>,
    ticks: u64,
}

/// A call that may end.
pub type EntryId = (Key, usize);

impl History {
    /// The next point in time.
    pub fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// A call takes effect about now; whether it is over, its caller does not know yet.
    pub fn begin(&mut self, client: usize, key: Key, act: Act, invoked: u64) -> EntryId {
        let entries = self.entries.entry(key).or_default();
        let returned = self.closed.get(&client).copied().unwrap_or(NEVER);
        entries.push(Entry { invoked, returned, is_optional: true, act, client });
        (key, entries.len() - 1)
    }

    /// Its caller knows that it happened.
    pub fn end(&mut self, id: EntryId) {
        let returned = self.tick();
        if let Some(entry) = self.entries.get_mut(&id.0).and_then(|entries| entries.get_mut(id.1)) {
            entry.returned = returned;
            entry.is_optional = false;
        }
    }

    /// Its caller knows that it happened, and what it did.
    pub fn settle(&mut self, id: EntryId, act: Act) {
        if let Some(entry) = self.entries.get_mut(&id.0).and_then(|entries| entries.get_mut(id.1)) {
            entry.act = act;
        }
        self.end(id);
    }

    /// A call that happened between then and now.
    pub fn add(&mut self, client: usize, key: Key, act: Act, invoked: u64) {
        let id = self.begin(client, key, act, invoked);
        self.end(id);
    }

    /// A client's session is over: none of its calls takes effect any more.
    pub fn close(&mut self, client: usize) {
        let now = self.tick();
        self.closed.insert(client, now);
        for entry in self.entries.values_mut().flatten() {
            if entry.client == client && entry.returned == NEVER {
                entry.returned = now;
            }
        }
    }

    /// A value that is not to be lost.
    pub fn keep(&mut self, key: Key, value: u64) {
        let floor = self.floors.entry(key).or_default();
        *floor = (*floor).max(value);
    }

    /// The smallest value that may be left.
    pub fn floor(&self, key: Key) -> u64 {
        self.floors.get(&key).copied().unwrap_or(0)
    }

    /// The calls of each key.
    pub fn keys(&self) -> impl Iterator<Item = (Key, &[Entry])> {
        self.entries.iter().map(|(key, entries)| (*key, entries.as_slice()))
    }
}
