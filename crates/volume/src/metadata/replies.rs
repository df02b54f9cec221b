//! Replies that are kept, so that each operation is done once.
//!
//! Owns: how many there are. Promises: a session has at most [`REPLIES_MAX`] replies that it did not acknowledge, counted
//! from the last restart.

use super::change::Result;
use super::image::Image;
use crate::format::{Key, Reply, Session};
use crate::protocol::{Answer, Code, Failure};

/// Replies of a session that it did not acknowledge.
pub(super) const REPLIES_MAX: u64 = 1024;

impl Image {
    /// The stored answer of an operation that was done.
    pub fn stored_reply(&self, session: u64, number: u64) -> Option<std::result::Result<Answer, Failure>> {
        let reply = Reply::decode(self.tables.get(&Key::Reply(session, number))?).ok()?;
        match reply.body.split_first()? {
            (0, body) => Some(Ok(Answer::decode_stored(body).ok()?)),
            (_, body) => {
                let errno = i32::from_le_bytes(body.get(..4)?.try_into().ok()?);
                let code = body.get(4).copied()?;
                let code = [Code::Stale, Code::Full, Code::Limit, Code::Damaged, Code::Ended]
                    .into_iter()
                    .find(|known| *known as u8 == code);
                Some(Err(Failure { code: code.unwrap_or(Code::Posix), errno, words: String::new() }))
            }
        }
    }

    /// Whether the reply of one more operation may be kept.
    ///
    /// *Errors*: there are too many; the operation is not done, and its number is not used.
    pub(super) fn has_room(&self, session: u64, number: u64, record: &Session) -> Result<()> {
        let told = self.acknowledged.get(&session).copied().unwrap_or(0);
        let before = self.done_before.get(&session).copied().unwrap_or(0);
        let counted_from = record.acknowledged.max(told).max(before);
        if number <= counted_from.saturating_add(REPLIES_MAX) {
            return Ok(());
        }
        let words = format!("session {session} did not acknowledge {REPLIES_MAX} replies: one more is not kept");
        Err(Failure { code: Code::Limit, errno: libc::EAGAIN, words })
    }

    /// Replies up to this number may go.
    pub fn acknowledge(&mut self, session: u64, number: u64, drained: u64) {
        if self.session(session).is_ok() {
            let number = number.min(self.next_number(session) - 1);
            let known = self.acknowledged.entry(session).or_default();
            *known = (*known).max(number);
            let known = self.drained.entry(session).or_default();
            *known = (*known).max(drained);
        }
    }
}
