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
mod kept;
#[cfg(test)]
mod run;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::super::connection::Shared;
use super::super::grants::{files_of, is_look};
use crate::planted::{Bug, planted};
use crate::protocol::{Answer, Failure, Question};

/// If the disk takes longer than this for an append, nothing is answered early any more.
const APPEND_TIME_MAX: Duration = Duration::from_secs(1);

/// Who has changed an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// A session, by operations that are answered early.
    Early(u64),
    /// A session, also by operations that are answered when they are durable.
    Held(u64),
    /// Several sessions, or one that depends on others.
    Several,
}

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// At once.
    Early,
    /// Once what it depends on, and what the session's earlier operations wait for, is durable.
    Behind,
    /// When it is durable.
    Held,
    /// When it is durable, as it depends on what others have changed and the same append stores.
    Foreign,
}

/// What one append stores.
#[derive(Debug, Default)]
struct Part {
    changed: HashMap<u64, By>,
    /// The first operation of each session that waits for this append.
    awaited_by: HashMap<u64, u64>,
    /// The last operation of each session.
    last: HashMap<u64, u64>,
    /// Whether it ends a session: what others get because of that is not theirs before.
    ends_session: bool,
}

impl Part {
    /// Whether no other session has changed the inodes.
    fn is_own(&self, session: u64, inodes: &[u64]) -> bool {
        let is_own = |by: &By| *by == By::Early(session) || *by == By::Held(session);
        !self.ends_session && inodes.iter().all(|inode| self.changed.get(inode).is_none_or(is_own))
    }

    /// Whether nobody has changed the inodes but this session, by operations that are answered early.
    fn is_early(&self, session: u64, inodes: &[u64]) -> bool {
        !self.ends_session
            && inodes.iter().all(|inode| self.changed.get(inode).is_none_or(|by| *by == By::Early(session)))
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
    /// A session is shown what it did and was not told of.
    UntoldShown,
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

    /// Returns when an operation about these inodes may be answered at the earliest; `is_behind`: earlier operations of the
    /// session are not answered yet.
    pub fn standing(&self, session: u64, number: u64, inodes: &[u64], is_behind: bool) -> Standing {
        if !self.next.is_own(session, inodes) && !self.has(Defect::NextIgnored) {
            return Standing::Foreign;
        }
        let is_own = self.in_flight.is_own(session, inodes) || self.has(Defect::InFlightIgnored);
        if is_behind || !is_own || !self.is_in_order(session, number) {
            return Standing::Behind;
        }
        if self.is_slow() { Standing::Held } else { Standing::Early }
    }

    /// Notes an operation that was done, and the inodes that it has changed.
    pub fn done(&mut self, session: u64, number: u64, inodes: &[u64], standing: Standing) {
        self.next.last.insert(session, number);
        let by = match standing {
            Standing::Foreign if !self.has(Defect::DependenceIgnored) && !planted(Bug::DependenceIgnored) => {
                By::Several
            }
            Standing::Held | Standing::Behind if !self.has(Defect::UntoldShown) => By::Held(session),
            _ => By::Early(session),
        };
        for inode in inodes {
            let known = self.next.changed.entry(*inode).or_insert(by);
            *known = match (*known, by) {
                (known, by) if known == by => by,
                (By::Early(one) | By::Held(one), By::Early(other) | By::Held(other)) if one == other => By::Held(one),
                _ => By::Several,
            };
        }
    }

    /// Notes that an operation of a session is answered only when it is durable.
    pub fn awaited(&mut self, session: u64, number: u64) {
        let first = self.next.awaited_by.entry(session).or_insert(number);
        *first = number.min(*first);
    }

    /// Whether an answer that shows these inodes may leave at once: it shows what is durable, or what the session was told.
    pub fn may_show(&self, session: u64, inodes: &[u64]) -> bool {
        (self.in_flight.is_early(session, inodes) || self.has(Defect::InFlightIgnored))
            && (self.next.is_early(session, inodes) || self.has(Defect::NextIgnored))
            && !self.is_slow()
    }

    /// Whether the disk takes too long.
    fn is_slow(&self) -> bool {
        self.began_at.is_some_and(|at| at.elapsed() >= APPEND_TIME_MAX)
    }

    /// Whether no earlier operation of the session waits for the disk.
    pub fn is_in_order(&self, session: u64, number: u64) -> bool {
        let is_before = |part: &Part| part.awaited_by.get(&session).is_none_or(|first| number < *first);
        self.has(Defect::OutOfOrder)
            || planted(Bug::AnsweredOutOfOrder)
            || (is_before(&self.in_flight) && is_before(&self.next))
    }

    /// Returns the number up to which the operations of a session are durable.
    pub fn stored(&self, session: u64) -> u64 {
        self.shared.stored().get(&session).copied().unwrap_or(0)
    }

    /// Whether a session has done something that is not being stored yet.
    pub fn has_next(&self, session: u64) -> bool {
        self.next.last.contains_key(&session)
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

    /// Removes a session that is over; the next append stores that.
    pub fn forget(&mut self, session: u64) {
        self.next.ends_session = true;
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
        Question::Close { file } => file.inode,
        other => subject(other)?,
    };
    let shown = answer.as_ref().map(files_of).unwrap_or_default();
    Some(std::iter::once(inode).chain(shown.into_iter().map(|file| file.inode)).collect())
}

/// Returns the inode that a question shows something of.
pub(super) fn subject(question: &Question) -> Option<u64> {
    Some(match question {
        Question::Lookup { directory, .. } | Question::ReadDirectory { directory, .. } => directory.inode,
        Question::GetAttributes { file }
        | Question::ReadXattr { file, .. }
        | Question::ListXattrs { file }
        | Question::ReadMap { file, .. }
        | Question::Open { file, .. } => file.inode,
        _ => return None,
    })
}
