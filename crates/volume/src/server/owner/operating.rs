//! Operations: when they are done, and that each is done once.
//!
//! Leaves to others: which operations wait (`changing`), what sessions keep (`tokens::looks`).

use std::cmp::Ordering;

use super::Owner;
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Code, Failure, Operation};
use crate::server::changing::Asked;
use crate::tokens::level;

impl Owner {
    /// Does an operation, or makes it wait until no other session keeps what it changes.
    pub(super) fn begin_operation(&mut self, asked: Asked) {
        if asked.number != self.image.next_number(asked.session) || self.image.is_active(asked.session).is_err() {
            return self.finish_operation(asked);
        }
        if asked.is_graced() && !self.unheard.is_empty() {
            return self.changing.wait_for_grace(asked);
        }
        let change = self.image.touched(&asked.operation);
        // What is refused changes nothing, so nobody drops anything for it.
        if self.grants.are_names_kept(asked.session, &change)
            && self.image.refuses(self.stamp(), asked.session, &asked.operation)
        {
            return self.finish_operation(asked);
        }
        match self.grants.begin_change(asked.session, &change) {
            Ok(()) => {
                self.finish_operation(asked);
                self.grants.end_change(&change.tokens);
            }
            Err(ticket) => self.changing.wait(ticket, asked, change),
        }
    }

    /// Handles an operation of which no other session keeps what it was to change when it came; meanwhile others may
    /// have changed what its names are.
    pub(super) fn go_on(&mut self, ticket: u64) {
        let Some((asked, change)) = self.changing.take(ticket) else { return };
        let session = asked.session;
        if change.covers(&self.image.touched(&asked.operation)) {
            self.finish_operation(asked);
        } else {
            self.begin_operation(asked);
        }
        self.grants.end_change(&change.tokens);
        self.do_those_behind(session);
    }

    /// Does the operations of a session behind one that waited, up to the next that waits.
    pub(super) fn do_those_behind(&mut self, session: u64) {
        while !self.changing.is_waiting(session)
            && let Some(next) = self.changing.next(session)
        {
            self.begin_operation(next);
        }
    }

    fn finish_operation(&mut self, asked: Asked) {
        let Asked { session, number, operation, reply } = asked;
        let is_new = number == self.image.next_number(session);
        let answer = self.operate(session, number, &operation);
        self.overview.operations += 1;
        if planted(Bug::AnsweredEarly) {
            return reply.send(answer);
        }
        let level = match operation {
            Operation::Create { open: true, .. } if is_new => level::WRITE,
            _ => level::NONE,
        };
        self.answer(session, reply, answer, level);
    }

    pub(super) fn operate(&mut self, session: u64, number: u64, operation: &Operation) -> Result<Answer, Failure> {
        let next = self.image.next_number(session);
        match number.cmp(&next) {
            Ordering::Less => self.image.repeat(session, number, operation).unwrap_or_else(|| {
                let words = format!("operation {number} of session {session} was acknowledged");
                Err(Failure { code: Code::Forgotten, errno: libc::EIO, words })
            }),
            Ordering::Greater => {
                let words = format!("operation {number} came, {next} is the next");
                Err(Failure { code: Code::OutOfOrder, errno: libc::EIO, words })
            }
            Ordering::Equal => {
                let (answer, transaction) = self.image.operate(self.stamp(), session, number, operation);
                self.next.extend(transaction);
                self.note_shortage(answer.as_ref().err());
                answer
            }
        }
    }
}
