//! Sessions that end without their own word: those whose processes are gone, and those that hold back space.
//!
//! Owns: what follows from the proof that a process has ended, and for how long a request without space counts as
//! waiting. Promises: a session that is proven gone is ended at once, and all that it held is free; a session that
//! holds back the reuse of freed blocks is ended like one that holds a token, and only its granted blocks stay set
//! aside. Leaves to others: the proof (`proofs`), and when a session is late (`tokens`).

use std::time::Duration;

use nectary_host::log::{Level, write as log_line};
use tokio::time::Instant;

use super::super::connection::Reply;
use super::super::proofs::confirmed;
use super::super::request::Held;
use super::Owner;
use crate::protocol::{Answer, Code, Failure, Question};

/// A request that found no space repeats itself soon; after this long without one, nobody waits for space.
const SHORTAGE: Duration = Duration::from_secs(1);

/// Whether a question is about the processes of sessions.
pub(super) fn is_about_siblings(question: &Question) -> bool {
    matches!(question, Question::Siblings | Question::Gone { .. } | Question::Unproven)
}

impl Owner {
    /// Looks for sessions whose processes have ended on this host.
    pub(super) fn look_for_gone(&mut self) {
        let presence = &self.presence;
        self.proofs.look(&self.image.sessions(), |session| presence.silence(session).heard_ms);
    }

    /// Answers a question about the processes of sessions.
    pub(super) fn about_siblings(&mut self, session: u64, question: Question, reply: Reply) {
        let answer = self.image.is_active(session).and_then(|()| self.of_siblings(session, question));
        self.hold(Held::Call(reply, answer));
    }

    fn of_siblings(&mut self, session: u64, question: Question) -> Result<Answer, Failure> {
        match question {
            Question::Siblings => {
                let presence = &self.presence;
                let silence = |session| presence.silence(session).heard_ms;
                return Ok(Answer::Siblings(self.proofs.siblings(session, &self.image.sessions(), silence)));
            }
            Question::Gone { siblings } => {
                let gone = confirmed(session, &siblings, &self.image.sessions())?;
                self.confirm_gone(&gone, &format!("session {session} of the same host says so"));
            }
            _ => self.next.push(self.image.set_unproven(session)?),
        }
        Ok(Answer::Done)
    }

    /// Ends sessions whose processes write nothing any more.
    pub(super) fn confirm_gone(&mut self, gone: &[u64], why: &str) {
        for session in gone {
            let found = self.image.sessions().into_iter().find(|(number, _)| number == session);
            let Some((_, found)) = found else { continue };
            let host = found.host;
            match self.end(*session) {
                Ok(_) => {
                    let words = format!("session {session} of host {host} is over, and what it held is free");
                    log_line(Level::Note, "volume", format_args!("{words}: its process has ended ({why})"));
                }
                Err(error) => {
                    log_line(Level::Error, "volume", format_args!("session {session} cannot be ended: {error}"));
                }
            }
        }
    }

    /// Notes a request that found no space although some is being freed.
    pub(super) fn note_shortage(&mut self, failure: Option<&Failure>) {
        if failure.is_some_and(|failure| failure.code == Code::Full && failure.errno == libc::EAGAIN) {
            self.short_at = Some(Instant::now());
        }
    }

    /// Returns the sessions that hold back space which others wait for.
    pub(super) fn awaited_for_space(&self) -> Vec<u64> {
        match self.short_at.is_some_and(|at| at.elapsed() < SHORTAGE) {
            true => self.image.holding_back(),
            false => Vec::new(),
        }
    }
}
