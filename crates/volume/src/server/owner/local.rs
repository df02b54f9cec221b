//! Operations that sessions have done themselves, in directories that they hold at level *write*.
//!
//! Owns: doing them here, and telling sessions that they are durable. Promises: what a session has answered is done as it
//! was answered, in order, or the session ends with a line in the log; a session is told of what is durable once for each
//! append. Leaves to others: which directories sessions hold (`tokens::locals`).

use std::collections::HashMap;

use nectary_host::log::{LogLevel, write as log_line};

use super::MetadataOwner;
use super::early::AnswerTiming;
use crate::metadata::{AppendStamp, LOCAL_TARGET_BYTES_MAX};
use crate::planted::{Bug, planted};
use crate::protocol::{FileId, MetadataOperation, ServerAnswer};
use crate::server::changing::RequestedOperation;
use crate::server::connection::ReplySender;

/// The maximum number of operations that a session repeats.
const REPEATED_MAX: u64 = 512;

/// Directories that a session may get at level *write*.
pub(super) struct OfferedDirectories {
    pub session: u64,
    /// Those in which it has changed a name.
    pub changed: Vec<FileId>,
    /// The one that it has made there.
    pub made: Option<FileId>,
}

/// For each session, the reply to the last of the operations that it has done itself: it says that all are durable.
#[derive(Default)]
pub(super) struct UntoldLocals {
    in_flight: HashMap<u64, ReplySender>,
    next: HashMap<u64, ReplySender>,
}

impl UntoldLocals {
    /// What was done so far is being stored.
    pub fn begin_append(&mut self) {
        self.in_flight.extend(self.next.drain());
    }

    /// What was being stored is durable.
    pub fn settle(&mut self) {
        self.in_flight.drain().for_each(|(_, reply)| reply.send(Ok(ServerAnswer::Done)));
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.in_flight.remove(&session);
        self.next.remove(&session);
    }
}

impl MetadataOwner {
    /// Does an operation that its session has done itself.
    pub(super) fn do_local(&mut self, asked: RequestedOperation, now_ns: i64) {
        let RequestedOperation { session, number, operation, reply, .. } = asked;
        self.overview.operations += 1;
        if let Err(why) = self.try_local((session, number), &operation, now_ns) {
            let words = format!("what its host did itself cannot be done: {why}");
            log_line(LogLevel::Error, "volume", format_args!("session {session}, operation {number}: {words}"));
            self.evict(session, &words);
            return reply.send(self.image.is_active(session).map(|()| ServerAnswer::Done));
        }
        self.local.next.insert(session, reply);
    }

    fn try_local(
        &mut self,
        (session, number): (u64, u64),
        operation: &MetadataOperation,
        now_ns: i64,
    ) -> Result<(), String> {
        let (directory, made) = match operation {
            // Room for longer ones is not kept.
            MetadataOperation::Create { target, .. } if target.len() > LOCAL_TARGET_BYTES_MAX => {
                return Err("the link's target is too long".to_owned());
            }
            MetadataOperation::Create { directory, inode, .. } => (*directory, Some(*inode)),
            MetadataOperation::Unlink { directory, .. } => (*directory, None),
            _ => return Err("it is no operation that a client may do".to_owned()),
        };
        if !self.grants.locals().may_do(session, directory.inode) {
            return Err(format!("it does not hold directory {}", directory.inode));
        }
        if let Some(inode) = made
            && !self.grants.locals().use_number(session, inode)
            && !planted(Bug::LocalTwice)
        {
            return Err(format!("inode number {inode} is not one of those that it got"));
        }
        self.note_served(session);
        let change = self.image.touched(operation);
        if let Err(ticket) = self.grants.begin_change(session, &change) {
            self.grants.end_change(&change.tokens);
            return Err(format!("others keep what it changes (ticket {ticket})"));
        }
        let stamp = AppendStamp { now_ns, ..self.stamp() };
        let (answer, transaction) = self.image.operate_local(stamp, session, number, operation);
        self.grants.end_change(&change.tokens);
        self.journal.next.extend(transaction);
        let answer = answer.map_err(|failure| failure.to_string())?;
        self.grants.attributes_changed(&change);
        let mut inodes = change.inodes();
        inodes.extend(made);
        self.early.done(session, number, &inodes, AnswerTiming::Early);
        let made = made.map(|inode| FileId { inode, generation: 1 });
        let is_left = |object: FileId| made.is_some() || object == directory;
        let kept: Vec<_> = change.tokens.iter().copied().filter(|token| is_left(token.object)).collect();
        self.grants.done_locally(session, directory.inode, &kept, made);
        if let (None, ServerAnswer::Attributes(removed)) = (made, &answer) {
            self.grants.locals().note_removed(directory.inode, removed.number);
        }
        Ok(())
    }

    /// Gives directories to sessions that have changed names in them, or made them, if they alone use them and all that was
    /// changed there is durable or their own. Nothing that could be asked again now waits.
    pub(super) fn give_offered(&mut self) {
        for OfferedDirectories { session, changed, made } in std::mem::take(&mut self.offered) {
            if self.grace.is_on() || self.image.is_active(session).is_err() {
                continue;
            }
            for directory in &changed {
                if self.early.may_show(session, &[directory.inode]) {
                    self.grants.offer_directory(session, *directory);
                }
            }
            if let (Some(made), [parent, ..]) = (made, &changed[..])
                && self.early.may_show(session, &[made.inode])
            {
                self.grants.offer_new_directory(session, *parent, made);
            }
        }
    }

    /// Keeps room for what sessions may make themselves, or repeat after a restart.
    pub(super) fn keep_room(&mut self) {
        let unheard = self.grace.repeating() as u64;
        let in_hand = self.grants.locals().in_hand() + unheard * REPEATED_MAX;
        self.image.keep_room_for(in_hand, self.grace.is_on());
    }
}
