//! The sessions from before a restart, until the server knows what each holds.
//!
//! Owns: which sessions have said nothing yet, which are late, and the questions that wait for them.

use std::collections::BTreeSet;

use crate::planted::{Bug, planted};
use crate::server::grants::WaitingQuestion;

/// The grace after a restart.
pub(super) struct RestartGrace {
    /// Sessions from before a restart of which this server has not heard yet: they may keep names and attributes.
    unheard: BTreeSet<u64>,
    /// Sessions for which this server waits no more, and since then no other one was served.
    late: BTreeSet<u64>,
    /// Questions that wait for them.
    questions: Vec<WaitingQuestion>,
}

impl RestartGrace {
    /// Begins the grace of these sessions.
    pub fn of(sessions: impl Iterator<Item = u64>) -> RestartGrace {
        let mut grace = RestartGrace { unheard: sessions.collect(), late: BTreeSet::new(), questions: Vec::new() };
        if planted(Bug::NamesInGrace) {
            grace.wait_no_more();
        }
        grace
    }

    /// Whether a session has not said what it keeps, and may.
    pub fn is_on(&self) -> bool {
        !self.unheard.is_empty()
    }

    /// Whether a session may repeat what it has answered itself before the restart.
    pub fn may_repeat(&self, session: u64) -> bool {
        self.unheard.contains(&session) || self.late.contains(&session)
    }

    /// The number of sessions that may repeat something.
    pub fn repeating(&self) -> usize {
        self.unheard.len() + self.late.len()
    }

    /// Keeps a question until the grace is over.
    pub fn keep(&mut self, question: WaitingQuestion) {
        self.questions.push(question);
    }

    /// Takes the questions that waited.
    pub fn questions(&mut self) -> Vec<WaitingQuestion> {
        std::mem::take(&mut self.questions)
    }

    /// Ends the grace of a session that has said what it keeps, or that is over.
    pub fn end_for(&mut self, session: u64) {
        self.unheard.remove(&session);
        self.late.remove(&session);
    }

    /// Waits for no session any more.
    pub fn wait_no_more(&mut self) {
        self.late.append(&mut self.unheard);
    }

    /// Notes that a session is shown something, or changes something: other ones that are late cannot repeat any more what
    /// their programs were told is done.
    pub fn note_served(&mut self, session: u64) {
        self.late.retain(|late| *late == session || planted(Bug::NamesInGrace));
    }
}
