//! Operations that wait until no other session keeps the names and attributes that they change.
//!
//! Owns: these operations, and those of the same sessions behind them. Promises: the operations of a session are done
//! in the order of their arrival. Leaves to others: who keeps what (`tokens::looks`), doing the operations (`owner`).
//!
//! *Circle*: as `request`: operations have the replies of `connection`.

use std::collections::{HashMap, VecDeque};

use super::connection::ReplySender;
use super::grants::WaitHistory;
use super::long_waits::WaitSubject;
use crate::planted::{Bug, planted};
use crate::protocol::{AnswerTerms, MetadataOperation};
use crate::tokens::LookupChange;

/// An operation that is asked for.
pub(super) struct RequestedOperation {
    pub session: u64,
    pub number: u64,
    pub terms: AnswerTerms,
    pub operation: MetadataOperation,
    pub reply: ReplySender,
    /// What it has waited for before.
    pub waited: WaitHistory,
}

impl RequestedOperation {
    /// Whether it must wait, after a restart, until no earlier session keeps names and attributes. No other session keeps
    /// attributes of a file whose data token the session holds; and other hosts may see times of access late.
    pub fn is_graced(&self) -> bool {
        matches!(
            self.operation,
            MetadataOperation::Create { .. }
                | MetadataOperation::Link { .. }
                | MetadataOperation::Unlink { .. }
                | MetadataOperation::Rename { .. }
                | MetadataOperation::SetAttributes { .. }
                | MetadataOperation::SetXattr { .. }
                | MetadataOperation::RemoveXattr { .. }
        )
    }
}

/// The operations that wait.
#[derive(Default)]
pub(super) struct WaitingOperations {
    /// By their tickets, with what they change.
    waiting: HashMap<u64, (RequestedOperation, LookupChange)>,
    /// Operations that wait for sessions from before a restart.
    graced: Vec<RequestedOperation>,
    /// For each session with an operation that waits, those behind it.
    behind: HashMap<u64, VecDeque<RequestedOperation>>,
}

impl WaitingOperations {
    /// Returns an operation that need not wait behind another one of its session.
    pub fn in_turn(&mut self, asked: RequestedOperation) -> Option<RequestedOperation> {
        if planted(Bug::OvertakenOperation) {
            return Some(asked);
        }
        match self.behind.get_mut(&asked.session) {
            Some(behind) => {
                behind.push_back(asked);
                None
            }
            None => Some(asked),
        }
    }

    /// Makes an operation wait for its ticket.
    pub fn wait(&mut self, ticket: u64, asked: RequestedOperation, change: LookupChange) {
        self.behind.entry(asked.session).or_default();
        self.waiting.insert(ticket, (asked, change));
    }

    /// Makes an operation wait for sessions from before a restart.
    pub fn wait_for_grace(&mut self, asked: RequestedOperation) {
        self.behind.entry(asked.session).or_default();
        self.graced.push(asked);
    }

    /// Returns the operation with this ticket, and what it changes.
    pub fn take(&mut self, ticket: u64) -> Option<(RequestedOperation, LookupChange)> {
        self.waiting.remove(&ticket)
    }

    /// Returns the operations that waited for sessions from before a restart.
    pub fn end_grace(&mut self) -> Vec<RequestedOperation> {
        std::mem::take(&mut self.graced)
    }

    /// Whether an operation of a session waits, apart from those behind it.
    pub fn is_waiting(&self, session: u64) -> bool {
        self.waiting.values().any(|(asked, _)| asked.session == session)
            || self.graced.iter().any(|asked| asked.session == session)
    }

    /// Returns the next operation of a session after one that waited; the session waits no more if there is none.
    pub fn next(&mut self, session: u64) -> Option<RequestedOperation> {
        let next = self.behind.get_mut(&session)?.pop_front();
        if next.is_none() {
            self.behind.remove(&session);
        }
        next
    }

    /// Removes the operations of a session that is over; returns them, and what those changed that had begun to wait.
    pub fn forget(&mut self, session: u64) -> (Vec<RequestedOperation>, Vec<LookupChange>) {
        let (mut gone, mut changes) = (Vec::new(), Vec::new());
        let tickets: Vec<u64> =
            self.waiting.iter().filter(|(_, (asked, _))| asked.session == session).map(|(ticket, _)| *ticket).collect();
        for (asked, of) in tickets.iter().filter_map(|ticket| self.waiting.remove(ticket)) {
            gone.push(asked);
            changes.push(of);
        }
        let (of_session, others): (Vec<RequestedOperation>, Vec<RequestedOperation>) =
            std::mem::take(&mut self.graced).into_iter().partition(|asked| asked.session == session);
        self.graced = others;
        gone.extend(of_session);
        gone.extend(self.behind.remove(&session).unwrap_or_default());
        (gone, changes)
    }

    /// Returns the operations that wait: what each is about, an inode, and its reply.
    pub fn waiting(&self) -> impl Iterator<Item = (WaitSubject, u64, &ReplySender)> {
        let inode = |change: &LookupChange| change.tokens.first().map_or(0, |token| token.object.inode);
        let waiting =
            self.waiting.values().map(move |(asked, change)| (WaitSubject::Token, inode(change), &asked.reply));
        waiting.chain(self.graced.iter().map(|asked| (WaitSubject::Token, 0, &asked.reply)))
    }
}
