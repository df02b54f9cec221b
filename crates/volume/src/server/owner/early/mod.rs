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

use super::super::connection::ConnectionsState;
use super::super::grants::{files_of, is_look};
use crate::planted::{Bug, planted};
use crate::protocol::{MetadataQuestion, ServerAnswer, ServerRefusal};
use crate::tokens::level;

/// If the disk takes longer than this for an append, nothing is answered early any more.
const APPEND_TIME_MAX: Duration = Duration::from_secs(1);

/// Who has changed an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InodeChanger {
    /// A session, by operations that are answered early.
    Early(u64),
    /// A session, also by operations that are answered when they are durable.
    Held(u64),
    /// Several sessions, or one that depends on others.
    Several,
}

/// When an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnswerTiming {
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
struct AppendContents {
    changed: HashMap<u64, InodeChanger>,
    /// The first operation of each session that waits for this append.
    awaited_by: HashMap<u64, u64>,
    /// The last operation of each session.
    last: HashMap<u64, u64>,
    /// Whether it ends a session: what others get because of that is not theirs before.
    ends_session: bool,
}

impl AppendContents {
    /// Whether no other session has changed the inodes.
    fn is_own(&self, session: u64, inodes: &[u64]) -> bool {
        let is_own = |by: &InodeChanger| *by == InodeChanger::Early(session) || *by == InodeChanger::Held(session);
        !self.ends_session && inodes.iter().all(|inode| self.changed.get(inode).is_none_or(is_own))
    }

    /// Whether nobody has changed the inodes but this session, by operations that are answered early.
    fn is_early(&self, session: u64, inodes: &[u64]) -> bool {
        !self.ends_session
            && inodes.iter().all(|inode| self.changed.get(inode).is_none_or(|by| *by == InodeChanger::Early(session)))
    }
}

/// Defects that tests plant, to show that their checks find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EarlyDefect {
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
pub(super) struct EarlyAnswers {
    #[cfg(test)]
    pub defect: Option<EarlyDefect>,
    in_flight: AppendContents,
    began_at: Option<Instant>,
    next: AppendContents,
    shared: Arc<ConnectionsState>,
}

impl EarlyAnswers {
    /// Everything is durable: the operations of each session up to these numbers.
    pub fn new(shared: Arc<ConnectionsState>, stored: HashMap<u64, u64>) -> EarlyAnswers {
        *shared.stored() = stored;
        EarlyAnswers {
            #[cfg(test)]
            defect: None,
            in_flight: AppendContents::default(),
            began_at: None,
            next: AppendContents::default(),
            shared,
        }
    }

    /// Whether a test has planted a defect.
    pub fn has(&self, defect: EarlyDefect) -> bool {
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
    pub fn standing(&self, session: u64, number: u64, inodes: &[u64], is_behind: bool) -> AnswerTiming {
        if !self.next.is_own(session, inodes) && !self.has(EarlyDefect::NextIgnored) {
            return AnswerTiming::Foreign;
        }
        let is_own = self.in_flight.is_own(session, inodes) || self.has(EarlyDefect::InFlightIgnored);
        if is_behind || !is_own || !self.is_in_order(session, number) {
            return AnswerTiming::Behind;
        }
        if self.is_slow() { AnswerTiming::Held } else { AnswerTiming::Early }
    }

    /// Notes an operation that was done, and the inodes that it has changed.
    pub fn done(&mut self, session: u64, number: u64, inodes: &[u64], standing: AnswerTiming) {
        self.next.last.insert(session, number);
        let by = match standing {
            AnswerTiming::Foreign if !self.has(EarlyDefect::DependenceIgnored) && !planted(Bug::DependenceIgnored) => {
                InodeChanger::Several
            }
            AnswerTiming::Held | AnswerTiming::Behind if !self.has(EarlyDefect::UntoldShown) => {
                InodeChanger::Held(session)
            }
            _ => InodeChanger::Early(session),
        };
        for inode in inodes {
            let known = self.next.changed.entry(*inode).or_insert(by);
            *known = match (*known, by) {
                (known, by) if known == by => by,
                (
                    InodeChanger::Early(one) | InodeChanger::Held(one),
                    InodeChanger::Early(other) | InodeChanger::Held(other),
                ) if one == other => InodeChanger::Held(one),
                _ => InodeChanger::Several,
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
        (self.in_flight.is_early(session, inodes) || self.has(EarlyDefect::InFlightIgnored))
            && (self.next.is_early(session, inodes) || self.has(EarlyDefect::NextIgnored))
            && !self.is_slow()
    }

    /// Whether the disk takes too long.
    fn is_slow(&self) -> bool {
        self.began_at.is_some_and(|at| at.elapsed() >= APPEND_TIME_MAX)
    }

    /// Whether no earlier operation of the session waits for the disk.
    pub fn is_in_order(&self, session: u64, number: u64) -> bool {
        let is_before = |part: &AppendContents| part.awaited_by.get(&session).is_none_or(|first| number < *first);
        self.has(EarlyDefect::OutOfOrder)
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
        if self.has(EarlyDefect::StoredTooEarly) {
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

/// Whether a question shows names, attributes or extended attributes, or opens a file that the session did not have open.
pub(super) fn shows_names(question: &MetadataQuestion) -> bool {
    match question {
        MetadataQuestion::ReadXattr { .. } | MetadataQuestion::ListXattrs { .. } => true,
        MetadataQuestion::Open { level, .. } => *level != level::NONE,
        _ => is_look(question),
    }
}

/// Returns the inodes that a question and its answer are about; `None`: it waits for everything.
pub(super) fn about(question: &MetadataQuestion, answer: &Result<ServerAnswer, ServerRefusal>) -> Option<Vec<u64>> {
    let inode = match question {
        MetadataQuestion::Close { file } => file.inode,
        other => subject(other)?,
    };
    let shown = answer.as_ref().map(files_of).unwrap_or_default();
    Some(std::iter::once(inode).chain(shown.into_iter().map(|file| file.inode)).collect())
}

/// Returns the inode that a question shows something of.
pub(super) fn subject(question: &MetadataQuestion) -> Option<u64> {
    Some(match question {
        MetadataQuestion::Lookup { directory, .. } | MetadataQuestion::ReadDirectory { directory, .. } => {
            directory.inode
        }
        MetadataQuestion::GetAttributes { file }
        | MetadataQuestion::ReadXattr { file, .. }
        | MetadataQuestion::ListXattrs { file }
        | MetadataQuestion::ReadMap { file, .. }
        | MetadataQuestion::Open { file, .. } => file.inode,
        _ => return None,
    })
}
