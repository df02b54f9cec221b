//! Records the calls of programs, by the key whose value they saw or changed.
//!
//! Owns: the calls with their start and end, the changes that were lost with a host, and the values that must not be
//! lost. Leaves to others: the search for an order that explains the calls (`check`).

use std::collections::BTreeMap;

/// The thing whose value a call sees or changes. A call that concerns several keys has an entry for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueKey {
    /// A block of a file.
    Block(usize, u64),
    /// The size of a file, in blocks.
    Size(usize),
    /// The inode of a name; 0 means that the name does not exist.
    Name(u64),
}

/// The value that a call saw under its key, and the change that it made to the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueAccess {
    /// It saw this value.
    Read(u64),
    /// It set the value to this.
    Write(u64),
    /// It saw the first value and set the second one.
    Swap(u64, u64),
    /// It raised the value to at least this.
    Raise(u64),
    /// It saw a value other than 0.
    Some,
    /// It saw that the value is at least this.
    AtLeast(u64),
    /// It saw that the value is at most this.
    AtMost(u64),
}

impl ValueAccess {
    /// Returns the value after the call; `None` if the call cannot have happened while the value was `value`.
    pub fn apply(self, value: u64) -> Option<u64> {
        match self {
            ValueAccess::Read(seen) => (seen == value).then_some(value),
            ValueAccess::Write(to) => Some(to),
            ValueAccess::Swap(from, to) => (from == value).then_some(to),
            ValueAccess::Raise(to) => Some(value.max(to)),
            ValueAccess::Some => (value != 0).then_some(value),
            ValueAccess::AtLeast(least) => (value >= least).then_some(value),
            ValueAccess::AtMost(most) => (value <= most).then_some(value),
        }
    }
}

/// The end of a call that has not ended.
pub const NEVER: u64 = u64::MAX;

/// A call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The time at which it began, as `ValueHistory::tick` counts it.
    pub invoked: u64,
    /// The time at which it ended; after this time it has no effect.
    pub returned: u64,
    /// Whether its outcome is unknown: it may have happened or not.
    pub is_optional: bool,
    /// The value that it saw, and its change.
    pub act: ValueAccess,
    /// The client on which it was made.
    pub client: usize,
}

/// All calls.
#[derive(Debug, Default)]
pub struct ValueHistory {
    entries: BTreeMap<ValueKey, Vec<HistoryEntry>>,
    /// For each key, the smallest value that a lost host may leave, because a value that was committed must stay.
    floors: BTreeMap<ValueKey, u64>,
    /// For each client whose session is over, the time of its end.
    closed: BTreeMap<usize, u64>,
    ticks: u64,
}

/// The identity of an entry: its key, and its index among the entries of that key.
pub type EntryId = (ValueKey, usize);

impl ValueHistory {
    /// Advances the time by one; returns the new time.
    pub fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Records that a call may take effect from now on; its caller does not know the outcome yet.
    pub fn begin(&mut self, client: usize, key: ValueKey, act: ValueAccess, invoked: u64) -> EntryId {
        let entries = self.entries.entry(key).or_default();
        let returned = self.closed.get(&client).copied().unwrap_or(NEVER);
        entries.push(HistoryEntry { invoked, returned, is_optional: true, act, client });
        (key, entries.len() - 1)
    }

    /// Records that a call has happened, and that its caller knows this.
    pub fn end(&mut self, id: EntryId) {
        let returned = self.tick();
        if let Some(entry) = self.entries.get_mut(&id.0).and_then(|entries| entries.get_mut(id.1)) {
            entry.returned = returned;
            entry.is_optional = false;
        }
    }

    /// Records that a call has happened, and that its caller has learned its effect.
    pub fn settle(&mut self, id: EntryId, act: ValueAccess) {
        if let Some(entry) = self.entries.get_mut(&id.0).and_then(|entries| entries.get_mut(id.1)) {
            entry.act = act;
        }
        self.end(id);
    }

    /// Records a call that happened between `invoked` and now.
    pub fn add(&mut self, client: usize, key: ValueKey, act: ValueAccess, invoked: u64) {
        let id = self.begin(client, key, act, invoked);
        self.end(id);
    }

    /// Records that a client's session is over: none of its calls takes effect any more.
    pub fn close(&mut self, client: usize) {
        let now = self.tick();
        self.closed.insert(client, now);
        for entry in self.entries.values_mut().flatten() {
            if entry.client == client && entry.returned == NEVER {
                entry.returned = now;
            }
        }
    }

    /// Records a value that must not be lost.
    pub fn keep(&mut self, key: ValueKey, value: u64) {
        let floor = self.floors.entry(key).or_default();
        *floor = (*floor).max(value);
    }

    /// Returns the smallest value that a key may have after a loss.
    pub fn floor(&self, key: ValueKey) -> u64 {
        self.floors.get(&key).copied().unwrap_or(0)
    }

    /// Returns the calls of each key.
    pub fn keys(&self) -> impl Iterator<Item = (ValueKey, &[HistoryEntry])> {
        self.entries.iter().map(|(key, entries)| (*key, entries.as_slice()))
    }
}
