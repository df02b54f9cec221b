//! Operations: when they are done, that each is done once, and repeating what another server has answered early.
//!
//! Leaves to others: which operations wait (`changing`), what sessions keep (`tokens::looks`), which answers may be early
//! (`early`).

use std::cmp::Ordering;

use super::MetadataOwner;
use super::early::{AnswerTiming, EarlyDefect};
use super::local::OfferedDirectories;
use crate::metadata::AppendStamp;
use crate::planted::{Bug, planted};
use crate::protocol::{
    AnswerTerms, FileId, MetadataOperation, RefusalCode, ServerAnswer, ServerRefusal, Token, TokenAspect,
};
use crate::server::changing::RequestedOperation;
use crate::server::connection::ReplySender;
use crate::server::grants::AboutInodes;
use crate::server::request::HeldAnswer;
use crate::tokens::{LookupChange, level};

/// An operation that is done, and not answered.
pub(super) struct FinishedOperation {
    number: u64,
    now_ns: i64,
    pub reply: ReplySender,
    answer: Result<ServerAnswer, ServerRefusal>,
    level: u8,
}

impl MetadataOwner {
    /// Does an operation, or makes it wait until no other session keeps what it changes.
    pub(super) fn begin_operation(&mut self, mut asked: RequestedOperation) {
        if planted(Bug::RepeatedTwice)
            && let AnswerTerms::Repeated { now_ns } = asked.terms
            && asked.number + 1 == self.image.next_number(asked.session)
        {
            let number = self.image.next_number(asked.session);
            return self.repeat_operation(RequestedOperation { number, ..asked }, now_ns);
        }
        if planted(Bug::LocalTwice) && matches!(asked.terms, AnswerTerms::Local { .. }) {
            asked.number = self.image.next_number(asked.session);
        }
        if asked.number != self.image.next_number(asked.session) || self.image.is_active(asked.session).is_err() {
            return self.finish_operation(asked, None, &[]);
        }
        if let AnswerTerms::Repeated { now_ns } = asked.terms {
            return self.repeat_operation(asked, now_ns);
        }
        if let AnswerTerms::Local { now_ns } = asked.terms {
            return self.do_local(asked, now_ns);
        }
        if asked.is_graced() && self.grace.is_on() && !self.early.has(EarlyDefect::GraceIgnored) {
            return self.changing.wait_for_grace(asked);
        }
        self.note_served(asked.session);
        let change = self.image.touched(&asked.operation);
        let (known, missing) = (change.inodes(), self.image.missing(&asked.operation));
        let about = AboutInodes { known: &known, missing: &missing };
        if let Err((ticket, waited)) = self.grants.begin_about(asked.session, about, asked.waited) {
            return self.changing.wait(ticket, RequestedOperation { waited, ..asked }, LookupChange::default());
        }
        // What is refused changes nothing, so nobody drops anything for it.
        if self.grants.are_names_kept(asked.session, &change)
            && self.image.refuses(self.stamp(), asked.session, &asked.operation)
        {
            return self.finish_operation(asked, Some(&change), &[]);
        }
        match self.grants.begin_change(asked.session, &change) {
            Ok(()) => self.finish_operation(asked, Some(&change), &change.tokens),
            Err(_)
                if planted(Bug::ChangeUnwaited)
                    && matches!(asked.operation, MetadataOperation::SetAttributes { .. }) =>
            {
                self.finish_operation(asked, Some(&change), &change.tokens);
            }
            Err(ticket) => self.changing.wait(ticket, asked, change),
        }
    }

    /// Handles an operation of which no other session keeps what it was to change when it came; meanwhile others may
    /// have changed what its names are.
    pub(super) fn go_on(&mut self, ticket: u64) {
        let Some((asked, change)) = self.changing.take(ticket) else { return };
        let session = asked.session;
        let now = self.image.touched(&asked.operation);
        if change.covers(&now) {
            self.finish_operation(asked, Some(&now), &change.tokens);
        } else {
            self.begin_operation(asked);
            self.grants.end_change(&change.tokens);
        }
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

    /// Does an operation, or finds its stored reply. `change` is what it changes if it is the next one of its session,
    /// and `begun` is what others are not offered until it is done.
    fn finish_operation(&mut self, asked: RequestedOperation, change: Option<&LookupChange>, begun: &[Token]) {
        let is_of_names = asked.is_graced();
        let RequestedOperation { session, number, terms, operation, mut reply, .. } = asked;
        let is_new = number == self.image.next_number(session);
        let mut inodes = change.filter(|_| is_new).map(LookupChange::inodes).unwrap_or_default();
        let may_be_early = terms == AnswerTerms::Early
            && is_new
            && operation.may_be_early()
            && (!self.image.moves_directory(&operation)
                || self.early.has(EarlyDefect::MovesEarly)
                || planted(Bug::MovesEarly));
        let is_behind = self.behind.contains_key(&session);
        let standing = self.early.standing(session, number, &inodes, is_behind);
        let (stamp, first_made) = (self.stamp(), self.image.next_inode());
        let mut answer = self.operate(stamp, (session, number), terms, &operation);
        if let (true, MetadataOperation::Unlink { .. }, Ok(ServerAnswer::Attributes(removed))) =
            (is_new, &operation, &mut answer)
        {
            self.image.flag_lost(session, removed);
        }
        self.grants.end_change(begun);
        if let Some(change) = change.filter(|_| is_new && is_of_names && answer.is_ok()) {
            self.grants.attributes_changed(change);
        }
        self.overview.operations += 1;
        if planted(Bug::AnsweredEarly) {
            return reply.send(answer);
        }
        if let Some(change) = change.filter(|_| is_new && is_of_names && answer.is_ok())
            && let Some(may_keep) = self.may_keep(session, change, first_made)
        {
            reply.may_keep(may_keep);
        }
        // A refusal may depend on more than the inodes: a new server keeps files without a name that this one has freed.
        let standing = match standing {
            AnswerTiming::Early | AnswerTiming::Behind if !may_be_early || answer.is_err() => AnswerTiming::Held,
            standing => standing,
        };
        if is_new && number < self.image.next_number(session) {
            inodes.extend(first_made..self.image.next_inode());
            let changed = if answer.is_ok() { &*inodes } else { &[] };
            self.early.done(session, number, changed, standing);
        }
        let names = change.filter(|_| is_new && is_of_names && answer.is_ok() && standing == AnswerTiming::Early);
        let changed_in: Vec<FileId> = names.map_or_else(Vec::new, |change| {
            change
                .tokens
                .iter()
                .filter(|token| token.what == TokenAspect::Directory)
                .map(|token| token.object)
                .collect()
        });
        let made_directory = match (&operation, &answer) {
            (MetadataOperation::Create { .. }, Ok(ServerAnswer::Attributes(made)))
                if made.inode.mode & libc::S_IFMT == libc::S_IFDIR && !changed_in.is_empty() =>
            {
                Some(made.id())
            }
            _ => None,
        };
        let level = match operation {
            MetadataOperation::Create { open: true, .. } if is_new => level::WRITE,
            _ => level::NONE,
        };
        let done = FinishedOperation { number, now_ns: stamp.now_ns, reply, answer, level };
        match standing {
            AnswerTiming::Early => {
                self.answer_early(session, done);
                self.offered.push(OfferedDirectories { session, changed: changed_in, made: made_directory });
            }
            AnswerTiming::Behind => self.behind.entry(session).or_default().push_back(done),
            AnswerTiming::Held | AnswerTiming::Foreign => {
                self.early.awaited(session, number);
                self.answer((session, level), done.reply, done.answer, false);
            }
        }
    }

    /// Answers an operation that may not be durable yet.
    fn answer_early(&mut self, session: u64, done: FinishedOperation) {
        let stored = self.early.stored(session);
        if done.number > stored {
            done.reply.is_early(done.now_ns, stored);
        }
        self.answer((session, done.level), done.reply, done.answer, true);
    }

    /// Answers operations, in order, that waited for the append which is now durable.
    pub(super) fn answer_those_behind(&mut self) {
        let sessions: Vec<u64> = self.behind.keys().copied().collect();
        for session in sessions {
            while let Some(first) = self.behind.get_mut(&session).and_then(|behind| {
                let is_next = behind.front().is_some_and(|first| self.early.is_in_order(session, first.number));
                if is_next { behind.pop_front() } else { None }
            }) {
                self.answer_early(session, first);
            }
        }
        self.behind.retain(|_, behind| !behind.is_empty());
    }

    /// Does an operation again that succeeded at another server, which answered and did not store it.
    fn repeat_operation(&mut self, asked: RequestedOperation, now_ns: i64) {
        let RequestedOperation { session, number, mut operation, reply, .. } = asked;
        self.overview.operations += 1;
        if let MetadataOperation::Create { inode, .. } = &mut operation
            && self.early.has(EarlyDefect::OtherNumber)
        {
            *inode = 0;
        }
        if planted(Bug::RepeatedInPart) && self.early.has_next(session) {
            operation = MetadataOperation::ReturnSpace { extents: Vec::new() };
        }
        // Once others may have been shown something, it is too late.
        let is_in_time = self.grace.may_repeat(session);
        if !is_in_time && !self.early.has(EarlyDefect::RepeatedLate) {
            self.evict(session, "changes that another server had answered came too late to be repeated");
        } else {
            let change = self.image.touched(&operation);
            let mut inodes = change.inodes();
            let now_ns = if self.early.has(EarlyDefect::OtherTime) { self.stamp().now_ns } else { now_ns };
            let stamp = AppendStamp { now_ns, ..self.stamp() };
            let (answer, transaction) = self.image.operate_again(stamp, session, number, &operation);
            self.journal.next.extend(transaction);
            if answer.is_ok() || self.early.has(EarlyDefect::ResultIgnored) {
                self.grants.attributes_changed(&change);
                if let Ok(ServerAnswer::Attributes(made)) = &answer {
                    inodes.push(made.number);
                }
                self.early.done(session, number, &inodes, AnswerTiming::Early);
                self.early.awaited(session, number);
                return self.hold(HeldAnswer::Call(reply, answer));
            }
            self.evict(session, "changes that another server had answered could not be repeated");
        }
        reply.send(self.image.is_active(session).map(|()| ServerAnswer::Done));
    }

    pub(super) fn operate(
        &mut self,
        stamp: AppendStamp,
        (session, number): (u64, u64),
        terms: AnswerTerms,
        operation: &MetadataOperation,
    ) -> Result<ServerAnswer, ServerRefusal> {
        let next = self.image.next_number(session);
        // A client that has the answer may have closed the file since; what it has open it tells a new server.
        let is_answered = matches!(terms, AnswerTerms::Repeated { .. } | AnswerTerms::Local { .. });
        match number.cmp(&next) {
            Ordering::Less => self.image.repeat((session, number), operation, !is_answered).unwrap_or_else(|| {
                let words = format!("operation {number} of session {session} was acknowledged");
                Err(ServerRefusal { code: RefusalCode::Forgotten, errno: libc::EIO, words })
            }),
            Ordering::Greater => {
                let words = format!("operation {number} came, {next} is the next");
                Err(ServerRefusal { code: RefusalCode::OutOfOrder, errno: libc::EIO, words })
            }
            Ordering::Equal => {
                let (answer, transaction) = self.image.operate(stamp, session, number, operation);
                self.journal.next.extend(transaction);
                self.note_shortage(answer.as_ref().err());
                answer
            }
        }
    }
}
