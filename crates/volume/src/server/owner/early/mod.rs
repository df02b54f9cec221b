//! What is applied and not durable yet, and by whom: which answers may leave before the disk has stored everything.
//!
//! Owns: the inodes that sessions have changed since the last durable append, and the number of the last durable
//! operation of each session. Promises: an answer to a session may leave early only if nothing that it is about was
//! changed by another session and is not durable; and an operation only if no earlier one of its session waits for the
//! disk. Leaves to others: what an answer is about (`owner`), repeating operations after a restart (`owner::operating`).

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod run;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::connection::Shared;
use super::super::grants::{files_of, is_look};
use crate::protocol::{Answer, Failure, Question};

/// If the disk takes longer than this for an append, nothing is answered early any more.
const APPEND_TIME_MAX: Duration = Duration::from_secs(1);

/// Who has changed an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// One session, by operations that do not depend on what others did and is not durable.
    Session(u64),
    /// Several sessions, or one that depends on others.
    Several,
}

/// What one append stores.
#[derive(Debug, Default)]
struct Part {
    changed: HashMap<u64, By>,
    /// Sessions of which an operation waits for this append.
    awaited_by: HashSet<u64>,
    /// The last operation of each session.
    last: HashMap<u64, u64>,
}

impl Part {
    fn is_own(&self, session: u64, inode: u64) -> bool {
        self.changed.get(&inode).is_none_or(|by| *by == By::Session(session))
    }
}

/// Defects that tests plant, to show that their checks find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// What others changed since the append in flight began is not looked at.
    NextIgnored,
    /// What the append in flight has is not looked at.
    InFlightIgnored,
    /// Questions do not look at what others changed.
    QuestionsUnchecked,
    /// An operation behind one that waits for the disk is answered early.
    OutOfOrder,
    /// Operations count as durable when their append begins.
    StoredTooEarly,
    /// A repeated operation makes an inode with another number.
    OtherNumber,
    /// A repeated operation is done with a new time.
    OtherTime,
    /// Operations are done before all sessions have repeated theirs.
    GraceIgnored,
    /// Questions are answered before all sessions have repeated theirs.
    QuestionsUngraced,
    /// Operations are repeated at any time.
    RepeatedLate,
    /// A repeated operation that fails is ignored.
    ResultIgnored,
    /// A directory that moves to another parent is answered early.
    MovesEarly,
    /// What depends on others counts as the session's own.
    DependenceIgnored,
}

/// What is applied and not durable yet.
pub(super) struct Early {
    #[cfg(test)]
    pub defect: Option<Defect>,
    in_flight: Part,
    began_at: Option<Instant>,
    next: Part,
    shared: Arc<Shared>,
}

impl Early {
    /// Everything is durable: the operations of each session up to these numbers.
    pub fn new(shared: Arc<Shared>, stored: HashMap<u64, u64>) -> Early {
        *shared.stored() = stored;
        Early {
            #[cfg(test)]
            defect: None,
            in_flight: Part::default(),
            began_at: None,
            next: Part::default(),
            shared,
        }
    }

    /// Whether a test has planted a defect.
    pub fn has(&self, defect: Defect) -> bool {
        #[cfg(test)]
        return self.defect == Some(defect);
        #[cfg(not(test))]
        {
            let _ = defect;
            false
        }
    }

    /// Notes an operation that was done, and the inodes that it has changed. It is the session's `own` if it depends on
    /// nothing that others did and is not durable.
    pub fn done(&mut self, session: u64, number: u64, inodes: &[u64], is_own: bool) {
        self.next.last.insert(session, number);
        let is_own = is_own || self.has(Defect::DependenceIgnored);
        for inode in inodes {
            let by = self.next.changed.entry(*inode).or_insert(By::Session(session));
            if *by != By::Session(session) || !is_own {
                *by = By::Several;
            }
        }
    }

    /// Notes that an operation of a session is answered only when it is durable.
    pub fn awaited(&mut self, session: u64) {
        self.next.awaited_by.insert(session);
    }

    /// Whether nothing that is not durable about these inodes is of another session, and the disk answers.
    pub fn is_own(&self, session: u64, inodes: &[u64]) -> bool {
        let is_own = |inode: &u64| {
            (self.in_flight.is_own(session, *inode) || self.has(Defect::InFlightIgnored))
                && (self.next.is_own(session, *inode) || self.has(Defect::NextIgnored))
        };
        inodes.iter().all(is_own) && self.began_at.is_none_or(|at| at.elapsed() < APPEND_TIME_MAX)
    }

    /// Whether no operation of a session waits for the disk.
    pub fn is_in_order(&self, session: u64) -> bool {
        self.has(Defect::OutOfOrder)
            || ![&self.in_flight, &self.next].iter().any(|part| part.awaited_by.contains(&session))
    }

    /// Returns the number up to which the operations of a session are durable.
    pub fn stored(&self, session: u64) -> u64 {
        self.shared.stored().get(&session).copied().unwrap_or(0)
    }

    /// What was done so far is being stored.
    pub fn begin_append(&mut self) {
        self.in_flight = std::mem::take(&mut self.next);
        if self.has(Defect::StoredTooEarly) {
            self.shared.stored().extend(self.in_flight.last.iter().map(|(session, number)| (*session, *number)));
        }
        self.began_at = Some(Instant::now());
    }

    /// What was being stored is durable.
    pub fn settle(&mut self) {
        self.began_at = None;
        let part = std::mem::take(&mut self.in_flight);
        self.shared.stored().extend(part.last);
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.shared.stored().remove(&session);
        [&mut self.in_flight, &mut self.next].into_iter().for_each(|part| _ = part.last.remove(&session));
    }
}

/// Whether a question shows names, attributes or extended attributes.
pub(super) fn shows_names(question: &Question) -> bool {
    is_look(question) || matches!(question, Question::ReadXattr { .. } | Question::ListXattrs { .. })
}

/// Returns the inodes that a question and its answer are about; `None`: it waits for everything.
pub(super) fn about(question: &Question, answer: &Result<Answer, Failure>) -> Option<Vec<u64>> {
    let inode = match question {
        Question::Lookup { directory, .. } | Question::ReadDirectory { directory, .. } => directory.inode,
        Question::GetAttributes { file }
        | Question::ReadXattr { file, .. }
        | Question::ListXattrs { file }
        | Question::ReadMap { file, .. }
        | Question::Open { file, .. }
        | Question::Close { file } => file.inode,
        _ => return None,
    };
    let shown = answer.as_ref().map(files_of).unwrap_or_default();
    Some(std::iter::once(inode).chain(shown.into_iter().map(|file| file.inode)).collect())
}
