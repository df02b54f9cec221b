//! Stored replies, so that each operation is done once.
//!
//! Owns: the number of stored replies. Promises: a session has at most [`REPLIES_MAX`] unacknowledged replies, counted
//! from the last restart.

use super::change::{Result, damaged};
use super::image::MetadataImage;
use super::records::{keys_of, server};
use crate::format::{ReplyRecord, SessionRecord, TableKey, TableKind, Transaction};
use crate::protocol::{RefusalCode, ServerAnswer, ServerRefusal};

/// The maximum number of unacknowledged replies of a session.
const REPLIES_MAX: u64 = 1024;
/// The maximum number of replies that are forgotten in one transaction.
const FORGOTTEN_MAX: usize = 2048;

impl MetadataImage {
    /// Returns the stored answer of an operation that was done.
    pub fn stored_reply(&self, session: u64, number: u64) -> Option<std::result::Result<ServerAnswer, ServerRefusal>> {
        let reply = ReplyRecord::decode(self.tables.get(&TableKey::Reply(session, number))?).ok()?;
        match reply.body.split_first()? {
            (0, body) => Some(Ok(ServerAnswer::decode_stored(body).ok()?)),
            (_, body) => {
                let errno = i32::from_le_bytes(body.get(..4)?.try_into().ok()?);
                let code = body.get(4).copied()?;
                let code = [
                    RefusalCode::Stale,
                    RefusalCode::Full,
                    RefusalCode::Limit,
                    RefusalCode::Damaged,
                    RefusalCode::Ended,
                ]
                .into_iter()
                .find(|known| *known as u8 == code);
                Some(Err(ServerRefusal { code: code.unwrap_or(RefusalCode::Posix), errno, words: String::new() }))
            }
        }
    }

    /// Checks that the reply of one more operation may be stored.
    ///
    /// *Errors*: there are too many unacknowledged replies; the operation is not done, and its number is not used.
    pub(super) fn has_room(&self, session: u64, number: u64, record: &SessionRecord) -> Result<()> {
        let told = self.acknowledged.get(&session).copied().unwrap_or(0);
        let before = self.done_before.get(&session).copied().unwrap_or(0);
        let counted_from = record.acknowledged.max(told).max(before);
        if number <= counted_from.saturating_add(REPLIES_MAX) {
            return Ok(());
        }
        let words = format!("session {session} did not acknowledge {REPLIES_MAX} replies: one more is not kept");
        Err(ServerRefusal { code: RefusalCode::Limit, errno: libc::EAGAIN, words })
    }

    /// Forgets replies that were acknowledged.
    pub fn forget(&mut self) -> Result<Vec<Transaction>> {
        let mut transactions = Vec::new();
        while let Some((session, number)) = self.acknowledged.first_key_value().map(|(key, value)| (*key, *value)) {
            if let Ok(mut record) = self.session(session)
                && record.acknowledged < number
            {
                record.acknowledged = number;
                let ((), mutations) = self.attempt(|change, _| {
                    let replies = keys_of(
                        change.tables,
                        TableKind::Replies,
                        &TableKey::Reply(session, 0),
                        |key| matches!(key, TableKey::Reply(of, at) if *of == session && *at <= number),
                    );
                    replies.iter().take(FORGOTTEN_MAX).for_each(|key| change.delete(key));
                    change.put(&TableKey::Session(session), record.encode().map_err(damaged)?);
                    Ok(())
                })?;
                transactions.push(server(mutations));
            }
            self.acknowledged.remove(&session);
        }
        Ok(transactions)
    }

    /// Notes what a session no longer needs: the replies up to `number`, and the blocks that appends of the journal up
    /// to `drained` freed, because none of its cached maps has them.
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
