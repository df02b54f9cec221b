//! Decides whether the calls on one value can be explained. They can if there is an order of the calls in which each
//! call sees the value that it saw, and in which no call comes before one that had ended when it began.
//!
//! Owns: the search of Wing and Gong, which also remembers the states that led nowhere (Lowe, *Testing for
//! linearizability*, 2017). Calls of unknown outcome may be left out. *Cost*: exponential in the number of concurrent
//! calls, linear in the number of all calls.

use std::collections::HashSet;

use super::history::HistoryEntry;

/// The largest number of states that a search visits.
const STATES_MAX: usize = 2_000_000;

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderVerdict {
    /// An order explains the calls.
    Explained,
    /// No order explains the calls.
    Broken,
    /// The search was given up, because it had visited too many states.
    Unknown,
}

/// Searches for an order of the calls that explains all their results, if the value is `value` at first.
pub fn explain(entries: &[HistoryEntry], value: u64) -> OrderVerdict {
    let mut order: Vec<HistoryEntry> = entries.to_vec();
    order.sort_by_key(|entry| entry.invoked);
    let required = order.iter().filter(|entry| !entry.is_optional).count();
    let done = vec![false; order.len()];
    let mut search = OrderSearch { done, seen: HashSet::new(), first: 0, latest: 0, required, order };
    match search.from(value) {
        Some(true) => OrderVerdict::Explained,
        Some(false) => OrderVerdict::Broken,
        None => OrderVerdict::Unknown,
    }
}

/// A state of the search: the first call that has no place in the order yet, the later calls that have one, and the
/// value.
type Point = (usize, Vec<u32>, u64);

struct OrderSearch {
    order: Vec<HistoryEntry>,
    done: Vec<bool>,
    seen: HashSet<Point>,
    first: usize,
    /// The latest begin among the calls in the order.
    latest: u64,
    /// The number of calls that still need a place in the order.
    required: usize,
}

/// A call that was chosen, and the state of the search before it.
struct OrderChoice {
    at: usize,
    first: usize,
    latest: u64,
    value: u64,
    left: Vec<(usize, u64)>,
}

impl OrderSearch {
    fn from(&mut self, mut value: u64) -> Option<bool> {
        let mut choices: Vec<OrderChoice> = Vec::new();
        let mut left = self.candidates(value);
        loop {
            if self.required == 0 {
                return Some(true);
            }
            match left.pop() {
                Some((at, after)) => {
                    let choice = OrderChoice { at, first: self.first, latest: self.latest, value, left };
                    self.done[at] = true;
                    self.latest = self.latest.max(self.order[at].invoked);
                    self.required -= usize::from(!self.order[at].is_optional);
                    while self.first < self.done.len() && self.done[self.first] {
                        self.first += 1;
                    }
                    choices.push(choice);
                    value = after;
                    left = if self.is_new(value) { self.candidates(value) } else { Vec::new() };
                    if self.seen.len() > STATES_MAX {
                        return None;
                    }
                }
                None => {
                    let Some(choice) = choices.pop() else { return Some(false) };
                    self.done[choice.at] = false;
                    self.required += usize::from(!self.order[choice.at].is_optional);
                    (self.first, self.latest, value, left) = (choice.first, choice.latest, choice.value, choice.left);
                }
            }
        }
    }

    fn is_new(&mut self, value: u64) -> bool {
        let behind = (self.first..self.order.len()).filter(|at| self.done[*at]).map(|at| at as u32).collect();
        self.seen.insert((self.first, behind, value))
    }

    /// Returns the calls that may be next, each with the value after it; the most likely call is the last.
    fn candidates(&self, value: u64) -> Vec<(usize, u64)> {
        let mut found = Vec::new();
        // A call that had ended before another began must come first, unless its outcome is unknown.
        let mut until = u64::MAX;
        for at in self.first..self.order.len() {
            let entry = &self.order[at];
            if entry.invoked > until {
                break;
            }
            if self.done[at] {
                continue;
            }
            if !entry.is_optional {
                until = until.min(entry.returned);
            }
            if let Some(after) = entry.act.apply(value) {
                found.push((at, after));
            }
        }
        found.retain(|(at, _)| {
            let entry = &self.order[*at];
            entry.invoked <= until && entry.returned >= self.latest
        });
        found.sort_by_key(|(at, after)| (*after == value, std::cmp::Reverse(self.order[*at].returned)));
        found
    }
}
