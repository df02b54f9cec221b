//! Operations that the server has answered and that are not known to be durable.
//!
//! Owns: these operations, in order, as they are sent to a new server. Promises: an operation is kept until the server
//! says that it is durable, and no later than that. Leaves to others: calls without an answer (`calls`).

use std::collections::BTreeMap;

use super::{Inner, Said, State};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Failure, Message, Operation, Terms};

/// The maximum number of such operations; with the calls without an answer they stay within the protocol's bound.
const UNSTORED_MAX: usize = 192;

/// Operations that are answered and not known to be durable, by their request.
#[derive(Default)]
pub(in crate::client) struct Unstored(BTreeMap<u64, (u64, Message)>);

impl Unstored {
    /// Returns the numbers of the requests, and the messages that repeat them, in order.
    pub fn messages(&self) -> Vec<(u64, Message)> {
        let messages = self.0.iter().map(|(request, (_, message))| (*request, message.clone()));
        let mut messages: Vec<(u64, Message)> = messages.collect();
        if planted(Bug::RepeatedInOtherOrder) {
            for pair in messages.chunks_mut(2) {
                if let [
                    (_, Message::Operation { operation: first, .. }),
                    (_, Message::Operation { operation: second, .. }),
                ] = pair
                {
                    std::mem::swap(first, second);
                }
            }
        }
        messages
    }

    /// Whether a request is one of them.
    pub fn has(&self, request: u64) -> bool {
        self.0.contains_key(&request)
    }

    /// Returns the number of the last operation.
    pub fn last(&self) -> Option<u64> {
        self.0.last_key_value().map(|(_, (number, _))| *number)
    }

    /// Returns how many they are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// How one more operation may be answered.
    pub fn terms(&self) -> Terms {
        if self.0.len() < UNSTORED_MAX { Terms::Early } else { Terms::Durable }
    }
}

impl State {
    /// Keeps an operation that succeeded at this time, and was answered before it is durable.
    pub(super) fn keep_unstored(
        &mut self,
        request: u64,
        message: Message,
        now_ns: i64,
        answer: &Result<Said, Failure>,
    ) {
        let Message::Operation { session, number, mut operation, .. } = message else { return };
        let made = match answer {
            Ok(Said::Answer(Answer::Attributes(made))) => made.number,
            Ok(Said::Granted(grant)) => grant.held.token.object.inode,
            _ => 0,
        };
        if let Operation::Create { inode, .. } = &mut operation {
            *inode = made;
        }
        let terms = Terms::Repeated { now_ns };
        self.unstored.0.insert(request, (number, Message::Operation { session, number, terms, operation }));
    }

    /// Gives up operations that are not known to be durable, because the session is over.
    pub(super) fn lose_unstored(&mut self) {
        let count = self.unstored.0.len() as u64;
        if count > 0 {
            self.figures.lost += count;
        }
        self.unstored.0.clear();
    }

    /// Handles the answer to an operation that was sent again: it is durable.
    pub(super) fn repeated(&mut self, request: u64) {
        if let Some((number, _)) = self.unstored.0.get(&request) {
            self.stored(*number);
        }
    }

    /// Notes that the operations up to this number are durable.
    pub(in crate::client) fn stored(&mut self, up_to: u64) {
        while let Some(first) = self.unstored.0.first_entry().filter(|first| first.get().0 <= up_to) {
            let (number, _) = first.remove();
            self.open_numbers.remove(&number);
        }
    }
}

impl Inner {
    /// Handles the notice that the answer to an operation, which follows, is not durable yet.
    pub fn is_early(&self, request: u64, now_ns: i64, stored: u64) {
        let mut state = self.state();
        state.stored(stored);
        if let Some(waiting) = state.waiting.get_mut(&request) {
            waiting.done_at_ns = Some(now_ns);
        }
    }
}
