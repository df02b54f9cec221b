//! What the session may keep of what its operations change.
//!
//! Owns: the notice of the server that precedes the answer to an operation. Promises: what is kept is there before the
//! caller has the answer. Leaves to others: whether it is still so (`looks`).

use super::{CallAnswer, PendingCall, SharedSession};
use crate::protocol::{FileId, MayKeep, ServerAnswer, ServerRefusal};

/// Returns the inode that the answer to an operation shows.
fn shown(said: &CallAnswer) -> Option<FileId> {
    match said {
        CallAnswer::Answer(ServerAnswer::Attributes(found)) => Some(found.id()),
        CallAnswer::Granted(grant) => Some(grant.held.token.object),
        _ => None,
    }
}

impl PendingCall {
    /// Ends the change of an operation, and keeps what the session may keep of it.
    pub fn end_change(&mut self, answer: &Result<CallAnswer, ServerRefusal>) {
        let (changing, may_keep) = (self.changing.take(), self.may_keep.take());
        if let (Some(changing), Some(may_keep), Ok(said)) = (changing, may_keep, answer) {
            changing.end_with(may_keep, shown(said));
        }
    }
}

impl SharedSession {
    /// Handles what the session may keep of an operation, whose answer follows.
    pub fn may_keep(&self, request: u64, may_keep: MayKeep) {
        let mut state = self.state();
        if let Some(waiting) = state.waiting.get_mut(&request) {
            waiting.may_keep = Some(may_keep);
        }
    }
}
