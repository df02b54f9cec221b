//! Operations that the server has answered and that are not known to be durable.
//!
//! Owns: these operations, in order, as they are sent to a new server. Promises: an operation is kept until the server
//! says that it is durable, and no later than that. Leaves to others: calls without an answer (`calls`).

use std::collections::BTreeMap;

use super::{CallAnswer, SessionCalls, SharedSession};
use crate::planted::{Bug, planted};
use crate::protocol::{AnswerTerms, MetadataOperation, ServerAnswer, ServerRefusal, VolumeMessage};

/// The maximum number of such operations; with the calls without an answer they stay within the protocol's bound.
const UNSTORED_MAX: usize = 192;

/// Operations that are answered and not known to be durable, by their request.
#[derive(Default)]
pub(in crate::client) struct UnstoredOperations(BTreeMap<u64, UnstoredOperation>);

/// One of them.
struct UnstoredOperation {
    number: u64,
    /// What repeats it at a new server.
    message: VolumeMessage,
    /// If it was answered without the server: the epoch of the server that it was sent to, and when, in nanoseconds since
    /// the session's start.
    local: Option<(u64, u64)>,
}

impl UnstoredOperations {
    /// The numbers of the requests, and the messages that repeat them at the server of an epoch, in order. The server to
    /// which a session sent what it did itself may not have it yet: it gets the same message again.
    pub fn messages(&self, epoch: u64) -> Vec<(u64, VolumeMessage)> {
        let repeated = |(request, kept): (&u64, &UnstoredOperation)| {
            let mut message = kept.message.clone();
            if let VolumeMessage::Operation { terms, .. } = &mut message
                && kept.local.is_some_and(|(sent_to, _)| sent_to == epoch)
                && let AnswerTerms::Repeated { now_ns } = *terms
            {
                *terms = AnswerTerms::Local { now_ns };
            }
            (*request, message)
        };
        let mut messages: Vec<(u64, VolumeMessage)> = self.0.iter().map(repeated).collect();
        if planted(Bug::RepeatedInOtherOrder) {
            for pair in messages.chunks_mut(2) {
                if let [
                    (_, VolumeMessage::Operation { operation: first, .. }),
                    (_, VolumeMessage::Operation { operation: second, .. }),
                ] = pair
                {
                    std::mem::swap(first, second);
                }
            }
        }
        messages
    }

    /// Keeps an operation that the session has answered itself; `sent` is the epoch and the time.
    pub fn keep_local(&mut self, request: u64, number: u64, mut message: VolumeMessage, sent: (u64, u64)) {
        if let VolumeMessage::Operation { terms, .. } = &mut message
            && let AnswerTerms::Local { now_ns } = *terms
        {
            *terms = AnswerTerms::Repeated { now_ns };
        }
        self.0.insert(request, UnstoredOperation { number, message, local: Some(sent) });
    }

    /// Returns when the oldest operation that was answered without the server was sent.
    pub fn oldest_local_ns(&self) -> Option<u64> {
        self.0.values().find_map(|kept| kept.local).map(|(_, at)| at)
    }

    /// Returns how many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a request is one of them.
    pub fn has(&self, request: u64) -> bool {
        self.0.contains_key(&request)
    }

    /// Returns the number of the last operation.
    pub fn last(&self) -> Option<u64> {
        self.0.last_key_value().map(|(_, kept)| kept.number)
    }

    /// How one more operation may be answered.
    pub fn terms(&self) -> AnswerTerms {
        if self.0.len() < UNSTORED_MAX { AnswerTerms::Early } else { AnswerTerms::Durable }
    }
}

impl SessionCalls {
    /// Keeps an operation that succeeded at this time, and was answered before it is durable.
    pub(super) fn keep_unstored(
        &mut self,
        request: u64,
        message: VolumeMessage,
        now_ns: i64,
        answer: &Result<CallAnswer, ServerRefusal>,
    ) {
        let VolumeMessage::Operation { session, number, mut operation, .. } = message else { return };
        let made = match answer {
            Ok(CallAnswer::Answer(ServerAnswer::Attributes(made))) => made.number,
            Ok(CallAnswer::Granted(grant)) => grant.held.token.object.inode,
            _ => 0,
        };
        if let MetadataOperation::Create { inode, .. } = &mut operation {
            *inode = made;
        }
        let terms = AnswerTerms::Repeated { now_ns };
        let message = VolumeMessage::Operation { session, number, terms, operation };
        self.unstored.0.insert(request, UnstoredOperation { number, message, local: None });
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
        if let Some(number) = self.unstored.0.get(&request).map(|kept| kept.number) {
            self.stored(number);
        }
    }

    /// Notes that the operations up to this number are durable.
    pub(in crate::client) fn stored(&mut self, up_to: u64) {
        while let Some(first) = self.unstored.0.first_entry().filter(|first| first.get().number <= up_to) {
            let kept = first.remove();
            self.open_numbers.remove(&kept.number);
        }
    }
}

impl SharedSession {
    /// Handles the notice that the answer to an operation, which follows, is not durable yet.
    pub fn is_early(&self, request: u64, now_ns: i64, stored: u64) {
        let mut state = self.state();
        state.stored(stored);
        state.local.note_time(now_ns);
        if let Some(waiting) = state.waiting.get_mut(&request) {
            waiting.done_at_ns = Some(now_ns);
        }
    }
}
